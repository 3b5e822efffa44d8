"""The passes of a pipeline played without waits for messages, hosts or devices: when would a step end?

Passes keep the recorded order on their stage. A forward waits for that of the stage before, a backward for that of the
stage after and for its own forward, the half for weights for the half for inputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from augment.arrays.types import Int64s
from augment.derived.collectives.collectives import UNKNOWN
from augment.job.parallel.schedules import Passes
from augment.job.pipeline_actions import Kind

Node = tuple[Kind, int, int]  #: kind, part of the model from its input, microbatch
Times = Mapping[Kind, float]


def played(stages: Sequence[Passes], times: Sequence[Times]) -> float | None:
    """How long a step takes if a pass of each kind takes as long as ``times`` says for its stage; None if the order
    cannot be played: passes are missing, or a forward and a backward run at once."""
    orders = [_nodes(stage, place, stages) for place, stage in enumerate(stages)]
    if any(kind == Kind.OVERLAPPED for order in orders for kind, *_ in order):
        return None
    known = {node for order in orders for node in order}
    halves = any(kind == Kind.INPUT for kind, *_ in known)
    done: dict[Node, float] = {}
    clock, place = [0.0] * len(stages), [0] * len(stages)
    moved = True
    while moved:
        moved = False
        for at, order in enumerate(orders):
            while place[at] < len(order):
                node = order[place[at]]
                needs = [each for each in _needs(node, halves=halves) if each in known]
                if any(each not in done for each in needs):
                    break
                start = max([clock[at], *(done[each] for each in needs)])
                clock[at] = done[node] = start + times[at].get(node[0], 0.0)
                place[at] += 1
                moved = True
    finished = all(at == len(order) for at, order in zip(place, orders, strict=True))
    return max(clock) if finished else None


def _needs(node: Node, *, halves: bool) -> list[Node]:
    kind, part, batch = node
    back = Kind.INPUT if halves else Kind.BACKWARD
    if kind == Kind.FORWARD:
        return [(Kind.FORWARD, part - 1, batch)]
    if kind == Kind.WEIGHT:
        return [(Kind.INPUT, part, batch)]
    return [(back, part + 1, batch), (Kind.BACKWARD, part + 1, batch), (Kind.FORWARD, part, batch)]


def _nodes(stage: Passes, place: int, stages: Sequence[Passes]) -> list[Node]:
    """The passes of a stage. Unknown microbatches are counted by kind and part: in the order of the forward or in the
    opposite one, backward takes equally long."""
    part = _parts(stage.chunk, place, stages)
    counts: dict[tuple[int, int], int] = {}
    nodes = []
    for kind, at, batch in zip(stage.kind.tolist(), part.tolist(), stage.microbatch.tolist(), strict=True):
        count = counts.get((kind, at), 0)
        counts[kind, at] = count + 1
        nodes.append((Kind(kind), at, count if batch == UNKNOWN else batch))
    return nodes


def _parts(chunk: Int64s, place: int, stages: Sequence[Passes]) -> Int64s:
    """The parts of the model: as labelled where each is on one stage, else in turn from stage to stage."""
    every = [set(np.unique(stage.chunk).tolist()) for stage in stages]
    distinct = sum(len(each) for each in every) == len(set().union(*every))
    if distinct and UNKNOWN not in set().union(*every):
        return chunk
    chunks = np.maximum(chunk, 0)
    return chunks * len(stages) + place
