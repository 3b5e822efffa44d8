"""Aligns the collectives of ranks that recorded different numbers of them, so that one lost kernel costs only itself.

Without sequence numbers the k-th collective of a kind, group and step is the same on all its ranks. Where a rank lacks
some, its collectives are aligned to those of the rank with the most: in order, with equal sizes, and such that the ends
differ least. Collectives end together, so that a wrong alignment is off by whole collectives. A rank that lacks more
than :data:`MOST_LOST` of a quarter of them is left out.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from augment.arrays.ordering import each
from augment.arrays.types import Bools, Int64s, Places

MOST_LOST = 32
Floats = np.ndarray[tuple[int], np.dtype[np.float64]]
NO_LAG = np.iinfo(np.int64).min
_NEAR_NS = 1000  #: alignments that differ by less in each collective are equally good
_UNEQUAL = 1e18  #: the cost of a pair of different sizes


def aligned_ordinals(
    key: Int64s, member: Int64s, size: Int64s, end: Int64s, uneven: Bools, ordinal: Int64s, lag: Int64s
) -> tuple[Int64s, Bools]:
    """The ordinals of the ``uneven`` rows within their keys after alignment, and the rows that remain uneven.

    Args:
        key: the group, kind and step of each collective.
        member: its rank.
        size: its bytes, -1 unknown.
        end: ns, ascending within a member and key.
        uneven: rows of keys for which the ranks have different numbers of rows.
        ordinal: the index of each row among the rows of its member and key.
        lag: how far each row's clock is ahead, ns, :data:`NO_LAG` where it is unknown.
    """
    aligned, left = ordinal.copy(), uneven.copy()
    rows = np.flatnonzero(uneven)
    for _, places in each(key[rows], int(key.max(initial=-1)) + 1):
        whole = rows[places]
        parts = [whole[part] for _, part in each(member[whole], int(member.max()) + 1)]
        reference = max(parts, key=len)
        kept = [reference]
        for part in parts:
            if part is not reference and len(part) == len(reference):
                kept.append(part)
            elif 0 < len(reference) - len(part) <= min(MOST_LOST, max(1, len(reference) // 4)):
                known = lag[part[0]] != NO_LAG and lag[reference[0]] != NO_LAG
                offset = int(lag[part[0]] - lag[reference[0]]) if known else None
                partners = _partners(size[part], end[part], size[reference], end[reference], offset)
                if partners is not None:
                    aligned[part] = ordinal[reference[partners]]
                    kept.append(part)
        if len(kept) > 1:
            left[np.concatenate(kept)] = False
    return aligned, left


def _partners(size: Int64s, end: Int64s, of_size: Int64s, of_end: Int64s, offset: int | None) -> Places | None:
    """For each collective its place in a longer list; None if no order fits the sizes, or if several do about as well.

    Without a known ``offset`` of the clocks, the one with the best alignment is taken.
    """
    offsets = list(_offsets(end, of_end)) if offset is None else [offset]
    alignments = [_alignment(size, end - candidate, of_size, of_end) for candidate in offsets]
    total, best = min(alignments, key=lambda each: each[0])
    others = [cost for cost, partners in alignments if not np.array_equal(partners, best)]
    clear = total < _UNEQUAL and all(cost > 2 * total + _NEAR_NS * len(end) for cost in others)
    return best if clear else None


def _offsets(end: Int64s, of_end: Int64s) -> Iterator[int]:
    """Candidates for the offset of the clock: the median differences of the ends, for each number of skipped ones."""
    for skipped in range(len(of_end) - len(end) + 1):
        yield int(np.median(end - of_end[skipped : skipped + len(end)]))


def _alignment(size: Int64s, end: Int64s, of_size: Int64s, of_end: Int64s) -> tuple[float, Places]:
    """The cheapest alignment that keeps the order: its cost (the sum of distances, ns), and the places.

    After ``k`` skipped collectives the n-th of the shorter list is the (n + k)-th of the longer. ``least[k, n]`` is the
    cost of the first n with at most k skipped.
    """
    count, lost = len(end), len(of_end) - len(end)
    costs: list[Floats] = []
    for skipped in range(lost + 1):
        window = slice(skipped, skipped + count)
        unequal = (size != of_size[window]) & (size >= 0) & (of_size[window] >= 0)
        cost = np.abs(end - of_end[window]).astype(np.float64) + np.where(unequal, _UNEQUAL, 0.0)
        costs.append(np.concatenate(([0.0], np.cumsum(cost))))
    least = costs[0]
    began = []  # until which place the row before is followed, for each place
    for cost in costs[1:]:
        saving = least - cost
        lowest = np.minimum.accumulate(saving)
        began.append(np.maximum.accumulate(np.where(saving == lowest, np.arange(count + 1), 0)))
        least = cost + lowest
    skips, place = np.zeros(count, np.int64), count
    for skipped in range(lost, 0, -1):
        begin = int(began[skipped - 1][place])
        skips[begin:place] = skipped
        place = begin
    return float(least[count]), np.arange(count) + skips
