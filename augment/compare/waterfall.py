"""Splits the difference of step time into parts that add up to it, to the nanosecond."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum

import numpy as np
from msgspec import Struct

from augment import facts
from augment.arrays import NO_INDEX, Bytes, Int32s, Int64s, Intervals, Places, clip, union
from augment.compare.alignment import main_thread
from augment.compare.call_tables import change_of
from augment.compare.calls import CALLS, Names, Paths, Side
from augment.compare.diff_rows import KindRow, PartChange, PartRow
from augment.compare.noise import chance_of, corrected
from augment.compare.totals import CONTROL, TEST, Ledger, verdict_of
from augment.facts.gpu.device_activity import COMMUNICATION, COMPUTATION, MEMORY, type_coverage
from augment.facts.host.occupancy import innermost, occupants

# Divides each step's window completely among its owners: what ran, or what was waited for.
#
# At each moment of a window a device has exactly one owner: the computation kernel that has run longest; without
# computation the collective; without that the copy; and if nothing runs, the cause of the idle time. In a recording
# without GPU work the owner is the innermost call of the main thread.


BEFORE = "launched before the recording"  #: owner name of such work: its call is unknown


class TileKind(IntEnum):
    """The class of a device's time; in a recording of the host only, :attr:`HOST`."""

    COMPUTATION = 0
    EXPOSED_COMMUNICATION = 1
    EXPOSED_MEMORY = 2
    HOST_WAIT = 3
    KERNEL_WAIT = 4
    OTHER = 5
    HOST = 6


#: for each type of work, the types that hide it: it owns a moment only if none of these runs
_HIDDEN_BY = {
    TileKind.COMPUTATION: 0,
    TileKind.EXPOSED_COMMUNICATION: COMPUTATION,
    TileKind.EXPOSED_MEMORY: COMPUTATION | COMMUNICATION,
}
_MASK = {
    TileKind.COMPUTATION: COMPUTATION,
    TileKind.EXPOSED_COMMUNICATION: COMMUNICATION,
    TileKind.EXPOSED_MEMORY: MEMORY,
}
_IDLE = {
    facts.waits.GapCategory.HOST_WAIT: TileKind.HOST_WAIT,
    facts.waits.GapCategory.KERNEL_WAIT: TileKind.KERNEL_WAIT,
    facts.waits.GapCategory.OTHER: TileKind.OTHER,
}


class Tiles(Struct, frozen=True):
    """Equal-length columns: ``ns`` (int64) of the step with index ``step`` belong to ``kind`` (uint8, a
    :class:`TileKind`), ``path`` (int32, of the call that launched the work, or that the host is in), ``name`` (int32,
    of the work, or of the host's activity meanwhile; -1 for none) and ``family`` (int32, of the work; -1 for none).
    Their sum is the length of the windows."""

    kind: Bytes
    path: Int32s
    name: Int32s
    family: Int32s
    step: Places
    ns: Int64s


def tiles_of(side: Side, names: Names, device: int | None) -> Tiles:
    """Divide the windows of ``side`` on the device with that index, or among the host's calls."""
    if device is None:
        calls, events = side.calls, side.trace.events
        on_thread = np.flatnonzero(calls.thread == main_thread(side))
        line = innermost(
            on_thread, events.ts[calls.row[on_thread]], events.ts[calls.row[on_thread]] + calls.cpu_ns[on_thread]
        )
        which, step, part = clip(Intervals(line.start, line.end), Intervals(side.steps.start, side.steps.end))
        ns = part.end - part.start
        uncovered = side.steps.end - side.steps.start
        np.subtract.at(uncovered, step, ns)
        call = line.row[which]
        outside = np.full(len(uncovered), NO_INDEX, np.int32)
        host = (
            np.full(len(ns) + len(uncovered), TileKind.HOST, np.uint8),
            np.concatenate((calls.path[call], outside)),
            np.full(len(ns) + len(uncovered), NO_INDEX, np.int32),
            np.full(len(ns) + len(uncovered), NO_INDEX, np.int32),
            np.concatenate((step, np.arange(len(uncovered)))),
            np.concatenate((ns, uncovered)),
        )
        return _joined([host])
    trace = side.trace
    idle = facts.steps.step_idle(trace, device, side.steps)
    kind = np.array([_IDLE[category] for category in facts.waits.GapCategory], np.uint8)[idle.category]
    main = main_thread(side)
    thread = np.where(idle.launch != NO_INDEX, trace.events.track[idle.launch], np.int32(main))
    waits = np.flatnonzero((kind == TileKind.HOST_WAIT) & (thread != NO_INDEX))
    name = np.full(len(kind), NO_INDEX, np.int32)
    start, end, events = idle.start[waits], idle.end[waits], trace.events
    doing = occupants(trace, CALLS, start, end, thread[waits]).name
    # whatever operators fetch a batch, it is the fetch that is waited for
    rows = facts.names.fetches(trace)
    which, _, parts = clip(Intervals(start, end), union(events.ts[rows], events.end[rows]))
    doing[2 * np.bincount(which, parts.end - parts.start, len(waits)) > end - start] = events.name[rows[:1]]
    known = doing >= 0
    name[waits[known]] = names.of(doing[known], trace.strings)
    nothing = np.full(len(kind), NO_INDEX, np.int32)
    return _joined([*_work(side, names, device), (kind, nothing, name, nothing, idle.step, idle.end - idle.start)])


_Piece = tuple[Bytes, Int32s, Int32s, Int32s, Places, Int64s]


def _joined(pieces: list[_Piece]) -> Tiles:
    return Tiles(*(np.concatenate(columns) for columns in zip(*pieces, strict=True)))


def _work(side: Side, names: Names, device: int) -> Iterator[_Piece]:
    work, coverage = facts.gpu.work(side.trace), type_coverage(side.trace)[device]
    name = side.work.name.copy()
    name[facts.gpu.before_recording(side.trace)] = names.number(BEFORE)
    windows = Intervals(side.steps.start, side.steps.end)
    in_time = work.by_time[work.devices[device].places]
    for kind, mask in _MASK.items():
        places = in_time[1 << work.type[in_time].astype(np.int64) == mask]
        if not len(places):
            continue
        end = np.maximum.accumulate(work.end[places])
        start = np.maximum(work.ts[places], np.concatenate((work.ts[places[:1]], end[:-1])))
        real = end > start  # else it runs, but not as the longest
        places = places[real]
        which, step, part = clip(Intervals(start[real], end[real]), windows)
        lost = coverage.time_within(part.start, part.end, any_of=_HIDDEN_BY[kind])
        ns = part.end - part.start - lost
        owner = places[which]
        yield np.full(len(ns), kind, np.uint8), side.work.path[owner], name[owner], side.work.family[owner], step, ns


NAMES_SHOWN = 4  #: kernel names shown per part
_BITS = 28  #: bits of a path, and of a name, in a key
_WORK = (TileKind.COMPUTATION, TileKind.EXPOSED_COMMUNICATION, TileKind.EXPOSED_MEMORY)


class _WaterfallPart(Struct, frozen=True):
    """The content of one part: owners (keys of the ledger) and their operator (a name's number)."""

    kind: TileKind
    operator: int
    keys: tuple[int, ...]
    renamed: bool = False


class Waterfall:
    """Collects the tiles of both sides, then yields the parts.

    Args:
        steps: the number of compared steps.
        names: the names of both sides.
        paths: the call paths of both sides.
    """

    def __init__(self, steps: int, names: Names, paths: Paths) -> None:
        self._ledger, self._names, self._paths = Ledger(steps), names, paths
        self._lanes = 0
        self._family: dict[int, int] = {}  # of each owner

    def add(self, side: int, tiles: Tiles) -> None:
        """Add the tiles of one rank's device."""
        self._lanes += side == TEST
        key = (tiles.kind.astype(np.int64) << 2 * _BITS) | (tiles.path.astype(np.int64) + 1) << _BITS
        key |= tiles.name.astype(np.int64) + 1
        self._ledger.add(side, key, tiles.step, tiles.ns)
        owners, first = np.unique(key, return_index=True)
        for owner, family in zip(owners.tolist(), tiles.family[first].tolist(), strict=True):
            self._family.setdefault(owner, family)

    def rows(self, operators: tuple[set[int], set[int]]) -> list[PartRow]:
        """The parts, largest differences first.

        Args:
            operators: the paths of operators in the control, and in the test.
        """
        parts = [part for part in self._parts(operators) if self._sums(part).any()]
        sums = [self._sums(part) for part in parts]
        adjusted = corrected([chance_of(*of_part.astype(np.float64)) for of_part in sums])
        whole = sum(int(of_part[TEST].sum() - of_part[CONTROL].sum()) for of_part in sums)
        rows = []
        for part, of_part, p in zip(parts, sums, adjusted, strict=True):
            control, test = int(of_part[CONTROL].sum()), int(of_part[TEST].sum())
            delta = test - control
            row = PartRow(
                kind=part.kind.name.lower(),
                change=_change(part, control, test),
                operator=self._names.texts[part.operator] if part.operator != NO_INDEX else "",
                path=self._paths.text(self._path(max(part.keys, key=self._difference))),
                control_names=self._texts(part, CONTROL),
                test_names=self._texts(part, TEST),
                control_ns=control,
                test_ns=test,
                delta_ns=delta,
                delta_per_step_ns=delta / (self._ledger.width * max(self._lanes, 1)),
                share_ratio=delta / whole if whole else None,
                p=p,
                verdict=verdict_of(p, delta),
            )
            rows.append(row)
        return sorted(rows, key=lambda row: (-abs(row.delta_ns), row.kind, row.operator, row.test_names))

    def _parts(self, operators: tuple[set[int], set[int]]) -> Iterable[_WaterfallPart]:
        """Groups owners by operator and name. Owners of one side only go to the innermost operator of both sides.

        There they are matched by family, then whatever their family. Work that no operator launched, but an annotation
        (or a step) of both sides, is matched by family alone.
        """
        shared, every = operators[CONTROL] & operators[TEST], operators[CONTROL] | operators[TEST]
        before = self._names.number(BEFORE)
        owners: dict[tuple[TileKind, int, int], list[int]] = {}
        for key, _ in self._ledger:
            owners.setdefault(
                (TileKind(key >> 2 * _BITS), self._operator(self._path(key)), self._name(key)), []
            ).append(key)
        left: dict[tuple[TileKind, int, bool], list[list[int]]] = {}
        for (kind, operator, _), keys in owners.items():
            occurs = self._occurs(keys)
            # the path of the innermost operator around them that both sides have
            home = next((path for path in reversed(self._paths.chain(self._path(keys[0]))) if path in shared), NO_INDEX)
            if all(occurs) or kind not in _WORK or self._name(keys[0]) == before:
                yield _WaterfallPart(kind, operator, tuple(keys))
            elif home != NO_INDEX:
                left.setdefault((kind, self._operator(home), True), []).append(keys)
            elif not any(path in every for path in self._paths.chain(self._path(keys[0]))):
                left.setdefault((kind, operator, False), []).append(keys)
            else:
                yield _WaterfallPart(kind, operator, tuple(keys))
        for (kind, operator, is_operator), groups in left.items():
            # the parts of what only one side has: renamed where the other side has its like, else each by itself
            rest: list[list[int]] = []
            families: dict[int, list[list[int]]] = {}
            for keys in groups:
                families.setdefault(self._family[keys[0]], []).append(keys)
            for family, alike in families.items():
                together = tuple(key for keys in alike for key in keys)
                if self._names.texts[family] != facts.gpu.UNKNOWN_FAMILY and all(self._occurs(together)):
                    yield _WaterfallPart(kind, operator, together, renamed=True)
                else:
                    rest += alike
            together = tuple(key for keys in rest for key in keys)
            if is_operator and together and all(self._occurs(together)):
                yield _WaterfallPart(kind, operator, together, renamed=True)
            else:
                yield from (_WaterfallPart(kind, self._operator(self._path(keys[0])), tuple(keys)) for keys in rest)

    def _occurs(self, keys: Sequence[int]) -> tuple[bool, bool]:
        """Whether any of ``keys`` owns time in the control, and in the test."""
        sums = [self._ledger[key] for key in keys]
        return any(owner[CONTROL].any() for owner in sums), any(owner[TEST].any() for owner in sums)

    def _operator(self, path: int) -> int:
        """The name of the innermost call of ``path``."""
        return self._paths.name[path] if path != NO_INDEX else NO_INDEX

    def _name(self, key: int) -> int:
        return (key & (1 << _BITS) - 1) - 1

    def _path(self, key: int) -> int:
        return (key >> _BITS & (1 << _BITS) - 1) - 1

    def _sums(self, part: _WaterfallPart) -> Int64s:
        total: Int64s = sum((self._ledger[key] for key in part.keys), np.zeros((2, self._ledger.width), np.int64))
        return total

    def _difference(self, key: int) -> int:
        return abs(int(self._ledger[key][TEST].sum() - self._ledger[key][CONTROL].sum()))

    def _texts(self, part: _WaterfallPart, side: int) -> list[str]:
        """The names of the part's owners on one side, the longest first."""
        owners: dict[int, int] = {}
        for key in part.keys:
            name, ns = self._name(key), int(self._ledger[key][side].sum())
            if name >= 0 and ns:
                owners[name] = owners.get(name, 0) + ns
        longest = sorted(owners, key=lambda name: (-owners[name], name))[:NAMES_SHOWN]
        return [self._names.texts[name] for name in longest]


def _change(part: _WaterfallPart, control: int, test: int) -> PartChange:
    """The kind of change: work appears and disappears, waiting only grows and shrinks."""
    if part.renamed:
        return "renamed"
    change = change_of(control, test)
    if part.kind in _WORK:
        return change
    return "increased" if change == "added" else "decreased" if change == "deleted" else change


# The rows by kind of work: families of kernels, and the waiting between them. They add up to the step time.


_COUNT, _SUM, _OWNED = range(3)
#: what time without a family is called
_WITHOUT = {
    TileKind.HOST_WAIT: "host_wait",
    TileKind.KERNEL_WAIT: "kernel_wait",
    TileKind.OTHER: "other_wait",
    TileKind.HOST: "host",
}


class ByKind:
    """Collects counts, sums of durations and owned time by kind of work.

    Args:
        steps: the number of compared steps.
        names: the names of both sides, also those of families.
    """

    def __init__(self, steps: int, names: Names) -> None:
        self._steps, self._names, self._lanes = steps, names, 0
        self._ledger = Ledger(3 * steps)

    def add_work(self, which: int, side: Side, devices: Sequence[int | None]) -> None:
        """Count the work of one rank's devices that was launched in the steps."""
        for device in devices:
            if device is None:
                continue
            gpu = facts.gpu.work(side.trace).devices[device]
            places = np.arange(gpu.start, gpu.stop)
            places = places[side.work.step[places] >= 0]
            step, family = side.work.step[places].astype(np.int64), side.work.family[places]
            self._ledger.add(which, family, _COUNT * self._steps + step, np.ones(len(places), np.int64))
            self._ledger.add(which, family, _SUM * self._steps + step, side.work.ns[places])

    def add_tiles(self, which: int, tiles: Tiles) -> None:
        """Add the owners of one device's time."""
        self._lanes += which == TEST
        waiting = np.array([self._names.number(_WITHOUT.get(kind, "")) for kind in TileKind], np.int32)
        key = np.where(tiles.family == NO_INDEX, waiting[tiles.kind], tiles.family)
        self._ledger.add(which, key, _OWNED * self._steps + tiles.step, tiles.ns)

    def rows(self) -> list[KindRow]:
        """A row for each kind, the largest differences of owned time first."""
        entries = [(key, sums.reshape(2, 3, self._steps)) for key, sums in self._ledger if sums.any()]
        adjusted = corrected([chance_of(*sums[:, _OWNED].astype(np.float64)) for _, sums in entries])
        whole = sum(int(sums[TEST, _OWNED].sum() - sums[CONTROL, _OWNED].sum()) for _, sums in entries)
        rows = []
        for (key, sums), p in zip(entries, adjusted, strict=True):
            (count, total, owned), (count_after, total_after, owned_after) = sums.sum(axis=2).tolist()
            delta = owned_after - owned
            rows.append(
                KindRow(
                    kind_of_work=self._names.texts[key],
                    control_count=count,
                    test_count=count_after,
                    control_sum_ns=total,
                    test_sum_ns=total_after,
                    control_ns=owned,
                    test_ns=owned_after,
                    delta_ns=delta,
                    delta_per_step_ns=delta / (self._steps * max(self._lanes, 1)),
                    share_ratio=delta / whole if whole else None,
                    p=p,
                    verdict=verdict_of(p, delta),
                )
            )
        return sorted(rows, key=lambda row: (-abs(row.delta_ns), row.kind_of_work))
