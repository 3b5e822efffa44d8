"""What every comparison must keep."""

from __future__ import annotations

from typing import Any

import numpy as np

from augment.arrays.types import NO_INDEX
from augment.compare import Diff
from augment.core.findings import Findings


def rows(result: Diff, name: str) -> list[Any]:
    """The rows of a table."""
    outcome = result.outcomes[name]
    assert isinstance(outcome, Findings)
    return list(outcome.rows)


def adds_up(result: Diff) -> None:
    """The parts of the waterfall, and the kinds of work, are the whole, to the nanosecond."""
    steps = rows(result, "diff_steps")
    for column in ("control_ns", "test_ns", "delta_ns"):
        whole = sum(getattr(step, column) for step in steps)
        assert sum(getattr(row, column) for row in rows(result, "diff_waterfall")) == whole
        assert sum(getattr(diff_kind, column) for diff_kind in rows(result, "diff_kinds")) == whole


def partners_are_partners(result: Diff) -> None:
    """Partners are mutual, of one call path and of one step."""
    for pair in result.pairs:
        for back, forth in (
            (pair.alignment.call_of_control, pair.alignment.call_of_test),
            (pair.alignment.work_of_control, pair.alignment.work_of_test),
        ):
            met = np.flatnonzero(back != NO_INDEX)
            assert (forth[back[met]] == met).all()
            assert (forth != NO_INDEX).sum() == len(met)
        met = np.flatnonzero(pair.alignment.call_of_control != NO_INDEX)
        partner = pair.alignment.call_of_control[met]
        assert (pair.control.calls.path[met] == pair.test.calls.path[partner]).all()
        assert (pair.control.calls.step[met] == pair.test.calls.step[partner]).all()
