"""The members of the outer object, before and after ``traceEvents``, through a sliding window over the text."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

import numpy as np

from augment.arrays import Int32s
from augment.core.jsontext import lenient_json, mended_json
from augment.readers.containers import CHUNK, Ahead, TextStream
from augment.readers.limits import NESTING
from augment.readers.raw import Broken, Text

MAX_MEMBER_BYTES = 64 << 20  #: bytes of a single member other than traceEvents
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_WORD = re.compile(rb"[^\s,\]}]+")
_NO_BLANK = re.compile(rb"[^\x00- ]")


class Ended(Exception):
    """The text ends within a member."""


class TooDeep(Broken):
    """A value nests deeper than it may."""


class Members:
    """Reads members one by one from the front of a window. Values that nest deeper than ``nesting`` count as broken.

    A broken value stays where it is. ``mended`` are the offsets of values that were not JSON until they were repaired.
    """

    def __init__(self, window: TextWindow, nesting: int = NESTING) -> None:
        self._window, self._nesting = window, nesting
        self.mended: list[int] = []

    def blank(self) -> int:
        """Drop blanks. Returns the next byte, -1 at the end."""
        window = self._window
        while True:
            if something := _NO_BLANK.search(window.data[: window.size].data):
                window.drop(something.start())
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
            match = _STRING.match(self._window.data[: self._window.size].data)
            if match:
                return match.end()
            self._more()

    def _word_size(self) -> int:
        while True:
            match = _WORD.match(self._window.data[: self._window.size].data)
            if match is None:
                raise Broken(self._window.base, "expected a value")
            if match.end() < self._window.size or self._window.ended or not self._window.fill():
                return match.end()


PADDING = 16  #: bytes after the text that compiled code may load, but not interpret
_HEADROOM = 1 << 16  #: bytes before a block, for what is left of the one before
_BLOCKS_AHEAD = 2


class TextWindow:
    """The bytes ``data[:size]`` are the text from offset ``base`` on. ``ahead``: a thread fills the next chunks; call
    :meth:`close` before the stream is used otherwise.
    """

    def __init__(self, stream: TextStream, chunk: int, *, ahead: bool = False) -> None:
        self._stream, self._chunk = stream, chunk
        self._blocks = Ahead(_Blocks(stream, chunk), _BLOCKS_AHEAD) if ahead else None
        self.data: Text = np.empty((0 if ahead else chunk) + PADDING, np.uint8)
        self._room = self.data  # what ``data`` is the end of, unless that is a block
        self.size = 0
        self.base = 0
        self.ended = False

    def fill(self) -> bool:
        """Read until one more chunk is in the window, or the stream ends. Returns whether anything was read."""
        if self._blocks:
            block = np.frombuffer(self._blocks.read(_HEADROOM + self._chunk + PADDING), np.uint8)
            if not len(block):
                self.ended = True
                return False
            count = len(block) - _HEADROOM - PADDING
            if self.size <= _HEADROOM:
                start = _HEADROOM - self.size
                block[start:_HEADROOM] = self.data[: self.size]
                self.data = block[start:]
            else:
                self._reserve(self.size + count)
                self.data[self.size : self.size + count] = block[_HEADROOM:-PADDING]
            self.size += count
            return True
        before = self.size
        want = self.size + self._chunk
        while self.size < want and not self.ended:
            data = self._stream.read(min(want - self.size, CHUNK))
            if not data:
                self.ended = True
                break
            self._reserve(self.size + len(data))
            self.data[self.size : self.size + len(data)] = np.frombuffer(data, np.uint8)
            self.size += len(data)
        return self.size > before

    def close(self) -> None:
        """End the thread. What it has read is lost."""
        if self._blocks:
            self._blocks.stop()

    def drop(self, count: int) -> None:
        """Remove the first ``count`` bytes."""
        self.data = self.data[count:]
        self.size -= count
        self.base += count

    def _reserve(self, size: int) -> None:
        if size + PADDING > len(self.data):
            if size + PADDING > len(self._room):
                self._room = np.empty(2 * size + PADDING, np.uint8)
            self._room[: self.size] = self.data[: self.size]
            self.data = self._room


class _Blocks:
    """A text in arrays of at most ``chunk`` bytes, with room before and after."""

    def __init__(self, stream: TextStream, chunk: int) -> None:
        self._stream, self._chunk = stream, chunk

    def read(self, _size: int) -> memoryview:
        """The next array; empty at the end."""
        block = np.empty(_HEADROOM + self._chunk + PADDING, np.uint8)
        end, full = _HEADROOM, _HEADROOM + self._chunk
        while end < full and (data := self._stream.read(min(full - end, CHUNK))):
            block[end : end + len(data)] = np.frombuffer(data, np.uint8)
            end += len(data)
        return block.data[: end + PADDING if end > _HEADROOM else 0]


# where JSON values begin and end, with numpy over bytes: needs no compiler and works for any layout
_KIND = np.zeros(256, np.int8)
_KIND[[ord("{"), ord("[")]] = 1
_KIND[[ord("}"), ord("]")]] = -1
_FIRST_BYTES = 4 << 10


def depths(text: Text) -> Int32s:
    """How many braces and brackets are open after each byte of ``text``, which must begin outside of any string."""
    quotes = text == ord('"')
    slashes = np.flatnonzero(text == ord("\\"))
    if len(slashes):  # those after a run of backslashes of odd length are escaped
        first = np.flatnonzero(np.diff(slashes, prepend=-2) != 1)
        run = np.diff(first, append=len(slashes))
        after = slashes[first] + run
        quotes[after[(run % 2 == 1) & (after < len(text))]] = False
    # a byte is in a string if an odd number of quotes stands before it; the closing quote itself counts as inside
    open_after = np.cumsum(quotes, dtype=np.int32) & 1
    in_string = (open_after | quotes).astype(np.bool_)
    return np.cumsum(np.where(in_string, np.int8(0), _KIND[text]), dtype=np.int32)


def nested_deeper(text: bytes, most: int) -> bool:
    """Whether braces and brackets nest deeper than ``most`` in one JSON value."""
    if text.count(b"{") + text.count(b"[") <= most:
        return False
    return bool(depths(np.frombuffer(text, np.uint8)).max() > most)


def nested_end(text: Text) -> int:
    """The position after the object or array that ``text`` begins with; -1 if it does not end in ``text``."""
    size = 0
    while size < len(text):
        size = min(max(_FIRST_BYTES, 4 * size), len(text))  # most end soon, and no text is looked at more than twice
        closed = depths(text[:size]) == 0
        end = int(np.argmax(closed))
        if closed[end]:
            return end + 1
    return -1
