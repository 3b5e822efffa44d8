"""Traces of a simulated job of many ranks, as quickly as can be: a few are simulated, the others are their like."""

from __future__ import annotations

import gzip
import re
import tempfile
from pathlib import Path

from simulator import JobOptions, simulate

SIMULATED = 2
_IDENTITY = re.compile(rb'"rank": \d+, "world_size": \d+')


def write_ranks(folder: Path, count: int) -> None:
    """``rank0.pt.trace.json.gz`` and so on, tiny ones, of different bytes."""
    with tempfile.TemporaryDirectory() as simulated:
        written = simulate(JobOptions(ranks=SIMULATED, steps=1, layers=1), Path(simulated))
        texts = [gzip.decompress(path.read_bytes()) for path, _ in written]
    folder.mkdir(parents=True)
    for rank in range(count):
        _write(folder, rank, count, texts[rank % SIMULATED])


def like(source: Path, folder: Path, count: int) -> None:
    """The trace ``source`` as ``count`` ranks."""
    text = gzip.decompress(source.read_bytes())
    folder.mkdir(parents=True)
    for rank in range(count):
        _write(folder, rank, count, text)


def _write(folder: Path, rank: int, count: int, text: bytes) -> None:
    text, result = _IDENTITY.subn(b'"rank": %d, "world_size": %d' % (rank, count), text, count=1)
    assert result == 1
    (folder / f"rank{rank}.pt.trace.json.gz").write_bytes(gzip.compress(text, 1, mtime=0))
