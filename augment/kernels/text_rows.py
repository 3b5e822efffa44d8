"""The loop of ``writers/templates.py``: renders rows of integers as text."""

from __future__ import annotations

import numpy as np

from augment.kernels.memory import (
    Column,
    as_word,
    compiled,
    load_byte,
    load_int,
    record,
    record_at,
    size_of,
    store_byte,
    store_int,
)

LITERAL, NUMBER, CHOICE = 0, 1, 2  #: kinds of steps
MISSING = -1
MINUS, POINT, ZERO = 45, 46, 48
TEN, HUNDRED = np.uint64(10), np.uint64(100)
PAIRS = np.frombuffer(b"".join(b"%02d" % number for number in range(100)), np.uint8).copy()


@record
class TextStep:
    """A prefix and what follows it: nothing, a number, or one of some texts."""

    kind: int
    prefix: int  #: where the prefix begins and ends
    prefix_end: int
    detail: int  #: of a number its decimals, of a choice its first text
    trim: int  #: whether zeros at the end of the decimals are left out
    is_arg: int  #: whether it is left out where there is no value


STEP_SIZE, step_at = size_of(TextStep), record_at(TextStep)


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
    steps: int, step_count: int, prefixes: int, pool: int, ends: Column, values: Column, row: int, stop: int, out: int,
    last: int, written: Column,
) -> int:  # fmt: skip
    """Render from ``row`` on until ``stop``, or until ``out`` has passed ``last``. Returns the next row.

    ``steps``, ``prefixes``, ``pool`` and ``out`` are addresses; ``values`` are those of all rows, row by row. The
    final value of ``out`` is stored in ``written``.
    """
    width = len(values) // stop
    while row < stop and out <= last:
        comma = False  # whether an arg has been written in this group
        place = width * row
        for number in range(step_count):
            step = step_at(steps + STEP_SIZE * number)
            prefix, value = step.prefix, 0
            if step.kind != LITERAL:
                value = values[place]
                place += 1
            if step.is_arg:
                if value == MISSING:
                    continue
                if not comma:
                    prefix += 1
                comma = True
            elif step.kind == LITERAL:
                comma = False
            out = copy(out, prefixes + prefix, step.prefix_end - prefix)
            if step.kind == NUMBER:
                out = write_number(out, value, step.detail, step.trim != 0)
            elif step.kind == CHOICE:
                start = ends[step.detail + value]
                out = copy(out, pool + start, ends[step.detail + value + 1] - start)
        row += 1
    written[0] = out
    return row
