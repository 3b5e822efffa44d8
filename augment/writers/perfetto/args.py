"""Args as Perfetto's debug annotations, and the strings that packets share by number.

The two belong together: an annotation names its key, and a string its text, by the number that it got here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from augment.writers.perfetto.wire import (
    EVENT_ANNOTATION,
    INTERNED_KEYS,
    INTERNED_STRINGS,
    VALUE_ARRAY,
    VALUE_BOOL,
    VALUE_DICT,
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
    """Gives texts numbers, from 1 on in the order in which they come, a series for each kind (``INTERNED_…``)."""

    def __init__(self) -> None:
        self._numbers: dict[int, dict[str, int]] = {}
        self._new: list[bytes] = []

    def number(self, kind: int, value: str) -> int:
        """The number of a text."""
        numbers = self._numbers.setdefault(kind, {})
        known = numbers.get(value)
        if known is None:
            known = numbers[value] = len(numbers) + 1
            self._new.append(message(kind, number(1, known) + text(2, value)))
        return known

    def take_new(self) -> bytes:
        """The content of an ``InternedData`` that tells what was not told before; empty if there is nothing."""
        taken, self._new = b"".join(self._new), []
        return taken


class ArgsEncoder:
    """Encodes args as a reader of JSON has them.

    What protobuf cannot tell from nothing at all is written as the text of it: ``null``, ``[]``, ``{}``. An integer
    beyond 64 bits is written as its digits.
    """

    def __init__(self, interned: Interned) -> None:
        self._interned = interned

    def args(self, args: Mapping[str, Any]) -> bytes:
        """All args of an event, as fields of a TrackEvent."""
        return b"".join([self.arg(name, value) for name, value in args.items()])

    def arg(self, name: str, value: Any, field: int = EVENT_ANNOTATION) -> bytes:
        """One arg."""
        return message(field, self.key(name) + self._value(value))

    def key(self, name: str) -> bytes:
        """What an annotation begins with."""
        return number(VALUE_KEY, self._interned.number(INTERNED_KEYS, name))

    def _value(self, value: Any) -> bytes:
        if isinstance(value, str):
            return number(VALUE_STRING, self._interned.number(INTERNED_STRINGS, value))
        if isinstance(value, bool):
            return number(VALUE_BOOL, value)
        if isinstance(value, int):
            if -_INT64 <= value < _INT64:
                return number(VALUE_INT, value)
            return number(VALUE_UINT, value) if 0 < value < 2 * _INT64 else self._value(str(value))
        if isinstance(value, float):
            return double(VALUE_DOUBLE, value)
        if isinstance(value, list) and value:
            return b"".join([message(VALUE_ARRAY, self._value(one)) for one in value])
        if isinstance(value, dict) and value:
            return b"".join([self.arg(str(name), one, VALUE_DICT) for name, one in value.items()])
        return self._value(json.dumps(value))
