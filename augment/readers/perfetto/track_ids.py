"""Maps a track of a Perfetto file to the process, thread, device and stream that Kineto would name."""

from __future__ import annotations

import re
from collections.abc import Iterable

from msgspec import Struct

from augment.core import Identity
from augment.readers.perfetto import wire_format
from augment.readers.perfetto import wire_format as wire
from augment.readers.raw import ABSENT, Absent, Place, TrackNames

_DEEPEST = 32  #: the greatest depth of nested tracks; a longer chain is a cycle
_GPU = re.compile(
    r"(?:GPU|NPU|MTIA device)(?: \(recorded as)? (\d+)\)?(?: \(process (.+)\))?"
)  #: the name that our writer gives a device
_STREAM = re.compile(r"stream (\d+)", re.IGNORECASE)
#: the name that rocprofv3 gives the tracks of an agent
_AGENT = re.compile(r"(?:COMPUTE|COPY to) .*?\[(\d+)\] (?:STREAM|QUEUE|THREAD) \[(\d+)\]\s*\(?(CPU|GPU)?\)?\s*")
_THREAD = re.compile(r"(?:Thread|THREAD \d+ \() ?(\d+)\)?")  #: how both name a thread that is no number of Perfetto's
_OVERLAPPING = "overlapping slices"  #: the name that our writer gives a further lane of a thread
_PROCESS = re.compile(r"Process (-?\d+)")


class FromAgent(int):
    """The device that a copy comes from. It counts as the device of the copy if the track says that the copy goes to
    the host.
    """


class Described(Struct):
    """The content of a ``TrackDescriptor``."""

    uuid: int = 0
    parent: int = 0
    name: str = ""
    description: str = ""
    pid: int | None = None
    tid: int | None = None
    process_name: str | None = None
    thread_name: str | None = None
    is_counter: bool = False
    added: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether the track is neither a process nor a thread."""
        return self.pid is None

    def take(self, data: bytes, start: int, stop: int) -> None:
        """Take the fields of a descriptor."""
        for tag, value, end in wire_format.fields(data, start, stop):
            if tag == wire.TRACK_UUID:
                self.uuid = value
            elif tag == wire.TRACK_PARENT:
                self.parent = value
            elif tag in (wire.TRACK_NAME, wire.TRACK_STATIC_NAME, wire.TRACK_ATRACE_NAME):
                self.name = wire_format.text(data, value, end)
            elif tag == wire.TRACK_DESCRIPTION:
                self.description = wire_format.text(data, value, end)
            elif tag == wire.TRACK_PROCESS:
                self.pid = self.pid or 0
                for inner, first, last in wire_format.fields(data, value, end):
                    if inner == wire.PROCESS_PID:
                        self.pid = wire_format.signed(first)
                    elif inner == wire.PROCESS_NAME:
                        self.process_name = wire_format.text(data, first, last)
            elif tag == wire.TRACK_THREAD:
                self.pid, self.tid = self.pid or 0, 0
                for inner, first, last in wire_format.fields(data, value, end):
                    if inner == wire.THREAD_PID:
                        self.pid = wire_format.signed(first)
                    elif inner == wire.THREAD_TID:
                        self.tid = wire_format.signed(first)
                    elif inner == wire.THREAD_NAME:
                        self.thread_name = wire_format.text(data, first, last)
            elif tag == wire.TRACK_COUNTER:
                self.is_counter = True
                self.added = any(  # by us, as its category says
                    inner == wire.COUNTER_CATEGORY and data.startswith(b"augment.", first, last)
                    for inner, first, last in wire_format.fields(data, value, end)
                )


class FileTracks:
    """All tracks of a file, by uuid."""

    def __init__(self) -> None:
        self._known: dict[int, Described] = {}

    def take(self, data: bytes, start: int, stop: int) -> int:
        """Take a ``TrackDescriptor``, or an update of one. Returns its uuid."""
        described = Described()
        described.take(data, start, stop)
        known = self._known.get(described.uuid)
        if known is None:
            self._known[described.uuid] = described
        else:
            known.take(data, start, stop)
        return described.uuid

    def __getitem__(self, uuid: int) -> Described:
        return self._known.get(uuid) or Described(uuid)

    def place(self, uuid: int, device: Identity | Absent, stream: Identity | Absent) -> Place:
        """The place of events on a track whose args give ``device`` and ``stream``."""
        pid, tid, of_track, its_stream = self._place(uuid)
        if isinstance(device, FromAgent):
            device = int(device) if isinstance(of_track, Absent) else of_track
        return (
            pid,
            tid,
            of_track if isinstance(device, Absent) else device,
            its_stream if isinstance(stream, Absent) else stream,
        )

    def is_stream(self, uuid: int) -> bool:
        """Whether a track is a queue of a device, judged by its name."""
        where = self._on_device(self._chain(uuid))
        return where is not None and where[1] is not None

    def _place(self, uuid: int) -> Place:
        chain = self._chain(uuid)
        inner = chain[0]
        if inner.tid is not None:
            return inner.pid, inner.tid, ABSENT, ABSENT
        if len(chain) > 1 and (thread := chain[1]).tid is not None:
            if inner.name in (_OVERLAPPING, thread.thread_name or f"Thread {thread.tid}"):  # a further lane of it
                return thread.pid, thread.tid, ABSENT, ABSENT
        return self._on_device(chain) or self._elsewhere(chain)

    @staticmethod
    def _on_device(chain: list[Described]) -> Place | None:
        inner = chain[0]
        if agent := _AGENT.fullmatch(inner.name):
            device, stream = int(agent[1]), int(agent[2])
            return device, stream, ABSENT if agent[3] == "CPU" else device, stream
        for track in chain:
            if track.is_plain and (gpu := _GPU.fullmatch(track.name)):
                device = int(gpu[1])
                pid: Identity = (int(gpu[2]) if gpu[2].isdigit() else gpu[2]) if gpu[2] else device
                named = _STREAM.fullmatch(inner.name)
                tid: Identity = None if track is inner else int(named[1]) if named else inner.name
                return pid, _thread_number(tid), device, _thread_number(tid)
        return None

    @staticmethod
    def _elsewhere(chain: list[Described]) -> Place:
        """The process is the nearest one around. If plain tracks lie between, they name it."""
        inner = chain[0]
        around = chain[1:] if inner.is_plain and len(chain) > 1 else chain
        plain = []
        for track in around:
            if not track.is_plain:
                break
            plain.append(track)
        process = around[len(plain)] if len(plain) < len(around) else None
        pid: Identity = process.pid if process else None
        if plain:
            number = _PROCESS.fullmatch(plain[-1].name)
            pid = int(number[1]) if number else plain[-1].name or pid
        tid: Identity = None if inner in around or inner.is_counter else inner.name or inner.uuid
        if tid is None and inner.is_plain and _THREAD.fullmatch(inner.name):  # a thread of a process that nothing names
            pid, tid = None, inner.name
        return pid, _thread_number(tid), ABSENT, ABSENT

    def _chain(self, uuid: int) -> list[Described]:
        """A track and its ancestors, the nearest first."""
        chain = [self[uuid]]
        while chain[-1].parent in self._known and len(chain) < _DEEPEST:
            chain.append(self._known[chain[-1].parent])
        return chain

    def names(self, uuids: Iterable[int]) -> TrackNames:
        """The names of processes and threads from the tracks in use."""
        names = TrackNames()
        for uuid in uuids:
            pid, tid, _, _ = self._place(uuid)
            chain = self._chain(uuid)
            inner = chain[0]
            named = inner.is_plain and len(chain) > 1 and not inner.is_counter and inner.name != _OVERLAPPING
            shown = inner.thread_name or (inner.name if named else "")
            if shown:
                names.threads.setdefault((pid, tid), shown)
            for track in chain:
                if track.pid is not None and track.pid == pid and track.process_name:
                    names.processes.setdefault(pid, track.process_name)
                elif track.is_plain and track is not inner and track.name:
                    names.processes.setdefault(pid, track.name)
        return names

    def models(self) -> list[tuple[int, str]]:
        """The devices that our writer described, as number and model."""
        models = {}
        for track in self._known.values():
            gpu = _GPU.fullmatch(track.name)
            if gpu and track.description:
                models[int(gpu[1])] = track.description
        return list(models.items())


def _thread_number(tid: Identity) -> Identity:
    number = _THREAD.fullmatch(tid) if isinstance(tid, str) else None
    return int(number[1]) if number else tid
