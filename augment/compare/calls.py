"""One side of a comparison: its calls (operators and annotations) as a tree, and the GPU work that they launch."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from augment.arrays.types import NO_INDEX, Bools, Bytes, Int32s, Int64s, Places
from augment.compare.names import Names, Paths
from augment.core.trace import Category, Trace
from augment.facts.gpu.gpu_work import gpu_work
from augment.facts.host.call_stacks import CallStacks, call_stacks, directly_around, enclosing
from augment.facts.operators.captured_graphs import graph_work
from augment.facts.operators.operator_work import work_families
from augment.facts.steps.step_windows import StepWindows, step_of_work
from augment.facts.steps.steps import steps

CALLS = (Category.CPU_OP, Category.USER_ANNOTATION)


class Calls(Struct, frozen=True):
    """Operators and annotations, and Python functions on request: equal-length columns, each thread in preorder.

    ``row`` int64, into the event table. ``parent`` int32, an index into these columns; :data:`NO_INDEX` for an
    outermost call. ``depth`` int32; ``thread`` int32, the track. ``step`` int32, the index among the chosen steps of
    the step in which the call began, or :data:`NO_INDEX`. ``name`` and ``path`` int32, numbers that both sides share.
    Times are int64: ``cpu_ns``, and ``cpu_self_ns`` without the calls in it; ``gpu_self_ns``, the durations of GPU work
    that the call launched itself, and ``gpu_ns``, with all calls in it. ``work_count`` int64, the number of pieces in
    ``gpu_ns``.
    """

    row: Int64s
    parent: Int32s
    depth: Int32s
    thread: Int32s
    step: Int32s
    name: Int32s
    path: Int32s
    cpu_ns: Int64s
    cpu_self_ns: Int64s
    gpu_ns: Int64s
    gpu_self_ns: Int64s
    work_count: Int64s

    def __len__(self) -> int:
        return len(self.row)


class CallWork(Struct, frozen=True):
    """The GPU work in the order of ``gpu_work``: equal-length columns.

    ``row`` int64. ``call`` int32, the innermost call that launched it, or :data:`NO_INDEX`. ``step`` int32, the index
    among the chosen steps of the step in which it was launched, or :data:`NO_INDEX`. ``path`` int32: that of the call;
    for a kernel of a CUDA graph with its capture (``in_capture``), the captured operator within that call. ``name``
    int32, ``family`` int32: the number of the name of its kind of work, ``type`` uint8, ``ns`` int64: its duration.
    """

    row: Int64s
    call: Int32s
    path: Int32s
    in_capture: Bools
    step: Int32s
    name: Int32s
    family: Int32s
    type: Bytes
    ns: Int64s

    def __len__(self) -> int:
        return len(self.row)


class Side(Struct, frozen=True):
    """Control or test: a trace, the chosen steps, the calls, and the GPU work."""

    trace: Trace
    steps: StepWindows
    calls: Calls
    work: CallWork

    def __repr__(self) -> str:
        return f"<Side {self.trace.summary}; {len(self.steps)} steps>"


def side_of(trace: Trace, chosen: StepWindows, names: Names, paths: Paths, *, functions: bool = False) -> Side:
    """Collect the calls and GPU work of one side.

    Args:
        trace: the recording.
        chosen: its steps to compare.
        names: the names of both sides; extended.
        paths: the call paths of both sides; extended.
        functions: whether Python functions count as calls.
    """
    stacks = call_stacks(trace)
    kept = _kept(trace, stacks, functions)
    places = np.flatnonzero(kept)
    parent = directly_around(trace, places)
    row = stacks.row[places]
    depth = _depths(parent)
    name = names.of(trace.events.name[row], trace.strings)
    path = _paths(parent, depth, name, paths)
    work = _work(trace, places, chosen, paths, path)
    dur = np.maximum(trace.events.dur[row], 0)
    gpu_self, launched = np.zeros(len(row), np.int64), np.zeros(len(row), np.int64)
    np.add.at(gpu_self, work.call[work.call >= 0], work.ns[work.call >= 0])
    np.add.at(launched, work.call[work.call >= 0], 1)
    inside = np.zeros(len(row), np.int64)
    np.add.at(inside, parent[parent >= 0], dur[parent >= 0])
    calls = Calls(
        row=row,
        parent=parent,
        depth=depth,
        thread=trace.events.track[row],
        step=chosen.of_host(trace.events.ts[row]).astype(np.int32),
        name=name,
        path=path,
        cpu_ns=dur,
        cpu_self_ns=dur - inside,
        gpu_ns=_with_descendants(parent, depth, gpu_self),
        gpu_self_ns=gpu_self,
        work_count=_with_descendants(parent, depth, launched),
    )
    return Side(trace, chosen, calls, work)


def levels(depth: Int32s) -> list[npt.NDArray[np.intp]]:
    """The calls of each depth, outermost first, each ascending."""
    order = np.argsort(depth, kind="stable")
    return np.split(order, np.searchsorted(depth[order], np.arange(1, int(depth.max(initial=0)) + 1)))


def _kept(trace: Trace, stacks: CallStacks, functions: bool) -> Bools:
    """Whether each slice of the call stacks is a call; steps are not."""
    wanted = np.zeros(256, np.bool_)
    wanted[[*CALLS, *([Category.PYTHON_FUNCTION] if functions else [])]] = True
    kept: Bools = wanted[trace.events.category[stacks.row]]
    kept[stacks.place_of[steps(trace).row]] = False
    return kept


def _work(trace: Trace, places: Places, chosen: StepWindows, paths: Paths, path_of_call: Int32s) -> CallWork:
    work, names, graphs = gpu_work(trace), paths.names, graph_work(trace)
    launched = work.launch != NO_INDEX
    call = np.full(len(work), NO_INDEX, np.int32)
    families = work_families(trace)
    call[launched] = enclosing(trace, places)[call_stacks(trace).place_of[work.launch[launched]]]
    path = np.append(path_of_call, np.int32(NO_INDEX))[call]  # NO_INDEX reads the last entry
    captured = graphs.owner >= 0
    if captured.any():
        operator = np.array([names.number(called.operator) for called in graphs.calls], np.int32)
        path[captured] = paths.of(path[captured], operator[graphs.kind[graphs.owner[captured]]])
    return CallWork(
        row=work.row,
        call=call,
        path=path,
        in_capture=captured,
        step=step_of_work(trace, chosen).astype(np.int32),
        name=names.of(trace.events.name[work.row], trace.strings),
        family=names.of(families.family, families.names),
        type=work.type,
        ns=np.maximum(work.end - work.ts, 0),
    )


def _depths(parent: Int32s) -> Int32s:
    depth = np.zeros(len(parent), np.int32)
    above: Int32s = parent.copy()
    climbing = np.flatnonzero(above >= 0)
    while len(climbing):
        depth[climbing] += 1
        above[climbing] = parent[above[climbing]]
        climbing = climbing[above[climbing] >= 0]
    return depth


def _paths(parent: Int32s, depth: Int32s, name: Int32s, paths: Paths) -> Int32s:
    path = np.full(len(parent), NO_INDEX, np.int32)
    for level in levels(depth):
        above = np.where(parent[level] >= 0, path[parent[level]], np.int32(NO_INDEX))
        path[level] = paths.of(above, name[level])
    return path


def _with_descendants(parent: Int32s, depth: Int32s, self_ns: Int64s) -> Int64s:
    """The sum of ``self_ns`` over each call and all calls in it."""
    total: Int64s = self_ns.copy()
    for level in levels(depth)[:0:-1]:
        np.add.at(total, parent[level], total[level])
    return total
