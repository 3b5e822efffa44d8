"""What can be said of a recording without work of a device: what the host does, and why there is nothing else."""

from __future__ import annotations

import numpy as np

from augment.core.text import Words, counted, listed, percent, short, time
from augment.core.trace import Trace
from augment.diagnosis.devices import known_slices
from augment.diagnosis.recording_completeness import kernel_launches
from augment.facts.host.call_stacks import operator_times
from augment.facts.steps.steps import steps

MOST_NAMED = 3  #: operators
NAMED_RATIO = 0.05  #: of the time in operators; those that take less are not named
_QUERY = "augment query answers questions about this one in SQL, and augment open shows it"

_XLA = ("/device:", "/host:")  #: so XLA's profiler names processes
_TENSORFLOW = (" Compute", " Tensors")  #: so TensorFlow's timeline ends the names of its processes
_AUTOGRAD = {"CPU functions", "CUDA functions"}  #: processes of PyTorch's first profiler, whose events have no category
_SCHEDULE = (
    "Let the profiler's schedule reach an active step (call its step() in the loop), and leave its with block before "
    "the file is written."
)


def unjudged(trace: Trace) -> tuple[str, str]:
    """Why no rule can judge a trace without events of PyTorch's profiler, and what to do."""
    if not len(trace.events):
        return "The file has no events.", _SCHEDULE
    names = sorted({track.process_name for track in trace.tracks if track.process_name})
    whose = f" (its processes: {', '.join(short(name) for name in names[:3])})" if names else ""
    if any(name.startswith(_XLA) and not name.endswith(_TENSORFLOW) for name in names):
        return (
            f"Not judged: this is a recording of JAX or XLA, not of PyTorch, and no rule knows its events{whose}.",
            f"XProf judges the .xplane.pb file that belongs to it; {_QUERY}.",
        )
    if any(track.pid in _AUTOGRAD for track in trace.tracks):
        return (
            "Not judged: this is an export of PyTorch's former profiler; it does not say which call launched what.",
            f"A recording by torch.profiler can be judged; {_QUERY}.",
        )
    return (
        f"Not judged: these are no events of PyTorch's profiler, and no rule knows them{whose}.",
        f"A recording by torch.profiler can be judged; {_QUERY}.",
    )


def timeless(trace: Trace) -> tuple[str, str]:
    """Why a recording cannot be judged whose steps or events take no time, and what to do."""
    step_count = len(steps(trace))
    whole = counted(step_count, "step") if step_count else counted(len(known_slices(trace)), "event")
    return (
        f"Not judged: no time passes in the {whole} that PyTorch's profiler recorded.",
        f"{_SCHEDULE} augment doctor says what of this file could not be used.",
    )


def host_sentence(trace: Trace, words: Words) -> str:
    """Why there is no work of a device, and where the time of the host goes."""
    calls = len(kernel_launches(trace))
    if not calls and not len(operator_times(trace).row):
        return (
            f"Neither {words.gpu} work nor operators were recorded, so that nothing can be judged but the annotations: "
            "record with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]."
        )
    why = (
        f"{counted(calls, 'kernel')} were launched, but none was recorded (record with ProfilerActivity.CUDA, without "
        "another profiler beside it, such as nsys or dcgm): only the host can be judged"
        if calls
        else f"There is no {words.gpu} work in this recording: only the host can be judged"
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
    return f". It spends {listed(shares)} of {time(total)} in operators" if shares else ""
