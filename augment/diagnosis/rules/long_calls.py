"""Does a single call of the runtime hold up the host, although the device has nothing to do?

The first call that needs the device creates its context, which takes seconds, whatever its name says
(``cudaDeviceGetStreamPriorityRange``, ``cudaFree(0)``). The first use of a kernel or library loads it, within an
ordinary launch. Other single calls wait for a lock of the driver, launch a large graph, or look for an operator's
program anew (``aclopCompileAndExecute`` on Ascend). The rule names calls of 0.1 ms and more during which devices idle
for 0.1 ms or half of the time, and says for how long they idle in them; calls that wait for a device, copies, and
steady requests for memory have rules of their own. The prediction takes these calls out of the steps.

**What to do**: if they happen once, run some steps before the recording begins: steady steps do not have them. If they
come back in every step, find out what asks for them.
"""

from __future__ import annotations

import re
from collections import Counter

import numpy as np

from augment.arrays.intervals import Intervals, clip, union
from augment.arrays.ordering import is_among
from augment.arrays.types import Int64s
from augment.derived.gpu.gpu_work import gpu_work
from augment.derived.host.enclosing import outermost
from augment.derived.names.matching import matching
from augment.diagnosis.judging import judged
from augment.diagnosis.measure import host_cut, longest, measure, rows_in_steps, saved_by_host
from augment.diagnosis.places import python_lines
from augment.diagnosis.rule import Answer, Confidence, Fine, NotApplicable, Spans
from augment.diagnosis.waiting import waiting_calls
from augment.diagnosis.wording import a_step, called_from, count, listed, of_a_step, short, shorter, time
from augment.trace import LAUNCHES, Trace, derived

NAME = "long_calls"
LONG_NS = 100_000  #: a shorter call is ordinary launching
MEMORY_NS = 100_000_000  #: a request for memory that takes longer, with idle devices, is something else: a context
IDLE_RATIO = 0.5  #: least share of a call in which the devices idle, unless they idle for :data:`LONG_NS`
MEMORY = re.compile(
    r"^(?:cuda|hip)(?:Malloc|Free)(?:Host|Managed)?$|^(?:cuda|hip)HostAlloc$|^cuMem(?:Alloc|Free|Create|Map)"
)
_OTHER_RULES = re.compile(r"GraphInstantiate|Synchronize|Memcpy|Memset|Query|StreamWait|ElapsedTime")
_ONCE = (
    "Run some steps before the recording begins (a warmup in the profiler's schedule): the first use of the device "
    "creates its context, and the first use of a kernel or library loads it; steady steps do not have it"
)
_OF_ASCEND = "Run operators as they are, without compiling them (torch.npu.set_compile_mode(jit_compile=False))"
_IF_ONCE = "; if only the first steps compile, record later ones (a warmup in the profiler's schedule)"


@derived  # launch_bound asks, too
def check(trace: Trace) -> Answer:
    """Predict steps without these calls."""
    if not len(gpu_work(trace)):
        return NotApplicable("no GPU work was recorded that the host could hold up")
    rows = single_calls(trace)
    if not len(rows):
        return NotApplicable("no call of the runtime takes long while the GPU idles")
    spans = Spans.of(trace, rows)
    cut = host_cut(trace, trace.events.track[rows], spans.start, spans.end)
    saved = saved_by_host(trace, cut)
    steady = len(rows) >= measure(trace).count > 1
    spent: Counter[str] = Counter()
    for name, ns in zip(trace.names_of(rows), _idle_ns(trace, rows).tolist(), strict=True):
        spent[short(name)] += ns
    named = listed([f"{name} ({time(ns)})" for name, ns in spent.most_common()])
    often = f"{count(len(rows) / measure(trace).count, 'long call')} {a_step(trace)}"
    confidence: Confidence = "high" if steady else "medium"
    return judged(
        trace,
        saved,
        fine=Fine(f"{often} of the runtime cost {of_a_step(trace, saved)}: {named}"),
        title=f"Single calls of the runtime hold up the host while the GPU idles: {named}; otherwise "
        + shorter(trace, saved),
        advice=_advice(trace, [name for name, _ in spent.most_common()], longest(spans, 64).row, steady=steady),
        spans=spans,
        confidence=confidence,
        cut=cut,
    )


def _advice(trace: Trace, names: list[str], rows: Int64s, *, steady: bool) -> str:
    """What to do about calls, the longest first; ``steady`` ones come back in every step."""
    if "aclop" in names[0]:
        return _OF_ASCEND if steady else _OF_ASCEND + _IF_ONCE
    if "GraphLaunch" in names[0]:
        return "Launching large graphs takes the host this long: prepare the next step meanwhile, or launch it earlier"
    if not steady:
        return _ONCE
    return f"Find out what asks for it in every step{called_from(python_lines(trace, rows))}"


@derived
def single_calls(trace: Trace) -> Int64s:
    """The rows of these calls in steady steps; of calls within each other, the outermost."""
    events = trace.events
    rows = rows_in_steps(trace, events.slices_of(*LAUNCHES))
    rows = rows[events.dur[rows] >= LONG_NS]
    names = events.name[rows]
    rows = rows[~matching(trace, _OTHER_RULES)[names]]
    rows = rows[~is_among(rows, waiting_calls(trace))]
    memory = matching(trace, MEMORY)[events.name[rows]]
    rows = rows[~memory | ((events.dur[rows] >= MEMORY_NS) & (measure(trace).unit == "recording"))]
    rows = rows[outermost(trace, rows, LAUNCHES) == rows]
    chosen: Int64s = rows[_idle_ns(trace, rows) >= np.minimum(IDLE_RATIO * events.dur[rows], LONG_NS)]
    return chosen


def _idle_ns(trace: Trace, rows: Int64s) -> Int64s:
    """The time in each call in which no device works, ns."""
    work, events = gpu_work(trace), trace.events
    busy = union(work.ts, np.maximum(work.end, work.ts))
    idle: Int64s = events.dur[rows].copy()
    which, _, parts = clip(Intervals(events.ts[rows], events.ts[rows] + events.dur[rows]), busy)
    np.subtract.at(idle, which, parts.end - parts.start)
    return idle
