"""Adds text near the end of a gzip file without compressing the rest again.

A deflate stream is a sequence of blocks that can begin at any bit. The source's compressed bytes are copied up to the
last block that begins before the place of insertion. An empty stored block then brings the stream to a byte boundary,
and the rest is compressed again. The checksum is computed from the source's by arithmetic (RFC 1951).

A deflate stream has no index of its blocks. So every bit near the end of the file that could begin a block's header is
tried. A candidate is accepted if the text inflated from there equals the end of the text that was read, byte for byte.
"""

from __future__ import annotations

import os
import zlib
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from augment.writers import seams
from augment.writers.checksums import TRAILER, Checked
from augment.writers.compression import GzipWriter, fastest

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
        for bit in _possible_headers(end)[::-1].tolist():
            text_at = _checked(end, bit, tail, text_bytes)
            if text_at is not None and text_at <= insert_at:
                return Splice(8 * start + bit, text_at, crc)
        if start == 0:
            break
    return None


def _possible_headers(end: bytes) -> npt.NDArray[np.int64]:
    """Bits of ``end`` at which a block with dynamic codes may begin, because its code length code is complete."""
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
    return np.sort(np.concatenate(positions))


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
_EMPTY = _empty_blocks()


def _from_bit(data: bytes, bit: int) -> bytes:
    """A deflate stream: blocks without content, then ``data`` from ``bit`` on, at the same bit of a byte as before.

    The content of a stored block begins at a byte's edge, so blocks that follow must not move within their bytes.
    """
    value, count = _EMPTY[bit % 8]
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
    _copy_prefix(file, path, splice.bit)
    after = memoryview(tail)[len(tail) - (text_bytes - splice.text_at) :]
    crc32, _ = fastest(-zlib.MAX_WBITS)
    before = Checked(splice.crc, text_bytes).without_end(Checked(crc32(after), len(after)))
    return GzipWriter(file, before), after


def _copy_prefix(file: BinaryIO, path: str, bits: int) -> None:
    """Copy the first ``bits`` of a file and append an empty stored block, which ends at a byte boundary."""
    whole, part = divmod(bits, 8)
    with open(path, "rb") as source:
        seams.copy(source, file, whole)
        last = source.read(1)[0] & ((1 << part) - 1) if part else 0
    # the block's header is three zero bits after `part` others, then zeros up to the byte's edge
    file.write(bytes([last]) + (b"\0" if part > 5 else b"") + b"\0\0\xff\xff")
