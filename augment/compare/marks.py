"""Marks of a comparison as columns, and the tracks made of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from augment.arrays import NO_INDEX, NO_VALUE, Bools, Int32s, Int64s, Places, Values, each
from augment.compare.core import Pair
from augment.core.annotations import ArgColumn, SliceTrack, Texts
from augment.core.trace import Identity
from augment.writers.perfetto.flows import Points, TrackSlices, lanes_and_slices

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


def texts_at(rows: Int64s, codes: Values[np.int32], strings: Sequence[str]) -> Texts:
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
