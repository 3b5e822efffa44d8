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

import re
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from augment.derived.call_stacks import innermost, outermost
from augment.derived.launches import NO_ROW, launches
from augment.findings import Findings, Skipped, column
from augment.trace import Category, Int64s, Trace

NAME = "cupti_counters"
NEEDS = ((Category.CUDA_PROFILER_RANGE,),)
_LAUNCH = re.compile(r"Launch(?:Cooperative)?Kernel")
_FLOP = re.compile(r"smsp__sass_thread_inst_executed_op_[fhd](add|mul|fma)_pred_on\.sum")

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
    ranges = trace.events.slices_of(Category.CUDA_PROFILER_RANGE)
    counters = [_numbers(args) for args in trace.args_of(ranges)]
    if not any(counters):
        return Skipped("the cuda_profiler_range events have no counters")
    calls = _launches(trace)
    partial = None
    operators: list[Operators] = [(None, None)] * len(ranges)
    if len(calls) == len(ranges):
        operators = _operators(trace, calls)
    else:
        partial = f"{len(ranges)} ranges and {len(calls)} launches of kernels: nothing tells which belongs to which"
    return Findings([Row(trace.rank, *one) for one in _summed(operators, counters)], partial=partial)


def _launches(trace: Trace) -> Int64s:
    """The calls that launch one kernel each, a runtime call and the driver call within it once, in order of time."""
    rows = np.sort(launches(trace).row)
    is_launch = [code for code in np.unique(trace.events.name[rows]).tolist() if _LAUNCH.search(trace.strings[code])]
    return rows[np.isin(trace.events.name[rows], is_launch)]


def _operators(trace: Trace, calls: Int64s) -> list[Operators]:
    named = []
    for around in (outermost, innermost):
        rows = around(trace, calls, [Category.CPU_OP])
        names = iter(trace.names_of(rows[rows != NO_ROW]))
        named.append([None if row == NO_ROW else next(names) for row in rows.tolist()])
    return list(zip(*named, strict=True))


def _numbers(args: dict[str, Any]) -> dict[str, float]:
    """The counters among ``args``, and what follows from them."""
    found = {name: value for name, value in args.items() if isinstance(value, (int, float)) and value == value}
    weights = {name: match for name in found if (match := _FLOP.fullmatch(name))}
    if weights:
        found["flop"] = sum(found[name] * (2 if match[1] == "fma" else 1) for name, match in weights.items())
    return found


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
