from __future__ import annotations

import gzip
import io
import json
import zipfile
from pathlib import Path

import pytest
import zstandard

from augment.errors import LimitExceeded, UnknownFormat
from augment.readers import read

TEXT = json.dumps(
    {"traceEvents": [{"ph": "i", "name": f"n{i}", "pid": 1, "tid": 2, "ts": i} for i in range(5000)]}
).encode()


def zipped(*names: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names:
            archive.writestr(name, TEXT)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "data",
    [
        TEXT,
        gzip.compress(TEXT),
        gzip.compress(TEXT[:1000]) + gzip.compress(TEXT[1000:]),
        gzip.compress(TEXT) + bytes(512),
        gzip.compress(gzip.compress(TEXT)),
        zstandard.compress(TEXT),
        zstandard.compress(TEXT[:1000]) + zstandard.compress(TEXT[1000:]),
        zipped("folder/trace.json"),
        zipped("trace.json", "__MACOSX/._trace.json"),
    ],
    ids=["plain", "gzip", "members", "padded", "gzip twice", "zstd", "frames", "zip", "mac zip"],
)
def test_content_tells_the_container_not_the_name(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "misleading.txt"
    path.write_bytes(data)
    trace = read(str(path))
    assert len(trace.events) == 5000
    assert b"".join(bytes(chunk) for chunk in trace.source.text.chunks()) == TEXT


def test_a_cut_gzip_stream_is_partial(tmp_path: Path) -> None:
    path = tmp_path / "cut.json.gz"
    path.write_bytes(gzip.compress(TEXT)[:-2000])
    trace = read(str(path))
    assert 0 < len(trace.events) < 5000
    assert trace.partial


def test_a_flipped_bit_is_noticed(tmp_path: Path) -> None:
    data = bytearray(gzip.compress(TEXT))
    data[-6] ^= 1  # of the checksum: the text is whole, but not as it was written
    path = tmp_path / "flipped.json.gz"
    path.write_bytes(data)
    assert "damaged" in str(read(str(path)).partial)


@pytest.mark.parametrize("names", [(), ("a.json", "b.json")])
def test_a_zip_must_hold_one_file(tmp_path: Path, names: tuple[str, ...]) -> None:
    path = tmp_path / "some.zip"
    path.write_bytes(zipped(*names))
    with pytest.raises(UnknownFormat, match=f"a zip of {len(names)} files"):
        read(str(path))


def test_a_bomb_is_refused_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("augment.readers.containers.SMALL_TEXT", 1 << 20)
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(gzip.compress(b"[" + b" " * (200 << 20))))
    with pytest.raises(LimitExceeded, match="2000 times its size"):
        read(str(path))


def test_layers_have_an_end(tmp_path: Path) -> None:
    data = TEXT
    for _ in range(5):
        data = gzip.compress(data)
    path = tmp_path / "deep.gz"
    path.write_bytes(data)
    with pytest.raises(UnknownFormat, match="layers of compression"):
        read(str(path))
