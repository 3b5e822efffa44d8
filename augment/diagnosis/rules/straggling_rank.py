"""Does the rank wait for a late rank of its job, or is it the late one?

One trace cannot tell: a collective takes long on all ranks if one of them is late. The traces of all ranks together
tell which, and why ([jobs](jobs.md)): in a merged timeline, and in the diagnosis of a folder, a rank that waits says
for whom. What it waits is no fault of its own communication, and `exposed_communication` then speaks of transfers
alone. The prediction is that of the job: what its replay gains if the late rank were like the median of its peers.

**What to do**: ``augment diagnose FOLDER`` with the traces of all ranks; mend the rank that is late.
"""

from __future__ import annotations

import numpy as np

from augment.arrays.ordering import sums
from augment.derived.collectives.collectives import collectives
from augment.derived.collectives.waits_of_job import Waiting, waiting_of_job
from augment.diagnosis.measure import measure
from augment.diagnosis.rule import LEAST_RATIO, Answer, Fine, Found, NoData, NotApplicable, Spans
from augment.diagnosis.wording import a_step, of_a_step, percent, shorter, time
from augment.job_waits import JobWaits, LateRank
from augment.trace import Trace

NAME = "straggling_rank"
MOST_OF_IT = 0.5  #: share of the waits for one rank, to name it
_TURNS = (
    "No single rank holds the job up: the ranks take turns at being late. Even out their work (lengths of sequences, "
    "data loading), or let them meet less often (no_sync() while accumulating, larger batches)"
)
_OF_CAUSE = {
    "host": "look at what its host does before collectives: its own findings name it",
    "compute": "give it less work, or compare its device's clock and kernels with those of its peers",
}
_OF_OTHER = "look at its own findings"


def check(trace: Trace) -> Answer:
    """Say for whom the rank waits, or what it would take to know."""
    waits = trace.job_waits
    if not len(collectives(trace)):
        return NotApplicable("this rank communicates with no other")
    if waits is None:
        return NoData(
            "which rank comes late to collectives is in no single trace",
            "run augment diagnose FOLDER with the traces of all ranks",
        )
    itself = next((late for late in waits.late_ranks if late.is_own), None)
    waiting = _in_steps(trace)
    waited = int((waiting.end - waiting.start).sum()) // measure(trace).count
    if itself is not None:
        return _late(trace, waits, itself, waited)
    if measure(trace).ratio(waited) < LEAST_RATIO:
        return Fine(f"waiting for late ranks takes {of_a_step(trace, waited)}")
    return _waits(trace, waits, waiting, waited)


def _in_steps(trace: Trace) -> Waiting:
    """The waits that begin in steady steps."""
    waiting, windows = waiting_of_job(trace), measure(trace).windows
    place = np.searchsorted(windows.start, waiting.start, side="right") - 1
    inside = (place >= 0) & (waiting.start < windows.end[np.maximum(place, 0)])
    return Waiting(*(getattr(waiting, name)[inside] for name in Waiting.__struct_fields__))


def _waits(trace: Trace, waits: JobWaits, waiting: Waiting, waited: int) -> Answer:
    """The finding of a rank that waits."""
    for_each = sums(waiting.late, waiting.end - waiting.start, len(waits.ranks))
    most = int(np.argmax(for_each))
    share = for_each[most] / max(int(for_each.sum()), 1)
    named = waits.ranks[most] if share >= MOST_OF_IT else ""
    late = next((each for each in waits.late_ranks if each.name == named), next(iter(waits.late_ranks), None))
    whole = f"{time(waited)} {a_step(trace)} ({percent(measure(trace).ratio(waited))})"
    title = f"The GPU only waits for other ranks for {whole}"
    if named:
        title += f", {percent(share)} of it for {named}"
    if late is not None:
        title += f" ({late.reason})" if late.name == named else f"; {late.name} holds up the job ({late.reason})"
    saved = None if late is None or late.gain_ns is None else max(min(late.gain_ns, waited), 0)
    if late is not None and saved:
        title += f"; were {late.name} like the median, {shorter(trace, saved)}"
    return Found(
        title=title,
        advice=nobody(named) if late is None else mend(late, waited),
        spans=Spans(waiting.start, waiting.end, waiting.row),
        confidence="medium" if late is None else late.confidence,
        saved_ns=saved,
    )


def _late(trace: Trace, waits: JobWaits, itself: LateRank, waited: int) -> Answer:
    """The finding of a rank that others wait for."""
    longer = f"it takes {time(itself.charged_ns)} {a_step(trace)} longer than its peers"
    title = f"Other ranks wait for this one: {longer} ({itself.reason})"
    gain = itself.gain_ns
    if gain is not None and gain > 0:
        title += f"; were it like the median, {shorter(trace, gain)}"
    rows, lead = waits.row[waits.lead_ns > 0], waits.lead_ns[waits.lead_ns > 0]
    arrival = trace.events.ts[rows]
    return Found(
        title=title,
        advice=f"This rank holds the job up: {way(itself)}",
        spans=Spans(arrival - lead, arrival, rows),
        confidence=itself.confidence,
        saved_ns=gain if gain is not None and gain > 0 else None,
        evidence=[f"it waits for others itself for {of_a_step(trace, waited)}"],
    )


def nobody(named: str) -> str:
    """What to do where no rank holds the job up; ``named``: the rank that this one mostly waits for, if it is one."""
    return f"By the figures of the job, mending {named} alone would gain little" if named else _TURNS


def mend(late: LateRank, waited_ns: float) -> str:
    """What to do about a late rank, of a rank that waits ``waited_ns`` per step: in vain, most of it, if others would
    be late in its place."""
    remains = late.gain_ns is not None and late.gain_ns < waited_ns / 2
    hedge = " (most of the wait would remain)" if remains else ", not the communication here"
    return f"Mend {late.name}{hedge}: {way(late)}"


def way(late: LateRank) -> str:
    """What to do about a late rank, to end an advice with."""
    return _OF_CAUSE.get(late.cause, _OF_OTHER)
