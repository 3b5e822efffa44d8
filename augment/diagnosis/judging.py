"""From a prediction to an answer: too little to gain is fine; without steps nothing is certain."""

from __future__ import annotations

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
