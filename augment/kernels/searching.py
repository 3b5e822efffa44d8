"""The loop of ``arrays/ordering.py``: where values belong among ascending ones."""

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
