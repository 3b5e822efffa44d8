"""The tracks of a native Perfetto file: their hierarchy, names and order.

A *place* is a track as the source draws it, a (pid, tid); rows of several ``Trace.tracks`` may share one. Perfetto's
processes and threads are given to places whose numbers it can hold: from 1 to 2**31 - 1 (0 is its idle process); any
other is a plain track of the same name. A device lies under the process that launches its work::

    process 4242 (python)
    ├── thread 4243
    └── GPU 0
        ├── Idle, Queue Length stream 7, …   (added)
        └── stream 7
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Iterator

import numpy as np
from msgspec import Struct

from augment.arrays import NO_INDEX, Int32s
from augment.core import GPU_WORK, LAUNCHES, Category, Identity, Trace, Track, text
from augment.facts.gpu.gpu_work import correlations_of, gpu_work, launches
from augment.writers.perfetto import wire
from augment.writers.perfetto.added import AddedTracks, Room

_LARGEST = 2**31 - 1
_LARGEST_PID = 2**22  #: of Linux; Ascend's profiler numbers layers of its software beyond it, as if they were processes
_HOST = (*LAUNCHES, Category.CPU_OP, Category.PYTHON_FUNCTION, Category.USER_ANNOTATION)
_FIRST_STREAM, _FIRST_OTHER = 10_000, 20_000  #: ranks of siblings; added tracks come before
_AT_THE_BOTTOM = 30_000  #: the rank of the profiler's own rows within a process
OVERLAPPING = "overlapping slices"  #: what is called a further lane of a thread: the same name looks like a thread
_NUMBER = re.compile(
    r"(\d{1,9})( \(.+\))?"
)  #: the thread name of slices, but not of arrows, in traces of 2020 and 2021
_MOST_DEVICES = 1024  #: larger numbers are not devices


class TrackPlace(Struct):
    """The source's description of a (pid, tid)."""

    pid: Identity
    tid: Identity
    device: Identity = None
    stream: Identity = None
    process_name: str | None = None
    thread_name: str | None = None


class Tracks(AddedTracks):
    """Makes tracks on first request. Their descriptions wait in :meth:`take_packets`."""

    of_one = True

    def __init__(self, trace: Trace, count: int = 0) -> None:
        """Make the tracks of ``trace`` in a file that has ``count`` tracks already."""
        super().__init__(count)
        self.trace = trace
        self.places: list[TrackPlace] = []
        self._known: dict[object, int] = {}
        index: dict[tuple[Identity, Identity], int] = {}
        self.place_of_track: Int32s = np.zeros(max(len(self.trace.tracks), 1), np.int32)
        numbers = {(track.pid, track.tid) for track in self.trace.tracks if isinstance(track.tid, int)}
        for number_, track in enumerate(self.trace.tracks):
            key = track.pid, _thread_id(track, numbers)
            if key not in index:
                index[key] = len(self.places)
                self.places.append(TrackPlace(*key, process_name=track.process_name, thread_name=track.thread_name))
            place = self.places[index[key]]
            if not place.thread_name and key[1] != track.tid != str(key[1]):
                place.thread_name = str(track.tid)
            if place.device is None and track.device is not None:
                place.device, place.stream = track.device, track.stream
            self.place_of_track[number_] = index[key]
        self._owners = _Owners(self.trace, self.places, self.place_of_track)
        self._devices: dict[tuple[Identity, Identity], None] = {}
        self._process_names: dict[Identity, str] = {}
        for place in self.places:
            if place.process_name:
                self._process_names.setdefault(place.pid, place.process_name)
            if place.device is not None:
                self._devices.setdefault((place.pid, place.device))

    def home_of(self, under: int) -> int:
        """The device of a track, else the track itself."""
        index = int(self.place_of_track[under])
        place = self.places[index]
        return self._home(place) if self._on_device(place) else self.of_place(index)

    def process_of(self, under: int) -> int:
        """The process of a thread; the device of a stream."""
        place = self.places[int(self.place_of_track[under])]
        return self.home_of(under) if self._on_device(place) else self._process(place.pid)

    def pid_of(self, under: int) -> Identity:
        """The process whose work a device does; None if there is none that Perfetto knows as a process."""
        place = self.places[int(self.place_of_track[under])]
        pid = self._owners.of(place.pid, place.device) if self._on_device(place) else place.pid
        return pid if self._is_process(pid) else None

    def of_time(self, under: int, name: str) -> int:
        """A new track in a device, last of those that were added. Perfetto draws tracks of one name next to each
        other."""
        return self._add(self.home_of(under), name + self.suffix_of(under), rank=_FIRST_STREAM - 1)

    def suffix_of(self, under: int) -> str:
        """The device, if several devices of the trace do work."""
        place = self.places[int(self.place_of_track[under])]
        several = len(gpu_work(self.trace).devices) > 1
        return f" device {place.device}" if several and place.device is not None else ""

    def room(self, under: Iterable[int]) -> Room:
        """The state needed to add tracks under these tracks of the source later."""
        homes = {track: self.home_of(track) for track in under}
        suffixes = {track: suffix for track in homes if (suffix := self.suffix_of(track))}
        processes = {track: process for track in homes if (process := self.process_of(track)) != homes[track]}
        children = {home: self._children.get(home, 0) for home in (*homes.values(), *processes.values())}
        return Room(self.count, homes, children, self.take_packets(), suffixes, processes, self.of_one)

    def of_place(self, index: int) -> int:
        """The track of a place."""
        return self._made(("place", index), lambda: self._place(self.places[index]))

    def lane(self, index: int, lane: int) -> int:
        """A further track of a place. Perfetto draws it next to the others of its name."""
        if lane == 0:
            return self.of_place(index)
        place, first = self.places[index], self.of_place(index)
        if self._is_thread(place):
            return self._add(first, OVERLAPPING)
        return self._add(self._home(place), self._name_of(place), rank=self._rank_of(place))

    def of_group(self, index: int, name: str, lane: int) -> int:
        """The track ``name`` beside a place: of asynchronous slices."""
        return self._made((index, name, lane), lambda: self._add(self._home(self.places[index]), name))

    def of_counter(self, index: int, name: str) -> int:
        """A counter of the source, in the process (or device) of a place."""
        home = self._home(self.places[index])
        return self._made(("counter", home, name), lambda: self._add(home, name, counter=b""))

    def _made(self, key: object, make: Callable[[], int]) -> int:
        if key not in self._known:
            self._known[key] = make()
        return self._known[key]

    def _on_device(self, place: TrackPlace) -> bool:
        return place.device is not None or place.pid in self._owners.device_pids

    def _is_thread(self, place: TrackPlace) -> bool:
        return not self._on_device(place) and self._is_process(place.pid) and _fits(place.tid)

    def _is_process(self, pid: Identity) -> bool:
        """Whether Perfetto knows it as a process; it opens the only process of a file, so what is none lies in that."""
        return _fits(pid) and (int(pid or 0) <= _LARGEST_PID or self._owners.main in (None, pid))

    def _place(self, place: TrackPlace) -> int:
        home = self._home(place)
        if not self._is_thread(place):
            return self._add(home, self._name_of(place), rank=self._rank_of(place))
        thread = wire.number(wire.THREAD_PID, int(place.pid or 0)) + wire.number(wire.THREAD_TID, int(place.tid or 0))
        if place.thread_name:
            thread += wire.text(wire.THREAD_NAME, place.thread_name)
        return self._describe(wire.message(wire.TRACK_THREAD, thread) + wire.number(wire.TRACK_PARENT, home))

    def _name_of(self, place: TrackPlace) -> str:
        if self._on_device(place) and place.stream is not None and not place.thread_name:
            return f"stream {place.stream}"
        numbered = f"Thread {place.tid}" if isinstance(place.tid, int) else place.tid
        return (place.thread_name or "").strip() or numbered or "Events"

    def _rank_of(self, place: TrackPlace) -> int:
        if isinstance(place.stream, int) and 0 <= place.stream < _FIRST_STREAM:
            return _FIRST_STREAM + place.stream
        return _FIRST_OTHER

    def _home(self, place: TrackPlace) -> int:
        """The device or process that a place lies in."""
        if not self._on_device(place):
            return self._process(place.pid)
        device = place.device
        if device is None:
            device = next((d for pid, d in self._devices if pid == place.pid), place.pid)
        return self._made(("device", place.pid, device), lambda: self._device(place.pid, device))

    def _process(self, pid: Identity) -> int:
        return self._made(("process", pid), lambda: self._new_process(pid))

    def _new_process(self, pid: Identity) -> int:
        name = self._process_names.get(pid)
        order = wire.number(wire.TRACK_CHILD_ORDER, wire.BY_RANK)
        if not self._is_process(pid):
            shown = f"Process {pid}" if isinstance(pid, int) else pid or "Trace"
            main = self._owners.main
            if main is None:
                return self._describe(wire.text(wire.TRACK_NAME, name or shown) + order)
            return self._add(self._process(main), name or shown, _AT_THE_BOTTOM, ordered=True)
        process = wire.number(wire.PROCESS_PID, int(pid or 0)) + (wire.text(wire.PROCESS_NAME, name) if name else b"")
        return self._describe(wire.message(wire.TRACK_PROCESS, process) + order)

    def _device(self, pid: Identity, device: Identity) -> int:
        owner = self._owners.of(pid, device)
        alike = [known for known in self._devices if known[1] == device]
        from augment.diagnosis.wording import vendor

        name = text.device_label(text.words_of(vendor(self.trace)).gpu, device, is_only=True)
        name = name if name.endswith(str(device)) else f"{name} (recorded as {device})"
        if not (isinstance(device, int) and 0 <= device < _MOST_DEVICES):
            name = self._process_names.get(pid) or str(device)
        if len(alike) > 1:
            name = f"{name} (process {pid})"
        models = [model for number_, model in self.trace.source.devices if number_ == device]
        parent = self._parent_of_device(owner)
        rank = device if isinstance(device, int) and 0 <= device < _MOST_DEVICES else _MOST_DEVICES
        return self._add(parent, name, rank, models[0] if models else "", ordered=True)

    def _parent_of_device(self, owner: Identity) -> int | None:
        return None if owner is None else self._process(owner)


class _Owners:
    """The process that each device works for: the one that launches most of its work, else the busiest."""

    def __init__(self, trace: Trace, places: list[TrackPlace], place_of_track: Int32s) -> None:
        events = trace.events
        pids = {place.pid: None for place in places}
        self._number = {pid: index for index, pid in enumerate(pids)}
        self._pids = list(pids)
        of_place = np.array([self._number[place.pid] for place in places] or [0], np.int64)
        of_track = of_place[place_of_track]
        host, track = events.slices_of(*_HOST), events.track[:]
        no_device = np.array([each.device is None for each in trace.tracks] or [True])
        slices = np.bincount(track, minlength=len(of_track))
        self._busy = np.bincount(of_track[track[host]], minlength=len(pids))
        with_device = {place.pid for place in places if place.device is not None}
        self.device_pids = {pid for pid in with_device if not self._busy[self._number[pid]]}
        any_slice = np.bincount(of_track, slices * no_device, minlength=len(pids))
        for pid in self.device_pids:
            any_slice[self._number[pid]] = 0
        self._rest = any_slice
        self._votes = dict(self._launching(trace, of_track))

    @property
    def main(self) -> Identity:
        """The pid of the process that is busiest on the host; None if no process has a number."""
        candidates = [pid for pid in self._pids if _fits(pid) and pid not in self.device_pids]
        best = max(candidates, key=lambda pid: int(self._busy[self._number[pid]]), default=None)
        return best if best is not None and self._busy[self._number[best]] else None

    def _launching(self, trace: Trace, of_track: np.ndarray) -> Iterator[tuple[tuple[Identity, Identity], Identity]]:
        events = trace.events
        work = events.slices_of(*GPU_WORK)
        launch = launches(trace).of(correlations_of(trace, work))
        work, launch = work[launch != NO_INDEX], launch[launch != NO_INDEX]
        count = max(len(self._pids), 1)
        votes = np.bincount(events.track[work] * count + of_track[events.track[launch]])
        totals: dict[tuple[Identity, Identity], dict[int, int]] = {}
        for key in np.flatnonzero(votes).tolist():
            track = trace.tracks[key // count]
            of_device = totals.setdefault((track.pid, track.device), {})
            of_device[key % count] = of_device.get(key % count, 0) + int(votes[key])
        for device, of_device in totals.items():
            yield device, self._pids[max(of_device, key=lambda number_: of_device[number_])]

    def of(self, pid: Identity, device: Identity) -> Identity:
        """The pid of the process; None if there is none."""
        if (pid, device) in self._votes:
            return self._votes[pid, device]
        for counts in (self._busy, self._rest):
            best = int(np.argmax(counts)) if len(counts) else 0
            if len(counts) and counts[best] > 0 and _fits(self._pids[best]):
                return self._pids[best]
        return None


def _thread_id(track: Track, numbers: Container[tuple[Identity, int]]) -> Identity:
    """The tid of a thread, also where slices have it as ``"25738"`` or ``25738 (python)``, and other events as one of
    the ``numbers``."""
    if isinstance(track.tid, str) and track.device is None and (named := _NUMBER.fullmatch(track.tid)):
        number_ = int(named[1])
        return number_ if (track.pid, number_) in numbers else track.tid
    return track.tid


def _fits(value: Identity) -> bool:
    return isinstance(value, int) and 0 < value <= _LARGEST
