"""``readers/perfetto/match.py``, compiled: one pass in the order of time, with a stack for each track."""

from __future__ import annotations

from augment.kernels.memory import compiled, load_int, load_int32, store_int

#: where the addresses of columns are in `table`; orders, ``top``, ``below`` and ``end_of`` are int64
(BEGIN_ORDER, BEGIN_TS, BEGIN_TRACK, END_ORDER, END_TS, END_TRACK, BEFORE, TOP, BELOW, END_OF) = range(0, 80, 8)


@compiled
def match(table: int, begins: int, ends: int) -> int:
    """Fill ``end_of``. ``top`` is the innermost open slice of each track, ``below`` the one around each; -1 is none."""
    begin_order, begin_ts = load_int(table + BEGIN_ORDER), load_int(table + BEGIN_TS)
    end_order, end_ts, before = load_int(table + END_ORDER), load_int(table + END_TS), load_int(table + BEFORE)
    top, below, end_of = load_int(table + TOP), load_int(table + BELOW), load_int(table + END_OF)
    begin_track, end_track = load_int(table + BEGIN_TRACK), load_int(table + END_TRACK)
    b = 0
    for e in range(ends):
        end = load_int(end_order + 8 * e)
        ts, rank = load_int(end_ts + 8 * end), load_int(before + 8 * end)
        while b < begins:
            begin = load_int(begin_order + 8 * b)
            starts = load_int(begin_ts + 8 * begin)
            if starts > ts or (starts == ts and begin >= rank):
                break
            place = top + 8 * load_int32(begin_track + 4 * begin)
            store_int(below + 8 * begin, load_int(place))
            store_int(place, begin)
            b += 1
        place = top + 8 * load_int32(end_track + 4 * end)
        innermost = load_int(place)
        if innermost >= 0:
            store_int(end_of + 8 * innermost, end)
            store_int(place, load_int(below + 8 * innermost))
    return 0
