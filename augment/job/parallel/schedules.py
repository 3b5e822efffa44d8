"""Which schedule the stages of a pipeline follow, from the order of their passes, and its bubble in theory.

With p stages, m microbatches, v chunks of the model a stage, and F, B, W the times of a forward, of a whole backward
and of its half for weights, for one microbatch on the slowest stage, the bubble of a step takes

- ``(p-1)(F+B)`` by GPipe and 1F1B (arXiv 1811.06965, 1806.03377),
- ``(p-1)(F+B)/v`` if interleaved (arXiv 2104.04473),
- ``(p-1)(F+B-2W)`` by ZB1P, and nothing by ZB2P and ZBV (arXiv 2401.10241),
- ``(p/2-1)(F&B+B-3W)`` by DualPipe and, with p twice the stages, DualPipeV, with F&B the time of a forward and a
  backward at once, and all times those of one chunk (DeepSeek's README; exact if F, W and the rest of B are equal).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct

from augment.arrays import NO_VALUE, Int64s
from augment.job.ranks import ActionKind

GPIPE, ONE_F_ONE_B, EITHER = "GPipe", "1F1B", "GPipe or 1F1B"
INTERLEAVED, LOOPED = "interleaved 1F1B", "looped GPipe"
ZB1P, ZB2P, ZBV, INTERLEAVED_ZB = "ZB1P", "ZB2P", "ZBV", "interleaved zero bubble"
DUALPIPE, DUALPIPEV = "DualPipe", "DualPipeV"
UNKNOWN = "unknown"


class Passes(Struct, frozen=True):
    """The passes of one stage in one step, in the order of the host: int64 columns as of ``Actions``."""

    kind: Int64s
    chunk: Int64s
    microbatch: Int64s

    @property
    def warm_up(self) -> int:
        """Forwards before the first backward."""
        back = np.flatnonzero(
            np.isin(self.kind, (ActionKind.BACKWARD, ActionKind.INPUT, ActionKind.WEIGHT, ActionKind.OVERLAPPED))
        )
        return int(np.count_nonzero(self.kind[: back[0]] == ActionKind.FORWARD)) if len(back) else len(self.kind)

    def count(self, *kinds: ActionKind) -> int:
        """The passes of these kinds."""
        return int(np.count_nonzero(np.isin(self.kind, kinds)))

    @property
    def chunks(self) -> int:
        """Parts of the model on the stage."""
        return max(len(np.unique(self.chunk)), 1)

    @property
    def microbatches(self) -> int:
        """Forwards of each part; by DualPipe the microbatches of both directions, if they are known."""
        known = np.unique(self.microbatch[np.isin(self.kind, (ActionKind.FORWARD, ActionKind.OVERLAPPED))])
        if ActionKind.OVERLAPPED in self.kind and NO_VALUE not in known:
            return len(known)
        return int(np.count_nonzero(np.isin(self.kind, (ActionKind.FORWARD, ActionKind.OVERLAPPED)))) // self.chunks


def parted(stages: Sequence[Passes]) -> Sequence[Passes]:
    """The same passes with parts of the model where those are not recorded but the order shows them: by interleaved
    1F1B, stage s of p goes forward ``2(p-1-s) + (v-1)p + 1`` times before it goes backward, and all microbatches go in
    rounds of p through each of its v parts (arXiv 2104.04473, Megatron's ``schedules.py``)."""
    count, many = len(stages), stages[0].microbatches
    if any((stage.chunk != NO_VALUE).any() or stage.microbatches != many for stage in stages):
        return stages
    chunks, rest = divmod(stages[-1].warm_up - 1, count)
    chunks += 1
    if rest or chunks < 2 or many % (chunks * count):
        return stages
    ahead = [min(2 * (count - 1 - place) + (chunks - 1) * count + 1, many) for place in range(count)]
    whole = [np.count_nonzero(stage.kind == ActionKind.BACKWARD) == many == len(stage.kind) // 2 for stage in stages]
    if not all(whole) or [stage.warm_up for stage in stages] != ahead or ahead[-1] == many:
        return stages
    chunk = np.arange(many) % (chunks * count) // count
    out = []
    for stage in stages:
        is_forward = stage.kind == ActionKind.FORWARD
        of_pass = np.empty(len(stage.kind), np.int64)
        of_pass[is_forward], of_pass[~is_forward] = chunk, chunks - 1 - chunk
        out.append(Passes(stage.kind, of_pass, stage.microbatch))
    return out


def recognised(steps: Sequence[Sequence[Passes]]) -> str:
    """The schedule of most steps; each step has the passes of every stage, the first stage first."""
    counts = Counter(_of_step(stages) for stages in steps)
    name, count = counts.most_common(1)[0] if counts else (UNKNOWN, 0)
    return name if 2 * count > len(steps) else UNKNOWN


def _of_step(stages: Sequence[Passes]) -> str:
    kinds = np.unique(np.concatenate([stage.kind for stage in stages])).tolist()
    many, chunks = stages[0].microbatches, stages[0].chunks
    count = len(stages)
    if any((stage.microbatches, stage.chunks) != (many, chunks) for stage in stages):
        return UNKNOWN
    if ActionKind.OVERLAPPED in kinds:
        parts, last = [set(np.unique(stage.chunk).tolist()) for stage in stages], 2 * count - 1
        is_v = parts == [{at, last - at} for at in range(count)]  # the parts of the model lie in the shape of a V
        return DUALPIPE if both_ways(stages) else DUALPIPEV if is_v else UNKNOWN
    warm = [stage.warm_up for stage in stages]
    if ActionKind.INPUT in kinds or ActionKind.WEIGHT in kinds:
        if stages[0].chunks == 1:
            return ZB2P if warm[0] > len(stages) else ZB1P
        first = set(np.unique(stages[0].chunk).tolist())
        return ZBV if first == {0, 2 * len(stages) - 1} else INTERLEAVED_ZB
    whole = [many * chunks] * count
    if chunks == 1:
        usual = [min(count - place, many) for place in range(count)]
        names = {EITHER: warm == usual == whole, ONE_F_ONE_B: warm == usual, GPIPE: warm == whole}
        return next((name for name, fits in names.items() if fits), UNKNOWN)
    ahead = [2 * (count - 1 - place) + (chunks - 1) * count + 1 for place in range(count)]
    if warm == [min(each, many * chunks) for each in ahead] and warm != whole:
        return INTERLEAVED
    return LOOPED if warm == whole else UNKNOWN


def both_ways(stages: Sequence[Passes]) -> bool:
    """Whether microbatches go through the stages in both directions: stages r and p-1-r have both parts of the two."""
    last, overlapped = len(stages) - 1, any((stage.kind == ActionKind.OVERLAPPED).any() for stage in stages)
    return overlapped and all(
        set(np.unique(stage.chunk).tolist()) == {at, last - at} for at, stage in enumerate(stages)
    )


def bubble(name: str, stages: int, chunks: int, times: dict[ActionKind, float]) -> float | None:
    """The bubble of a step in theory; None for a schedule without known theory.

    Args:
        times: of each kind for one microbatch, of all chunks of the slowest stage, in any unit.
    """
    forward, weight = times.get(ActionKind.FORWARD, 0.0), times.get(ActionKind.WEIGHT, 0.0)
    backward = times.get(ActionKind.BACKWARD, 0.0) + times.get(ActionKind.INPUT, 0.0) + weight
    return {
        GPIPE: (stages - 1) * (forward + backward),
        ONE_F_ONE_B: (stages - 1) * (forward + backward),
        EITHER: (stages - 1) * (forward + backward),
        INTERLEAVED: (stages - 1) * (forward + backward) / chunks,
        LOOPED: (stages - 1) * (forward + backward) / chunks,
        ZB1P: max((stages - 1) * (forward + backward - 2 * weight), 0.0),
        ZB2P: 0.0,
        ZBV: 0.0,
    }.get(name)


# The passes of a pipeline played without waits for messages, hosts or devices: when would a step end?
#
# Passes keep the recorded order on their stage. A forward waits for that of the stage before, a backward for that of
# the stage after and for its own forward, the half for weights for the half for inputs.


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
        number = count if batch == NO_VALUE else batch
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
    if (distinct or both_ways(stages)) and NO_VALUE not in set().union(*every):
        return chunk
    chunks = np.maximum(chunk, 0)
    return chunks * len(stages) + place
