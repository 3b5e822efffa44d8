"""The correlation of GPU work without args: the id of the arrow that leads to it.

Before PyTorch 2.4, Kineto wrote no args for AMD's kernels and copies, but an ``ac2g`` flow from each launch to its
work. The flow's id is the correlation. ``output_json.cpp`` writes each end directly after the slice that it belongs to.
"""

from __future__ import annotations

import numpy as np

from augment.arrays.types import Int64s
from augment.trace import NO_CORRELATION, Category, Trace


def correlations_of(trace: Trace, rows: Int64s) -> Int64s:
    """The correlation of each of ``rows``, int64. If no row has one, the ids of their arrows."""
    correlation = trace.events.correlation[rows]
    return correlation if (correlation != NO_CORRELATION).any() else _by_arrows(trace, rows)


def _by_arrows(trace: Trace, rows: Int64s) -> Int64s:
    """The id of the arrow after each slice in the file, if time and thread agree; else ``NO_CORRELATION``."""
    events, flows = trace.events, trace.events.flow_id
    correlations = np.full(len(rows), NO_CORRELATION, np.int64)
    chosen = (events.category[flows.rows] == Category.AC2G) & (flows.values > 0)
    arrow, number = flows.rows[chosen], flows.values[chosen]
    if not len(arrow) or not len(rows):
        return correlations
    in_file = np.argsort(events.offset[rows])
    place = np.searchsorted(events.offset[rows[in_file]], events.offset[arrow], side="right") - 1
    before = in_file[np.maximum(place, 0)]
    threads: dict[object, int] = {}
    thread = np.array([threads.setdefault((track.pid, track.tid), len(threads)) for track in trace.tracks], np.int32)
    matches = (place >= 0) & (events.ts[rows[before]] == events.ts[arrow])
    matches &= thread[events.track[rows[before]]] == thread[events.track[arrow]]
    correlations[before[matches]] = number[matches]
    return correlations
