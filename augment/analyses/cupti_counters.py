"""How much work did the hardware count, and for which operators?

With CUPTI's range profiler (``CUPTI_PROFILER_METRICS`` in Kineto's config) a trace has a ``cuda_profiler_range`` for
each kernel, whose args are the counters. There is a row for each operator and counter: the kernels that the operator
launched, ``operator`` being the innermost around the launch and ``outer_operator`` the outermost.

A range does not say which launch it is of: kernels run one after the other then, and the n-th range is of the n-th call
that launches a kernel. Where there are not as many ranges as such calls nothing tells which belongs to which. All
ranges are summed without an operator then, and the status is ``partial``.

``statistic`` follows from the counter's name: ``.sum`` are summed, of ``.max`` and ``.min`` the extreme is taken, of
any other (averages, percentages) the mean over the ranges.

``flop`` is computed: the sum of the counters ``smsp__sass_thread_inst_executed_op_…_pred_on.sum`` of ``fadd``,
``fmul``, ``hadd``, ``hmul``, ``dadd`` and ``dmul``, and twice those of ``ffma``, ``hfma`` and ``dfma`` (HTA's
``CUDA_SASS_INSTRUCTION_COUNTER_FLOPS``). Only what was recorded counts, and the work of tensor cores is not among it.

How HTA's ``get_cupti_counter_data_with_operators`` differs: it knows ``cudaLaunchKernel`` alone, and gives nothing at
all, without a word, where the numbers differ.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from augment.derived.gpu.counter_ranges import counter_ranges
from augment.findings import Findings, Skipped, column
from augment.trace import Category, Trace

NAME = "cupti_counters"
NEEDS = ((Category.CUDA_PROFILER_RANGE,),)

Operators = tuple[str | None, str | None]  #: the outermost and the innermost


@dataclass(frozen=True, slots=True)
class Row:
    """One counter of one operator's kernels."""

    rank: int | None = column("The rank of the process, if known.")
    outer_operator: str | None = column("The outermost operator around the launches.")
    operator: str | None = column("The innermost operator around the launches.")
    counter: str = column("The name of the counter.")
    statistic: str = column("What the value is of the kernels' values: sum, mean, min or max.")
    value: float = column("The value.")
    kernel_count: int = column("How many kernels have the counter.", "count")


ROW = Row


def analyze(trace: Trace) -> Findings | Skipped:
    """Sum the counters of each operator's kernels."""
    ranges = counter_ranges(trace)
    if not any(ranges.counters):
        return Skipped("the cuda_profiler_range events have no counters")
    operators: list[Operators] = [(None, None)] * len(ranges.row)
    if ranges.operators is not None:
        operators = [(one[0], one[-1]) if one else (None, None) for one in ranges.operators]
    rows = [Row(trace.rank, *one) for one in _summed(operators, ranges.counters)]
    return Findings(rows, partial=ranges.problem)


def _summed(operators: list[Operators], counters: list[dict[str, float]]) -> Iterator[tuple[Any, ...]]:
    """The row of each operator and counter, but for the rank, in the order in which they come."""
    values: dict[Operators, dict[str, list[float]]] = {}
    for who, own in zip(operators, counters, strict=True):
        for name, value in own.items():
            values.setdefault(who, {}).setdefault(name, []).append(value)
    for who, own_values in values.items():
        for name, several in own_values.items():
            statistic = _statistic(name)
            yield *who, name, statistic, _OF[statistic](several), len(several)


def _statistic(counter: str) -> str:
    last = counter.rpartition(".")[2]
    return "sum" if counter == "flop" else last if last in ("sum", "min", "max") else "mean"


_OF: dict[str, Callable[[list[float]], float]] = {"sum": sum, "min": min, "max": max, "mean": statistics.fmean}
