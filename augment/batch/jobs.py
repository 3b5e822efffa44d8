"""Groups traces into jobs and their windows.

Known naming schemes: ``WORKER.TIME.pt.trace.json.gz`` (``tensorboard_trace_handler``; a time is a window),
``iteration_N/rankK_trace.json.gz`` (torchtitan; a folder is a window), ``ID-TP-i-DP-j-PP-k-EP-l.trace.json.gz``
(SGLang; an id is a window), ``WORKER_DATE_ascend_pt/ASCEND_PROFILER_OUTPUT/trace_view.json`` (torch_npu; a date is a
window), ``libkineto_trace_PID.json`` (Kineto's daemon). Other traces are one job if their names differ only in the
rank. The remaining traces of a folder are one job if their ranks are known and differ.

Names of folders and files may tell roles (:mod:`augment.facts.names`): traces of different roles are of
different jobs, and such jobs below one folder are a pipeline.
"""

from __future__ import annotations

import os
import re
from calendar import timegm
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from augment.batch import locations
from augment.batch.inputs import FileIdentity, Input, identify
from augment.core.output_files import stem
from augment.facts.names import Rules, place_of_role, role_of
from augment.readers.dialects import ASCEND_EXPORTS, RANK_IN_NAME

WINDOW_NS = 600 * 10**9  #: all ranks of a job write the traces of one window within this time

_TIMED = re.compile(r"(.+)\.(\d{10,19})")
_SGLANG = re.compile(r"(.+?)((?:-(?:TP|DP|PP|EP)-\d+)+)(.*)")
_ASCEND = re.compile(
    r"([^/\\]+)_(20\d\d)(0[1-9]|1[0-2])(\d\d)(\d\d)(\d\d)(\d\d)\d*_ascend_(?:pt|ms)[/\\]" + ASCEND_EXPORTS + "$"
)
_DAEMON = re.compile(r"(libkineto_(?:trace|activities))_(\d+)")
_WINDOW_FOLDER = re.compile(r"(?:iteration|iter|step|epoch)[-_]?(\d+)", re.IGNORECASE)
_FILES_FOLDER = re.compile(r"kineto(?:[-_]traces?)?|(?:torch|pytorch)?[-_]?profiler?s?|traces?", re.IGNORECASE)
_MEMBER_FOLDER = re.compile(r"(?:rank|node|host|worker)[-_]?\d+", re.IGNORECASE)


class Member(Struct, frozen=True):
    """The trace of one rank in a job; ``rank`` is None if it is unknown."""

    input: Input
    rank: int | None


class Job(Struct, frozen=True):
    """One window of one job.

    ``folder`` is where files about the whole job go: the deepest folder that holds all members' outputs. Their names
    begin with ``stem``: ``job``, with an addition where the folder has several jobs. ``name`` and ``window`` are for
    people; ``window`` is empty where the names contain none. ``members`` are sorted by rank, unknown ranks last;
    several may claim the same rank. ``world_size`` is the number of ranks of the job if the traces state it and agree.
    ``role`` is what names tell, and ``home`` the folder of the pipeline that it is a role of. A pipeline has its jobs
    as ``parts``, by role.
    """

    folder: str
    name: str
    window: str
    members: tuple[Member, ...]
    world_size: int | None = None
    stem: str = "job"
    role: str = ""
    home: str = ""
    parts: tuple[Job, ...] = ()


class _Entry(Struct, frozen=True):
    """A trace, and what its name and folders say."""

    member: Member
    world_size: int | None
    top: str  #: the folder of the job's traces; folders of ranks, nodes or windows lie in it
    kind: str  #: the part of the name that all members of a job share
    window: str = ""
    worker: str = ""
    moment: str = ""  #: the Unix time in the name, in seconds or a smaller unit
    role: str = ""
    home: str = ""  #: the folder of that which tells the role

    @property
    def moment_ns(self) -> int:
        """The time in the name; 0 if there is none."""
        return int(self.moment.ljust(19, "0")) if self.moment else 0

    @property
    def path(self) -> str:
        return self.member.input.path


def group(inputs: Iterable[Input], known: Mapping[str, FileIdentity] | None = None, roles: Rules = ()) -> list[Job]:
    """The jobs of ``inputs``, sorted by folder, name and window; every input is in exactly one.

    Args:
        inputs: the traces; an input that is not a trace becomes a job of one member.
        known: identities of inputs already read, by path; the other files are inspected.
        roles: the user's own rules for roles.
    """
    known = known or {}
    sets: dict[tuple[str, ...], list[_Entry]] = defaultdict(list)
    for item in inputs:
        identity = known.get(item.path) or identify(item.path)
        folder, window = locations.parent(item.path), ""
        if exports := _ASCEND.search(folder):
            folder = locations.parent(locations.parent(folder))
        while True:
            last = os.path.basename(folder.rstrip("/"))
            in_window = _WINDOW_FOLDER.fullmatch(last)
            if not (_MEMBER_FOLDER.fullmatch(last) or (in_window and not window)):
                break
            window = in_window[1] if in_window else window
            folder = locations.parent(folder.rstrip("/"))
        member = Member(item, identity.rank)
        name = stem(item.basename)
        if exports:
            moment = str(timegm(tuple(int(part) for part in exports.groups()[1:])))
            entry = _Entry(member, identity.world_size, folder, "*", window, exports[1], moment)
        elif timed := _TIMED.fullmatch(name):
            entry = _Entry(member, identity.world_size, folder, "*", window, timed[1], timed[2])
        elif sglang := _SGLANG.fullmatch(name):
            entry = _Entry(member, identity.world_size, folder, f"*{sglang[3]}", window or sglang[1])
        elif daemon := _DAEMON.fullmatch(name):
            entry = _Entry(member, identity.world_size, folder, daemon[1], window)
        else:
            entry = _Entry(member, identity.world_size, folder, RANK_IN_NAME.sub("*", name), window)
        role, home = role_in(item.path, roles)
        sets[entry.top, entry.kind, entry.window, role, home].append(replace(entry, role=role, home=home))
    parts = [part for entries in sets.values() for part in _windows(entries)]
    jobs = [_job(entries) for entries in _strays_joined(parts)]
    jobs.sort(key=lambda job: (job.folder, job.name, len(job.window), job.window, job.members[0].input.path))
    # Give the jobs of a folder distinct stems; a job that is alone there has the stem ``job``
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


def role_in(path: str, rules: Rules = ()) -> tuple[str, str]:
    """The role that the innermost name of a path tells, and the folder that this name is in; empty if none does."""
    folder, name = locations.parent(path), stem(locations.basename(path))
    while True:
        if role := role_of(name, rules):
            return role, folder
        name, above = os.path.basename(folder.rstrip("/")), locations.parent(folder.rstrip("/"))
        if not name or above == folder:
            return "", ""
        folder = above


def pipelines(jobs: Iterable[Job]) -> list[Job]:
    """The jobs of several roles below one folder, each as a job whose ``parts`` are those, sorted by role. A role in
    several windows has several parts."""
    homes: dict[str, list[Job]] = defaultdict(list)
    for job in jobs:
        if job.role:
            homes[job.home].append(job)
    made = []
    for home, parts in sorted(homes.items()):
        if len({job.role for job in parts}) > 1:
            parts.sort(key=lambda job: (place_of_role(job.role), job.role))
            members = tuple(member for job in parts for member in job.members)
            folder = locations.common([job.folder for job in parts])
            name = os.path.basename(home.rstrip("/") if locations.protocol(home) else os.path.abspath(home))
            made.append(Job(folder, name or "roles", "", members, stem="roles.job", home=home, parts=tuple(parts)))
    return made


def _windows(entries: list[_Entry]) -> Iterator[list[_Entry]]:
    """Split entries by the time in their names: a worker has one trace per window, and all ranks write together."""
    part: list[_Entry] = []
    seen: set[int | str] = set()
    for entry in sorted(entries, key=lambda entry: (entry.moment_ns, entry.path)):
        who = entry.worker if entry.member.rank is None else entry.member.rank
        late = bool(part) and entry.moment_ns - part[0].moment_ns > WINDOW_NS
        if entry.moment and (who in seen or late):
            yield part
            part, seen = [], set()
        part.append(entry)
        seen.add(who)
    yield part


def _strays_joined(parts: list[list[_Entry]]) -> Iterator[list[_Entry]]:
    """Join the traces that are alone in their jobs where folder and window are equal and the ranks differ."""
    strays: dict[tuple[str, ...], list[_Entry]] = defaultdict(list)
    for part in parts:
        if len(part) > 1 or part[0].moment:
            yield part
        else:
            strays[part[0].top, part[0].window, part[0].role, part[0].home].append(part[0])
    for entries in strays.values():
        ranks = {entry.member.rank for entry in entries}
        differ = None not in ranks and len(ranks) == len(entries) and len({entry.world_size for entry in entries}) == 1
        yield from [entries] if differ else [[entry] for entry in entries]


def _job(entries: list[_Entry]) -> Job:
    first = entries[0]
    members = sorted(
        (entry.member for entry in entries),
        key=lambda member: (member.rank is None, member.rank or 0, member.input.path),
    )
    kinds = {entry.kind for entry in entries}
    kind = kinds.pop().replace("*", "").strip("-_. ") if len(kinds) == 1 else ""
    worlds = {entry.world_size for entry in entries}
    return Job(
        locations.common([member.input.folder for member in members]),
        kind or _names(first.top)[-1] or "job",
        ".".join(filter(None, (first.window, first.moment))),
        tuple(members),
        worlds.pop() if len(worlds) == 1 else None,
        role=first.role,
        home=first.home,
    )


def _names(folder: str) -> list[str]:
    """The names in a path; without the last if it only says what the files in it are, such as ``traces``."""
    names = locations.absolute(folder).strip("/").split("/")
    return names[:-1] if names[1:] and _FILES_FOLDER.fullmatch(names[-1]) else names


def folder_title(folder: str) -> str:
    """The name of a folder of traces, with those above it that name jobs in it: ``training/iteration_5``."""
    *above, last = _names(folder)
    names = [last]
    while above and (_WINDOW_FOLDER.fullmatch(names[0]) or _MEMBER_FOLDER.fullmatch(names[0])):
        names.insert(0, above.pop())
    return "/".join(names)
