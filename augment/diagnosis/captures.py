"""When graphs are captured and instantiated: launches are written down, and the device runs nothing of them."""

from __future__ import annotations

import re

import numpy as np

from augment.arrays.ordering import distinct
from augment.core.context import derived
from augment.core.trace import LAUNCHES, Trace
from augment.diagnosis.rule import Spans
from augment.facts.names.name_masks import matching

_BEGIN, _END, _MAKE = (re.compile(text) for text in ("StreamBeginCapture", "StreamEndCapture", "GraphInstantiate"))


@derived
def captures(trace: Trace) -> Spans:
    """From each begin of a capture to the next end on its thread, and each instantiation; rows of the first call."""
    events = trace.events
    calls = events.slices_of(*LAUNCHES)
    begin, end, make = (calls[matching(trace, pattern)[events.name[calls]]] for pattern in (_BEGIN, _END, _MAKE))
    parts = [Spans.of(trace, make)]
    for track in distinct(events.track[begin]).tolist():
        starts, ends = (rows[events.track[rows] == track] for rows in (begin, end))
        following = np.searchsorted(events.ts[ends], events.ts[starts])
        known = following < len(ends)
        last = ends[following[known]]
        parts.append(Spans(events.ts[starts[known]], events.ts[last] + events.dur[last], starts[known]))
    columns = ([getattr(part, name) for part in parts] for name in ("start", "end", "row"))
    start, stop, row = (np.concatenate(column) for column in columns)
    order = np.argsort(start, kind="stable")
    return Spans(start[order], stop[order], row[order])
