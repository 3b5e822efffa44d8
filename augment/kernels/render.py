"""The loop of ``writers/rendering.py``: renders rows of integers as text."""

from __future__ import annotations

import numpy as np

from augment.kernels.memory import as_word, compiled, load_byte, load_int, store_byte, store_int

LITERAL, NUMBER, CHOICE = 0, 1, 2  #: kinds of steps
# what a step holds: its int64 at these byte offsets
KIND, PREFIX, PREFIX_END, DETAIL, TRIM, IS_ARG, STEP = range(0, 7 * 8, 8)
MISSING = -1
MINUS, POINT, ZERO = 45, 46, 48
TEN, HUNDRED = np.uint64(10), np.uint64(100)
PAIRS = np.frombuffer(b"".join(b"%02d" % number for number in range(100)), np.uint8).copy()


@compiled
def copy(target: int, source: int, size: int) -> int:
    """Copy eight bytes at a time, up to seven beyond ``size``. Returns the end of the copy."""
    for k in range(0, size, 8):
        store_int(target + k, load_int(source + k))
    return target + size


@compiled
def write_number(out: int, value: int, decimals: int, trim: bool) -> int:
    """Write ``value * 10 ** -decimals`` at ``out``. Returns the place after it."""
    rest = as_word(value)
    if value < 0:
        rest = np.uint64(0) - rest  # also right for the least int64, whose negation overflows
        store_byte(out, MINUS)
        out += 1
    digits = 1
    power = TEN
    while rest >= power and digits < 19:
        power *= TEN
        digits += 1
    digits = max(digits, decimals + 1)
    end = out + digits + (1 if decimals > 0 else 0)
    i = end - 1
    for _ in range(decimals):
        store_byte(i, ZERO + np.int64(rest % TEN))
        rest //= TEN
        i -= 1
    if decimals > 0:
        store_byte(i, POINT)
        i -= 1
    while i > out:
        pair = np.int64(rest % HUNDRED)
        rest //= HUNDRED
        store_byte(i, np.int64(PAIRS[2 * pair + 1]))
        store_byte(i - 1, np.int64(PAIRS[2 * pair]))
        i -= 2
    if i == out:
        store_byte(i, ZERO + np.int64(rest % TEN))
    if decimals > 0 and trim:
        while load_byte(end - 1) == ZERO:
            end -= 1
        if load_byte(end - 1) == POINT:
            end -= 1
    return end


@compiled
def render_rows(
    steps: int, step_count: int, prefixes: int, pool: int, ends: int, values: int, row: int, stop: int, out: int,
    last: int, written: int,
) -> int:  # fmt: skip
    """Render from ``row`` on until ``stop``, or until ``out`` has passed ``last``. Returns the next row.

    All arguments but the counts and rows are addresses; ``values`` is the address of the first row's values. The final
    value of ``out`` is stored at ``written``.
    """
    while row < stop and out <= last:
        comma = False  # whether an arg has been written in this group
        for number in range(step_count):
            step = steps + STEP * number
            kind, prefix, value = load_int(step + KIND), load_int(step + PREFIX), 0
            if kind != LITERAL:
                value = load_int(values)
                values += 8
            if load_int(step + IS_ARG):
                if value == MISSING:
                    continue
                if not comma:
                    prefix += 1
                comma = True
            elif kind == LITERAL:
                comma = False
            out = copy(out, prefixes + prefix, load_int(step + PREFIX_END) - prefix)
            if kind == NUMBER:
                out = write_number(out, value, load_int(step + DETAIL), load_int(step + TRIM) != 0)
            elif kind == CHOICE:
                text = ends + 8 * (load_int(step + DETAIL) + value)
                start = load_int(text)
                out = copy(out, pool + start, load_int(text + 8) - start)
        row += 1
    store_int(written, out)
    return row
