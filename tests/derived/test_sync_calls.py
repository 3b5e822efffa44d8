"""Which of many calls overlaps a gap longest, against its definition; and what that costs."""

from __future__ import annotations

import tracemalloc

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from augment.derived.sync_calls import longest_in
from augment.intervals import Intervals
from tables import call, trace_of

CALLS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=10)
CUTS = st.lists(st.integers(0, 30), unique=True, max_size=12).map(sorted)


@given(CALLS, CUTS)
def test_the_first_of_those_that_overlap_longest(drawn: list[tuple[int, int]], cuts: list[int]) -> None:
    trace = trace_of(*(call("cudaDeviceSynchronize", ts, ts + dur) for ts, dur in drawn), call("end", 99, 99))
    rows = np.arange(len(drawn))
    ts, end = trace.events.ts[rows], trace.events.end[rows]
    gaps = list(zip(cuts[::2], cuts[1::2], strict=False))
    start, stop = (np.array([gap[side] for gap in gaps], np.int64) for side in (0, 1))
    wanted = []
    for low, high in gaps:
        shared = np.minimum(end, high) - np.maximum(ts, low)
        wanted.append(int(shared.argmax()) if len(rows) and shared.max() > 0 else -1)
    assert longest_in(trace, rows, Intervals(start, stop)).tolist() == wanted


def test_many_calls_over_many_gaps_are_not_met_pair_by_pair() -> None:
    """1,500 threads wait while a device stands idle 1,500 times."""
    count = 1500
    trace = trace_of(*(call("cudaDeviceSynchronize", i, 10**6 + i, thread=i) for i in range(count)))
    start = np.arange(2000, 2000 + 10 * count, 10)
    tracemalloc.start()
    try:
        found = longest_in(trace, np.arange(count), Intervals(start, start + 5))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (found == 0).all()
    assert peak < 8 * count * count / 10  # one column of all pairs, of which there would be several
