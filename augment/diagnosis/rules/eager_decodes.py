"""Do some decodes launch every kernel, while others run as graphs?

An engine captures graphs for some sizes of the batch. A decode of another size, or with what graphs do not support,
launches each kernel, and the device waits for the host. The rule compares decodes of which graphs launched less than a
tenth of the work with those of which they launched more than half. What it promises is the idle time that the former
have more, and no more than they take longer.

**What to do**: capture graphs for these sizes of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from augment import arrays
from augment.core import Trace, text
from augment.diagnosis import judging, rule, served

NAME = "eager_decodes"
EAGER, GRAPH, LEAST_STEPS = 0.1, 0.5, 3  #: shares of the work that graphs launched; steps with graphs to compare with


class EagerDecodes(rule.Seen, frozen=True):
    """Decodes without graphs among those with graphs."""

    engine: str
    eager_count: int  #: steps; not per step
    decode_count: int
    eager_ns: int  #: the median of them
    graph_ns: int  #: the median of the others
    least_requests: int | None  #: the smallest batch without a graph
    most_with_graph: int | None  #: the largest batch with one
    CURE = "running them as graphs"

    def title(self, words: text.Words) -> str:
        takes = f"{text.time(self.eager_ns)} instead of {text.time(self.graph_ns)}"
        return f"{self.eager_count} of {self.decode_count} decodes run without graphs and take {takes}"

    @property
    def _is_larger(self) -> bool:
        sizes = self.least_requests, self.most_with_graph
        return sizes[0] is not None and sizes[1] is not None and sizes[0] > sizes[1]

    def advice(self, words: text.Words) -> str:
        option = served.option_of("eager", self.engine)
        why = "their batches are larger than those with graphs" if self._is_larger else "see which sizes have graphs"
        return f"Capture graphs for their batches: {option} ({why})"

    def evidence(self, words: text.Words) -> Sequence[str]:
        if not self._is_larger:
            return []
        return [f"from {self.least_requests} sequences on; with graphs at most {self.most_with_graph}"]


def check(trace: Trace) -> rule.Answer:
    """Compare decodes without graphs with those that have them."""
    if (steady := served.steady_steps(trace)) is None:
        return served.NO_ENGINE
    steps, places = steady
    decodes = places[[steps.batches[place].phase == "decode" for place in places.tolist()]]
    ratio = steps.graph_ratio[decodes]
    eager, graphs = decodes[ratio < EAGER], decodes[ratio > GRAPH]
    if len(graphs) < LEAST_STEPS:
        return rule.NotApplicable("hardly any decode runs as a graph")
    if not len(eager):
        return rule.Fine("all decodes run as graphs")
    idle = steps.wall_ns - steps.busy_ns
    longer = steps.wall_ns[eager] - int(arrays.median(steps.wall_ns[graphs]))
    waiting = idle[eager] - int(arrays.median(idle[graphs]))
    saved = int(np.maximum(np.minimum(longer, waiting), 0).sum()) // judging.measure(trace).count
    without, with_graph = (
        [steps.batches[place].requests for place in some.tolist() if steps.batches[place].requests >= 0]
        for some in (eager, graphs)
    )
    seen = EagerDecodes(
        engine=steps.batches[int(eager[0])].engine,
        eager_count=len(eager),
        decode_count=len(decodes),
        eager_ns=int(arrays.median(steps.wall_ns[eager])),
        graph_ns=int(arrays.median(steps.wall_ns[graphs])),
        least_requests=min(without, default=None),
        most_with_graph=max(with_graph, default=None),
    )
    if judging.measure(trace).ratio(saved) < rule.LEAST_RATIO:
        return rule.Fine(seen, saved)
    spans = rule.Spans(steps.windows.start[eager], steps.windows.end[eager], np.full(len(eager), -1, np.int64))
    return rule.Found(seen, spans, "medium", saved)
