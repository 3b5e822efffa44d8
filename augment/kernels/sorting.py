"""The loop of ``arrays/ordering.py`` that sorts integers digit by digit, from the lowest."""

from __future__ import annotations

from augment.kernels.memory import Column, compiled

DIGIT_BITS = 11
DIGITS = 1 << DIGIT_BITS  #: how many values a digit has


@compiled
def by_digits(values: Column, low_bit: int, high_bit: int, place: Column, other: Column) -> int:
    """Sort ``values``, not negative, by their bits from ``low_bit`` up to ``high_bit``; ties keep their order.

    ``place`` has as many zeros as there are digits in all, and ``other`` is as long as ``values``. Returns whether the
    result is in ``other``.
    """
    for i in range(len(values)):
        for number, bit in enumerate(range(low_bit, high_bit, DIGIT_BITS)):
            place[DIGITS * number + (values[i] >> bit & (DIGITS - 1))] += 1
    count = 0
    for bit in range(low_bit, high_bit, DIGIT_BITS):
        source, target = (other, values) if count % 2 else (values, other)
        before, first = 0, DIGITS * count
        for digit in range(first, first + DIGITS):
            size = place[digit]
            place[digit] = before
            before += size
        for i in range(len(source)):
            value = source[i]
            digit = first + (value >> bit & (DIGITS - 1))
            target[place[digit]] = value
            place[digit] += 1
        count += 1
    return count % 2
