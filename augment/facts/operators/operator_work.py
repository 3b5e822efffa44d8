"""The work of operators on each device, and the GPU work that executes it.

The operators are those that count (:func:`counted`). For kernels of CUDA graphs they are the operators of the
graph's capture; for compiled kernels without shapes of their own, what the compiler's log says that they are made of.
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
from augment.facts.operators.compiled_kernels import compiled_work
from augment.facts.operators.counted_operators import counted
from augment.facts.operators.operator_calls import Call, Work
from augment.facts.operators.served_attention import work_of
from augment.facts.source.event_args import arg_columns
from augment.facts.steps import batches, recorded
from augment.facts.steps.engine_steps import Batch


class OperatorWork(Struct, frozen=True):
    """The operators that count and launched computation: equal-length columns, ascending ``row``."""

    row: EventRows  #: the operator, or the launch of the graph that contains it, or of the compiled kernel
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
    work, stacks = gpu_work(trace), call_stacks(trace)
    of_graphs, compiled = graph_work(trace), compiled_work(trace)
    place, kind, calls, works = counted(trace)
    owner = np.full(len(work), -1, np.int32)
    if len(place):
        around = enclosing(trace, place)
        computing = np.flatnonzero((work.type == KernelType.COMPUTATION) & (work.launch >= 0))
        launch = stacks.place_of[work.launch[computing]]
        owner[computing] = np.where(launch >= 0, around[np.maximum(launch, 0)], -1)
    calls, works, row = (*calls,), (*works,), stacks.row[place]
    for more in (of_graphs, compiled):
        lacking = np.array([*(each.flops is None and each.bytes is None for each in works), True], np.bool_)
        chosen = (more.owner >= 0) & ((more is of_graphs) | lacking[np.append(kind, -1)[owner]])
        owner = np.where(chosen, more.owner + np.int32(len(row)), owner)
        row = np.concatenate((row, more.row))
        kind = np.concatenate((kind, more.kind + np.int32(len(calls))))
        calls, works = (*calls, *more.calls), (*works, *more.works)
    used = np.zeros(len(row) + 1, np.bool_)
    used[owner] = True  # -1 reads the last entry
    used = used[:-1]
    number = np.append(np.cumsum(used) - 1, -1).astype(np.int32)
    row = row[used]
    order = np.argsort(row, kind="stable")
    rank = np.empty(len(order) + 1, np.int32)
    rank[order] = np.arange(len(order), dtype=np.int32)
    rank[-1] = -1
    recorded = len(arg_columns(trace).ints("Input Dims").rows) > 0 or len(of_graphs.row) + len(compiled.row) > 0
    row, kind = row[order], kind[used][order]
    kind, calls, works = _with_batches(trace, row, kind, calls, works)
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
    """As :func:`kernel_families`, but operators of captures decide, too, and products that compiled kernels are made
    of."""
    graphs, compiled = graph_work(trace), compiled_work(trace)
    if not len(graphs.row) and not len(compiled.row):
        return kernel_families(trace)
    row = work_operators(trace)
    strings = list(trace.strings)
    operator = np.where(row >= 0, trace.events.name[np.maximum(row, 0)], -1)
    for more, names in ((compiled, compiled.products), (graphs, [call.operator for call in graphs.calls])):
        of_call = np.array([len(strings) + number if name else -1 for number, name in enumerate(names)], np.int64)
        strings += names
        named = np.append(np.append(of_call, -1)[more.kind], -1)[more.owner]
        operator = np.where(named >= 0, named, operator)
    return families_of(trace, operator, strings)
