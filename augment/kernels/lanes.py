"""The loop of ``writers/perfetto/lanes.py``, compiled: line by line the same."""

from __future__ import annotations

from augment.kernels.memory import compiled, load_int, load_int32, store_int, store_int32

# what the table holds: addresses of columns, in the order of :func:`augment.writers.perfetto.lanes._walk`
(ROWS, PLACE, TS, ENDS, MARK, POINT_PLACE, POINT_TS, POINT_MARK, FIRST_LANE, TOP, NEXT_LANE, BELOW, LANE,
 FOUND) = range(0, 14 * 8, 8)  # fmt: skip


@compiled
def slice_at(table: int, point: int) -> int:
    """The innermost slice that covers a point, of all lanes of its track; -1 if there is none."""
    ts, ends, mark = load_int(table + TS), load_int(table + ENDS), load_int(table + MARK)
    top, below = load_int(table + TOP), load_int(table + BELOW)
    at = load_int(load_int(table + POINT_TS) + 8 * point)
    meant = load_int(load_int(table + POINT_MARK) + 8 * point)
    best = -1
    one = load_int32(load_int(table + FIRST_LANE) + 4 * load_int32(load_int(table + POINT_PLACE) + 4 * point))
    while one >= 0:
        inner: int = load_int32(top + 4 * one)
        while inner >= 0 and load_int(ends + 8 * inner) < at:
            inner = load_int32(below + 4 * inner)
        if inner >= 0 and (best < 0 or load_int(ts + 8 * inner) > load_int(ts + 8 * best)):
            best = inner
        while inner >= 0 and load_int(ts + 8 * inner) == at:
            if load_int(mark + 8 * inner) == meant:
                return inner
            inner = load_int32(below + 4 * inner)
        one = load_int32(load_int(table + NEXT_LANE) + 4 * one)
    return best


@compiled
def walk(table: int, rows: int, points: int) -> int:
    """See :func:`augment.writers.perfetto.lanes._walk`."""
    ts, ends, top, below = load_int(table + TS), load_int(table + ENDS), load_int(table + TOP), load_int(table + BELOW)
    next_lane, first_lane = load_int(table + NEXT_LANE), load_int(table + FIRST_LANE)
    lanes = point = 0
    for i in range(rows + 1):
        row = load_int(load_int(table + ROWS) + 8 * i) if i < rows else 0
        start = load_int(ts + 8 * row) if i < rows else 0
        while point < points and (i == rows or load_int(load_int(table + POINT_TS) + 8 * point) < start):
            store_int(load_int(table + FOUND) + 8 * point, slice_at(table, point))
            point += 1
        if i == rows:
            break
        place = first_lane + 4 * load_int32(load_int(table + PLACE) + 4 * row)
        end = load_int(ends + 8 * row)
        number = 0
        before = open_slice = -1
        one = load_int32(place)
        while one >= 0:
            open_slice = load_int32(top + 4 * one)
            while open_slice >= 0 and load_int(ends + 8 * open_slice) <= start:
                open_slice = load_int32(below + 4 * open_slice)
            if open_slice < 0 or end <= load_int(ends + 8 * open_slice):
                break
            number += 1
            before = one
            one = load_int32(next_lane + 4 * one)
        if one < 0:
            one = lanes
            lanes += 1
            store_int32(next_lane + 4 * one, -1)
            open_slice = -1
            store_int32(place if before < 0 else next_lane + 4 * before, one)
        store_int32(below + 4 * row, open_slice)
        store_int32(top + 4 * one, row)
        store_int32(load_int(table + LANE) + 4 * row, number)
    return 0
