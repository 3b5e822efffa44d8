"""Equality of sequences: hashes of many runs of a column, which may overlap."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from augment.arrays.types import Int64s, Places

_BASE = 0x9E3779B97F4A7C15  #: odd, so that it has an inverse modulo 2 ** 64
_INVERSE = pow(_BASE, -1, 1 << 64)


def sequence_hashes(codes: npt.NDArray[Any], start: Places, stop: Places) -> Int64s:
    """A hash of each ``codes[start:stop]``: equal for equal sequences; different ones collide with a chance of 2 **
    -64.

    The hash is a polynomial in :data:`_BASE` modulo 2 ** 64 with well-mixed coefficients. The sum of any run is a
    difference of two prefix sums. So the cost is linear in the codes and the runs, whatever the length of the runs.

    Args:
        codes: integers, at least 0.
        start: int, the start of each run.
        stop: int, its end, not before the start.
    """
    count = len(codes)
    power = np.full(count + 1, _BASE, np.uint64)
    back = np.full(count + 1, _INVERSE, np.uint64)
    power[0] = back[0] = 1
    np.multiply.accumulate(power, out=power)
    np.multiply.accumulate(back, out=back)
    until = np.zeros(count + 1, np.uint64)
    np.cumsum(_mixed(codes) * power[:-1], out=until[1:])
    return ((until[stop] - until[start]) * back[start]).view(np.int64)


def _mixed(codes: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
    """Sixty-four pseudo-random bits for each code (the finalizer of SplitMix64)."""
    bits = (codes.astype(np.uint64) + np.uint64(1)) * np.uint64(_BASE)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: npt.NDArray[np.uint64] = bits ^ (bits >> np.uint64(31))
    return mixed
