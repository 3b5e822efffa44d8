"""Columns that take few bytes a value and return arrays of full width, so that sums cannot overflow.

``column[rows]`` is an array of the values at ``rows``, ``column[:]`` of all: both are made at each call, so select
first where only some are needed. Columns can be compared and calculated with like arrays.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar, overload

import numpy as np
import numpy.typing as npt
from numpy.lib.mixins import NDArrayOperatorsMixin

from augment.arrays.ordering import compressed
from augment.arrays.types import Bools, Places

Value = TypeVar("Value", bound=np.integer[Any])

_KINDS = [(np.dtype(kind), np.iinfo(kind).max) for kind in (np.uint8, np.uint16, np.uint32)]  #: and their room
_MOST_EXCEPTIONS = 1 << 12  #: and no more than one of _VALUES_AN_EXCEPTION values
_VALUES_AN_EXCEPTION = 64
_BLOCK = 1 << 15  #: values
_HALF = 32  #: bits
_MOST_KEYED = 1 << 12  #: different values of a column that follow from keys


class PackedColumn(NDArrayOperatorsMixin, Generic[Value]):
    """Values of ``dtype``, which subclasses keep in fewer bytes."""

    __slots__ = ("dtype",)
    dtype: np.dtype[Value]

    def __len__(self) -> int:
        raise NotImplementedError

    def _at(self, rows: Any) -> npt.NDArray[Value]:
        """The values at ``rows``, which index like those of an array, but are no single number; in fresh memory."""
        raise NotImplementedError

    @property
    def stored(self) -> tuple[npt.NDArray[Any], ...]:
        """The arrays that hold the values."""
        raise NotImplementedError

    @overload
    def __getitem__(self, rows: slice | npt.NDArray[Any] | list[int]) -> npt.NDArray[Value]: ...
    @overload
    def __getitem__(self, rows: int | np.integer[Any]) -> Value: ...
    def __getitem__(self, rows: Any) -> Any:
        if hasattr(rows, "__index__") and not isinstance(rows, np.ndarray):
            return self._at(np.array([rows]))[0]
        return self._at(rows)

    @property
    def shape(self) -> tuple[int]:
        """The number of values, as of an array."""
        return (len(self),)

    @property
    def nbytes(self) -> int:
        """The bytes of the arrays that hold the values."""
        return sum(array.nbytes for array in self.stored)

    def tolist(self) -> list[Any]:
        """All values as Python's."""
        values: list[Any] = self[:].tolist()
        return values

    def __array__(self, dtype: None = None, copy: bool | None = None) -> npt.NDArray[Value]:
        if copy is False:
            raise ValueError("a narrow column is no array: reading it makes one")
        values = self[:]
        return values if dtype is None else values.astype(dtype, copy=False)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        whole = [each[:] if isinstance(each, PackedColumn) else each for each in inputs]
        return getattr(ufunc, method)(*whole, **options)

    def __repr__(self) -> str:
        return f"<column: {len(self):,} values of {self.dtype}, {self.nbytes:,} bytes>"


class Narrow(PackedColumn[Value]):
    """Values as unsigned offsets from the least one. The few that do not fit lie apart: from ``limit`` on, an offset is
    their index.
    """

    __slots__ = ("_base", "_exceptions", "_limit", "_offsets")

    def __init__(
        self, dtype: np.dtype[Value], base: int, offsets: npt.NDArray[Any], limit: int, exceptions: npt.NDArray[Value]
    ) -> None:
        """Take what :func:`narrowed` made."""
        self.dtype, self._base, self._offsets = dtype, base, offsets
        self._limit, self._exceptions = limit, exceptions

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def stored(self) -> tuple[npt.NDArray[Any], ...]:
        """The offsets, and the values that do not fit."""
        return self._offsets, self._exceptions

    def _at(self, rows: Any) -> npt.NDArray[Value]:
        is_rows = isinstance(rows, np.ndarray) and rows.dtype == np.intp  # "take" is faster where values are narrow
        offsets = self._offsets.take(rows) if is_rows else self._offsets[rows]
        values: npt.NDArray[Value] = offsets.astype(self.dtype)
        if self._base:
            values += self.dtype.type(self._base)
        if len(self._exceptions):
            apart = offsets >= self._limit
            if apart.any():
                values[apart] = self._exceptions[offsets[apart] - offsets.dtype.type(self._limit)]
        return values

    def looked_up(self, values: npt.NDArray[np.int64]) -> tuple[Places, Bools]:
        """See :func:`looked_up`: the search takes no wider copy of the column."""
        last = self._limit - 1
        is_there = (values >= self._base) & (values <= self._base + last)
        offsets = (np.where(is_there, values, self._base) - self._base).astype(self._offsets.dtype)
        where = np.minimum(np.searchsorted(self._offsets, offsets), len(self) - 1)
        is_there &= self._offsets[where] == offsets
        if len(self._exceptions):
            apart = np.minimum(np.searchsorted(self._exceptions, values), len(self._exceptions) - 1)
            late = self._exceptions[apart] == values
            where[late] = apart[late] + len(self) - len(self._exceptions)
            is_there |= late
        return where, is_there


class Halved(PackedColumn[np.int64]):
    """Integers from 0 to 2**40, as 32 bits and 8 bits of each."""

    __slots__ = ("_high", "_low")
    END = 1 << 40

    def __init__(self, values: npt.NDArray[np.int64]) -> None:
        """Take ``values``, which lie in that range."""
        self.dtype = np.dtype(np.int64)
        self._low, self._high = values.astype(np.uint32), (values >> _HALF).astype(np.uint8)

    def __len__(self) -> int:
        return len(self._low)

    @property
    def stored(self) -> tuple[npt.NDArray[Any], ...]:
        """The lower and the upper bits."""
        return self._low, self._high

    def _at(self, rows: Any) -> npt.NDArray[np.int64]:
        values: npt.NDArray[np.int64] = self._high[rows].astype(np.int64)
        values <<= _HALF
        values |= self._low[rows].astype(np.int64)
        return values


class Keyed(PackedColumn[Value]):
    """Values that mostly follow from another column, of uint8: ``usual`` has one for each of its values."""

    __slots__ = ("_exceptions", "_keys", "_rows", "_usual")

    def __init__(
        self, keys: npt.NDArray[np.uint8], usual: npt.NDArray[Value], rows: npt.NDArray[np.uint32],
        exceptions: npt.NDArray[Value],
    ) -> None:  # fmt: skip
        """``exceptions`` are the values at ``rows``, ascending, where the usual value is wrong."""
        self.dtype = usual.dtype
        self._keys, self._usual, self._rows, self._exceptions = keys, usual, rows, exceptions

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def stored(self) -> tuple[npt.NDArray[Any], ...]:
        """The table and the exceptions; the keys are another column's."""
        return self._usual, self._rows, self._exceptions

    def _at(self, rows: Any) -> npt.NDArray[Value]:
        values: npt.NDArray[Value] = self._usual.take(self._keys[rows])
        if len(self._rows):
            if isinstance(rows, slice) and rows == slice(None):
                values[self._rows] = self._exceptions
                return values
            wanted = np.arange(len(self))[rows] if isinstance(rows, slice) else np.asarray(rows)
            wanted = np.flatnonzero(wanted) if wanted.dtype == np.bool_ else wanted
            wanted = np.where(wanted < 0, wanted + len(self), wanted).astype(np.uint32)
            where = np.minimum(np.searchsorted(self._rows, wanted), len(self._rows) - 1)
            apart = self._rows[where] == wanted
            values[apart] = self._exceptions[where[apart]]
        return values


Values = PackedColumn[Value] | npt.NDArray[Value]  #: a column, or an array


def narrowed(values: npt.NDArray[Value]) -> Values[Value]:
    """Integers in as few bytes as nearly all of them need: a column, or ``values`` where nothing is gained."""
    if not len(values):
        return values
    low, high = int(values.min()), int(values.max())
    if low < 0 and high - low > np.iinfo(values.dtype).max:  # differences may overflow
        return values
    most = min(_MOST_EXCEPTIONS, len(values) // _VALUES_AN_EXCEPTION)
    for kind, room in _KINDS:
        if kind.itemsize >= values.itemsize:
            break
        if high - low <= room:
            return Narrow(values.dtype, low, _offsets(values, low, kind), room + 1, np.empty(0, values.dtype))
        apart = np.flatnonzero(values > low + room - most) if most else None
        if apart is not None and len(apart) <= most:
            limit, exceptions = room + 1 - len(apart), values[apart]
            offsets = _offsets(values, low, kind)
            offsets[apart] = np.arange(limit, room + 1)
            return Narrow(exceptions.dtype, low, offsets, limit, exceptions)
    return values


def _offsets(values: npt.NDArray[Any], low: int, kind: Any) -> npt.NDArray[Any]:
    """``values - low`` as ``kind``, modulo its range."""
    offsets = np.empty(len(values), kind)
    for start in range(0, len(values), _BLOCK):
        block = slice(start, start + _BLOCK)
        offsets[block] = (values[block] - values.dtype.type(low)).astype(kind)
    return offsets


def positions(values: npt.NDArray[np.int64]) -> Values[np.int64]:
    """Places in a file, in as few bytes as all of them need."""
    column = narrowed(values)
    if column is values and len(values) and values.min() >= 0 and values.max() < Halved.END:
        return Halved(values)
    return column


def keyed(keys: npt.NDArray[np.uint8], values: npt.NDArray[Value]) -> Values[Value]:
    """``values``, indexes, as those that ``keys`` mostly tell, or narrowed where they do not."""
    usual, exceptional = _usual(keys, values)
    if exceptional > len(values) // _VALUES_AN_EXCEPTION:
        return narrowed(values)
    rows = np.flatnonzero(usual[keys] != values)
    return Keyed(keys, usual, rows.astype(np.uint32), values[rows])


def _usual(keys: npt.NDArray[np.uint8], values: npt.NDArray[Value]) -> tuple[npt.NDArray[Value], int]:
    """The most frequent value of each key, the least of several, and how many others there are."""
    usual = np.zeros(256, values.dtype)
    if not len(keys):
        return usual, 0
    known, rank = compressed(values, int(values.max()) + 1)
    if len(known) > _MOST_KEYED:
        return usual, len(values)
    counts = np.zeros(256 * len(known), np.int64)
    for start in range(0, len(keys), 8 * _BLOCK):
        block = slice(start, start + 8 * _BLOCK)
        codes = keys[block].astype(np.int32)
        codes *= len(known)
        codes += rank.take(values[block])
        counts += np.bincount(codes, minlength=len(counts))
    of_key = counts.reshape(256, len(known))
    usual[:] = np.where(of_key.any(axis=1), known[of_key.argmax(axis=1)], 0)
    return usual, int(counts.sum() - of_key.max(axis=1).sum())


def looked_up(ascending: Values[np.int64], values: npt.NDArray[np.int64]) -> tuple[Places, Bools]:
    """The place of each of ``values`` in a column that is not empty, and whether it is there: elsewhere, any place."""
    if isinstance(ascending, Narrow):
        return ascending.looked_up(values)
    ascending = ascending[:]
    where = np.minimum(np.searchsorted(ascending, values), len(ascending) - 1)
    return where, ascending[where] == values
