"""One timeline of a job: its ranks in one file, one after the other, all on one clock.

A rank is read twice. First all are looked at: what they hold, how long their texts are, and what the clocks and the
collectives across ranks are told from. Then each is read, analysed and written. Never is more than one in memory.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from augment.arrays.types import Int64s
from augment.batch import locations
from augment.batch.browser_limit import BROWSER_TEXT_BYTES, Extent, Fit, fit
from augment.batch.inputs import Input
from augment.batch.jobs import Job, Member, group, jobs_of
from augment.errors import AugmentError, InputError, OutputError, UnknownFormat, UsageError
from augment.request import Request
from augment.trace import Diagnostic, Trace

if TYPE_CHECKING:
    from augment.annotations import Annotation
    from augment.batch.convert import Told
    from augment.batch.results import Result
    from augment.findings import AugmentedTrace
    from augment.job.answer import Answer
    from augment.writers.perfetto.archive import Archive
    from augment.writers.perfetto.several import Several
    from augment.writers.perfetto.suffixes import Links


@dataclass(frozen=True)
class Choice:
    """What to merge of a job, and how.

    A request without ``steps``: all that fit into a browser, which holds ``limit_bytes`` of text; None: all.
    ``fixed_ranks`` says that the ranks were chosen already, and none is left out. ``align``: onto one clock, as far as
    collectives tell the clocks apart.
    """

    request: Request = Request()
    fixed_ranks: bool = False
    limit_bytes: int | None = BROWSER_TEXT_BYTES
    align: bool = True


@dataclass(frozen=True)
class Merged:
    """What came of it: how many ranks are in the file, what was left out for lack of room, what is worth telling.

    ``failed`` are ranks that could not be read, with the reason.
    """

    ranks: int
    left_out: str
    notes: tuple[str, ...]
    diagnostics: tuple[Diagnostic, ...]
    failed: tuple[tuple[str, AugmentError], ...] = ()


@dataclass(frozen=True, slots=True)
class _Rank:
    """What the first look at a rank tells; ``first_ns`` is None of one without events."""

    member: Member
    label: str
    extent: Extent
    first_ns: int | None
    summary: bytes


def only_job(inputs: Sequence[Input]) -> Job:
    """The job that ``inputs`` are of; of traces that belong to no job of several, one is made.

    Raises:
        UsageError: they are of several jobs or windows.
    """
    jobs = group(inputs)
    members = [member for job in jobs for member in job.members]
    several = [job for job in jobs if len(job.members) > 1]
    ranks = [member.rank for member in members]
    if len(jobs) == 1 or not several or (None not in ranks and len(set(ranks)) == len(ranks)):
        members.sort(key=lambda one: (one.rank is None, one.rank or 0))
        folder = locations.common([one.folder for one in inputs])
        return replace(jobs[0], folder=folder, members=tuple(members), stem="job")
    if len(several) > 1:
        several = [job for job in several if _of_traces(job)] or several
    if len(several) > 1:
        named = ", ".join(" ".join(filter(None, (job.name, job.window and f"window {job.window}"))) for job in several)
        raise UsageError(f"{len(several)} jobs or windows: {named}; name the files of one, as with a glob in quotes")
    return several[0]


def _of_traces(job: Job) -> bool:
    """Whether these are traces, as the first tells, and not some other files of alike names."""
    try:
        with _read(job.members[0]):
            return True
    except UnknownFormat:
        return False
    except AugmentError:  # a broken one
        return True


def merge_all(
    inputs: Sequence[Input], results: Mapping[str, Result], choice: Choice, told: Told
) -> Iterator[tuple[str, Merged | None]]:
    """Write the timeline of each job among ``inputs`` that has more than one rank: its path, and what came of it.

    None came of it where a timeline is there already and nothing that it is made of was converted anew.

    Args:
        inputs: traces.
        results: what came of them, by path.
        choice: what to merge, and how.
        told: of what is being done.

    Raises:
        AugmentError: as :func:`merge`.
    """
    for job in jobs_of(inputs, results):
        if len(job.members) > 1:
            out = default_output(job)
            before = all(results[member.input.path].status == "done_before" for member in job.members)
            yield out, None if before and locations.size(out) is not None else merge(job, out, choice, told)


def default_output(job: Job) -> str:
    """The file for a job's timeline if no other is named."""
    from augment.writers.perfetto import SUFFIX

    return locations.join(job.folder, job.stem + SUFFIX)


def merge(job: Job, out: str, choice: Choice, told: Told = lambda _: None) -> Merged:
    """Write the ranks of ``job`` into ``out``, a native Perfetto file, or a TAR of such if its name ends so.

    Args:
        job: the traces.
        out: a path or URL; written whole or not at all.
        choice: what of them, and how.
        told: of what is being done.

    Raises:
        AugmentError: none of the ranks can be read; no rank has the steps; ``out`` is an input or cannot be written.
    """
    from augment.job.answer import answer

    if any(locations.real(out) == locations.real(member.input.path) for member in job.members):
        raise OutputError(f"{out}: is one of the inputs; choose another name")
    ranks, failed = _looked_at(job, told)
    answers = answer([one.summary for one in ranks], [one.label for one in ranks])
    chosen = fit(
        [one.extent for one in ranks], choice.request.steps, fixed_ranks=choice.fixed_ranks, limit=choice.limit_bytes
    )
    timeline = _Timeline(ranks, answers, choice, chosen)
    with _written(out) as path:
        diagnostics = timeline.write(path, told)
    return Merged(len(chosen.ranks), chosen.left_out, timeline.notes(), diagnostics, tuple(failed))


def _looked_at(job: Job, told: Told) -> tuple[list[_Rank], list[tuple[str, AugmentError]]]:
    ranks: list[_Rank] = []
    failed: list[tuple[str, AugmentError]] = []
    for member in job.members:
        told(f"looking at {member.input.basename}")
        try:
            ranks.append(_look(member))
        except UnknownFormat as error:
            if member.input.named:
                failed.append((member.input.path, error))
        except AugmentError as error:
            failed.append((member.input.path, error))
    if not ranks:
        raise failed[0][1] if failed else InputError(job.folder, "no trace to merge")
    return ranks, failed


def _look(member: Member) -> _Rank:
    from augment.derived.steps.steps import steps
    from augment.findings import AugmentedTrace
    from augment.job.summary import summarize

    with _read(member) as trace:
        rank = member.rank if trace.rank is None else trace.rank
        label = f"rank {rank}" if rank is not None else member.input.basename
        extent = Extent(label, trace.source.text_bytes, tuple(steps(trace).number.tolist()))
        first_ns = int(trace.events.ts[0]) if len(trace.events) else None
        return _Rank(member, label, extent, first_ns, summarize(AugmentedTrace(trace, {})))


@contextlib.contextmanager
def _read(member: Member) -> Iterator[Trace]:
    from augment.readers import read

    with locations.at_hand(member.input.path, member.input.folder, member.input.size) as (path, _):
        yield read(path)


@contextlib.contextmanager
def _written(out: str) -> Iterator[Path]:
    """A path to write ``out`` to."""
    folder = locations.parent(out)
    locations.expect_writable(folder)
    with locations.at_hand("", folder) as (_, target):
        path = target / locations.basename(out)
        yield path
        locations.deliver([path], folder)


class _Timeline:
    """The second pass."""

    def __init__(self, ranks: Sequence[_Rank], answers: Answer, choice: Choice, chosen: Fit) -> None:
        self._ranks, self._answers, self._choice, self._chosen = ranks, answers, choice, chosen
        self._instance, self._member, self._row = answers.links()
        self._shift_ns = 0
        self._unused: list[str] = []
        known = [(at, first_ns) for at in chosen.ranks if (first_ns := ranks[at].first_ns) is not None]
        first = [int(self._clock(at)(np.array([first_ns]))[0]) for at, first_ns in known]
        self._shift_ns = max(0, -min(first, default=0))  # Perfetto drops what lies before time 0

    def write(self, path: Path, told: Told) -> tuple[Diagnostic, ...]:
        """Write the chosen ranks; what had to be changed or left out."""
        from augment.writers.files import replacing
        from augment.writers.perfetto.archive import SUFFIX, Archive
        from augment.writers.perfetto.several import Several

        counts: Counter[tuple[str, str]] = Counter()
        with replacing(path) as file:
            target = Archive(file) if path.name.lower().endswith(SUFFIX) else Several(file)
            for number, at in enumerate(self._chosen.ranks, 1):
                told(f"{self._ranks[at].label} ({number} of {len(self._chosen.ranks)})")
                for one in self._add(target, at):
                    counts[one.code, one.message] += one.count
            if isinstance(target, Archive):
                target.close()
        return tuple(Diagnostic(code, count, message) for (code, message), count in counts.items())

    def _add(self, target: Several | Archive, at: int) -> list[Diagnostic]:
        """Write a rank; nothing of it is left in memory afterwards."""
        from augment.derived.source.clock_correction import on_clock
        from augment.derived.steps.window import within
        from augment.writers.perfetto.several import Group

        rank = self._ranks[at]
        with _read(rank.member) as trace:
            trace = self._choice.request.evidence.added_to(trace)
            part = trace if self._chosen.steps is None else within(trace, *self._chosen.steps)
            augmented = on_clock(self._augmented(at, part), self._clock(at))
            self._unused += self._choice.request.evidence.unused(augmented)
            links = self._links(at, trace, part), *self._handovers(augmented)
            return target.add(augmented, Group(rank.label, self._description(at)), *links)

    def notes(self) -> tuple[str, ...]:
        """What became of the clocks, what is linked, and which files recorded with the ranks are not used."""
        chosen = self._chosen.ranks
        linked = len(np.unique(self._instance[np.isin(self._member, chosen)]))
        return (f"clocks: {self._clocks()}", f"{linked:,} collectives linked across ranks", *self._unused)

    def _clocks(self) -> str:
        if not self._choice.align:
            return "as recorded"
        chosen = [self._answers.clocks[at] for at in self._chosen.ranks]
        moved = sum(one.refused is None for one in chosen)
        apart = sum(not one.comparable for one in chosen)
        told = f"{moved} moved onto the job's, {len(chosen) - moved - apart} right as they are"
        return told + (f", {apart} not comparable: their ranks' descriptions tell why" if apart else "")

    def _clock(self, at: int) -> Callable[[Int64s], Int64s]:
        """From the times of a rank to those of the file."""
        clock, shift_ns = self._answers.clocks[at], self._shift_ns
        if not self._choice.align:
            return lambda ts: ts + shift_ns
        return lambda ts: clock.to_common(ts) + shift_ns

    def _description(self, at: int) -> str:
        """What is worth knowing of a rank's clock."""
        name, clock = self._ranks[at].member.input.basename, self._answers.clocks[at]
        if not self._choice.align:
            return f"{name}; clock as recorded"
        if clock.refused:
            return f"{name}; clock as recorded: {clock.refused}"
        return f"{name}; its clock is {clock.offset_ns:+,} ns off, known to {clock.uncertainty_ns:,} ns"

    def _augmented(self, at: int, part: Trace) -> AugmentedTrace:
        """The rank's ``part`` with all that is added to it, on the rank's own clock."""
        from augment.findings import AugmentedTrace, Findings
        from augment.pipeline import augment

        choice = self._choice
        found = augment(part, choice.request, steps=None)
        across = [one for one in map(_cut(part), self._answers.annotations(at)) if len(one.ts)]
        return AugmentedTrace(part, {**found.outcomes, "across ranks": Findings([], across)}, found.window)

    def _links(self, at: int, trace: Trace, part: Trace) -> Links:
        """What of the rank's ``part`` others are linked with."""
        from augment.writers.perfetto.suffixes import Links

        own = self._member == at
        rows = _rows_in(part, trace, self._row[own])
        return Links(rows[rows >= 0], self._instance[own][rows >= 0])

    def _handovers(self, augmented: AugmentedTrace) -> Iterator[Links]:
        """Where the critical path through the ranks comes to the rank and leaves it; numbered after the collectives."""
        from augment.job.path_drawing import handovers
        from augment.writers.perfetto.suffixes import Links

        for track, rows, numbers in handovers(augmented.annotations):
            yield Links(rows, len(self._answers.matched) + numbers, track)


def _rows_in(part: Trace, whole: Trace, rows: Int64s) -> Int64s:
    """The rows of ``part`` that ``rows`` of the ``whole`` are: each event has its own place in the text; -1 if none."""
    if part is whole or not len(part.events):
        return rows if part is whole else np.full(len(rows), -1, np.int64)
    order = np.argsort(part.events.offset, kind="stable")
    offsets = part.events.offset[order]
    wanted = whole.events.offset[rows]
    at = np.minimum(np.searchsorted(offsets, wanted), len(offsets) - 1)
    return np.where(offsets[at] == wanted, order[at], -1)


def _cut(part: Trace) -> Callable[[Any], Any]:
    """Makes of an annotation what of it lies in the times of ``part``, on the rank's own clock."""
    from augment.annotations import SliceTrack

    events = part.events
    first, last = int(events.ts.min(initial=0)), int(events.end.max(initial=0))

    def cut(one: Any) -> Annotation:
        inside = np.flatnonzero((one.ts >= first) & (one.ts <= last))
        if len(inside) == len(one.ts):
            return one  # type: ignore[no-any-return]
        if isinstance(one, SliceTrack):
            args = {name: values.take(inside) for name, values in one.args.items()}
            return replace(one, ts=one.ts[inside], dur=one.dur[inside], names=one.names.take(inside), args=args)
        return replace(one, ts=one.ts[inside], values=one.values[inside])  # type: ignore[no-any-return]

    return cut
