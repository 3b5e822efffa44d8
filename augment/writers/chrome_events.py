"""Annotations as templates of Chrome trace events: what each kind of track looks like in the file.

Every event is a line of its own and begins with its category, ``augment.ANALYSIS``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import count

import msgspec
import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from augment.arrays import NO_VALUE, Int64s, Places, compressed, distinct
from augment.core import (
    Annotation,
    CounterTrack,
    Ends,
    Flows,
    Identity,
    InstantTrack,
    SliceTrack,
    Texts,
    Trace,
    row_count,
)
from augment.writers.templates import (
    Number,
    Piece,
    Rendered,
    Template,
    TemplateArgs,
    TemplateChoice,
    choice,
    json_text,
    micros,
    number,
    render,
)


class ChromeEvents(Struct):
    """The events to add to a text. The counts are final when :meth:`render` has finished.

    ``base_ns`` is what the file subtracts from all times. Arrows need the ``trace``, because they may lead to its
    slices.
    """

    layout: Layout
    base_ns: int
    trace: Trace | None = None
    shortened: int = 0  #: slices whose ``dur`` was shortened, see :func:`fitting_durations`
    not_finite: int = 0  #: counter points left out
    early: int = 0  #: times before the file's time 0
    _threads: dict[int, tuple[int, int]] = field(default_factory=dict)  #: for added slice tracks, by their ``id``

    def render(self, annotations: Sequence[Annotation]) -> Iterator[Rendered]:
        """The text of all events: ``,`` and a line for each. The columns of one annotation at a time are in memory."""
        for annotation in annotations:
            if row_count(annotation):
                templates = self._templates(annotation)
                yield from (_opening(analysis) + text for analysis, text in self.layout.take_metadata())
                for template in templates:
                    yield from render(template)

    def _templates(self, annotation: Annotation) -> list[Template]:
        match annotation:
            case SliceTrack():
                return self._slices(annotation)
            case CounterTrack():
                # the key of the arg becomes part of the displayed name, so it is the unit: ``Memcpy HtoD bandwidth
                # GB/s``
                pid, name = self.layout.counter(annotation)
                ts, values = annotation.ts, annotation.values
                if values.dtype.kind == "f":  # NaN is not JSON, and sends Perfetto into an endless loop
                    finite = np.isfinite(values)
                    self.not_finite += len(ts) - int(finite.sum())
                    ts, values = ts[finite], values[finite]
                return [
                    [
                        _opening(annotation.analysis) + b'"ph":"C","ts":',
                        self._time(ts),
                        b',"pid":%d,"name":%s,"args":{%s:'
                        % (pid, json_text(name), json_text(annotation.unit or "value")),
                        number(values),
                        b"}}",
                    ]
                ]
            case InstantTrack():
                pid, tid = self.layout.thread(annotation)
                return [
                    [
                        _opening(annotation.analysis) + b'"ph":"i","s":"t","ts":',
                        self._time(annotation.ts),
                        b',"pid":%d,"tid":%d,"name":' % (pid, tid),
                        _names(annotation.names),
                        b"}",
                    ]
                ]
            case Flows():
                # both ends of each arrow, at the beginnings of the slices that they bind to
                trace, first = self.trace, self.layout.flow_ids(len(annotation))
                ids = Number(np.arange(first, first + len(annotation)))
                threads: list[bytes] = []
                ts = np.stack([ends.times(trace) for ends in (annotation.out, annotation.into)])
                thread = np.stack(
                    [self._threads_of(trace, ends, threads) for ends in (annotation.out, annotation.into)]
                )
                back = ts[0] > ts[1]
                ts[:, back], thread[:, back] = ts[::-1, back], thread[::-1, back]
                closing = b',"name":%s}' % json_text(annotation.name)
                template: list[Piece] = []
                for end, opening in enumerate((b'"ph":"s","id":', b'"ph":"f","bp":"e","id":')):
                    template += [_opening(annotation.analysis) + opening, ids, b',"ts":', self._time(ts[end])]
                    template += [b",", TemplateChoice(thread[end], threads), closing]
                return [template]

    def _time(self, ts: Int64s) -> Number:
        in_file = ts - self.base_ns
        self.early += int(np.count_nonzero(in_file < 0))
        return micros(in_file)

    def _slices(self, track: SliceTrack) -> list[Template]:
        """The slices, followed by those inside them: of two equal slices, Perfetto takes the first in the file as the
        outer.
        """
        pid, tid = self._threads[id(track)] = self.layout.thread(track)
        dur = fitting_durations(track.ts, track.dur, self.base_ns)
        args = dict(track.args)
        changed = dur != track.dur
        if changed.any():
            self.shortened += int(changed.sum())
            args.setdefault("dur_ns", np.where(changed, track.dur, NO_VALUE))

        def template(rows: Places, names: Texts) -> Template:
            chosen = {
                name: choice(arg.take(rows)) if isinstance(arg, Texts) else number(arg[rows])
                for name, arg in args.items()
            }
            return [
                _opening(track.analysis) + b'"ph":"X","ts":',
                self._time(track.ts[rows]),
                b',"dur":',
                micros(dur[rows]),
                b',"pid":%d,"tid":%d,"name":' % (pid, tid),
                _names(names.take(rows)),
                *([b',"args":{', TemplateArgs(chosen), b"}}"] if chosen else [b"}"]),
            ]

        rows = track.inner_rows()
        return [
            template(np.arange(len(dur)), track.names),
            *([template(rows, track.inner)] if track.inner and len(rows) else []),
        ]

    def _threads_of(self, trace: Trace | None, ends: Ends, threads: list[bytes]) -> Int64s:
        """The thread of each end, as an index into ``threads``, to which new threads are added. Only the needed threads
        are listed.
        """
        known = len(threads)
        if ends.track is not None:
            threads.append(b'"pid":%d,"tid":%d' % self._threads[id(ends.track)])
            return np.full(len(ends.rows), known, np.int64)
        track = ends.tracks if trace is None else trace.events.track[ends.rows]
        assert track is not None
        used, place = compressed(track, int(track.max(initial=-1)) + 1)
        threads += [self.layout.thread_of(index) for index in used.tolist()]
        return known + place[track].astype(np.int64)


def _opening(analysis: str) -> bytes:
    return b',\n{"cat":%s,' % json_text(f"augment.{analysis}")


def _names(texts: Texts) -> TemplateChoice:
    """Names for events, all of which need one: a missing text becomes the empty string."""
    chosen = choice(texts)
    return TemplateChoice(np.where(chosen.codes == NO_VALUE, len(chosen.values), chosen.codes), [*chosen.values, b'""'])


def _identity(value: object) -> str:
    return json_text(value).decode() if isinstance(value, str) else json.dumps(value)


_FIRST_FRESH = 10_000_001  #: above all thread ids of Linux (2**22) and above what Kineto adds to stream numbers
_MAX_SORT_INDEX = 2**31 - 1


class Home(msgspec.Struct, frozen=True):
    """The place in the file for what is added under a track of the source.

    ``process`` is the name of the process if it was made up. ``sort_index`` is that of the track itself (-1: none).
    ``suffix`` is appended to names. ``thread`` are the members of the track's own events that tell their thread.
    """

    pid: int
    process: str
    sort_index: int
    suffix: str
    thread: str = ""


class PidRoom(msgspec.Struct, frozen=True):
    """The state of a layout: ``homes`` by track, the used numbers, and the used names of counters by pid.

    ``told`` are the processes whose made-up name is in the file; numbers below ``first_fresh`` are not free, either,
    nor are ids of flows below ``first_flow``.
    """

    homes: dict[int, Home]
    used: list[int]
    counters: list[tuple[int | None, str]]
    told: list[int]
    first_fresh: int
    first_flow: int = 0


class Layout:
    """Gives added tracks their pids, tids and names, in the order of requests, so that equal traces get equal numbers.

    A track lies under a process of the source if it has that pid, and is a separate thread if it has a tid that nothing
    else uses. Perfetto accepts only numbers from 0 to 2**32 - 1 for both, treats tid 0 as the main thread, and
    distinguishes counters by process and name.

    A layout continues in the ``room`` that another left. :func:`layout_of` makes the first layout of a trace.
    """

    def __init__(self, room: PidRoom) -> None:
        self._homes = room.homes
        self._used, self._counters, self._told = set(room.used), set(room.counters), set(room.told)
        self._next, self._next_flow = room.first_fresh, room.first_flow
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
            first_flow=self._next_flow,
        )

    def flow_ids(self, count: int) -> int:
        """The first of ``count`` ids that no flow has."""
        first, self._next_flow = self._next_flow, self._next_flow + count
        return first

    def thread_of(self, track: int) -> bytes:
        """The members ``pid`` and ``tid`` of a track of the source."""
        return self._homes[track].thread.encode()

    def take_metadata(self) -> list[tuple[str, bytes]]:
        """The metadata events of everything placed since the last call: the analysis, and the text after the
        category.
        """
        taken, self._metadata = self._metadata, []
        return taken

    def thread(self, annotation: SliceTrack | InstantTrack) -> tuple[int, int]:
        """The pid and tid of an added thread."""
        home = self._home(annotation)
        while self._next in self._used:
            self._next += 1
        tid = self._next
        self._next += 1
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
        thread = f'"pid":{_identity(track.pid)},"tid":{_identity(track.tid)}'
        if isinstance(track.pid, int):
            homes[index] = Home(track.pid, "", sort_index, suffix, thread)
            continue
        if track.pid not in made_up:
            name = track.process_name or str(track.pid or "trace")
            made_up[track.pid] = Home(next(free), name, -1, "")
        homes[index] = replace(made_up[track.pid], sort_index=sort_index, suffix=suffix, thread=thread)
    taken = max((home.pid for home in made_up.values()), default=_FIRST_FRESH - 1)
    names = distinct(trace.events.name[trace.events.phase == ord("C")])  # of the source's counters
    counters: list[tuple[int | None, str]] = [(None, trace.strings[i]) for i in names.tolist()]
    return Layout(PidRoom(homes, sorted(used), counters, [], taken + 1, first_fresh_flow(trace)))


def first_fresh_flow(trace: Trace) -> int:
    """The first id from which on no flow of the source has one.

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
    return first


_EXACT = 1 << 49  #: below this, a double of microseconds is exact enough to round to the nanosecond that was written
_BLOCK = 1 << 15  #: the number of values per round, which fit the cache
_GRAIN = 512  #: ns, at most between two doubles of what 64 bits hold: months and years are rounded, too


def fitting_durations(ts: Int64s, dur: Int64s, base_ns: int) -> Int64s:
    """``dur``, shortened just enough that, as Perfetto reads it, no slice of a track reaches into the next.

    A slice inside another does not extend beyond the end of that slice, either. Perfetto reads ``ts`` and ``dur`` as
    doubles of microseconds. For times since 1970 these lie 250 ns apart, and they are rounded again after
    multiplication by 1000. Two adjacent slices may then overlap, and Perfetto drops an overlapping slice with an import
    error. The rules were found by experiment with v52 (tests/writers/test_perfetto_source.py checks them).

    Args:
        ts: ns, ascending; of equal ones the longer slice first.
        dur: ns.
        base_ns: what the times of the file lack.
    """
    if len(ts) < 2:
        return dur
    starts = seen_ns(ts - base_ns)
    # the number of slices around each slice
    depth = np.zeros(len(ts), np.int64)
    if (ts[1:] < ts[:-1] + dur[:-1]).any():
        depth = np.arange(len(ts)) - np.searchsorted(np.sort(ts + np.maximum(dur, 1)), ts, side="right")
    shown: Int64s = dur.copy()
    end_of = np.full(len(ts), np.iinfo(np.int64).max)  # that Perfetto sees, of the slice around each
    for level in range(int(depth.max()) + 1):
        rows = np.flatnonzero(depth == level)
        limit = np.minimum(np.append(starts[rows[1:]], end_of[rows[-1:]]), end_of[rows])
        room = np.maximum(limit - starts[rows], 0)
        short = seen_ns(dur[rows]) > room
        room = room[short]
        shown[rows[short]] = np.where(seen_ns(room) > room, np.maximum(room - _GRAIN, 0), room)
        inside = np.flatnonzero(depth == level + 1)
        around = rows[np.searchsorted(rows, inside) - 1]
        end_of[inside] = starts[around] + seen_ns(shown[around])
    return shown


def seen_ns(ns: Int64s) -> Int64s:
    """The nanoseconds that Perfetto reads if the file contains ``ns / 1000`` with three decimals."""
    if ns.max(initial=0) < _EXACT and ns.min(initial=0) > -_EXACT:
        return ns
    return np.concatenate([_seen(ns[start : start + _BLOCK]) for start in range(0, len(ns), _BLOCK)])


def _seen(ns: Int64s) -> Int64s:
    whole, part = np.divmod(ns, 1000)
    us = whole + part / 1000  # the double nearest to the text, as strtod has it
    scaled = us * 1000
    down = np.floor(scaled)
    rounded = (down + (scaled - down >= 0.5)).astype(np.int64)
    # a number without a fraction is read as an integer
    seen: Int64s = np.where(us == np.floor(us), us.astype(np.int64) * 1000, rounded)
    return seen
