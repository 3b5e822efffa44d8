"""A sliding window over a stream. Only the window is held in memory."""

from __future__ import annotations

import numpy as np

from augment.readers.containers import CHUNK, Ahead, TextStream
from augment.readers.raw import Text

PADDING = 16  #: bytes after the text that compiled code may load, but not interpret
_HEADROOM = 1 << 16  #: bytes before a block, for what is left of the one before
_BLOCKS_AHEAD = 2


class Window:
    """The bytes ``data[:size]`` are the text from offset ``base`` on. ``ahead``: a thread fills the next chunks; call
    :meth:`close` before the stream is used otherwise.
    """

    def __init__(self, stream: TextStream, chunk: int, *, ahead: bool = False) -> None:
        self._stream, self._chunk = stream, chunk
        self._blocks = Ahead(_Blocks(stream, chunk), _BLOCKS_AHEAD) if ahead else None
        self.data: Text = np.zeros((0 if ahead else chunk) + PADDING, np.uint8)
        self.size = 0
        self.base = 0
        self.ended = False

    def fill(self) -> bool:
        """Read until one more chunk is in the window, or the stream ends. Returns whether anything was read."""
        if self._blocks:
            return self._fill_from(self._blocks)
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

    def _fill_from(self, blocks: Ahead[memoryview]) -> bool:
        block = np.frombuffer(blocks.read(_HEADROOM + self._chunk + PADDING), np.uint8)
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

    def close(self) -> None:
        """End the thread. What it has read is lost."""
        if self._blocks:
            self._blocks.stop()

    def drop(self, count: int) -> None:
        """Remove the first ``count`` bytes."""
        left = self.size - count
        self.data[:left] = self.data[count : self.size]
        self.size = left
        self.base += count

    def _reserve(self, size: int) -> None:
        if size + PADDING > len(self.data):
            larger = np.zeros(2 * size + PADDING, np.uint8)
            larger[: self.size] = self.data[: self.size]
            self.data = larger


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
