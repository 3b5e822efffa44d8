"""How much of the time do the devices compute, and what do they do with the rest?

Each device has a span, from the start of its first to the end of its last piece of GPU work (kernels, copies, memsets
on any stream). The span is divided completely::

    compute_ns + exposed_communication_ns + exposed_memory_ns + idle_ns = span_ns

- **compute**: at least one computation kernel runs, whatever else does.
- **exposed communication**: communication runs and no computation does; the device waits for others.
- **exposed memory**: only copies or memsets run.
- **idle**: nothing runs. **busy** is the span minus idle; **non-compute** is busy minus compute.

Each is the length of a union of intervals: time in which two kernels overlap counts once.

The track ``GPU state`` shows the division: from the first to the last work of a device one row of slices ``compute``,
``communication`` (exposed), ``copy`` (exposed), and the causes of ``idle_time_breakdown`` (by its default options).
The slices of each name add up to the figure.

**What to do**: idle time: see `idle_time_breakdown` for its cause. Exposed communication: `collectives` names the
group and kind; prefetch, or larger buckets. Exposed memory: copy from pinned memory on a stream of its own. A device
that computes all the time needs faster kernels: `kernel_family_breakdown`, `roofline`.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from msgspec import Struct

from augment import facts
from augment.core import GPU_WORK, LAUNCHES, Category, Diagnostic, Findings, Identity, SliceTrack, Texts, Trace, column

NAME = "temporal_breakdown"
NEEDS = (GPU_WORK,)
FAR_NS = 3600 * 10**9  #: nothing waits an hour for its device


class Row(Struct, frozen=True):
    """One device."""

    rank: Annotated[int | None, column("The rank of the process, if known.")]
    device: Annotated[Identity, column("The device.")]
    span_ns: Annotated[int, column("From the start of the first to the end of the last GPU work.", "ns")]
    busy_ns: Annotated[int, column("Time in which any GPU work runs.", "ns")]
    idle_ns: Annotated[int, column("Time of the span in which no GPU work runs.", "ns")]
    compute_ns: Annotated[int, column("Time in which computation runs.", "ns")]
    exposed_communication_ns: Annotated[int, column("Time in which communication and no computation runs.", "ns")]
    exposed_memory_ns: Annotated[int, column("Time in which copies or memsets alone run.", "ns")]
    non_compute_ns: Annotated[int, column("Time in which GPU work but no computation runs.", "ns")]


def analyze(trace: Trace) -> Findings:
    """Divide each device's span, and draw the parts."""
    rows = []
    for coverage in facts.gpu.coverage(trace):
        busy = coverage.time_of(any_of=facts.gpu.COMPUTATION | facts.gpu.COMMUNICATION | facts.gpu.MEMORY)
        compute = coverage.time_of(any_of=facts.gpu.COMPUTATION)
        rows.append(
            Row(
                rank=coverage.device.rank,
                device=coverage.device.device,
                span_ns=coverage.span_ns,
                busy_ns=busy,
                idle_ns=coverage.span_ns - busy,
                compute_ns=compute,
                exposed_communication_ns=coverage.time_of(
                    any_of=facts.gpu.COMMUNICATION, none_of=facts.gpu.COMPUTATION
                ),
                exposed_memory_ns=coverage.time_of(
                    any_of=facts.gpu.MEMORY, none_of=facts.gpu.COMPUTATION | facts.gpu.COMMUNICATION
                ),
                non_compute_ns=busy - compute,
            )
        )
    work = facts.gpu.work(trace)
    far = "pieces of GPU work begin over an hour before or after all events of the host: span and idle time are wrong"
    message = "pieces of GPU work on streams shared by several processes (combined): analyse each rank's file instead"
    diagnostics = (
        Diagnostic("work_far_from_host", _far_from_host(trace), far),
        Diagnostic("processes_share_stream", facts.gpu.work_of_several_processes(trace), message),
        Diagnostic(
            "negative_duration",
            int((work.end < work.ts).sum()),
            "pieces of GPU work end before they start (counted with no duration)",
        ),
    )
    return Findings(
        rows,
        [
            SliceTrack(
                analysis=NAME,
                name="GPU state",
                under=state.device.track,
                ts=state.start,
                dur=state.end - state.start,
                names=Texts(state.state.astype(np.int32), facts.waits.STATES),
                description="what the device does: compute; if not, communicate; if not, copy; else idle, by cause",
            )
            for state in facts.waits.states(trace)
            if len(state)
        ],
        [
            *(diagnostic for diagnostic in diagnostics if diagnostic.count),
            *facts.gpu.before_recording_diagnostics(trace),
        ],
    )


def _far_from_host(trace: Trace) -> int:
    """The number of pieces of work with impossible times: Kineto of 2021 wrote 0 for unknown times."""
    events, ts = trace.events, facts.gpu.work(trace).ts
    if not len(ts) or events.ts[-1] - events.ts[0] <= FAR_NS:  # nearly always: no need to look at the host
        return 0
    host = events.slices_of(Category.CPU_OP, Category.USER_ANNOTATION, *LAUNCHES)
    if not len(host):
        return 0
    first, last = int(events.ts[host[0]]), int((events.ts[host] + events.dur[host]).max())
    return int(((ts < first - FAR_NS) | (ts > last + FAR_NS)).sum())
