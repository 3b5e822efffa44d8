"""The correlation of GPU work whose args tell none: that of the arrow which leads to it.

Kineto gave AMD's kernels and copies no args before PyTorch 2.4, but an ``ac2g`` flow leads from each launch to what it
launched. Its id is the correlation, and ``output_json.cpp`` writes each end right behind the slice that it belongs to.
"""

from __future__ import annotations

import numpy as np

from augment.arrays.types import Int64s
from augment.trace import NO_CORRELATION, Category, Trace


def correlations_of(trace: Trace, rows: Int64s) -> Int64s:
    """The correlation of each of ``rows``, int64; if none of them has one, the ids of their arrows."""
    correlation = trace.events.correlation[rows]
    return correlation if (correlation != NO_CORRELATION).any() else _by_arrows(trace, rows)


def _by_arrows(trace: Trace, rows: Int64s) -> Int64s:
    """The id of the arrow behind each slice in the file, at its time and place; ``NO_CORRELATION`` of others."""
    events, flows = trace.events, trace.events.flow_id
    found = np.full(len(rows), NO_CORRELATION, np.int64)
    chosen = (events.category[flows.rows] == Category.AC2G) & (flows.values > 0)
    arrow, number = flows.rows[chosen], flows.values[chosen]
    if not len(arrow) or not len(rows):
        return found
    in_file = np.argsort(events.offset[rows])
    place = np.searchsorted(events.offset[rows[in_file]], events.offset[arrow], side="right") - 1
    before = in_file[np.maximum(place, 0)]
    threads: dict[object, int] = {}
    thread = np.array([threads.setdefault((one.pid, one.tid), len(threads)) for one in trace.tracks], np.int32)
    own = (place >= 0) & (events.ts[rows[before]] == events.ts[arrow])
    own &= thread[events.track[rows[before]]] == thread[events.track[arrow]]
    found[before[own]] = number[own]
    return found
