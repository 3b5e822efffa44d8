"""By how much each rank's own work exceeds that of its peers, whether that is more than chance, and why.

The excess of a rank is the sum over its stretches between collectives, each beside the median of the ranks between the
same collectives; so ranks of another stage or group are no measure. Its noise is what such a sum would be by chance:
from how the same stretch varies from step to step, from the stretches of the other ranks, or from its own usual
stretches, whichever is least.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from augment.arrays import Int64s, combinations, each, grouped_medians, sums
from augment.core.attachments import Cause
from augment.job.matching.matching import Floats, Matched
from augment.job.path.progress import Progress, Stretches, beside_peers

FEWEST_STEPS = 3  #: to judge by how a stretch varies from step to step
FEWEST_STRETCHES = 8  #: to judge by the usual ones
FEWEST_RANKS = 4  #: to judge by the other ranks
#: the causes, and the parts of a stretch that each consists of
CAUSES: dict[Cause, tuple[str, ...]] = {
    "compute": ("compute", "memory"),
    "host": ("host",),
    "queued": ("queued",),
    "before_recording": ("before",),
    "unknown": ("unknown",),
}


class Excess(Struct, frozen=True):
    """``by_stretch``, and ``by_cause`` of each cause: int64 ns, parallel to ``stretches``, whose rows are those of
    ``matched``. By member: the sum ``total_ns`` and its ``noise_ns``;
    ``causes``: the part of the sum that is due to each cause; ``worst_share``: the share of the sum in the step with
    the most; ``step_count``: its steps. ``lasting_ns`` and ``lasting_causes``: of those stretches alone that are longer
    than the peers' in most steps, where a rank delays the others though it is quicker elsewhere; 0 for few steps."""

    matched: Matched
    stretches: Stretches
    by_stretch: Int64s
    by_cause: dict[Cause, Int64s]
    total_ns: Int64s
    noise_ns: Floats
    causes: dict[Cause, Int64s]
    worst_share: Floats
    step_count: Int64s
    lasting_ns: Int64s
    lasting_causes: dict[Cause, Int64s]

    @property
    def by_parts(self) -> dict[tuple[str, ...], Int64s]:
        """``by_cause`` by the parts of a stretch that each cause consists of."""
        return {CAUSES[cause]: values for cause, values in self.by_cause.items()}


def excess_of(progress: Progress, stretches: Stretches, members: int) -> Excess:
    """The excess of all members."""
    matched = progress.matched
    by_stretch, has_peers = beside_peers(stretches, stretches.own_ns, matched)
    total = sums(stretches.member, by_stretch, members)
    step = matched.step[matched.instance[stretches.row]]
    usual = _usual_at_place(stretches.member, step, by_stretch)
    lasting = (usual > 0) & (
        np.bincount(combinations(stretches.member, step)[0][0], minlength=members) >= FEWEST_STEPS
    )[stretches.member]
    by_cause, causes, lasting_causes = {}, {}, {}
    for cause, names in CAUSES.items():
        by_cause[cause] = excess = beside_peers(stretches, stretches.parts.of(names), matched)[0]
        causes[cause] = sums(stretches.member, excess, members)
        lasting_causes[cause] = sums(stretches.member[lasting], excess[lasting], members)
    lasting_ns = sums(stretches.member[lasting], np.rint(usual[lasting]).astype(np.int64), members)
    worst, steps = _worst_step(stretches.member, step, by_stretch, total)
    noise = np.minimum(
        _noise(stretches.member, step, by_stretch, members),
        _usual(stretches.member[has_peers], by_stretch[has_peers], members),
    )
    kept = matched, stretches, by_stretch, by_cause
    return Excess(*kept, total, noise, causes, worst, steps, lasting_ns, lasting_causes)


def _worst_step(member: Int64s, step: Int64s, excess: Int64s, total: Int64s) -> tuple[Floats, Int64s]:
    """The share of each member's sum that its worst step has, and the number of its steps."""
    (members, _), which = combinations(member, step)
    in_step = sums(which, excess, len(members))
    most, count = np.zeros(len(total), np.int64), np.bincount(members, minlength=len(total))
    np.maximum.at(most, members, in_step)
    return most / np.maximum(total, 1), count


def _usual(member: Int64s, excess: Int64s, members: int) -> Floats:
    """The noise by a member's usual stretches, so that a single long one does not hide itself; infinite for few."""
    noise = np.full(members, np.inf)
    for place, rows in each(member, members):
        if len(rows) >= FEWEST_STRETCHES:
            values = excess[rows].astype(np.float64)
            noise[place] = 1.4826 * np.median(np.abs(values - np.median(values))) * np.sqrt(len(rows))
    return noise


def _noise(member: Int64s, step: Int64s, excess: Int64s, members: int) -> Floats:
    """What each member's sum would be by chance, ns."""
    squares: Floats = np.sqrt(np.bincount(member, excess.astype(np.float64) ** 2, members))
    noise: Floats = squares.copy()
    present = np.flatnonzero(np.bincount(member, minlength=members))
    if len(present) >= FEWEST_RANKS:
        noise[present] = np.minimum(noise[present], np.median(squares[present]))
    of_step = np.bincount(combinations(member, step)[0][0], minlength=members)
    usual = _usual_at_place(member, step, excess)
    varying = np.sqrt(np.bincount(member, (excess - usual) ** 2, members))
    judged = of_step >= FEWEST_STEPS
    noise[judged] = np.minimum(noise, 1.3 * varying)[judged]  # the median leaves out a part of the variation
    return noise


def _usual_at_place(member: Int64s, step: Int64s, excess: Int64s) -> Floats:
    """For each stretch the median over the steps of its rank's stretches at the same place in the step."""
    if not len(member):
        return np.empty(0)
    (owner, _), which = combinations(member, step)
    order = np.argsort(which, kind="stable")
    starts = np.searchsorted(which[order], np.arange(len(owner)))
    place = np.empty(len(member), np.int64)
    place[order] = np.arange(len(member)) - starts[which[order]]
    (keys, _), same = combinations(member, place)
    order = np.argsort(same, kind="stable")
    bounds = np.searchsorted(same[order], np.arange(len(keys) + 1))
    usual: Floats = grouped_medians(excess[order], same[order], bounds)[same]
    return usual
