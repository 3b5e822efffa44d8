"""Formats numbers for people."""

from __future__ import annotations

_TIMES = ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "µs"), (1, "ns"))
_SIZES = ((1_000_000_000, "GB"), (1_000_000, "MB"), (1_000, "kB"), (1, "B"))


def duration(ns: float) -> str:
    """``384.634 ms``."""
    scale, unit = _unit(ns, _TIMES)
    return f"{ns / scale:,.3f} {unit}" if scale > 1 else f"{ns:,.0f} ns"


def size(count: float) -> str:
    """``13.8 MB``."""
    scale, unit = _unit(count, _SIZES)
    return f"{count / scale:,.1f} {unit}" if scale > 1 else f"{count:,.0f} B"


def share(part: float, whole: float) -> str:
    """``12.3 %``; a dash if ``whole`` is 0."""
    return f"{100 * part / whole:.1f} %" if whole else "–"


def time_unit(ns: float) -> tuple[int, str]:
    """The unit to show ``ns`` in, and its length in ns; seconds only where milliseconds would be many."""
    return _unit(ns if ns >= 100e9 else min(ns, 999e6), _TIMES)


def size_unit(count: float) -> tuple[int, str]:
    """The unit to show ``count`` bytes in, and its size in bytes."""
    return _unit(count, _SIZES)


def counted(count: int, noun: str) -> str:
    """``1 step``, ``2 steps``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _unit(value: float, units: tuple[tuple[int, str], ...]) -> tuple[int, str]:
    return next(((scale, unit) for scale, unit in units if abs(value) >= scale), units[-1])
