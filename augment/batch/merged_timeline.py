"""One timeline of a job: all ranks in one file, one after the other, on a common clock.

What the job knows of its ranks comes from their summaries, which a run has; else each rank is read for one. Then the
part of each rank is written to a file of its own, perhaps several at once by other processes, and the parts are joined.
A rank is analysed only if this run has not kept its tracks, or if only some of its steps are shown.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from augment.arrays import Int64s, looked_up
from augment.batch import locations
from augment.batch import memory_limit as memory
from augment.batch.conversion import Executor, Report, RunPlan, kept_tracks
from augment.batch.inputs import Input
from augment.batch.job_question import alone, answer_of_run, jobs_of, rules_of
from augment.batch.jobs import Job, Member, group, pipelines
from augment.batch.timeline_contents import (
    EVER,
    JOB,
    ROLES,
    BrowserFit,
    Extent,
    first_view,
    fit,
    view_of_unjoined,
    window_of,
)
from augment.core import Diagnostic, Skipped, Trace
from augment.core.text import job_lines
from augment.errors import AugmentError, InputError, OutputError, UnknownFormat, UsageError

if TYPE_CHECKING:
    from augment.batch.conversion import Result
    from augment.core import Annotation, CounterTrack, RankInJob, SliceTrack
    from augment.job.answer import Answer
    from augment.job.matching import Clock
    from augment.job.rank_answers import Problems
    from augment.job.ranks import RankSummary
    from augment.job.roles import Together
    from augment.pipeline.request import Request
    from augment.writers.perfetto.several import FirstView, Several, TraceGroup
    from augment.writers.seams import Addable


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
    """What is known of a rank before its part is written."""

    member: Member
    label: str
    summary: RankSummary
    answer: Answer  #: of its job
    place: int  #: in that
    role: str = ""

    @property
    def clock(self) -> Clock:
        """Its clock."""
        return self.answer.clocks[self.place]

    @property
    def extent(self) -> Extent:
        """Its size."""
        numbers = self.summary.step_column("number")
        return Extent(self.label, self.summary.text_bytes, tuple(numbers[numbers >= 0].tolist()))


def only_job(inputs: Sequence[Input], tables: Sequence[str] = (), *, asked: bool = True) -> Job:
    """The job of ``inputs``, or their pipeline of several roles, which ``tables`` may tell; traces that belong to no
    job of several become one job, if it was ``asked`` for or their ranks differ.

    Raises:
        UsageError: the inputs belong to several jobs or windows, or to none.
    """
    jobs = group(inputs, roles=rules_of(tables))
    if len(whole := pipelines(jobs)) == 1 and len(whole[0].members) == len(inputs):
        return whole[0]
    members = [member for job in jobs for member in job.members]
    several = [job for job in jobs if len(job.members) > 1]
    ranks = [member.rank for member in members]
    if len(jobs) == 1 or (asked and not several) or (None not in ranks and len(set(ranks)) == len(ranks)):
        members.sort(key=lambda member: (member.rank is None, member.rank or 0))
        folder = locations.common([item.folder for item in inputs])
        return replace(jobs[0], folder=folder, members=tuple(members), stem="job")
    if len(several) > 1:
        several = [job for job in several if _of_traces(job)] or several
    if len(several) > 1:
        named = ", ".join(" ".join(filter(None, (job.name, job.window and f"window {job.window}"))) for job in several)
        raise UsageError(f"{len(several)} jobs or windows: {named}; name the files of one, as with a glob in quotes")
    if not several:
        merged = f"augment run --merge {shlex.quote(locations.common([item.folder for item in inputs]))} -o job.pftrace"
        raise UsageError(f"holds {len(inputs)} traces that are no job; name one; together all the same: {merged}")
    return several[0]


def _of_traces(job: Job) -> bool:
    """Whether the files are traces, judged by the first, and not other files with similar names."""
    try:
        with _read(job.members[0].input) as trace:
            return len(trace.events) > 0
    except UnknownFormat:
        return False
    except AugmentError:  # a damaged trace
        return True


def merge_all(
    inputs: Sequence[Input],
    results: Mapping[str, Result],
    plan: RunPlan,
    report: Report,
    executor: Executor = alone,
    answers: Sequence[tuple[Job, Answer]] = (),
) -> Iterator[tuple[str, Merged | None]]:
    """Write the timeline of each job among ``inputs`` with more than one rank: its path, and the outcome.

    The outcome is None where the timeline exists and none of its inputs was converted anew.

    Args:
        inputs: the traces.
        results: their results by path.
        plan: what to merge, and how.
        report: called with the current activity.
        executor: writes the parts of ranks.
        answers: of jobs whose summaries were read.

    Raises:
        AugmentError: as for :func:`merge`.
    """
    jobs = jobs_of(inputs, results, plan.request.tables)
    for job in (*jobs, *pipelines(jobs)):
        if len(job.members) > 1:
            out = default_output(job)
            before = all(results[member.input.path].status == "done_before" for member in job.members)
            if before and locations.size(out) is not None:
                yield out, None
                continue
            known: dict[Job, Answer] = {}
            for part in job.parts or (job,):
                answered = next((answer for each, answer in answers if each == part), None)
                if answered is None and plan.compares:
                    answered = answer_of_run(part, results, plan.request)
                if answered is not None and len(answered.summaries) == len(part.members):
                    known[part] = answered
            yield out, merge(job, out, plan, report, executor, known)


def default_output(job: Job) -> str:
    """The default path of a job's timeline."""
    from augment.writers.perfetto import SUFFIX

    return locations.join(job.folder, job.stem + SUFFIX)


def merge(
    job: Job,
    out: str,
    plan: RunPlan,
    report: Report = lambda _: None,
    executor: Executor = alone,
    known: Mapping[Job, Answer] = MappingProxyType({}),
) -> Merged:
    """Write the ranks of ``job``, or of the jobs of a pipeline, into ``out``, a native Perfetto file, or a TAR archive
    of such if the name ends so.

    Args:
        job: the traces.
        out: a path or URL, written atomically.
        plan: what to merge, and how.
        report: called with the current activity.
        executor: writes the parts of ranks.
        known: the answers of the jobs, of all their members; the members of others are read for it.

    Raises:
        AugmentError: no rank can be read; no rank has the steps; ``out`` is an input or cannot be written.
    """
    from augment.job.roles import together

    if any(locations.real(out) == locations.real(member.input.path) for member in job.members):
        raise OutputError(f"{out}: is one of the inputs; choose another name")
    with _written(out) as path:
        failed: list[tuple[str, AugmentError]] = []
        ranks: list[_MergedRank] = []
        of_role: dict[str, list[Answer]] = {}
        for part in job.parts or (job,):
            members, answered = list(part.members), known.get(part)
            if answered is None:
                members, answered, unread = _looked_at(part, plan, report, path.parent)
                failed += unread
            of_role.setdefault(part.role, []).append(answered)
            ranks += [
                _MergedRank(member, _label(member, summary, part.role), summary, answered, place, part.role)
                for place, (member, summary) in enumerate(zip(members, answered.summaries, strict=True))
            ]
        roles = together(of_role) if job.parts else None
        extents = [rank.extent for rank in ranks]
        chosen = fit(extents, plan.request.steps, fixed_ranks=plan.fixed_ranks, limit=plan.timeline_bytes)
        apart = not plan.scheduler or path.parent == Path(locations.parent(out))  # else others do not see the folder
        timeline = _Timeline(ranks, plan, chosen, roles)
        diagnostics = timeline.write(path, report, executor if apart else alone)
        verdict = tuple(job_lines((roles or ranks[0].answer).verdict.text, timeline.cures))
        return Merged(len(chosen.ranks), chosen.left_out, timeline.notes(), diagnostics, tuple(failed), verdict)


def _label(member: Member, summary: RankSummary, role: str = "") -> str:
    rank = member.rank if summary.rank is None else summary.rank
    return f"{role} rank {rank}".strip() if rank is not None else member.input.basename


def _looked_at(
    job: Job, plan: RunPlan, report: Report, folder: Path
) -> tuple[list[Member], Answer, list[tuple[str, AugmentError]]]:
    """The members that can be read, their answer, and the errors of the others."""
    from augment.job.answer import answer

    members: list[Member] = []
    contents: list[bytes] = []
    failed: list[tuple[str, AugmentError]] = []
    for member in job.members:
        report(f"looking at {member.input.basename}")
        try:
            with memory.bounded(memory.bound_for([member.input], plan.memory), folder):
                contents.append(_look(member, plan.request))
            members.append(member)
        except UnknownFormat as error:
            if member.input.named:
                failed.append((member.input.path, error))
        except AugmentError as error:
            failed.append((member.input.path, error))
    if not members:
        raise failed[0][1] if failed else InputError(job.folder, "no trace to merge")
    names = [member.input.basename for member in members]
    found_out = answer(contents, names, plan.request.parallelism, trust_clocks=plan.request.trust_clocks)
    return members, found_out, failed


def _look(member: Member, request: Request) -> bytes:
    """The summary of a rank without its figures; its trace goes with this call, before the next one is read."""
    from augment.core import AugmentedTrace
    from augment.job.ranks import summarize
    from augment.readers.attachments.tables import with_tables

    with _read(member.input) as source:
        return summarize(AugmentedTrace(with_tables(source, *request.tables, region=request.region), {}))


@contextlib.contextmanager
def _read(item: Input) -> Iterator[Trace]:
    from augment.readers import read

    with locations.at_hand(item.path, item.folder, item.size) as (path, _):
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
    """The file, of the parts of its ranks."""

    def __init__(
        self, ranks: Sequence[_MergedRank], plan: RunPlan, chosen: BrowserFit, roles: Together | None = None
    ) -> None:
        self._ranks, self._plan, self._chosen, self._roles = ranks, plan, chosen, roles
        instance, member, row = [], [], []
        self._matched = first_rank = 0
        for answers in {id(rank.answer): rank.answer for rank in ranks}.values():
            links = answers.links()
            instance.append(links[0] + self._matched)
            member.append(links[1] + first_rank)
            row.append(links[2])
            self._matched += len(answers.matched)
            first_rank += len(answers.summaries)
        self._instance, self._member, self._row = map(np.concatenate, (instance, member, row))
        self._unused: list[str] = []
        self.cures: list[str] = []  #: what to do, once the ranks are written
        first = [
            int(self._clock(at, 0)(np.array([first_ns]))[0])
            for at in chosen.ranks
            if (first_ns := ranks[at].summary.first_ns) is not None
        ]
        self._shift_ns = max(0, -min(first, default=0))  # Perfetto drops what lies before time 0

    def write(self, path: Path, report: Report, executor: Executor) -> tuple[Diagnostic, ...]:
        """Write the chosen ranks; diagnostics of what was changed or left out."""
        from augment.core.output_files import replacing
        from augment.job.rank_answers import cures
        from augment.job.timeline import with_cures
        from augment.writers.perfetto.several import SUFFIX, Archive, Several, TraceGroup

        counts: Counter[tuple[str, str]] = Counter()
        problems: dict[int, Problems] = {}
        with replacing(path) as file, TemporaryDirectory(prefix=".augment-", dir=path.parent) as folder:
            archived = path.name.lower().endswith(SUFFIX)
            target: Archive | Several
            parents: dict[str, int] = {}
            tracks: list[SliceTrack | CounterTrack] = []
            if archived:
                target, groups = Archive(file), 0
            elif self._roles is not None:
                target, parents = self._of_roles(file, self._roles)
                groups = len(parents) + 1
            else:
                if self._plan.align:  # the tracks of the job's own group
                    tracks = self._ranks[0].answer.of_job(
                        window_of(self._ranks[0].answer, self._chosen.ranks, self._chosen.steps)
                    )
                target, groups = Several(file, self._first_view(tracks)), int(bool(tracks))
            parts = list(self._parts(folder, parents, groups, archived=archived))
            with contextlib.closing(executor([partial(write_rank, part) for part in parts])) as written:
                for number, part in enumerate(parts, 1):
                    report(f"{part.group.short} ({number} of {len(parts)})")
                    diagnostics, unused, seen = next(written)
                    if seen is not None:
                        problems[self._chosen.ranks[part.number]] = seen
                    size = os.path.getsize(part.path)
                    with open(part.path, "rb") as source:
                        target.copy(part.group.name, source, 0, size)
                    os.unlink(part.path)
                    self._unused += unused
                    for diagnostic in diagnostics:
                        counts[diagnostic.code, diagnostic.message] += diagnostic.count
            if self._roles is None:
                answers = self._ranks[0].answer
                self.cures = cures(answers, problems)
                if isinstance(target, Several) and tracks:  # last, when the findings on ranks are known; shown first
                    said = TraceGroup(JOB, " ".join(answers.verdict.text))
                    target.add_tracks(said, with_cures(tracks, self.cures), self._shift_ns)
            target.close()
        return tuple(Diagnostic(code, count, message) for (code, message), count in counts.items())

    def _first_view(self, tracks: Sequence[SliceTrack | CounterTrack]) -> FirstView:
        """What to show first: of the job, if there is a group of it, else of the first traces."""
        labels = {at: self._ranks[at].label for at in self._chosen.ranks}
        names = [track.name for track in tracks]
        answer = self._ranks[0].answer
        if not names or isinstance(answer.path, Skipped):
            return view_of_unjoined(list(labels.values()), names)
        return first_view(answer, labels, names, self._chosen.steps, self._shift_ns)

    def _of_roles(self, file: BinaryIO, roles: Together) -> tuple[Several, dict[str, int]]:
        """The file, begun with a group for all roles and one for each, with the numbers of those by role."""
        from augment.writers.perfetto.several import FirstView, Several, TraceGroup

        whole, *of_each = roles.tracks() if self._plan.align else [[] for _ in range(len(roles.roles) + 1)]
        pins = [re.escape(track.name).replace(r"\ ", " ") for tracks in (whole, *of_each) for track in tracks]
        target = Several(file, FirstView(pins, None))
        target.add_tracks(TraceGroup(ROLES, " ".join(roles.verdict.text)), whole, self._shift_ns)
        tracks_of = {role.name: tracks for role, tracks in zip(roles.roles, of_each, strict=True)}
        parents = {}
        for name in dict.fromkeys(rank.role for rank in self._ranks):
            answers = {id(rank.answer): rank.answer for rank in self._ranks if rank.role == name}.values()
            of_jobs = [track for each in answers for track in each.of_job(EVER)] if self._plan.align else []
            said = " ".join(sentence for each in answers for sentence in each.verdict.text)
            tracks = [*tracks_of.get(name, ()), *of_jobs]
            parents[name] = target.add_tracks(TraceGroup(name, said), tracks, self._shift_ns)
        return target, parents

    def _parts(self, folder: str, parents: Mapping[str, int], groups: int, *, archived: bool) -> Iterator[RankPart]:
        """What makes the part of each rank, after so many groups, of which some are parents of those of a role."""
        from augment.job.rank_answers import drawn, rank_in_job
        from augment.writers.perfetto.several import TraceGroup, free_name

        names: set[str] = {JOB, ROLES, *parents} if groups else set()
        for number, at in enumerate(self._chosen.ranks):
            rank, is_of_rank = self._ranks[at], self._member == at
            answers = rank.answer
            name = free_name(rank.label, names)
            names.add(name)
            yield RankPart(
                rank.member.input,
                os.path.join(folder, str(number)),
                TraceGroup(name, self._description(at), rank.label, parent=parents.get(rank.role, 0)),
                number,
                number + groups,
                self._clock(at, self._shift_ns),
                self._chosen.steps,
                self._plan,
                drawn(answers, rank.place) if answers.is_drawn(rank.place) else [],
                rank_in_job(answers, rank.place),
                self._row[is_of_rank],
                self._instance[is_of_rank],
                self._matched,
                archived,
            )

    def notes(self) -> tuple[str, ...]:
        """Notes on the clocks, the linked collectives, and the unused files recorded with the ranks."""
        chosen = self._chosen.ranks
        linked = len(np.unique(self._instance[np.isin(self._member, chosen)]))
        return (f"clocks: {self._clocks()}", f"{linked:,} collectives linked across ranks", *self._unused)

    def _clocks(self) -> str:
        if not self._plan.align or self._roles:
            return "as recorded" if self._roles is None else "those of the hosts, aligned within roles where possible"
        chosen = [self._ranks[at].clock for at in self._chosen.ranks]
        moved = sum(clock.refused is None for clock in chosen)
        apart = sum(not clock.comparable for clock in chosen)
        text = f"{moved} corrected, {len(chosen) - moved - apart} kept"
        return text + (f", {apart} not comparable (see the rank's description)" if apart else "")

    def _clock(self, at: int, shift_ns: int) -> Callable[[Int64s], Int64s]:
        """Maps times of a rank to times of the file."""
        return partial(_moved, clock=self._ranks[at].clock if self._plan.align else None, shift_ns=shift_ns)

    def _description(self, at: int) -> str:
        """The file name of a rank, and how its clock was treated."""
        name, clock = self._ranks[at].member.input.basename, self._ranks[at].clock
        if not self._plan.align:
            return f"{name}; clock as recorded"
        if clock.refused:
            return f"{name}; clock as recorded: {clock.refused}"
        return f"{name}; its clock is {clock.offset_ns:+,} ns off, known to {clock.uncertainty_ns:,} ns"


def _moved(ts: Int64s, clock: Clock | None, shift_ns: int) -> Int64s:
    return (ts if clock is None else clock.to_common(ts)) + shift_ns


class RankPart(Struct, frozen=True):
    """What makes the part of a rank in a timeline, for :func:`write_rank`, perhaps in another process.

    ``path`` is where it is written. ``number`` counts the ranks before it, ``place`` the groups. ``clock`` maps times
    of the rank to times of the file. ``of_job`` is what the job draws on the rank, on its own clock; ``figures`` are
    what it tells of it. ``rows`` of the rank's event table are those of the collectives ``instances``, of ``matched``
    in all.
    """

    input: Input
    path: str
    group: TraceGroup
    number: int
    place: int
    clock: Callable[[Int64s], Int64s]
    steps: tuple[int, int] | None
    plan: RunPlan
    of_job: list[Addable]
    figures: RankInJob | None
    rows: Int64s
    instances: Int64s
    matched: int
    archived: bool  #: in a file of its own


def write_rank(part: RankPart) -> tuple[list[Diagnostic], list[str], Problems | None]:
    """Write the part of a rank; its memory is free on return. Diagnostics of what was changed or left out, what is to
    be said of unused files, and what rules found, if they were asked."""
    from augment.core import AugmentedTrace, Findings, Outcome
    from augment.facts.source.several_ranks import on_clock
    from augment.facts.steps.window import within
    from augment.job.rank_answers import problems_of, with_its_ranks
    from augment.job.timeline import handovers
    from augment.pipeline import augment
    from augment.writers.perfetto import write_part
    from augment.writers.perfetto.packets import Links, Part
    from augment.writers.perfetto.several import write_trace
    from augment.writers.perfetto.tracks import Tracks
    from augment.writers.seams import at_seam

    request, folder = part.plan.request, Path(part.path).parent
    with memory.bounded(memory.bound_for([part.input], part.plan.memory), folder), _read(part.input) as source:
        evidence = request.evidence.near(source.source.path, source.rank, source.source.world_size)
        whole = with_its_ranks(evidence.added_to(source))
        trace = whole if part.steps is None else within(whole, *part.steps)
        across, diagnosis = at_seam(part.of_job)
        kept = kept_tracks(part.plan.kept, part.input) if part.plan.kept and part.steps is None else None
        unused: list[str] = []
        outcomes: Mapping[str, Outcome]
        if kept:
            outcomes = {"": Findings([], kept)}
        else:
            known = trace if part.figures is None else trace.changed(part.figures)
            outcomes = augment(known, request, steps=None, later="writing").outcomes
            unused = list(evidence.unused(AugmentedTrace(trace, outcomes)))
        problems = problems_of(outcomes["diagnosis"]) if "diagnosis" in outcomes else None
        if diagnosis and part.steps is None:  # else it is made of the steps that are shown
            stay, _ = at_seam(AugmentedTrace(trace, outcomes).annotations)
            outcomes = {"": Findings([], [*stay, *diagnosis])}
        across = [track for track in map(_cut(trace), across) if len(track.ts)]
        augmented = on_clock(AugmentedTrace(trace, {**outcomes, "across ranks": Findings([], across)}), part.clock)
        with open(part.path, "wb") as file:
            if part.archived:
                return write_part(augmented, file, Tracks(augmented.trace), Part()), unused, problems
            rows = _rows_in(trace, whole, part.rows)
            links = [Links(rows[rows >= 0], part.instances[rows >= 0])]
            for track, at, numbers in handovers(augmented.annotations):
                links.append(Links(at, part.matched + numbers, track))
            return write_trace(augmented, file, part.group, part.number, part.place, *links), unused, problems


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
    from augment.core import SliceTrack

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
