"""Adding to a gzip file without compressing it again gives what any reader of gzip takes for the longer text."""

from __future__ import annotations

import gzip
import io
import random
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from augment.writers.compression import Checked, _from_bit, find_splice, resumed, shifted_crc

pytestmark = pytest.mark.slow

LINES = random.Random(3)
TEXT = b"".join(
    b'{"name": "kernel %d", "ts": %d.%03d},\n' % (LINES.randrange(50), i, LINES.randrange(999)) for i in range(60_000)
)


@pytest.mark.parametrize("level", [1, 6, 9])
@pytest.mark.parametrize("added", [b"", b"x", b"something new\n" * 100_000])
def test_the_text_is_the_longer_one(tmp_path: Path, level: int, added: bytes) -> None:
    path = tmp_path / "source.gz"
    path.write_bytes(gzip.compress(TEXT, level, mtime=1))
    insert_at = len(TEXT) - 7
    splice = find_splice(str(path), TEXT, len(TEXT), insert_at)
    assert 0 < splice.text_at <= insert_at
    out = io.BytesIO()
    writer, rest = resumed(out, str(path), splice, TEXT, len(TEXT))
    before = insert_at - splice.text_at
    for piece in (rest[:before], added[:10], added[10:], rest[before:]):
        writer.write(piece)
    writer.finish()
    assert gzip.decompress(out.getvalue()) == TEXT[:insert_at] + added + TEXT[insert_at:]
    assert out.getvalue()[: splice.bit // 8] == path.read_bytes()[: splice.bit // 8]


def test_no_block_is_believed_that_does_not_give_the_text(tmp_path: Path) -> None:
    path = tmp_path / "source.gz"
    path.write_bytes(gzip.compress(TEXT))
    other = bytearray(TEXT)
    other[-1000] ^= 1
    assert find_splice(str(path), bytes(other), len(TEXT), len(TEXT) - 7) is None
    assert find_splice(str(path), TEXT, len(TEXT) + 1, len(TEXT) - 7) is None


def test_stored_blocks_are_not_found(tmp_path: Path) -> None:
    path = tmp_path / "source.gz"
    path.write_bytes(gzip.compress(TEXT, 0))
    assert find_splice(str(path), TEXT, len(TEXT), len(TEXT) - 7) is None


def _as_flushed(path: Path, text: bytes, every: int = 1 << 40) -> None:
    """A member that a logger writes: flushed after each ``every`` bytes, and as text, whose end is flushed, too."""
    with gzip.open(path, "wt", compresslevel=1, encoding="utf-8", newline="") as file:
        for at in range(0, len(text), every):
            file.write(text[at : at + every].decode())
            file.flush()


def _lengthened(path: Path, text: bytes, added: bytes) -> tuple[int, bytes]:
    """The bit of the splice within its byte, and what gzip reads of the file with ``added`` before its last bytes."""
    insert_at = len(text) - 7
    splice = find_splice(str(path), text, len(text), insert_at)
    out = io.BytesIO()
    writer, rest = resumed(out, str(path), splice, text, len(text))
    for piece in (rest[: insert_at - splice.text_at], added, rest[insert_at - splice.text_at :]):
        writer.write(piece)
    writer.finish()
    return splice.bit % 8, gzip.decompress(out.getvalue())


def test_a_block_before_a_flush_is_found_at_every_bit(tmp_path: Path) -> None:
    path, bits = tmp_path / "source.gz", set()
    for begin in range(0, 64 * 37, 37):
        text = TEXT[begin : begin + 250_000]
        _as_flushed(path, text)
        bit, longer = _lengthened(path, text, b"new")
        assert longer == text[:-7] + b"new" + text[-7:]
        bits.add(bit)
    assert bits == set(range(8))


@pytest.mark.parametrize("every", [1000, 30_000, 100_000])
def test_a_file_that_is_flushed_again_and_again_is_extended(tmp_path: Path, every: int) -> None:
    path = tmp_path / "source.gz"
    _as_flushed(path, TEXT, every)
    _, longer = _lengthened(path, TEXT, b"new" * 100_000)
    assert longer == TEXT[:-7] + b"new" * 100_000 + TEXT[-7:]


def test_bits_are_moved_within_whole_bytes_alone() -> None:
    """Blocks without content stand before the first bit, so that what follows keeps its place within its byte."""
    compressor = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)
    stored = compressor.compress(TEXT[:5000]) + compressor.flush(zlib.Z_SYNC_FLUSH) + b"\3\0"
    for bit in range(8):
        empty = bytes([(1 << bit) - 1]) + bytes(bit > 5) + b"\0\0\xff\xff"  # a stored block that begins at this bit
        shifted = empty + stored
        assert zlib.decompress(_from_bit(shifted, bit), -zlib.MAX_WBITS) == TEXT[:5000]


@given(st.binary(), st.binary())
def test_checksums_add_up(left: bytes, right: bytes) -> None:
    first, last, both = (Checked(zlib.crc32(text), len(text)) for text in (left, right, left + right))
    assert first.then(last) == both
    assert both.without_end(last) == first
    assert both.without_beginning(first) == last


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**40))
def test_a_checksum_is_shifted_back(crc: int, count: int) -> None:
    assert shifted_crc(shifted_crc(crc, count), -count) == crc
