"""Operations and bytes of matrix products, for all operators that compute them."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from augment.facts.operators.operator_calls import PACKED, Call, Shape, Unrecorded
from augment.facts.operators.work_model import Work, exactly

Formula = Callable[[Call], Work]
_SPARSE_OR_COMPLEX = ("complex64", "complex128", "scale", "bool")


def product(call: Call, left: int, right: int, batch: int, m: int, n: int, k: int, extra: int | None = None) -> Work:
    """``batch`` products of (m, k) by (k, n). ``extra`` is the place of the tensor that is added."""
    number, size = call.type_of(left)
    if number in _SPARSE_OR_COMPLEX:
        raise Unrecorded(left)
    k *= PACKED.get(number, 1)
    return exactly(2 * batch * m * n * k, _bytes(call, left, right, batch * m * n, size, extra), number)


def _bytes(call: Call, left: int, right: int, out: int, size: int, extra: int | None) -> int | None:
    """The bytes of both operands, of the added tensor, and of the result, which has the type of the left operand, or
    two bytes per element for narrow types.
    """
    try:
        added = call.bytes_of(extra) if extra is not None and call.has(extra) else 0
        return call.bytes_of(left) + call.bytes_of(right) + added + out * max(size, 2)
    except Unrecorded:
        return None


def _same(first: int, other: int) -> int:
    if first != other:
        raise Unrecorded(first)
    return first


def _mm(left: int, extra: int | None = None) -> Formula:
    def formula(call: Call) -> Work:
        (m, k), (again, n) = call.shape(left, 2), call.shape(left + 1, 2)
        return product(call, left, left + 1, 1, m, n, _same(k, again), extra)

    return formula


def _bmm(left: int, extra: int | None = None) -> Formula:
    def formula(call: Call) -> Work:
        (b, m, k), (also, again, n) = call.shape(left, 3), call.shape(left + 1, 3)
        return product(call, left, left + 1, _same(b, also), m, n, _same(k, again), extra)

    return formula


def _mv(left: int, extra: int | None = None) -> Formula:
    def formula(call: Call) -> Work:
        (m, k), (again,) = call.shape(left, 2), call.shape(left + 1, 1)
        return product(call, left, left + 1, 1, m, 1, _same(k, again), extra)

    return formula


def _dot(call: Call) -> Work:
    (k,), (again,) = call.shape(0, 1), call.shape(1, 1)
    return product(call, 0, 1, 1, 1, 1, _same(k, again))


def linear(call: Call) -> Work:
    """A tensor with any number of dimensions times a weight of (out, in)."""
    rows, (n, again) = call.shape(0), call.shape(1, 2)
    return product(call, 0, 1, 1, prod(rows[:-1]), n, _same(rows[-1], again), 2)


def _matmul(call: Call) -> Work:
    """As ``torch.matmul``: vectors, matrices, and stacks of them that are broadcast."""
    left, right = call.shape(0), call.shape(1)
    m, n = (left[-2] if len(left) > 1 else 1), (right[-1] if len(right) > 1 else 1)
    k = _same(left[-1], right[-2] if len(right) > 1 else right[0])
    return product(call, 0, 1, prod(broadcast(left[:-2], right[:-2])), m, n, k)


def broadcast(*shapes: Shape) -> Shape:
    """The shape that results from broadcasting ``shapes``."""
    rank = max(map(len, shapes), default=0)
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    shape = tuple(max(sizes) if min(sizes) else 0 for sizes in zip(*padded, strict=True))
    if any(size not in (1, whole) for sizes in padded for size, whole in zip(sizes, shape, strict=True)):
        raise Unrecorded
    return shape


def _grouped(call: Call) -> Work:
    """``_grouped_mm``: the weight of each expert in a stack multiplies its own rows. The counts do not depend on the
    offsets, which select these rows.
    """
    left, right = call.shape(0), call.shape(1)
    if len(left) == 2 and len(right) == 3:  # every row is multiplied by one of the weights
        return product(call, 0, 1, 1, left[0], right[2], _same(left[1], right[1]))
    if len(left) == 3 and len(right) == 2:
        return product(call, 0, 1, 1, left[1], right[1], _same(left[2], right[0]))
    if len(left) == 3 and len(right) == 3:
        return product(call, 0, 1, _same(left[0], right[0]), left[1], right[2], _same(left[2], right[1]))
    return product(call, 0, 1, 1, left[0], right[1], _same(left[1], right[0]))  # the inner dimension is divided


MATMUL: dict[str, Formula] = {
    "aten::mm": _mm(0),
    "aten::_int_mm": _mm(0),
    "aten::_scaled_mm": _mm(0, 4),
    "aten::addmm": _mm(1, 0),
    "aten::addmm_": _mm(1, 0),
    "aten::_addmm_activation": _mm(1, 0),
    "aten::bmm": _bmm(0),
    "aten::baddbmm": _bmm(1, 0),
    "aten::baddbmm_": _bmm(1, 0),
    "aten::addbmm": _bmm(1, 0),
    "aten::mv": _mv(0),
    "aten::addmv": _mv(1, 0),
    "aten::addmv_": _mv(1, 0),
    "aten::dot": _dot,
    "aten::vdot": _dot,
    "aten::linear": linear,
    "aten::matmul": _matmul,
    "aten::_grouped_mm": _grouped,
    "aten::_scaled_grouped_mm": _grouped,
}
