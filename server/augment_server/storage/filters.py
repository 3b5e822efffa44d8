"""Filters and orders of lists, a subset of https://google.aip.dev/160 and 132, as SQL with parameters.

::

    filter      = [ expression ]
    expression  = sequence { "AND" sequence }
    sequence    = term { "OR" term }                     OR binds more tightly than AND, as there
    term        = [ "NOT" | "-" ] ( restriction | "(" expression ")" )
    restriction = field ( "=" | "!=" | "<" | "<=" | ">" | ">=" | ":" ) value
    value       = word | '"' text '"'

Functions, and searches without a field, are not supported. A missing value differs from every value: ``!=`` is true for
it, ``<`` and ``>`` are false.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, NoReturn

from augment_server.base.errors import invalid

MOST_FILTER, MOST_RESTRICTIONS, MOST_DEPTH, MOST_STARS, MOST_ORDERS = 1000, 20, 8, 3, 3
_WORD = re.compile(r"\s*([A-Za-z_][\w.-]*|[()-])")
_COMPARATOR = re.compile(r"\s*(<=|>=|!=|=|<|>|:)")
_VALUE = re.compile(r"""\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s()"']+))""")
_TIME = re.compile(r"(\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?([Zz]|[+-]\d\d:\d\d)", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_REAL = re.compile(r"[+-]?[0-9]{1,300}(?:\.[0-9]{1,300})?(?:[eE][+-]?[0-9]{1,3})?")
_MOST_INTEGER = 1 << 62
_LEAST = -1.7e308  #: stands for a missing number in orders


@dataclass(frozen=True)
class Field:
    """A field of a resource that filters and orders may name.

    ``kind`` is ``text``, ``number``, ``real``, ``time`` (in ns), ``choice`` (one of ``choices``) or ``labels``.
    ``column`` is an SQL expression; labels are a JSON object. ``optional``: values may be missing.
    """

    kind: str
    column: str
    choices: Mapping[str, int] | None = None
    optional: bool = False

    @property
    def sorted_by(self) -> str:
        """The SQL expression to sort by; missing values come first."""
        if self.optional:
            least = "''" if self.kind == "text" else _LEAST
            return f"COALESCE({self.column}, {least})"
        return self.column if self.kind != "time" else f"COALESCE({self.column}, 0)"


Fields = Mapping[str, Field]
Condition = tuple[str, list[Any]]  #: SQL and its parameters


def condition_of(text: str, fields: Fields) -> Condition:
    """The condition for a filter.

    Raises:
        Refusal: the filter is invalid or too large.
    """
    if len(text) > MOST_FILTER:
        _refuse(f"at most {MOST_FILTER} characters")
    return _Parser(text, fields).all() if text.strip() else ("TRUE", [])


class _Parser:
    """A recursive-descent parser of filters."""

    def __init__(self, text: str, fields: Fields) -> None:
        self._text, self._fields = text, fields
        self._at = self._count = 0

    def all(self) -> Condition:
        condition = self._expression(0)
        if self._text[self._at :].strip():
            self._wrong("AND, OR or the end")
        return condition

    def _expression(self, depth: int) -> Condition:
        if depth > MOST_DEPTH:
            _refuse(f"at most {MOST_DEPTH} parentheses in each other")
        parts = [self._sequence(depth)]
        while self._next("AND"):
            parts.append(self._sequence(depth))
        return _joined(" AND ", parts)

    def _sequence(self, depth: int) -> Condition:
        parts = [self._term(depth)]
        while self._next("OR"):
            parts.append(self._term(depth))
        return _joined(" OR ", parts)

    def _term(self, depth: int) -> Condition:
        negated = self._next("NOT") or self._next("-")
        if self._next("("):
            sql, values = self._expression(depth + 1)
            if not self._next(")"):
                self._wrong("a closing parenthesis")
        else:
            sql, values = self._restriction()
        return (f"NOT ({sql})", values) if negated else (sql, values)

    def _next(self, word: str) -> bool:
        match = _WORD.match(self._text, self._at)
        matches = match is not None and match[1] == word
        if match and matches:
            self._at = match.end()
        return matches

    def _restriction(self) -> Condition:
        self._count += 1
        if self._count > MOST_RESTRICTIONS:
            _refuse(f"at most {MOST_RESTRICTIONS} restrictions")
        name = _WORD.match(self._text, self._at)
        if not name or not name[1][0].isidentifier():
            self._wrong("a field")
        self._at = name.end()
        comparator = _COMPARATOR.match(self._text, self._at)
        if not comparator:
            self._wrong("one of = != < <= > >= :")
        self._at = comparator.end()
        value = _VALUE.match(self._text, self._at)
        if not value:
            self._wrong("a value")
        self._at = value.end()
        quoted = value[1] if value[1] is not None else value[2]
        text = value[3] if quoted is None else re.sub(r"\\(.)", r"\1", quoted, flags=re.DOTALL)
        return _restricted(self._fields, name[1], comparator[1], text)

    def _wrong(self, wanted: str) -> NoReturn:
        rest = self._text[self._at :].strip()[:40]
        _refuse(f"expected {wanted} at {rest!r}" if rest else f"expected {wanted} at the end")


def _joined(word: str, parts: Sequence[Condition]) -> Condition:
    if len(parts) == 1:
        return parts[0]
    return f"({word.join(sql for sql, _ in parts)})", [value for _, values in parts for value in values]


def _restricted(fields: Fields, name: str, comparator: str, text: str) -> Condition:
    base, _, key = name.partition(".")
    field = fields.get(base)
    if field is None or (key and field.kind != "labels"):
        _refuse(f"there is no field {name[:80]}; known: {', '.join(fields)}")
    if field.kind == "labels":
        return _labelled(field, key, comparator, text)
    if field.kind == "text":
        return _text(field, name, comparator, text)
    if comparator == ":" or (field.kind == "choice" and comparator not in ("=", "!=")):
        _refuse(f"{name}: does not support {comparator}")
    value = _number(field, name, text)
    if comparator == "!=":
        return f"({field.column} IS NULL OR {field.column} != ?)", [value]
    return f"({field.column} IS NOT NULL AND {field.column} {comparator} ?)", [value]


def _number(field: Field, name: str, text: str) -> float:
    if field.choices is not None:
        if text.removeprefix("STATE_") not in field.choices:
            _refuse(f"{name}: one of {', '.join(field.choices)}, not {text[:40]!r}")
        return field.choices[text.removeprefix("STATE_")]
    if field.kind == "time":
        return _time(name, text)
    if field.kind == "real":
        if not _REAL.fullmatch(text):
            _refuse(f"{name}: a number, not {text[:40]!r}")
        return float(text)
    if not re.fullmatch(r"[+-]?[0-9]{1,19}", text) or abs(int(text)) > _MOST_INTEGER:
        _refuse(f"{name}: a whole number, not {text[:40]!r}")
    return int(text)


def _time(name: str, text: str) -> int:
    """The RFC 3339 time in ``text``, ns since 1970."""
    match = _TIME.fullmatch(text)
    whole = None
    if match:
        zone = "+00:00" if match[3] in "Zz" else match[3]
        with contextlib.suppress(ValueError):
            whole = datetime.fromisoformat(match[1].upper() + zone) - _EPOCH
    if match is None or whole is None:
        _refuse(f"{name}: a time such as 2026-05-01T12:00:00Z, not {text[:40]!r}")
    ns = (whole.days * 86400 + whole.seconds) * 10**9 + int((match[2] or "").ljust(9, "0"))
    return max(-(1 << 63), min(ns, (1 << 63) - 1))  # what a row can have


def _text(field: Field, name: str, comparator: str, text: str) -> Condition:
    if comparator == ":":
        return f"INSTR({field.column}, ?) > 0", [text]
    if "*" in text and comparator in ("=", "!="):
        return f"{'NOT ' if comparator == '!=' else ''}GLOB(?, {field.column})", [_pattern(name, text)]
    return f"{field.column} {comparator} ?", [text]


def _labelled(field: Field, key: str, comparator: str, text: str) -> Condition:
    there = f"EXISTS (SELECT 1 FROM json_each({field.column}) WHERE key = ?"  # noqa: S608 - our own names
    if comparator == ":" and (not key or text == "*"):
        return f"{there})", [key or text]
    if not key or comparator not in ("=", "!="):
        _refuse('labels: as in labels.team = "infra", labels.team != "infra", labels:team')
    matches, value = ("GLOB(?, value)", _pattern("labels", text)) if "*" in text else ("value = ?", text)
    return f"{'NOT ' if comparator == '!=' else ''}{there} AND {matches})", [key, value]


def _pattern(name: str, text: str) -> str:
    """The pattern for GLOB: ``*`` is any text, no other character is special."""
    if text.count("*") > MOST_STARS:
        _refuse(f"{name}: at most {MOST_STARS} times *")
    return re.sub(r"[\[?]", r"[\g<0>]", text)


@dataclass(frozen=True)
class Order:
    """The sort keys of a list: SQL expressions, the last of which is unique, and whether each is descending."""

    columns: tuple[str, ...]
    falling: tuple[bool, ...]

    @property
    def sql(self) -> str:
        """The list of keys after ORDER BY."""
        pairs = zip(self.columns, self.falling, strict=True)
        return ", ".join(f"{column} DESC" if falls else column for column, falls in pairs)

    def after(self, place: Sequence[Any]) -> Condition:
        """The condition for entries after the one with these values."""
        if len(set(self.falling)) == 1:  # an index can be used
            marks = ", ".join("?" * len(place))
            return f"({', '.join(self.columns)}) {'<' if self.falling[0] else '>'} ({marks})", list(place)
        parts, values = [], list[Any]()
        for at, (column, falls) in enumerate(zip(self.columns, self.falling, strict=True)):
            same = "".join(f"{column} = ? AND " for column in self.columns[:at])
            parts.append(f"({same}{column} {'<' if falls else '>'} ?)")
            values += place[: at + 1]
        return f"({' OR '.join(parts)})", values


def order_of(text: str, fields: Fields) -> Order:
    """The order for ``order_by``; empty means ``create_time desc``, the newest first.

    Raises:
        Refusal: it is invalid.
    """
    wanted = [part.split() for part in text.split(",")] if text.strip() else [["create_time", "desc"]]
    if len(wanted) > MOST_ORDERS:
        _refuse(f"at most {MOST_ORDERS} fields", "order_by")
    columns, falling = [], []
    for name, *direction in (text or [""] for text in wanted):
        field = fields.get(name)
        if field is None or field.kind == "labels" or direction not in ([], ["asc"], ["desc"]):
            known = ", ".join(name for name, field in fields.items() if field.kind != "labels")
            _refuse(f"fields, each with or without desc, such as create_time desc; known: {known}", "order_by")
        columns.append(field.sorted_by)
        falling.append(direction == ["desc"])
    for column in ("created_ns", "id"):  # among equal entries the newest comes first
        if column not in columns:
            columns.append(column)
            falling.append(True)
    return Order(tuple(columns), tuple(falling))


def _refuse(what: str, field: str = "filter") -> NoReturn:
    raise invalid(field, what)
