"""Sequences are aligned by a longest common subsequence, however long they are."""

from __future__ import annotations

import random
from itertools import groupby, pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from augment.arrays.types import NO_INDEX
from augment.compare import alignment
from augment.compare.alignment import align, common

items = st.lists(st.integers(0, 4), max_size=30)


def slow_length(xs: list[int], ys: list[int]) -> int:
    """The length of a longest common subsequence, by the textbook's table."""
    above = [0] * (len(ys) + 1)
    for x in xs:
        row = [0]
        for place, y in enumerate(ys):
            row.append(above[place] + 1 if x == y else max(row[-1], above[place + 1]))
        above = row
    return above[-1]


@given(items, items)
def test_pairs_are_equal_ascending_and_as_many_as_can_be(xs: list[int], ys: list[int]) -> None:
    pairs = common(xs, ys)
    assert all(xs[x] == ys[y] for x, y in pairs)
    assert all(a < c and b < d for (a, b), (c, d) in pairwise(pairs))
    assert len(pairs) == slow_length(xs, ys)


def test_what_was_put_in_shifts_nothing() -> None:
    layer = list(range(12))
    xs = layer * 40
    ys = [item for index in range(40) for item in (*layer[:5], *([99] if index % 3 == 0 else []), *layer[5:])]
    assert len(common(xs, ys)) == len(xs)


def test_long_sequences_in_blocks() -> None:
    rng = random.Random(5)
    xs = [rng.randrange(50) for _ in range(5 * alignment.BLOCK)]
    ys = [item for item in xs if rng.random() > 0.01]
    for place in sorted(rng.sample(range(len(ys)), 200), reverse=True):
        ys.insert(place, 77)
    pairs = common(xs, ys)
    assert all(xs[x] == ys[y] for x, y in pairs)
    assert len({x for x, _ in pairs}) == len({y for _, y in pairs}) == len(pairs)
    assert len(pairs) >= 0.999 * (len(ys) - 200)


def test_sequences_that_have_nothing_in_common_end() -> None:
    length = 2 * alignment.BLOCK + 17
    assert common([1] * length, [2] * length) == []
    assert common([1] * length, [2] * 3) == []


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), max_size=40),
       st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), max_size=40))  # fmt: skip
def test_groups_are_aligned_each_by_itself(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    def columns(rows: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
        return np.array([g for g, _ in rows], np.int64), np.array([i for _, i in rows], np.int64)

    (group_a, item_a), (group_b, item_b) = columns(a), columns(b)
    partner = align(group_a, item_a, group_b, item_b)
    met = np.flatnonzero(partner != NO_INDEX)
    assert (group_a[met] == group_b[partner[met]]).all()
    assert (item_a[met] == item_b[partner[met]]).all()
    of_group = {g: [i for _, i in rows] for g, rows in groupby(sorted(b, key=lambda row: row[0]), lambda row: row[0])}
    for group, rows in groupby(sorted(a, key=lambda row: row[0]), lambda row: row[0]):
        part = [item for _, item in rows]
        assert (group_a[met] == group).sum() == slow_length(part, of_group.get(group, []))
        ours = partner[met][group_a[met] == group]
        assert (np.diff(ours) > 0).all()
