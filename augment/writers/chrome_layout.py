"""Which pids, tids and names the added tracks of a Chrome file get.

A track lies under a process of the source by having its pid, and is a thread of its own by having a tid that nothing
else has. Perfetto knows only numbers from 0 to 2**32 - 1 for both, takes tid 0 for the main thread, and tells counters
apart by process and name.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from augment.annotations import CounterTrack, InstantTrack, SliceTrack
from augment.trace import Identity, Trace
from augment.writers.render import json_text

_FIRST_FRESH = 10_000_001  #: above what Linux gives to threads (2**22) and what Kineto adds to stream numbers
_MAX_SORT_INDEX = 2**31 - 1


class Layout:
    """Places the added tracks, in the order in which it is asked, so that equal traces get equal numbers."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._fresh = _fresh_numbers({n for track in trace.tracks for n in (track.pid, track.tid)})
        self._pids: dict[Identity, int] = {}
        self._devices: dict[Identity, set[Identity]] = {}
        for track in trace.tracks:
            if track.device is not None:
                self._devices.setdefault(track.pid, set()).add(track.device)
        self._counters: set[tuple[int | None, str]] = {(None, name) for name in _counter_names(trace)}
        self._metadata: list[tuple[str, bytes]] = []

    def take_metadata(self) -> list[tuple[str, bytes]]:
        """The events that name what was placed since the last call: analysis, and what follows the category."""
        taken, self._metadata = self._metadata, []
        return taken

    def thread(self, annotation: SliceTrack | InstantTrack) -> tuple[int, int]:
        """The pid and tid of an added thread."""
        pid = self._pid(annotation.analysis, annotation.under)
        tid = next(self._fresh)
        self._name(annotation.analysis, "thread_name", pid, tid, json_text(self._full_name(annotation)))
        beside = self._trace.tracks[annotation.under].tid
        if isinstance(beside, int) and 0 <= beside <= _MAX_SORT_INDEX:
            # What Kineto gives to the thread or stream itself. Equal ones lie side by side.
            self._name(annotation.analysis, "thread_sort_index", pid, tid, b"%d" % beside)
        return pid, tid

    def counter(self, annotation: CounterTrack) -> tuple[int, str]:
        """The pid and name of an added counter: no other of that process has the name."""
        pid = self._pid(annotation.analysis, annotation.under)
        wanted = name = self._full_name(annotation)
        again = 1
        while {(pid, name), (None, name)} & self._counters:
            again += 1
            name = f"{wanted} ({again})"
        self._counters.add((pid, name))
        return pid, name

    def _full_name(self, annotation: SliceTrack | CounterTrack | InstantTrack) -> str:
        """The name, and the device where its process has several."""
        track = self._trace.tracks[annotation.under]
        if track.device is None or len(self._devices[track.pid]) < 2:
            return annotation.name
        return f"{annotation.name} device {track.device}"

    def _pid(self, analysis: str, under: int) -> int:
        """The pid of the track's process; a fresh one where that is no number, which Perfetto would make one up for."""
        track = self._trace.tracks[under]
        if isinstance(track.pid, int):
            return track.pid
        if track.pid not in self._pids:
            self._pids[track.pid] = pid = next(self._fresh)
            self._name(analysis, "process_name", pid, None, json_text(track.process_name or str(track.pid or "trace")))
        return self._pids[track.pid]

    def _name(self, analysis: str, what: str, pid: int, tid: int | None, value: bytes) -> None:
        thread = b"" if tid is None else b',"tid":%d' % tid
        arg = b"sort_index" if what.endswith("sort_index") else b"name"
        text = b'"ph":"M","name":"%s","pid":%d%s,"args":{"%s":%s}}' % (what.encode(), pid, thread, arg, value)
        self._metadata.append((analysis, text))


def fresh_flow_ids(trace: Trace, count: int, taken: int) -> tuple[int, int]:
    """The first of ``count`` ids that no flow of the source has, ``taken`` having been given out, and the next free.

    Perfetto reads an id that is a string as a hexadecimal number.
    """
    values = trace.events.flow_id.values
    numbers = values[(values >= 0) & (values < 2**52)]
    first = int(numbers.max(initial=0)) + 1
    for code in np.unique(values[values < -1]).tolist():
        try:
            known = int(trace.strings[-2 - code], 16)
        except ValueError:
            continue
        first = max(first, known + 1 if known < 2**52 else 0)
    first = max(first, taken)
    return first, first + count


def _fresh_numbers(used: set[Identity]) -> Iterator[int]:
    candidate = _FIRST_FRESH
    while True:
        if candidate not in used:
            yield candidate
        candidate += 1


def _counter_names(trace: Trace) -> set[str]:
    """The names of the source's counters."""
    names = np.unique(trace.events.name[trace.events.phase == ord("C")])
    return {trace.strings[i] for i in names.tolist()}
