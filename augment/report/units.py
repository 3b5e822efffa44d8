"""Formats numbers for people."""

from __future__ import annotations

from augment import units
from augment.units import SIZES, TIMES

counted = units.counted


def duration(ns: float) -> str:
    """``384.634 ms``."""
    return units.exact(ns, TIMES)


def size(count: float) -> str:
    """``13.8 MB``."""
    return units.exact(count, SIZES)


def share(part: float, whole: float) -> str:
    """``12.3 %``; a dash if ``whole`` is 0."""
    return f"{100 * part / whole:.1f} %" if whole else "–"


def period(start_ns: int, dur_ns: int) -> str:
    """``84.779-88.415``: as ``augment open --at`` takes it, ms since the first event."""
    return f"{start_ns / 1e6:.3f}-{(start_ns + dur_ns) / 1e6:.3f}"


def time_unit(ns: float) -> tuple[float, str]:
    """The unit to show ``ns`` in, and its length in ns; seconds only where milliseconds would be many."""
    return units.scale_of(ns if ns >= 100e9 else min(ns, 999e6), TIMES)


def size_unit(count: float) -> tuple[float, str]:
    """The unit to show ``count`` bytes in, and its size in bytes."""
    return units.scale_of(count, SIZES)
