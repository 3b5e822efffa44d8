"""Does Python collect garbage in the steps?

Python's cyclic collector stops the process whenever enough objects have been made; with many objects a full collection
takes tens of milliseconds, at another moment on each rank. PyTorch records collections as ``Python GC`` if asked to;
explicit calls of ``gc.collect()`` show with stacks. The prediction takes both out of the steps.

**What to do**: ``gc.collect(); gc.freeze()`` after start-up, so that objects that stay are not looked at again; or
``gc.disable()``, and ``gc.collect()`` every so many steps on all ranks at once; no ``gc.collect()`` in the step.
``torch._C._profiler._ExperimentalConfig(record_python_gc_info=True)`` with ``with_stack=True`` records collections.
"""

from __future__ import annotations

import re

import numpy as np

from augment.arrays.ordering import is_any
from augment.arrays.types import Int64s
from augment.core.text import Words, called_from, counted, time
from augment.core.trace import COMPLETE, ON_DEVICE, Category, Trace
from augment.diagnosis.judging import judged
from augment.diagnosis.measure import host_cut, longest, measure, rows_in_steps, saved_by_host
from augment.diagnosis.rule import (
    Answer,
    NotApplicable,
    Seen,
    Spans,
)
from augment.facts.critical.critical_graph import critical_graph
from augment.facts.critical.handovers import main_track
from augment.facts.gpu.gpu_work import gpu_work
from augment.facts.host.call_stacks import python_lines
from augment.facts.names.name_masks import matching

NAME = "garbage_collection"
_NAMES = re.compile(
    r"^(?:Python )?GC$|^gc[.:]|^<built-in (?:function|method) collect(?: of module object)?\b|\bgc\.collect\b"
)
_FLAG = "_ExperimentalConfig(record_python_gc_info=True) with with_stack=True"


class Collections(Seen, frozen=True):
    """Collections of Python's garbage."""

    collection_count: float
    longest_ns: int
    lines: list[str]  #: of the user's program

    def title(self, words: Words) -> str:
        often = f"{counted(self.collection_count, 'time')} {words.per_step}"
        return f"Python collects garbage {often}, for up to {time(self.longest_ns)}"

    def cure(self, words: Words) -> str:
        return "avoiding that"

    def fine(self, words: Words, saved_ns: int) -> str:
        return f"{self.title(words)}: costs {words.share(saved_ns)}"

    def advice(self, words: Words) -> str:
        way = (
            "Call gc.freeze() after start-up, or gc.disable() and gc.collect() every so many steps on all ranks at once"
        )
        return way + called_from(self.lines)


def check(trace: Trace) -> Answer:
    """Predict steps without collections."""
    if not len(gpu_work(trace)):
        return NotApplicable("no {gpu} work was recorded that the host could hold up")
    rows = collections(trace)
    if not len(rows):
        return NotApplicable("no collection of Python's garbage was recorded")
    spans = Spans.of(trace, rows)
    track = trace.events.track[rows]
    track = np.where(np.isin(track, critical_graph(trace).lane), track, main_track(trace)).astype(np.int32)
    cut = host_cut(trace, track, spans.start, spans.end)
    saved = saved_by_host(trace, cut)
    seen = Collections(
        collection_count=len(rows) / measure(trace).count,
        longest_ns=int((spans.end - spans.start).max()),
        lines=python_lines(trace, longest(spans, 64).row),
    )
    return judged(trace, seen, saved, spans=spans, confidence="high", cut=cut)


def collections(trace: Trace) -> Int64s:
    """The rows of collections in steady steps; of those within each other, the outermost."""
    events = trace.events
    named = matching(trace, _NAMES)
    rows = np.flatnonzero((events.phase == COMPLETE) & named.take(events.name[:]) & (events.dur > 0))
    rows = rows[~is_any(events.category[rows], (*ON_DEVICE, Category.CPU_OP))]
    rows = rows_in_steps(trace, rows)
    end = events.ts[rows] + events.dur[rows]
    inside = np.zeros(len(rows), np.bool_)
    inside[1:] = end[1:] <= np.maximum.accumulate(end)[:-1]
    kept: Int64s = rows[~inside]
    return kept
