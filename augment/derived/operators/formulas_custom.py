"""Formulas that users give for their own operators, and those of the package in the same form.

An expression is arithmetic over shapes: numbers, ``+ - * / // %``, comparisons, ``a if b else c``, lists, indexes,
slices, and the functions below. Its syntax tree is interpreted and never executed as Python, so it can do nothing else.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

from augment.derived.operators.operator_calls import TYPES, Call, Unrecorded
from augment.derived.operators.work_model import Work
from augment.errors import UsageError
from augment.records import dataclass
from augment.toml import parse_toml

KEYS = ("operator", "flops", "bytes", "number")
_LARGEST = 1 << 62
_Binary = dict[type[ast.AST], Callable[[Any, Any], Any]]
_SUMS: _Binary = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Mod: operator.mod}
_QUOTIENTS: _Binary = {ast.Div: operator.truediv, ast.FloorDiv: operator.floordiv}
_ORDERS: _Binary = {ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge}
_EQUALITIES: _Binary = {ast.Eq: operator.eq, ast.NotEq: operator.ne}
_BINARY = {**_SUMS, **_QUOTIENTS, **_ORDERS, **_EQUALITIES}


@dataclass(frozen=True, slots=True)
class CustomFormula:
    """The formulas for operators whose name matches ``pattern``. ``number`` is a type of number; "" means that of the
    first argument.
    """

    pattern: re.Pattern[str]
    flops: ast.expr | None
    bytes: ast.expr | None
    number: str

    def __call__(self, call: Call) -> Work:
        """The work of a call.

        Raises:
            Unrecorded: the call lacks a needed argument, or the result is not a count.
        """
        flops = None if self.flops is None else _whole(self.flops, call)
        size = None if self.bytes is None else _whole(self.bytes, call)
        number = "" if flops is None else self.number or call.type_of(call.tensors[0] if call.tensors else 0)[0]
        return Work(flops, flops, size, number)


def formulas_of(rows: Sequence[Mapping[str, Any]]) -> list[CustomFormula]:
    """The formulas in a table's rows.

    Raises:
        UsageError: a row lacks a member, has an unknown one, or its expression is not allowed.
    """
    return [_formula(row) for row in rows]


@cache
def shipped_formulas() -> list[CustomFormula]:
    """The formulas that come with the package."""
    text = Path(__file__).with_name("operator_formulas.toml").read_text("utf-8")
    return formulas_of(parse_toml(text)["flops"])


def _formula(row: Mapping[str, Any]) -> CustomFormula:
    if extra := row.keys() - set(KEYS):
        raise UsageError(f"a formula has no {min(extra)}; it has {', '.join(KEYS)}")
    if not all(isinstance(value, str) for value in row.values()) or "operator" not in row or len(row) < 2:
        raise UsageError(f"a formula must have the texts operator, and flops or bytes, not {dict(row)}")
    number = row.get("number", "")
    if number and number not in {name for name, _ in TYPES.values()}:
        raise UsageError(f"a formula: {number} is no type of number such as bf16")
    try:
        pattern = re.compile(row["operator"], re.IGNORECASE)
    except re.error as error:
        raise UsageError(f"a formula: {row['operator']!r} is no regular expression: {error}") from error
    return CustomFormula(pattern, _parsed(row.get("flops")), _parsed(row.get("bytes")), number)


def _parsed(text: str | None) -> ast.expr | None:
    if text is None:
        return None
    try:
        body = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UsageError(f"a formula: {text!r} is no expression") from error
    for node in ast.walk(body):
        if not isinstance(node, _ALLOWED):
            raise UsageError(f"a formula: {text!r} has {type(node).__name__.lower()}, which no formula may have")
        if isinstance(node, ast.Name) and node.id not in (*_FUNCTIONS, "shape"):
            raise UsageError(f"a formula: {text!r}: {node.id} is none of {', '.join(('shape', *_FUNCTIONS))}")
    return body


_OPERATIONS = (ast.BinOp, ast.UnaryOp, ast.USub, ast.Compare, ast.IfExp, ast.Call, *_BINARY)
_VALUES = (ast.Subscript, ast.Slice, ast.Name, ast.Load, ast.Constant, ast.List)
_ALLOWED = (*_OPERATIONS, *_VALUES)
#: takes the call and the expression in the brackets
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "prod": lambda _, dims: prod(dims),
    "len": lambda _, dims: len(dims),
    "min": lambda _, *ones: min(*ones),
    "max": lambda _, *ones: max(*ones),
    "size": lambda call, place: call.bytes_of(place),
    "width": lambda call, place: call.type_of(place)[1],
    "value": lambda call, place: _number(call, place),
    "has": lambda call, place: call.has(place),
}


def _number(call: Call, place: int) -> int:
    number = call.number(place)
    if number is None:
        raise Unrecorded(place)
    return number


def _whole(expression: ast.expr, call: Call) -> int:
    try:
        value = _value(expression, call)
    except (TypeError, ValueError, IndexError, ZeroDivisionError, OverflowError, RecursionError, KeyError) as error:
        raise Unrecorded from error
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < _LARGEST:
        raise Unrecorded
    return round(value)


def _value(node: ast.AST | None, call: Call) -> Any:
    if node is None:
        return None
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, (int, float)) else 0
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        return _small(_BINARY[type(node.op)](_value(node.left, call), _value(node.right, call)))
    if isinstance(node, ast.UnaryOp):
        return -_value(node.operand, call)
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _BINARY:
        return _BINARY[type(node.ops[0])](_value(node.left, call), _value(node.comparators[0], call))
    if isinstance(node, ast.IfExp):
        return _value(node.body if _value(node.test, call) else node.orelse, call)
    if isinstance(node, ast.List):
        return [_value(elt, call) for elt in node.elts]
    if isinstance(node, ast.Slice):
        return slice(*(_value(bound, call) for bound in (node.lower, node.upper, node.step)))
    if isinstance(node, ast.Subscript):
        if isinstance(node.value, ast.Name) and node.value.id == "shape":
            return list(call.shape(_value(node.slice, call)))
        return _value(node.value, call)[_value(node.slice, call)]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS:
        return _FUNCTIONS[node.func.id](call, *(_value(argument, call) for argument in node.args))
    raise Unrecorded


def _small(value: Any) -> Any:
    """The result of arithmetic if it can be a count. Arithmetic cannot make a list long."""
    if not isinstance(value, (int, float)) or abs(value) >= _LARGEST:
        raise Unrecorded
    return value
