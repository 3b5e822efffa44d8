"""An operator's call: its arguments (shapes, types and values) as PyTorch records them, and its work.

They are recorded with ``record_shapes=True``: ``Input Dims``, ``Input type``, ``Input Strides``, ``Concrete Inputs``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from math import prod
from typing import Any

from msgspec import Struct

from augment.core.jsontext import mended_json

Shape = tuple[int, ...]

#: for each type in a trace: the name of the type of number, and the bytes of an element
TYPES: dict[str, tuple[str, int]] = {
    "double": ("fp64", 8),
    "float": ("fp32", 4),
    "c10::Half": ("fp16", 2),
    "c10::BFloat16": ("bf16", 2),
    "c10::Float8_e4m3fn": ("fp8", 1),
    "c10::Float8_e4m3fnuz": ("fp8", 1),
    "c10::Float8_e5m2": ("fp8", 1),
    "c10::Float8_e5m2fnuz": ("fp8", 1),
    "c10::Float8_e8m0fnu": ("scale", 1),
    "c10::Float4_e2m1fn_x2": ("fp4", 1),
    "signed char": ("int8", 1),
    "unsigned char": ("uint8", 1),
    "bool": ("bool", 1),
    "short": ("int16", 2),
    "int": ("int32", 4),
    "long": ("int64", 8),
    "long int": ("int64", 8),
    "long long": ("int64", 8),
    "c10::complex<float>": ("complex64", 8),
    "c10::complex<double>": ("complex128", 16),
}
PACKED = {"fp4": 2}  #: the number of values that one element of a tensor holds


class Unrecorded(Exception):
    """A call lacks what a formula needs. This error never leaves the formulas."""


class Call(Struct, frozen=True, dict=True):
    """The arguments of one call, by their place in the operator's schema."""

    operator: str  #: its name
    dims: Sequence[Any]  #: () for an argument that is not a tensor, a list of shapes for a list of tensors
    types: Sequence[str]  #: as they were recorded
    values: Sequence[str] = ()  #: texts, empty for tensors
    strides: Sequence[Any] = ()  #: as ``dims``
    element_bytes: int = 0  #: that its kernels move for each element of a list of tensors; 0 where not known

    @classmethod
    def parsed(cls, operator: str, texts: Sequence[str], element_bytes: int = 0) -> Call | None:
        """The call with the JSON texts of its dims, types, values and strides, empty where absent; None if they are
        damaged.
        """
        dims, types, values, strides = map(_json_list, texts)
        return None if dims is None else cls(operator, dims, types or (), values or (), strides or (), element_bytes)

    def shape(self, place: int, rank: int | None = None) -> Shape:
        """The shape of the tensor at ``place``, which must have ``rank`` dimensions."""
        dims = self.dims[place] if place < len(self.dims) else ()
        if not dims or not all(isinstance(dim, int) and dim >= 0 for dim in dims):
            raise Unrecorded(place)
        if rank is not None and len(dims) != rank:
            raise Unrecorded(place)
        return tuple(dims)

    def elements(self, place: int) -> int:
        """The elements of the list of tensors at ``place``, which no trace has of more than 30 tensors."""
        shapes = self.dims[place] if place < len(self.dims) else ()
        if not shapes or not all(isinstance(shape, list) for shape in shapes):
            raise Unrecorded(place)
        if not all(isinstance(dim, int) and dim >= 0 for shape in shapes for dim in shape):
            raise Unrecorded(place)
        return sum(map(prod, shapes))

    def has(self, place: int) -> bool:
        """Whether there is a tensor with a shape at ``place``."""
        return place < len(self.dims) and bool(self.dims[place]) and isinstance(self.dims[place][0], int)

    def type_of(self, place: int) -> tuple[str, int]:
        """The type of number at ``place`` and its bytes."""
        if place >= len(self.types) or self.types[place] not in TYPES:
            raise Unrecorded(place)
        return TYPES[self.types[place]]

    def value(self, place: int) -> str:
        """The text of an argument that is not a tensor."""
        return self.values[place] if place < len(self.values) else ""

    def flag(self, place: int) -> bool | None:
        """A recorded truth value; None if there is none."""
        return {"true": True, "false": False}.get(self.value(place).lower())

    def number(self, place: int) -> int | None:
        """A recorded integer."""
        try:
            return int(self.value(place))
        except ValueError:
            return None

    def numbers(self, place: int) -> list[int]:
        """A recorded list of integers."""
        listed = _json_list(self.value(place).lower())
        if not listed or not all(isinstance(number, int) for number in listed):
            raise Unrecorded(place)
        return [int(number) for number in listed]

    def bytes_of(self, place: int) -> int:
        """The bytes of the tensor at ``place``. An expanded dimension, of stride 0, is stored once."""
        shape = self.shape(place)
        strides = self.strides[place] if place < len(self.strides) else ()
        if len(strides) == len(shape):
            shape = tuple(1 if step == 0 else size for size, step in zip(shape, strides, strict=True))
        return prod(shape) * self.type_of(place)[1]

    @cached_property
    def tensors(self) -> list[int]:
        """The places of tensors with a shape and a known type, in their order."""
        types = self.types[: len(self.dims)]
        return [place for place, number in enumerate(types) if self.has(place) and number in TYPES]


def _json_list(text: str) -> list[Any] | None:
    """The JSON list in ``text``."""
    if not text:
        return None
    try:
        decoded = mended_json(text.encode())
    except ValueError:
        return None
    return decoded if isinstance(decoded, list) else None


class Heads(Struct, frozen=True):
    """The sizes of attention: elements of a token's queries, over all heads, and the bytes of its keys and values in
    the cache."""

    query: int
    number: str  #: the type of number of the products
    cached_bytes: int  #: of a token's keys and values
    query_bytes: int  #: of the new tokens' queries, as many as the results have
    decodes_only: bool = False  #: prompts are computed in another way


class Work(Struct, frozen=True):
    """Floating-point operations (a multiply-add is two) and bytes of device memory."""

    flops: int | None = None  #: the least number, where it can only be bounded; None if not a matrix product
    most_flops: int | None = None  #: the greatest number, where it can only be bounded
    bytes: int | None = None  #: counts each operand once; None where a type is unknown
    number: str = ""  #: the type of number of the products (``bf16``); empty without ``flops``
    again_flops: int = 0  #: of them repeat earlier work by design: the backward of attention computes the scores again
    heads: Heads | None = None  #: of attention over an engine's cache, whose work depends on the step

    @property
    def attends(self) -> bool:
        """Whether it is attention over an engine's cache."""
        return self.heads is not None

    @property
    def is_product(self) -> bool:
        """Whether it is a matrix product, convolution or attention."""
        return self.flops is not None


def exactly(flops: int, size: int | None, number: str) -> Work:
    """Work with a known number of operations."""
    return Work(flops, flops, size, number)
