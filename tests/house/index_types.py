"""Indexes of one space are refused where another's are expected.

mypy checks this module with the packages (``make check``), and reports each ``ignore`` that it does not need. Nothing
runs it.
"""

from __future__ import annotations

import numpy as np

from augment import facts
from augment.arrays import EventRow, MemberIndexes
from augment.core.trace import Category, Trace
from augment.job.matching.matching import Matched


def accepted(trace: Trace) -> None:
    """Masks, orders and parts of indexes are indexes of the same space."""
    work, stacks = facts.gpu.work(trace), facts.host.stacks(trace)
    chosen = work.where(work.ts > 0)
    trace.names_of(work.row[chosen])
    trace.names_of(np.sort(work.launch[work.launch >= 0])[:3])
    facts.critical.without_work(trace, np.concatenate((chosen, work.by_time[:1])), work.ts)
    facts.gpu.launched(trace).under(stacks.where(stacks.row >= 0))
    trace.names_of(np.full(2, 0, EventRow))


def refused(trace: Trace, matched: Matched) -> MemberIndexes:
    """What would read the wrong entries, without a word."""
    work, stacks, collectives = facts.gpu.work(trace), facts.host.stacks(trace), facts.collectives.kernels(trace)
    rows = trace.events.slices_of(Category.KERNEL)
    trace.names_of(work.by_time)  # type: ignore[arg-type]
    trace.names_of(np.flatnonzero(work.ts > 0))  # type: ignore[arg-type]
    work.stream_of(rows)  # type: ignore[arg-type]
    facts.critical.without_work(trace, work.row, work.ts)  # type: ignore[arg-type]
    facts.gpu.launched(trace).under(stacks.row)  # type: ignore[arg-type]
    facts.gpu.launched(trace).under(rows[work.launch >= 0])  # type: ignore[arg-type]
    facts.collectives.exposed_ns(trace, collectives.place, collectives.ts)  # type: ignore[arg-type]
    return matched.instance  # type: ignore[return-value]
