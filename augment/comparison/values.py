"""Formats figures for people."""

from __future__ import annotations

_TIMES = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1, "ns"))
_OPERATIONS = ((1e12, "TFLOP"), (1e9, "GFLOP"), (1e6, "MFLOP"), (1, "FLOP"))
_SIZES = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "B"))


def value_text(value: float, unit: str) -> str:
    """A figure as text with its unit."""
    if unit == "ratio":
        return f"{100 * value:.1f} %"
    if unit == "count":
        return f"{value:,.1f}"
    scales = {"ns": _TIMES, "FLOP": _OPERATIONS}.get(unit, _SIZES)
    scale, sign = next((entry for entry in scales if abs(value) >= entry[0]), scales[-1])
    return f"{value / scale:,.3f} {sign}" if scale > 1 else f"{value:,.0f} {sign}"


def signed_text(value: float, unit: str) -> str:
    """A difference as text with its sign; ratios in percentage points."""
    if unit == "ratio":
        return f"{100 * value:+.1f} points"
    return f"{'+' if value > 0 else ''}{value_text(value, unit)}"
