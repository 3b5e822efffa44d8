"""The passes of a pipeline played without waits for messages, hosts or devices: when would a step end?

Passes keep the recorded order on their stage. A forward waits for that of the stage before, a backward for that of the
stage after and for its own forward, the half for weights for the half for inputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from augment.arrays.types import Int64s
from augment.facts.collectives.collective_kernels import UNKNOWN
from augment.job.parallel.schedules import Passes, both_ways
from augment.job.ranks.pipeline_actions import ActionKind

Node = tuple[ActionKind, int, int]  #: kind, part of the model from its input, microbatch
Times = Mapping[ActionKind, float]


def played(stages: Sequence[Passes], times: Sequence[Times]) -> float | None:
    """How long a step takes if a pass of each kind takes as long as ``times`` says for its stage; None if the order
    cannot be played: passes are missing, or it is not known which backward runs at once with a forward."""
    orders = [_order(stage, place, stages) for place, stage in enumerate(stages)]
    if any(order is None for order in orders):
        return None
    known = {node for order in orders for _, nodes in order or () for node in nodes}
    halves = any(kind == ActionKind.INPUT for kind, *_ in known)
    done: dict[Node, float] = {}
    clock, place = [0.0] * len(stages), [0] * len(stages)
    moved = True
    while moved:
        moved = False
        for at, order in enumerate(orders):
            while order and place[at] < len(order):
                kind, nodes = order[place[at]]
                needs = [each for node in nodes for each in _needs(node, halves=halves) if each in known]
                if any(each not in done for each in needs):
                    break
                clock[at] = max([clock[at], *(done[each] for each in needs)]) + times[at].get(kind, 0.0)
                done |= dict.fromkeys(nodes, clock[at])
                place[at] += 1
                moved = True
    finished = all(at == len(order or ()) for at, order in zip(place, orders, strict=True))
    return max(clock) if finished else None


def _needs(node: Node, *, halves: bool) -> list[Node]:
    kind, part, batch = node
    back = ActionKind.INPUT if halves else ActionKind.BACKWARD
    if kind == ActionKind.FORWARD:
        return [(ActionKind.FORWARD, part - 1, batch)]
    if kind == ActionKind.WEIGHT:
        return [(ActionKind.INPUT, part, batch)]
    return [(back, part + 1, batch), (ActionKind.BACKWARD, part + 1, batch), (ActionKind.FORWARD, part, batch)]


def _order(stage: Passes, place: int, stages: Sequence[Passes]) -> list[tuple[ActionKind, list[Node]]] | None:
    """The passes of a stage, of which an overlapped one has two nodes; None if its backward is unknown.

    Unknown microbatches are counted by kind and part: in the order of the forward or in the opposite one, backward
    takes equally long. An overlapped backward is that of the stage's other part, by the next microbatch in the order of
    the forwards.
    """
    part = _parts(stage.chunk, place, stages)
    counts: dict[tuple[int, int], int] = {}
    forwards: dict[int, list[int]] = {}
    order: list[tuple[ActionKind, list[Node]]] = []
    for kind, at, batch in zip(stage.kind.tolist(), part.tolist(), stage.microbatch.tolist(), strict=True):
        way = _WAYS[ActionKind(kind)]
        count = counts.get((way, at), 0)
        counts[way, at] = count + 1
        number = count if batch == UNKNOWN else batch
        if way == ActionKind.FORWARD:
            forwards.setdefault(at, []).append(number)
        nodes: list[Node] = [(way, at, number)]
        if kind == ActionKind.OVERLAPPED:
            other = next((each for each in part.tolist() if each != at), at)
            back = counts.get((ActionKind.BACKWARD, other), 0)
            if other == at or back >= len(forwards.get(other, ())):
                return None
            counts[ActionKind.BACKWARD, other] = back + 1
            nodes.append((ActionKind.BACKWARD, other, forwards[other][back]))
        elif way == ActionKind.BACKWARD:
            nodes = [(ActionKind(kind), at, number)]
        order.append((ActionKind(kind), nodes))
    return order


#: which count of passes each kind belongs to
_WAYS = {
    ActionKind.FORWARD: ActionKind.FORWARD,
    ActionKind.OVERLAPPED: ActionKind.FORWARD,
    ActionKind.BACKWARD: ActionKind.BACKWARD,
    ActionKind.INPUT: ActionKind.BACKWARD,
    ActionKind.WEIGHT: ActionKind.WEIGHT,
}


def _parts(chunk: Int64s, place: int, stages: Sequence[Passes]) -> Int64s:
    """The parts of the model: as labelled where each is on one stage, or on two of which microbatches go both ways;
    else in turn from stage to stage."""
    every = [set(np.unique(stage.chunk).tolist()) for stage in stages]
    distinct = sum(len(each) for each in every) == len(set().union(*every))
    if (distinct or both_ways(stages)) and UNKNOWN not in set().union(*every):
        return chunk
    chunks = np.maximum(chunk, 0)
    return chunks * len(stages) + place
