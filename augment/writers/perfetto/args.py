"""Encodes args as Perfetto's debug annotations, and interns the strings that packets share by number.

The two belong together: an annotation refers to its key, and a string to its text, by the number assigned here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from augment.writers.perfetto.wire import (
    EVENT_ANNOTATION,
    INTERNED_IS_JSON,
    INTERNED_KEYS,
    INTERNED_STRINGS,
    VALUE_BOOL,
    VALUE_DOUBLE,
    VALUE_INT,
    VALUE_KEY,
    VALUE_STRING,
    VALUE_UINT,
    double,
    message,
    number,
    text,
)

_INT64 = 1 << 63


class Interned:
    """Assigns numbers to texts, from 1 on in order of arrival, separately for each kind (``INTERNED_…``)."""

    def __init__(self) -> None:
        self._numbers: dict[int, dict[str | tuple[str], int]] = {}
        self._new: list[bytes] = []

    def number(self, kind: int, value: str) -> int:
        """The number of a text."""
        numbers = self._numbers.setdefault(kind, {})
        return numbers.get(value) or self._add(kind, numbers, value, text(2, value))

    def json_number(self, value: Any) -> int:
        """The number of a value's JSON text. It lies among the strings, but differs from the number of a string with
        equal text.
        """
        written = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        numbers = self._numbers.setdefault(INTERNED_STRINGS, {})
        content = text(2, written) + number(INTERNED_IS_JSON, 1)
        return numbers.get((written,)) or self._add(INTERNED_STRINGS, numbers, (written,), content)

    def _add(self, kind: int, numbers: dict[str | tuple[str], int], key: str | tuple[str], content: bytes) -> int:
        known = numbers[key] = len(numbers) + 1
        self._new.append(message(kind, number(1, known) + content))
        return known

    def take_new(self) -> bytes:
        """The content of an ``InternedData`` with all new texts; empty if there are none."""
        taken, self._new = b"".join(self._new), []
        return taken


class ArgsEncoder:
    """Encodes args with the values that a JSON reader returns.

    Arrays, objects, ``null`` and integers beyond 64 bits are encoded as their JSON text: ``[[2048,512],[512]]``. Such a
    text can be displayed and grouped as a whole, and Perfetto imports it as fast as a string; nested values take many
    times longer.
    """

    def __init__(self, interned: Interned) -> None:
        self._interned = interned

    def args(self, args: Mapping[str, Any]) -> bytes:
        """All args of an event, as fields of a TrackEvent."""
        return b"".join([self.arg(name, value) for name, value in args.items()])

    def arg(self, name: str, value: Any) -> bytes:
        """One arg."""
        return message(EVENT_ANNOTATION, self.key(name) + self._value(value))

    def key(self, name: str) -> bytes:
        """The beginning of an annotation: its key."""
        return number(VALUE_KEY, self._interned.number(INTERNED_KEYS, name))

    def _value(self, value: Any) -> bytes:
        if isinstance(value, str):
            return number(VALUE_STRING, self._interned.number(INTERNED_STRINGS, value))
        if isinstance(value, bool):
            return number(VALUE_BOOL, value)
        if isinstance(value, int) and -_INT64 <= value < 2 * _INT64:
            return number(VALUE_INT if value < _INT64 else VALUE_UINT, value)
        if isinstance(value, float):
            return double(VALUE_DOUBLE, value)
        return number(VALUE_STRING, self._interned.json_number(value))
