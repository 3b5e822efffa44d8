"""What do a step, its idle part and each finding cost?

With the price of a GPU hour (``--price 2.5``) a row says what a steady step costs: the mean over the rank's devices,
times their number. ``step`` is all of it, ``busy`` and ``idle`` the time in which a device works or does not, and
``finding`` what a step would cost less, as the [diagnosis](#diagnosis) predicts. Savings of findings do not add up.
Amounts are in the currency of the price; without a price they are GPU hours.

**What to do**: multiply ``cost_per_hour`` by the hours and ranks of the run before deciding what to mend.

Options:
    price: the price of an hour of one GPU; 1 counts GPU hours.
"""

from __future__ import annotations

import math
from typing import Annotated

from augment import facts
from augment.core import GPU_WORK, Findings, OfRank, Skipped, Trace, column
from augment.diagnosis.judging import measure
from augment.diagnosis.ranking import diagnose
from augment.errors import UsageError

NAME = "cost"
NEEDS = (GPU_WORK,)
_HOUR_NS = 3600e9


class Row(OfRank, frozen=True):
    """What one part of a step costs."""

    part: Annotated[str, column("step, busy, idle or finding.")]
    rule: Annotated[str | None, column("The rule of a finding.")]
    time_ns: Annotated[float, column("Its time in a step, the mean of steady steps and devices.", "ns")]
    time_ratio: Annotated[float, column("Its share of a step.", "ratio")]
    cost_per_million_steps: Annotated[
        float, column("What it costs in a million steps, for all devices of the rank.", key=False)
    ]
    cost_per_hour: Annotated[float, column("What it costs in an hour of such steps.", key=False)]


def analyze(trace: Trace, *, price: str = "1") -> Findings | Skipped:
    """Price the time of a steady step."""
    try:
        hour = float(price)
    except ValueError:
        hour = -1.0
    if not 0 <= hour < math.inf:
        raise UsageError(f"cost.price={price}: the price of a GPU hour is a number such as 2.5")
    whole = measure(trace)
    if not len(whole.windows) or not whole.length_ns:
        return Skipped("the recording has no time that could be priced")
    saved = {each.rule: each.found.saved_ns for each in diagnose(trace).findings}  # first: waits while it is made
    count = len(facts.gpu.work(trace).devices)
    figures = facts.steps.step_figures(trace, whole.windows)
    wall = sum(float(each.wall_ns.mean()) for each in figures) / count
    busy = sum(float(each.of_device["busy_ns"].mean()) for each in figures) / count
    parts: list[tuple[str, str | None, float]] = [
        ("step", None, wall),
        ("busy", None, busy),
        ("idle", None, wall - busy),
    ]
    parts += [("finding", rule, float(ns)) for rule, ns in saved.items() if ns]
    rate = hour * count / _HOUR_NS
    return Findings(
        [
            Row(trace.rank, part, rule, ns, ns / wall, 1e6 * ns * rate, ns / wall * hour * count)
            for part, rule, ns in parts
        ]
    )
