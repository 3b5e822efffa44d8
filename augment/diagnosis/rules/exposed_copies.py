"""Does the device wait for copies from or to the host?

The prediction lets copies between host and device take no time in the steps, as if all ran beside computation; nor do
their calls while they run, as the host itself copies from pageable memory. A step
cannot get shorter than its copies: where they take longer than everything else, they cannot be hidden, and the answer
says so. A copy from or to pageable memory goes through a staging buffer and blocks, on whatever stream it is: if such
copies take most of the time, the answer names them, and the advice is pinned memory first.

**What to do**: copy the next batch on its own stream while the step computes (a prefetcher), from pinned memory with
``non_blocking=True``; make tensors on the device (``torch.arange(…, device="cuda")``) in place of copying them; do not
copy back and forth what stays the same. If there is too little to hide them behind: copy less, in smaller types, and
from pinned memory.
"""

from __future__ import annotations

import numpy as np

from augment.arrays.intervals import total, union
from augment.arrays.types import NO_INDEX, Int64s
from augment.core.text import Words, called_from, counted, percent, size, time
from augment.core.trace import Category, Trace
from augment.diagnosis.judging import judged
from augment.diagnosis.measure import host_cut, measure, saved_a_step, work_in_steps
from augment.diagnosis.rule import (
    Answer,
    NotApplicable,
    Seen,
    Spans,
)
from augment.facts.critical.what_if import Cut, joined, without_work
from augment.facts.gpu.gpu_work import gpu_work
from augment.facts.host.call_stacks import python_lines
from augment.facts.names.name_masks import strings_where

NAME = "exposed_copies"
_ACROSS = ("HtoD", "DtoH")
MOSTLY = 0.5  #: share of the copies' time from which pageable memory is named


class Copies(Seen, frozen=True):
    """Copies between host and device."""

    copy_count: float
    moved_bytes: float  #: per step
    copy_ns: int  #: per step
    other_ns: int  #: of a step, in which nothing is copied
    can_be_hidden: bool  #: there is as much other time
    pageable_ratio: float  #: of the copies' time, those from or to pageable memory
    lines: list[str]  #: of the user's program

    def _what(self, words: Words) -> str:
        return f"{counted(self.copy_count, 'copy', 'copies')} {words.per_step} between host and device"

    def title(self, words: Words) -> str:
        pageable = f", {percent(self.pageable_ratio)} of it pageable memory" if self._is_pageable else ""
        what = f"{self._what(words)} ({size(self.moved_bytes)}, {time(self.copy_ns)}{pageable})"
        if self.can_be_hidden:
            return f"{what} hold up the {words.gpu}"
        return f"{what} are nearly all that is done, with {time(self.other_ns)} of other time to hide them behind"

    def cure(self, words: Words) -> str:
        return "hiding them" if self.can_be_hidden else "removing them"

    def fine(self, words: Words, saved_ns: int) -> str:
        return f"{self._what(words)} ({size(self.moved_bytes)}): costs {words.share(saved_ns)}"

    def advice(self, words: Words) -> str:
        return self._way + called_from(self.lines)

    @property
    def _is_pageable(self) -> bool:
        return self.pageable_ratio >= MOSTLY

    @property
    def _way(self) -> str:
        if not self.can_be_hidden:
            return "Copy less: keep on the device what stays the same, use smaller types, and copy from pinned memory"
        if self._is_pageable:
            return (
                "Use pin_memory=True in the DataLoader (or tensor.pin_memory()) and .to(device, non_blocking=True): a "
                "copy of pageable memory blocks on any stream; from pinned memory it can run while the step computes"
            )
        return "Copy the next batch on its own stream while the step computes; make tensors on the device"


def check(trace: Trace) -> Answer:
    """Predict steps whose copies are hidden."""
    work, events = gpu_work(trace), trace.events
    across = strings_where(trace, lambda name: any(way in name for way in _ACROSS))
    pageable = strings_where(trace, lambda name: "Pageable" in name)
    copies = np.flatnonzero(work_in_steps(trace) & (events.category[work.row] == Category.GPU_MEMCPY))
    copies = copies[across[events.name[work.row[copies]]]]
    if not len(copies):
        return NotApplicable("the steps copy nothing between host and device")
    dur = np.maximum(work.end[copies] - work.ts[copies], 0)
    cut = joined([without_work(trace, copies, dur), _host_meanwhile(trace, copies)])
    saved = saved_a_step(trace, cut)
    steps = measure(trace).count
    rest = max(measure(trace).length_ns - _busy_ns(work.ts[copies], work.end[copies]) // steps, 0)
    fits = rest >= saved / 2
    seen = Copies(
        copy_count=len(copies) / steps,
        moved_bytes=float(events.bytes.at(work.row[copies], 0).sum()) / steps,
        copy_ns=int(dur.sum()) // steps,
        other_ns=rest,
        can_be_hidden=fits,
        pageable_ratio=float(dur[pageable[events.name[work.row[copies]]]].sum() / max(int(dur.sum()), 1)),
        lines=python_lines(trace, work.launch[copies]),
    )
    spans = Spans(work.ts[copies], work.end[copies], work.row[copies])
    return judged(trace, seen, min(saved, rest) if fits else saved, spans=spans, confidence="high", cut=cut)


def _host_meanwhile(trace: Trace, copies: Int64s) -> Cut:
    """The host's time in the calls of copies while they run: a call that copies from pageable memory takes part."""
    work, events = gpu_work(trace), trace.events
    copies = copies[work.launch[copies] != NO_INDEX]
    calls = work.launch[copies]
    start = np.maximum(events.ts[calls], work.ts[copies])
    end = np.minimum(events.ts[calls] + events.dur[calls], work.end[copies])
    during = start < end
    return host_cut(trace, events.track[calls[during]], start[during], end[during])


def _busy_ns(start: Int64s, end: Int64s) -> int:
    """The time in which any of these copies runs, ns."""
    return total(union(start, np.maximum(start, end)))
