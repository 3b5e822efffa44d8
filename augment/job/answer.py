"""Answers all questions to a whole job from its ranks' summaries."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from typing import Any, TypeVar

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from augment.arrays import Bools, Int64s, each
from augment.core import CounterTrack, Diagnostic, Findings, Outcome, Skipped, SliceTrack, Verdict, text
from augment.job import aggregates, collectives, timeline
from augment.job.matching import Clock, Matched, align, match
from augment.job.matching import clocks as alignment
from augment.job.parallel import Dimensions, buckets, comparison, dimensions, pipeline, sharding, volumes
from augment.job.path import Path, path_of, step_parts
from augment.job.path import path as path_figures
from augment.job.ranks import LISTED, UNKNOWN, RankSummary, read_summary
from augment.job.verdict import Judgement, WhatIfRow, late_ranks, unrelated

_BROKEN = 0.05  #: share of a group's collectives that cannot be one, to doubt all of them
_NAMED = 5  #: incomplete traces named in the diagnostic
_NO_BUCKETS = "no gradients were averaged by several all-reduces in backward"
#: the rows of each question about parallel dimensions
_OF_DIMENSIONS: dict[str, type[Any]] = {
    "parallel_dimensions": dimensions.Row,
    "rank_coordinates": dimensions.RankRow,
    "communication_by_dimension": volumes.Row,
    "dimension_groups": comparison.GroupRow,
    "dimension_links": comparison.LinkRow,
    "dimension_places": comparison.PlaceRow,
    "pipeline": pipeline.Row,
    "ddp_buckets": buckets.Row,
    "ddp_caps": buckets.CapsRow,
    "sharding": sharding.Row,
    "expert_parallel": volumes.ReceivedRow,
    "step_heat": comparison.Row,
}
#: the rows of each question
ROWS: dict[str, type[Any]] = {
    "clock_alignment": alignment.Row,
    "job_collectives": collectives.Row,
    "collective_sizes": collectives.SizeRow,
    "stragglers": late_ranks.Row,
    "load_imbalance": late_ranks.ImbalanceRow,
    "job_step_efficiency": step_parts.Row,
    "cross_rank_critical_path": path_figures.Row,
    "cross_rank_handovers": path_figures.HandoverRow,
    "job_what_if": WhatIfRow,
    **_OF_DIMENSIONS,
    "aggregates": aggregates.Row,
}


class Answer(Struct, frozen=True, dict=True):
    """The results of a job. ``clocks`` are in the order of ``summaries``; ``matched`` and ``parted`` are columns."""

    summaries: Sequence[RankSummary]
    clocks: Sequence[Clock]
    matched: Matched
    parted: collectives.Waits
    diagnostics: Sequence[Diagnostic]
    parallelism: Mapping[str, int] = field(default_factory=dict)  #: sizes of dimensions that the user states
    aggregation: aggregates.Aggregation | None = None  #: of figures that the summaries no longer hold
    hashes: Sequence[bytes] = ()  #: the SHA-256 of each summary's file

    def __repr__(self) -> str:
        return f"<Answer: {len(self.summaries)} ranks, {len(self.matched):,} matched collectives>"

    @cached_property
    def outcomes(self) -> Mapping[str, Outcome]:
        """The figures by question, in the order of :data:`ROWS`."""
        named = zip(self.clocks, self.summaries, strict=True)
        clocks = [alignment.row_of(clock, summary.name) for clock, summary in named]
        link = max((summary.link_gbps for summary in self.summaries), default=0.0)
        groups, sizes = collectives.figures(self.matched, self.parted, link)
        groups.sort(key=lambda row: -row.time_ns)
        charged = late_ranks.stragglers(
            self.matched, self.parted, self.summaries, self.judgement.excess, self.judgement.named
        )
        late = sorted(charged, key=lambda row: -row.after_the_others_ns)
        steps = list(late_ranks.imbalance(self.summaries))
        unmatched = "no collective was found on two ranks"
        return {
            "clock_alignment": Findings(clocks) if len(self.matched) else Skipped(unmatched),
            "job_collectives": Findings(groups) if groups else Skipped(unmatched),
            "collective_sizes": Findings(sizes) if sizes else Skipped("no collective of known size was matched"),
            "stragglers": Findings(late, partial=self._missing()) if late else Skipped(unmatched),
            "load_imbalance": Findings(steps) if steps else Skipped("no rank recorded a step"),
            "job_step_efficiency": step_parts.step_parts(self.matched, self.parted, self.summaries),
            **self._of_path(),
            "job_what_if": self.judgement.what_if,
            **self._of_dimensions(),
            "aggregates": self.aggregation.outcome(self.summaries)
            if self.aggregation
            else aggregates.aggregates(self.summaries),
        }

    @cached_property
    def judgement(self) -> Judgement:
        """Who holds the job up, and what would be gained."""
        return Judgement(self.matched, self.clocks, self.summaries, self.dimensions).of_groups()

    @cached_property
    def dimensions(self) -> Dimensions:
        """The parallel dimensions of the process groups."""
        return dimensions.dimensions(self.summaries, self.matched, self.parallelism)

    @cached_property
    def tells_late(self) -> Bools:
        """Of each collective whether its last rank counts as late: no message, and more than half of the ranks seen."""
        return ~(self.matched.is_pair() | late_ranks.is_sparse(self.matched))

    @cached_property
    def verdict(self) -> Verdict:
        """The answer in sentences and rows."""
        verdict, whose = self.judgement.verdict, self.dimensions.pipelines
        if verdict.joined or isinstance(pipeline.pipeline(self.summaries, self.clocks, self.matched, whose), Skipped):
            return verdict
        return replace(verdict, text=(unrelated(len(self.summaries), in_stages=True),))

    @cached_property
    def path(self) -> Path | Skipped:
        """The critical path through the ranks, or why there is none."""
        if not len(self.matched):
            return Skipped("no collective was found on two ranks")
        path = path_of(self.matched, self.parted, self.clocks, self.summaries)
        return Skipped(path) if isinstance(path, str) else path

    def _of_path(self) -> Mapping[str, Outcome]:
        path = self.path
        if isinstance(path, Skipped):
            return {"cross_rank_critical_path": path, "cross_rank_handovers": path}
        refused = sum(not clock.comparable for clock in self.clocks)
        why = f"the path cannot reach {refused} ranks, whose clocks are not comparable with the others'"
        doubts = filter(None, (why if refused else None, self._missing()))
        rows = list(path_figures.figures(path, self.clocks, self.summaries))
        over = path_figures.handovers(path, self.matched, self.parted, self.summaries)
        none = Skipped("the path stays on one rank, which waits for no other")
        return {
            "cross_rank_critical_path": Findings(rows, partial="; ".join(doubts) or None),
            "cross_rank_handovers": over if over.rows else none,
        }

    def _of_dimensions(self) -> Mapping[str, Outcome]:
        summaries, matched, parted, dims = self.summaries, self.matched, self.parted, self.dimensions
        steps = comparison.rank_steps(summaries)
        stages = pipeline.pipeline(summaries, self.clocks, matched, dims.pipelines)
        cells = comparison.heat(steps, matched, parted, summaries)
        if not any(len(summary.column("ts")) for summary in summaries):
            skipped = Skipped("no rank recorded collectives")
            return dict.fromkeys(_OF_DIMENSIONS, skipped) | {"pipeline": stages, "step_heat": cells}
        buckets_ = buckets.buckets(dims, matched, parted, self.clocks, summaries)
        averaged = list(buckets.rows(buckets_, matched, parted))
        groups, links = comparison.compared(dims, matched, parted, summaries)
        spots = comparison.places(dims, matched, parted, steps, summaries)
        unclear = "collectives whose dimension is unknown; --parallelism tp=4,pp=2,dp=2 states the sizes"
        doubt = unclear if any(use.dimension == UNKNOWN for use in dims.uses.values()) else None
        unmatched = Skipped("no collective was found on two ranks")
        nowhere = "no dimension has coordinates, and no two nodes are known"
        return {
            "parallel_dimensions": Findings(dimensions.rows(dims), diagnostics=dims.diagnostics, partial=doubt),
            "rank_coordinates": Findings(list(dimensions.rank_rows(dims, summaries))),
            "communication_by_dimension": Findings(volumes.rows(dims, matched, parted, steps)),
            "dimension_groups": groups if groups.rows else unmatched,
            "dimension_links": Findings(links) if links else unmatched,
            "dimension_places": Findings(spots) if spots else Skipped(nowhere),
            "pipeline": stages,
            "ddp_buckets": Findings(averaged) if averaged else Skipped(_NO_BUCKETS),
            "ddp_caps": buckets.caps(buckets_),
            "sharding": sharding.sharding(dims, matched, parted, summaries),
            "expert_parallel": volumes.experts(dims, matched, parted, summaries),
            "step_heat": cells,
        }

    def _missing(self) -> str | None:
        """A caveat where traces of ranks are missing."""
        missing = int((self.matched.size() > self.matched.members).sum())
        if not missing:
            return None
        why = f"traces of some ranks lack for {text.counted(missing, 'collective')}: the late rank may be among those"
        sparse = int(late_ranks.is_sparse(self.matched).sum())
        nobody = f"; {sparse} have those of at most half, and nobody is charged for them" if sparse else ""
        return why + nobody

    def telling(self) -> list[int]:
        """The members whose timelines tell most: those that the verdict names, for each the one that waits for it
        longest, and the first of each node. Without named ones, that which waits longest; all that nothing joins."""
        if not self.verdict.joined:
            return [*range(len(self.summaries))]
        matched, wait_ns = self.matched, self.parted.wait_ns
        of_rank = {summary.rank: member for member, summary in enumerate(self.summaries) if summary.rank is not None}
        rows = self.verdict.rows
        ends = [end for row in rows for link in row.figures.get("links", ()) for end in link[:2]]
        late = [rank for row in rows if row.cause not in ("shared", "uneven") for rank in (row.rank, *row.ranks)]
        named = {of_rank[rank] for rank in (*ends, *late) if rank in of_rank}
        for_whom = matched.member[self.parted.late][matched.instance]
        chosen = np.flatnonzero(np.isin(for_whom, [*named])) if named else np.arange(len(for_whom))
        of_late = [places for _, places in each(for_whom[chosen], len(self.summaries))] if named else [chosen]
        waits_of = [np.bincount(matched.member[chosen[places]], wait_ns[chosen[places]]) for places in of_late]
        waiting = {int(ns.argmax()) for ns in waits_of if len(ns)}
        first = {node: member for member, node in reversed([*enumerate(self.dimensions.node)])}
        return sorted({0} | named | waiting | {member for node, member in first.items() if node})

    def is_drawn(self, member: int) -> bool:
        """Whether the timeline of a rank gets any tracks of the job."""
        on_path = not isinstance(self.path, Skipped) and bool((self.path.member == member).any())
        return bool(self.summaries[member].streams) and (on_path or len(self.matched.rows_of(member)) > 0)

    def annotations(self, member: int) -> list[SliceTrack | CounterTrack]:
        """The job's tracks on the timeline of a rank, under tracks of its trace; times on the rank's own clock."""
        job = self.matched, self.parted, self.summaries
        path = [] if isinstance(self.path, Skipped) else timeline.path_tracks(self.path, *job, member)
        return [*path, *timeline.tracks(*job, member)]

    @property
    def drawn_verdict(self) -> str:
        """The verdict where it is drawn: what a narrow slice has no room for is last."""
        return ": ".join(filter(None, (self.judgement.label, " ".join(self.verdict.text))))

    def of_job(self, window: tuple[int, int]) -> list[SliceTrack | CounterTrack]:
        """The tracks of the job as a whole within ``window``, on the job's clock; the verdict alone, around all ranks
        as they were recorded, if none are joined."""
        said = self.drawn_verdict, self.judgement.severity, window
        if isinstance(self.path, Skipped):
            spans = [(each.first_ns, each.last_ns) for each in self.summaries if each.first_ns is not None]
            start, end = np.array(spans, np.int64).reshape(-1, 2).T
            return [timeline.verdict_track(start, end, *said)]
        late = timeline.Late(
            self.matched, self.parted, self.clocks, self.summaries, self.judgement.excess, self.judgement.named
        )
        tracks: list[SliceTrack | CounterTrack] = [
            timeline.verdict_track(self.path.start, self.path.end, *said),
            timeline.path_track(self.path, self.matched, self.summaries, window),
        ]
        shared = self.judgement.shared
        if shared is not None:
            tracks.append(timeline.hosts_track(self.summaries, self.clocks, shared.reason.doing, window))
        if shared is None or any(row.rank is not None for row in self.verdict.rows):  # else none is late
            tracks.append(late.track(window))
        return [track for track in (*tracks, late.waiting(window)) if len(track.ts)]

    def links(self) -> tuple[Int64s, Int64s, Int64s]:
        """The parts of all matched collectives: number of the collective, member, and row in the member's event table.

        Sorted by collective; within one by arrival where the clocks are comparable.
        """
        return timeline.links(self.matched, self.parted, self.summaries)


def answer(
    contents: Iterable[bytes],
    names: Sequence[str],
    parallelism: Mapping[str, int] | None = None,
    *,
    trust_clocks: bool = False,
) -> Answer:
    """Analyse a job from its ranks' summaries; errors mention the ``names`` of unreadable ones.

    Summaries are read one after the other. Of many ranks, only the longest states of devices are kept, beside those at
    collectives and steps.

    ``parallelism`` are sizes of dimensions that the user states, such as ``{"tp": 4, "dp": 2}``. ``trust_clocks``: the
    clocks of the hosts are synchronised to about a millisecond, so that ranks which nothing joins can be compared.

    Raises:
        InputError: a summary is damaged or has another version.
    """
    each, count = iter(contents), len(names)
    portions = (portion(islice(each, len(some)), some, first, count) for first, some in split(names))
    return answer_of(portions, parallelism, trust_clocks=trust_clocks)


def answer_of(
    portions: Iterable[Portion], parallelism: Mapping[str, int] | None = None, *, trust_clocks: bool = False
) -> Answer:
    """The same from the reduced summaries of portions of the job, in the order of ranks."""
    aggregation = aggregates.Aggregation()
    summaries: list[RankSummary] = []
    hashes: list[bytes] = []
    for part in portions:
        aggregation.join(part.aggregation)
        summaries += part.summaries
        hashes += part.hashes
    matched, clocks, doubts = _joined(summaries, trusted=trust_clocks)
    apart_in_time = recorded_apart(summaries)
    if strays := [member for member in apart_in_time if not (len(matched) and clocks[member].comparable)]:
        of_one_time = [*summaries]
        for member in strays:  # as if they had no collective and no step
            columns, steps = (
                dict.fromkeys(table, b"") for table in (summaries[member].columns, summaries[member].steps)
            )
            of_one_time[member] = replace(summaries[member], columns=columns, steps=steps, tables={})
        joined = _joined(of_one_time, trusted=trust_clocks)
        if len(joined[0]):
            summaries, (matched, clocks, doubts) = of_one_time, joined
            why = "recorded at another time than the others: it seems to be of another run"
            clocks = [replace(clock, refused=why) if member in strays else clock for member, clock in enumerate(clocks)]
            others = text.listed([summaries[member].name for member in strays])
            doubts.append(
                Diagnostic(
                    "recorded_apart", len(strays), f"traces that seem to be of another run; not compared: {others}"
                )
            )
    doubts += _doubts(summaries, matched)
    return Answer(
        summaries,
        clocks,
        matched,
        collectives.waits(matched, clocks),
        [*matched.diagnostics, *doubts],
        parallelism or {},
        aggregation,
        hashes,
    )


def _joined(summaries: Sequence[RankSummary], *, trusted: bool) -> tuple[Matched, list[Clock], list[Diagnostic]]:
    """The matched collectives, the clocks by them, and doubts about both."""
    matched = match(summaries)
    # the collectives of unnamed groups that the clocks by all named groups show to be none: in more than a few of the
    # group's, a rank ends before another begins
    unnamed = matched.is_unnamed()
    refuted = np.zeros(len(matched), np.bool_)
    if unnamed.any() and not unnamed.all():
        clocks, _ = align(matched.take(~unnamed), summaries, trusted=trusted)
        broken = np.bincount(matched.group, collectives.apart(matched, clocks), len(matched.groups))
        count = np.bincount(matched.group, unnamed, len(matched.groups))
        refuted = unnamed & (broken > _BROKEN * np.maximum(count, 1))[matched.group]
        matched = matched.take(~refuted)
    clocks, doubts = align(matched, summaries, trusted=trusted)
    wrong = collectives.apart(matched, clocks)
    if lost := int(wrong.sum()) + int(refuted.sum()):
        why = "collectives without known group in which a rank ends before another begins: not matched; left out"
        doubts.append(Diagnostic("collectives_apart", lost, why))
        matched = matched.take(~wrong)
    return matched, clocks, doubts


def recorded_apart(summaries: Sequence[RankSummary]) -> list[int]:
    """The members whose recordings overlap none of those of more than half of the ranks, which overlap each other in a
    chain; none where there is no such half."""
    spans = [(each.first_ns, each.last_ns, member) for member, each in enumerate(summaries)]
    known = sorted((first, last, member) for first, last, member in spans if first is not None and last is not None)
    chains: list[list[int]] = []
    until = 0
    for first, last, member in known:
        if not chains or first > until:
            chains.append([])
        chains[-1].append(member)
        until = max(until, last)
    most = max(chains, key=len, default=[])
    return [member for member in range(len(summaries)) if member not in most] if 2 * len(most) > len(summaries) else []


def _doubts(summaries: Sequence[RankSummary], matched: Matched) -> Iterator[Diagnostic]:
    """Caveats: where the figures rest on assumptions."""
    claimed = [summary.rank for summary in summaries if summary.rank is not None]
    if twice := len(claimed) - len(set(claimed)):
        why = "traces with the same rank as another trace of the job; each is treated as a separate rank"
        yield Diagnostic("rank_claimed_twice", twice, why)
    if cut := [f"{summary.name} ({summary.partial})" for summary in summaries if summary.partial]:
        named = "; ".join(cut[:_NAMED]) + (f"; and {len(cut) - _NAMED} more" if len(cut) > _NAMED else "")
        yield Diagnostic(
            "truncated_rank", len(cut), f"traces that are incomplete; no figure contains what they lost: {named}"
        )
    of_three = matched.group[matched.members > 2]
    unnamed = np.array([not group.identity for group in matched.groups], np.bool_)[of_three]
    if doubtful := int(np.count_nonzero(unnamed)):
        why = "collectives without process group; treated as of all ranks, which is wrong if there are smaller groups"
        yield Diagnostic("group_not_told", doubtful, why)
    inferred = np.array([group.origin == "inferred" for group in matched.groups], np.bool_)[matched.group]
    if guessed := int(np.count_nonzero(inferred)):
        why = "collectives without process group; their ranks are inferred from which of them end together"
        yield Diagnostic("group_inferred", guessed, why)
    listed = np.array([group.origin == "listed" for group in matched.groups], np.bool_)[matched.group]
    if count := int(np.count_nonzero(listed)):
        why = "kernels of expert parallelism without process group; taken as of " + LISTED
        yield Diagnostic("group_listed", count, why)


# A large job's summaries in portions of ranks, each read and reduced on its own, perhaps by another process.
#
# What is left of a portion is smaller: the figures of ranks are folded into statistics, except those that questions
# about the job need, and of devices' states only the longest are kept. Portions depend on the ranks alone, so that
# figures are the same however many processes reduce them.


T = TypeVar("T")
RANKS = 512  #: of a portion
_KEPT = ("kernel_breakdown", step_parts.FIGURES)  #: figures of ranks that questions about the job need
_STATES = 1 << 22  #: moments in the states of all ranks together: 32 to 64 bytes each


class Portion(Struct, frozen=True):
    """Some ranks of a job: the reduced ``summaries``, the statistics of all their figures, and the SHA-256 of each
    summary's file."""

    summaries: list[RankSummary]
    aggregation: aggregates.Aggregation
    hashes: list[bytes]


def split(ranks: Sequence[T]) -> list[tuple[int, Sequence[T]]]:
    """The ranks of a job in portions, each with the index of its first."""
    return [(first, ranks[first : first + RANKS]) for first in range(0, len(ranks), RANKS)]


def portion(contents: Iterable[bytes], names: Sequence[str], first: int, count: int) -> Portion:
    """Reduce the summaries of some ranks, one after the other.

    Args:
        contents: the files of the summaries.
        names: what errors call them.
        first: the index of the first of them in the job.
        count: the ranks of the whole job.

    Raises:
        InputError: a summary is damaged or has another version.
    """
    made = Portion([], aggregates.Aggregation(), [])
    for member, (content, name) in enumerate(zip(contents, names, strict=True), first):
        summary = read_summary(content, name)
        made.hashes.append(hashlib.sha256(content).digest())
        made.aggregation.add(member, summary)
        # most of a summary's memory are figures that only the aggregates need
        summary.figures = {kept: figure for kept, figure in summary.figures.items() if kept in _KEPT}
        summary.states = summary.states.thinned(_STATES // count, summary.moments()).narrowed()
        before = made.summaries[-1].figures if made.summaries else {}
        for name, figures in summary.figures.items():  # equal keys are kept once for all ranks
            if name in before and figures.keys == before[name].keys:
                figures.keys = before[name].keys
        made.summaries.append(summary)
    return made
