"""Is the host too slow in launching?

A launch takes the host 5 to 20 µs with all that Python and PyTorch do around it. If kernels are shorter than that, the
device finishes each before the next is launched. The prediction lets operators, runtime calls and the Python between
them take no time on the host, which CUDA graphs come close to. Stretches of 1 ms and more, and fetches of batches, are
not launching and stay. No more is saved than the time in which the device idles while the thread that launches its next
work is busy with launching: a host that fetches a batch or reads a file meanwhile is not too slow in launching. And
what goes away with other causes of a late host (calls that wait for the device, data loading, the allocator, single
long calls, compilation, captures of graphs, long stretches of other work) is not saved here.

**What to do**: CUDA graphs (``torch.compile(mode="reduce-overhead")`` or ``torch.cuda.graph``) launch many kernels in
one call; ``torch.compile`` fuses small kernels into fewer; a larger batch makes kernels longer. Recording stacks
(``with_stack``) makes the host slower than it is: record once without them.
"""

from __future__ import annotations

import numpy as np

from augment.arrays.intervals import Intervals, clip, subtract, union
from augment.arrays.ordering import distinct
from augment.arrays.statistics import median
from augment.arrays.types import Int32s, Int64s
from augment.derived.critical.critical_graph import critical_graph
from augment.derived.critical.critical_path import BoundBy, host_kinds
from augment.derived.critical.savings import Cut, joined, without_waits
from augment.derived.gpu.gpu_work import gpu_work
from augment.derived.gpu.launches import NO_ROW
from augment.derived.gpu.type_coverage import type_coverage
from augment.derived.host.host_segments import host_segments
from augment.derived.waits.gap_causes import GapCategory, device_categories
from augment.derived.waits.idle_gaps import device_gaps
from augment.diagnosis.captures import capture_times
from augment.diagnosis.judging import judged
from augment.diagnosis.measure import (
    fetches_in_steps,
    host_cut,
    measure,
    saved_a_step,
    within_steps,
    work_in_steps,
)
from augment.diagnosis.rule import Answer, Confidence, Fine, Found, NoData, NotApplicable, Spans
from augment.diagnosis.rules import allocator_calls, data_loading, graph_capture, host_gaps, long_calls, recompilation
from augment.diagnosis.rules.host_gaps import LONG_NS
from augment.diagnosis.waiting import waiting_calls
from augment.diagnosis.wording import a_step, count, of_a_step, shorter, time
from augment.trace import Category, Trace

NAME = "launch_bound"
GRAPH = 4  #: kernels of one launch, on average, where graphs are launched already
_OF_GRAPHS = (
    "The kernels are launched by graphs already: look at what the host does between them (sampling, copies, Python), "
    "prepare the next step while the device works, or put more into each graph"
)
_WITHOUT_GRAPHS = (
    "Launch many kernels at once with CUDA graphs (torch.compile(mode='reduce-overhead') or torch.cuda.graph); "
    "fuse small kernels with torch.compile; use a larger batch"
)
_STACKS = "; stacks were recorded, which slows the host: record without with_stack to be certain"
_OF_ASCEND = (
    "Run operators as they are, without compiling them (torch.npu.set_compile_mode(jit_compile=False)), use graph mode "
    "(torchair), or a larger batch"
)
SKEWED = 0.1  #: share of work that seems to begin before its launch, from which on clocks cannot be trusted
_CAUSES = (data_loading, allocator_calls, long_calls, host_gaps, recompilation, graph_capture)
_LAUNCHING = np.zeros(256, np.bool_)
_LAUNCHING[[BoundBy.CPU_OPERATOR, BoundBy.RUNTIME_CALL, BoundBy.OUTSIDE_OPERATORS]] = True


def check(trace: Trace) -> Answer:
    """Predict steps whose launches cost the host nothing."""
    work = gpu_work(trace)
    if not len(work):
        return NotApplicable("no GPU work was recorded")
    kernels = trace.events.category[work.row] == Category.KERNEL
    places = np.flatnonzero(work_in_steps(trace) & (work.launch != NO_ROW) & kernels)
    if not len(places):
        return NoData("no launch of a kernel was recorded", "record with ProfilerActivity.CPU, too")
    track, start, end = _short_work(trace)
    cut = host_cut(trace, track, start, end)
    others = _others(trace)
    saved = min(saved_a_step(trace, joined([cut, others])) - saved_a_step(trace, others), saved_a_step(trace, cut))
    saved = max(min(saved, _waiting_a_step(trace, track, Intervals(start, end))), 0)
    kernel = int(median(work.end[places] - work.ts[places]))
    calls = distinct(work.launch[places])
    call = int(median(trace.events.dur[calls]))
    number = count(len(places) / measure(trace).count, "kernel")
    graphs = len(places) >= GRAPH * len(calls)
    launches = f"in {count(len(calls) / measure(trace).count, 'launch', 'launches')} " if graphs else ""
    stacks = bool((trace.events.category == Category.PYTHON_FUNCTION).any())
    skewed = float(np.mean(trace.events.ts[work.launch[places]] > work.ts[places])) > SKEWED
    confidence: Confidence = "medium" if stacks or skewed else "high"
    return judged(
        trace,
        saved,
        fine=Fine(f"launching costs {of_a_step(trace, saved)} ({number} {a_step(trace)})"),
        title=f"The GPU waits for the host to launch {number} {a_step(trace)} {launches}"
        f"(a kernel takes {time(kernel)}, a launch {time(call)}, in the median); if launching took no time, "
        + shorter(trace, saved),
        advice=_advice(trace.names_of(calls[:1])[0], graphs=graphs, stacks=stacks),
        spans=_charged(trace, track, Intervals(start, end)),
        confidence=confidence,
        cut=cut,
        evidence=["stacks were recorded: the host is slower than usual"] if stacks else [],
    )


def _advice(launch: str, *, graphs: bool, stacks: bool) -> str:
    """The advice for a host whose first ``launch`` is this call."""
    if graphs:
        return _OF_GRAPHS
    if launch.startswith("AscendCL@"):
        return _OF_ASCEND
    return _WITHOUT_GRAPHS + (_STACKS if stacks else "")


def _others(trace: Trace) -> Cut:
    """What other rules blame a late host on."""
    answers = [rule.check(trace) for rule in _CAUSES]
    cuts = [answer.cut for answer in answers if isinstance(answer, Found) and answer.cut is not None]
    return joined([*cuts, without_waits(trace, waiting_calls(trace))])


def _waiting_a_step(trace: Trace, track: Int32s, short: Intervals) -> int:
    """The time in a step in which a device idles while the thread that launches its next work is in ``short``
    stretches, ns; the mean of all devices. Gaps of any category count: a kernel may be launched while the one before
    still runs, and yet come late."""
    inside = int(_launching(trace, _waits(trace, *GapCategory), track, short).sum())
    return int(inside / max(len(type_coverage(trace)), 1)) // measure(trace).count


def _charged(trace: Trace, track: Int32s, short: Intervals) -> Spans:
    """The waits for the host of which ``short`` stretches are at least half: the others are of other causes."""
    waits = _waits(trace, GapCategory.HOST_WAIT)
    chosen = 2 * _launching(trace, waits, track, short) >= waits.end - waits.start
    return Spans(waits.start[chosen], waits.end[chosen], waits.row[chosen])


def _launching(trace: Trace, waits: Spans, track: Int32s, short: Intervals) -> Int64s:
    """The time of each wait in which the thread that ends it is in ``short`` stretches, int64 ns."""
    thread_of = trace.events.track[waits.row]
    inside = np.zeros(len(waits), np.int64)
    for thread in distinct(thread_of).tolist():
        places = np.flatnonzero(thread_of == thread)
        stretches = Intervals(short.start[track == thread], short.end[track == thread])
        which, _, parts = clip(Intervals(waits.start[places], waits.end[places]), stretches)
        np.add.at(inside, places[which], parts.end - parts.start)
    return inside


def _short_work(trace: Trace) -> tuple[Int32s, Int64s, Int64s]:
    """The short stretches of the host's time on the threads of the graph: track, start, end."""
    segments, lanes = host_segments(trace), distinct(critical_graph(trace).lane)
    fetches = fetches_in_steps(trace)
    parts = [(np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0, np.int64))]
    for lane in lanes[lanes >= 0].tolist():
        part = segments.of(lane)
        ts, row = segments.ts[part], segments.row[part][:-1].astype(np.int64)
        kind = host_kinds(trace, row)
        longest_ns = np.where(kind == BoundBy.RUNTIME_CALL, long_calls.LONG_NS, LONG_NS)
        chosen = np.flatnonzero(_LAUNCHING[kind] & (np.diff(ts) < longest_ns))
        fetch = Spans.of(trace, fetches[trace.events.track[fetches] == lane])
        other = capture_times(trace, lane)
        other = union(np.append(fetch.start, other.start), np.append(fetch.end, other.end))
        short = subtract(Intervals(ts[chosen], ts[chosen + 1]), other)
        parts.append((np.full(len(short.start), lane, np.int32), short.start, short.end))
    track, start, end = zip(*parts, strict=True)
    return np.concatenate(track), np.concatenate(start), np.concatenate(end)


def _waits(trace: Trace, *categories: GapCategory) -> Spans:
    """The gaps of some categories of devices before work with a known launch, in steady steps."""
    starts, ends, rows = [], [], []
    for gaps in device_gaps(trace):
        late = np.isin(device_categories(trace, gaps), categories) & (gpu_work(trace).launch[gaps.next] != NO_ROW)
        which, parts = within_steps(trace, gaps.start[late], gaps.end[late])
        starts.append(parts.start)
        ends.append(parts.end)
        rows.append(gpu_work(trace).launch[gaps.next[late]][which])
    return Spans(*(np.concatenate(column).astype(np.int64) for column in (starts, ends, rows)))
