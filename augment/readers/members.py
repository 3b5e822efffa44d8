"""The members of the outer object, before and after ``traceEvents``."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

from augment.core.jsontext import lenient_json, mended_json
from augment.readers.limits import NESTING
from augment.readers.raw import Broken
from augment.readers.structure import nested_deeper, nested_end
from augment.readers.window import Window

MAX_MEMBER_BYTES = 64 << 20  #: bytes of a single member other than traceEvents
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_WORD = re.compile(rb"[^\s,\]}]+")


class Ended(Exception):
    """The text ends within a member."""


class TooDeep(Broken):
    """A value nests deeper than it may."""


class Members:
    """Reads members one by one from the front of a window. Values that nest deeper than ``nesting`` count as broken.

    A broken value stays where it is. ``mended`` are the offsets of values that were not JSON until they were repaired.
    """

    def __init__(self, window: Window, nesting: int = NESTING) -> None:
        self._window, self._nesting = window, nesting
        self.mended: list[int] = []

    def blank(self) -> int:
        """Drop blanks. Returns the next byte, -1 at the end."""
        window = self._window
        while True:
            for at in range(window.size):
                if window.data[at] > 32:
                    window.drop(at)
                    return int(window.data[0])
            window.drop(window.size)
            if not window.fill():
                return -1

    def key(self) -> str:
        """The next key and its colon."""
        if self.blank() == -1:
            raise Ended
        if self._window.data[0] != ord('"'):
            raise Broken(self._window.base, "expected a member's name in double quotes")
        base = self._window.base
        text = self._text(self._string_size())
        self._window.drop(len(text))
        following = self.blank()
        if following == -1:
            raise Ended
        if following != ord(":"):
            raise Broken(self._window.base, f"expected ':' after {text.decode('utf-8', 'replace')}")
        self._window.drop(1)
        return str(self._decoded(text, base, "name"))

    def value(self) -> Any:
        """The next value, decoded; None for one that is larger than :data:`MAX_MEMBER_BYTES`."""
        first = self.blank()
        if first == -1:
            raise Ended
        base = self._window.base
        if first in b"{[":
            text = self._text(self._nested_size())
            if nested_deeper(text, self._nesting):
                raise TooDeep(base, f"this value is nested deeper than {self._nesting}")
        else:
            text = self._text(self._string_size() if first == ord('"') else self._word_size())
        value = self._decoded(text, base, "value")
        self._window.drop(len(text))
        return value

    def _decoded(self, text: bytes, base: int, what: str) -> Any:
        try:
            return lenient_json(text)
        except ValueError as error:
            if text[:1] in (b"{", b"["):  # the end of this value is known nevertheless
                with suppress(ValueError):
                    value = mended_json(text)
                    self.mended.append(base)
                    return value
            raise Broken(base, f"this {what} is no JSON") from error

    def _text(self, size: int) -> bytes:
        return self._window.data[:size].tobytes()

    def _more(self) -> None:
        window = self._window
        if window.ended:
            raise Ended
        if window.size > MAX_MEMBER_BYTES:
            raise Broken(window.base, f"a member here is larger than {MAX_MEMBER_BYTES >> 20} MiB")
        window.fill()

    def _nested_size(self) -> int:
        tried = 0
        while True:
            # at most twice the work, whatever the length of the value
            if self._window.ended or self._window.size >= 2 * tried:
                tried = self._window.size
                end = nested_end(self._window.data[:tried])
                if end >= 0:
                    return end
            self._more()

    def _string_size(self) -> int:
        while True:
            match = _STRING.match(self._text(self._window.size))
            if match:
                return match.end()
            self._more()

    def _word_size(self) -> int:
        while True:
            match = _WORD.match(self._text(self._window.size))
            if match is None:
                raise Broken(self._window.base, "expected a value")
            if match.end() < self._window.size or self._window.ended or not self._window.fill():
                return match.end()
