"""Does the rank wait for a late rank of its job, or is it the late one?

One trace cannot tell: a collective takes long on all ranks if one of them is late. The traces of all ranks together
tell which, and why ([jobs](jobs.md)): in a merged timeline, and in the diagnosis of a folder, a rank that waits says
for whom. What it waits is no fault of its own communication, and `exposed_communication` then speaks of transfers
alone. The prediction is that of the job: what its replay gains if the late rank were like the median of its peers.

**What to do**: ``augment diagnose FOLDER`` with the traces of all ranks; fix the rank that is late.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from augment.arrays.ordering import sums
from augment.core.job_waits import JobWaits, LateRank
from augment.core.text import Words, percent, time
from augment.core.trace import Trace
from augment.diagnosis.late_ranks import MOST_OF_IT, fix_rank, nobody_late, way_to_fix
from augment.diagnosis.measure import measure
from augment.diagnosis.rule import (
    LEAST_RATIO,
    Answer,
    Fine,
    Found,
    NoData,
    NotApplicable,
    Seen,
    Spans,
)
from augment.facts.collectives.instances import Waiting, collectives, waiting_of_job

NAME = "straggling_rank"


class StragglingRank(Seen, frozen=True):
    """Waiting for late ranks, or being late."""

    wait_ns: int  #: of this rank for others, per step
    waits_for: str = ""  #: the rank that most of the wait is for; empty if that is no single one
    most_ratio: float = 0.0  #: the share of that
    late: LateRank | None = None  #: the rank to change; this one, if it ``is_own``

    def title(self, words: Words) -> str:
        late, whole = self.late, f"{time(self.wait_ns)} {words.per_step} ({percent(words.ratio(self.wait_ns))})"
        if late is not None and late.is_own:
            longer = f"it takes {time(late.charged_ns)} {words.per_step} longer than its peers"
            return f"Other ranks wait for this one: {longer} ({late.reason.text})"
        mostly = f", mostly ({percent(self.most_ratio)}) {self.waits_for}" if self.waits_for else ""
        title = f"For {whole} the {words.gpu} does nothing but wait for other ranks{mostly}"
        if late is None:
            return title
        named = late.name == self.waits_for
        return f"{title} ({late.reason.text})" if named else f"{title}; {late.name} delays the job ({late.reason.text})"

    def cure(self, words: Words) -> str:
        late = self.late
        return "fixing that" if late is None else f"making {'it' if late.is_own else late.name} like the median"

    def fine(self, words: Words, saved_ns: int) -> str:
        return f"waiting for late ranks takes {words.share(self.wait_ns)}"

    def advice(self, words: Words) -> str:
        if self.late is None:
            return nobody_late(self.waits_for)
        if self.late.is_own:
            return f"This rank delays the job: {way_to_fix(self.late)}"
        return fix_rank(self.late, self.wait_ns)

    def evidence(self, words: Words) -> Sequence[str]:
        is_own = self.late is not None and self.late.is_own
        return [f"it waits for others itself for {words.share(self.wait_ns)}"] if is_own else []


def check(trace: Trace) -> Answer:
    """Say for whom the rank waits, or what it would take to know."""
    waits = trace.context.attached(JobWaits)
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
        return Fine(StragglingRank(waited))
    return _waits(waits, waiting, waited)


def _in_steps(trace: Trace) -> Waiting:
    """The waits that begin in steady steps."""
    waiting, windows = waiting_of_job(trace), measure(trace).windows
    place = np.searchsorted(windows.start, waiting.start, side="right") - 1
    inside = (place >= 0) & (waiting.start < windows.end[np.maximum(place, 0)])
    return Waiting(*(getattr(waiting, name)[inside] for name in Waiting.__struct_fields__))


def _waits(waits: JobWaits, waiting: Waiting, waited: int) -> Answer:
    """The finding of a rank that waits."""
    for_each = sums(waiting.late, waiting.end - waiting.start, len(waits.ranks))
    most = int(np.argmax(for_each))
    share = float(for_each[most] / max(int(for_each.sum()), 1))
    named = waits.ranks[most] if share >= MOST_OF_IT else ""
    late = next((each for each in waits.late_ranks if each.name == named), next(iter(waits.late_ranks), None))
    saved = None if late is None or late.gain_ns is None else max(min(late.gain_ns, waited), 0)
    return Found(
        StragglingRank(waited, named, share, late),
        Spans(waiting.start, waiting.end, waiting.row),
        "medium" if late is None else late.confidence,
        saved,
    )


def _late(trace: Trace, waits: JobWaits, itself: LateRank, waited: int) -> Answer:
    """The finding of a rank that others wait for."""
    gain = itself.gain_ns
    rows, lead = waits.row[waits.lead_ns > 0], waits.lead_ns[waits.lead_ns > 0]
    arrival = trace.events.ts[rows]
    spans = Spans(arrival - lead, arrival, rows)
    saved = gain if gain is not None and gain > 0 else None
    return Found(StragglingRank(waited, late=itself), spans, itself.confidence, saved)
