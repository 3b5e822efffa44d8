"""Is the recording whole?

A file may end in the middle, as when a job was killed while it wrote. ``augment cut`` makes files that are parts of a
recording; where it left out events that causes rest on, such as launches, nothing is certain. And a recording that
begins while the device still works on earlier steps shows work of which the cause is missing, or lacks this work
although its time passes: then the first work in the file begins long after its launch had returned. Where work begins
late again and again, nothing earlier is missing: something else holds the device up, such as another process that uses
it. Recordings also lose events: if more than 5 % of the launches outside of captures lack their kernel, the device only
seems to wait. If these are the last launches, the profiler stopped before the device had run their kernels. Fewer than
16 pieces of GPU work are an excerpt, of which nothing usual can be told. Then no cause has more than low confidence; of
an excerpt, the verdict names the likeliest all the same, and says from how many pieces.

**What to do**: let the profiler finish (``prof.stop()``, or leave its ``with`` block) before the process ends. Give the
schedule a ``warmup`` step, or call ``torch.cuda.synchronize()`` before the recording begins, and before it ends.
"""

from __future__ import annotations

import numpy as np

from augment.arrays.intervals import total
from augment.derived.gpu.before_recording import before_recording
from augment.derived.gpu.gpu_work import gpu_work
from augment.derived.source.cut_mark import cut_text, lacks_causes, limits_of
from augment.diagnosis.measure import late_beginnings
from augment.diagnosis.rule import Answer, Fine, Found, Spans
from augment.diagnosis.whole import (
    MOST_LOST,
    MOST_UNLAUNCHED,
    ends_early,
    held_up,
    is_excerpt,
    late_device,
    lost_ratio,
    share_of_work,
    unlaunched_ratio,
)
from augment.diagnosis.wording import count, percent, time
from augment.trace import COMPLETE, Trace

NAME = "partial_recording"
MOST_EARLY = 0.10  #: share of the GPU's work that may have been launched before the recording


def check(trace: Trace) -> Answer:
    """Ask the reader, and count the work launched before the recording."""
    if trace.partial is not None:
        title = f"The file is not whole ({trace.partial}): figures cover what is there"
        advice = "Let the profiler stop before the process ends, and record again"
        return Found(title, advice, _whole(trace), "high", severity="warning", first=True)
    if part := cut_text(trace.source.metadata):
        return _cut(trace, part)
    if answer := _lost(trace) or _late(trace) or _excerpt(trace):
        return answer
    work = gpu_work(trace)
    early = before_recording(trace)
    if (ratio := share_of_work(trace, early)) < MOST_EARLY:
        return Fine("the recording is whole")
    return Found(
        f"{percent(ratio)} of the GPU's work was launched before the recording began: its causes are unknown",
        "Give the profiler's schedule a warmup step, or synchronize before it begins",
        Spans.of(trace, work.row[early]),
        "high",
        severity="info",
        of_recording=True,
    )


def _lost(trace: Trace) -> Found | None:
    """What is to be said if kernels that were launched are missing."""
    if (ratio := lost_ratio(trace)) <= MOST_LOST:
        return None
    if ends_early(trace):
        return Found(
            f"The recording ends before the GPU ran the last {percent(ratio)} of the kernels that were launched: "
            "in the end it only seems to wait",
            "Call torch.cuda.synchronize() before the recording ends, so that all work is in it",
            _whole(trace),
            "high",
            severity="warning",
            first=True,
        )
    return Found(
        f"{percent(ratio)} of the kernels that were launched are not in the recording: the GPU only seems to wait",
        "Record fewer steps, or without stacks and shapes: profilers lose events when their buffers are full",
        _whole(trace),
        "high",
        severity="warning",
        first=True,
    )


def _excerpt(trace: Trace) -> Found | None:
    """What is to be said if there is too little, or launches are missing."""
    if is_excerpt(trace):
        title = f"Only {count(len(gpu_work(trace)), 'piece')} of GPU work: too few to tell what usually happens"
        return Found(title, "Record several whole steps", _whole(trace), "high", severity="info", of_recording=True)
    if (ratio := unlaunched_ratio(trace)) > MOST_UNLAUNCHED:
        title = f"{percent(ratio)} of the GPU's work has no launch in the recording: what it waited for is unknown"
        advice = "Record with ProfilerActivity.CPU, too; of some devices no launches are recorded"
        return Found(title, advice, _whole(trace), "high", severity="info", first=True)
    return None


def _late(trace: Trace) -> Found | None:
    """What is to be said if a device is idle for long before the first work of a stream, which was launched already."""
    device, held = late_device(trace), held_up(trace)
    if device is None:
        return None
    if held is not None:
        return Found(
            f"The GPU begins work up to {time(int((held.end - held.start).max()))} after its launch, {len(held.start)} "
            "times: something that is not in the file holds it up",
            "See whether other processes use this GPU (nvidia-smi): they take turns. A GPU that was idle may also need "
            "time to wake up",
            Spans(held.start, held.end, np.full(len(held.start), -1, np.int64)),
            "medium",
            severity="warning",
            first=True,
        )
    late = late_beginnings(trace)[device]
    return Found(
        f"The first work of a stream was queued for {time(total(late))} while the file shows an idle GPU: it "
        "probably lacks earlier work",
        "Record whole steps: give the profiler's schedule a warmup step, and do not cut between a launch and its work",
        Spans(late.start, late.end, np.full(len(late.start), -1, np.int64)),
        "medium",
        severity="warning",
        first=True,
    )


def _whole(trace: Trace) -> Spans:
    """The time from the first event to the end of the last, or the period that was cut out."""
    events = trace.events
    if not len(events):
        none = np.empty(0, np.int64)
        return Spans(none, none, none)
    last = int((events.ts + np.where(events.phase == COMPLETE, np.maximum(events.dur, 0), 0)).max())
    start, end = limits_of(trace.source.metadata) or (int(events.ts[0]), last)
    start, end = max(start, int(events.ts[0])), min(end, last)
    return Spans(np.array([start], np.int64), np.array([end], np.int64), np.full(1, -1, np.int64))


def _cut(trace: Trace, part: str) -> Found:
    """A part of a recording."""
    advice = "What holds of this part need not hold of the whole: diagnose that, too"
    title = f"The file is a part of a recording ({part}), made by augment cut"
    spans = _whole(trace)
    if lacks_causes(trace.source.metadata):
        title = f"{title}: causes cannot be told from what is left"
        return Found(title, advice, spans, "high", severity="warning", first=True)
    if (ratio := share_of_work(trace, before_recording(trace))) >= MOST_EARLY:
        title = f"{title}: {percent(ratio)} of the GPU's work was launched earlier"
    return Found(title, advice, spans, "high", severity="info", first=True)
