"""The operators that count: those with a formula, and the work of each; what kernels over lists of tensors move.

An operator counts only if no operator inside it counts: of ``linear`` and the ``addmm`` inside it, ``addmm`` counts. An
operator that only moves bytes does not replace the matrix product around it: for a convolution that first copies its
input, both the convolution and the copy count.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress

import numpy as np
from msgspec import Struct

from augment.arrays import Bools, EventRows, Int32s, Int64s, StackIndexes, combinations, distinct, where_in
from augment.core import Category, SparseColumn, Texts, Trace, derived, tables_of
from augment.facts.gpu.gpu_work import gpu_work
from augment.facts.gpu.launched_work import work_operators
from augment.facts.host.call_stacks import call_stacks, directly_around, places_of
from augment.facts.names import KernelType, strings_where
from augment.facts.operators.formulas_custom import CustomFormula, formulas_of, installed_formulas, shipped_formulas
from augment.facts.operators.formulas_memory import memory_formula
from augment.facts.operators.formulas_products import ATTENTION, CONVOLUTION, MATMUL, TEMPLATE, template
from augment.facts.operators.operator_calls import TYPES, Call, Unrecorded, Work
from augment.facts.operators.served_attention import SERVED_ATTENTION, over_cache
from augment.facts.source.event_args import arg_columns

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
    """The places in the call stacks of the operators that count, ascending, and for each the index of its call and
    work.
    """
    stacks = call_stacks(trace)
    if not len(arg_columns(trace).texts("Input Dims")[0]):
        return stacks.where(stacks.row < 0), np.empty(0, np.int32), (), ()  # installed formulas are not looked for
    formulas: dict[int, Formula] = {}
    named = places_of(trace, Category.CPU_OP)
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
        text_rows, recorded = arg_columns(trace).texts(arg)
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
    around = directly_around(trace, place)
    has_inner = np.zeros(len(place), np.bool_)
    has_inner[around[around >= 0]] = True
    return has_inner


# What the kernels of operators over lists of tensors move, by their names.
#
# A trace has the shapes of such lists, but no types. The names of the kernels have them: ``CatArrayBatchedCopy<float,
# …>`` copies floats, ``multi_tensor_apply_kernel<…, BinaryOpListAlphaFunctor<float, 2, 2, 0>, …>`` reads two lists of
# floats and writes one. The functors' parameters are those of PyTorch's ``ForeachFunctors.cuh``,
# ``fused_adam_utils.cuh`` and ``FusedSgdKernel.cu``.


_OPERATOR = re.compile(r"aten::(_?cat|_foreach_\w+|_fused_(adam|adamw|sgd)_)")
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
    work = gpu_work(trace)
    is_list = strings_where(trace, _OPERATOR.fullmatch)
    if not is_list.any():
        return ListKernels(work.row[:0], np.empty(0, np.int64), np.empty(0, np.int64))
    operator = work_operators(trace)
    places = np.flatnonzero((operator >= 0) & (work.type == KernelType.COMPUTATION))
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
