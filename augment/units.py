"""The units of displayed figures and their number of digits: one table for all texts.

A figure in a table has three decimals, a size has one; a figure in a sentence has two digits in all.
"""

from __future__ import annotations

Scales = tuple[tuple[float, str], ...]  #: the size of each unit, descending, and its sign

TIMES: Scales = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1, "ns"))
SIZES: Scales = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "B"))
OPERATIONS: Scales = ((1e12, "TFLOP"), (1e9, "GFLOP"), (1e6, "MFLOP"), (1, "FLOP"))
_ROLLS_OVER = 0.9995  #: from this share of a unit on, what is rounded in the smaller unit has four digits
_DIGITS = {TIMES: 3, SIZES: 1, OPERATIONS: 3}


def scale_of(value: float, scales: Scales) -> tuple[float, str]:
    """The unit that shows ``value`` with at least one digit before the point, and the unit's size."""
    return next((entry for entry in scales if abs(value) >= entry[0]), scales[-1])


def _rounded_scale(value: float, scales: Scales) -> tuple[float, str]:
    """The same where no digits follow: 999.6 ms are 1.0 s, not 1,000 ms."""
    return next((entry for entry in scales if abs(value) >= _ROLLS_OVER * entry[0]), scales[-1])


def exact(value: float, scales: Scales) -> str:
    """``384.634 ms``, ``13.8 MB``: for tables."""
    scale, sign = scale_of(value, scales)
    return f"{value / scale:,.{_DIGITS[scales]}f} {sign}" if scale > 1 else f"{value:,.0f} {sign}"


def rounded(value: float, scales: Scales) -> str:
    """``380 ms``, ``3.1 ms``: two digits, or as many as there are before the point; for sentences."""
    scale, sign = _rounded_scale(value, scales)
    scaled = value / scale
    return f"{scaled:,.0f} {sign}" if abs(scaled) >= 9.95 or scale == 1 else f"{scaled:.1f} {sign}"


def four_digits(value: float, scales: Scales) -> str:
    """``62.41 ms``, ``13.34 s``: for names of slices that differ little."""
    scale, sign = scale_of(value, scales)
    scaled = value / scale
    return f"{scaled:,.0f} {sign}" if abs(scaled) >= 1000 else f"{scaled:.4g} {sign}"


def counted(count: float, noun: str, nouns: str = "") -> str:
    """``1 call``, ``12 calls``, ``2.5 calls``. ``nouns`` is the plural if it is not formed with an s."""
    text = f"{count:,.0f}" if count >= 10 or count == round(count) else f"{count:,.1f}"
    return f"{text} {noun}" if text == "1" else f"{text} {nouns or noun + 's'}"
