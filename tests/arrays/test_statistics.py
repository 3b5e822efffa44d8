"""Medians and percentiles against sorted values."""

from __future__ import annotations

import numpy as np
import pytest

from augment.arrays.ordering import group_bounds
from augment.arrays.statistics import grouped_medians, percentile, percentiles


@pytest.mark.parametrize("bits", [3, 20, 61])
def test_order_does_not_matter(bits: int) -> None:
    random = np.random.default_rng(bits)
    for groups in range(1, 9):
        code = np.concatenate([np.arange(groups), random.integers(0, groups, 50)])
        values = random.integers(-(1 << bits), 1 << bits, len(code))
        medians = grouped_medians(values, code, group_bounds(code, groups)).tolist()
        for group, median in enumerate(medians):
            ascending = np.sort(values[code == group])
            low, high = ascending[(len(ascending) - 1) // 2], ascending[len(ascending) // 2]
            assert median == low + (high - low) / 2
        ascending = np.sort(values)
        assert percentiles(values, 0, 50, 99, 100) == [percentile(ascending, each) for each in (0, 50, 99, 100)]
    assert percentiles(np.array([7]), 50, 99) == [7.0, 7.0]
