"""Fixtures of the readers' tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from oracles import packets_by_hand


@pytest.fixture(params=["kernel", "by_hand"])
def scanner(request: pytest.FixtureRequest) -> Iterator[str]:
    """Native traces are read by the kernel, and once more without it."""
    if request.param == "kernel":
        yield request.param
    else:
        with packets_by_hand():
            yield request.param
