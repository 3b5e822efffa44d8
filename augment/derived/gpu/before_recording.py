"""Which GPU work was launched before the recording began: the device was still at it when the profiler started."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from augment.arrays.types import Bools
from augment.derived.gpu.arrow_correlations import correlations_of
from augment.derived.gpu.gpu_work import gpu_work
from augment.derived.gpu.launches import NO_ROW
from augment.trace import LAUNCHES, Diagnostic, Trace, derived

TOLD = 0.99  #: share of the other work whose launch a recording tells, of one that loses no launches


@derived
def before_recording(trace: Trace) -> Bools:
    """Of each place of ``gpu_work``, whether its launch was before the recording; false also where nothing can tell.

    Correlations ascend with the calls of a process, and a stream runs its work in the order of launches. So work was
    launched before the recording if

    - the recording has no call of its correlation, and that is below those of all calls that it has;
    - it begins before all work of its stream whose launch was recorded;
    - the recording tells the launches of nearly all other work (:data:`TOLD`): else launches are lost, as those by
      calls that the profiler does not know, and a launch that is missing tells nothing.

    Work without a correlation, and that of a trace without calls of the runtime, cannot be told.
    """
    work = gpu_work(trace)
    known = work.launch != NO_ROW
    nothing = np.zeros(len(work), np.bool_)
    recorded = correlations_of(trace, trace.events.slices_of(*LAUNCHES))
    recorded = recorded[recorded > 0]  # 0 and less are none
    if not len(recorded) or known.all():
        return nothing
    correlation = correlations_of(trace, work.row)
    early = ~known & (correlation > 0) & (correlation < recorded.min())
    for stream in work.streams:
        own = known[stream.places]
        if own.any():
            early[stream.start + int(own.argmax()) : stream.stop] = False
    others = known[~early]
    return early if len(others) and others.mean() >= TOLD else nothing


def launch_unknown(trace: Trace) -> Bools:
    """Of each place of ``gpu_work``, whether nothing tells when it was launched."""
    unknown: Bools = (gpu_work(trace).launch == NO_ROW) & ~before_recording(trace)
    return unknown


def before_recording_diagnostics(*traces: Trace, of: str = "") -> list[Diagnostic]:
    """How much of the GPU work ``of`` them all was launched before the recording."""
    return _told("before_recording", traces, before_recording, of, "were launched before the recording: in no step")


def launch_unknown_diagnostics(trace: Trace) -> list[Diagnostic]:
    """Of how much GPU work nothing tells when it was launched."""
    what = "have no known launch: nothing tells whether that was before the recording"
    return _told("launch_unknown", [trace], launch_unknown, "", what)


def _told(code: str, traces: Sequence[Trace], which: Callable[[Trace], Bools], of: str, what: str) -> list[Diagnostic]:
    whole = count = ns = 0
    for trace in traces:
        work, chosen = gpu_work(trace), which(trace)
        ran = np.maximum(work.end - work.ts, 0)
        count += int(np.count_nonzero(chosen))
        whole, ns = whole + int(ran.sum()), ns + int(ran[chosen].sum())
    message = f"pieces of GPU work{of} ({ns / max(whole, 1):.1%} of its time) {what}"
    return [Diagnostic(code, count, message)] if count else []
