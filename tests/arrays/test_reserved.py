"""Room that takes memory only where it is filled."""

from __future__ import annotations

import mmap
import sys
from pathlib import Path

import numpy as np
import pytest

from augment.arrays.ordering import reserved


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.uint8])
def test_values_can_be_written(kind: type[np.integer]) -> None:
    values = reserved(1000, kind)
    assert values.dtype == kind
    assert values.flags.writeable
    assert values.flags.c_contiguous
    values[:] = 0
    values[500:] = 7
    assert values.sum() == 3500


def test_no_values() -> None:
    assert len(reserved(0, np.int64)) == 0


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_only_pages_that_are_filled_are_taken() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE

    before = resident()
    values = reserved(1 << 30, np.uint8)
    values[:4096] = 1
    assert resident() - before < 1 << 28
    assert values[:4096].sum() == 4096
