"""Draws a comparison on the timeline of the test: changes, deletions, and the cumulative difference.

The track ``Δ host`` under each thread has a slice over each call whose time differs from its partner's, or that has
none. Each device has two rows in its group ``Diff vs LABEL``: what is slower or new, and what is faster or gone. A
slice has the name of the call or work after a sign for the kind of change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from augment import facts
from augment.arrays import NO_INDEX, NO_VALUE, Bools, EventRows, Int32s, Int64s, Places, Values, each
from augment.compare.alignment import main_thread
from augment.compare.core import Pair
from augment.core import Annotation, ArgColumn, AugmentedTrace, CounterTrack, Findings, Identity, SliceTrack, Texts
from augment.core.text import first_of
from augment.writers.perfetto.flows import Points, TrackSlices, lanes_and_slices

# Marks of a comparison as columns, and the tracks made of them.

NAME = "diff"
SLOWER, FASTER, SAME = "slower", "faster", "same"  #: a device's rows
_DELTA = "Δ"


class Change(IntEnum):
    """The change of a call or piece of work; indexes :data:`SIGNS` and :data:`CHANGES`."""

    INCREASED = 0
    DECREASED = 1
    ADDED = 2
    UNCHANGED = 3
    DELETED = 4


CHANGES = [change.name.lower() for change in Change]
SIGNS = ["▲ ", "▼ ", "+ ", "", "− "]


class Marks(Struct, frozen=True):
    """Equal-length columns: ``ts``, ``dur`` int64 ns, ``change`` int64, a :class:`Change`, ``names`` with its sign."""

    ts: Int64s
    dur: Int64s
    change: Int64s
    names: Texts
    args: Mapping[str, ArgColumn]

    def __len__(self) -> int:
        return len(self.ts)

    def take(self, rows: npt.NDArray[np.intp]) -> Marks:
        """The marks at ``rows``."""
        args = {
            name: column.take(rows) if isinstance(column, Texts) else column[rows] for name, column in self.args.items()
        }
        return Marks(self.ts[rows], self.dur[rows], self.change[rows], self.names.take(rows), args)


def marked(ts: Int64s, dur: Int64s, change: Int64s, names: Texts, args: Mapping[str, ArgColumn]) -> Marks:
    """Marks with ``names`` after the sign of their ``change``."""
    codes, place = np.unique(change * len(names.values) + names.codes, return_inverse=True)
    signed = [SIGNS[code // len(names.values)] + names.values[code % len(names.values)] for code in codes.tolist()]
    texts = Texts(place.reshape(-1).astype(np.int32), signed)
    return Marks(ts, dur, change, texts, {"change": Texts(change.astype(np.int32), CHANGES), **args})


def delta_args(control_ns: Int64s, delta_ns: Int64s, prefix: str = "") -> dict[str, ArgColumn]:
    """The control's time, the difference, and the ratio of the two; absent where ``control_ns`` is -1."""
    known = control_ns != NO_VALUE
    share = np.zeros(len(delta_ns), np.int64)
    countable = known & (control_ns > 0)
    np.floor_divide(1000 * delta_ns + control_ns // 2, control_ns, out=share, where=countable)
    codes, place = np.unique(share, return_inverse=True)
    texts = [f"{code / 10:+.1f} %" for code in codes.tolist()]
    return {
        f"{prefix}control_ns": control_ns,
        f"{prefix}delta_ns": np.where(delta_ns == 0, NO_VALUE, delta_ns),
        f"{prefix}delta_ratio": Texts(np.where(countable, place.reshape(-1), NO_INDEX).astype(np.int32), texts),
    }


class Rows(Struct, frozen=True):
    """Where marks are drawn: below a thread, or in the group of a device. The name of the control, the ``label``, is in
    that of the group and in descriptions."""

    label: str

    def of_device(self, device: Identity, row: str) -> tuple[str, str]:
        """The name of a row of a device, and that of the group it is in."""
        return f"{_DELTA} GPU {device} {row}", f"Diff vs {self.label}"

    def of_host(self, row: str = "") -> tuple[str, str]:
        """The name of a row of a thread, in no group."""
        return f"{_DELTA} host {row}".rstrip(), ""


def joined(parts: Sequence[Marks]) -> Marks:
    """The marks of all parts; an arg that a part has not is absent there."""
    args = {name: _joined_args(parts, name) for name in dict.fromkeys(name for part in parts for name in part.args)}
    ts, dur, change = (np.concatenate([getattr(part, name) for part in parts]) for name in ("ts", "dur", "change"))
    return Marks(ts, dur, change, _joined_texts([part.names for part in parts]), args)


def _joined_args(parts: Sequence[Marks], name: str) -> ArgColumn:
    columns = [part.args.get(name) for part in parts]
    if any(isinstance(column, Texts) for column in columns):
        none = [Texts(np.full(len(part), NO_INDEX, np.int32), ()) for part in parts]
        return _joined_texts([each if isinstance(each, Texts) else no for each, no in zip(columns, none, strict=True)])
    absent = [np.full(len(part), NO_VALUE, np.int64) for part in parts]
    return np.concatenate([no if column is None else column for column, no in zip(columns, absent, strict=True)])


def _joined_texts(parts: Sequence[Texts]) -> Texts:
    values: list[str] = []
    codes = []
    for part in parts:
        codes.append(np.where(part.codes < 0, part.codes, part.codes + np.int32(len(values))))
        values += part.values
    return Texts(np.concatenate(codes).astype(np.int32), values)


def tracks_of(marks: Marks, name: tuple[str, str], under: int, description: str) -> Iterator[SliceTrack]:
    """As many tracks of this name and group as needed so that no slices partly overlap: Perfetto draws them as one."""
    order = np.lexsort((-marks.dur, marks.ts))
    marks = marks.take(order)
    lane = lanes(marks.ts, marks.dur)
    for _, places in each(lane, int(lane.max(initial=-1)) + 1):
        chosen = marks.take(places)
        columns = chosen.ts, chosen.dur, chosen.names, chosen.args
        yield SliceTrack(NAME, name[0], under, *columns, description, group=name[1])


def lanes(ts: Int64s, dur: Int64s) -> Int64s:
    """The track (0 is the first) on which each slice fits; ``ts`` ascending, of equal ones the longer first."""
    rows = np.arange(len(ts), dtype=np.int64)
    none = np.zeros(0, np.int64)
    place = np.zeros(len(ts), np.int32)
    slices = TrackSlices(rows, place, ts, ts + dur, np.zeros(len(ts), np.int64))
    lane, _ = lanes_and_slices(slices, Points(place[:0], none, none), 1)
    return lane.astype(np.int64)


def texts_at(rows: EventRows, codes: Values[np.int32], strings: Sequence[str]) -> Texts:
    """The string of each of ``rows`` through the column ``codes``; none where the row is negative."""
    return Texts(np.where(rows >= 0, codes[rows], np.int32(NO_INDEX)), strings)


# Which differences are worth a slice on the timeline.
#
# Thousands of differences of microseconds hide the few that explain a step. So a call or piece of work is drawn only if
# its difference is 1 % of a step, or if the differences of all of its name, which cancel out where they are noise, add
# up to 1 % of the compared steps.


MIN_DELTA_NS = 1_000  #: smaller differences are never drawn, unless a size is given
SHARE = 0.01  #: of a step


class Threshold(Struct, frozen=True):
    """What is drawn: at least ``least_ns``, and of at least ``single_ns`` or of a name that matters.

    ``of_calls`` and ``of_work`` are by the numbers of names, which both sides share.
    """

    least_ns: int
    single_ns: float
    of_calls: Bools
    of_work: Bools

    def calls(self, names: Int32s, delta: Int64s) -> Bools:
        """Which calls are drawn: their names, and differences in ns."""
        return self._drawn(self.of_calls[names], delta)

    def work(self, names: Int32s, delta: Int64s) -> Bools:
        """The same of GPU work."""
        return self._drawn(self.of_work[names], delta)

    def _drawn(self, matters: Bools, delta: Int64s) -> Bools:
        size = abs(delta)
        drawn: Bools = (size >= self.least_ns) & (matters | (size >= self.single_ns))
        return drawn


def threshold(pair: Pair, min_delta_ns: int | None) -> Threshold:
    """What is drawn of a pair: all of at least ``min_delta_ns``; by shares of the step where that is None."""
    control, test, alignment = pair.control, pair.test, pair.alignment
    count = 1 + max(int(call.name.max(initial=-1)) for side in (control, test) for call in (side.calls, side.work))
    if min_delta_ns is not None:
        every = np.ones(count, np.bool_)
        return Threshold(min_delta_ns, 0.0, every, every)
    lengths = control.steps.end - control.steps.start
    least = SHARE * max(int(lengths.sum()), 1)
    calls, before = test.calls, control.calls
    with_calls = alignment.call_of_test, alignment.call_of_control
    host, gpu = (
        _sums(count, (calls.name, before.name), (calls.step, before.step), times, with_calls)
        for times in ((calls.cpu_ns, before.cpu_ns), (calls.gpu_ns, before.gpu_ns))
    )
    work, gone = test.work, control.work
    with_work = alignment.work_of_test, alignment.work_of_control
    device = _sums(count, (work.name, gone.name), (work.step, gone.step), (work.ns, gone.ns), with_work)
    return Threshold(
        MIN_DELTA_NS, least / len(lengths), (abs(host) >= least) | (abs(gpu) >= least), abs(device) >= least
    )


def _sums(
    count: int,
    names: tuple[Int32s, Int32s],
    steps: tuple[Int32s, Int32s],
    times: tuple[Int64s, Int64s],
    partners: tuple[Places, Places],
) -> Int64s:
    """The sum of the differences of each name in the steps, ns; each pair is of test and control."""
    new, gone = partners[0] == NO_INDEX, partners[1] == NO_INDEX
    delta = times[0] - np.where(new, 0, np.append(times[1], 0)[partners[0]])
    inside, lost = steps[0] >= 0, gone & (steps[1] >= 0)
    total = np.zeros(count, np.int64)
    np.add.at(total, names[0][inside], delta[inside])
    np.subtract.at(total, names[1][lost], times[1][lost])
    return total


# The tracks of the timeline.

VERDICT = "Diagnosis"  #: the track that says what the comparison found
_LEGEND = "▲ takes longer than in the control, ▼ shorter, + is new"
_ROWS = {
    SLOWER: (Change.INCREASED, Change.ADDED),
    FASTER: (Change.DECREASED, Change.DELETED),
    SAME: (Change.UNCHANGED,),
}
_LEGENDS = {
    SLOWER: "▲ takes longer than in the control, + is new",
    FASTER: "▼ takes less time than in the control, − is gone, where it would have been",
    SAME: "takes the same time",
}


def drawn(pair: Pair, label: str, min_delta_ns: int | None = None, verdict: Sequence[str] = ()) -> AugmentedTrace:
    """The test of a pair of ranks, with the differences from the control as annotations.

    Args:
        pair: the compared ranks.
        label: the name of the control.
        min_delta_ns: leave out smaller differences; with 0 every call and piece of work of the steps is drawn. None:
            draw those that make up 1 % of a step, alone or with all of their name.
        verdict: its sentences are drawn over the compared steps.
    """
    rows, least = Rows(label), threshold(pair, min_delta_ns)
    annotations: list[Annotation] = [
        *_verdict(pair, label, verdict),
        *_work(pair, rows, least),
        *counters_of_devices(pair, rows),
        *_calls(pair, rows, least),
        *deleted_calls(pair, rows, least),
        *counter_of_main_thread(pair, rows),
    ]
    return AugmentedTrace(pair.test.trace, {"diff": Findings((), annotations)})


def _verdict(pair: Pair, label: str, sentences: Sequence[str]) -> Iterator[SliceTrack]:
    """The track that says what the comparison found."""
    trace, steps = pair.test.trace, pair.test.steps
    main = facts.critical.main_track(trace)
    if not sentences or not len(steps) or not trace.tracks:
        return
    start, end = int(steps.begin[0]), int(max(steps.end[-1], steps.finish[-1]))
    yield SliceTrack(
        analysis="diff",
        name=VERDICT,
        under=max(main, 0),
        ts=np.array([start], np.int64),
        dur=np.array([max(end - start, 1)], np.int64),
        names=Texts(np.zeros(1, np.int32), [" ".join(sentences)]),
        description=f"what the comparison with {label} found",
        of_process=True,
        on_top=True,
    )


def _calls(pair: Pair, rows: Rows, least: Threshold) -> Iterator[SliceTrack]:
    """The tracks of the threads."""
    calls, before = pair.test.calls, pair.control.calls
    partner = pair.alignment.call_of_test
    alone = partner == NO_INDEX
    control_ns, control_gpu_ns = (
        np.where(alone, NO_VALUE, _at(column, partner)) for column in (before.cpu_ns, before.gpu_ns)
    )
    delta = calls.cpu_ns - np.where(alone, 0, control_ns)
    delta_gpu = calls.gpu_ns - np.where(alone, 0, control_gpu_ns)
    larger = np.where(abs(delta_gpu) > abs(delta), delta_gpu, delta)
    chosen = np.flatnonzero((calls.step >= 0) & least.calls(calls.name, larger))
    trace = pair.test.trace
    row = calls.row[chosen]
    on_gpu = (abs(delta_gpu) > abs(delta))[chosen] & ~alone[chosen]
    strings = list(trace.strings)
    named = Texts(
        (trace.events.name[row] + len(strings) * on_gpu).astype(np.int32),
        [*strings, *(f"{text} (GPU)" for text in strings)],
    )
    marks = marked(
        trace.events.ts[row],
        calls.cpu_ns[chosen],
        _change(larger[chosen], alone[chosen]),
        named,
        {
            **delta_args(control_ns[chosen], delta[chosen]),
            "gpu_ns": calls.gpu_ns[chosen],
            **delta_args(control_gpu_ns[chosen], delta_gpu[chosen], "gpu_"),
        },
    )
    legend = f"compared with {rows.label}: {_LEGEND}"
    description = f"{legend}; (GPU): the GPU work that the call launched, not the call itself"
    for thread, members in each(calls.thread[chosen], len(trace.tracks)):
        yield from tracks_of(marks.take(members), rows.of_host(), thread, description)


def _work(pair: Pair, rows: Rows, least: Threshold) -> Iterator[SliceTrack]:
    """The tracks of the devices."""
    work, before, gpu = pair.test.work, pair.control.work, facts.gpu.work(pair.test.trace)
    partner = pair.alignment.work_of_test
    alone = partner == NO_INDEX
    control_ns = np.where(alone, NO_VALUE, _at(before.ns, partner))
    delta = work.ns - np.where(alone, 0, control_ns)
    chosen = np.flatnonzero((work.step >= 0) & least.work(work.name, delta))
    trace, other = pair.test.trace, pair.control.trace
    renamed = np.where(pair.alignment.renamed, _at(before.row, partner), NO_INDEX)[chosen]
    # the number of each piece's stream; absent where it has none
    numbers = [stream.stream if isinstance(stream.stream, int) else NO_VALUE for stream in gpu.streams]
    # the row of the call that launched each piece of the test's work, or -1
    marks = marked(
        gpu.ts[chosen],
        work.ns[chosen],
        _change(delta[chosen], alone[chosen]),
        texts_at(work.row[chosen], trace.events.name, trace.strings),
        {
            **delta_args(control_ns[chosen], delta[chosen]),
            "operator": texts_at(
                np.append(pair.test.calls.row, NO_INDEX)[pair.test.work.call][chosen], trace.events.name, trace.strings
            ),
            "stream": np.repeat(np.array(numbers, np.int64), [stream.stop - stream.start for stream in gpu.streams])[
                chosen
            ],
            "control_name": texts_at(renamed, other.events.name, other.strings),
        },
    )
    gone = deleted_work(pair, least)
    for place, device in enumerate(gpu.devices):
        first, last = np.searchsorted(chosen, (device.start, device.stop)).tolist()
        parts = [marks.take(np.arange(first, last)), *gone.get(place, [])]
        of_device = joined(parts)
        # a row for what takes longer and one for what takes less
        for row, changes in _ROWS.items():
            legend = f"compared with {rows.label}: {_LEGENDS[row]}"
            changed = of_device.take(np.flatnonzero(np.isin(of_device.change, changes)))
            yield from tracks_of(changed, rows.of_device(device.device, row), device.track, legend)


def _change(delta: Int64s, alone: Int64s) -> Int64s:
    kind = np.where(delta > 0, Change.INCREASED, np.where(delta < 0, Change.DECREASED, Change.UNCHANGED))
    changed: Int64s = np.where(alone, Change.ADDED, kind).astype(np.int64)
    return changed


def _at(column: Int64s, places: Int64s) -> Int64s:
    """The values at ``places``; -1 stands for none and yields an arbitrary value."""
    return np.append(column, NO_VALUE)[places]


# Counters of the cumulative difference within each step; they begin each step at 0.
#
# For the main thread: by how much later than in the control calls begin and end, relative to the start of the step. For
# a device: the sum of the differences of its GPU work so far, including added and deleted work.


_ROW = "cumulative"
_SCALE = "time"
_LATE = "by how much later than in the control calls begin and end, relative to the start of the step"
_SUM = "sum of the differences of GPU work from the start of the step on"


def counter_of_main_thread(pair: Pair, rows: Rows) -> Iterator[CounterTrack]:
    """The counter of the main thread; none where nothing differs."""
    test, control, partner = pair.test, pair.control, pair.alignment.call_of_test
    thread = main_thread(test)
    met = np.flatnonzero((partner != NO_INDEX) & (test.calls.thread == thread) & (test.calls.step >= 0))
    if thread == NO_INDEX or not len(met):
        return
    step = np.tile(test.calls.step[met], 2).astype(np.int64)
    begin = test.trace.events.ts[test.calls.row[met]]
    was = control.trace.events.ts[control.calls.row[partner[met]]]
    ts = np.concatenate((begin, begin + test.calls.cpu_ns[met]))
    was = np.concatenate((was, was + control.calls.cpu_ns[partner[met]]))
    late = (ts - test.steps.begin[step]) - (was - control.steps.begin[step])
    windows = test.steps.begin, np.maximum(test.steps.begin, test.steps.finish - 1)
    ts = np.clip(ts, windows[0][step], windows[1][step])
    order = np.argsort(ts, kind="stable")
    yield from _counter(rows.of_host(_ROW), thread, windows, (ts[order], late[order]), _LATE)


def counters_of_devices(pair: Pair, rows: Rows) -> Iterator[CounterTrack]:
    """The counter of each device; none where nothing differs."""
    gpu, before = facts.gpu.work(pair.test.trace), facts.gpu.work(pair.control.trace).devices
    work, other, alignment = pair.test.work, pair.control.work, pair.alignment
    delta = work.ns - np.append(other.ns, 0)[alignment.work_of_test]
    gone = (alignment.work_of_control == NO_INDEX) & (other.step >= 0)
    moment = moments_of_work(pair)
    steps = pair.test.steps
    for place, device in enumerate(gpu.devices):
        places = device.start + np.flatnonzero(work.step[device.places] >= 0)
        lost = np.flatnonzero(gone[before[place].places]) + before[place].start if place < len(before) else places[:0]
        step = np.concatenate((work.step[places], other.step[lost])).astype(np.int64)
        ts = np.concatenate((gpu.end[places], moment[lost]))
        change = np.concatenate((delta[places], -other.ns[lost]))
        ts = np.clip(ts, steps.start[step], steps.end[step])
        order = np.lexsort((ts, step))
        value, step = np.cumsum(change[order]), step[order]
        first = np.searchsorted(step, step)
        value -= np.append(0, value)[first]
        name = rows.of_device(device.device, _ROW)
        yield from _counter(name, device.track, (steps.start, steps.end), (ts[order], value), _SUM)


def _counter(
    name: tuple[str, str], under: int, windows: tuple[Int64s, Int64s], points: tuple[Int64s, Int64s], description: str
) -> Iterator[CounterTrack]:
    """A counter of ``points``, ascending times and values, with 0 at the start of each window and after its end."""
    if not points[1].any():
        return
    start, end = windows
    zeros = np.zeros(len(start), np.int64)
    ts, value = np.concatenate((end + 1, start, points[0])), np.concatenate((zeros, zeros, points[1]))
    order = np.argsort(ts, kind="stable")
    ts, value = ts[order], value[order]
    last = np.append(ts[1:] != ts[:-1], True)  # the last point of each moment
    ts, value = ts[last], value[last]
    changed = np.append(True, value[1:] != value[:-1])
    yield CounterTrack(NAME, name[0], under, ts[changed], value[changed] / 1e6, "ms", description, _SCALE, name[1])


# Marks what the test lacks: one mark for each deleted call or piece of GPU work, where it would have been.
#
# The mark of a deleted call or piece of work is drawn after the partner of its predecessor: among its siblings, or on
# its stream. Without such a predecessor it is drawn at the start of its parent's partner; without that, at the same
# offset in the step as in the control. Marks at the same moment are merged; the merged mark is named after the longest
# item.


_GONE = "what the control has and the test lacks, where it would have been"
_DELETED = "deleted"
_MOST_NAMES = 10  #: names listed in a mark


def moments_of_work(pair: Pair) -> Int64s:
    """Where each piece of the control's work would have been in the test, int64 ns; undefined outside of steps."""
    control, test = facts.gpu.work(pair.control.trace), facts.gpu.work(pair.test.trace)
    work, steps = pair.control.work, len(pair.control.steps)
    partner = pair.alignment.work_of_control
    sizes = np.array([stream.stop - stream.start for stream in control.streams], np.int64)
    stream = np.repeat(np.arange(len(sizes)), sizes)
    end = np.append(test.end, NO_INDEX)[partner]
    return _after(stream * (steps + 1) + work.step, end, _shifted(pair, control.ts, work.step))


def deleted_calls(pair: Pair, rows: Rows, least: Threshold) -> Iterator[SliceTrack]:
    """The tracks of the marks of deleted outermost calls, under threads."""
    calls, partner = pair.control.calls, pair.alignment.call_of_control
    parent = np.append(partner, NO_INDEX)[calls.parent]
    known = (calls.parent == NO_INDEX) | (parent != NO_INDEX)
    larger = np.maximum(calls.cpu_ns, calls.gpu_ns)
    gone = np.flatnonzero((partner == NO_INDEX) & (calls.step >= 0) & known & least.calls(calls.name, larger))
    if not len(gone):
        return
    # Where each call of the control would have been in the test, int64 ns; ``parent`` is the partner of its parent
    events = pair.control.trace.events
    test_calls, times = pair.test.calls, pair.test.trace.events
    begin = np.append(times.ts[test_calls.row], NO_INDEX)
    end = np.append(times.ts[test_calls.row] + test_calls.cpu_ns, NO_INDEX)[pair.alignment.call_of_control]
    fallback = np.where(parent != NO_INDEX, begin[parent], _shifted(pair, events.ts[calls.row], calls.step))
    outermost = len(calls) + 1 + calls.thread.astype(np.int64) * (len(pair.control.steps) + 1) + calls.step
    moments_of_calls = _after(np.where(calls.parent == NO_INDEX, outermost, calls.parent), end, fallback)
    moment = moments_of_calls[gone]
    # the test's thread on which the calls of each track of the control are compared; its main thread by default
    thread_of = np.full(len(pair.control.trace.tracks), main_thread(pair.test), np.int64)
    met = np.flatnonzero(partner != NO_INDEX)
    thread_of[calls.thread[met]] = pair.test.calls.thread[partner[met]]
    under = thread_of[calls.thread[gone]]
    known = np.flatnonzero(under != NO_INDEX)
    for thread, places in each(under[known], len(pair.test.trace.tracks)):
        index = known[places]
        chosen = gone[index]
        ns = {"": calls.cpu_ns[chosen], "gpu_": calls.gpu_ns[chosen]}
        marks = _marks(pair, calls.row[chosen], moment[index], ns)
        yield from tracks_of(marks, rows.of_host(_DELETED), thread, f"compared with {rows.label}: {_GONE}")


def deleted_work(pair: Pair, least: Threshold) -> dict[int, list[Marks]]:
    """The marks of deleted GPU work, by the place of the test's device under which they are drawn."""
    work, control = pair.control.work, facts.gpu.work(pair.control.trace)
    devices = facts.gpu.work(pair.test.trace).devices
    alone = pair.alignment.work_of_control == NO_INDEX
    gone = np.flatnonzero(alone & (work.step >= 0) & least.work(work.name, work.ns))
    made: dict[int, list[Marks]] = {}
    if not len(gone) or not devices:
        return made
    moment = moments_of_work(pair)
    for place, device in enumerate(control.devices):
        first, last = np.searchsorted(gone, (device.start, device.stop)).tolist()
        index = gone[first:last]
        marks = _marks(pair, work.row[index], moment[index], {"": work.ns[index]})
        made.setdefault(min(place, len(devices) - 1), []).append(marks)
    return made


def _marks(pair: Pair, row: EventRows, moment: Int64s, ns: dict[str, Int64s]) -> Marks:
    """One mark per moment; ``ns`` are the times of what is gone, by prefix of their args' names."""
    trace = pair.control.trace
    order = np.lexsort((-ns[""], moment))
    row, moment = row[order], moment[order]
    first = np.flatnonzero(np.append(True, moment[1:] != moment[:-1])[: len(row)])
    count = np.diff(first, append=len(row))
    args: dict[str, ArgColumn] = {}
    for prefix, column in ns.items():
        total = np.add.reduceat(column[order], first) if len(first) else first.astype(np.int64)
        args |= delta_args(total, -total, prefix)
    several = np.flatnonzero(count > 1)
    lists = []  # of names with counts, the most frequent first: ``12 × mm, add``
    for start, size in zip(first[several].tolist(), count[several].tolist(), strict=True):
        names = Counter(trace.names_of(row[start : start + size])).most_common()
        lists.append(first_of([f"{times} × {name}" if times > 1 else name for name, times in names], _MOST_NAMES))
    codes = np.full(len(first), NO_INDEX, np.int32)
    codes[several] = np.arange(len(several), dtype=np.int32)
    args |= {"count": count.astype(np.int64), "names": Texts(codes, lists)}
    change = np.full(len(first), Change.DELETED, np.int64)
    texts = texts_at(row[first], trace.events.name, trace.strings)
    return marked(moment[first], np.zeros(len(first), np.int64), change, texts, args)


def _shifted(pair: Pair, ts: Int64s, step: Int32s) -> Int64s:
    """``ts`` of the control at the same offset in the test's step."""
    shift = pair.test.steps.start - pair.control.steps.start
    shifted: Int64s = ts + np.append(shift, 0)[step]
    return shifted


def _after(group: Int64s, end: Int64s, fallback: Int64s) -> Int64s:
    """The ``end`` (ns; NO_INDEX: none) of the nearest predecessor in the group that has one, else ``fallback``."""
    order = np.argsort(group, kind="stable")
    place = np.arange(len(order))
    ends, groups = end[order], group[order]
    first = np.maximum.accumulate(np.where(np.append(True, groups[1:] != groups[:-1])[: len(order)], place, 0))
    last = np.maximum.accumulate(np.where(ends != NO_INDEX, place, NO_INDEX))
    moment = np.empty(len(order), np.int64)
    moment[order] = np.where(last >= first, ends[last], fallback[order])
    return moment
