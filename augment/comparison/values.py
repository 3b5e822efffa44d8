"""Formats figures for people."""

from __future__ import annotations

from augment.units import OPERATIONS, SIZES, TIMES, exact


def value_text(value: float, unit: str) -> str:
    """A figure as text with its unit."""
    if unit == "ratio":
        return f"{100 * value:.1f} %"
    if unit == "count":
        return f"{value:,.1f}"
    return exact(value, {"ns": TIMES, "FLOP": OPERATIONS}.get(unit, SIZES))


def signed_text(value: float, unit: str) -> str:
    """A difference as text with its sign; ratios in percentage points."""
    if unit == "ratio":
        return f"{100 * value:+.1f} points"
    return f"{'+' if value > 0 else ''}{value_text(value, unit)}"
