"""From a prediction to an answer: too little to gain is fine; without steps nothing is certain."""

from __future__ import annotations

from msgspec.structs import replace

from augment.core.attachments import RankInJob
from augment.core.text import Words
from augment.core.trace import Trace
from augment.diagnosis.measure import measure
from augment.diagnosis.rule import LEAST_RATIO, Answer, Confidence, Fine, Found, Seen, Spans
from augment.facts.critical.what_if import Cut


def judged(
    trace: Trace,
    seen: Seen,
    saved_ns: int,
    *,
    spans: Spans,
    confidence: Confidence,
    cut: Cut,
    at_most: bool = False,
) -> Answer:
    """A finding, or ``Fine`` if less than :data:`LEAST_RATIO` of a step would be saved.

    A recording without steps may be anything, also a benchmark that waits on purpose, and a single step may be the
    first of all: confidence is then ``medium`` at most.
    """
    whole = measure(trace)
    if whole.ratio(saved_ns) < LEAST_RATIO:
        return Fine(seen, saved_ns)
    if (whole.unit == "recording" or whole.count == 1) and confidence == "high":
        confidence = "medium"
    return Found(seen, spans, confidence, saved_ns, cut, at_most=at_most)


def judged_in_job(finding: Found, job: RankInJob, words: Words) -> Answer:
    """A finding of a rank whose job is known: less communication saves no more than what the job gains by it, and what
    a faster host saves, the rank waits longer for late ones."""
    seen, most = finding.seen.in_job(job)
    if seen.is_of_host and finding.saved_ns is not None:
        most = max(finding.saved_ns - job.wait_ns, 0)
    if most is None or finding.saved_ns is None:
        return replace(finding, seen=seen)
    saved, known = min(finding.saved_ns, most), seen.is_of_host or job.transfer_gain_ns is not None
    if words.ratio(saved) < LEAST_RATIO:
        return Fine(seen, saved)
    limited = saved < finding.saved_ns  # then other ranks decide, of which the cut knows nothing
    sure = finding.confidence if known or finding.confidence == "low" else "medium"
    return replace(
        finding, seen=seen, saved_ns=saved, confidence=sure, cut=None if limited else finding.cut, at_most=not known
    )
