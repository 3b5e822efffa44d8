"""What a call of an operator has to do, and how sure that is."""

from __future__ import annotations

from augment.records import dataclass


@dataclass(frozen=True, slots=True)
class Work:
    """Floating-point operations, a multiply-add being two, and bytes of device memory.

    ``flops`` is None of what is no matrix product; where it can only be bounded it is the least, and ``most_flops`` the
    greatest. ``again_flops`` of them are done a second time by design: the backward of attention computes the scores
    again. ``bytes`` counts each operand once, None where a type is not known. ``number`` is the type of number that the
    products are of (``bf16``), empty without ``flops``.
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
    """Work whose operations are known."""
    return Work(flops, flops, size, number)
