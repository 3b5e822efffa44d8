"""By how much each rank's own work exceeds that of its peers, whether that is more than chance, and why.

The excess of a rank is the sum over its stretches between collectives, each beside the median of the ranks between the
same collectives; so ranks of another stage or group are no measure. Its noise is what such a sum would be by chance:
from how the same stretch varies from step to step, from the stretches of the other ranks, or from its own usual
stretches, whichever is least.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct

from augment.arrays import NO_INDEX, Bools, Int64s, MemberIndexes, Places, combinations, each, grouped_medians, sums
from augment.core import Cause
from augment.job.collectives import Waits
from augment.job.matching import Floats, Matched
from augment.job.path import LAST, Shift, Stretches, WorkProgress, beside_peers
from augment.job.ranks import Parts, RankSummary, Table

FEWEST_STEPS = 3  #: to judge by how a stretch varies from step to step
FEWEST_STRETCHES = 8  #: to judge by the usual ones
FEWEST_RANKS = 4  #: to judge by the other ranks
#: the causes, and the parts of a stretch that each consists of
CAUSES: dict[Cause, tuple[str, ...]] = {
    "compute": ("compute",),
    "copies": ("memory",),
    "host": ("host",),
    "queued": ("queued",),
    "before_recording": ("before",),
    "unknown": ("unknown",),
}


class Excess(Struct, frozen=True):
    """``by_stretch``, and ``by_cause`` of each cause: int64 ns, parallel to ``stretches``, whose rows are those of
    ``matched``. ``at``, parallel, too, is where each ends: peers are equal in it. By member: the sum ``total_ns`` and
    its ``noise_ns``; ``causes``: the part of the sum that is due to each cause; ``worst_ns``: the part in the step with
    the most; ``step_count``: its steps. ``lasting_ns`` and ``lasting_causes``: of those stretches alone that are longer
    than the peers' in most steps, where a rank delays the others though it is quicker elsewhere; 0 for few steps."""

    matched: Matched
    stretches: Stretches
    at: Int64s
    by_stretch: Int64s
    by_cause: dict[Cause, Int64s]
    total_ns: Int64s
    noise_ns: Floats
    causes: dict[Cause, Int64s]
    worst_ns: Int64s
    step_count: Int64s
    lasting_ns: Int64s
    lasting_causes: dict[Cause, Int64s]

    @property
    def by_parts(self) -> dict[tuple[str, ...], Int64s]:
        """``by_cause`` by the parts of a stretch that each cause consists of."""
        return {CAUSES[cause]: values for cause, values in self.by_cause.items()}


def excess_of(progress: WorkProgress, stretches: Stretches, members: int, stage: Int64s | None = None) -> Excess:
    """The excess of all members: beside the ranks in the same collectives, or with ``stage``, by member, beside all
    ranks of its pipeline stage that do as many collectives of equal kind, size and sort of group: a group whose ranks
    are all late is late beside other groups alone."""
    matched = progress.matched
    at = matched.instance[stretches.row]
    if stage is not None:
        at = combinations(stretches.until, stage[stretches.member])[1]
    by_stretch, has_peers = beside_peers(stretches, stretches.own_ns, at)
    total = sums(stretches.member, by_stretch, members)
    step = matched.step[matched.instance[stretches.row]]
    step = step + (stretches.before == LAST)  # as what lies between two steps is in the later one
    usual = _usual_at_place(stretches.member, step, by_stretch)
    (of_step, _), which = combinations(stretches.member, step)
    steps = np.bincount(of_step, minlength=members)
    lasting = (usual > 0) & (steps >= FEWEST_STEPS)[stretches.member]
    by_cause, causes, lasting_causes = {}, {}, {}
    for cause, names in CAUSES.items():
        ns = stretches.parts.of(names)
        excess = beside_peers(stretches, ns, at)[0] if ns.any() else np.zeros(len(ns), np.int64)  # of no memory
        by_cause[cause] = excess
        causes[cause] = sums(stretches.member, excess, members)
        lasting_causes[cause] = sums(stretches.member[lasting], excess[lasting], members)
    seen, usually = by_stretch[lasting], np.rint(usual[lasting]).astype(np.int64)
    lasting_ns = np.minimum(*(sums(stretches.member[lasting], ns, members) for ns in (seen, usually)))
    worst = np.zeros(members, np.int64)  # of each member, the part of its sum in the step with the most
    np.maximum.at(worst, of_step, sums(which, by_stretch, len(of_step)))
    # what each member's sum would be by chance, ns
    squares = np.sqrt(np.bincount(stretches.member, by_stretch.astype(np.float64) ** 2, members))
    noise = squares.copy()
    present = np.flatnonzero(np.bincount(stretches.member, minlength=members))
    if len(present) >= FEWEST_RANKS:
        noise[present] = np.minimum(noise[present], np.median(squares[present]))
    varying = np.sqrt(np.bincount(stretches.member, (by_stretch - usual) ** 2, members))
    enough = steps >= FEWEST_STEPS
    noise[enough] = np.minimum(noise, 1.3 * varying)[enough]  # the median leaves out a part of the variation
    # also that by a member's usual stretches, so that a single long one does not hide itself
    for member, rows in each(stretches.member[has_peers], members):
        if len(rows) >= FEWEST_STRETCHES:
            values = by_stretch[has_peers][rows].astype(np.float64)
            by_usual = 1.4826 * np.median(np.abs(values - np.median(values))) * np.sqrt(len(rows))
            noise[member] = min(noise[member], by_usual)
    kept = matched, stretches, at, by_stretch, by_cause
    return Excess(*kept, total, noise, causes, worst, steps, lasting_ns, lasting_causes)


def _usual_at_place(member: MemberIndexes, step: Int64s, excess: Int64s) -> Floats:
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


# Is work uneven in every step, with another rank the slowest each time? Then no rank is late, and balance is the cure.
#
# The own work of a rank between two collectives is compared with the mean of all ranks between the same collectives. In
# each step the slowest rank is the one whose work exceeds these means most.


IN_MOST_STEPS = 0.5  #: of the mean: by how much the slowest is slower in most steps, at least
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


def beyond_mean(excess: Excess, values: Int64s) -> Int64s:
    """By how much the value of each stretch exceeds the mean of all ranks between the same collectives."""
    stretches = excess.stretches
    _, same = combinations(excess.at, stretches.before)
    count = np.bincount(same)
    apart: Int64s = values - np.rint(np.bincount(same, values) / count).astype(np.int64)[same]
    return np.where(count[same] > 1, apart, 0)


def balanced(excess: Excess, summaries: Sequence[RankSummary]) -> Shift:
    """The change by which devices compute for the mean of all ranks between the same collectives."""
    names = CAUSES["compute"]
    beyond = beyond_mean(excess, excess.stretches.parts.of(names))
    return Shift(excess.stretches, -beyond, {names: beyond}, summaries)


def uneven(excess: Excess, summaries: Sequence[RankSummary]) -> Uneven | None:
    """Whether another rank is the slowest in most of the steps; None if one rank is in more than half, if the slowest
    are slow in most steps, or if steps are few."""
    stretches, matched = excess.stretches, excess.matched
    if not len(stretches.row):
        return None
    step = np.where(stretches.before == LAST, NO_INDEX, matched.step[matched.instance[stretches.row]])
    beyond = beyond_mean(excess, stretches.own_ns)
    parts = {cause: beyond_mean(excess, stretches.parts.of(names)) for cause, names in CAUSES.items()}
    (owner, number), which = combinations(stretches.member, step)
    in_step, usual = (sums(which, values, len(owner)) for values in (beyond, stretches.own_ns - beyond))
    by_cause = {cause: sums(which, values, len(owner)) for cause, values in parts.items()}
    slowest = []
    for one_step in np.unique(number[number >= 0]).tolist():
        places = np.flatnonzero(number == one_step)
        slowest.append(int(places[np.argmax(in_step[places])]))
    if len(slowest) < FEWEST_STEPS or np.bincount(owner[slowest]).max() > MOST_OFTEN * len(slowest):
        return None
    lasting = [float(np.median(in_step[(owner == owner[place]) & (number >= 0)])) for place in slowest]
    if sum(lasting) > MOST_OFTEN * in_step[slowest].sum():
        return None
    slower = tuple(float(in_step[place] / max(usual[place], 1)) for place in slowest)
    if np.median(slower) < IN_MOST_STEPS * np.mean(slower):
        return None
    shift = Shift(stretches, -beyond, {CAUSES[cause]: values for cause, values in parts.items()}, summaries)
    return Uneven(
        shift,
        slower,
        int(in_step[slowest].sum()),
        {cause: int(values[slowest].sum()) for cause, values in by_cause.items()},
    )


# Why a rank was late: one rule for ``cause`` in the table of late ranks, the track ``Late rank`` and the verdict.
#
# What a late device did while the others waited for it is often not why it was late: after a stall of its host it does
# its usual work, only later. So the cause of a delay is what the rank did more than its peers
# (:mod:`augment.job.verdict.excess`) since it last was in time. Where that explains less than half of the delay, as
# without peers, the cause is what the device did in the delay itself.


#: the causes of a delay, and the parts of it that each consists of
DELAY_CAUSES: dict[str, tuple[str, ...]] = {
    "gpu": ("compute", "communication", "memory"),
    **{cause: parts for cause, parts in CAUSES.items() if cause not in ("compute", "copies")},
}
UNKNOWN = tuple(DELAY_CAUSES).index("unknown")
LEAST_SHARE = 0.5  #: of all, to call a cause the cause
CLEARLY = 1.25  #: multiple of the second cause
LEAST_DUE = 0.1  #: share of a rank's excess in all that is due to a cause of its leads
_OF_EXCESS = {"compute": "gpu", "copies": "gpu"}  #: names of causes in the verdict that differ here


def main_cause(times: Mapping[Cause, int], whole: int) -> Cause:
    """The cause of most of ``whole``, if it is at least half of it and clearly more than each other cause; else
    ``unknown``."""
    most, *others = sorted(times, key=lambda name: -times[name])
    second = max((times[name] for name in others), default=0)
    return most if times[most] >= LEAST_SHARE * whole and times[most] >= CLEARLY * second else "unknown"


def main_causes(times: Table) -> Int64s:
    """The same for each column of a table with a row for each of :data:`DELAY_CAUSES`: its row, -1 for columns of
    zeros.
    """
    ordered = np.sort(times, axis=0)
    clear = (ordered[-1] >= LEAST_SHARE * times.sum(axis=0)) & (ordered[-1] >= CLEARLY * ordered[-2])
    return np.where(ordered[-1] <= 0, NO_INDEX, np.where(clear, times.argmax(axis=0), UNKNOWN))


def of_parts(spent: Parts) -> Table:
    """What was done by cause, ns: a row for each of :data:`DELAY_CAUSES`, and the columns of ``spent``."""
    return np.vstack([spent.of(parts) for parts in DELAY_CAUSES.values()])


def of_leads(
    matched: Matched,
    parted: Waits,
    spent: Parts,
    excess: Excess | None,
    summaries: Sequence[RankSummary],
    named: Mapping[int, Cause],
) -> Table:
    """The lead of each collective's late rank by cause, ns: a row for each of :data:`DELAY_CAUSES`, a column a
    collective.

    Args:
        spent: what the late rank did in each lead, a row a collective (``lead_parts``).
        excess: None if no stretches of ranks can be compared.
        named: the causes of members that the verdict names; no lead is due to what they exceed no peer by in all.
    """
    table = of_parts(spent)
    if excess is None or not len(excess.stretches.row):
        return table
    # the row in ``matched`` of the collective at the end of each stretch
    row = np.empty(len(excess.stretches.row), np.int64)
    places = excess.matched.place[excess.stretches.row]
    for member, chosen in each(excess.stretches.member, len(summaries)):
        of_member = matched.rows_of(member)
        row_of = np.zeros(len(summaries[member].column("ts")), np.int64)
        row_of[matched.place[of_member]] = of_member
        row[chosen] = row_of[places[chosen]]
    instance = matched.instance[row]
    is_late = (parted.late[instance] == row) & (excess.stretches.before != LAST)
    lead = np.where(is_late, parted.lead_ns[instance], 0)
    more = [(tuple(DELAY_CAUSES).index(_OF_EXCESS.get(name, name)), ns) for name, ns in excess.by_cause.items()]
    left = lead > 0
    for since in _windows(excess.stretches.member, matched.group[instance], is_late):
        late = np.flatnonzero(left)
        whole = _summed(excess.by_stretch, since, late)
        explained = whole >= LEAST_SHARE * lead[late]
        chosen, whole = late[explained], whole[explained]
        left[chosen] = False
        positive = np.zeros((len(DELAY_CAUSES), len(chosen)), np.int64)
        for cause, ns in more:
            positive[cause] += np.maximum(_summed(ns, since, chosen), 0)
        shares = positive / np.maximum(positive.sum(axis=0), whole)
        parts = np.rint(shares * lead[chosen]).astype(np.int64)
        parts[UNKNOWN] += lead[chosen] - parts.sum(axis=0)  # causes can have peers that differ: they need not add up
        table[:, instance[chosen]] = parts
    for of, why in named.items():
        leads, main = np.flatnonzero(matched.member[parted.late] == of), _OF_EXCESS.get(why, why)
        due = dict.fromkeys(DELAY_CAUSES, 0)
        for name, more_ns in excess.causes.items():
            due[_OF_EXCESS.get(name, name)] += int(more_ns[of])
        least = math.inf if main == "unknown" else LEAST_DUE * sum(due.values())
        moved = np.array([name not in (main, "unknown") and due[name] < least for name in due], np.bool_)
        table[[*due].index(main), leads] += table[np.ix_(moved, leads)].sum(axis=0)
        table[np.ix_(moved, leads)] = 0
    return table


def _windows(member: MemberIndexes, group: Int64s, is_late: Bools) -> tuple[Int64s, Int64s]:
    """For each stretch the first one after its rank's last collective of the same process group; and after the last
    one of these in which the rank was in time: a delay lasts until others wait for it."""
    count = np.arange(len(member))
    first = np.searchsorted(member, member)
    order = np.lexsort((count, group, member))
    same = np.zeros(len(order), np.bool_)
    same[1:] = (np.diff(member[order]) == 0) & (np.diff(group[order]) == 0)
    before = np.where(same, np.append(0, order[:-1] + 1), first[order])
    in_time = np.ones(len(order), np.bool_)
    in_time[1:] = ~same[1:] | ~is_late[order[:-1]]
    place = np.maximum.accumulate(np.where(in_time, count, 0))
    windows = np.empty((2, len(order)), np.int64)
    windows[:, order] = before, before[place]
    return windows[0], windows[1]


def _summed(values: Int64s, since: Int64s, places: Places) -> Int64s:
    """The sums of values from ``since`` to each of ``places``."""
    until = np.append(0, np.cumsum(values))
    of_places: Int64s = until[places + 1] - until[since[places]]
    return of_places
