"""Orders, groups and equal sequences in linear time: numpy sorts narrow integers by radix."""

from __future__ import annotations

import mmap
import sys
from collections.abc import Iterable, Iterator
from typing import Any, Literal, TypeVar, cast

import numpy as np
import numpy.typing as npt

from augment.arrays.types import Bools, Int64s, Places
from augment.kernels.native import native
from augment.kernels.sorted_columns import DIGIT_BITS, DIGITS

Whole = TypeVar("Whole", bound=np.integer[Any])
Side = Literal["left", "right"]

_FEW = 256  #: values: of fewer, numpy finds the places before a kernel is called


def grouped(codes: npt.NDArray[Any], count: int) -> Places:
    """The places of ``codes`` (integers in ``range(count)``), sorted by code; each group keeps its order."""
    narrow = np.uint8 if count <= 1 << 8 else np.uint16 if count <= 1 << 16 else np.int64
    return np.argsort(codes.astype(narrow, copy=False), kind="stable")


def group_bounds(codes: npt.NDArray[Any], count: int) -> Places:
    """Where each group starts in the result of :func:`grouped`, plus the end: ``count + 1`` places."""
    if count < 64:  # compares narrow integers, where bincount would widen them all
        sizes = np.array([np.count_nonzero(codes == code) for code in range(count)], np.intp)
    else:
        sizes = np.bincount(codes, minlength=count)
    return np.concatenate((np.zeros(1, np.intp), np.cumsum(sizes)))


def each(codes: npt.NDArray[Any], size: int) -> Iterator[tuple[int, Places]]:
    """Each distinct value of ``codes`` (integers in ``range(size)``), ascending, and its places, ascending.

    The cost does not grow with the number of values, unlike that of a mask for each value.
    """
    values, table = compressed(codes, size)
    code = table.take(codes)
    order, bounds = grouped(code, len(values)), group_bounds(code, len(values)).tolist()
    for value, start, stop in zip(values.tolist(), bounds, bounds[1:], strict=False):
        yield value, order[start:stop]


def order_of(values: npt.NDArray[Any]) -> Places:
    """As a stable :func:`numpy.argsort`; faster for integers in any order, slower where long stretches ascend."""
    bits = len(values).bit_length()  # the low bits of the keys are places
    if (low := _least(values, bits)) is None:
        return np.argsort(values, kind="stable")
    keys = values.astype(np.int64)
    keys -= low
    keys <<= bits
    keys |= np.arange(len(keys))
    keys = _by_digits(keys, bits)
    keys &= (1 << bits) - 1
    return keys


def ordered(values: npt.NDArray[Whole]) -> npt.NDArray[Whole]:
    """As :func:`numpy.sort`, and faster in the same cases as :func:`order_of`."""
    if (low := _least(values)) is None:
        return np.sort(values)
    keys = _by_digits(values.astype(np.int64) - low)
    keys += low
    return cast("npt.NDArray[Whole]", keys)


def _least(values: npt.NDArray[Any], more_bits: int = 0) -> int | None:
    """The least of ``values`` if they can be sorted by digits: many integers whose range leaves ``more_bits``."""
    if len(values) < 4 * _FEW or not np.can_cast(values.dtype, np.int64):
        return None
    low = int(values.min())
    return low if (int(values.max()) - low).bit_length() + more_bits < 63 else None


def _by_digits(keys: Int64s, low_bit: int = 0) -> Int64s:
    """``keys``, not negative, in the order of their bits from ``low_bit`` on. Their memory may be used."""
    high_bit, other = int(keys.max()).bit_length(), np.empty_like(keys)
    places = np.zeros(DIGITS * max(-(-(high_bit - low_bit) // DIGIT_BITS), 0), np.int64)
    return other if native("sorted_columns.by_digits")(keys, low_bit, high_bit, places, other) else keys


def run_starts(values: npt.NDArray[Any]) -> Places:
    """The first place of each run of equal ``values``."""
    starts = np.ones(len(values), np.bool_)
    starts[1:] = values[1:] != values[:-1]
    return np.flatnonzero(starts)


def changing(values: npt.NDArray[Any]) -> Bools:
    """Which points of a counter to keep: where its value changes, plus the first and the last."""
    keep = np.ones(len(values), np.bool_)
    keep[1:-1] = values[1:-1] != values[:-2]
    return keep


def settled(tied: Bools, key: Int64s) -> Places | None:
    """The stable order that sorts each run of ties by ascending ``key``; None if the runs are sorted already.

    Args:
        tied: one entry fewer than ``key``: whether a place ties with the place before it.
        key: int64, the key to sort by.
    """
    if not (tied & (key[1:] < key[:-1])).any():
        return None
    places = np.flatnonzero(np.concatenate(([False], tied)) | np.concatenate((tied, [False])))
    run = np.cumsum(~np.concatenate(([False], tied))[places])
    order = np.arange(len(key))
    order[places] = places[np.lexsort((key[places], run))]
    return order


def occurring(codes: npt.NDArray[Any], size: int) -> Int64s:
    """The distinct values of ``codes`` (integers in ``range(size)``), ascending."""
    if codes.dtype != np.int64:  # with narrower indexes, numpy takes three times as long
        return np.bincount(codes, minlength=size).nonzero()[0]
    seen = np.zeros(size, np.bool_)
    seen[codes] = True
    return seen.nonzero()[0]


def compressed(codes: npt.NDArray[Any], size: int) -> tuple[Int64s, npt.NDArray[np.int32]]:
    """As :func:`occurring`, and a table from value to its rank."""
    values, table = occurring(codes, size), np.full(size, -1, np.int32)
    table[values] = np.arange(len(values), dtype=np.int32)
    return values, table


def combinations(*columns: npt.NDArray[Any]) -> tuple[list[Int64s], Int64s]:
    """The distinct combinations of the values in equal-length integer ``columns``.

    Returns:
        The combinations as int64 columns, ascending; and for each row the index of its combination.
    """
    distinct, code = numbered(columns[0])
    values = [distinct]
    for column in columns[1:]:
        distinct, code_of_value = numbered(column)
        if len(distinct) > 1:
            keys, code = numbered(code * len(distinct) + code_of_value)
            before, place = np.divmod(keys, len(distinct))
            values = [*(value[before] for value in values), distinct[place]]
        else:
            values.append(np.repeat(distinct, len(values[0])))
    return values, code


def sums(code: npt.NDArray[Any], values: Int64s, count: int) -> Int64s:
    """The sum of the ``values`` of each code in ``range(count)``: exact int64, unlike the floats of ``np.bincount``."""
    total = np.zeros(count, np.int64)
    np.add.at(total, code, values)
    return total


def where_in(ascending: npt.NDArray[Any], values: npt.NDArray[Any], side: Side = "left") -> Places:
    """As :func:`numpy.searchsorted`, and faster where many int64 ``values`` ascend for long stretches."""
    if len(values) < _FEW or ascending.dtype != np.int64 or values.dtype != np.int64:
        return np.searchsorted(ascending, values, side)
    result = np.empty(len(values), np.int64)
    native("sorted_columns.search")(*map(np.ascontiguousarray, (ascending, values)), side == "right", result)
    return result


def is_among(values: npt.NDArray[Any], ascending: npt.NDArray[Any]) -> Bools:
    """Whether each of ``values`` is among ``ascending`` ones."""
    if not len(ascending):
        return np.zeros(len(values), np.bool_)
    where = np.minimum(where_in(ascending, values), len(ascending) - 1)
    among: Bools = ascending[where] == values
    return among


def is_any(values: npt.NDArray[Any], wanted: Iterable[int]) -> Bools:
    """Whether each of ``values`` is any of a few: compares, which take a fraction of the time of :func:`numpy.isin`."""
    result = np.zeros(len(values), np.bool_)
    for value in wanted:
        result |= values == int(value)
    return result


def numbered(values: npt.NDArray[Any]) -> tuple[Int64s, Int64s]:
    """The distinct integers among ``values`` (of any range), ascending, and for each value its index among them."""
    low = int(values.min(initial=0))
    size = int(values.max(initial=0)) - low + 1
    if size > 4 * len(values) + (1 << 10):  # a table would be too large
        order = order_of(values)
        in_order = values[order]
        starts, code = run_starts(in_order), np.empty(len(values), np.int64)
        code[order] = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(values)))
        return in_order[starts].astype(np.int64), code
    codes = values.astype(np.int64)
    if low:
        codes -= low
    known, table = occurring(codes, size), np.empty(size, np.int64)
    table[known] = np.arange(len(known))
    return known + low, codes if len(known) == size else table.take(codes)


def distinct(values: npt.NDArray[Whole]) -> npt.NDArray[Whole]:
    """The distinct ``values``, ascending: by a table where they are close, else few ascending runs are fastest."""
    if len(values):
        low = int(values.min())
        size = int(values.max()) - low + 1
        if size <= 4 * len(values) + (1 << 10):
            codes = values.astype(np.int64)
            codes -= low
            return (occurring(codes, size) + low).astype(values.dtype)
    ascending = np.sort(values, kind="stable")
    return ascending[run_starts(ascending)]


_BASE = 0x9E3779B97F4A7C15  #: odd, so that it has an inverse modulo 2 ** 64
_INVERSE = pow(_BASE, -1, 1 << 64)


def sequence_hashes(codes: npt.NDArray[Any], start: Places, stop: Places) -> Int64s:
    """A hash of each ``codes[start:stop]``: equal for equal sequences; different ones collide with a chance of 2 **
    -64.

    The hash is a polynomial in :data:`_BASE` modulo 2 ** 64 with well-mixed coefficients. The sum of any run is a
    difference of two prefix sums. So the cost is linear in the codes and the runs, whatever the length of the runs.

    Args:
        codes: integers, at least 0.
        start: int, the start of each run.
        stop: int, its end, not before the start.
    """
    count = len(codes)
    power = np.full(count + 1, _BASE, np.uint64)
    back = np.full(count + 1, _INVERSE, np.uint64)
    power[0] = back[0] = 1
    np.multiply.accumulate(power, out=power)
    np.multiply.accumulate(back, out=back)
    until = np.zeros(count + 1, np.uint64)
    bits = (codes.astype(np.uint64) + np.uint64(1)) * np.uint64(_BASE)  # mixed as the finalizer of SplitMix64 does
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    np.cumsum((bits ^ (bits >> np.uint64(31))) * power[:-1], out=until[1:])
    return ((until[stop] - until[start]) * back[start]).view(np.int64)


Value = TypeVar("Value", bound=np.generic)


def reserved(count: int, kind: type[Value]) -> npt.NDArray[Value]:
    """Room for ``count`` values of ``kind``, of any value. Copy what is filled: all of it lives as long as any view.

    The system gives its pages when they are first touched. Memory of ``np.empty`` would in part be memory that was
    freed before, which arrays that are filled could have used.
    """
    if sys.platform == "win32":
        return np.empty(count, kind)
    size = max(count * np.dtype(kind).itemsize, 1)
    return np.frombuffer(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), kind, count)
