"""The loops of ``arrays/ordering.py``, which sort and search, and of ``arrays/joining.py``."""

from __future__ import annotations

from augment.kernels.memory import Column, compiled


@compiled
def search(ascending: Column, values: Column, after: int, result: Column) -> int:
    """Fill ``result``: before how many of ``ascending`` each of ``values`` is, or, with ``after``, behind how many.

    The search for a value begins where the last one ended, and doubles its steps: values that ascend cost little.
    """
    count, at = len(ascending), 0
    for i in range(len(values)):
        value, low, high, step = values[i], at, at, 1
        if at < count and (ascending[at] < value or (after and ascending[at] == value)):
            high = at + 1
            while high < count and (ascending[high] < value or (after and ascending[high] == value)):
                low = high
                high = min(high + step, count)
                step *= 2
            low += 1
        else:
            low = at - 1
            while low >= 0 and (ascending[low] > value or (not after and ascending[low] == value)):
                high = low
                low = max(low - step, -1)
                step *= 2
            low += 1
        while low < high:
            middle = (low + high) // 2
            if ascending[middle] < value or (after and ascending[middle] == value):
                low = middle + 1
            else:
                high = middle
        result[i] = at = low
    return 0


DIGIT_BITS = 11
DIGITS = 1 << DIGIT_BITS  #: how many values a digit has


@compiled
def by_digits(values: Column, low_bit: int, high_bit: int, place: Column, other: Column) -> int:
    """Sort ``values``, not negative, digit by digit by their bits from ``low_bit`` up to ``high_bit``; ties keep their
    order.

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


@compiled
def longest(first: Column, dur: Column, kind: Column, total: Column, result: Column) -> int:
    """Fill ``result``: of each group the longest piece of the kind that takes most time; of equals the first, and the
    least kind. A group is the pieces from its ``first`` to the next group's. ``total`` is room for the time of each
    kind: 0, before and after.
    """
    for group in range(len(first)):
        start, stop = first[group], first[group + 1] if group + 1 < len(first) else len(dur)
        for i in range(start, stop):
            total[kind[i]] += dur[i]
        best, most = kind[start], -1
        for i in range(start, stop):
            if total[kind[i]] > total[best] or (total[kind[i]] == total[best] and kind[i] < best):
                best = kind[i]
        for i in range(start, stop):
            if kind[i] == best and (most < 0 or dur[i] > dur[most]):
                most = i
        result[group] = most
        for i in range(start, stop):
            total[kind[i]] = 0
    return 0


@compiled
def times(first: Column, dur: Column, kind: Column, result: Column) -> int:
    """Add the time of each kind in each group to ``result``: all groups of the first kind, then of the next."""
    for group in range(len(first)):
        stop = first[group + 1] if group + 1 < len(first) else len(dur)
        for i in range(first[group], stop):
            result[kind[i] * len(first) + group] += dur[i]
    return 0
