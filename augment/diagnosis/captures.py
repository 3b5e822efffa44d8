"""What happens once at best: graphs are captured and instantiated, while the device runs nothing of them; code is
compiled."""

from __future__ import annotations

import re

import numpy as np

from augment.arrays import Bools, EventRows, distinct
from augment.core import LAUNCHES, Category, Trace, derived
from augment.diagnosis.rule import Spans
from augment.facts.names import matching

_COMPILING = re.compile(
    r"\(dynamo_timed\)|^(?:entire_frame_compile|backend_compile|inductor_compile|compile_fx|async_compile\.wait"
    r"|GraphLowering\.|TritonBundler|create_aot_dispatcher_function)"
)
_RUNS = re.compile(r"call_compiled|runtime|CompiledFxGraph|Torch-Compiled Region")  #: these run what is compiled
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


@derived
def compiles(trace: Trace) -> Bools:
    """For each string of the trace whether it names work of the compiler."""
    return matching(trace, _COMPILING) & ~matching(trace, _RUNS)


def compilations(trace: Trace) -> EventRows:
    """The rows of the compiler's work."""
    rows = trace.events.slices_of(Category.CPU_OP, Category.USER_ANNOTATION)
    return rows[compiles(trace)[trace.events.name[rows]]]
