"""The hardware counters: the launch of each profiler range, and the operators around that launch."""

from __future__ import annotations

import re

import numpy as np
from msgspec import Struct

from augment.arrays import EventRows, distinct
from augment.core import Category, Trace, derived
from augment.facts.gpu.gpu_work import launches
from augment.facts.host.call_stacks import call_stacks, is_of, outermost

_LAUNCH = re.compile(r"Launch(?:Cooperative)?Kernel")
_FLOP = re.compile(r"smsp__sass_thread_inst_executed_op_[fhd](add|mul|fma)_pred_on\.sum")


class CounterRanges(Struct, frozen=True):
    """The ``cuda_profiler_range`` slices, ascending: ``row`` int64, into the event table.

    ``counters`` are the numeric args of each range, plus ``flop`` where it can be computed from them. ``operators`` are
    the names of the operators around each range's launch, outermost first. If ranges cannot be assigned to launches,
    ``operators`` is None and ``problem`` gives the reason.
    """

    row: EventRows
    counters: list[dict[str, float]]
    operators: list[tuple[str, ...]] | None
    problem: str | None


@derived(until="breakdowns")
def counter_ranges(trace: Trace) -> CounterRanges:
    """The trace's ranges. The n-th range belongs to the n-th call that launches a kernel, if the numbers are equal."""
    ranges = trace.events.slices_of(Category.CUDA_PROFILER_RANGE)
    counters = []
    for args in trace.args_of(ranges):
        # the counters among args, and the figures computed from them
        kept = {name: value for name, value in args.items() if isinstance(value, (int, float)) and value == value}
        weights = {name: match for name in kept if (match := _FLOP.fullmatch(name))}
        if weights:
            kept["flop"] = sum(kept[name] * (2 if match[1] == "fma" else 1) for name, match in weights.items())
        counters.append(kept)
    # calls that launch one kernel each, in order of time; a runtime call and the driver call within it are one
    rows = np.sort(launches(trace).row)
    is_launch = [code for code in distinct(trace.events.name[rows]).tolist() if _LAUNCH.search(trace.strings[code])]
    calls = rows[np.isin(trace.events.name[rows], is_launch)]
    if len(calls) != len(ranges):
        problem = f"{len(ranges)} ranges and {len(calls)} launches of kernels: nothing tells which belongs to which"
        return CounterRanges(ranges, counters, None, problem)
    stacks, events = call_stacks(trace), trace.events
    is_operator = is_of(trace, [Category.CPU_OP])
    operators = []
    for call, outer in zip(calls.tolist(), outermost(trace, calls, [Category.CPU_OP]).tolist(), strict=True):
        first, last = (int(stacks.place_of[row]) for row in (outer, call)) if outer >= 0 else (0, 0)
        row = stacks.row[first:last][is_operator[first:last]]  # the slices between the outermost and the call
        around = events.ts[row] + events.dur[row] >= events.ts[call] + events.dur[call]
        operators.append(tuple(trace.names_of(row[around])))
    return CounterRanges(ranges, counters, operators, None)
