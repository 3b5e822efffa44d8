"""What the logs of PyTorch's compiler say of the process of a trace."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from augment.arrays import EventRows
from augment.core import Category, Trace, derived, records
from augment.facts import names, source

REGION = "Torch-Compiled Region: "


class LoggedCompilations(Struct, frozen=True):
    """The compilations of the trace's process in the order of the log; ``why_apart`` says why their times cannot be
    compared with the trace's, empty if they can."""

    compilations: Sequence[records.Compilation]  #: those of its rank
    why_apart: str  #: a sentence
    unreadable_records: int = 0  #: in the logs


@derived
def logged_compilations(trace: Trace) -> LoggedCompilations | str | None:
    """What logs of the compiler say of the trace's process; why there is nothing; None without a log.

    The log of a rank belongs to the trace of that rank, and a single log without a rank to any.
    """
    attached = trace.context.attached(records.CompileLogs)
    if attached is None:
        return None
    alone = not len(trace.events) or trace.rank is None
    logs = [log for log in attached.logs if alone or log.rank is None or log.rank == trace.rank]
    if len(logs) > 1 and len(trace.events):
        met = [log for log in logs if (log.period is not None and not source.apart(trace, *log.period, ""))]
        logs = met or logs
        if len(logs) > 1 and not any(log.rank is not None for log in logs):
            return f"{len(logs)} logs of the compiler say no rank: name the one of this trace"
    if not logs:
        ranks = ", ".join(sorted({str(log.rank) for log in attached.logs}))
        return f"the logs of the compiler are of rank {ranks}, the trace of rank {trace.rank}"
    compilations = [each for log in logs for each in log.compilations]
    periods = [log.period for log in logs if log.period]
    why = "the log of the compiler does not say when it compiled"
    if periods:
        first, last = min(begin for begin, _ in periods), max(end for _, end in periods)
        why = source.apart(trace, first, last, "the log of the compiler")
    return LoggedCompilations(compilations, why, sum(log.unreadable_records for log in logs))


@derived(until="breakdowns")
def regions(trace: Trace) -> dict[str, EventRows]:
    """The calls of each region that torch.compile made, by its compile id."""
    rows = trace.events.slices_of(Category.CPU_OP, Category.USER_ANNOTATION)
    rows = rows[names.starting(trace, REGION)[trace.events.name[rows]]]
    code = trace.events.name[rows]
    ids = {name: trace.strings[name].removeprefix(REGION).split(" ")[0] for name in np.unique(code).tolist()}
    return {number: rows[code == name] for name, number in ids.items()}
