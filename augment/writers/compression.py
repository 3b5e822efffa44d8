"""gzip, fast and reproducible: equal text gives equal bytes, however it was cut into pieces."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any, BinaryIO

_GZIP = 31  #: zlib's ``wbits`` for a gzip member; its header then has neither time nor name
_BLOCK_BYTES = 1 << 20


def fastest(window_bits: int) -> tuple[Callable[..., int], Any]:
    """A CRC-32 and a deflate compressor, the fastest at hand at its fastest level.

    isal's level 0 takes some 1300 MB of text per CPU second, zlib's level 1 a fifth of that.
    """
    try:
        from isal import isal_zlib
    except ImportError:
        return zlib.crc32, zlib.compressobj(1, zlib.DEFLATED, window_bits)
    return isal_zlib.crc32, isal_zlib.compressobj(0, zlib.DEFLATED, window_bits)


class GzipWriter:
    """Compresses what is written into ``file``, in blocks of a fixed size.

    The compressed bytes depend on where the compressor's input is cut, so it gets blocks of one size whatever the
    sizes of the pieces; copying them together costs a hundredth of compressing.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        _, self._compressor = fastest(_GZIP)
        self._block = memoryview(bytearray(_BLOCK_BYTES))
        self._filled = 0

    def write(self, piece: bytes | memoryview) -> None:
        """Add ``piece``, which may change as soon as this returns."""
        rest = memoryview(piece)
        while len(rest):
            size = min(len(rest), _BLOCK_BYTES - self._filled)
            self._block[self._filled : self._filled + size] = rest[:size]
            self._filled += size
            rest = rest[size:]
            if self._filled == _BLOCK_BYTES:
                self._empty()

    def finish(self) -> None:
        """Write what is left, and the member's end."""
        self._empty()
        self._file.write(self._compressor.flush())

    def _empty(self) -> None:
        self._file.write(self._compressor.compress(self._block[: self._filled]))
        self._filled = 0
