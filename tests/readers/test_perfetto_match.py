"""Beginnings and ends find each other: as a stack for each track would have them."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from augment.arrays.types import NO_INDEX
from augment.readers.pairing import matched
from oracles import plain_kernels

EVENTS = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 2), st.booleans()), max_size=30)


def by_stacks(events: list[tuple[int, int, bool]]) -> list[int]:
    """The definition: time, track and whether it begins, in the order of the file."""
    numbers = {True: 0, False: 0}
    numbered = []
    for ts, track, begins in events:
        numbered.append((ts, track, begins, numbers[begins]))
        numbers[begins] += 1
    end_of = [NO_INDEX] * numbers[True]
    stacks: dict[int, list[int]] = {}
    for _, track, begins, number in sorted(numbered, key=lambda item: item[0]):
        if begins:
            stacks.setdefault(track, []).append(number)
        elif stacks.get(track):
            end_of[stacks[track].pop()] = number
    return end_of


@settings(max_examples=400)
@given(events=EVENTS)
def test_both_ways_do_what_stacks_do(events: list[tuple[int, int, bool]]) -> None:
    begins = [event for event in events if event[2]]
    ends = [event for event in events if not event[2]]
    before, so_far = [], 0
    for event in events:
        so_far += event[2]
        if not event[2]:
            before.append(so_far)
    columns = (
        np.array([ts for ts, _, _ in begins], np.int64),
        np.array([track for _, track, _ in begins], np.int32),
        np.array([ts for ts, _, _ in ends], np.int64),
        np.array([track for _, track, _ in ends], np.int32),
        np.array(before, np.int64),
    )
    assert matched(*columns, 3).tolist() == by_stacks(events)
    with plain_kernels():
        assert matched(*columns, 3).tolist() == by_stacks(events)
