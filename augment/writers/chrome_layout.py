"""The pids, tids and names of the added tracks in a Chrome file.

A track lies under a process of the source if it has that pid, and is a separate thread if it has a tid that nothing
else uses. Perfetto accepts only numbers from 0 to 2**32 - 1 for both, treats tid 0 as the main thread, and
distinguishes counters by process and name.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count

import msgspec
from msgspec.structs import replace

from augment.arrays.ordering import distinct
from augment.core.annotations import CounterTrack, InstantTrack, SliceTrack
from augment.core.trace import Identity, Trace
from augment.writers.render import json_text

_FIRST_FRESH = 10_000_001  #: above all thread ids of Linux (2**22) and above what Kineto adds to stream numbers
_MAX_SORT_INDEX = 2**31 - 1


class Home(msgspec.Struct, frozen=True):
    """The place in the file for what is added under a track of the source.

    ``process`` is the name of the process if it was made up. ``sort_index`` is that of the track itself (-1: none).
    ``suffix`` is appended to names.
    """

    pid: int
    process: str
    sort_index: int
    suffix: str


class PidRoom(msgspec.Struct, frozen=True):
    """The state of a layout: ``homes`` by track, the used numbers, and the used names of counters by pid.

    ``told`` are the processes whose made-up name is in the file; numbers below ``first_fresh`` are not free, either.
    """

    homes: dict[int, Home]
    used: list[int]
    counters: list[tuple[int | None, str]]
    told: list[int]
    first_fresh: int


class Layout:
    """Assigns places to added tracks in the order of requests, so that equal traces get equal numbers.

    A layout continues in the ``room`` that another left. :func:`layout_of` makes the first layout of a trace.
    """

    def __init__(self, room: PidRoom) -> None:
        self._homes = room.homes
        self._used, self._counters, self._told = set(room.used), set(room.counters), set(room.told)
        self._next = room.first_fresh
        self._metadata: list[tuple[str, bytes]] = []

    def room(self, tracks: Iterable[int]) -> PidRoom:
        """The state needed to add tracks under these ``tracks`` later."""
        homes = {under: self._homes[under] for under in tracks}
        pids = {home.pid for home in homes.values()}
        return PidRoom(
            homes=homes,
            used=sorted(number for number in self._used if number >= self._next),
            counters=sorted((counter for counter in self._counters if counter[0] in (None, *pids)), key=str),
            told=sorted(self._told & pids),
            first_fresh=self._next,
        )

    def take_metadata(self) -> list[tuple[str, bytes]]:
        """The metadata events of everything placed since the last call: the analysis, and the text after the
        category.
        """
        taken, self._metadata = self._metadata, []
        return taken

    def thread(self, annotation: SliceTrack | InstantTrack) -> tuple[int, int]:
        """The pid and tid of an added thread."""
        home = self._home(annotation)
        tid = self._fresh()
        self._name(annotation.analysis, "thread_name", home.pid, tid, json_text(_name_of(annotation, home)))
        if home.sort_index >= 0:
            # The number that Kineto gives the thread or stream itself. Equal ones lie side by side.
            self._name(annotation.analysis, "thread_sort_index", home.pid, tid, b"%d" % home.sort_index)
        return home.pid, tid

    def counter(self, annotation: CounterTrack) -> tuple[int, str]:
        """The pid and name of an added counter. No other counter of that process has the name."""
        home = self._home(annotation)
        wanted = name = _name_of(annotation, home)
        again = 1
        while {(home.pid, name), (None, name)} & self._counters:
            again += 1
            name = f"{wanted} ({again})"
        self._counters.add((home.pid, name))
        return home.pid, name

    def _home(self, annotation: SliceTrack | CounterTrack | InstantTrack) -> Home:
        home = self._homes[annotation.under]
        if home.process and home.pid not in self._told:
            self._told.add(home.pid)
            self._name(annotation.analysis, "process_name", home.pid, None, json_text(home.process))
        return home

    def _fresh(self) -> int:
        while self._next in self._used:
            self._next += 1
        self._next += 1
        return self._next - 1

    def _name(self, analysis: str, what: str, pid: int, tid: int | None, value: bytes) -> None:
        thread = b"" if tid is None else b',"tid":%d' % tid
        arg = b"sort_index" if what.endswith("sort_index") else b"name"
        text = b'"ph":"M","name":"%s","pid":%d%s,"args":{"%s":%s}}' % (what.encode(), pid, thread, arg, value)
        self._metadata.append((analysis, text))


def _name_of(annotation: SliceTrack | CounterTrack | InstantTrack, home: Home) -> str:
    """The name in the file. Chrome JSON cannot nest tracks, so the group precedes the name."""
    group = "" if isinstance(annotation, InstantTrack) else annotation.group
    return f"{group}: {annotation.name}" if group else annotation.name + home.suffix


def layout_of(trace: Trace) -> Layout:
    """The layout for additions to a trace."""
    used = {n for track in trace.tracks for n in (track.pid, track.tid) if isinstance(n, int)}
    devices: dict[Identity, set[Identity]] = {}
    for track in trace.tracks:
        if track.device is not None:
            devices.setdefault(track.pid, set()).add(track.device)
    made_up: dict[Identity, Home] = {}  # for processes without a number, for which Perfetto would make one up
    free = (number for number in count(_FIRST_FRESH) if number not in used)
    homes = {}
    for index, track in enumerate(trace.tracks):
        sort_index = track.tid if isinstance(track.tid, int) and 0 <= track.tid <= _MAX_SORT_INDEX else -1
        several = track.device is not None and len(devices[track.pid]) > 1
        suffix = f" device {track.device}" if several else ""
        if isinstance(track.pid, int):
            homes[index] = Home(track.pid, "", sort_index, suffix)
            continue
        if track.pid not in made_up:
            name = track.process_name or str(track.pid or "trace")
            made_up[track.pid] = Home(next(free), name, -1, "")
        homes[index] = replace(made_up[track.pid], sort_index=sort_index, suffix=suffix)
    taken = max((home.pid for home in made_up.values()), default=_FIRST_FRESH - 1)
    return Layout(PidRoom(homes, sorted(used), [(None, name) for name in _counter_names(trace)], [], taken + 1))


def fresh_flow_ids(trace: Trace, count: int, taken: int) -> tuple[int, int]:
    """The first of ``count`` ids that no flow of the source has, ``taken`` having been given out, and the next free.

    Perfetto reads an id that is a string as a hexadecimal number.
    """
    values = trace.events.flow_id.values[:]
    numbers = values[(values >= 0) & (values < 2**52)]
    first = int(numbers.max(initial=0)) + 1
    for code in distinct(values[values < -1]).tolist():
        try:
            known = int(trace.strings[-2 - code], 16)
        except ValueError:
            continue
        first = max(first, known + 1 if known < 2**52 else 0)
    first = max(first, taken)
    return first, first + count


def _counter_names(trace: Trace) -> set[str]:
    """The names of the source's counters."""
    names = distinct(trace.events.name[trace.events.phase == ord("C")])
    return {trace.strings[i] for i in names.tolist()}
