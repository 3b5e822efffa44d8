"""Is work uneven in every step, with another rank the slowest each time? Then no rank is late, and balance is the cure.

The own work of a rank between two collectives is compared with the mean of all ranks between the same collectives. In
each step the slowest rank is the one whose work exceeds these means most.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from augment.arrays import Int64s, combinations, sums
from augment.core.attachments import Cause
from augment.job.path.replay import Shift
from augment.job.ranks.summary import RankSummary
from augment.job.verdict.excess import CAUSES, Excess

FEWEST_STEPS = 3  #: in fewer, chance is hard to tell from a habit
MOST_OFTEN = 0.5  #: of the steps in which one rank is the slowest: in more, it is that rank's


class Uneven(Struct, frozen=True):
    """Work whose slowest rank changes.

    ``shift`` makes each rank's work the mean. ``slower`` is by how much the work of each step's slowest rank exceeds
    the mean, by step, as a ratio; ``excess_ns`` the sum of that over the steps, and ``causes`` its parts by cause.
    """

    shift: Shift
    slower: tuple[float, ...]
    excess_ns: int
    causes: dict[Cause, int]


def uneven(excess: Excess, summaries: Sequence[RankSummary]) -> Uneven | None:
    """Whether another rank is the slowest in most of the steps; None if one rank is in more than half, or steps are
    few."""
    stretches, matched = excess.stretches, excess.matched
    if not len(stretches.row):
        return None
    instance = matched.instance[stretches.row]
    step = matched.step[instance]
    _, same = combinations(instance, stretches.before)
    count = np.bincount(same)

    def beyond_mean(values: Int64s) -> Int64s:
        apart: Int64s = values - np.rint(np.bincount(same, values) / count).astype(np.int64)[same]
        return np.where(count[same] > 1, apart, 0)

    beyond = beyond_mean(stretches.own_ns)
    parts = {cause: beyond_mean(stretches.parts.of(names)) for cause, names in CAUSES.items()}
    (owner, number), which = combinations(stretches.member, step)
    in_step, usual = (sums(which, values, len(owner)) for values in (beyond, stretches.own_ns - beyond))
    by_cause = {cause: sums(which, values, len(owner)) for cause, values in parts.items()}
    slowest = []
    for one_step in np.unique(number[number >= 0]).tolist():
        places = np.flatnonzero(number == one_step)
        slowest.append(int(places[np.argmax(in_step[places])]))
    if len(slowest) < FEWEST_STEPS or np.bincount(owner[slowest]).max() > MOST_OFTEN * len(slowest):
        return None
    shift = Shift(stretches, -beyond, {CAUSES[cause]: values for cause, values in parts.items()}, summaries)
    return Uneven(
        shift,
        tuple(float(in_step[place] / max(usual[place], 1)) for place in slowest),
        int(in_step[slowest].sum()),
        {cause: int(values[slowest].sum()) for cause, values in by_cause.items()},
    )
