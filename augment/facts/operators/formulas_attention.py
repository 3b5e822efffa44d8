"""Operations and bytes of attention and its backward. Masked pairs are not counted where the trace gives the mask.

For each pair of a query and a key that may see each other, the forward computes one dot product of length Dqk, and one
multiplication by a value of length Dv. The backward computes five such products: the scores again, and four gradients.
``cu_seqlens`` gives the lengths of sequences packed into one tensor, but no trace contains its values. So the work is
bounded: the least is for sequences of equal length, the most for as many sequences of the greatest length as possible.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
from msgspec import Struct

from augment.facts.operators.operator_calls import Call, Shape, Unrecorded
from augment.facts.operators.work_model import Work

Formula = Callable[[Call], Work]
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


def _work(call: Call, place: int, sizes: _Sizes, pairs: tuple[int, int], backward: bool) -> Work:
    number, size = call.type_of(place)
    each = 2 * sizes.heads * (3 * sizes.d + 2 * sizes.dv if backward else sizes.d + sizes.dv)
    again = 2 * sizes.heads * sizes.d * pairs[0] if backward else 0
    return Work(pairs[0] * each, pairs[1] * each, sizes.bytes_of(size, backward), number, again)


def _stacked(q: Shape, k: Shape, v: Shape, heads_first: bool, mask: Mask) -> tuple[_Sizes, tuple[int, int]]:
    """The sizes for tensors of shape (batch, heads, length, size) or (batch, length, heads, size)."""
    if not len(q) == len(k) == len(v) == 4:
        raise Unrecorded
    at, by = (2, 1) if heads_first else (1, 2)
    if q[3] != k[3] or k[at] != v[at] or k[by] != v[by] or not k[by] or q[by] % k[by] or q[0] != k[0]:
        raise Unrecorded
    least, most = mask.pairs(q[at], k[at])
    return _Sizes(q[by], k[by], q[3], v[3], q[0] * q[at], k[0] * k[at]), (q[0] * least, q[0] * most)


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
        mask = self._mask(call)
        q, k, v = (call.shape(self.q + offset) for offset in range(3))
        if self.cu >= 0 and call.has(self.cu):
            sequences = prod(call.shape(self.cu, 1)) - 1
            q, k, v = (shape[1:] if len(shape) == 4 and shape[0] == 1 else shape for shape in (q, k, v))
            longest = call.number(self.longest) if self.longest >= 0 else None
            sizes = _packed(q, k, v, sequences, longest, mask)
        else:
            sizes = _stacked(q, k, v, self.heads_first, mask)
        return _work(call, self.q, *sizes, self.backward)

    def _mask(self, call: Call) -> Mask:
        causal = call.flag(self.causal) if self.causal >= 0 else False
        from_end = self.from_end
        if self.mask_type >= 0:
            kind = call.number(self.mask_type)
            causal, from_end = None if kind is None else kind > 0, kind == 2
        left, right = (-1 if at < 0 else call.number(at) for at in (self.left, self.right))
        left, right = (-1 if size is None else size for size in (left, right))
        return Mask(causal, left, right, from_end)


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
