"""Are batches copied from pageable memory?

A copy from or to pageable memory goes through a staging buffer in pieces, and the host waits for it. From pinned memory
it runs at the link's full rate beside computation, and the host goes on. The prediction lets these calls take no time
on the host and wait for nothing; the copies themselves stay as long as they are: what they cost is in `exposed_copies`.
Copies below 64 KiB are left out: to the device they do not block, and to the host they read values that somebody waits
for (``.item()``).

**What to do**: ``pin_memory=True`` in the data loader (or ``tensor.pin_memory()``), and ``.to(device,
non_blocking=True)``. For results use a pinned tensor and copy into it.
"""

from __future__ import annotations

import numpy as np

from augment.arrays.ordering import distinct
from augment.arrays.types import NO_INDEX, Int64s
from augment.core.text import Words, called_from, counted, size
from augment.core.trace import Category, Trace
from augment.diagnosis.judging import judged
from augment.diagnosis.measure import (
    confidence_in,
    host_cut,
    longest,
    measure,
    rows_in_steps,
    saved_a_step,
    work_in_steps,
)
from augment.diagnosis.rule import (
    Answer,
    Fine,
    NotApplicable,
    Seen,
    Spans,
)
from augment.facts.critical.what_if import joined, without_waits
from augment.facts.gpu.gpu_work import gpu_work
from augment.facts.host.call_stacks import innermost, python_lines
from augment.facts.names.name_masks import strings_where
from augment.facts.waits.sync_dependencies import sync_calls

NAME = "pageable_copies"
LEAST_BYTES = 64 << 10  #: smaller copies to the device do not make the host wait; those to the host read single values


class PageableCopies(Seen, frozen=True):
    """Copies from or to pageable memory."""

    copy_count: float
    moved_bytes: float  #: per step
    lines: list[str]  #: of the user's program

    @property
    def _copies(self) -> str:
        return counted(self.copy_count, "copy", "copies")

    def title(self, words: Words) -> str:
        copies = f"{self._copies} {words.per_step}, {size(self.moved_bytes)}"
        return f"The host waits for copies of pageable memory ({copies})"

    def cure(self, words: Words) -> str:
        return "pinned memory"

    def fine(self, words: Words, saved_ns: int) -> str:
        copies = f"{self._copies} {words.per_step} of pageable memory"
        return f"{copies} ({size(self.moved_bytes)}): the host's waits for them cost {words.share(saved_ns)}"

    def advice(self, words: Words) -> str:
        way = "Use pin_memory=True in the DataLoader (or tensor.pin_memory()) and .to(device, non_blocking=True)"
        return way + called_from(self.lines)


def check(trace: Trace) -> Answer:
    """Predict steps that copy from pinned memory."""
    work, events = gpu_work(trace), trace.events
    copies = np.flatnonzero((events.category[work.row] == Category.GPU_MEMCPY) & work_in_steps(trace))
    if not len(copies):
        return NotApplicable("the steps copy nothing")
    pageable = strings_where(trace, lambda name: "Pageable" in name)
    copies = copies[pageable[events.name[work.row[copies]]]]
    copies = copies[events.bytes.at(work.row[copies], 0) >= LEAST_BYTES]
    if not len(copies):
        return Fine("no step copies much from or to pageable memory")
    calls = work.launch[copies]
    calls = rows_in_steps(trace, distinct(calls[calls != NO_INDEX]))
    calls = np.union1d(calls, _waits_of(trace, calls))
    spans = Spans.of(trace, calls)
    cut = joined([host_cut(trace, events.track[calls], spans.start, spans.end), without_waits(trace, calls)])
    saved = saved_a_step(trace, cut)
    steps = measure(trace).count
    seen = PageableCopies(
        copy_count=len(copies) / steps,
        moved_bytes=float(events.bytes.at(work.row[copies], 0).sum()) / steps,
        lines=python_lines(trace, longest(spans, 64).row),
    )
    return judged(trace, seen, saved, spans=spans, confidence=confidence_in(trace, saved), cut=cut)


def _waits_of(trace: Trace, calls: Int64s) -> Int64s:
    """The waiting calls in the same operators as ``calls``: a copy that blocks waits in another call."""
    waits = sync_calls(trace).row
    waits = waits[trace.events.category[waits] != Category.CUDA_SYNC]
    copying = innermost(trace, calls, (Category.CPU_OP,))
    around = innermost(trace, waits, (Category.CPU_OP,))
    waiting: Int64s = waits[(around >= 0) & np.isin(around, copying)]
    return waiting
