"""Deflate and gzip, fast and reproducible: equal text gives equal bytes, whatever pieces it arrives in."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any, BinaryIO

from augment.writers.checksums import NOTHING, Checked

_HEADER = b"\x1f\x8b\x08\0\0\0\0\0\x04\xff"  #: header of a member: no name, no time, fast compression, unknown system
_BLOCK_BYTES = 1 << 20
END = b"\3\0"  #: ends a deflate stream at a byte boundary: an empty block that is marked as the last


def fastest(window_bits: int, level: int = 0) -> tuple[Callable[..., int], Any]:
    """A CRC-32 and a deflate compressor: the fastest ones available, at their fastest level or isal's ``level``.

    isal's level 0 takes some 1300 MB of text per CPU second, zlib's level 1 a fifth of that.
    """
    try:
        from isal import isal_zlib
    except ImportError:
        return zlib.crc32, zlib.compressobj(1, zlib.DEFLATED, window_bits)
    return isal_zlib.crc32, isal_zlib.compressobj(level, zlib.DEFLATED, window_bits)


class DeflateWriter:
    """Compresses what is written into ``file``, in blocks of a fixed size.

    The compressed bytes depend on how the compressor's input is divided. So it gets blocks of one size, whatever the
    sizes of the pieces. The extra copying costs a hundredth of compressing.

    Args:
        file: the output.
        before: the text that ``file`` already holds, up to a byte boundary between deflate blocks.
    """

    def __init__(self, file: BinaryIO, before: Checked = NOTHING) -> None:
        self._file = file
        self._crc32, self._compressor = fastest(-zlib.MAX_WBITS)
        self._crc, self._size = before
        self._block = memoryview(bytearray(_BLOCK_BYTES))
        self._filled = 0

    def write(self, piece: bytes | memoryview) -> None:
        """Add ``piece``. The caller may change it as soon as this returns."""
        rest = memoryview(piece)
        while len(rest):
            size = min(len(rest), _BLOCK_BYTES - self._filled)
            self._block[self._filled : self._filled + size] = rest[:size]
            self._filled += size
            rest = rest[size:]
            if self._filled == _BLOCK_BYTES:
                self._empty()

    def mark(self) -> tuple[Checked, int]:
        """All text so far, and the byte of the file at which it ends. Later data never refer to earlier data."""
        self._empty()
        self._file.write(self._compressor.flush(zlib.Z_FULL_FLUSH))
        return Checked(self._crc, self._size), self._file.tell()

    def _empty(self) -> None:
        piece = self._block[: self._filled]
        self._crc = self._crc32(piece, self._crc)
        self._size += self._filled
        self._file.write(self._compressor.compress(piece))
        self._filled = 0


class GzipWriter(DeflateWriter):
    """Writes a gzip member. The member begins here unless text ``before`` this point is given."""

    def __init__(self, file: BinaryIO, before: Checked | None = None) -> None:
        super().__init__(file, before or NOTHING)
        if before is None:
            file.write(_HEADER)

    def finish(self) -> Checked:
        """Write the remaining data and the end of the member. Returns all text."""
        self._empty()
        self._file.write(self._compressor.flush())
        text = Checked(self._crc, self._size)
        self._file.write(text.trailer)
        return text
