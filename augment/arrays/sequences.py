"""Which sequences are equal: runs of a column compared by a hash, however many and however they overlap."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from augment.arrays.types import Int64s, Places

_BASE = 0x9E3779B97F4A7C15  #: odd, so that it has an inverse modulo 2 ** 64
_INVERSE = pow(_BASE, -1, 1 << 64)


def sequence_hashes(codes: npt.NDArray[Any], start: Places, stop: Places) -> Int64s:
    """A hash of each ``codes[start:stop]``: equal for equal sequences, and for others with a chance of 2 ** -64.

    A polynomial in :data:`_BASE` modulo 2 ** 64 whose coefficients are well mixed. Its sums from the first code on give
    the sum of any run as a difference, so that the cost is that of the codes and the runs, not of what the runs hold.

    Args:
        codes: integers, at least 0.
        start: int, where each run starts.
        stop: int, where it ends, not before it starts.
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
    """Sixty-four bits of each code that look like chance (the finalizer of SplitMix64)."""
    bits = (codes.astype(np.uint64) + np.uint64(1)) * np.uint64(_BASE)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: npt.NDArray[np.uint64] = bits ^ (bits >> np.uint64(31))
    return mixed
