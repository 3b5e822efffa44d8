"""A sliding window over a stream. Only the window is held in memory."""

from __future__ import annotations

import numpy as np

from augment.readers.containers import CHUNK, Stream
from augment.readers.raw import Text

PADDING = 16  #: bytes after the text that compiled code may load, but not interpret


class Window:
    """The bytes ``data[:size]`` are the text from offset ``base`` on."""

    def __init__(self, stream: Stream, chunk: int) -> None:
        self._stream, self._chunk = stream, chunk
        self.data: Text = np.zeros(chunk + PADDING, np.uint8)
        self.size = 0
        self.base = 0
        self.ended = False

    def fill(self) -> bool:
        """Read until one more chunk is in the window, or the stream ends. Returns whether anything was read."""
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
