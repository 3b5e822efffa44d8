"""What tools that watch GPUs record beside a trace: power, clocks, temperature, bytes on links."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from augment.arrays.types import Int64s

POWER, ENERGY, CLOCK, THROTTLED = "power", "energy", "sm_clock", "throttled"


class Samples(Struct, frozen=True):
    """One quantity of one GPU. ``gpu`` is its number or name in the file; of equal ``ts`` the first counts."""

    gpu: str
    quantity: str  #: ``power``, ``sm_clock``, ``throttled`` or another
    unit: str  #: of the values: W, MHz, °C, ratio, bytes, GB/s, J
    ts: Int64s  #: Unix ns, strictly ascending; without times the number of the sample
    values: npt.NDArray[np.float64]


class Telemetry(Struct, frozen=True):
    """All that is read of a file. ``has_times``: else ``ts`` only counts samples. ``has_zone``: whether times are Unix
    times; else they are of an unknown zone, as if that were UTC."""

    path: str
    samples: tuple[Samples, ...]
    has_times: bool = True
    has_zone: bool = True
    chosen: str = ""  #: the GPU that the user named
    unreadable_rows: int = 0
