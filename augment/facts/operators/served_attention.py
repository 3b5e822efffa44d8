"""Attention over the cache of an engine, in one operator for all sequences: its shapes tell the sizes of heads, the
name of the engine's step tells the lengths of the sequences.

Each new token attends to all tokens before it and to itself: a prompt of n new tokens in a sequence of length s has n s
- n (n - 1) / 2 pairs. A pair takes a multiply-add for each element of the heads, twice: with its key, and with its
value. Keys and values of a sequence are read once. Of latent attention (MLA) decodes alone are counted: a query is a
latent and a part with positions long, a value is the latent; prompts are computed from keys and values made of it.
Windows that shorten what a layer attends to are in no shape: work
that cannot have been done in its time is left out (``Roofs.beyond``).
"""

from __future__ import annotations

import re
from math import prod

from augment.facts.operators.operator_calls import Call, Heads, Unrecorded, Work
from augment.facts.steps.engine_steps import UNKNOWN, Batch

#: operators, and the places of their queries and keys: a tensor (tokens, …), or a cache whose last dimensions are a
#: token's
_PLACES: tuple[tuple[re.Pattern[str], int, int], ...] = (
    (re.compile(r"(?:vllm|sglang|vllm_ascend)::unified_attention(?:_with_output)?"), 0, 1),
    (re.compile(r"_vllm_fa[23]_C::(?:varlen_fwd|fwd)|sgl_kernel::fwd"), 0, 1),
    (re.compile(r"(?:_C|_rocm_C)::paged_attention(?:_v[12])?"), -1, -1),
    (re.compile(r"(?:\w+::)?(?:attention_)?paged_attention_ragged(?:_\d+)?"), 2, 3),
)


#: attention over latent keys, which are the values, too: queries, a token's latent, and its part with positions
_LATENT = re.compile(r"vllm::unified_mla_attention(?:_with_output)?")
SERVED_ATTENTION = re.compile("|".join(f"(?:{pattern.pattern})" for pattern in (_LATENT, *(row[0] for row in _PLACES))))


def over_cache(call: Call) -> Work:
    """The formula: the work is known with the step's batch (:func:`work_of`)."""
    return Work(heads=heads_of(call))


def heads_of(call: Call) -> Heads | None:
    """The sizes of attention over a cache; None of other operators.

    Raises:
        Unrecorded: the shapes are not those expected.
    """
    if _LATENT.fullmatch(call.operator):
        (*_, heads, _), (*_, latent), (*_, turned) = call.shape(0), call.shape(1), call.shape(2)
        number, width = call.type_of(0)
        cached = (latent + turned) * call.type_of(1)[1]
        size = prod(call.shape(0)) * width
        return Heads(heads * (2 * latent + turned) // 2, number, cached, size, decodes_only=True)
    for pattern, query, key in _PLACES:
        if not pattern.fullmatch(call.operator):
            continue
        if query < 0:  # the first tensors are results and scratch of as many tokens: the queries precede the caches
            caches = [place for place in range(len(call.dims)) if call.has(place) and len(call.shape(place)) >= 4]
            if not caches or caches[0] == 0:
                raise Unrecorded(0)
            query, key = caches[0] - 1, caches[0]
        tokens, keys = call.shape(query), call.shape(key)
        number, width = call.type_of(query)
        if len(keys) == 5:  # (blocks, heads, elements / x, tokens of a block, x)
            cached = keys[1] * keys[2] * keys[4]
        else:
            cached = prod(keys[1:]) if len(keys) < 4 else keys[-1] * keys[-2]
        if not cached or not prod(tokens[1:]):
            raise Unrecorded(key)
        return Heads(prod(tokens[1:]), number, 2 * cached * call.type_of(key)[1], prod(tokens) * width)
    return None


def work_of(heads: Heads, batch: Batch) -> Work:
    """The work of attention in a step; unknown where the name of the step does not tell the lengths."""
    prefill, decode = batch.prefill_pairs, batch.decode_pairs
    context = (batch.prefill_context, batch.decode_context)
    if UNKNOWN in (prefill, decode, batch.prefill_tokens, batch.prefill_squares, *context):
        return Work(heads=heads)
    if heads.decodes_only and batch.prefill_requests:
        return Work(heads=heads)
    pairs = prefill - (batch.prefill_squares - batch.prefill_tokens) // 2 + decode
    flops = 4 * pairs * heads.query
    return Work(flops, flops, sum(context) * heads.cached_bytes + 2 * heads.query_bytes, heads.number, heads=heads)
