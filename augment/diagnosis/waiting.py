"""The calls of the steps in which the host waits for a device."""

from __future__ import annotations

import numpy as np

from augment.arrays import NO_INDEX, EventRows, distinct, is_among
from augment.core import Trace, derived
from augment.diagnosis.judging import measure, rows_in_steps
from augment.facts.critical.critical_graph import critical_graph
from augment.facts.gpu.gpu_work import gpu_work
from augment.facts.waits.dependencies import DependencyKind
from augment.facts.waits.sync_dependencies import freeing_calls


@derived(until="diagnosis")
def waiting_calls(trace: Trace) -> EventRows:
    """The rows of the calls that waited, ascending, without those that waited for work of before the recording alone: a
    profiling script that synchronizes before it measures; and without those that, without steps, waited for its last
    work, behind which nothing comes. Calls that give memory back have a rule of their own."""
    graph = critical_graph(trace)
    calls = distinct(graph.to_row[graph.kind == DependencyKind.SYNC].astype(np.int64))
    calls = calls[calls >= 0]
    calls = calls[~is_among(calls, freeing_calls(trace))]
    launch = gpu_work(trace).launch
    launch = launch[launch != NO_INDEX]
    if len(launch):  # what returned before the first recorded launch waited for earlier work alone
        calls = calls[trace.events.ts[calls] + trace.events.dur[calls] > trace.events.ts[launch].min()]
    if measure(trace).unit == "recording":
        calls = calls[trace.events.ts[calls] + trace.events.dur[calls] < measure(trace).windows.end.max(initial=0)]
    return rows_in_steps(trace, calls)
