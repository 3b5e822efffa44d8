"""Why a rank was late: one rule for ``cause`` in the table of late ranks, the track ``Late rank`` and the verdict.

What a late device did while the others waited for it is often not why it was late: after a stall of its host it does
its usual work, only later. So the cause of a delay is what the rank did more than its peers
(:mod:`augment.job.verdict.excess`) since it last was in time. Where that explains less than half of the delay, as
without peers, the cause is what the device did in the delay itself.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from augment.arrays.ordering import each
from augment.arrays.types import NO_INDEX, Bools, Int64s
from augment.core.attachments import Cause
from augment.job.collectives.waits import Waits
from augment.job.matching.matching import Matched
from augment.job.ranks.states import Parts, Table
from augment.job.ranks.summary import RankSummary
from augment.job.verdict.excess import Excess

#: the causes of a delay, and the parts of it that each consists of
CAUSES = {
    "gpu": ("compute", "communication", "memory"),
    "host": ("host",),
    "queued": ("queued",),
    "before_recording": ("before",),
    "unknown": ("unknown",),
}
UNKNOWN = tuple(CAUSES).index("unknown")
LEAST_SHARE = 0.5  #: of all, to call a cause the cause
CLEARLY = 1.25  #: multiple of the second cause
_OF_EXCESS = {"compute": "gpu"}  #: names of causes in the verdict that differ here


def main_cause(times: Mapping[Cause, int], whole: int) -> Cause:
    """The cause of most of ``whole``, if it is at least half of it and clearly more than each other cause; else
    ``unknown``."""
    most, *others = sorted(times, key=lambda name: -times[name])
    second = max((times[name] for name in others), default=0)
    return most if times[most] >= LEAST_SHARE * whole and times[most] >= CLEARLY * second else "unknown"


def main_causes(times: Table) -> Int64s:
    """The same for each column of a table with a row for each of :data:`CAUSES`: its row, -1 for columns of zeros."""
    ordered = np.sort(times, axis=0)
    clear = (ordered[-1] >= LEAST_SHARE * times.sum(axis=0)) & (ordered[-1] >= CLEARLY * ordered[-2])
    return np.where(ordered[-1] <= 0, NO_INDEX, np.where(clear, times.argmax(axis=0), UNKNOWN))


def of_parts(spent: Parts) -> Table:
    """What was done by cause, ns: a row for each of :data:`CAUSES`, and the columns of ``spent``."""
    return np.vstack([spent.of(parts) for parts in CAUSES.values()])


def of_leads(
    matched: Matched,
    parted: Waits,
    spent: Parts,
    excess: Excess | None,
    summaries: Sequence[RankSummary],
    unclear: Collection[int] = (),
) -> Table:
    """The lead of each collective's late rank by cause, ns: a row for each of :data:`CAUSES`, a column a collective.

    Args:
        spent: what the late rank did in each lead, a row a collective (``lead_parts``).
        excess: None if no stretches of ranks can be compared.
        unclear: members whose excess in all has no single cause: no more of theirs is known.
    """
    table = of_parts(spent)
    if excess is None or not len(excess.stretches.row):
        return table
    row = _rows_in(matched, excess, summaries)
    instance = matched.instance[row]
    is_late = parted.late[instance] == row
    lead = np.where(is_late, parted.lead_ns[instance], 0)
    more = np.zeros((len(CAUSES), len(row)), np.int64)
    for name, values in excess.by_cause.items():
        more[tuple(CAUSES).index(_OF_EXCESS.get(name, name))] += values
    left = lead > 0
    for since in _windows(excess.stretches.member, matched.group[instance], is_late):
        whole = _summed(excess.by_stretch[np.newaxis], since)[0]
        chosen = np.flatnonzero(left & (whole >= LEAST_SHARE * lead))
        left[chosen] = False
        positive = np.maximum(_summed(more, since)[:, chosen], 0)
        shares = positive / np.maximum(positive.sum(axis=0), whole[chosen])
        parts = np.rint(shares * lead[chosen]).astype(np.int64)
        parts[UNKNOWN] += lead[chosen] - parts.sum(axis=0)  # causes can have peers that differ: they need not add up
        table[:, instance[chosen]] = parts
    doubtful = np.isin(matched.member[parted.late], list(unclear))
    table[:, doubtful] = 0
    table[UNKNOWN, doubtful] = parted.lead_ns[doubtful]
    return table


def _rows_in(matched: Matched, excess: Excess, summaries: Sequence[RankSummary]) -> Int64s:
    """The row in ``matched`` of the collective at the end of each stretch."""
    rows = np.empty(len(excess.stretches.row), np.int64)
    places = excess.matched.place[excess.stretches.row]
    for member, chosen in each(excess.stretches.member, len(summaries)):
        of_member = matched.rows_of(member)
        row_of = np.zeros(len(summaries[member].column("ts")), np.int64)
        row_of[matched.place[of_member]] = of_member
        rows[chosen] = row_of[places[chosen]]
    return rows


def _windows(member: Int64s, group: Int64s, is_late: Bools) -> tuple[Int64s, Int64s]:
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


def _summed(values: Table, since: Int64s) -> Table:
    """The sum of each row from ``since`` to each column."""
    until = np.concatenate((np.zeros((len(values), 1), np.int64), np.cumsum(values, axis=1)), axis=1)
    table: Table = until[:, 1:] - until[:, since]
    return table
