"""In which order the stages of a pipeline pass microbatches forward and backward, and what the bubbles of that cost.

A stage has one or several parts of the model. An action is ``F`` (forward), ``B`` (a whole backward) or its halves
``I`` (for inputs) and ``W`` (for weights), of a part and a microbatch; or ``O``: a forward, and a backward of another.

By DualPipe (arXiv 2412.19437) the microbatches of the second half go through the stages from the last to the first, so
that a stage has the parts of two.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

_V = ("zbv", "dualpipev")  #: schedules whose parts lie in the shape of a V


class Action(NamedTuple):
    """A pass of a microbatch through a part of the model, counted from the input.

    ``also`` is the part and the microbatch of the backward of ``O``.
    """

    kind: str
    part: int
    batch: int
    also: tuple[int, int] = (-1, -1)

    def passes(self) -> list[Action]:
        """The action as forwards and backwards."""
        return [Action("F", self.part, self.batch), Action("B", *self.also)] if self.kind == "O" else [self]


def chunks_of(schedule: str) -> int:
    """Parts of the model that a stage has."""
    return {"interleaved": 2, "zbv": 2, "dualpipe": 2, "dualpipev": 2}.get(schedule, 1)


def parts_in(schedule: str, stages: int) -> int:
    """Parts of the model; by DualPipe each is on two stages."""
    return stages * (1 if schedule == "dualpipe" else chunks_of(schedule))


def parts_of(schedule: str, stage: int, stages: int) -> list[int]:
    """The parts of a stage: in turn from stage to stage, in the shape of a V, or in both directions."""
    if schedule in (*_V, "dualpipe"):
        return [stage, parts_in(schedule, stages) - 1 - stage]
    return [stage + stages * at for at in range(chunks_of(schedule))]


def stage_of(schedule: str, part: int, stages: int, *, back: bool = False) -> int:
    """The stage that has a part; ``back``: for microbatches that go from the last stage to the first."""
    if back:
        return stages - 1 - part
    return 2 * stages - 1 - part if schedule in _V and part >= stages else part % stages


def goes_back(schedule: str, batch: int, many: int) -> bool:
    """Whether a microbatch goes from the last stage to the first."""
    return schedule == "dualpipe" and batch >= many // 2


def sends_of(schedule: str, stage: int, stages: int, many: int) -> Iterator[tuple[int, Action]]:
    """What a stage sends in the order of its actions: to which stage, and for which action there.

    ``F`` stands for activations, ``B`` for gradients.
    """
    for action in order_of(schedule, stage, stages, many):
        for kind, part, batch, _ in action.passes():
            following = part + 1 if kind == "F" else part - 1 if kind in "BI" else -1
            back = goes_back(schedule, batch, many)
            if 0 <= following < parts_in(schedule, stages):
                to = stage_of(schedule, following, stages, back=back)
                if to != stage:
                    yield to, Action("F" if kind == "F" else "B", following, batch)


def order_of(schedule: str, stage: int, stages: int, many: int) -> list[Action]:
    """All actions of a stage in a step of ``many`` microbatches."""
    orders = {
        "interleaved": _interleaved,
        "zb1p": _zb1p,
        "zbv": _zbv,
        "dualpipe": _dualpipe,
        "dualpipev": _dualpipev,
    }
    return list(orders[schedule](stage, stages, many))


def ideal_bubble(schedule: str, stages: int, forward: float, inputs: float, weights: float) -> float:
    """The bubble of a step, if passes take so long for one microbatch of a stage and messages no time."""
    whole = forward + inputs + weights
    return {
        "gpipe": (stages - 1) * whole,
        "1f1b": (stages - 1) * whole,
        "interleaved": (stages - 1) * whole / chunks_of(schedule),
        "zb1p": (stages - 1) * (forward + inputs - weights),
        "zbv": (stages - 1) * forward / 2,  # until the last stage begins: the paper does not count that
        # DeepSeek's README: (p/2-1)(F&B+B-3W) of p stages in one direction, here with F&B = F + B
        "dualpipe": (stages / 2 - 1) * (forward + 2 * inputs - weights) / 2,
        "dualpipev": (stages - 1) * (forward + 2 * inputs - weights) / 2,
    }[schedule]


def _interleaved(stage: int, stages: int, many: int) -> Iterator[Action]:
    """Interleaved 1F1B (arXiv 2104.04473), as Megatron: microbatches go in rounds of as many as there are stages."""
    chunks, total = chunks_of("interleaved"), many * chunks_of("interleaved")

    def action(kind: str, number: int) -> Action:
        in_round, a_round = number % (stages * chunks), number // (stages * chunks)
        chunk = in_round // stages if kind == "F" else chunks - 1 - in_round // stages
        return Action(kind, stage + stages * chunk, a_round * stages + in_round % stages)

    ahead = min(2 * (stages - 1 - stage) + (chunks - 1) * stages, total)
    for number in range(total + ahead):
        if number < total:
            yield action("F", number)
        if number >= ahead:
            yield action("B", number - ahead)


def _zb1p(stage: int, stages: int, many: int) -> Iterator[Action]:
    """ZB-H1 (arXiv 2401.10241): as 1F1B, but the halves for weights fill what it leaves empty at the end."""
    ahead = min(stages - 1 - stage, many)
    for batch in range(ahead):
        yield Action("F", stage, batch)
    done = 0
    for batch in range(many):
        if batch + ahead < many:
            yield Action("F", stage, batch + ahead)
        yield Action("I", stage, batch)
        if batch >= stage:
            yield Action("W", stage, done)
            done += 1
    for batch in range(done, many):
        yield Action("W", stage, batch)


def _zbv(stage: int, stages: int, many: int) -> Iterator[Action]:
    """ZBV (arXiv 2405.15362) as PyTorch's ``ScheduleZBVZeroBubble`` orders it; at least ``2 * stages - 1`` batches."""
    first, second = parts_of("zbv", stage, stages)
    count = dict.fromkeys((("F", first), ("F", second), ("I", first), ("I", second), ("W", first), ("W", second)), 0)

    def following(kinds: str, part: int) -> Iterator[Action]:
        for kind in kinds:
            yield Action(kind, part, count[kind, part])
            count[kind, part] += 1

    for _ in range(2 * (stages - stage) - 1):
        yield from following("F", first)
    for _ in range(stage):
        yield from following("F", second)
        yield from following("F", first)
    for _ in range(stages - stage):
        yield from following("FIW", second)
    while count["F", second] < count["F", first] or count["F", first] < many:
        if count["F", first] < many:
            yield from following("F", first)
        yield from following("IW", first)
        yield from following("FIW", second)
    for _ in range(stage):
        yield from following("I", first)
        yield from following("I", second)
    for _ in range(stages - stage):
        yield from following("IW", first)
    for part in (second, first):
        while count["W", part] < count["I", part]:
            yield from following("W", part)


def _dualpipev(stage: int, stages: int, many: int) -> Iterator[Action]:
    """DualPipe cut in half, as DeepSeek's ``dualpipev.py``; at least ``2 * stages`` batches."""
    parts = parts_of("dualpipev", stage, stages)
    return _dual(stage, stages, many, (parts[0], parts[1]), (0, 0))


def _dualpipe(stage: int, stages: int, many: int) -> Iterator[Action]:
    """DualPipe (arXiv 2412.19437) as DeepSeek's ``dualpipe.py``; an even number of batches, at least ``2 * stages``."""
    near, far = (stage, stages - 1 - stage), (0, many // 2)  # which direction is at its beginning here
    if stage >= stages // 2:
        near, far = (near[1], near[0]), (far[1], far[0])
    return _dual(min(stage, stages - 1 - stage), stages // 2, many // 2, near, far)


def _dual(place: int, places: int, many: int, parts: tuple[int, int], first: tuple[int, int]) -> Iterator[Action]:
    """The order of both: ``parts`` are those of the microbatches that come early here, and of the others, which are
    counted from ``first``."""
    count = dict.fromkeys((("F", 0), ("F", 1), ("B", 0), ("B", 1)), 0)
    weights: deque[Action] = deque()

    def one(kind: str, phase: int) -> Action:
        key = "F" if kind == "F" else "B", phase
        action = Action(kind, parts[phase], first[phase] + count[key])
        count[key] += 1
        if kind == "I":
            weights.append(Action("W", *action[1:3]))
        return action

    def both(phase: int) -> Action:
        forward, backward = one("F", phase), one("B", 1 - phase)
        return Action("O", forward.part, forward.batch, backward[1:3])

    for _ in range(2 * (places - place - 1)):
        yield one("F", 0)
    for _ in range(place + 1):
        yield from (one("F", 0), one("F", 1))
    for _ in range(places - place - 1):
        yield from (one("I", 1), weights.popleft(), one("F", 1))
    for number in range(many - 2 * places + place + 1):
        if number == 0 and place == places - 1:
            yield from (one("F", 0), one("B", 1))
        else:
            yield both(0)
        yield both(1)
    for _ in range(places - place - 1):
        yield from (one("B", 1), both(1))
    half = (place + 1) // 2
    for number in range(place + 1):  # of the second half, weights come last
        yield one("I" if number >= half + (place + 1) % 2 else "B", 1)
        yield one("I" if number >= half else "B", 0)
    for _ in range(places - place - 1):
        yield from (weights.popleft(), one("I", 0))
    yield from weights
