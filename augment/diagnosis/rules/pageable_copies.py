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

from augment import arrays, facts
from augment.core import Category, Trace, text
from augment.diagnosis import judging, rule

NAME = "pageable_copies"
LEAST_BYTES = 64 << 10  #: smaller copies to the device do not make the host wait; those to the host read single values


class PageableCopies(rule.Seen, frozen=True):
    """Copies from or to pageable memory."""

    copy_count: float
    moved_bytes: float  #: per step
    lines: list[str]  #: of the user's program
    CURE = "pinned memory"

    def title(self, words: text.Words) -> str:
        copies = f"{words.often(self.copy_count, 'copy', 'copies')}, {self._moved(words)}"
        return f"The host waits for copies of pageable memory ({copies})"

    def _moved(self, words: text.Words) -> str:
        return text.size(self.moved_bytes) + words.each(self.copy_count)

    def fine(self, words: text.Words, saved_ns: int) -> str:
        copies = f"{words.often(self.copy_count, 'copy', 'copies')} of pageable memory"
        return f"{copies} ({self._moved(words)}); {self.cure(words)} would save {words.share(saved_ns)}"

    def advice(self, words: text.Words) -> str:
        return words.pinned + text.called_from(self.lines)


def check(trace: Trace) -> rule.Answer:
    """Predict steps that copy from pinned memory."""
    work, events, copies = facts.gpu.work(trace), trace.events, judging.copies_in_steps(trace)
    if not len(copies):
        return rule.NotApplicable("the steps copy nothing")
    pageable = facts.names.strings_where(trace, lambda name: "Pageable" in name)
    copies = copies[pageable[events.name[work.row[copies]]]]
    copies = copies[events.bytes.at(work.row[copies], 0) >= LEAST_BYTES]
    if not len(copies):
        return rule.Fine("no step copies much from or to pageable memory")
    calls = work.launch[copies]
    calls = judging.rows_in_steps(trace, arrays.distinct(calls[calls != arrays.NO_INDEX]))
    # The waiting calls in the same operators as ``calls``: a copy that blocks waits in another call
    waits = facts.waits.syncs(trace).row
    waits = waits[trace.events.category[waits] != Category.CUDA_SYNC]
    copying = facts.host.innermost(trace, calls, (Category.CPU_OP,))
    around = facts.host.innermost(trace, waits, (Category.CPU_OP,))
    waiting: arrays.EventRows = waits[(around >= 0) & arrays.is_among(around, arrays.distinct(copying))]
    calls = arrays.distinct(np.concatenate((calls, waiting)))
    spans = rule.Spans.of(trace, calls)
    of_host = judging.host_cut(trace, events.track[calls], spans.start, spans.end)
    cut = facts.critical.joined([of_host, facts.critical.without_waits(trace, calls)])
    saved, steps = judging.saved_a_step(trace, cut), judging.measure(trace).count
    moved_bytes = float(events.bytes.at(work.row[copies], 0).sum()) / steps
    lines = facts.host.python_lines(trace, judging.longest(spans, 64).row)
    seen = PageableCopies(len(copies) / steps, moved_bytes, lines)
    return judging.judged(trace, seen, saved, spans=spans, confidence=judging.confidence_in(trace, saved), cut=cut)
