"""The operators that count: those with a formula, and the work of each.

An operator counts only if no operator inside it counts: of ``linear`` and the ``addmm`` inside it, ``addmm`` counts. An
operator that only moves bytes does not replace the matrix product around it: for a convolution that first copies its
input, both the convolution and the copy count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from augment.arrays.ordering import combinations, distinct, where_in
from augment.arrays.types import Bools, Int32s, Int64s, Places
from augment.core.annotations import Texts
from augment.core.attachments import tables_of
from augment.core.context import derived
from augment.core.trace import Category, SparseColumn, Trace
from augment.facts.host.call_stacks import call_stacks, places_of
from augment.facts.host.enclosing import directly_around
from augment.facts.operators.formulas_attention import ATTENTION
from augment.facts.operators.formulas_convolution import CONVOLUTION
from augment.facts.operators.formulas_custom import CustomFormula, formulas_of, shipped_formulas
from augment.facts.operators.formulas_installed import installed_formulas
from augment.facts.operators.formulas_matmul import MATMUL
from augment.facts.operators.formulas_memory import memory_formula
from augment.facts.operators.list_kernels import list_kernels
from augment.facts.operators.operator_calls import Call, Unrecorded
from augment.facts.operators.work_model import Work
from augment.facts.source.arg_columns import arg_columns

Formula = Callable[[Call], Work]
_ARGS = ("Input Dims", "Input type", "Concrete Inputs", "Input Strides")


def formula_of(trace: Trace, operator: str) -> Formula | None:
    """The formula for an operator: the user's, else that of an installed package, else ours for libraries, else that
    for PyTorch's own operators.
    """
    for formula in (*_own_formulas(trace), *installed_formulas(), *shipped_formulas()):
        if formula.pattern.search(operator):
            return formula
    return MATMUL.get(operator) or CONVOLUTION.get(operator) or ATTENTION.get(operator) or memory_formula(operator)


@derived
def _own_formulas(trace: Trace) -> list[CustomFormula]:
    return formulas_of(tables_of(trace).get("flops", ()))


def counted_operators(trace: Trace) -> Iterator[tuple[int, Work]]:
    """The row and the work of each operator that counts, whether or not it launched GPU work. This includes traces of a
    CPU.
    """
    place, kind, _, works = counted(trace)
    rows = call_stacks(trace).row[place]
    yield from zip(rows.tolist(), (works[number] for number in kind.tolist()), strict=True)


@derived(until="rules")
def counted(trace: Trace) -> tuple[Places, Int32s, tuple[Call, ...], tuple[Work, ...]]:
    """The places in the call stacks of the operators that count, ascending, and for each the index of its call and
    work.
    """
    place, kind, calls, works = _modelled(trace)
    counts = _counting(trace, place, np.array([work.is_product for work in works], np.bool_)[kind])
    return place[counts], kind[counts], calls, works


def _modelled(trace: Trace) -> tuple[Places, Int32s, tuple[Call, ...], tuple[Work, ...]]:
    """The places of the call stacks that have a formula, the arguments that it needs, and the work of each."""
    stacks = call_stacks(trace)
    if not len(arg_columns(trace).texts("Input Dims")[0]):
        return np.empty(0, np.intp), np.empty(0, np.int32), (), ()  # no shapes: installed formulas are not looked for
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
    columns = [_codes(trace, arg, rows) for arg in _ARGS]
    keys, code = combinations(name, *(column.codes for column in columns), _element_bytes(trace, rows))
    calls: list[Call] = []
    works: list[Work] = []
    kind = np.full(len(keys[0]), -1, np.int32)
    for number, (operator, *texts, size) in enumerate(zip(*(key.tolist() for key in keys), strict=True)):
        text = [column.values[at] if at >= 0 else "" for column, at in zip(columns, texts, strict=True)]
        call = Call.parsed(trace.strings[operator], text, size)
        work = None if call is None else _asked(formulas[operator], call)
        if call is not None and work is not None:
            kind[number] = len(calls)
            calls.append(call)
            works.append(work)
    modelled = kind[code] >= 0
    return place[modelled], kind[code][modelled], tuple(calls), tuple(works)


def _asked(formula: Formula, call: Call) -> Work | None:
    try:
        work = formula(call)
    except (Unrecorded, ValueError, IndexError, TypeError, ZeroDivisionError, OverflowError):
        return None  # a shape or schema that the formula does not cover: unknown
    return work if work.flops is not None or work.bytes is not None else None


def _codes(trace: Trace, arg: str, rows: Int64s) -> Texts:
    text_rows, texts = arg_columns(trace).texts(arg)
    codes = np.full(len(rows), -1, np.int32)
    if len(text_rows):
        at = np.minimum(where_in(text_rows, rows), len(text_rows) - 1)
        codes = np.where(text_rows[at] == rows, texts.codes[at], np.int32(-1))
    return Texts(codes, texts.values)


def _element_bytes(trace: Trace, rows: Int64s) -> Int64s:
    """What the kernels of each operator over lists of tensors move for an element; 0 of all others."""
    lists = list_kernels(trace)
    return SparseColumn(lists.row, lists.element_bytes).at(rows, 0)


def _counting(trace: Trace, place: Places, is_product: Bools) -> Bools:
    """Which operators count: products without a product inside them, others without any operator with a formula
    inside.
    """
    counts = ~_has_inner(trace, place) | is_product
    products = np.flatnonzero(is_product)
    counts[products[_has_inner(trace, place[products])]] = False
    return counts


def _has_inner(trace: Trace, place: Places) -> Bools:
    """Whether another of ``place`` lies inside each."""
    around = directly_around(trace, place)
    has_inner = np.zeros(len(place), np.bool_)
    has_inner[around[around >= 0]] = True
    return has_inner
