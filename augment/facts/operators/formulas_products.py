"""Operations and bytes of matrix products, convolutions and attention, for all operators that compute them."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from math import prod
from typing import Any

import numpy as np
from msgspec import Struct

from augment.facts.operators.operator_calls import PACKED, Call, Shape, Unrecorded, Work, exactly

Formula = Callable[[Call], Work]
_SPARSE_OR_COMPLEX = ("complex64", "complex128", "scale", "bool")


def product(call: Call, left: int, right: int, batch: int, m: int, n: int, k: int, extra: int | None = None) -> Work:
    """``batch`` products of (m, k) by (k, n). ``extra`` is the place of the tensor that is added."""
    number, size = call.type_of(left)
    if number in _SPARSE_OR_COMPLEX:
        raise Unrecorded(left)
    k *= PACKED.get(number, 1)
    moved: int | None = None
    with suppress(Unrecorded):  # the result has the type of the left operand, or two bytes an element for narrow types
        added = call.bytes_of(extra) if extra is not None and call.has(extra) else 0
        moved = call.bytes_of(left) + call.bytes_of(right) + added + batch * m * n * max(size, 2)
    return exactly(2 * batch * m * n * k, moved, number)


def _same(first: int, other: int) -> int:
    if first != other:
        raise Unrecorded(first)
    return first


def _product(left: int, extra: int | None = None, ranks: tuple[int, int] = (2, 2)) -> Formula:
    """The formula of matrices, stacks of as many, or vectors, at ``left`` and after it."""

    def formula(call: Call) -> Work:
        first, second = call.shape(left, ranks[0]), call.shape(left + 1, ranks[1])
        *batch, m, k = first if len(first) > 1 else (1, *first)
        *also, again, n = second if len(second) > 1 else (*second, 1)
        if batch != also:
            raise Unrecorded(left)
        return product(call, left, left + 1, prod(batch), m, n, _same(k, again), extra)

    return formula


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
    experts = _same(left[0], right[0]) if len(left) == len(right) == 3 else 1
    return product(call, 0, 1, experts, left[-2], right[-1], _same(left[-1], right[-2]))


TEMPLATE = re.compile(r"triton_tem_fused_\w*mm_\w*\d+")  #: Inductor's own products, named by what they fuse


def template(call: Call) -> Work:
    """A product of two of the tensors that a template takes, into the last; what it fuses beside costs bytes alone. The
    tensors' order is not told, so that all pairs that fit must give the same.
    """
    places = [place for place in range(len(call.dims)) if call.has(place)]
    result, operations = prod(call.shape(places[-1])), set[tuple[int, int]]()
    for left in places[:-1]:
        for right in places[:-1]:
            rows, weights = call.shape(left), call.shape(right)
            if left == right or min(len(rows), len(weights)) < 2 or rows[-1] != weights[-2]:
                continue
            if len(weights) > 2 and rows[:-2] != weights[:-2]:
                continue
            if prod(rows[:-1]) * weights[-1] == result:
                operations.add((2 * prod(rows) * weights[-1], left))
    if len({flops for flops, _ in operations}) != 1:
        raise Unrecorded
    flops, left = min(operations)
    return exactly(flops, sum(map(call.bytes_of, places)), call.type_of(left)[0])


MATMUL: dict[str, Formula] = {
    "_C::cutlass_scaled_mm": _product(1),  # the result is given first
    "_C::cutlass_scaled_mm_azp": _product(1),
    "sgl_kernel::fp8_scaled_mm": _product(0),
    "sgl_kernel::fp8_blockwise_scaled_mm": _product(0),
    "sgl_kernel::int8_scaled_mm": _product(0),
    "aten::mm": _product(0),
    "aten::_int_mm": _product(0),
    "aten::_scaled_mm": _product(0, 4),
    "aten::addmm": _product(1, 0),
    "aten::addmm_": _product(1, 0),
    "aten::_addmm_activation": _product(1, 0),
    "aten::bmm": _product(0, ranks=(3, 3)),
    "aten::baddbmm": _product(1, 0, (3, 3)),
    "aten::baddbmm_": _product(1, 0, (3, 3)),
    "aten::addbmm": _product(1, 0, (3, 3)),
    "aten::mv": _product(0, ranks=(2, 1)),
    "aten::addmv": _product(1, 0, (2, 1)),
    "aten::addmv_": _product(1, 0, (2, 1)),
    "aten::dot": _product(0, ranks=(1, 1)),
    "aten::vdot": _product(0, ranks=(1, 1)),
    "aten::linear": linear,
    "aten::matmul": _matmul,
    "aten::_grouped_mm": _grouped,
    "aten::_scaled_grouped_mm": _grouped,
}


# Operations and bytes of convolutions and their backward, with correct treatment of groups.
#
# A convolution's weight has the shape (out channels, in channels / groups, kernel), so the count 2 · batch · positions
# of the output · weight elements also holds with groups. Each of the two gradients of the backward costs the same.
# PyTorch's own ``flop_counter`` ignores groups for the gradient of the weight, and so counts ``groups`` times too much.


def _positions(x: Shape, w: Shape, stride: list[int], padding: list[int], dilation: list[int]) -> Shape:
    """The output's size in each spatial dimension."""
    rank = len(x) - 2
    steps, pads, gaps = ((sizes * rank)[:rank] if len(sizes) == 1 else sizes for sizes in (stride, padding, dilation))
    if not len(steps) == len(pads) == len(gaps) == rank:
        raise Unrecorded
    each = zip(x[2:], w[2:], steps, pads, gaps, strict=True)
    return tuple((size + 2 * pad - gap * (kernel - 1) - 1) // step + 1 for size, kernel, step, pad, gap in each)


def _convolved(call: Call, x: Shape, w: Shape, out: Shape, positions: Shape, gradients: int = 1) -> Work:
    number, size = call.type_of(0)
    flops = 2 * x[0] * prod(positions) * prod(w) * gradients
    moved = (prod(x) + prod(w) + prod(out)) * gradients
    return exactly(flops, moved * size, number)


def _convolution(
    stride: int, padding: int, dilation: int, transposed: int | None = None, always: bool = False
) -> Formula:
    """The places of the parameters. ``transposed`` is the place of the flag; ``always`` means that the operator is
    always transposed.
    """

    def formula(call: Call) -> Work:
        x, w = call.shape(0), call.shape(1)
        if len(x) < 3 or len(x) != len(w):
            raise Unrecorded
        is_transposed = always if transposed is None else call.flag(transposed)
        if is_transposed is None:
            raise Unrecorded
        if is_transposed:  # each position of the input is multiplied by the weight
            return _convolved(call, x, w, (*x[:1], w[1], *x[2:]), x[2:])
        out = _positions(x, w, call.numbers(stride), call.numbers(padding), call.numbers(dilation))
        return _convolved(call, x, w, (x[0], w[0], *out), out)

    return formula


def _convolution_backward(call: Call) -> Work:
    """``convolution_backward``: the gradients of input and weight that the mask selects."""
    grad, x, w = call.shape(0), call.shape(1), call.shape(2)
    transposed, mask = call.flag(7), call.value(10).lower().strip("[]").split(",")
    if transposed is None or len(mask) != 3:
        raise Unrecorded
    gradients = [flag.strip() for flag in mask[:2]].count("true")
    return _convolved(call, x, w, grad, x[2:] if transposed else grad[2:], gradients)


def _backward_of_old(call: Call) -> Work:
    """``cudnn_convolution_backward`` of PyTorch up to 1.10. Its mask is not recorded: it computes one gradient, or
    both.
    """
    x, grad, w = call.shape(0), call.shape(1), call.shape(2)
    number, size = call.type_of(0) if call.types else ("", 0)
    flops = 2 * grad[0] * prod(grad[2:]) * prod(w)
    if not number:
        raise Unrecorded
    return Work(flops, 2 * flops, (prod(x) + prod(w) + prod(grad)) * size, number)


CONVOLUTION: dict[str, Formula] = {
    "aten::convolution": _convolution(3, 4, 5, 6),
    "aten::_convolution": _convolution(3, 4, 5, 6),
    "aten::convolution_overrideable": _convolution(3, 4, 5, 6),
    "aten::conv1d": _convolution(3, 4, 5),
    "aten::conv2d": _convolution(3, 4, 5),
    "aten::conv3d": _convolution(3, 4, 5),
    "aten::cudnn_convolution": _convolution(3, 2, 4),
    "aten::cudnn_convolution_relu": _convolution(3, 4, 5),
    "aten::miopen_convolution": _convolution(4, 3, 5),
    "aten::miopen_depthwise_convolution": _convolution(4, 3, 5),
    "aten::mkldnn_convolution": _convolution(4, 3, 5),
    "aten::_conv_depthwise2d": _convolution(4, 5, 6),
    "aten::_slow_conv2d_forward": _convolution(4, 5, -1),
    "aten::cudnn_convolution_transpose": _convolution(0, 0, 0, always=True),
    "aten::miopen_convolution_transpose": _convolution(0, 0, 0, always=True),
    "aten::conv_transpose1d": _convolution(0, 0, 0, always=True),
    "aten::conv_transpose2d": _convolution(0, 0, 0, always=True),
    "aten::conv_transpose3d": _convolution(0, 0, 0, always=True),
    "aten::convolution_backward": _convolution_backward,
    "aten::cudnn_convolution_backward": _backward_of_old,
    "aten::miopen_convolution_backward": _backward_of_old,
}


# Operations and bytes of attention and its backward. Masked pairs are not counted where the trace gives the mask.
#
# For each pair of a query and a key that may see each other, the forward computes one dot product of length Dqk, and
# one multiplication by a value of length Dv. The backward computes five such products: the scores again, and four
# gradients. ``cu_seqlens`` gives the lengths of sequences packed into one tensor, but no trace contains its values. So
# the work is bounded: the least is for sequences of equal length, the most for as many sequences of the greatest length
# as possible.


_LONGEST = 1 << 24  #: the greatest plausible length of a sequence; a greater one is damage


class Mask(Struct, frozen=True):
    """Which keys a query sees: none after it if ``causal`` (None: not told), and ``left`` before and ``right`` after it
    at most, -1 being all. ``from_end``: the last query is level with the last key, else the first with the first."""

    causal: bool | None
    left: int = -1
    right: int = -1
    from_end: bool = False

    def pairs(self, queries: int, keys: int) -> tuple[int, int]:
        """The number of pairs of a query and a key that see each other: the least and the most."""
        if self.causal is None:
            least, most = (Mask(is_causal, self.left, self.right, self.from_end) for is_causal in (True, False))
            return least.pairs(queries, keys)[0], most.pairs(queries, keys)[1]
        right = 0 if self.causal else self.right
        if self.left < 0 and right < 0:
            return (queries * keys,) * 2
        if max(queries, keys) > _LONGEST:
            raise Unrecorded
        level = np.arange(queries, dtype=np.int64) + (keys - queries if self.from_end else 0)
        first = np.maximum(level - self.left, 0) if self.left >= 0 else np.zeros_like(level)
        last = np.minimum(level + right, keys - 1) if right >= 0 else np.full_like(level, keys - 1)
        pair_count = int(np.maximum(last - first + 1, 0).sum())
        return pair_count, pair_count


class _Sizes(Struct, frozen=True):
    """The sizes of one call: heads of queries and of keys, head sizes for keys and values, all queries, all keys."""

    heads: int
    key_heads: int
    d: int
    dv: int
    queries: int
    keys: int

    def bytes_of(self, size: int, backward: bool) -> int:
        """The bytes of queries, keys, values and the result, each counted once. The backward adds the bytes of their
        gradients.
        """
        once = self.queries * self.heads * (self.d + self.dv) + self.keys * self.key_heads * (self.d + self.dv)
        return size * once * (2 if backward else 1)


def _packed(
    q: Shape, k: Shape, v: Shape, sequences: int, longest: int | None, mask: Mask
) -> tuple[_Sizes, tuple[int, int]]:
    """The sizes and bounds for tensors of shape (all tokens, heads, size) with that many sequences; queries and keys
    belong to the same sequences.
    """
    if not len(q) == len(k) == len(v) == 3 or q[0] != k[0] or q[2] != k[2] or sequences < 1 or not k[1] or q[1] % k[1]:
        raise Unrecorded
    tokens = q[0]
    longest = min(longest or tokens, tokens)
    short, longer = divmod(tokens, sequences)
    least = (sequences - longer) * mask.pairs(short, short)[0] + longer * mask.pairs(short + 1, short + 1)[0]
    full, rest = divmod(tokens, longest) if longest else (0, 0)
    most = full * mask.pairs(longest, longest)[1] + mask.pairs(rest, rest)[1]
    return _Sizes(q[1], k[1], q[2], v[2], tokens, tokens), (least, max(least, most))


class _Places(Struct, frozen=True):
    """The places of the relevant arguments in an operator's schema; -1 for those that it lacks. ``mask_type`` is 0, 1
    or 2.
    """

    q: int = 0
    heads_first: bool = False
    backward: bool = False
    causal: int = -1
    mask_type: int = -1
    left: int = -1
    right: int = -1
    cu: int = -1
    longest: int = -1
    from_end: bool = False
    unless: tuple[int, ...] = ()  #: tensors that select keys: pages, lengths

    def __call__(self, call: Call) -> Work:
        if any(map(call.has, self.unless)):
            raise Unrecorded
        causal = call.flag(self.causal) if self.causal >= 0 else False
        from_end = self.from_end
        if self.mask_type >= 0:
            kind = call.number(self.mask_type)
            causal, from_end = None if kind is None else kind > 0, kind == 2
        left, right = (-1 if at < 0 else call.number(at) for at in (self.left, self.right))
        left, right = (-1 if size is None else size for size in (left, right))
        mask = Mask(causal, left, right, from_end)
        q, k, v = (call.shape(self.q + offset) for offset in range(3))
        if self.cu >= 0 and call.has(self.cu):
            sequences = prod(call.shape(self.cu, 1)) - 1
            q, k, v = (shape[1:] if len(shape) == 4 and shape[0] == 1 else shape for shape in (q, k, v))
            longest = call.number(self.longest) if self.longest >= 0 else None
            sizes, pairs = _packed(q, k, v, sequences, longest, mask)
        else:
            # The sizes for tensors of shape (batch, heads, length, size) or (batch, length, heads, size)
            if not len(q) == len(k) == len(v) == 4:
                raise Unrecorded
            at, by = (2, 1) if self.heads_first else (1, 2)
            if q[3] != k[3] or k[at] != v[at] or k[by] != v[by] or not k[by] or q[by] % k[by] or q[0] != k[0]:
                raise Unrecorded
            least, most = mask.pairs(q[at], k[at])
            sizes, pairs = _Sizes(q[by], k[by], q[3], v[3], q[0] * q[at], k[0] * k[at]), (q[0] * least, q[0] * most)
        number, size = call.type_of(self.q)
        each = 2 * sizes.heads * (3 * sizes.d + 2 * sizes.dv if self.backward else sizes.d + sizes.dv)
        again = 2 * sizes.heads * sizes.d * pairs[0] if self.backward else 0
        return Work(pairs[0] * each, pairs[1] * each, sizes.bytes_of(size, self.backward), number, again)


def _flash_2(**places: Any) -> _Places:
    return _Places(from_end=True, **places)


_PAGES = (10, 11, 14)

ATTENTION: dict[str, Formula] = {
    "aten::scaled_dot_product_attention": _Places(heads_first=True, causal=5),
    "aten::_scaled_dot_product_flash_attention": _Places(heads_first=True, causal=4),
    "aten::_scaled_dot_product_efficient_attention": _Places(heads_first=True, causal=6),
    "aten::_scaled_dot_product_cudnn_attention": _Places(heads_first=True, causal=6),
    "aten::_scaled_dot_product_fused_attention_overrideable": _Places(heads_first=True, causal=5),
    "aten::_flash_attention_forward": _flash_2(causal=8, left=11, right=12, cu=3, longest=5),
    "aten::_efficient_attention_forward": _Places(mask_type=9, cu=4, longest=6),
    "aten::_cudnn_attention_forward": _Places(heads_first=True, causal=10, cu=4, longest=6),
    "aten::_scaled_dot_product_flash_attention_backward": _Places(1, True, True, causal=11),
    "aten::_scaled_dot_product_efficient_attention_backward": _Places(1, True, True, causal=11),
    "aten::_scaled_dot_product_cudnn_attention_backward": _Places(1, True, True, causal=14),
    "aten::_flash_attention_backward": _flash_2(q=1, backward=True, causal=11, left=15, right=16, cu=6, longest=8),
    "aten::_efficient_attention_backward": _Places(1, False, True, mask_type=14, cu=6, longest=8),
    "flash_attn::_flash_attn_forward": _flash_2(causal=5, left=6, right=7),
    "flash_attn::_flash_attn_varlen_forward": _flash_2(causal=9, left=10, right=11, cu=3, longest=5),
    "flash_attn::_flash_attn_backward": _flash_2(q=1, backward=True, causal=11, left=12, right=13),
    "flash_attn::_flash_attn_varlen_backward": _flash_2(
        q=1, backward=True, causal=15, left=16, right=17, cu=9, longest=11
    ),
    "flash_attn_3::fwd": _flash_2(causal=24, left=25, right=26, cu=7, longest=12, unless=_PAGES),
    "flash_attn_3::_flash_attn_forward": _flash_2(causal=24, left=25, right=26, cu=7, longest=12, unless=_PAGES),
    "flash_attn_3::bwd": _flash_2(q=1, backward=True, causal=16, left=17, right=18, cu=9, longest=13),
    "flash_attn_3::_flash_attn_backward": _flash_2(q=1, backward=True, causal=13, left=14, right=15, cu=6, longest=10),
    "aiter::fmha_v3_fwd": _flash_2(causal=5, left=6, right=7),
}
