"""Does the device wait for copies from or to the host?

The prediction lets copies between host and device take no time in the steps, as if all ran beside computation; nor do
their calls while they run, as the host itself copies from pageable memory. A step
cannot get shorter than its copies: where they take longer than everything else, they cannot be hidden, and the answer
says so.

**What to do**: copy the next batch on its own stream while the step computes (a prefetcher), from pinned memory with
``non_blocking=True``; make tensors on the device (``torch.arange(…, device="cuda")``) in place of copying them; do not
copy back and forth what stays the same. If there is too little to hide them behind: copy less, in smaller types, and
from pinned memory.
"""

from __future__ import annotations

import numpy as np

from augment.arrays.intervals import total, union
from augment.arrays.types import Int64s
from augment.derived.critical.savings import Cut, joined, without_work
from augment.derived.gpu.gpu_work import gpu_work
from augment.derived.gpu.launches import NO_ROW
from augment.derived.names.matching import strings_where
from augment.diagnosis.judging import judged
from augment.diagnosis.measure import host_cut, measure, saved_a_step, work_in_steps
from augment.diagnosis.places import python_lines
from augment.diagnosis.rule import Answer, Fine, NotApplicable, Spans
from augment.diagnosis.wording import a_step, called_from, count, of_a_step, shorter, size, time
from augment.trace import Category, Trace

NAME = "exposed_copies"
_ACROSS = ("HtoD", "DtoH")


def check(trace: Trace) -> Answer:
    """Predict steps whose copies are hidden."""
    work, events = gpu_work(trace), trace.events
    across = strings_where(trace, lambda name: any(way in name for way in _ACROSS))
    copies = np.flatnonzero(work_in_steps(trace) & (events.category[work.row] == Category.GPU_MEMCPY))
    copies = copies[across[events.name[work.row[copies]]]]
    if not len(copies):
        return NotApplicable("the steps copy nothing between host and device")
    dur = np.maximum(work.end[copies] - work.ts[copies], 0)
    cut = joined([without_work(trace, copies, dur), _host_meanwhile(trace, copies)])
    saved = saved_a_step(trace, cut)
    moved = float(events.bytes.at(work.row[copies], 0).sum()) / measure(trace).count
    often = count(len(copies) / measure(trace).count, "copy", "copies")
    spent = int(dur.sum()) // measure(trace).count
    spans = Spans(work.ts[copies], work.end[copies], work.row[copies])
    lines = python_lines(trace, work.launch[copies])
    rest = max(measure(trace).length_ns - _busy_ns(work.ts[copies], work.end[copies]) // measure(trace).count, 0)
    what = f"{often} {a_step(trace)} between host and device ({size(moved)}, {time(spent)})"
    fits = rest >= saved / 2
    saved = min(saved, rest) if fits else saved
    return judged(
        trace,
        saved,
        fine=Fine(f"{often} {a_step(trace)} between host and device ({size(moved)}) cost {of_a_step(trace, saved)}"),
        title=f"{what} hold up the GPU; hidden, {shorter(trace, saved)}"
        if fits
        else f"{what} are nearly all that is done, with {time(rest)} of other time to hide them behind; without them, "
        + shorter(trace, saved),
        advice=(
            "Copy the next batch on its own stream while the step computes; make tensors on the device"
            if fits
            else "Copy less: keep on the device what stays the same, use smaller types, and copy from pinned memory"
        )
        + called_from(lines),
        spans=spans,
        confidence="high",
        cut=cut,
    )


def _host_meanwhile(trace: Trace, copies: Int64s) -> Cut:
    """The host's time in the calls of copies while they run: a call that copies from pageable memory takes part."""
    work, events = gpu_work(trace), trace.events
    copies = copies[work.launch[copies] != NO_ROW]
    calls = work.launch[copies]
    start = np.maximum(events.ts[calls], work.ts[copies])
    end = np.minimum(events.ts[calls] + events.dur[calls], work.end[copies])
    during = start < end
    return host_cut(trace, events.track[calls[during]], start[during], end[during])


def _busy_ns(start: Int64s, end: Int64s) -> int:
    """The time in which any of these copies runs, ns."""
    return total(union(start, np.maximum(start, end)))
