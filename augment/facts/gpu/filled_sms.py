"""How much of the device each kernel fills, as Kineto computes it from the size of its launch."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from augment.arrays import Bools, Int64s, Places
from augment.core import Trace, derived
from augment.facts.gpu.gpu_work import gpu_work
from augment.facts.names.kernel_types import KernelType
from augment.facts.source.event_args import arg_columns

OCCUPANCY, BLOCKS = "est. achieved occupancy %", "blocks per SM"  #: args of kernels
SMALL = 0.5  #: a grid that fills less of the SMs is small


class Occupancy(Struct, frozen=True):
    """Equal-length columns, an entry for each piece of GPU work; NaN where the trace does not say it, as of copies.

    ``achieved`` is the share of the warps that the device can hold, 0 to 1: Kineto's estimate, which the launch
    (registers, shared memory, size of blocks and of the grid) allows at most. It is NaN for 0, which Kineto also writes
    where it cannot compute it, as of kernels with more shared memory than its formula knows. ``filled`` is the share of
    the SMs that have a block of the grid: 1 from as many blocks as SMs on.
    """

    achieved: npt.NDArray[np.float64]  #: share of the warps that the device can hold, by Kineto's estimate
    filled: npt.NDArray[np.float64]  #: share of the SMs that have a block of the grid

    @property
    def is_known(self) -> bool:
        """Whether any kernel has such figures."""
        return bool((~np.isnan(self.filled) | ~np.isnan(self.achieved)).any())


@derived(until="breakdowns")
def occupancy(trace: Trace) -> Occupancy:
    """The figures of each piece of GPU work."""
    work, args = gpu_work(trace), arg_columns(trace)
    achieved = args.ints(OCCUPANCY).at(work.row, -1) / 100.0
    achieved[(achieved <= 0) | (achieved > 1)] = np.nan
    rows, texts = args.texts(BLOCKS)
    blocks = np.array([_number(text) for text in texts.values], np.float64)
    filled = np.full(len(work), np.nan)
    if len(rows):
        place = np.minimum(np.searchsorted(rows, work.row), len(rows) - 1)
        there = rows[place] == work.row
        filled[there] = np.minimum(blocks[texts.codes[place[there]]], 1.0)
    return Occupancy(achieved, filled)


def weighed(values: npt.NDArray[np.float64], dur: Int64s, code: Places | Int64s, count: int) -> list[float | None]:
    """The mean of the ``values`` of each code below ``count``, weighted by ``dur``; None where none is known."""
    there = ~np.isnan(values)
    weight = np.bincount(code[there], dur[there], count)
    total = np.bincount(code[there], dur[there] * values[there], count)
    return [float(part / whole) if whole else None for part, whole in zip(total, weight, strict=True)]


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        return np.nan
    return number if number >= 0 else np.nan


@derived(until="breakdowns")
def small_grids(trace: Trace) -> Bools:
    """Which pieces of GPU work are kernels whose grid fills less than half of the SMs; collectives are none, as they
    use few SMs on purpose."""
    small: Bools = (occupancy(trace).filled < SMALL) & (gpu_work(trace).type == KernelType.COMPUTATION)
    return small
