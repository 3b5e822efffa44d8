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
from augment.readers.limits import Limits

TEXT = json.dumps(
    {"traceEvents": [{"ph": "i", "name": f"n{i}", "pid": 1, "tid": 2, "ts": i} for i in range(5000)]}
).encode()


def zipped(*names: str, text: bytes = TEXT, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name in names:
            archive.writestr(name, text)
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
    monkeypatch.setattr("augment.readers.limits.SMALL_TEXT", 1 << 20)
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(gzip.compress(b"[" + b" " * (200 << 20))))
    with pytest.raises(LimitExceeded, match="2000 times its size"):
        read(str(path))


EVENT = b'{"ph": "X", "name": "%s", "ts": 1, "dur": 2}'


def of_events(*names: bytes) -> bytes:
    return b'{"traceEvents": [' + b", ".join(EVENT % name for name in names) + b"]}"


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        (Limits(text_bytes=1000), "more than 1000 bytes"),
        (Limits(events=99), "more than 99 events"),
        (Limits(name_bytes=19), "a name of 20 characters"),
    ],
)
def test_limits_are_kept(tmp_path: Path, limits: Limits, said: str) -> None:
    path = tmp_path / "a.json.gz"
    path.write_bytes(gzip.compress(of_events(*[b"k" * 20] * 100)))
    enough = Limits(text_bytes=10_000, events=100, name_bytes=20)
    assert len(read(str(path), limits=enough).events) == 100
    with pytest.raises(LimitExceeded, match=said):
        read(str(path), limits=limits)


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        (Limits(devices=2), "has work on 3 devices, more than 2; split it by rank or by time"),
        (Limits(streams=5), "has work on 6 streams of devices, more than 5; split it by rank or by time"),
    ],
)
def test_devices_and_streams(tmp_path: Path, limits: Limits, said: str) -> None:
    event = '{"ph": "X", "cat": "%s", "name": "k", "pid": %d, "tid": %d, "ts": 1, "dur": 1}'
    events = [event % ("kernel", device, stream) for device in range(3) for stream in (7, 20)]
    events += [event % ("cpu_op", process, 1) for process in range(100, 110)]  # no devices
    path = tmp_path / "a.json"
    path.write_text(f'{{"traceEvents": [{", ".join(events)}]}}')
    assert len(read(str(path), limits=Limits(devices=3, streams=6)).events) == 16
    with pytest.raises(LimitExceeded, match=said):
        read(str(path), limits=limits)


def test_a_damaged_zip_is_read_up_to_the_damage(tmp_path: Path) -> None:
    names = [b"name%d" % i for i in range(30_000)]
    data = zipped("a.json", text=of_events(*names), method=zipfile.ZIP_STORED).replace(b"name7", b"same7", 1)
    path = tmp_path / "a.zip"
    path.write_bytes(data)
    trace = read(str(path))
    assert "the zip is damaged" in str(trace.partial)
    assert 0 < len(trace.events) < len(names)


def test_layers_have_an_end(tmp_path: Path) -> None:
    data = TEXT
    for _ in range(5):
        data = gzip.compress(data)
    path = tmp_path / "deep.gz"
    path.write_bytes(data)
    with pytest.raises(UnknownFormat, match="layers of compression"):
        read(str(path))
