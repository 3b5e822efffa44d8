"""Which traces belong together: jobs, and the windows in which each was recorded.

Names that are known: ``WORKER.TIME.pt.trace.json.gz`` (``tensorboard_trace_handler``; a time a window),
``iteration_N/rankK_trace.json.gz`` (torchtitan; a folder a window), ``ID-TP-i-DP-j-PP-k-EP-l.trace.json.gz``
(SGLang; an id a window), ``libkineto_trace_PID.json`` (Kineto's daemon). Of others, those are one job whose names are
equal but for the rank; and what is left in a folder is one job if its ranks are known and differ.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from augment.batch import locations
from augment.batch.inputs import Input
from augment.batch.peek import Identity, identify
from augment.readers.dialects import RANK_IN_NAME
from augment.writers.files import stem

if TYPE_CHECKING:
    from augment.batch.results import Result

WINDOW_NS = 600 * 10**9  #: the ranks of a job write a window's traces within this time of each other

_TIMED = re.compile(r"(.+)\.(\d{10,19})")
_SGLANG = re.compile(r"(.+?)((?:-(?:TP|DP|PP|EP)-\d+)+)(.*)")
_DAEMON = re.compile(r"(libkineto_(?:trace|activities))_(\d+)")
_WINDOW_FOLDER = re.compile(r"(?:iteration|iter|step|epoch)[-_]?(\d+)", re.IGNORECASE)
_MEMBER_FOLDER = re.compile(r"(?:rank|node|host|worker)[-_]?\d+", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Member:
    """One rank's trace in a job; ``rank`` is None where nothing tells it."""

    input: Input
    rank: int | None


@dataclass(frozen=True, slots=True)
class Job:
    """One window of one job.

    ``folder`` is where files about the whole job go: the deepest that holds all members' outputs. Their names begin
    with ``stem``: ``job``, and more where the folder has several jobs. ``name`` and ``window`` are for people;
    ``window`` is empty where the names tell of none. ``members`` are in the order of ranks, those of unknown rank
    last; more than one may claim a rank. ``world_size`` is how many ranks the job had, if the traces say so alike.
    """

    folder: str
    name: str
    window: str
    members: tuple[Member, ...]
    world_size: int | None = None
    stem: str = "job"


@dataclass(frozen=True, slots=True)
class _Entry:
    """A trace, and what its name and folders say."""

    member: Member
    world_size: int | None
    top: str  #: the folder that the job's traces lie in; one that is a rank's, node's or window's lies in it
    kind: str  #: the part of the name that a job's members share
    window: str = ""
    worker: str = ""
    moment: str = ""  #: Unix time as the name has it, in seconds or smaller units

    @property
    def moment_ns(self) -> int:
        """The time in the name; 0 if there is none."""
        return int(self.moment.ljust(19, "0")) if self.moment else 0

    @property
    def path(self) -> str:
        return self.member.input.path


def group(inputs: Iterable[Input], known: Mapping[str, Identity] | None = None) -> list[Job]:
    """The jobs that ``inputs`` are of, in the order of their folders, names and windows; every input is in one.

    Args:
        inputs: traces; what is none is a job of one member, too.
        known: the identities of those that were read already, by path; the others' files are looked into.
    """
    known = known or {}
    sets: dict[tuple[str, str, str], list[_Entry]] = defaultdict(list)
    for one in inputs:
        entry = _entry(one, known.get(one.path) or identify(one.path))
        sets[entry.top, entry.kind, entry.window].append(entry)
    parts = [part for entries in sets.values() for part in _windows(entries)]
    jobs = [_job(entries) for entries in _strays_joined(parts)]
    jobs.sort(key=lambda job: (job.folder, job.name, len(job.window), job.window, job.members[0].input.path))
    return _with_stems(jobs)


def jobs_of(inputs: Iterable[Input], results: Mapping[str, Result]) -> list[Job]:
    """The jobs that those of ``inputs`` are of that were converted, now or before; ``results`` by path."""
    done = [one for one in inputs if one.path in results and results[one.path].files]
    return group(done, {one.path: Identity(results[one.path].rank, results[one.path].world_size) for one in done})


def _entry(one: Input, identity: Identity) -> _Entry:
    folder, window = locations.parent(one.path), ""
    while True:
        last = os.path.basename(folder.rstrip("/"))
        in_window = _WINDOW_FOLDER.fullmatch(last)
        if not (_MEMBER_FOLDER.fullmatch(last) or (in_window and not window)):
            break
        window = in_window[1] if in_window else window
        folder = locations.parent(folder.rstrip("/"))
    member = Member(one, identity.rank)
    name = stem(one.basename)
    if timed := _TIMED.fullmatch(name):
        return _Entry(member, identity.world_size, folder, "*", window, timed[1], timed[2])
    if sglang := _SGLANG.fullmatch(name):
        return _Entry(member, identity.world_size, folder, f"*{sglang[3]}", window or sglang[1])
    if daemon := _DAEMON.fullmatch(name):
        return _Entry(member, identity.world_size, folder, daemon[1], window)
    return _Entry(member, identity.world_size, folder, RANK_IN_NAME.sub("*", name), window)


def _windows(entries: list[_Entry]) -> Iterator[list[_Entry]]:
    """Traces with a time in their names, parted: a worker has one trace in a window, and all are written together."""
    part: list[_Entry] = []
    seen: set[int | str] = set()
    for entry in sorted(entries, key=lambda one: (one.moment_ns, one.path)):
        who = entry.worker if entry.member.rank is None else entry.member.rank
        late = bool(part) and entry.moment_ns - part[0].moment_ns > WINDOW_NS
        if entry.moment and (who in seen or late):
            yield part
            part, seen = [], set()
        part.append(entry)
        seen.add(who)
    yield part


def _strays_joined(parts: list[list[_Entry]]) -> Iterator[list[_Entry]]:
    """The same, but traces that are alone in their jobs are one where folder and window are, if their ranks differ."""
    strays: dict[tuple[str, str], list[_Entry]] = defaultdict(list)
    for part in parts:
        if len(part) > 1 or part[0].moment:
            yield part
        else:
            strays[part[0].top, part[0].window].append(part[0])
    for entries in strays.values():
        ranks = {entry.member.rank for entry in entries}
        if None not in ranks and len(ranks) == len(entries) and len({entry.world_size for entry in entries}) == 1:
            yield entries
        else:
            yield from ([entry] for entry in entries)


def _job(entries: list[_Entry]) -> Job:
    first = entries[0]
    members = sorted(
        (entry.member for entry in entries), key=lambda one: (one.rank is None, one.rank or 0, one.input.path)
    )
    kinds = {entry.kind for entry in entries}
    kind = kinds.pop().replace("*", "").strip("-_. ") if len(kinds) == 1 else ""
    worlds = {entry.world_size for entry in entries}
    return Job(
        locations.common([one.input.folder for one in members]),
        kind or _folder_name(first.top),
        ".".join(filter(None, (first.window, first.moment))),
        tuple(members),
        worlds.pop() if len(worlds) == 1 else None,
    )


def _folder_name(folder: str) -> str:
    return os.path.basename(folder.rstrip("/") if locations.protocol(folder) else os.path.abspath(folder)) or "job"


def _with_stems(jobs: list[Job]) -> list[Job]:
    """Give the jobs of a folder different names for their files; one that is alone there needs only ``job``."""
    inside: dict[str, list[Job]] = defaultdict(list)
    for job in jobs:
        inside[job.folder].append(job)
    taken: set[tuple[str, str]] = set()
    named = []
    for job in jobs:
        label = "" if len(inside[job.folder]) == 1 else ".".join(filter(None, (job.name, job.window)))
        base = full = f"{label}.job" if label else "job"
        count = 1
        while (job.folder, full) in taken:
            count += 1
            full = f"{base}-{count}"
        taken.add((job.folder, full))
        named.append(replace(job, stem=full))
    return named
