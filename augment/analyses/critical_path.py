"""Which events decided how long a step took?

Not everything that takes time makes a step longer. A kernel that runs while the host is late could be faster without
any effect, and so could an operator that runs while the device is late. The critical path is the chain of events that
could not be faster without effect. The analysis follows it from the end of the recording back to its start. At each
event it asks what the event had to wait for, and continues with the prerequisite that was fulfilled last:

- A thread goes from one call to the next. Work follows the work before it on its stream, and its launch. All work of a
  CUDA graph follows the launch of the graph.
- A call that waits for an event, a stream or a device follows the work that it waits for. So does one that gives memory
  back (``cudaFree``), if it waited for most of its time. A launch onto a full queue
  (1024 pieces of work) follows the start of work there. A copying call that returns after its copy follows the copy.
- A stream that waits for an event follows what was launched before the event was recorded.
- The thread of the backward pass and the thread that began it take turns (known from ``fwdbwd`` flows or from
  autograd's names).
- On Ascend, the thread that executes operators follows the threads that put them on its queue, and a thread that waits
  for the device waits first until the queue is empty.
- Work that starts when another stream's work ends, and more than 30 µs after its own prerequisites, is treated as
  waiting for that stream: most traces do not record the waits of streams (``cuda_sync``). Work of unknown launch is
  treated as launched together with the work before it on its stream, or before the recording.

Sometimes both the launch and the work before it on the stream could have decided. The launch did if its call began less
than the launch latency before that work ended. The latency is the shortest time from a launch to its work among the 256
launches that begin with this one, and at most 30 µs. So a device that lags behind its host is bound by itself. Work
that starts while the work before it still runs followed its launch if the launch was at most 30 µs earlier, and
otherwise the work before it.

A launch counts from the start of its call. But a call may hold its work back, as the first use of a kernel does, which
loads it. If a call took more than 30 µs, and its work started more than 30 µs after all else that is known to have kept
it, the launch counts from the latency before that start, and at the latest from the return of the call. The time until
then is time of the call.

The path is divided where the steps of the devices begin and end, so that the ``time_ns`` of all ``bound_by`` add up to
``path_ns``, which is ``wall_ns`` of [steps](#steps). A recording without steps has one ``path_ns``, with ``step`` null.
It reaches from the first to the last event of the devices, of the threads that launch or hand over work, and of the
threads that these start. Marks of the profiler itself lie outside. Work launched before the recording lies on the path
like any other work, but does not count as time that the recording itself takes: ``before_recording_ns`` is its part of
``time_ns``, and ``time_ratio`` is the share without it. A step begins when earlier work is done.

| bound_by | drawn as | time |
| --- | --- | --- |
| cpu_operator | host: op | a thread is in an operator, excluding its runtime calls |
| runtime_call | launch | a thread is in a call of the runtime or driver, excluding its wait for a device |
| data_loading | host: data | a thread fetches from a data loader (``enumerate(DataLoader)``) |
| outside_operators | host: other | a thread is in neither: Python, annotations, or code that is not recorded |
| thread_handover | host: handover | from the last event of one thread to the first event of the other, and back |
| launch_delay | launch delay | from a launch to the start of its work |
| kernel_computation, kernel_communication, kernel_memory | compute, communication, copy | the device works |
| kernel_gap | gap | at most 30 µs between work and the next work on its stream, which had been launched |
| sync | sync | from the end of work to the return of the call, or the start of the work, that waited for it |
| idle | idle | nothing in the trace gives a reason |

The path is drawn as ``Critical path`` under the thread that drives the recording. Its slices have the names of the
middle column: a word means the same thing, and has the same colour, in ``GPU state``. The ``source`` of a slice, which
is also drawn below it, is the outermost operator, the call or the kernel, with its ``line`` in the program where
[source_lines](#source_lines) knows it; the ``source`` of a delay is the event that came late. Where the path changes
tracks, an arrow leads from the event that it leaves (the launch, or the work waited for) to the slice of the path that
could begin then. Consecutive pieces of one kind within one outermost operator are one slice. A stretch outside
operators is one slice, too. Its ``source`` is the annotation or Python function that was innermost for most of it, or
``nothing recorded``.

**What to do**: only what is on the path can make the run shorter. Follow it on the timeline from its longest pieces;
what bounds the time tells whom to ask: the host, a kernel, a collective.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np

from augment import arrays, facts
from augment.core import LAUNCHES, Ends, Findings, Flows, OfRank, Skipped, SliceTrack, Texts, Trace, column
from augment.facts.critical.longest_path import DRAWN, KINDS, BoundBy, critical_path, crossings, windows

NAME = "critical_path"
NEEDS = (LAUNCHES,)
_WITHOUT_NAME = (BoundBy.KERNEL_GAP, BoundBy.IDLE)  #: kinds whose source is not drawn below them
_UNRECORDED = "nothing recorded"  #: the source shown for time in which a thread is in no slice


class Row(OfRank, frozen=True):
    """One kind of time in one step."""

    step: Annotated[int | None, column("The step's number; null if the recording has no steps.")]
    bound_by: Annotated[str, column("What the time on the path consists of.")]
    time_ns: Annotated[int, column("Time of that kind on the critical path.", "ns")]
    before_recording_ns: Annotated[int, column("The part of time_ns that is work launched before the recording.", "ns")]
    time_ratio: Annotated[
        float, column("time_ns over path_ns, both without work launched before the recording.", "ratio")
    ]
    device_busy_ns: Annotated[int, column("Part of time_ns in which a device works: hosts may wait then.", "ns")]
    path_ns: Annotated[int, column("Duration of the step; without steps, of the whole path.", "ns")]


def analyze(trace: Trace) -> Findings | Skipped:
    """Find the critical path, sum it up for each step, and draw it."""
    path = critical_path(trace)
    if not len(path):
        return Skipped("nothing in the recording takes time")
    diagnostics = [*facts.critical.graph(trace).diagnostics, *facts.gpu.before_recording_diagnostics(trace)]
    # the path's slices and arrows
    kinds, source = path.bound_by.astype(np.int32), path.row
    outside = kinds == BoundBy.OUTSIDE_OPERATORS
    known = source >= 0
    unnamed = np.where(outside, np.int32(len(trace.strings)), np.int32(-1))
    main = facts.critical.main_track(trace)
    shown = Texts(np.where(known, trace.events.name[source], unnamed), [*trace.strings, _UNRECORDED])
    below = np.where(arrays.is_any(kinds, _WITHOUT_NAME), np.int32(-1), shown.codes)
    track = SliceTrack(
        analysis=NAME,
        name="Critical path",
        under=facts.gpu.work(trace).streams[0].track if main == arrays.NO_INDEX else main,
        ts=path.ts,
        dur=path.dur,
        names=Texts(kinds, DRAWN),
        args={
            "source": shown,
            "correlation": np.where(known, trace.events.correlation[source], np.int64(-1)),
            **(
                {"line": Texts(facts.gpu.lines_of_rows(trace, source.astype(np.int64)), lines.labels)}
                if (lines := facts.gpu.lines(trace))
                else {}
            ),
        },
        description="the chain of events that decided how long the recording took",
        inner=Texts(below, shown.values),
        of_process=True,
    )
    left, moment = crossings(trace)
    following = np.searchsorted(track.ts, moment, side="right") - 1
    flows = Flows(NAME, "Critical path", Ends(left), Ends(following.astype(np.int64), track))
    # the rows of each step
    number = facts.steps.recorded(trace)
    start, end = windows(trace)
    time, early, work = path.time, path.early_time, facts.gpu.work(trace)
    busy = arrays.union(work.ts, np.maximum(work.end, work.ts))
    which, _, parts = arrays.clip(arrays.Intervals(path.ts, path.ts + path.dur), busy)
    part, window, parts = arrays.clip(parts, arrays.Intervals(start, end))
    code = window * len(KINDS) + path.bound_by[which[part]]
    at_once = arrays.sums(code, parts.end - parts.start, time.size).reshape(time.shape)
    numbers = number.number.tolist() if len(number) else [None]
    lengths = end - start
    after_start = lengths - early.sum(axis=1)
    ratio = (time - early) / np.maximum(after_start, 1)[:, np.newaxis]
    rows = [
        Row(
            rank=trace.rank,
            step=numbers[place],
            bound_by=KINDS[kind],
            time_ns=int(time[place, kind]),
            before_recording_ns=int(early[place, kind]),
            time_ratio=float(ratio[place, kind]),
            device_busy_ns=int(at_once[place, kind]),
            path_ns=int(lengths[place]),
        )
        for place, kind in np.argwhere(time).tolist()
    ]
    return Findings(rows, [track, flows] if len(flows) else [track], diagnostics)
