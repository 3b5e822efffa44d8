"""The family (kind of work) of each piece of GPU work, and whether matrix units did the work.

The rules are data: those of the user's tables (:func:`augment.readers.attachments.tables.with_tables`), then
``kernel_families.toml`` in this folder. Some names of kernels decide, then operators that launched kernels, then other
names. Kernels over lists of tensors are an optimizer's in its step. Copies and memsets are ``memory``; a collective has
the name of its kind; all else is ``unknown``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from enum import IntEnum
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct

from augment.arrays import NO_VALUE, Bools, Bytes, Int32s, Int64s, combinations
from augment.core import Trace, derived, tables_of
from augment.core.toml import parse_toml
from augment.errors import UsageError
from augment.facts.gpu.gpu_time import in_optimizer
from augment.facts.gpu.gpu_work import gpu_work
from augment.facts.gpu.launched_work import collective_kinds, work_operators
from augment.facts.names import LOOKED_AT, OTHER, KernelType, compiled_pattern, matching

UNKNOWN, MEMORY, COMMUNICATION, OPTIMIZER = "unknown", "memory", "communication", "optimizer"
#: kernels that do the same to many tensors: of ``aten::_foreach_…``, also compiled
LISTS = re.compile(r"multi_tensor_apply|^triton_for_|^triton_\w+_fused.*foreach")
MATRIX_FAMILIES = ("gemm", "grouped_gemm", "attention", "convolution")
RULES = ("kernel_first", "operator", "kernel", "matrix_units")  #: the tables of rules, also keys of a user's file
_NODE = "autograd::engine::evaluate_function: "
_CASE_MATTERS = re.compile(  # a flag or named group; an escaped character; a range, but of a-z or 0-9
    r"\(\?[a-zA-Z-]|\\(?![bBdDsSwW])\w|(?<![a-z0-9])-|(?<=[a-z])-(?![a-z])|(?<=[0-9])-(?![0-9])"
)
_ESCAPED_OR_UPPER = re.compile(r"\\.|[A-Z]")
_WORDS = re.compile(r"(?<=[a-z])(?=[A-Z])")


class MatrixUnits(IntEnum):
    """Whether a kernel used matrix units (tensor cores, matrix cores), by its name."""

    NO_QUESTION = 0  #: no matrix product
    UNTOLD = 1
    USED = 2
    NOT_USED = 3


_TOLD = {"yes": MatrixUnits.USED, "no": MatrixUnits.NOT_USED, "helper": MatrixUnits.NO_QUESTION}


class KernelFamilies(Struct, frozen=True):
    """What each piece of GPU work is: equal-length columns, an entry for each."""

    family: Int32s  #: an index of ``names``
    names: tuple[str, ...]  #: ascending
    matrix_units: Bytes  #: a :class:`MatrixUnits`

    @property
    def known(self) -> Bools:
        """Whether the family of each piece is known."""
        return ~self.is_any((UNKNOWN,))

    def is_any(self, names: Collection[str]) -> Bools:
        """Whether the family of each piece is one of ``names``."""
        return np.array([name in names for name in self.names], np.bool_)[self.family]


class Rules(Struct, frozen=True, eq=False):
    """Lists of (pattern, answer). The first pattern that matches decides; answers are kept for the next trace."""

    certain: Sequence[tuple[str, str]]  #: of kernels, whatever launched them
    operators: Sequence[tuple[str, str]]
    kernels: Sequence[tuple[str, str]]
    matrix_units: Sequence[tuple[str, str]]

    @lru_cache(maxsize=4096)  # noqa: B019 - few rules live, most of them for ever
    def family(self, operator: str | None, kernel: str) -> str:
        """The family of a kernel; ``operator`` is the operator that launched it, None if unknown."""
        answer = _first(self.certain, kernel)
        answer = answer or (operator and _first(self.operators, operator.removeprefix(_NODE)))
        return answer or _first(self.kernels, kernel) or UNKNOWN

    @lru_cache(maxsize=4096)  # noqa: B019
    def matrix(self, family: str, kernel: str) -> MatrixUnits:
        """Whether a kernel of that family used matrix units, by its name."""
        if family not in MATRIX_FAMILIES:
            return MatrixUnits.NO_QUESTION
        return _TOLD.get(_first(self.matrix_units, kernel) or "", MatrixUnits.UNTOLD)


def rules_of(tables: Mapping[str, Sequence[Mapping[str, Any]]]) -> Rules:
    """The rules in tables such as those of ``kernel_families.toml``.

    Raises:
        UsageError: a rule lacks a part, or its pattern is no regular expression.
    """
    rules = _rules(tables)
    try:
        for pattern, _ in (*rules.certain, *rules.operators, *rules.kernels, *rules.matrix_units):
            compiled_pattern(pattern)
    except re.error as error:
        raise UsageError(f"a rule for kernels: {pattern!r} is no regular expression: {error}") from error
    return rules


def _rules(tables: Mapping[str, Sequence[Mapping[str, Any]]]) -> Rules:
    return Rules(
        [_rule(table, "family") for table in tables.get("kernel_first", ())],
        [_rule(table, "family") for table in tables.get("operator", ())],
        [_rule(table, "family") for table in tables.get("kernel", ())],
        [_rule(table, "used") for table in tables.get("matrix_units", ())],
    )


@cache
def shipped_rules() -> Rules:
    """The rules that come with the package."""
    text = Path(__file__).with_name("kernel_families.toml").read_text("utf-8")
    return _rules(parse_toml(text))


@derived(until="operations")
def kernel_families(trace: Trace) -> KernelFamilies:
    """What each kernel is: attention, gemm, norm and others, and whether it used matrix units.

    Each pair of operator and kernel is matched once.
    """
    rows = work_operators(trace)
    operator = np.where(rows >= 0, trace.events.name[np.maximum(rows, 0)], -1)
    return families_of(trace, operator, trace.strings)


def families_of(trace: Trace, operator: Int64s, operators: Sequence[str]) -> KernelFamilies:
    """The families where these operators launched the work: ``operator`` is an index into ``operators`` for each piece
    of ``gpu_work``, -1 where unknown.
    """
    work = gpu_work(trace)
    name = trace.events.name[work.row]
    updates = in_optimizer(trace) & matching(trace, LISTS)[name]
    kinds, of_work = collective_kinds(trace), np.full(len(work), NO_VALUE, np.int64)
    of_work[work.type == KernelType.COMMUNICATION] = kinds.codes
    keys, code = combinations(operator, name, of_work, work.type, updates)
    rules, user = shipped_rules(), None
    if tables := tables_of(trace):
        user = rules_of(tables)  # which come first; then none of an operator may still be the user's answer
        rules = Rules(*([*getattr(user, each), *getattr(rules, each)] for each in Rules.__struct_fields__))
    families, matrix = [], []
    for operator_name, name, kind, kernel_type, of_step in zip(*(key.tolist() for key in keys), strict=True):
        kernel = trace.strings[name]
        if kernel_type == KernelType.MEMORY:
            family = MEMORY
        elif kernel_type == KernelType.COMMUNICATION:
            named = kinds.values[kind]
            family = COMMUNICATION if named == OTHER else _WORDS.sub("_", named).lower()
        else:
            launched_by = None if operator_name < 0 else operators[operator_name][:LOOKED_AT]
            family = UNKNOWN if user is None else user.family(launched_by, kernel[:LOOKED_AT])
            if family == UNKNOWN:
                family = OPTIMIZER if of_step else rules.family(launched_by, kernel[:LOOKED_AT])
        families.append(family)
        matrix.append(rules.matrix(families[-1], kernel[:LOOKED_AT]))
    names = tuple(sorted(set(families)))
    index = np.array([names.index(family) for family in families], np.int32)
    return KernelFamilies(index[code], names, np.array(matrix, np.uint8)[code])


def _first(rules: Sequence[tuple[str, str]], name: str) -> str | None:
    """The answer of the first rule whose pattern is found in a name, without regard to case."""
    name = name[:LOOKED_AT]
    lower = name.lower() if name.isascii() else None
    for pattern, answer in rules:
        expression = None if lower is None else _of_lower_case(pattern)
        if compiled_pattern(pattern).search(name) if expression is None else expression.search(str(lower)):
            return answer
    return None


@cache
def _of_lower_case(pattern: str) -> re.Pattern[str] | None:
    """The pattern for names in lower case, which takes a third of the time to compile; None if it may differ."""
    if _CASE_MATTERS.search(pattern):
        return None
    return re.compile(
        _ESCAPED_OR_UPPER.sub(lambda match: match[0] if match[0][0] == "\\" else match[0].lower(), pattern)
    )


def _rule(rule: Mapping[str, Any], answer: str) -> tuple[str, str]:
    pattern, value = rule.get("pattern"), rule.get(answer)
    if not isinstance(pattern, str) or not isinstance(value, str):
        raise UsageError(f"a rule for kernels must have the texts pattern and {answer}, not {dict(rule)}")
    return pattern, value
