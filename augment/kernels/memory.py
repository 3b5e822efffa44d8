"""The building blocks of kernels: decorators, access to memory by address, and operations on words.

Here they are plain Python, and so is every kernel: tests run kernels in this form as oracles of the compiled ones. The
build (``building/emit.py``) replaces these functions with numba's before it imports the kernels.
"""

from __future__ import annotations

import ctypes
import struct
import sys
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

Function = TypeVar("Function", bound=Callable[..., Any])
Record = TypeVar("Record")
#: a contiguous array of the type that the catalogue gives; its indexes are never negative
Column: TypeAlias = npt.NDArray[Any]


class Structure(ctypes.Structure):
    """Every record. Where kernels run as Python, tests have its fields take numpy's integers, too."""


class IntArray(ctypes.Array[ctypes.c_int64]):
    """Every array in a record, likewise."""

    _type_, _length_ = ctypes.c_int64, 0


def record(fields: type[Record]) -> type[Record]:
    """A structure in memory with the annotated fields: int64, uint64 (``np.uint64``), other records, and int64 arrays
    of a fixed length (``Annotated[Column, length]``).

    Python makes it without arguments, all zero. A kernel takes it by reference, as does assigning it to a variable.
    """
    known = {"int": ctypes.c_int64, "np.uint64": ctypes.c_uint64}
    types = []
    for name, text in fields.__annotations__.items():
        hint = known.get(text) or eval(text, vars(sys.modules[fields.__module__]))  # noqa: S307 - our own annotations
        length = getattr(hint, "__metadata__", None)
        numbers = type(name, (IntArray,), {"_type_": ctypes.c_int64, "_length_": length[0]}) if length else None
        types.append((name, numbers or hint))
    content = {"_fields_": types, "__doc__": fields.__doc__, "__module__": fields.__module__}
    return type(fields.__name__, (Structure,), content)


def record_at(kind: type[Record]) -> Callable[[int], Record]:
    """The function that gives the record of a kind at an address."""
    return lambda address: _at(kind, address)


def size_of(kind: type[Any]) -> int:
    """The bytes that a record takes."""
    return ctypes.sizeof(kind)


def compiled(function: Function) -> Function:
    """Inline ``function`` into its compiled callers. A call would cost nearly as much as reading a JSON token."""
    return function


def compiled_apart(function: Function) -> Function:
    """Compile ``function`` once and call it. This is for rare cases, which would only make their callers larger."""
    return function


def _at(kind: Any, address: int) -> Any:
    return kind.from_address(int(address))


def load_byte(address: int) -> int:
    """The byte at an address."""
    return int(_at(ctypes.c_uint8, address).value)


def load_word(address: int) -> np.uint64:
    """The 8 bytes at an address, little-endian, at any alignment."""
    return np.uint64(_at(ctypes.c_uint64, address).value)


def load_int(address: int) -> int:
    """The int64 at an address."""
    return int(_at(ctypes.c_int64, address).value)


def load_int32(address: int) -> int:
    """The int32 at an address."""
    return int(_at(ctypes.c_int32, address).value)


def store_byte(address: int, value: int) -> None:
    """Store the low byte of ``value``."""
    _at(ctypes.c_uint8, address).value = int(value)


def store_int32(address: int, value: int) -> None:
    """Store the low four bytes of ``value``."""
    _at(ctypes.c_int32, address).value = int(value)


def store_int(address: int, value: int) -> None:
    """Store ``value``."""
    _at(ctypes.c_int64, address).value = int(value)


def as_word(value: int) -> np.uint64:
    """The word of the same bits as an int64."""
    return np.uint64(int(value) & 0xFFFFFFFFFFFFFFFF)


def as_int(value: int) -> int:
    """A number of a column of any type as an int64, for arithmetic."""
    return int(value)


def trailing_zeros(word: np.uint64) -> np.uint64:
    """How many low bits of ``word`` are 0; ``word`` must not be 0."""
    return np.uint64((int(word) & -int(word)).bit_length() - 1)


def quotient_bits(dividend: int, divisor: int) -> int:
    """The bits of ``float64(dividend) / float64(divisor)`` as an int64; numba's own division may raise."""
    bits: int = struct.unpack("<q", struct.pack("<d", float(dividend) / float(divisor)))[0]
    return bits
