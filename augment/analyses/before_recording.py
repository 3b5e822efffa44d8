"""How much of the GPU work was launched before the recording began?

When the host runs ahead, the profiler starts while the device still works on earlier launches. That work is recorded
without its launch, so no operator, step or annotation of the host encloses it. Therefore ``steps``, a job's load
imbalance and the shares of ``critical_path`` leave it out.

Work counts as launched before the recording only if three conditions hold:

- the trace has no call with its ``correlation``, and that correlation is below those of all recorded calls;
- it begins before all work of its stream whose launch was recorded;
- the recording has the launches of at least 99 % of all other work.

Any other work without a known launch counts as ``unknown``: a lost launch, or a call that the profiler does not record,
looks the same.

The work is drawn on a track ``Before the recording stream N``: one slice per stream, from its first piece to its last.

**What to do**: give the profiler's schedule a warm-up step, or call ``torch.cuda.synchronize()`` before the recording
begins, so that no work of earlier steps is in it.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np

from augment import facts
from augment.arrays import total, union
from augment.core import GPU_WORK, LAUNCHES, Findings, OfDevice, Skipped, SliceTrack, Texts, Trace, column

NAME = "before_recording"
NEEDS = (GPU_WORK, LAUNCHES)


class Row(OfDevice, frozen=True):
    """One device."""

    count: Annotated[int, column("Kernels, copies and memsets that were launched before the recording.", "count")]
    gpu_ns: Annotated[int, column("Sum of their durations.", "ns")]
    gpu_ratio: Annotated[float | None, column("Share of the durations of all work of the device.", "ratio")]
    busy_ns: Annotated[int, column("Time in which any of them runs.", "ns")]
    until_ns: Annotated[int | None, column("When the last of them ends, after the first event of the trace.", "ns")]
    unknown_count: Annotated[int, column("Pieces of work whose time of launch is unknown.", "count")]
    unknown_gpu_ns: Annotated[int, column("Sum of their durations.", "ns")]


def analyze(trace: Trace) -> Findings | Skipped:
    """Measure the work of each device that was launched before the recording."""
    work, early, unknown = facts.gpu.work(trace), facts.gpu.before_recording(trace), facts.gpu.launch_unknown(trace)
    if unknown.all():
        return Skipped("no GPU work whose correlation names a launch: the time of launch is unknown")
    ran = np.maximum(work.end - work.ts, 0)
    rows = []
    for device in work.devices:
        places = device.places
        is_early, all_ns = early[places], int(ran[places].sum())
        ns = int(ran[places][is_early].sum())
        start, end = work.ts[places][is_early], work.end[places][is_early]
        rows.append(
            Row(
                rank=device.rank,
                device=device.device,
                count=int(np.count_nonzero(is_early)),
                gpu_ns=ns,
                gpu_ratio=ns / all_ns if all_ns else None,
                busy_ns=total(union(start, end)),
                until_ns=int(end.max() - trace.events.ts[0]) if is_early.any() else None,
                unknown_count=int(np.count_nonzero(unknown[places])),
                unknown_gpu_ns=int(ran[places][unknown[places]].sum()),
            )
        )
    # a slice on each stream that has such work, which is the first work of the stream
    tracks = []
    for stream in work.streams:
        first_work = np.flatnonzero(early[stream.places]) + stream.start
        if not len(first_work):
            continue
        begin = int(work.ts[first_work[0]])
        tracks.append(
            SliceTrack(
                analysis=NAME,
                name=f"Before the recording stream {stream.stream}",
                under=stream.track,
                ts=np.array([begin], np.int64),
                dur=np.array([max(int(work.end[first_work].max()) - begin, 0)], np.int64),
                names=Texts(np.zeros(1, np.int32), ("launched before the recording",)),
                args={
                    "count": np.array([len(first_work)], np.int64),
                    "gpu_ns": np.array([int(ran[first_work].sum())], np.int64),
                },
                description="the first work of the stream, launched before the profiler started",
            )
        )
    return Findings(rows, tracks, facts.gpu.launch_unknown_diagnostics(trace))
