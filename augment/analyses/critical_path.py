"""What decided how long a step took?

Not everything that takes time makes a step longer: a kernel that runs while the host is late, or an operator that runs
while the device is, could be faster without any effect. The critical path is the chain of events that could not. From
the end of the recording back to its start: what did each moment have to wait for, and which of that was done last?

- A thread goes from one call to the next, and work follows the work before it on its stream and its launch. All work
  of a CUDA graph follows the launch of the graph.
- A call that waits for an event, a stream or a device follows the work that it waits for, a launch onto a full queue
  (1024 pieces of work) the start of work there, a copy's call its own copy if it returns after that.
- A stream that waits for an event follows what was launched before it was recorded.
- The thread of the backward pass and the one that began it take turns (known by ``fwdbwd`` flows or autograd's names).
- Work that starts more than 30 µs after all this, just when work of another stream ends, is taken to have waited for
  that: most traces do not record the waits of streams (``cuda_sync``). Work of unknown launch counts as launched with
  what is before it on its stream, or before the recording.

Where both the launch and the work before it on the stream could have decided, the launch did if its call began less
than the latency of a launch before that work ended. The latency is the least time from a launch to its work among the
256 launches that begin with this one, at most 30 µs. So a device that lags behind its host is bound by itself. Work
that starts while the work before it still runs followed its launch if that was at most 30 µs ago, else that work.

The path is divided where steps begin and end, so that ``time_ns`` over ``bound_by`` sums up to ``span_ns``, the step's
duration. Without steps there is one ``span_ns`` with ``step`` null: from the first to the last event of the threads
that launch or hand over work, of those that they start, and of the devices. Marks of the profiler itself lie outside.
Work launched before the recording lies on the path as any other, but is no part of what the step itself takes:
``before_recording_ns`` tells how much of ``time_ns`` it is, and ``time_ratio`` is the share without it.

| bound_by | time |
| --- | --- |
| cpu_operator | of a thread in an operator, its calls of the runtime excluded |
| runtime_call | of a thread in a call of the runtime or driver, its waiting for a device excluded |
| data_loading | of a thread that fetches from a data loader (``enumerate(DataLoader)``) |
| outside_operators | of a thread in neither: Python, annotations, what is not recorded |
| thread_handover | from one thread's last event to the other's first, and back |
| launch_delay | from the start of a launch to the start of its work |
| kernel_computation, kernel_communication, kernel_memory | in which the device works |
| kernel_gap | at most 30 µs between work and the next on its stream, which had been launched |
| sync | from the end of work to the return of the call, or the start of the work, that waited for it |
| idle | for which nothing in the trace gives a reason |

It is drawn as ``Critical path`` under the thread that drives: slices named after ``bound_by``, each with its
``source`` (the outermost operator, the call, the kernel; of a delay, what came late). Where the path goes from one
track to another, an arrow leads from the event that it leaves (the launch, the work waited for) to the path's slice
that could begin then. Stretches of one kind within one outermost operator are one slice. A stretch outside operators
is one slice, too; its ``source`` is the annotation or Python function that was innermost for most of it, or
``nothing recorded``.

How HTA's ``critical_path_analysis`` differs: it takes the longest path through one annotation, which leaves out the
times between operators and may begin and end anywhere; it does not know CUDA graphs, full queues, or waits between
streams that are not recorded; a wait for a blocking copy, or a poll, always counts as none; times are rounded to
microseconds. Its ``cpu_bound`` is our first, second and fourth kind, ``gpu_kernel_kernel_overhead`` is kernel_gap, and
``gpu_kernel_launch_overhead`` launch_delay.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from augment.annotations import Annotation, Ends, Flows, SliceTrack, Texts
from augment.arrays.ordering import combinations, sums
from augment.arrays.types import Bools, Int64s
from augment.derived.critical.critical_graph import critical_graph
from augment.derived.critical.critical_path import KINDS, BoundBy, CriticalPath, critical_path, crossings
from augment.derived.critical.handovers import NO_TRACK, main_track
from augment.derived.critical.what_if import windows
from augment.derived.gpu.before_recording import before_recording, before_recording_diagnostics
from augment.derived.gpu.gpu_work import gpu_work
from augment.derived.host.enclosing import outermost
from augment.derived.steps.steps import steps
from augment.findings import Findings, Skipped, column
from augment.trace import LAUNCHES, Category, Trace

NAME = "critical_path"
NEEDS = (LAUNCHES,)
_UNRECORDED = "nothing recorded"  #: the source of time in which a thread is in no slice


@dataclass(frozen=True, slots=True)
class Row:
    """One kind of time in one step."""

    rank: int | None = column("The rank of the process, if known.")
    step: int | None = column("The step's number; null: the whole recording, which has no steps.")
    bound_by: str = column("What the time on the path consists of.")
    time_ns: int = column("Time of that kind on the critical path.", "ns")
    before_recording_ns: int = column("Of that, time of work launched before the recording.", "ns")
    time_ratio: float = column("Share of `span_ns`, both without work launched before the recording.", "ratio")
    span_ns: int = column("Duration of the step, or of all that the path covers if there are no steps.", "ns")


ROW = Row


def analyze(trace: Trace) -> Findings | Skipped:
    """Find the critical path, sum it up for each step, and draw it."""
    path = critical_path(trace)
    if not len(path):
        return Skipped("nothing in the recording takes time")
    told = [*critical_graph(trace).diagnostics, *before_recording_diagnostics(trace)]
    return Findings(_rows(trace, path), _annotations(trace, path), told)


def _rows(trace: Trace, path: CriticalPath) -> list[Row]:
    """The rows of each step."""
    number = steps(trace)
    start, end = windows(trace)
    window = path.step if len(number) else np.zeros(len(path), np.int64)
    inside = window >= 0
    time, early = (np.zeros((len(start), len(BoundBy)), np.int64) for _ in range(2))
    np.add.at(time, (window[inside], path.bound_by[inside]), path.dur[inside])
    inside &= _is_early(trace)[path.row]
    np.add.at(early, (window[inside], path.bound_by[inside]), path.dur[inside])
    numbers = number.number.tolist() if len(number) else [None]
    lengths = end - start
    own = lengths - early.sum(axis=1)
    ratio = (time - early) / np.maximum(own, 1)[:, np.newaxis]
    return [
        Row(
            rank=trace.rank,
            step=numbers[place],
            bound_by=KINDS[kind],
            time_ns=int(time[place, kind]),
            before_recording_ns=int(early[place, kind]),
            time_ratio=float(ratio[place, kind]),
            span_ns=int(lengths[place]),
        )
        for place, kind in np.argwhere(time).tolist()
    ]


def _is_early(trace: Trace) -> Bools:
    """Of each event whether it is work launched before the recording; one more, of no event."""
    found = np.zeros(len(trace.events) + 1, np.bool_)
    found[gpu_work(trace).row[before_recording(trace)]] = True
    return found


def _annotations(trace: Trace, path: CriticalPath) -> list[Annotation]:
    """The path's slices and arrows."""
    source = _sources(trace, path)
    first = np.ones(len(path), np.bool_)
    first[1:] = (source[1:] != source[:-1]) | (path.bound_by[1:] != path.bound_by[:-1])
    first[1:] |= path.step[1:] != path.step[:-1]
    places = np.flatnonzero(first)
    ts, kinds, source = path.ts[places], path.bound_by[places].astype(np.int32), source[places]
    outside = kinds == BoundBy.OUTSIDE_OPERATORS
    source[outside] = _longest(path, first)
    known = source >= 0
    unnamed = np.where(outside, np.int32(len(trace.strings)), np.int32(-1))
    main = main_track(trace)
    track = SliceTrack(
        analysis=NAME,
        name="Critical path",
        under=gpu_work(trace).streams[0].track if main == NO_TRACK else main,
        ts=ts,
        dur=np.diff(ts, append=path.ts[-1:] + path.dur[-1:]),
        names=Texts(kinds, KINDS),
        args={
            "source": Texts(np.where(known, trace.events.name[source], unnamed), [*trace.strings, _UNRECORDED]),
            "correlation": np.where(known, trace.events.correlation[source], np.int64(-1)),
        },
        description="the chain of events that decided how long the recording took",
    )
    left, moment = crossings(trace)
    following = np.searchsorted(track.ts, moment, side="right") - 1
    flows = Flows(NAME, "Critical path", Ends(left), Ends(following.astype(np.int64), track))
    return [track, flows] if len(flows) else [track]


def _sources(trace: Trace, path: CriticalPath) -> Int64s:
    """What each piece is shown as: of an operator the outermost that it is part of; outside of operators, all one."""
    within = np.isin(path.bound_by, (BoundBy.CPU_OPERATOR, BoundBy.DATA_LOADING))
    source: Int64s = path.row.copy()
    outer = outermost(trace, path.row[within], (Category.CPU_OP,))
    source[within] = np.where(outer >= 0, outer, source[within])
    source[path.bound_by == BoundBy.OUTSIDE_OPERATORS] = -1
    return source


def _longest(path: CriticalPath, first: Bools) -> Int64s:
    """Of each stretch outside operators (``first``: a stretch begins), the row that most of its time belongs to."""
    outside = np.flatnonzero(path.bound_by == BoundBy.OUTSIDE_OPERATORS)
    (stretch, row), which = combinations(np.cumsum(first)[outside], path.row[outside])
    ns = sums(which, path.dur[outside], len(row))
    order = np.lexsort((row, -ns, stretch))
    longest: Int64s = row[order[np.diff(stretch[order], prepend=-1) > 0]]
    return longest
