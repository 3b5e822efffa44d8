"""Files that are no traces: each is called by its name, in one line with advice."""

from __future__ import annotations

import gzip
import io
import pickle
import zipfile
from pathlib import Path

import pytest

from augment.errors import InputError
from augment.readers import read

SNAPSHOT = pickle.dumps({"segments": [], "device_traces": [[{"action": "alloc"}]]})


def checkpoint() -> bytes:
    text = io.BytesIO()
    with zipfile.ZipFile(text, "w") as archive:
        archive.writestr("model/data.pkl", b"x")
        archive.writestr("model/version", b"3")
    return text.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("x.json.gz", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "git lfs pull"),
        ("x.json", b"\n<!DOCTYPE html><html>Log in</html>", "web page"),
        ("x.json", gzip.compress(b"<html>"), "web page"),
        ("x.json", b'{"rocprofiler-sdk-tool": [{}]}', "--output-format pftrace"),
        ("x.pt", checkpoint(), "checkpoint of torch.save"),
        ("x.pickle", SNAPSHOT, "memory_viz"),
        ("x.pickle", pickle.dumps([1, 2]), "pickles are never loaded"),
        ("x.sqlite", b"SQLite format 3\0" + bytes(100), "SQLite"),
        ("x.nsys-rep", b"QDSTRM" + bytes(100), "Nsight"),
        ("x.xplane.pb", b"\n\x0c/host:CPU", "trace.json.gz beside it"),
        ("results.csv", b'"Index","KernelName","gpu-id"\n', "rocprof"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",  # contents hold the time
)
def test_each_kind_of_file_is_called_by_its_name(name: str, content: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputError, match="(?s)" + words) as caught:
        read(str(path))
    assert "\n" not in str(caught.value)


def test_a_damaged_gzip_says_gzip(tmp_path: Path) -> None:
    path = tmp_path / "x.json.gz"
    path.write_bytes(gzip.compress(b'{"traceEvents": []}')[:12])
    with pytest.raises(InputError, match="gzip"):
        read(str(path))
