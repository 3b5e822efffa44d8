"""What did the hardware counters measure, and for which operators?

With CUPTI's range profiler (``CUPTI_PROFILER_METRICS`` in Kineto's config) a trace has a ``cuda_profiler_range`` for
each kernel, with the counters as args. There is a row for each operator and counter, over the kernels that the operator
launched. ``operator`` is the innermost operator around the launch, ``outer_operator`` the outermost.

A range does not name its launch. With this profiler kernels run one after the other, so the n-th range belongs to the
n-th call that launches a kernel. If the numbers of ranges and of such calls differ, ranges cannot be assigned. Then all
ranges are summed without an operator, and the status is ``partial``.

``statistic`` follows from the counter's name: counters ending in ``.sum`` are summed, for ``.max`` and ``.min`` the
extreme is taken, and for any other (averages, percentages) the mean over the ranges.

``flop`` is computed: the sum of the counters ``smsp__sass_thread_inst_executed_op_…_pred_on.sum`` of ``fadd``,
``fmul``, ``hadd``, ``hmul``, ``dadd`` and ``dmul``, plus twice those of ``ffma``, ``hfma`` and ``dfma`` (HTA's
``CUDA_SASS_INSTRUCTION_COUNTER_FLOPS``). It includes recorded counters only, and never the work of tensor cores.

**What to do**: compare counted operations with those that the shapes imply, as `roofline` does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated

from augment.core import Category, Findings, OfRank, Skipped, Trace, column
from augment.facts.gpu.hardware_samples import counter_ranges

NAME = "cupti_counters"
NEEDS = ((Category.CUDA_PROFILER_RANGE,),)

Operators = tuple[str | None, str | None]  #: the outermost and the innermost


class Row(OfRank, frozen=True):
    """One counter of one operator's kernels."""

    outer_operator: Annotated[str | None, column("The outermost operator around the launches.")]
    operator: Annotated[str | None, column("The innermost operator around the launches.")]
    counter: Annotated[str, column("The name of the counter.")]
    statistic: Annotated[str, column("How the values of the kernels are combined: sum, mean, min or max.")]
    value: Annotated[float, column("The value.")]
    kernel_count: Annotated[int, column("Number of kernels that have the counter.", "count")]


def analyze(trace: Trace) -> Findings | Skipped:
    """Sum the counters of each operator's kernels."""
    ranges = counter_ranges(trace)
    if not any(ranges.counters):
        return Skipped("the cuda_profiler_range events have no counters")
    operators: list[Operators] = [(None, None)] * len(ranges.row)
    if ranges.operators is not None:
        operators = [(operator[0], operator[-1]) if operator else (None, None) for operator in ranges.operators]
    values: dict[Operators, dict[str, list[float]]] = {}  # in order of first appearance
    for who, counts in zip(operators, ranges.counters, strict=True):
        for name, value in counts.items():
            values.setdefault(who, {}).setdefault(name, []).append(value)
    rows = []
    for who, own_values in values.items():
        for name, several in own_values.items():
            last = name.rpartition(".")[2]
            statistic = "sum" if name == "flop" else last if last in ("sum", "min", "max") else "mean"
            rows.append(Row(trace.rank, *who, name, statistic, _OF[statistic](several), len(several)))
    return Findings(rows, partial=ranges.problem)


_OF: dict[str, Callable[[list[float]], float]] = {
    "sum": sum,
    "min": min,
    "max": max,
    "mean": lambda values: math.fsum(values) / len(values),
}
