from __future__ import annotations

import gzip
import io
import sys

import numpy as np
import pytest

from augment.writers.compression import GzipWriter

TEXT = np.random.default_rng(0).choice(np.frombuffer(b"abcdef\n", np.uint8), 3_000_000).tobytes()


def compressed(piece: int) -> bytes:
    file = io.BytesIO()
    writer = GzipWriter(file)
    for start in range(0, len(TEXT), piece):
        writer.write(memoryview(TEXT)[start : start + piece])
    writer.finish()
    return file.getvalue()


@pytest.mark.parametrize("without", ["", "isal"])
def test_bytes_do_not_depend_on_the_pieces(monkeypatch: pytest.MonkeyPatch, without: str) -> None:
    if without:
        monkeypatch.setitem(sys.modules, without, None)
    whole = compressed(len(TEXT))
    assert gzip.decompress(whole) == TEXT
    assert compressed(999) == compressed(1 << 20) == whole
    assert whole[3:8] == bytes(5), "neither a name nor a time in the header"
