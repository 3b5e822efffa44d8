"""The work of one call of an operator, and how certain it is."""

from __future__ import annotations

from msgspec import Struct


class Work(Struct, frozen=True):
    """Floating-point operations (a multiply-add is two) and bytes of device memory.

    ``flops`` is None for an operator that is not a matrix product. Where the operations can only be bounded, ``flops``
    is the least and ``most_flops`` the greatest number. ``again_flops`` of them repeat earlier work by design: the
    backward of attention computes the scores again. ``bytes`` counts each operand once; None where a type is unknown.
    ``number`` is the type of number of the products (``bf16``); empty without ``flops``.
    """

    flops: int | None = None
    most_flops: int | None = None
    bytes: int | None = None
    number: str = ""
    again_flops: int = 0

    @property
    def is_product(self) -> bool:
        """Whether it is a matrix product, convolution or attention."""
        return self.flops is not None


def exactly(flops: int, size: int | None, number: str) -> Work:
    """Work with a known number of operations."""
    return Work(flops, flops, size, number)
