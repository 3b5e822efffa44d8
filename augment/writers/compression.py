"""Deflate and gzip, fast and reproducible: equal text gives equal bytes, whatever pieces it arrives in; and text added
near the end of a gzip file without compressing the rest again.

For that the file's compressed bytes are copied up to the last deflate block that begins before the place of insertion;
blocks can begin at any bit. An empty stored block then brings the stream to a byte boundary, and the rest is compressed
again (RFC 1951). The checksum of the whole is computed from those of its parts, by arithmetic (RFC 1952).
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from augment.core.output_files import copy_bytes

POLYNOMIAL = 0xEDB88320  #: of CRC-32, bits reversed
PERIOD = (1 << 32) - 1  #: the polynomial is primitive: after so many zero bytes (or bits) every checksum repeats
TRAILER = struct.Struct("<II")  #: a gzip member's CRC-32, and the size of its text modulo 2**32


class Checked(NamedTuple):
    """The CRC-32 and the size of a text."""

    crc: int
    size: int

    @property
    def trailer(self) -> bytes:
        """The gzip trailer of a member with this text."""
        return TRAILER.pack(self.crc, self.size % (1 << 32))

    def then(self, end: Checked) -> Checked:
        """The checksum of this text followed by ``end``."""
        return Checked(shifted_crc(self.crc, end.size) ^ end.crc, self.size + end.size)

    def without_end(self, end: Checked) -> Checked:
        """The checksum of this text without its ``end``."""
        return Checked(shifted_crc(self.crc ^ end.crc, -end.size), self.size - end.size)

    def without_beginning(self, beginning: Checked) -> Checked:
        """The checksum of this text without its ``beginning``."""
        size = self.size - beginning.size
        return Checked(self.crc ^ shifted_crc(beginning.crc, size), size)


NOTHING = Checked(0, 0)


def shifted_crc(crc: int, count: int) -> int:
    """The value of ``crc`` after ``count`` zero bytes, without the initial value: ``crc * x**(8 count)``.

    A negative ``count`` removes zero bytes.
    """
    count %= PERIOD
    power, square = 1 << 31, 1 << 23  # 1 and x**8, reversed
    while count:
        if count & 1:
            power = _product(power, square)
        square = _product(square, square)
        count >>= 1
    return _product(crc, power)


def _product(left: int, right: int) -> int:
    """The product of two polynomials over GF(2), modulo CRC-32's, bits reversed."""
    product = 0
    for bit in range(31, -1, -1):
        if left >> bit & 1:
            product ^= right
        right = (right >> 1) ^ (POLYNOMIAL if right & 1 else 0)
    return product


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
        self._crc32, self._compressor = fastest(-zlib.MAX_WBITS)  # what follows is as after any other beginning
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


Words = npt.NDArray[np.uint64]
WINDOW = 1 << 15  #: the greatest distance of a reference in deflate
SEARCHED = (1 << 16, 1 << 18)  #: sizes of the end of the file to search, tried in this order


class Splice(NamedTuple):
    """The start of a block: ``bit`` of the file and byte ``text_at`` of the text. ``crc`` is that of the whole text."""

    bit: int
    text_at: int
    crc: int


def find_splice(path: str, tail: bytes, text_bytes: int, insert_at: int) -> Splice | None:
    """The last block found near the end of the file that begins at or before ``insert_at``; None if there is none.

    A deflate stream has no index of its blocks. So every bit near the end of the file that could begin a block's header
    is tried, and accepted if the text inflated from there equals the end of the text that was read, byte for byte.

    Args:
        path: a file that is one gzip member.
        tail: the end of its text.
        text_bytes: the size of all its text.
        insert_at: a byte of its text.
    """
    size = os.path.getsize(path)
    for searched in SEARCHED:
        start = max(0, size - searched)
        with open(path, "rb") as file:
            file.seek(start)
            end = file.read()
        crc, length = TRAILER.unpack(end[-TRAILER.size :])
        if length != text_bytes % (1 << 32):
            return None
        # Bits of ``end`` at which a block with dynamic codes may begin, because its code length code is complete
        data = np.frombuffer(end + bytes(24), np.uint8)
        count = len(end)
        low = np.zeros(count, np.uint64)
        for byte in range(8):
            low |= data[byte : byte + count].astype(np.uint64) << np.uint64(8 * byte)
        high = np.concatenate([low[7:], np.zeros(7, np.uint64)])
        positions = []
        for shift in range(8):
            word = low >> np.uint64(shift)
            likely = np.flatnonzero(
                ((word >> np.uint64(1)) & np.uint64(3) == 2)
                & ((word >> np.uint64(3)) & np.uint64(31) <= 29)
                & ((word >> np.uint64(8)) & np.uint64(31) <= 29)
            )
            complete = _is_complete(word[likely], high[likely] >> np.uint64(shift))
            positions.append(8 * likely[complete] + shift)
        possible_headers = np.sort(np.concatenate(positions))
        for bit in possible_headers[::-1].tolist():
            text_at = _checked(end, bit, tail, text_bytes)
            if text_at is not None and text_at <= insert_at:
                return Splice(8 * start + bit, text_at, crc)
        if start == 0:
            break
    return None


def _is_complete(word: Words, further: Words) -> npt.NDArray[np.bool_]:
    """Whether the code lengths from bit 17 of ``word`` on form a complete code; ``further`` begins at bit 56 of
    ``word``.
    """
    lengths_given = ((word >> np.uint64(13)) & np.uint64(15)) + np.uint64(4)
    total = np.zeros(len(word), np.uint64)
    for number in range(19):
        source, at = (word, 17 + 3 * number) if number < 13 else (further, 3 * (number - 13))
        length = (source >> np.uint64(at)) & np.uint64(7)
        used = (length > 0) & (np.uint64(number) < lengths_given)
        total += np.where(used, np.uint64(128) >> length, np.uint64(0))
    complete: npt.NDArray[np.bool_] = total == 128
    return complete


def _checked(end: bytes, bit: int, tail: bytes, text_bytes: int) -> int | None:
    """The byte of the text at which the block at ``bit`` begins; None if no block begins there."""
    aligned = _from_bit(end, bit)
    size = _inflated_size(aligned)
    if size is None or size + WINDOW > len(tail):
        return None
    at = len(tail) - size
    inflate = zlib.decompressobj(-zlib.MAX_WBITS, zdict=tail[at - WINDOW : at])
    try:
        if inflate.decompress(aligned, size + 1) != tail[at:]:
            return None
    except zlib.error:
        return None
    return text_bytes - size


def _empty_blocks() -> list[tuple[int, int]]:
    """For each bit of a byte: empty blocks that end at that bit, as a number and its count of bits (RFC 1951).

    A block with fixed codes takes 10 bits. One with dynamic codes, of which only the block's end occurs, takes 93: it
    is needed to end at an odd bit. The window that later distances refer to stays empty.
    """
    lengths = "".join("100" if symbol in (18, 1) else "000" for symbol in _CODE_LENGTH_ORDER)
    unused = "".join("1" + f"{count - 11:07b}"[::-1] for count in (138, 118))  # the 256 literals
    dynamic = "0" + "01" + "00000" + "00000" + "1111" + lengths + unused + "0" + "0" + "0"
    empty = []
    for residue in range(8):
        bits = dynamic if residue % 2 else ""
        while len(bits) % 8 != residue:
            bits += "0" + "10" + "0000000"
        empty.append((int("0" + bits[::-1], 2), len(bits)))
    return empty


_CODE_LENGTH_ORDER = (16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15)
_EMPTY_BLOCKS = _empty_blocks()


def _from_bit(data: bytes, bit: int) -> bytes:
    """A deflate stream: blocks without content, then ``data`` from ``bit`` on, at the same bit of a byte as before.

    The content of a stored block begins at a byte's edge, so blocks that follow must not move within their bytes.
    """
    value, count = _EMPTY_BLOCKS[bit % 8]
    whole = count // 8
    first = value >> 8 * whole | data[bit // 8] >> bit % 8 << bit % 8
    return (value & (1 << 8 * whole) - 1).to_bytes(whole, "little") + bytes([first]) + data[bit // 8 + 1 :]


def _inflated_size(deflated: bytes) -> int | None:
    """The size of the text in a raw deflate stream that ends where a gzip trailer remains; None if it does not end
    there.
    """
    inflate: Any = zlib.decompressobj(-zlib.MAX_WBITS, zdict=bytes(WINDOW))
    size, rest = 0, deflated[:256]
    following = deflated[256:]
    try:
        while not inflate.eof:
            if not rest:
                return None
            size += len(inflate.decompress(rest))
            rest, following = following, b""
    except zlib.error:
        return None
    left = len(inflate.unused_data) + len(following)
    return size if left == TRAILER.size else None


def resumed(file: BinaryIO, path: str, splice: Splice, tail: bytes, text_bytes: int) -> tuple[GzipWriter, memoryview]:
    """A writer into ``file`` that holds the gzip file at ``path`` up to ``splice``, and the text after that point."""
    whole, part = divmod(splice.bit, 8)
    with open(path, "rb") as source:
        copy_bytes(source, file, whole)
        last = source.read(1)[0] & ((1 << part) - 1) if part else 0
    # an empty stored block: its header is three zero bits after `part` others, then zeros up to the byte's edge
    file.write(bytes([last]) + (b"\0" if part > 5 else b"") + b"\0\0\xff\xff")
    after = memoryview(tail)[len(tail) - (text_bytes - splice.text_at) :]
    crc32, _ = fastest(-zlib.MAX_WBITS)
    before = Checked(splice.crc, text_bytes).without_end(Checked(crc32(after), len(after)))
    return GzipWriter(file, before), after
