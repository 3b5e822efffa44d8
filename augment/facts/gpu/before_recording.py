"""GPU work that was launched before the recording began and still ran or waited when the profiler started."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from augment.arrays.types import NO_INDEX, Bools
from augment.core.context import derived
from augment.core.trace import LAUNCHES, Diagnostic, Trace
from augment.facts.gpu.arrow_correlations import correlations_of
from augment.facts.gpu.gpu_work import gpu_work

TOLD = 0.99  #: least share of other work with a known launch in a recording that loses no launches


@derived(until="summary")
def before_recording(trace: Trace) -> Bools:
    """Whether each piece of ``gpu_work`` was launched before the recording; false also where this is unknown.

    Correlations ascend with the calls of a process, and a stream runs its work in the order of launches. So work was
    launched before the recording if

    - the recording has no call with its correlation, which is below the correlations of all recorded calls;
    - it begins before all work of its stream whose launch was recorded;
    - the recording has the launches of nearly all other work (:data:`TOLD`). Otherwise launches were lost, such as
      those by calls that the profiler does not know, and a missing launch is no evidence.

    For work without a correlation, and in a trace without runtime calls, the answer is unknown.
    """
    work = gpu_work(trace)
    known = work.launch != NO_INDEX
    nothing = np.zeros(len(work), np.bool_)
    recorded = correlations_of(trace, trace.events.slices_of(*LAUNCHES))
    recorded = recorded[recorded > 0]  # 0 and below mean none
    if not len(recorded) or known.all():
        return nothing
    correlation = correlations_of(trace, work.row)
    early = ~known & (correlation > 0) & (correlation < recorded.min())
    for stream in work.streams:
        is_known = known[stream.places]
        if is_known.any():
            early[stream.start + int(is_known.argmax()) : stream.stop] = False
    others = known[~early]
    return early if len(others) and others.mean() >= TOLD else nothing


def launch_unknown(trace: Trace) -> Bools:
    """Whether the time of launch of each piece of ``gpu_work`` is unknown."""
    unknown: Bools = (gpu_work(trace).launch == NO_INDEX) & ~before_recording(trace)
    return unknown


def before_recording_diagnostics(*traces: Trace, of: str = "") -> list[Diagnostic]:
    """How much GPU work of all ``traces`` was launched before the recording; ``of`` names its owner in the message."""
    return _told("before_recording", traces, before_recording, of, "were launched before the recording (in no step)")


def launch_unknown_diagnostics(trace: Trace) -> list[Diagnostic]:
    """How much GPU work has an unknown time of launch."""
    what = "have no known launch, which may have been before the recording"
    return _told("launch_unknown", [trace], launch_unknown, "", what)


def _told(code: str, traces: Sequence[Trace], which: Callable[[Trace], Bools], of: str, what: str) -> list[Diagnostic]:
    whole = count = ns = 0
    for trace in traces:
        work, chosen = gpu_work(trace), which(trace)
        ran = np.maximum(work.end - work.ts, 0)
        count += int(np.count_nonzero(chosen))
        whole, ns = whole + int(ran.sum()), ns + int(ran[chosen].sum())
    message = f"pieces of GPU work{of} ({100 * ns / max(whole, 1):.1f} % of its time) {what}"
    return [Diagnostic(code, count, message)] if count else []
