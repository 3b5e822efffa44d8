"""Formulas that users give for their own operators, and those of installed packages and of ours in the same form.

An expression is arithmetic over shapes: numbers, ``+ - * / // %``, comparisons, ``a if b else c``, lists, indexes,
slices, and the functions below. Its syntax tree is interpreted and never executed as Python, so it can do nothing else.
"""

from __future__ import annotations

import ast
import operator
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from math import prod
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from msgspec import Struct

from augment.core.toml import parse_toml
from augment.errors import UsageError
from augment.facts.operators.operator_calls import TYPES, Call, Unrecorded, Work

KEYS = ("operator", "flops", "bytes", "number")
Function = Callable[["Arguments"], "int | float | None"]  #: a formula of an installed package, in Python
_LARGEST = 1 << 62
_Binary = dict[type[ast.AST], Callable[[Any, Any], Any]]
_SUMS: _Binary = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Mod: operator.mod}
_QUOTIENTS: _Binary = {ast.Div: operator.truediv, ast.FloorDiv: operator.floordiv}
_ORDERS: _Binary = {ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge}
_EQUALITIES: _Binary = {ast.Eq: operator.eq, ast.NotEq: operator.ne}
_BINARY = {**_SUMS, **_QUOTIENTS, **_ORDERS, **_EQUALITIES}


class CustomFormula(Struct, frozen=True):
    """The formulas for operators whose name matches ``pattern``. ``number`` is a type of number; "" means that of the
    first argument. ``origin`` is the package of a formula in Python.
    """

    pattern: re.Pattern[str]
    flops: ast.expr | Function | None
    bytes: ast.expr | Function | None
    number: str
    origin: str = ""

    def __call__(self, call: Call) -> Work:
        """The work of a call.

        Raises:
            Unrecorded: the call lacks a needed argument, or the result is not a count.
            UsageError: a formula in Python failed for another reason.
        """
        flops, size = self._count(self.flops, call), self._count(self.bytes, call)
        number = "" if flops is None else self.number or call.type_of(call.tensors[0] if call.tensors else 0)[0]
        return Work(flops, flops, size, number)

    def _count(self, formula: ast.expr | Function | None, call: Call) -> int | None:
        if formula is None:
            return None
        try:
            value = _value(formula, call) if isinstance(formula, ast.expr) else formula(Arguments(call))
            if isinstance(value, bool) or not isinstance(value, Real):
                raise Unrecorded
            count = int(value) if isinstance(value, Integral) else float(value)
            if not 0 <= count < _LARGEST:
                raise Unrecorded
            return round(count)
        except _UNFIT as error:
            raise Unrecorded from error
        except Unrecorded:
            raise
        except Exception as error:
            what = f"the formula of {self.origin} for {call.operator} failed"
            raise UsageError(f"{what}: {type(error).__name__}: {error}") from error


class Arguments:
    """What a formula in Python can ask of a call: the functions of expressions. Each raises an error for an argument
    that was not recorded, so that the work is unknown.
    """

    def __init__(self, call: Call) -> None:
        """Of this call."""
        self.operator = call.operator
        self._call = call

    def shape(self, place: int) -> list[int]:
        """The shape of the tensor that is argument ``place``."""
        return list(self._call.shape(place))

    def size(self, place: int) -> int:
        """The bytes of the tensor."""
        return self._call.bytes_of(place)

    def width(self, place: int) -> int:
        """The bytes of an element of the tensor."""
        return self._call.type_of(place)[1]

    def value(self, place: int) -> int:
        """The integer that was given as argument ``place``."""
        return _number(self._call, place)

    def has(self, place: int) -> bool:
        """Whether argument ``place`` is a tensor."""
        return self._call.has(place)


def formulas_of(rows: Sequence[Mapping[str, Any]], origin: str = "") -> list[CustomFormula]:
    """The formulas in a table's rows. Those of an ``origin``, an installed package, may be functions in Python.

    Raises:
        UsageError: a row lacks a member, has an unknown one, or its expression is not allowed.
    """
    items = []
    for row in rows:
        if extra := row.keys() - set(KEYS):
            raise UsageError(f"a formula has no {min(extra)}; it has {', '.join(KEYS)}")
        functions = {name for name in ("flops", "bytes") if origin and callable(row.get(name))}
        texts = [value for name, value in row.items() if name not in functions]
        if (
            not all(isinstance(value, str) for value in texts)
            or not {"flops", "bytes"} & row.keys()
            or "operator" not in row
        ):
            raise UsageError(f"a formula must have the texts operator, and flops or bytes, not {dict(row)}")
        number = row.get("number", "")
        if number and number not in {name for name, _ in TYPES.values()}:
            raise UsageError(f"a formula: {number} is no type of number such as bf16")
        try:
            pattern = re.compile(row["operator"], re.IGNORECASE)
        except re.error as error:
            raise UsageError(f"a formula: {row['operator']!r} is no regular expression: {error}") from error
        flops, size = (row.get(name) if name in functions else _parsed(row.get(name)) for name in ("flops", "bytes"))
        items.append(CustomFormula(pattern, flops, size, number, origin))
    return items


@cache
def shipped_formulas() -> list[CustomFormula]:
    """The formulas that come with the package."""
    text = Path(__file__).with_name("operator_formulas.toml").read_text("utf-8")
    return formulas_of(parse_toml(text)["flops"])


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


#: a call does not have the form that the formula expects
_UNFIT = (TypeError, ValueError, IndexError, KeyError, ArithmeticError, RecursionError)


def _value(node: ast.AST | None, call: Call) -> Any:
    if node is None:
        return None
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, (int, float)) else 0
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        # the result of arithmetic if it can be a count. Arithmetic cannot make a list long.
        value = _BINARY[type(node.op)](_value(node.left, call), _value(node.right, call))
        if not isinstance(value, (int, float)) or abs(value) >= _LARGEST:
            raise Unrecorded
        return value
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


# Formulas for operators that installed packages bring, by the entry points of the group ``kineto_augment.flops``.
#
# An entry point is a list of rows as in ``[[flops]]`` of a file of tables. Operations and bytes may also be functions
# in Python, which take :class:`Arguments`.


GROUP = "kineto_augment.flops"
_DESCRIPTIONS = (".dist-info", ".egg-info")  #: endings of the folders that describe installed packages


@cache
def installed_formulas() -> list[CustomFormula]:
    """The formulas of all installed packages, ordered by the names of the entry points.

    Raises:
        UsageError: an entry point cannot be loaded, or is no list of formulas.
    """
    if not _may_be_declared():
        return []
    from importlib import metadata

    formulas: list[CustomFormula] = []
    for point in sorted(metadata.entry_points(group=GROUP), key=lambda point: (point.name, point.value)):
        origin = f"{point.dist.name}'s entry point {point.name}" if point.dist else f"the entry point {point.name}"
        try:
            rows = point.load()
        except Exception as error:
            raise UsageError(f"{origin} ({GROUP}) cannot be loaded: {type(error).__name__}: {error}") from error
        if not isinstance(rows, (list, tuple)) or not all(isinstance(row, Mapping) for row in rows):
            raise UsageError(f"{origin} ({GROUP}) must be a list of rows such as {{'operator': '^lib::', 'flops': …}}")
        try:
            formulas += formulas_of(rows, origin)
        except UsageError as error:
            raise UsageError(f"{origin} ({GROUP}): {error}") from error
    return formulas


def _may_be_declared() -> bool:
    """Whether a package in a folder of Python's path has such an entry point, or lies in an archive.

    ``importlib.metadata`` would tell, but to load it takes a twentieth of the time of a small file.
    """
    for place in sys.path:
        if place.endswith(".egg") or os.path.isfile(place):
            return True
        with suppress(OSError):
            for name in os.listdir(place or "."):
                if name.endswith(_DESCRIPTIONS):
                    declared = os.path.join(place, name, "entry_points.txt")
                    with suppress(OSError), open(declared, encoding="utf-8", errors="replace") as file:
                        if GROUP in file.read():
                            return True
    return False
