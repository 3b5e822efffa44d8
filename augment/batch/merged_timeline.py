"""One timeline of a job: all ranks in one file, one after the other, on a common clock.

Each rank is read twice. The first pass collects the steps, the length of the text, and the summary that serves to align
clocks and to match collectives. The second pass reads, analyses and writes. Only one rank is in memory at a time.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from augment.arrays.columns import looked_up
from augment.arrays.types import Int64s
from augment.batch import locations
from augment.batch import memory_limit as memory
from augment.batch.inputs import Input
from augment.batch.job_question import jobs_of
from augment.batch.jobs import Job, Member, group
from augment.batch.run_plan import Report, RunPlan
from augment.batch.timeline_contents import JOB, BrowserFit, Extent, first_view, fit, window_of
from augment.core.trace import Diagnostic, Trace
from augment.errors import AugmentError, InputError, OutputError, UnknownFormat, UsageError
from augment.pipeline.request import Request

if TYPE_CHECKING:
    from augment.batch.run_plan import Result
    from augment.core.annotations import Annotation
    from augment.core.findings import AugmentedTrace
    from augment.job.answer import Answer
    from augment.writers.perfetto.packets import Links
    from augment.writers.perfetto.several import Archive, Several


class Merged(Struct, frozen=True):
    """The outcome of a merge: the number of ranks in the file, what was left out to fit, and notes for the user.

    ``failed`` are the ranks that could not be read, with the reason; ``verdict`` are sentences about the job.
    """

    ranks: int
    left_out: str
    notes: tuple[str, ...]
    diagnostics: tuple[Diagnostic, ...]
    failed: tuple[tuple[str, AugmentError], ...] = ()
    verdict: tuple[str, ...] = ()


class _MergedRank(Struct, frozen=True):
    """The result of the first pass for a rank; ``first_ns`` is None for a trace without events."""

    member: Member
    label: str
    extent: Extent
    first_ns: int | None
    summary: bytes


def only_job(inputs: Sequence[Input]) -> Job:
    """The job of ``inputs``; traces that belong to no job of several become one job.

    Raises:
        UsageError: the inputs belong to several jobs or windows.
    """
    jobs = group(inputs)
    members = [member for job in jobs for member in job.members]
    several = [job for job in jobs if len(job.members) > 1]
    ranks = [member.rank for member in members]
    if len(jobs) == 1 or not several or (None not in ranks and len(set(ranks)) == len(ranks)):
        members.sort(key=lambda member: (member.rank is None, member.rank or 0))
        folder = locations.common([item.folder for item in inputs])
        return replace(jobs[0], folder=folder, members=tuple(members), stem="job")
    if len(several) > 1:
        several = [job for job in several if _of_traces(job)] or several
    if len(several) > 1:
        named = ", ".join(" ".join(filter(None, (job.name, job.window and f"window {job.window}"))) for job in several)
        raise UsageError(f"{len(several)} jobs or windows: {named}; name the files of one, as with a glob in quotes")
    return several[0]


def _of_traces(job: Job) -> bool:
    """Whether the files are traces, judged by the first, and not other files with similar names."""
    try:
        with _read(job.members[0]):
            return True
    except UnknownFormat:
        return False
    except AugmentError:  # a damaged trace
        return True


def merge_all(
    inputs: Sequence[Input], results: Mapping[str, Result], plan: RunPlan, report: Report
) -> Iterator[tuple[str, Merged | None]]:
    """Write the timeline of each job among ``inputs`` with more than one rank: its path, and the outcome.

    The outcome is None where the timeline exists and none of its inputs was converted anew.

    Args:
        inputs: the traces.
        results: their results by path.
        plan: what to merge, and how.
        report: called with the current activity.

    Raises:
        AugmentError: as for :func:`merge`.
    """
    for job in jobs_of(inputs, results):
        if len(job.members) > 1:
            out = default_output(job)
            before = all(results[member.input.path].status == "done_before" for member in job.members)
            yield out, None if before and locations.size(out) is not None else merge(job, out, plan, report)


def default_output(job: Job) -> str:
    """The default path of a job's timeline."""
    from augment.writers.perfetto import SUFFIX

    return locations.join(job.folder, job.stem + SUFFIX)


def merge(job: Job, out: str, plan: RunPlan, report: Report = lambda _: None) -> Merged:
    """Write the ranks of ``job`` into ``out``, a native Perfetto file, or a TAR archive of such if the name ends so.

    Args:
        job: the traces.
        out: a path or URL, written atomically.
        plan: what to merge, and how.
        report: called with the current activity.

    Raises:
        AugmentError: no rank can be read; no rank has the steps; ``out`` is an input or cannot be written.
    """
    if any(locations.real(out) == locations.real(member.input.path) for member in job.members):
        raise OutputError(f"{out}: is one of the inputs; choose another name")
    bound = memory.bound_for([member.input for member in job.members], plan.memory)
    with _written(out) as path, memory.bounded(bound, path.parent) as expect_room:

        def stage(what: str) -> None:
            expect_room()
            report(what)

        from augment.job.answer import answer

        ranks, failed = _looked_at(job, plan.request, stage)
        answers = answer(
            [rank.summary for rank in ranks],
            [rank.label for rank in ranks],
            plan.request.parallelism,
            trust_clocks=plan.request.trust_clocks,
        )
        chosen = fit(
            [rank.extent for rank in ranks], plan.request.steps, fixed_ranks=plan.fixed_ranks, limit=plan.timeline_bytes
        )
        timeline = _Timeline(ranks, answers, plan, chosen)
        diagnostics = timeline.write(path, stage)
        verdict = tuple(answers.verdict.text)
        return Merged(len(chosen.ranks), chosen.left_out, timeline.notes(), diagnostics, tuple(failed), verdict)


def _looked_at(job: Job, request: Request, report: Report) -> tuple[list[_MergedRank], list[tuple[str, AugmentError]]]:
    ranks: list[_MergedRank] = []
    failed: list[tuple[str, AugmentError]] = []
    for member in job.members:
        report(f"looking at {member.input.basename}")
        try:
            ranks.append(_look(member, request))
        except UnknownFormat as error:
            if member.input.named:
                failed.append((member.input.path, error))
        except AugmentError as error:
            failed.append((member.input.path, error))
    if not ranks:
        raise failed[0][1] if failed else InputError(job.folder, "no trace to merge")
    return ranks, failed


def _look(member: Member, request: Request) -> _MergedRank:
    from augment.core.findings import AugmentedTrace
    from augment.facts.steps.step_windows import steps
    from augment.job.ranks.summary import summarize
    from augment.readers.attachments.tables import with_tables

    with _read(member) as source:
        trace = with_tables(source, *request.tables)
        rank = member.rank if trace.rank is None else trace.rank
        label = f"rank {rank}" if rank is not None else member.input.basename
        extent = Extent(label, trace.source.text_bytes, tuple(steps(trace).number.tolist()))
        first_ns = int(trace.events.ts[0]) if len(trace.events) else None
        return _MergedRank(member, label, extent, first_ns, summarize(AugmentedTrace(trace, {})))


@contextlib.contextmanager
def _read(member: Member) -> Iterator[Trace]:
    from augment.readers import read

    with locations.at_hand(member.input.path, member.input.folder, member.input.size) as (path, _):
        yield read(path)


@contextlib.contextmanager
def _written(out: str) -> Iterator[Path]:
    """A local path at which to write ``out``."""
    folder = locations.parent(out)
    locations.expect_writable(folder)
    with locations.at_hand("", folder) as (_, target):
        path = target / locations.basename(out)
        yield path
        locations.deliver([path], folder)


class _Timeline:
    """The second pass over the ranks."""

    def __init__(self, ranks: Sequence[_MergedRank], answers: Answer, plan: RunPlan, chosen: BrowserFit) -> None:
        self._ranks, self._answers, self._plan, self._chosen = ranks, answers, plan, chosen
        self._instance, self._member, self._row = answers.links()
        self._shift_ns = 0
        self._unused: list[str] = []
        known = [(at, first_ns) for at in chosen.ranks if (first_ns := ranks[at].first_ns) is not None]
        first = [int(self._clock(at)(np.array([first_ns]))[0]) for at, first_ns in known]
        self._shift_ns = max(0, -min(first, default=0))  # Perfetto drops what lies before time 0

    def write(self, path: Path, report: Report) -> tuple[Diagnostic, ...]:
        """Write the chosen ranks; diagnostics of what was changed or left out."""
        from augment.writers.files import replacing
        from augment.writers.perfetto.several import SUFFIX, Archive

        counts: Counter[tuple[str, str]] = Counter()
        with replacing(path) as file:
            target = Archive(file) if path.name.lower().endswith(SUFFIX) else self._several(file)
            for number, at in enumerate(self._chosen.ranks, 1):
                report(f"{self._ranks[at].label} ({number} of {len(self._chosen.ranks)})")
                for diagnostic in self._add(target, at):
                    counts[diagnostic.code, diagnostic.message] += diagnostic.count
            target.close()
        return tuple(Diagnostic(code, count, message) for (code, message), count in counts.items())

    def _several(self, file: BinaryIO) -> Several:
        """The file, begun with the job's own group if clocks are aligned and ranks are joined."""
        from augment.writers.perfetto.several import Several, TraceGroup

        chosen = self._chosen
        window = window_of(self._answers, chosen.ranks, chosen.steps)
        tracks = self._answers.of_job(window) if self._plan.align else []
        if not tracks:
            return Several(file)
        labels = {at: self._ranks[at].label for at in chosen.ranks}
        names = [track.name for track in tracks]
        target = Several(file, first_view(self._answers, labels, names, chosen.steps, self._shift_ns))
        target.add_tracks(TraceGroup(JOB, " ".join(self._answers.verdict.text)), tracks, self._shift_ns)
        return target

    def _add(self, target: Several | Archive, at: int) -> list[Diagnostic]:
        """Write one rank; its memory is free on return."""
        from augment.facts.source.several_ranks import on_clock
        from augment.facts.steps.window import within
        from augment.job.rank_answers import rank_in_job
        from augment.readers.assembly import distributed
        from augment.writers.perfetto.several import TraceGroup

        rank = self._ranks[at]
        with _read(rank.member) as trace:
            size = distributed(trace.source.metadata, "world_size")
            evidence = self._plan.request.evidence.near(trace.source.path, trace.rank, size)
            trace = evidence.added_to(trace)
            part = trace if self._chosen.steps is None else within(trace, *self._chosen.steps)
            job = rank_in_job(self._answers, at)
            if job is not None:
                part = replace(part, context=part.context.fresh(job, facts=dict(part.context.facts)))
            augmented = on_clock(self._augmented(at, part), self._clock(at))
            self._unused += evidence.unused(augmented)
            links = self._links(at, trace, part), *self._handovers(augmented)
            return target.add(augmented, TraceGroup(rank.label, self._description(at), rank.label), *links)

    def notes(self) -> tuple[str, ...]:
        """Notes on the clocks, the linked collectives, and the unused files recorded with the ranks."""
        chosen = self._chosen.ranks
        linked = len(np.unique(self._instance[np.isin(self._member, chosen)]))
        return (f"clocks: {self._clocks()}", f"{linked:,} collectives linked across ranks", *self._unused)

    def _clocks(self) -> str:
        if not self._plan.align:
            return "as recorded"
        chosen = [self._answers.clocks[at] for at in self._chosen.ranks]
        moved = sum(clock.refused is None for clock in chosen)
        apart = sum(not clock.comparable for clock in chosen)
        text = f"{moved} corrected, {len(chosen) - moved - apart} kept"
        return text + (f", {apart} not comparable (see the rank's description)" if apart else "")

    def _clock(self, at: int) -> Callable[[Int64s], Int64s]:
        """Maps times of a rank to times of the file."""
        clock, shift_ns = self._answers.clocks[at], self._shift_ns
        if not self._plan.align:
            return lambda ts: ts + shift_ns
        return lambda ts: clock.to_common(ts) + shift_ns

    def _description(self, at: int) -> str:
        """The file name of a rank, and how its clock was treated."""
        name, clock = self._ranks[at].member.input.basename, self._answers.clocks[at]
        if not self._plan.align:
            return f"{name}; clock as recorded"
        if clock.refused:
            return f"{name}; clock as recorded: {clock.refused}"
        return f"{name}; its clock is {clock.offset_ns:+,} ns off, known to {clock.uncertainty_ns:,} ns"

    def _augmented(self, at: int, part: Trace) -> AugmentedTrace:
        """The rank's ``part`` with all additions, on the rank's own clock."""
        from augment.core.findings import AugmentedTrace, Findings
        from augment.pipeline import augment

        augmented = augment(part, self._plan.request, steps=None, later="writing")
        across = [track for track in map(_cut(part), self._answers.annotations(at)) if len(track.ts)]
        return AugmentedTrace(part, {**augmented.outcomes, "across ranks": Findings([], across)}, augmented.window)

    def _links(self, at: int, trace: Trace, part: Trace) -> Links:
        """The collectives in the rank's ``part`` that link to other ranks."""
        from augment.writers.perfetto.packets import Links

        is_member = self._member == at
        rows = _rows_in(part, trace, self._row[is_member])
        return Links(rows[rows >= 0], self._instance[is_member][rows >= 0])

    def _handovers(self, augmented: AugmentedTrace) -> Iterator[Links]:
        """The slices where the critical path of the job enters and leaves the rank, numbered after the collectives."""
        from augment.job.output.timeline import handovers
        from augment.writers.perfetto.packets import Links

        for track, rows, numbers in handovers(augmented.annotations):
            yield Links(rows, len(self._answers.matched) + numbers, track)


def _rows_in(part: Trace, whole: Trace, rows: Int64s) -> Int64s:
    """The row in ``part`` of each of ``rows`` of ``whole``, by the event's offset in the text; -1 if it is absent."""
    if part is whole or not len(part.events):
        return rows if part is whole else np.full(len(rows), -1, np.int64)
    order = np.argsort(part.events.offset[:], kind="stable")
    offsets = part.events.offset[order]
    wanted = whole.events.offset[rows]
    at, is_there = looked_up(offsets, wanted)
    return np.where(is_there, order[at], -1)


def _cut(part: Trace) -> Callable[[Any], Any]:
    """A function that keeps of an annotation what lies in the time range of ``part``, on the rank's own clock."""
    from augment.core.annotations import SliceTrack

    events = part.events
    first, last = (int(events.ts.min()), int(events.end.max())) if len(events) else (0, -1)

    def cut(annotation: Any) -> Annotation:
        inside = np.flatnonzero((annotation.ts >= first) & (annotation.ts <= last))
        if len(inside) == len(annotation.ts):
            return annotation  # type: ignore[no-any-return]
        if isinstance(annotation, SliceTrack):
            return annotation.take(inside)
        return replace(annotation, ts=annotation.ts[inside], values=annotation.values[inside])  # type: ignore[no-any-return]

    return cut
