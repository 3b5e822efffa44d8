"""Which operators launch which kernels, and how long does it take until they run?

A launch belongs to the innermost operator that encloses all of it on its thread, the one that began last. There is a
row for each operator and each sequence of work that it launches itself, without what the operators within it launch::

    op_to_launch_ns     = start of its first launch - start of the operator
    launch_to_kernel_ns = start of the first work   - start of its launch

The first is the host's overhead before anything is launched. The second is the launch itself and the queue; it is 0
where the work began before its launch, by the clocks. ``kernel_sequence`` is in the order of the launches (if several
begin at one moment, in the order of their correlations), the work of a CUDA graph in the order in which it began. Work
launched outside of any operator is counted in the diagnostics. With PyTorch for Ascend, which calls the runtime on a
thread of its own, the operators are tasks of that thread, ``Dequeue@NAME``: delays are from the begin of the task.

**What to do**: operators that launch late spend time on the host first: shape checks, Python, dispatch. Compile them,
or capture them in a CUDA graph.

Options:
    operator_prefix: prefix of the names of operators; operators with other names are ignored.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import numpy as np

from augment import arrays, facts
from augment.core import GPU_WORK, LAUNCHES, Category, Diagnostic, Findings, OfRank, Skipped, Trace, column

NAME = "operator_launch_delay"
NEEDS = (GPU_WORK, LAUNCHES, (Category.CPU_OP,))


class Row(OfRank, frozen=True):
    """One operator with one sequence of launched work."""

    operator: Annotated[str, column("The name of the operator.")]
    kernel_sequence: Annotated[
        list[str], column("The names of the kernels, copies and memsets, in the order of their launches.")
    ]
    count: Annotated[int, column("Number of times it launched this sequence.", "count")]
    mean_op_to_launch_ns: Annotated[float, column("Mean time from its start to its first launch.", "ns")]
    p50_op_to_launch_ns: Annotated[float, column("Median of these times.", "ns")]
    max_op_to_launch_ns: Annotated[int, column("Greatest of these times.", "ns")]
    mean_launch_to_kernel_ns: Annotated[
        float, column("Mean time from the start of that launch to the start of its work.", "ns")
    ]
    p50_launch_to_kernel_ns: Annotated[float, column("Median of these times.", "ns")]
    max_launch_to_kernel_ns: Annotated[int, column("Greatest of these times.", "ns")]


def analyze(trace: Trace, *, operator_prefix: str = "") -> Findings | Skipped:
    """Group the launches by operator, and the operators by their sequences of work."""
    work, events, stacks = facts.gpu.work(trace), trace.events, facts.host.stacks(trace)
    place = facts.gpu.launched(trace).place
    if not len(place):
        return Skipped("no GPU work whose correlation names a launch")
    named = facts.names.starting(trace, operator_prefix) if operator_prefix else None
    operator = facts.host.innermost(trace, work.launch[place], (Category.CPU_OP,), named)
    owned = operator != arrays.NO_INDEX
    remarks = list(facts.gpu.launch_diagnostics(trace))
    if not owned.all():
        outside = len(owned) - int(np.count_nonzero(owned))
        remarks.append(Diagnostic("launch_outside_operators", outside, "pieces of GPU work launched outside operators"))
        place, operator = place[owned], operator[owned]
    order = np.argsort(stacks.place_of[operator], kind="stable")
    place, operator = place[order], operator[order]
    start = arrays.run_starts(operator)
    name = events.name[work.row[place]]
    hashes = arrays.sequence_hashes(name, start, np.append(start[1:], len(place)))
    keys, code = arrays.combinations(events.name[operator[start]], hashes)
    launch, first = events.ts[work.launch[place[start]]], work.ts[place[start]]
    waits = (launch - events.ts[operator[start]], np.maximum(first - launch, 0))
    rows = list(_rows(trace, keys[0], code, start, name, waits))
    rows.sort(key=lambda row: (-row.count, row.operator, row.kernel_sequence))
    return Findings(rows, (), remarks)


def _rows(
    trace: Trace,
    operator: arrays.Int64s,
    code: arrays.Int64s,
    start: arrays.Places,
    name: arrays.Int32s,
    waits: tuple[arrays.Int64s, arrays.Int64s],
) -> Iterator[Row]:
    """The row of each group.

    Args:
        trace: the trace; its strings are the names.
        operator: the name of each group.
        code: the group of each run.
        start: where each run starts in ``name``.
        name: the names of the launched work.
        waits: the two delays of each run.
    """
    order = arrays.grouped(code, len(operator))
    bounds = arrays.group_bounds(code, len(operator))
    count = np.diff(bounds)
    example = order[bounds[:-1]]
    stop = np.append(start[1:], len(name))
    figures = []
    for wait in waits:
        total, greatest = (of.reduceat(wait[order], bounds[:-1]) for of in (np.add, np.maximum))
        figures += [total / count, arrays.grouped_medians(wait, code, bounds), greatest]
    columns = (operator, start[example], stop[example], count, *figures)
    for text, low, high, *rest in zip(*(values.tolist() for values in columns), strict=True):
        yield Row(trace.rank, trace.strings[text], [trace.strings[i] for i in name[low:high].tolist()], *rest)
