"""The operators that count: those with a formula, and the work of each; what kernels over lists of tensors move.

An operator counts only if no operator inside it counts: of ``linear`` and the ``addmm`` inside it, ``addmm`` counts. An
operator that only moves bytes does not replace the matrix product around it: for a convolution that first copies its
input, both the convolution and the copy count.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from math import prod

import numpy as np
from msgspec import Struct

from augment.arrays import Bools, EventRows, Int32s, Int64s, StackIndexes, combinations, distinct, where_in
from augment.core import Category, SparseColumn, Texts, Trace, derived, tables_of
from augment.facts import gpu, host, names, source
from augment.facts.operators.formulas_custom import CustomFormula, formulas_of, installed_formulas, shipped_formulas
from augment.facts.operators.formulas_memory import memory_formula
from augment.facts.operators.formulas_products import ATTENTION, CONVOLUTION, MATMUL, TEMPLATE, template
from augment.facts.operators.operator_calls import TYPES, Call, Heads, Unrecorded, Work
from augment.facts.steps.engine_steps import UNKNOWN, Batch

Formula = Callable[[Call], Work]
_ARGS = ("Input Dims", "Input type", "Concrete Inputs", "Input Strides")


def formula_of(trace: Trace, operator: str) -> Formula | None:
    """The formula for an operator: the user's, else that of an installed package, else ours for libraries, else that
    for PyTorch's own operators.
    """
    for formula in (*_own_formulas(trace), *installed_formulas(), *shipped_formulas()):
        if formula.pattern.search(operator):
            return formula
    if SERVED_ATTENTION.fullmatch(operator):
        return over_cache
    if TEMPLATE.fullmatch(operator):
        return template
    return MATMUL.get(operator) or CONVOLUTION.get(operator) or ATTENTION.get(operator) or memory_formula(operator)


@derived
def _own_formulas(trace: Trace) -> list[CustomFormula]:
    return formulas_of(tables_of(trace).get("flops", ()))


@derived(until="summary")
def counted(trace: Trace) -> tuple[StackIndexes, Int32s, tuple[Call, ...], tuple[Work, ...]]:
    """The places in the call stacks of operators that count, ascending, and the index of the call and work of each."""
    stacks = host.stacks(trace)
    if not len(source.args(trace).texts("Input Dims")[0]):
        return stacks.where(stacks.row < 0), np.empty(0, np.int32), (), ()  # installed formulas are not looked for
    formulas: dict[int, Formula] = {}
    named = host.places_of(trace, Category.CPU_OP)
    for code in distinct(named.name).tolist():
        if formula := formula_of(trace, trace.strings[code]):
            formulas[code] = formula
    known = np.zeros(len(trace.strings), np.bool_)
    known[list(formulas)] = True
    index = np.flatnonzero(known[named.name])
    place, name = named.place[index], named.name[index]
    rows = stacks.row[place]
    columns = []
    for arg in _ARGS:
        text_rows, recorded = source.args(trace).texts(arg)
        codes = np.full(len(rows), -1, np.int32)
        if len(text_rows):
            at = np.minimum(where_in(text_rows, rows), len(text_rows) - 1)
            codes = np.where(text_rows[at] == rows, recorded.codes[at], np.int32(-1))
        columns.append(Texts(codes, recorded.values))
    # what the kernels of each operator over lists of tensors move for an element; 0 of all others
    lists = list_kernels(trace)
    element_bytes = SparseColumn(lists.row, lists.element_bytes).at(rows, 0)
    keys, code = combinations(name, *(column.codes for column in columns), element_bytes)
    calls: list[Call] = []
    works: list[Work] = []
    kind = np.full(len(keys[0]), -1, np.int32)
    for number, (operator, *texts, size) in enumerate(zip(*(key.tolist() for key in keys), strict=True)):
        text = [column.values[at] if at >= 0 else "" for column, at in zip(columns, texts, strict=True)]
        if (call := Call.parsed(trace.strings[operator], text, size)) is None:
            continue
        with suppress(Unrecorded, ValueError, IndexError, TypeError, ZeroDivisionError, OverflowError):
            work = formulas[operator](call)  # a shape or schema that the formula does not cover: unknown
            if work.flops is not None or work.bytes is not None or work.attends:
                kind[number] = len(calls)
                calls.append(call)
                works.append(work)
    modelled = kind[code] >= 0
    place, kind = place[modelled], kind[code][modelled]
    # products without a product inside them, others without any operator with a formula inside
    is_product = np.array([work.is_product for work in works], np.bool_)[kind]
    counts = ~_has_inner(trace, place) | is_product
    products = np.flatnonzero(is_product)
    counts[products[_has_inner(trace, place[products])]] = False
    return place[counts], kind[counts], tuple(calls), tuple(works)


def _has_inner(trace: Trace, place: StackIndexes) -> Bools:
    """Whether another of ``place`` lies inside each."""
    around = host.directly_around(trace, place)
    has_inner = np.zeros(len(place), np.bool_)
    has_inner[around[around >= 0]] = True
    return has_inner


# What the kernels of operators over lists of tensors move, by their names.
#
# A trace has the shapes of such lists, but no types. The names of the kernels have them: ``CatArrayBatchedCopy<float,
# …>`` copies floats, ``multi_tensor_apply_kernel<…, BinaryOpListAlphaFunctor<float, 2, 2, 0>, …>`` reads two lists of
# floats and writes one. The functors' parameters are those of PyTorch's ``ForeachFunctors.cuh``,
# ``fused_adam_utils.cuh`` and ``FusedSgdKernel.cu``.


_OPERATOR = re.compile(r"^aten::(_?cat|_foreach_\w+|_fused_(adam|adamw|sgd)_)\Z")
_NUMBER = r"(?:at::native::)?(?:\(anonymous namespace\)::)?(OpaqueType<\d+u?>|c10::\w+(?:<\w+>)?|(?:un)?signed \w+|\w+)"
_CAT = re.compile(rf"\bCatArrayBatchedCopy\w*<{_NUMBER},")
_FUNCTOR = re.compile(rf"\bmulti_tensor_apply_kernel<.*?\b(\w+)Functor<{_NUMBER}, (?:(?!\d){_NUMBER}, )?(.*?)>")
_MAPS = re.compile(r"(Unary|Binary|Pointwise|Ternary)Op(List|ListAlpha|Scalar|ScalarList|ScalarTensor)?|Copy")
_STEPS = ("FusedAdamMath", "FusedSgdMath")
_BESIDE = re.compile(r"\blpnorm_cleanup<")  #: finishes what another kernel began, and moves next to nothing


class ListKernels(Struct, frozen=True):
    """Operators over lists of tensors that launched computation.

    Equal-length columns: ``row`` int64, ascending, of the operator; ``element_bytes`` int64, the bytes that its kernels
    read and write for each element of a list, 0 where their names do not tell; ``ns`` int64, the durations of its
    kernels added.
    """

    row: EventRows
    element_bytes: Int64s
    ns: Int64s


@derived(until="operations")
def list_kernels(trace: Trace) -> ListKernels:
    """The operators over lists of tensors, and what their kernels move."""
    work = gpu.work(trace)
    is_list = names.matching(trace, _OPERATOR)
    if not is_list.any():
        return ListKernels(work.row[:0], np.empty(0, np.int64), np.empty(0, np.int64))
    operator = gpu.innermost_operator(trace)
    places = np.flatnonzero((operator >= 0) & (work.type == names.KernelType.COMPUTATION))
    places = places[is_list[trace.events.name[operator[places]]]]
    row, which = np.unique(operator[places], return_inverse=True)
    codes, code = np.unique(trace.events.name[work.row[places]], return_inverse=True)
    known = [bytes_of_element(trace.strings[code]) for code in codes.tolist()]
    moved = np.array([-1 if size is None else size for size in known], np.int64)[code]
    ns = np.zeros(len(row), np.int64)
    np.add.at(ns, which, work.end[places] - work.ts[places])
    moves = moved >= 0
    least, most = np.full(len(row), np.iinfo(np.int64).max), np.zeros(len(row), np.int64)
    np.minimum.at(least, which[moves], moved[moves])
    np.maximum.at(most, which[moves], moved[moves])
    return ListKernels(row, np.where(least == most, most, 0), ns)


def bytes_of_element(kernel: str) -> int | None:
    """The bytes that a kernel of that name moves for each element of a list; 0: its name does not tell; None: it moves
    no elements.
    """
    if _BESIDE.search(kernel):
        return None
    if match := _CAT.search(kernel):
        return 2 * _width(match[1])
    if not (match := _FUNCTOR.search(kernel)):
        return 0
    functor, number, other, rest = match[1], _width(match[2]), match[3], match[4]
    depths = [int(text) for text in rest.split(", ") if text.isdecimal()]
    if functor in _STEPS and depths:  # all lists are read, all but the gradients written
        return (2 * depths[0] - 1) * number
    if functor in ("Zero", "LpNorm"):
        return number
    if not _MAPS.fullmatch(functor) or len(depths) != 3:
        return 0
    if other:
        return number + _width(other) if functor == "Copy" and number and _width(other) else 0
    return (depths[1] + 1) * number


def _width(number: str) -> int:
    """The bytes of an element of a type as kernels' names have it; 0 if unknown."""
    if opaque := re.fullmatch(r"OpaqueType<(\d+)u?>", number):
        return int(opaque[1])
    return TYPES.get(number, ("", 0))[1]


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
    """Attention over an engine's cache, in one operator for all sequences: its work is known with the step's batch.

    Its shapes tell the sizes of heads, the name of the engine's step tells the lengths of the sequences. Each new token
    attends to all tokens before it and to itself: a prompt of n new tokens in a sequence of length s has
    n s - n (n - 1) / 2 pairs. A pair takes a multiply-add for each element of the heads, twice: with its key, and with
    its value. Keys and values of a sequence are read once. Of latent attention (MLA) decodes alone are counted: a query
    is a latent and a part with positions long, a value is the latent; prompts are computed from keys and values made of
    it. Windows that shorten what a layer attends to are in no shape: work that cannot have been done in its time is
    left out (``Roofs.beyond``).
    """
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
