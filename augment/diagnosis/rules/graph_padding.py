"""Do decodes run as graphs that were captured for more sequences than there are?

A graph computes for the batch that it was captured for; what it has more than the step's is padding. Names of some
engines tell both (``decode[bs=117/128 …]``). The rule fires from a quarter of padding on, weighted by time. A decode
reads the weights and the cache whatever its padding, so that it costs less than its share: nothing is promised.

**What to do**: capture graphs for sizes between.
"""

from __future__ import annotations

import numpy as np

from augment.core import Trace, text
from augment.diagnosis import rule, served

NAME = "graph_padding"
LEAST_RATIO = 0.25


class GraphPadding(rule.Seen, frozen=True):
    """Padding of graphs' batches."""

    engine: str
    padding_ratio: float  #: of the batches of graphs, weighted by the time of the steps
    step_count: int  #: steps whose graph is known; not per step
    requests: int  #: of the step that pads most
    graph_requests: int  #: of its graph

    def title(self, words: text.Words) -> str:
        most = f"{self.requests} sequences run in a graph for {self.graph_requests}"
        return f"{text.percent(self.padding_ratio)} of graph batches is padding: {most}"

    def fine(self, words: text.Words, saved_ns: int) -> str:
        return f"{text.percent(self.padding_ratio)} of graph batches is padding"

    def advice(self, words: text.Words) -> str:
        option = served.option_of("eager", self.engine)
        return (
            f"Capture graphs for sizes in between ({option}); decodes are memory-bound, so they gain less than the "
            "padding"
        )


def check(trace: Trace) -> rule.Answer:
    """Sum up the padding that names tell."""
    if (steady := served.steady_steps(trace)) is None:
        return served.NO_ENGINE
    steps, places = steady
    padded = [place for place in places.tolist() if steps.batches[place].graph_requests >= 1]
    if not padded:
        return rule.NotApplicable("the names of the steps do not tell the batches of graphs")
    chosen = np.array(padded, np.int64)
    size = np.array([steps.batches[place].graph_requests for place in padded], np.float64)
    used = np.array([steps.batches[place].requests for place in padded], np.float64)
    padding, wall = np.clip(1 - used / size, 0, 1), steps.wall_ns[chosen]
    most = padded[int(padding.argmax())]
    seen = GraphPadding(
        engine=steps.batches[most].engine,
        padding_ratio=float((padding * wall).sum() / max(int(wall.sum()), 1)),
        step_count=len(padded),
        requests=steps.batches[most].requests,
        graph_requests=steps.batches[most].graph_requests,
    )
    if seen.padding_ratio < LEAST_RATIO:
        return rule.Fine(seen)
    worst = chosen[padding >= LEAST_RATIO]
    spans = rule.Spans(steps.windows.start[worst], steps.windows.end[worst], np.full(len(worst), -1, np.int64))
    return rule.Found(seen, spans, "high", severity="info")
