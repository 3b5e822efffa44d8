"""What happens once at best: graphs are captured and instantiated, while the device runs nothing of them; code is
compiled."""

from __future__ import annotations

import re

import numpy as np

from augment import arrays, facts
from augment.core import LAUNCHES, Category, Trace, derived
from augment.diagnosis.rule import Spans

_COMPILING = re.compile(
    r"\(dynamo_timed\)|^(?:entire_frame_compile|backend_compile|inductor_compile|compile_fx|async_compile\.wait"
    r"|GraphLowering\.|TritonBundler|create_aot_dispatcher_function)"
)
_RUNS = re.compile(r"call_compiled|runtime|CompiledFxGraph|Torch-Compiled Region")  #: these run what is compiled
#: frames of compilers at work, and calls that load what they made
_COMPILER = re.compile(
    r"torch/_inductor/(?:(?:compile_fx|codecache)\.py\(\d+\): (?!(?:run|__call__)$)"  # these run what is compiled
    r"|async_compile|graph|scheduler|codegen|select_algorithm|fx_passes|lowering)"
    r"|torch/_dynamo/(?:convert_frame|symbolic_convert|output_graph)|triton/(?:compiler|backends)/"
)
_MADE, _LOOKUP, SOON_NS = re.compile("ModuleLoad"), re.compile("^TorchDynamo Cache Lookup"), 100_000
#: frames that prepare a capture, or free memory for it
_RECORDING = re.compile(
    r"torch/_inductor/cudagraph_trees\.py\(\d+\): record_function|torch/cuda/graphs\.py\(\d+\): (?:__enter__|capture_)"
)
FAR_LONGER = 4  #: an operator so many times as long as others of its name does more than they: it captures, or loads
_BEGIN, _END, _MAKE = (re.compile(text) for text in ("StreamBeginCapture", "StreamEndCapture", "GraphInstantiate"))


@derived
def captures(trace: Trace) -> Spans:
    """From each begin of a capture to the next end on its thread, and each instantiation; rows of the first call."""
    events = trace.events
    calls, matching = events.slices_of(*LAUNCHES), facts.names.matching
    begin, end, make = (calls[matching(trace, pattern)[events.name[calls]]] for pattern in (_BEGIN, _END, _MAKE))
    parts = [Spans.of(trace, make)]
    for track in arrays.distinct(events.track[begin]).tolist():
        starts, ends = (rows[events.track[rows] == track] for rows in (begin, end))
        following = np.searchsorted(events.ts[ends], events.ts[starts])
        known = following < len(ends)
        last = ends[following[known]]
        parts.append(Spans(events.ts[starts[known]], events.ts[last] + events.dur[last], starts[known]))
    spans = Spans.joined(parts)
    return spans.take(np.argsort(spans.start, kind="stable"))


@derived
def compiles(trace: Trace) -> arrays.Bools:
    """For each string of the trace whether it names work of the compiler."""
    return facts.names.matching(trace, _COMPILING) & ~facts.names.matching(trace, _RUNS)


def compilations(trace: Trace) -> arrays.EventRows:
    """The rows of the compiler's work."""
    rows = trace.events.slices_of(Category.CPU_OP, Category.USER_ANNOTATION)
    return rows[compiles(trace)[trace.events.name[rows]]]


def compiled_in(trace: Trace, spans: Spans) -> arrays.Bools:
    """Which stretches are in frames of a compiler, or within :data:`SOON_NS` before a call that loads what it made; or,
    in no operator, after one that looked for what is compiled: had it been there, it would run as an operator."""
    events, matching = trace.events, facts.names.matching
    around = facts.host.innermost(
        trace, np.maximum(spans.row, 0), (Category.PYTHON_FUNCTION,), matching(trace, _COMPILER)
    )
    compiled: arrays.Bools = (around >= 0) & (spans.row >= 0)
    calls, operators = events.slices_of(*LAUNCHES), events.slices_of(Category.CPU_OP, Category.USER_ANNOTATION)
    made = events.ts[calls[matching(trace, _MADE)[events.name[calls]]]]
    lookups = np.sort(events.end[operators[matching(trace, _LOOKUP)[events.name[operators]]]])
    compiled |= np.searchsorted(made, spans.end) < np.searchsorted(made, spans.end + SOON_NS)
    outside = (spans.row < 0) | (events.category[spans.row] != Category.CPU_OP)
    looked = np.searchsorted(lookups, spans.start - SOON_NS) < np.searchsorted(lookups, spans.start, side="right")
    compiled |= outside & looked
    return compiled


@derived(until="diagnosis")
def capturing_operators(trace: Trace) -> tuple[arrays.EventRows, arrays.EventRows]:
    """The outermost operators around captures that take far longer than those of their name without any, and compiled
    regions of which no other runs, ascending rows: what a capture prepares, and does with its graph, is most of what
    they do. And the rows of these others."""
    events, every = trace.events, trace.events.slices_of(Category.CPU_OP)
    rows = arrays.distinct(facts.host.outermost(trace, captures(trace).row, (Category.CPU_OP,)))
    rows = rows[rows >= 0]
    others = every[arrays.is_any(events.name[every], events.name[rows].tolist()) & ~arrays.is_among(every, rows)]
    others = others[facts.host.outermost(trace, others, (Category.CPU_OP,)) == others]
    slow = facts.host.within_compiled(trace, rows) & ~arrays.is_any(events.name[rows], events.name[others].tolist())
    for name in arrays.distinct(events.name[others]).tolist():
        usual = arrays.median(events.dur[others[events.name[others] == name]])
        slow |= (events.name[rows] == name) & (events.dur[rows] > FAR_LONGER * usual)
    return rows[slow], others


def captured_in(trace: Trace, rows: arrays.EventRows) -> arrays.Bools:
    """Which slices belong to a capture: in :func:`capturing_operators`, or in frames that record a graph."""
    frames = facts.names.matching(trace, _RECORDING)
    recording: arrays.Bools = facts.host.innermost(trace, rows, (Category.PYTHON_FUNCTION,), frames) >= 0
    return recording | arrays.is_among(
        facts.host.outermost(trace, rows, (Category.CPU_OP,)), capturing_operators(trace)[0]
    )
