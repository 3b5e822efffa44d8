"""Which operators take the time, at which input shapes?

There is a row for every operator and the shapes of its inputs (``Input Dims``, recorded with ``record_shapes=True``):
the number of calls, the time on the host, and the durations of the GPU work that it launched.

- ``cpu_ns`` and ``gpu_ns`` include all that the operator calls on its thread. If an operator calls itself, both calls
  count.
- ``self_cpu_ns`` excludes the operators directly within it, ``self_gpu_ns`` and ``kernel_count`` what these launch.

Work belongs to the innermost operator around its launch: the one that began last among those that enclose the whole
launch. So ``self_gpu_ns`` of all rows adds up to the sum of the durations of all GPU work. The row without an operator
has the work that was launched outside operators or whose launch is unknown. Slices that cross are counted in the
diagnostics; a slice is never inside one that ends earlier.

PyTorch for Ascend calls the runtime on a thread of its own, which takes tasks from a queue: there, work belongs to the
task, ``Dequeue@NAME``, not to the operator that put it on the queue, as all figures are of one thread. Launch outliers
and the diagnosis name that operator.

These are the figures of ``torch.profiler``'s ``key_averages(group_by_input_shape=True)``, with one difference: there,
runtime calls are operators, too, and so not part of ``self_cpu_ns``.

**What to do**: operators with much time of their own on the host, and little on the device, are overhead: compile
them or call them less.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np

from augment import facts
from augment.arrays import combinations, sums
from augment.core import Category, Findings, OfRank, Trace, column

NAME = "operator_breakdown"
NEEDS = ((Category.CPU_OP,),)
SHAPES = "Input Dims"


class Row(OfRank, frozen=True):
    """One operator at one shape of its inputs."""

    operator: Annotated[
        str | None, column("The name of the operator; none for the GPU work that belongs to no operator.")
    ]
    input_shapes: Annotated[str | None, column("The shapes of its inputs; none if not recorded.")]
    count: Annotated[int, column("Number of calls.", "count")]
    cpu_ns: Annotated[int, column("Sum of its durations on the host.", "ns")]
    self_cpu_ns: Annotated[int, column("cpu_ns without the operators in it.", "ns")]
    gpu_ns: Annotated[
        int | None, column("Sum of the durations of the work launched within it; none without GPU work.", "ns")
    ]
    self_gpu_ns: Annotated[
        int | None, column("gpu_ns without work launched by operators in it; none without GPU work.", "ns")
    ]
    kernel_count: Annotated[
        int | None, column("Number of kernels, copies and memsets that it launched itself.", "count")
    ]


def analyze(trace: Trace) -> Findings:
    """Add up the operators by name and shape."""
    events, operators = trace.events, facts.host.operator_calls(trace)
    place, row = operators.place, operators.row
    of_row, shapes = facts.source.args(trace).texts(SHAPES)
    shape_of = np.full(len(events), -1, np.int32)
    shape_of[of_row] = shapes.codes
    keys, code = combinations(events.name[row], shape_of[row])
    del of_row, shape_of  # frees memory for what follows, as below
    count = len(keys[0])
    columns = [np.bincount(code, minlength=count), sums(code, events.dur[row], count)]
    columns.append(sums(code, operators.self_ns, count))
    del operators, row
    # the GPU time of the operators at place in the call stacks, including all operators in them
    launched, work = facts.gpu.launched(trace), facts.gpu.work(trace)
    until = np.concatenate((np.zeros(1, np.int64), np.cumsum((work.end - work.ts)[launched.listed])))
    start, stop = launched.spans(place)
    columns.append(sums(code, until[stop] - until[start], count))
    del until, start, stop
    # each piece of work that an operator launched itself
    owner = facts.host.enclosing(trace, place)[facts.host.stacks(trace).place_of[work.launch[launched.place]]]
    known = launched.place[owner >= 0]
    itself = code[owner[owner >= 0]]
    columns += [sums(itself, work.end[known] - work.ts[known], count), np.bincount(itself, minlength=count)]
    rows = []
    for name, shape, *figures in zip(*(values.tolist() for values in (*keys, *columns)), strict=True):
        text = None if shape < 0 else shapes.values[shape]
        on_gpu = figures[3:] if len(work) else (None, None, None)
        rows.append(Row(trace.rank, trace.strings[name], text, *figures[:3], *on_gpu))
    rows.sort(key=lambda row: (-(row.self_gpu_ns or 0), -row.self_cpu_ns, row.operator or "", row.input_shapes or ""))
    if (rest := len(work) - sum(row.kernel_count or 0 for row in rows)) > 0:
        ns = int((work.end - work.ts).sum()) - sum(row.self_gpu_ns or 0 for row in rows)
        rows.append(Row(trace.rank, None, None, 0, 0, 0, ns, ns, rest))
    return Findings(
        rows, (), [*facts.host.crossing_diagnostics(trace), *facts.source.args(trace).diagnostics([SHAPES])]
    )
