"""Where the stages of a pipeline stand still, and why.

The window of a step lasts from the first forward to the last backward of all stages: on the job's clock if the clocks
are comparable, else as long as the longest stay of one stage between its own first forward and last backward, which is
the same if the first stage begins and ends the step. A stage works from the start of the first kernel of a pass to the
end of its last, less the time in which its device was idle. The rest of the window is its bubble, whatever kernel ran:
one that receives, spins until the data are there. The bubble is divided:

- ``theory_ns``: what the order of passes costs if every stage were as slow as the slowest (see :mod:`schedules`);
- ``imbalance_ns``: how much less the stage works than the slowest, and how much sooner the step would end because
  others are faster than the slowest (negative, the same for all stages), both with the mean pass of each stage;
- ``late_send_ns``: between two passes, from the end of what the stage before worked on until it was received;
- ``host_ns``: its device was idle with nothing launched, between its first and last pass;
- ``rest_ns``: the remainder, such as the late sends that other stages suffered. It may be negative, if what was late
  did not delay the step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Annotated

import numpy as np
from msgspec import Struct

from augment.arrays import NO_VALUE, Int64s, Places
from augment.core import Findings, Skipped, column
from augment.facts.names import SEND
from augment.job.matching import Matched
from augment.job.matching.clocks import Clock, common_times
from augment.job.parallel import schedules
from augment.job.ranks import ActionKind, ActionSource, RankSummary

MOST_MISSED = 0.03  #: by which the played passes may take longer than the window
MOST_OF_USUAL = 1.5  #: steps whose window is longer than this multiple of the median do not count
_COLUMNS = ("kind", "chunk", "microbatch", "step", "start", "end")
_SOURCES = {ActionSource.LABELS: "labels", ActionSource.PHASES: "phases", ActionSource.TIMELINE: "timeline"}


class Row(Struct, frozen=True):
    """One stage, in all steps that every stage of its pipeline recorded."""

    rank: Annotated[int | None, column("The rank.")]
    trace: Annotated[str, column("The name of its trace.")]
    pipeline: Annotated[int, column("The number of the pipeline: data-parallel jobs have several.")]
    stage: Annotated[int, column("The stage, from 0.")]
    schedule: Annotated[
        str,
        column(
            "GPipe, 1F1B, interleaved 1F1B, looped GPipe, ZB1P, ZB2P, ZBV, interleaved zero bubble, DualPipe, "
            "DualPipeV or unknown."
        ),
    ]
    known_by: Annotated[str, column("How passes are known: labels, phases (of unlabelled work), or timeline.")]
    stage_count: Annotated[int, column("The stages of the pipeline.", "count")]
    microbatch_count: Annotated[int, column("Microbatches of a step.", "count")]
    chunk_count: Annotated[int, column("Parts of the model on the stage.", "count")]
    step_count: Annotated[int, column("Steps that count.", "count")]
    by_clocks: Annotated[
        bool, column("Whether the window is measured across stages; else it is that of the longest stage.")
    ]
    window_ns: Annotated[
        int, column("From the first forward to the last backward of all stages, summed over steps.", "ns")
    ]
    work_ns: Annotated[int, column("The part in which the stage works.", "ns")]
    communication_ns: Annotated[
        int, column("The part of work_ns in which its device communicates without computing.", "ns")
    ]
    bubble_ns: Annotated[int, column("The rest of the window: the sum of the next five columns.", "ns")]
    theory_ns: Annotated[
        int | None, column("The bubble of the schedule at the slowest stage; null if it is unknown.", "ns")
    ]
    imbalance_ns: Annotated[int, column("Because stages differ; may be negative on the slowest.", "ns")]
    late_send_ns: Annotated[int, column("Waiting for data that the stage before had already computed.", "ns")]
    host_ns: Annotated[int, column("Idle with nothing launched.", "ns")]
    rest_ns: Annotated[int, column("The remainder; may be negative.", "ns")]
    bubble_ratio: Annotated[float | None, column("bubble_ns by window_ns.", "ratio")]
    theory_ratio: Annotated[
        float | None, column("The bubble of the schedule with equal stages, by its whole time.", "ratio")
    ]
    forward_ns: Annotated[float, column("A forward of all its chunks, the mean.", "ns")]
    backward_ns: Annotated[float, column("A backward of all its chunks, the mean.", "ns")]


class _Stage(Struct, frozen=True, dict=True):
    """The passes of a rank; times as recorded and, for comparing, on the job's clock (``begin``, ``finish``)."""

    member: int
    kind: Int64s
    chunk: Int64s
    microbatch: Int64s
    step: Int64s
    start: Int64s
    end: Int64s
    work: Int64s
    communication: Int64s
    source: int
    begin: Int64s
    finish: Int64s

    @cached_property
    def _places(self) -> dict[int, Places]:
        order = np.argsort(self.step, kind="stable")
        steps, first = np.unique(self.step[order], return_index=True)
        return dict(zip(steps.tolist(), np.split(order, first[1:]), strict=True))

    def of(self, step: int) -> Places:
        return self._places[step]

    def passes(self, step: int) -> schedules.Passes:
        ops = self.of(step)
        return schedules.Passes(self.kind[ops], self.chunk[ops], self.microbatch[ops])


def pipeline(
    summaries: Sequence[RankSummary], clocks: Sequence[Clock], matched: Matched, pipelines: Sequence[Sequence[int]]
) -> Findings | Skipped:
    """The rows, the largest bubble first; ``pipelines`` are the ranks of each, in the order of stages.

    Without known pipelines, the ranks of timelines are the stages of one, and ranks whose labels say that each has
    other parts of the model.
    """
    stages = {summaries[stage.member].rank: stage for stage in _stages(summaries, clocks)}
    if len(stages) < 2:
        return Skipped("no forward and backward passes of microbatches were found on two ranks")
    given = pipelines or _alone({rank: stage for rank, stage in stages.items() if rank is not None})
    if not given:
        return Skipped("which ranks are stages of one pipeline is not recorded; --parallelism states it")
    complete = [ranks for ranks in given if len(ranks) > 1 and all(rank in stages for rank in ranks)]
    if not complete:
        return Skipped("no pipeline has the traces of all its stages")
    late = _late_sends(summaries, clocks, matched, {stage.member: stage for stage in stages.values()})
    rows: list[Row] = []
    odd = 0
    for number, ranks in enumerate(complete):
        chain = [stages[rank] for rank in ranks]
        # The steps that count, and how many do not because they are far longer than most, such as the first ones
        by_clocks = all(clocks[stage.member].comparable for stage in chain)
        steps = [
            step
            for step in sorted(set.intersection(*[set(stage.step.tolist()) for stage in chain]))
            if step != NO_VALUE or all((stage.step == NO_VALUE).all() for stage in chain)
        ]
        windows = [_window(chain, [stage.of(step) for stage in chain], by_clocks=by_clocks) for step in steps]
        usual = float(np.median(windows)) if windows else 0.0
        kept = [step for step, window in zip(steps, windows, strict=True) if window <= MOST_OF_USUAL * usual]
        odd = max(odd, len(steps) - len(kept))
        rows += _rows(number, chain, kept, summaries, clocks, late)
    missing = len(given) - len(complete)
    doubts = {"pipelines lack traces of stages": missing, "steps, much longer than most, are left out": odd}
    partial = "; ".join(f"{count} {why}" for why, count in doubts.items() if count) or None
    if not rows:
        return Skipped("no step was recorded on all stages of a pipeline")
    return Findings(sorted(rows, key=lambda row: -row.bubble_ns), partial=partial)


def _alone(stages: Mapping[int, _Stage]) -> list[list[int]]:
    """The ranks of the only pipeline, in the order of stages; none if there may be several, or none at all."""
    if all(stage.source == ActionSource.TIMELINE for stage in stages.values()):
        return [sorted(stages)]
    parts = {rank: set(np.unique(stage.chunk).tolist()) for rank, stage in stages.items()}
    every = set().union(*parts.values())
    if NO_VALUE in every or sum(len(of) for of in parts.values()) != len(every):
        return []
    return [sorted(parts, key=lambda rank: min(parts[rank]))]


def _stages(summaries: Sequence[RankSummary], clocks: Sequence[Clock]) -> Iterator[_Stage]:
    for member, (summary, clock) in enumerate(zip(summaries, clocks, strict=True)):
        columns = {name: summary.table_column("actions", name) for name in _COLUMNS}
        source = summary.table_column("actions", "source")
        if source is None or not len(source):
            continue
        known = {name: values for name, values in columns.items() if values is not None}
        start, end = known["start"], known["end"]
        parts = summary.states.parts(start, end)
        yield _Stage(
            member=member,
            **known,
            work=end - start - parts.host - parts.queued,
            communication=parts.communication,
            source=int(source[0]),
            begin=clock.to_common(start),
            finish=clock.to_common(end),
        )


def _rows(
    number: int,
    stages: Sequence[_Stage],
    steps: Sequence[int],
    summaries: Sequence[RankSummary],
    clocks: Sequence[Clock],
    late: Mapping[int, Int64s],
) -> Iterator[Row]:
    """The rows of one pipeline."""
    passes = [schedules.parted([stage.passes(step) for stage in stages]) for step in steps]
    if not steps:
        return
    name = schedules.recognised(passes)
    by_clocks = all(clocks[stage.member].comparable for stage in stages)
    places = [[stage.of(step) for stage in stages] for step in steps]
    window = sum(_window(stages, of, by_clocks=by_clocks) for of in places)
    work = [sum(int(stage.work[of[at]].sum()) for of in places) for at, stage in enumerate(stages)]
    slowest = int(np.argmax(work))
    many, chunks = passes[0][slowest].microbatches, passes[0][slowest].chunks
    rounds = max(many * len(steps), 1)
    times: list[dict[ActionKind, float]] = []  #: the work of each kind for one microbatch
    for at, stage in enumerate(stages):
        every = np.concatenate([of[at] for of in places])
        kind, took = stage.kind[every], stage.work[every]
        times.append({ActionKind(of): float(took[kind == of].sum()) / rounds for of in np.unique(kind).tolist()})
    each, sooner, shortest = _ideal(name, passes[0], times, slowest, chunks)
    if shortest * len(steps) > (1 + MOST_MISSED) * window:  # the passes must be others than they seem
        name, each, sooner = schedules.UNKNOWN, None, 0.0
    theory = None if each is None else round(each * len(steps))
    working = sum(times[slowest].values()) * many
    for at, stage in enumerate(stages):
        ops = [of[at] for of in places]
        sent, host = _lost(summaries[stage.member], stage, ops, late[stage.member])
        forward, backward = _both_ways(times[at], passes[0][at])
        imbalance, whole = work[slowest] - work[at] + round(sooner * len(steps)), window - work[at]
        yield Row(
            rank=summaries[stage.member].rank,
            trace=summaries[stage.member].name,
            pipeline=number,
            stage=at,
            schedule=name,
            known_by=_SOURCES[ActionSource(stage.source)],
            stage_count=len(stages),
            microbatch_count=many,
            chunk_count=chunks,
            step_count=len(steps),
            by_clocks=by_clocks,
            window_ns=window,
            work_ns=work[at],
            communication_ns=int(sum(stage.communication[of].sum() for of in ops)),
            bubble_ns=whole,
            theory_ns=theory,
            imbalance_ns=imbalance,
            late_send_ns=sent,
            host_ns=host,
            rest_ns=whole - (theory or 0) - imbalance - sent - host,
            bubble_ratio=whole / window if window else None,
            theory_ratio=each / (each + working) if each is not None and working else None,
            forward_ns=forward,
            backward_ns=backward,
        )


def _ideal(
    name: str, stages: Sequence[schedules.Passes], times: Sequence[dict[ActionKind, float]], slowest: int, chunks: int
) -> tuple[float | None, float, float]:
    """The bubble of a step if all stages were as slow as the slowest (None: unknown), the change of its length
    (negative) as they are faster, and the shortest that the step can be (0: unknown; infinite: the order of passes
    cannot be)."""
    of_pass = [
        {kind: time * stage.microbatches / count for kind, time in of.items() if (count := stage.count(kind))}
        for of, stage in zip(times, stages, strict=True)
    ]
    equal, uneven = schedules.played(stages, [of_pass[slowest]] * len(stages)), schedules.played(stages, of_pass)
    if equal is None or uneven is None:
        possible = name in (schedules.DUALPIPE, schedules.DUALPIPEV)  # whose backwards may be unknown
        return schedules.bubble(name, len(stages), chunks, times[slowest]), 0.0, 0.0 if possible else np.inf
    return equal - sum(times[slowest].values()) * stages[slowest].microbatches, uneven - equal, uneven


def _both_ways(times: Mapping[ActionKind, float], passes: schedules.Passes) -> tuple[float, float]:
    """A forward and a backward of all chunks of a stage, of those that did not run at once."""
    halves = (ActionKind.BACKWARD, ActionKind.INPUT, ActionKind.WEIGHT)
    forward, backward = times.get(ActionKind.FORWARD, 0.0), sum(times.get(kind, 0.0) for kind in halves)
    if ActionKind.OVERLAPPED not in times:
        return forward, backward
    whole = passes.microbatches * passes.chunks
    forwards, backwards = passes.count(ActionKind.FORWARD), passes.count(ActionKind.BACKWARD, ActionKind.INPUT)
    return forward * whole / max(forwards, 1), backward * whole / max(backwards, 1)


def _window(stages: Sequence[_Stage], of: Sequence[Places], *, by_clocks: bool) -> int:
    """The window of one step."""
    if by_clocks:
        first = min(int(stage.begin[ops].min()) for stage, ops in zip(stages, of, strict=True))
        return max(int(stage.finish[ops].max()) for stage, ops in zip(stages, of, strict=True)) - first
    return max(int(stage.end[ops].max() - stage.start[ops].min()) for stage, ops in zip(stages, of, strict=True))


def _lost(summary: RankSummary, stage: _Stage, steps: Sequence[Places], late: Int64s) -> tuple[int, int]:
    """The time of steps lost to late messages, and to the host: idle with nothing launched, between the first and the
    last pass, and before the first since its data were computed. What fits both is the host's."""
    orders = [ops[np.argsort(stage.start[ops], kind="stable")] for ops in steps]
    begun = [stage.start[order[:1]] - late[order[:1]] for order in orders]
    ends = [np.maximum.accumulate(stage.end[order])[:-1] for order in orders]
    order = np.concatenate(orders)
    start = stage.start[order]
    before = np.minimum(np.concatenate([part for pair in zip(begun, ends, strict=True) for part in pair]), start)
    idle = summary.states.parts(np.concatenate((before, start)), np.concatenate((start, stage.end[order]))).host
    gaps = idle[: len(order)]
    return int(np.maximum(late[order] - gaps, 0).sum()), int(idle.sum())


def _late_sends(
    summaries: Sequence[RankSummary], clocks: Sequence[Clock], matched: Matched, stages: Mapping[int, _Stage]
) -> dict[int, Int64s]:
    """For each pass of each member, the time before it in which its data were computed but not received; 0 if the
    clocks are not comparable."""
    late = {member: np.zeros(len(stage.start), np.int64) for member, stage in stages.items()}
    pairs = np.flatnonzero(matched.is_pair())
    if not len(pairs):
        return late
    _, end, _ = common_times(matched, clocks)
    first = matched.first[pairs]
    # Which parts are sends
    sends = np.zeros(len(matched.member), np.bool_)
    for member, summary in enumerate(summaries):
        rows = matched.rows_of(member)
        codes = [code for code, kind in enumerate(summary.kinds) if kind == SEND]
        sends[rows] = np.isin(summary.column("kind")[matched.place[rows]], codes)
    send, receive = np.where(sends[first], first, first + 1), np.where(sends[first], first + 1, first)
    for sender, receiver in sorted(
        set(zip(matched.member[send].tolist(), matched.member[receive].tolist(), strict=True))
    ):
        known = sender in stages and receiver in stages
        if not known or not (clocks[sender].comparable and clocks[receiver].comparable):
            continue
        index = np.flatnonzero((matched.member[send] == sender) & (matched.member[receive] == receiver))
        _charge(late[receiver], stages[sender], stages[receiver], matched.ts[send[index]], end[receive[index]])
    return late


def _charge(late: Int64s, sender: _Stage, receiver: _Stage, sent: Int64s, received: Int64s) -> None:
    """Add what each message was late to the pass that it arrived before; ``sent`` is on the sender's own clock."""
    ends = np.sort(sender.end)
    finish = sender.finish[np.argsort(sender.end, kind="stable")]
    made = np.searchsorted(ends, sent, side="right") - 1
    order = np.argsort(receiver.begin, kind="stable")
    following = np.searchsorted(receiver.begin[order], received, side="left")
    usable = (made >= 0) & (following < len(order))
    made, following, received = made[usable], following[usable], received[usable]
    done = np.append(np.iinfo(np.int64).min, np.maximum.accumulate(receiver.finish[order]))
    idle_from = done[following]
    waited = np.maximum(received - np.maximum(finish[made], idle_from), 0)
    np.maximum.at(late, order[following], waited)
