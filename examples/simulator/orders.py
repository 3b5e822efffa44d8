"""In which order the stages of a pipeline pass microbatches forward and backward, and what the bubbles of that cost.

A stage has one or several parts of the model. An action is ``F`` (forward), ``B`` (a whole backward) or its halves
``I`` (for inputs) and ``W`` (for weights), of a part and a microbatch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple


class Action(NamedTuple):
    """A pass of a microbatch through a part of the model, counted from the input."""

    kind: str
    part: int
    batch: int


def chunks_of(schedule: str) -> int:
    """Parts of the model that a stage has."""
    return {"interleaved": 2, "zbv": 2}.get(schedule, 1)


def parts_of(schedule: str, stage: int, stages: int) -> list[int]:
    """The parts of a stage: in turn from stage to stage, or in the shape of a V."""
    if schedule == "zbv":
        return [stage, 2 * stages - 1 - stage]
    return [stage + stages * at for at in range(chunks_of(schedule))]


def stage_of(schedule: str, part: int, stages: int) -> int:
    """The stage that has a part."""
    return 2 * stages - 1 - part if schedule == "zbv" and part >= stages else part % stages


def sends_of(schedule: str, stage: int, stages: int, many: int) -> Iterator[tuple[int, Action]]:
    """What a stage sends in the order of its actions: to which stage, and for which action there.

    ``F`` stands for activations, ``B`` for gradients.
    """
    total = stages * chunks_of(schedule)
    for kind, part, batch in order_of(schedule, stage, stages, many):
        following = part + 1 if kind == "F" else part - 1 if kind in "BI" else -1
        if 0 <= following < total and stage_of(schedule, following, stages) != stage:
            yield stage_of(schedule, following, stages), Action("F" if kind == "F" else "B", following, batch)


def order_of(schedule: str, stage: int, stages: int, many: int) -> list[Action]:
    """All actions of a stage in a step of ``many`` microbatches."""
    return list({"interleaved": _interleaved, "zb1p": _zb1p, "zbv": _zbv}[schedule](stage, stages, many))


def ideal_bubble(schedule: str, stages: int, forward: float, inputs: float, weights: float) -> float:
    """The bubble of a step, if passes take so long for one microbatch of a stage and messages no time."""
    whole = forward + inputs + weights
    return {
        "gpipe": (stages - 1) * whole,
        "1f1b": (stages - 1) * whole,
        "interleaved": (stages - 1) * whole / chunks_of(schedule),
        "zb1p": (stages - 1) * (forward + inputs - weights),
        "zbv": (stages - 1) * forward / 2,  # until the last stage begins: the paper does not count that
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
