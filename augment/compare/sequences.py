"""Alignment of sequences: finds equal elements in order, so that an inserted element does not shift the others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from augment.arrays.intervals import expand
from augment.arrays.types import NO_INDEX, Int64s

BLOCK = 8192  #: elements that are aligned at once

Integers = npt.NDArray[np.signedinteger]
Pairs = list[tuple[int, int]]


def align(group_a: Integers, item_a: Integers, group_b: Integers, item_b: Integers) -> Int64s:
    """The partner in ``b`` of each element of ``a``, int64; :data:`NO_INDEX` if it has none.

    Elements are aligned in order within their group, and only with equal items. Groups that are equal on both sides,
    the usual case, cost no loop.

    Args:
        group_a: integers; elements of a group that ``b`` lacks have no partner.
        item_a: integers.
        group_b: as ``group_a``.
        item_b: as ``item_a``.
    """
    partner = np.full(len(group_a), NO_INDEX, np.int64)
    order_a, groups_a, first_a, stop_a = _grouped(group_a)
    order_b, groups_b, first_b, stop_b = _grouped(group_b)
    _, in_a, in_b = np.intersect1d(groups_a, groups_b, assume_unique=True, return_indices=True)
    first_a, stop_a, first_b, stop_b = first_a[in_a], stop_a[in_a], first_b[in_b], stop_b[in_b]
    as_long = stop_a - first_a == stop_b - first_b
    whose, places_a = expand(first_a[as_long], stop_a[as_long])
    _, places_b = expand(first_b[as_long], stop_b[as_long])
    same = item_a[order_a[places_a]] == item_b[order_b[places_b]]
    differs = np.zeros(int(as_long.sum()), np.bool_)
    differs[whose[~same]] = True
    equal = ~differs[whose]
    partner[order_a[places_a[equal]]] = order_b[places_b[equal]]
    remaining = np.flatnonzero(~as_long)
    remaining = np.concatenate((remaining, np.flatnonzero(as_long)[differs]))
    known: dict[
        tuple[tuple[int, ...], tuple[int, ...]], Pairs
    ] = {}  # calls of equal name tend to differ in the same way
    for group in remaining.tolist():
        own_a = order_a[first_a[group] : stop_a[group]]
        own_b = order_b[first_b[group] : stop_b[group]]
        key = tuple(item_a[own_a].tolist()), tuple(item_b[own_b].tolist())
        if key not in known:
            known[key] = common(*key)
        if known[key]:
            left, right = np.array(known[key]).T
            partner[own_a[left]] = own_b[right]
    return partner


def common(xs: Sequence[int], ys: Sequence[int]) -> Pairs:
    """The index pairs of a longest common subsequence, ascending.

    Sequences longer than :data:`BLOCK` are aligned block by block. That is linear in their length, and the result still
    is the longest unless the sequences drift apart by a quarter of a block.
    """
    head = 0
    shorter = min(len(xs), len(ys))
    while head < shorter and xs[head] == ys[head]:
        head += 1
    tail = 0
    while tail < shorter - head and xs[-1 - tail] == ys[-1 - tail]:
        tail += 1
    pairs_found = [(place, place) for place in range(head)]
    x, y, stop_x, stop_y = head, head, len(xs) - tail, len(ys) - tail
    while x < stop_x and y < stop_y:
        last = max(stop_x - x, stop_y - y) <= BLOCK
        pairs = _longest_common(xs[x : min(x + BLOCK, stop_x)], ys[y : min(y + BLOCK, stop_y)])
        if not last:  # elements near a block's end may have their partner beyond it
            pairs = [pair for pair in pairs if max(pair) < BLOCK * 3 // 4]
        pairs_found += [(x + left, y + right) for left, right in pairs]
        if last:
            break
        left, right = pairs[-1] if pairs else (BLOCK // 2, BLOCK // 2)
        x, y = x + left + 1, y + right + 1
    pairs_found += [(len(xs) - left, len(ys) - left) for left in range(tail, 0, -1)]
    return pairs_found


def _longest_common(xs: Sequence[int], ys: Sequence[int]) -> Pairs:
    """A longest common subsequence, by Hyyrö's bit-parallel table (2004).

    Row ``i`` is an integer whose bit ``j`` is 0 where ``ys[j]`` extends the longest common subsequence of
    ``xs[:i + 1]``. So a row of the table costs a few operations on one long integer.
    """
    if not xs or not ys:
        return []
    where: dict[int, int] = {}
    for place, item in enumerate(ys):
        where[item] = where.get(item, 0) | 1 << place
    full = (1 << len(ys)) - 1
    row, rows = full, []
    for item in xs:
        met = row & where.get(item, 0)
        row = ((row + met) | (row - met)) & full
        rows.append(row)
    pairs: Pairs = []
    x, y = len(xs), len(ys)
    while x and y:
        if rows[x - 1] >> (y - 1) & 1:  # no shorter without ys[y - 1]
            y -= 1
            continue
        x -= 1
        if x and not rows[x - 1] >> (y - 1) & 1:  # no shorter without xs[x]
            continue
        y -= 1
        pairs.append((x, y))
    return pairs[::-1]


def _grouped(group: Integers) -> tuple[npt.NDArray[np.intp], Integers, npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """The order by group, the distinct groups, and where each starts and stops in that order."""
    order = np.argsort(group, kind="stable")
    groups, first = np.unique(group[order], return_index=True)
    return order, groups, first, np.concatenate((first[1:], [len(group)]))
