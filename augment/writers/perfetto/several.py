"""Several traces in one native file, each a root track of its own: the ranks of a job, or two runs side by side.

Below a trace's root lie its devices, then its processes with their threads::

    Job
    └── Job critical path, …             (added, of all ranks)
    rank 0
    ├── GPU 0
    │   ├── Idle, Queue Length stream 7, …   (added)
    │   └── stream 7
    └── python 4242
        └── thread 4243
    rank 1
    └── …

All are plain tracks, none a process or thread as Perfetto has them: those it knows by their pids, which the traces of
several machines or containers share, and older versions order them as they please. But the UI draws its overview from
threads alone. So at the end each trace has a process of its own with one thread, of when its GPU is busy; its slices
are as many as put it in its place: the UI orders processes by their number of slices.

A trace is written while no other is at hand, perhaps by another process into a file of its own, which is copied. What
packets share by number begins anew with each (the incremental state is cleared); each has its own range of numbers for
tracks and for arrows.
"""

from __future__ import annotations

import contextlib
import json
import re
import tarfile
from collections import Counter
from collections.abc import Container, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from augment.arrays import Intervals, clip, union
from augment.core import GPU_WORK, AugmentedTrace, Category, Diagnostic, Identity, Trace, output_files
from augment.version import __version__
from augment.writers.perfetto import EventsFile, Packed, add, wire, write_part
from augment.writers.perfetto.added import Room
from augment.writers.perfetto.packets import Events, InternedTexts, Links, Part, blobs_of, slices
from augment.writers.perfetto.tracks import TrackPlace, Tracks
from augment.writers.seams import Addable, homes_of

_FIRST_PROCESS = 10_000  #: ranks of root tracks; devices come before


TRACKS = 1 << 20  #: of each trace; the numbers of the first begin after those of tracks of no single trace
_MARK = "augment.several"  #: the name of the metadata at the beginning of such a file
_VIEW = b"augment.view"  #: the name of the metadata after it, if a first view is known
_PERIODS = 500  #: of the overview, at least: the UI has some hundred
_MOST_IN_OVERVIEW = 32  #: traces: a row of the UI's overview has about a pixel then
_HEAD = 1 << 14  #: the number of bytes that hold both
_PARTS = b"augment.parts"  #: the name of the metadata at the end of such a file
_TAIL = 1 << 20  #: the number of bytes that hold it


class FirstView(msgspec.Struct, frozen=True):
    """The first view to show: patterns of track names, the range of time (ns as in the file), and the names of groups
    to expand.
    """

    pins: list[str]
    window: tuple[int, int] | None
    groups: list[str] = []


def is_of_several(path: Path) -> bool:
    """Whether this module wrote the file, judged by its beginning."""
    with open(path, "rb") as file:
        return _MARK.encode() in file.read(64)


def first_view(path: Path) -> FirstView | None:
    """The first view recorded in a file that this module wrote; None if there is none."""
    with open(path, "rb") as file:
        _, mark, rest = file.read(_HEAD).partition(_VIEW)
    start = rest.find(b"{")
    if not mark or start < 0:
        return None
    try:
        return msgspec.json.decode(rest[start : rest.index(b"}", start) + 1], type=FirstView)
    except ValueError:
        return None


def parts(path: Path) -> list[tuple[str, int, int]]:
    """The name, first byte and number of bytes of each trace in a file that this module wrote; empty if the file has no
    list.
    """
    with open(path, "rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - _TAIL))
        _, mark, rest = file.read().rpartition(_PARTS)
    start = rest.find(b"[[")
    if not mark or start < 0:
        return []
    try:
        table = msgspec.json.decode(rest[start : rest.rindex(b"]]") + 2], type=list[tuple[str, int, int]])
    except ValueError:
        return []
    return table if all(at + length <= size for _, at, length in table) else []


def write_parts(path: Path, names: Sequence[str], out: BinaryIO) -> None:
    """Write the traces of a file whose names are given, byte for byte, as a file of several traces."""
    several = Several(out)
    with open(path, "rb") as file:
        for name, start, length in parts(path):
            if name in names:
                several.copy(name, file, start, length)
    several.close()


def _said(name: str, value: str) -> bytes:
    """A packet with metadata."""
    content = wire.text(wire.METADATA_NAME, name) + wire.text(wire.METADATA_TEXT, value)
    return wire.packet(wire.message(wire.PACKET_CHROME_EVENTS, wire.message(wire.BUNDLE_METADATA, content)))


class TraceGroup(Struct, frozen=True):
    """A trace's root track. ``short`` is appended to the names of added tracks, which may be pinned beside those of
    other traces. If ``streams_too``, it is also appended to the names of streams.
    """

    name: str
    description: str = ""
    short: str = ""
    streams_too: bool = False
    parent: int = 0  #: the track that the root lies in; 0: none


def free_name(name: str, taken: Container[str]) -> str:
    """``name``, with a number if it is taken: Perfetto merges tracks of equal name."""
    free, count = name, 1
    while free in taken:
        count += 1
        free = f"{name} ({count})"
    return free


def write_trace(
    augmented: AugmentedTrace, file: BinaryIO, group: TraceGroup, number: int, place: int, *links: Links
) -> list[Diagnostic]:
    """Write what :meth:`Several.copy` takes as the trace of this number, ``place``-th among all root tracks. Returns
    diagnostics of what was changed or left out."""
    tracks = GroupTracks(augmented.trace, (number + 1) * TRACKS, group=group, place=place)
    diagnostics = write_part(augmented, file, tracks, Part(number, group.name, links))
    if number < _MOST_IN_OVERVIEW:
        packed, interned = Packed(file), InternedTexts()
        out = EventsFile(packed, tracks, interned, first=False)
        out.write(_overview(augmented.trace, tracks, interned, number))
        packed.flush()
    return diagnostics


def _overview(trace: Trace, tracks: GroupTracks, interned: InternedTexts, number: int) -> Iterator[Events]:
    """When the GPU (of a trace without GPU work: an operator) is busy: in each of many equal periods, for how long."""
    events = trace.events
    rows = events.slices_of(*GPU_WORK)
    what = "GPU busy" if len(rows) else "operators"
    if not len(rows) and not len(rows := events.slices_of(Category.CPU_OP)):
        return
    busy = union(events.ts[rows], events.ts[rows] + events.dur[rows])
    begin, count = int(events.ts[0]), _PERIODS + _MOST_IN_OVERVIEW - number
    edges = begin + np.arange(count + 1) * (int(busy.end[-1]) - begin) // count
    _, period, pieces = clip(busy, Intervals(edges[:-1], edges[1:]))
    spent = np.zeros(len(edges) - 1, np.int64)
    np.add.at(spent, period, pieces.end - pieces.start)
    track = tracks.overview(what, number)
    category, name = (
        interned.number(kind, text)
        for kind, text in ((wire.INTERNED_CATEGORIES, "augment.overview"), (wire.INTERNED_NAMES, what))
    )
    yield from slices(edges[:-1], spent, track, category, name, blobs_of([b""] * len(spent)))


class Several:
    """A file of several traces, added one after the other and shown in this order.

    No time may be negative: Perfetto drops such events.
    """

    def __init__(self, file: BinaryIO, view: FirstView | None = None) -> None:
        """Begin ``file``. ``view`` is the first view to show."""
        self._file = file
        said = {_MARK: __version__}
        if view is not None:
            said[_VIEW.decode()] = msgspec.json.encode(view).decode()
        for name, value in said.items():
            file.write(_said(name, value))
        self._tracks = self._roots = 0
        self._taken: set[str] = set()
        self._parts: list[tuple[str, int, int]] = []  #: the name, first byte, and number of bytes of each trace

    def close(self) -> None:
        """Write the list of traces in the file, for :func:`parts`."""
        self._file.write(_said(_PARTS.decode(), msgspec.json.encode(self._parts).decode()))

    def add(self, augmented: AugmentedTrace, group: TraceGroup, *links: Links) -> list[Diagnostic]:
        """Write a trace. Returns diagnostics of what was changed or left out."""
        name = free_name(group.name, self._taken)
        self._taken.add(name)
        start = self._file.tell()
        group = replace(group, name=name)
        written = write_trace(augmented, self._file, group, len(self._parts), self._roots, *links)
        self._parts.append((name, start, self._file.tell() - start))
        self._roots += 1
        return written

    def copy(self, name: str, file: BinaryIO, start: int, length: int) -> None:
        """Copy a trace from another file: of several traces, or by :func:`write_trace`."""
        self._parts.append((name, self._file.tell(), length))
        file.seek(start)
        output_files.copy_bytes(file, self._file, length)

    def add_tracks(self, group: TraceGroup, annotations: Sequence[Addable], shift_ns: int = 0) -> int:
        """Write a root track for tracks that belong to no single trace, and return its number; the one that has the
        group's name is drawn on it, and seen before the group is opened. ``shift_ns`` is added to all times."""
        self._taken.add(group.name)
        root = self._tracks + 1
        content = wire.number(wire.TRACK_UUID, root) + _root_of(group, self._roots)
        described = wire.descriptor(content)
        if annotations:
            homes = dict.fromkeys(homes_of(annotations), root)
            room = Room(root, homes, {root: 0}, described, on_home=group.name)
            self._tracks = add(self._file, room, shift_ns, annotations)
        else:
            self._file.write(described)
            self._tracks = root
        self._roots += 1
        return root


def _root_of(group: TraceGroup, place: int) -> bytes:
    """The description of a root track, without its number."""
    content = wire.text(wire.TRACK_NAME, group.name) + wire.number(wire.TRACK_RANK, place)
    if group.parent:
        content += wire.number(wire.TRACK_PARENT, group.parent)
    if group.description:
        content += wire.text(wire.TRACK_DESCRIPTION, group.description)
    return content + wire.number(wire.TRACK_CHILD_ORDER, wire.BY_RANK)


class GroupTracks(Tracks):
    """The tracks of one trace below those of its group, which is the file's ``place``-th."""

    of_one = False

    def __init__(self, trace: Trace, count: int, group: TraceGroup, place: int) -> None:
        """Make the tracks of ``trace`` in a file that has ``count`` tracks already."""
        super().__init__(trace, count)
        self.group, self.place = group, place
        self.short = f" {group.short}" if group.short else ""
        alike = Counter((place.pid, Tracks._name_of(self, place)) for place in self.places)
        self._ambiguous = {key for key, count in alike.items() if count > 1}
        self._number = {id(place): index for index, place in enumerate(self.places)}

    def _root(self) -> int:
        return self._made("root", lambda: self._describe(_root_of(self.group, self.place)))

    def overview(self, what: str, number: int) -> int:
        """The thread of a process of its own, shown as ``GPU busy, rank 3: overview row 4`` of the UI's overview."""
        name = f"{what}, {self.group.name}: overview row"
        pid = wire.number(wire.PROCESS_PID, number + 1) + wire.text(wire.PROCESS_NAME, name)
        process = self._describe(wire.message(wire.TRACK_PROCESS, pid))
        tid = wire.number(wire.THREAD_PID, number + 1) + wire.number(wire.THREAD_TID, number + 1)
        thread = wire.message(wire.TRACK_THREAD, tid + wire.text(wire.THREAD_NAME, what))
        return self._describe(thread + wire.number(wire.TRACK_PARENT, process))

    def _is_thread(self, _place: TrackPlace) -> bool:
        return False

    def _parent_of_device(self, _owner: Identity) -> int | None:
        return self._root()

    def _new_process(self, pid: Identity) -> int:
        name = self._process_names.get(pid)
        shown = f"{name or 'Process'} {pid}" if isinstance(pid, int) else name or pid or "Trace"
        index = next(index for index, place in enumerate(self.places) if place.pid == pid)
        return self._add(self._root(), shown, rank=_FIRST_PROCESS + index, ordered=True)

    def _name_of(self, place: TrackPlace) -> str:
        """A name that is unique where needed: Perfetto merges tracks with equal name and process, but threads must stay
        apart.
        """
        name = Tracks._name_of(self, place)
        if self.group.streams_too and self._on_device(place):
            name += self.short
        return f"{name} {place.tid}" if (place.pid, name) in self._ambiguous and place.tid is not None else name

    def _rank_of(self, place: TrackPlace) -> int:
        rank = Tracks._rank_of(self, place)
        return rank if self._on_device(place) else rank + self._number[id(place)]


SUFFIX = ".tar"
MANIFEST = "perfetto_manifest.json"
_CLOCK = "BOOTTIME"  #: the clock that Perfetto assumes for a native file without one

_ODD = re.compile(r"[^A-Za-z0-9_.=-]+")
_LONGEST = 60  #: the most characters of a name in the archive


class Archive:
    """A TAR of several traces, added one after the other: a native file for each, and the ``perfetto_manifest`` that
    describes how they belong together. All times must be on one clock.

    Perfetto from v58 on treats each file as a separate machine. So ranks with equal pids stay apart, and every process
    and thread is in its tables: https://perfetto.dev/docs/reference/perfetto-manifest. Earlier versions merge processes
    of equal pids from different files. Arrows cannot lead from one file to another.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._names: dict[str, str] = {}

    def copy(self, name: str, file: BinaryIO, start: int, length: int) -> None:
        """Copy a trace, a native file."""
        file.seek(start)
        name = free_name(name, self._names)
        plain = _ODD.sub("-", name)[:_LONGEST]
        self._names[name] = f"{len(self._names):04}-{plain}.pftrace"
        with _member(self._file, self._names[name]):
            output_files.copy_bytes(file, self._file, length)

    def close(self) -> None:
        """Write the manifest and the end of the archive."""
        with _member(self._file, MANIFEST):
            files: list[dict[str, Any]] = [
                {"path": path, "machine": {"name": name}} for name, path in self._names.items()
            ]
            first = {"file": files[0]["path"], "clock": _CLOCK}
            for member in files[1:]:
                member["clocks"] = {"clock": _CLOCK, "sync_to": first, "offset_ns": 0}
            manifest = {"version": 1, "trace_time": first, "files": files}
            self._file.write(json.dumps({"perfetto_manifest": manifest}, ensure_ascii=False).encode())
        self._file.write(bytes(2 * tarfile.BLOCKSIZE))


@contextlib.contextmanager
def _member(file: BinaryIO, name: str) -> Iterator[None]:
    """What is written to ``file`` inside the context becomes a member of the archive. Its header is written last,
    because it needs the size.
    """
    header = file.tell()
    file.write(bytes(tarfile.BLOCKSIZE))
    yield
    end = file.tell()
    info = tarfile.TarInfo(name)
    info.size = end - header - tarfile.BLOCKSIZE
    file.write(bytes(-info.size % tarfile.BLOCKSIZE))
    after = file.tell()
    file.seek(header)
    file.write(info.tobuf(tarfile.GNU_FORMAT))
    file.seek(after)
