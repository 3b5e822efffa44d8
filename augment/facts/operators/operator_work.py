"""The work of operators on each device, and the GPU work that executes it.

The operators are those that count (:func:`counted`). For kernels of CUDA graphs they are the operators of the
graph's capture.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from augment.arrays.types import EventRows, Int32s, Int64s
from augment.core.context import derived
from augment.core.trace import Trace
from augment.facts.gpu.gpu_work import gpu_work
from augment.facts.gpu.kernel_families import KernelFamilies, families_of, kernel_families
from augment.facts.gpu.launched_work import work_operators
from augment.facts.host.call_stacks import call_stacks, enclosing
from augment.facts.names.kernel_types import KernelType
from augment.facts.operators.captured_graphs import graph_work
from augment.facts.operators.counted_operators import counted
from augment.facts.operators.operator_calls import Call, Work
from augment.facts.operators.served_attention import work_of
from augment.facts.source.event_args import arg_columns
from augment.facts.steps import batches, recorded
from augment.facts.steps.engine_steps import Batch


class OperatorWork(Struct, frozen=True):
    """The operators that count and launched computation: equal-length columns, ascending ``row``."""

    row: EventRows  #: the operator, or the launch of the graph that contains it
    kind: Int32s  #: an index of ``calls`` and ``works``
    calls: tuple[Call, ...]  #: distinct calls
    works: tuple[Work, ...]  #: the work of each of ``calls``
    owner: Int32s  #: of each piece of GPU work the index in these columns of its operator, -1 where there is none
    recorded: bool  #: whether any operator of the trace has shapes

    def __len__(self) -> int:
        return len(self.row)


@derived(until="breakdowns")
def operator_work(trace: Trace) -> OperatorWork:
    """The work of each operator. The formula is evaluated once for each distinct call."""
    work, stacks, of_graphs = gpu_work(trace), call_stacks(trace), graph_work(trace)
    place, kind, calls, works = counted(trace)
    owner = np.full(len(work), -1, np.int32)
    if len(place):
        around = enclosing(trace, place)
        computing = np.flatnonzero((work.type == KernelType.COMPUTATION) & (work.launch >= 0))
        launch = stacks.place_of[work.launch[computing]]
        owner[computing] = np.where(launch >= 0, around[np.maximum(launch, 0)], -1)
    owner = np.where(of_graphs.owner >= 0, of_graphs.owner + np.int32(len(place)), owner)
    row = np.concatenate((stacks.row[place], of_graphs.row))
    kind = np.concatenate((kind, of_graphs.kind + np.int32(len(calls))))
    used = np.zeros(len(row) + 1, np.bool_)
    used[owner] = True  # -1 reads the last entry
    used = used[:-1]
    number = np.append(np.cumsum(used) - 1, -1).astype(np.int32)
    row = row[used]
    order = np.argsort(row, kind="stable")
    rank = np.empty(len(order) + 1, np.int32)
    rank[order] = np.arange(len(order), dtype=np.int32)
    rank[-1] = -1
    recorded = len(arg_columns(trace).ints("Input Dims").rows) > 0 or len(of_graphs.row) > 0
    row, kind = row[order], kind[used][order]
    kind, calls, works = _with_batches(trace, row, kind, (*calls, *of_graphs.calls), (*works, *of_graphs.works))
    return OperatorWork(row, kind, calls, works, rank[number[owner]], recorded)


def _with_batches(
    trace: Trace, row: Int64s, kind: Int32s, calls: tuple[Call, ...], works: tuple[Work, ...]
) -> tuple[Int32s, tuple[Call, ...], tuple[Work, ...]]:
    """The kinds, calls and works where attention over an engine's cache has the work of its step's batch."""
    of_step = batches(trace)
    places = np.flatnonzero(np.array([work.attends for work in works], np.bool_)[kind]) if of_step else ()
    if not len(places):
        return kind, calls, works
    kind, known = kind.copy(), dict[tuple[int, Batch], int]()
    calls_, works_ = [*calls], [*works]
    for place, step in zip(places, recorded(trace).at(trace.events.ts[row[places]]).tolist(), strict=True):
        heads = works[kind[place]].heads
        if step < 0 or heads is None:
            continue
        key = int(kind[place]), of_step[step]
        if key not in known:
            known[key] = len(calls_)
            calls_.append(calls[key[0]])
            works_.append(work_of(heads, key[1]))
        kind[place] = known[key]
    return kind, tuple(calls_), tuple(works_)


@derived(until="breakdowns")
def work_families(trace: Trace) -> KernelFamilies:
    """As :func:`kernel_families`, but operators of captures decide, too."""
    graphs = graph_work(trace)
    if not len(graphs.row):
        return kernel_families(trace)
    row = work_operators(trace)
    strings = list(trace.strings)
    operator = np.where(row >= 0, trace.events.name[np.maximum(row, 0)], -1)
    of_call = len(strings) + np.arange(len(graphs.calls))
    strings += [call.operator for call in graphs.calls]
    operator = np.where(graphs.owner >= 0, of_call[graphs.kind[graphs.owner]], operator)
    return families_of(trace, operator, strings)
