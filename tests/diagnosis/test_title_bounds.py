"""Promises that are bounds say so, in the title and in the metrics."""

from __future__ import annotations

import pytest

from augment.core.text import words_of
from augment.diagnosis.rule import NOWHERE, Finding, Found, Seen
from augment.diagnosis.rules.clock_drop import ClockDrop
from augment.diagnosis.rules.data_loading import Fetches
from augment.diagnosis.wording import title


@pytest.mark.parametrize(
    ("seen", "at_most", "bound"),
    [
        (ClockDrop(0.2), False, "would save at least 1.0 ms"),  # it may have dropped before the recording began
        (Fetches(10, 10, host_alone=False, why="no_workers"), False, "would save 1.0 ms"),
        (Fetches(10, 10, host_alone=False, why="no_workers"), True, "would save up to 1.0 ms"),
    ],
)
def test_the_title_names_the_bound(seen: Seen, *, at_most: bool, bound: str) -> None:
    answer = Found(seen, NOWHERE, "medium", 1_000_000, at_most=at_most)
    assert bound in title(words_of("nvidia", "step", 10_000_000), Finding("a_rule", "high", answer, 0.1))
