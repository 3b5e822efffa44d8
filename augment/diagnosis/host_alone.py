"""What can be said of a recording without work of a device: what the host does, and why there is nothing else."""

from __future__ import annotations

import numpy as np

from augment.derived.host.operator_times import operator_times
from augment.diagnosis.whole import kernel_launches
from augment.diagnosis.wording import count, listed, percent, short, time
from augment.trace import Trace

MOST_NAMED = 3  #: operators
NAMED_RATIO = 0.05  #: of the time in operators; those that take less are not named
_NEXT = "augment open shows the timeline, and augment query answers questions in SQL"


def unjudged(trace: Trace) -> str:
    """Why no rule can judge a trace without events of PyTorch's profiler, and what to do."""
    if not len(trace.events):
        return (
            "The file has no events: let the profiler's schedule reach an active step (call its step() in the loop), "
            "and leave its with block before the file is written."
        )
    names = sorted({track.process_name for track in trace.tracks if track.process_name})
    whose = f" (its processes: {', '.join(short(name) for name in names[:3])})" if names else ""
    if any("TPU" in name or "/device:" in name for name in names):
        return f"This is a recording of JAX or XLA{whose}, not of PyTorch: no rule knows its events; {_NEXT}."
    return f"These are no events of PyTorch's profiler{whose}, so no rule knows them; {_NEXT}."


def host_sentence(trace: Trace) -> str:
    """Why there is no GPU work, and where the time of the host goes."""
    calls = len(kernel_launches(trace))
    why = (
        f"{count(calls, 'kernel')} were launched, but none was recorded (record with ProfilerActivity.CUDA, without "
        "another profiler beside it, such as nsys or dcgm): only the host can be judged"
        if calls
        else "There is no GPU work in this recording: only the host can be judged"
    )
    return f"{why}{_operators(trace)}."


def _operators(trace: Trace) -> str:
    """The operators that take most of the host's time: ``; of 412 ms in operators, it spends 78 % in aten::mm``."""
    operators = operator_times(trace)
    ns = np.bincount(trace.events.name[operators.row], operators.self_ns, len(trace.strings))
    total = float(ns.sum())
    shares = [
        f"{percent(float(ns[name]) / total)} in {short(trace.strings[name])}"
        for name in np.argsort(-ns, kind="stable")[:MOST_NAMED].tolist()
        if ns[name] > NAMED_RATIO * total
    ]
    return f"; of {time(total)} in operators, it spends {listed(shares)}" if shares else ""
