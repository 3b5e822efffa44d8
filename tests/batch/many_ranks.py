"""Traces of a simulated job of many ranks, as quickly as can be: a few are simulated, the others are their like."""

from __future__ import annotations

import gzip
import re
import tempfile
from pathlib import Path

from simulator import JobOptions, simulate

SIMULATED = 2
_IDENTITY = re.compile(rb'"rank": \d+, "world_size": \d+')


def write_ranks(folder: Path, count: int) -> list[Path]:
    """``rank0.pt.trace.json.gz`` and so on, of different bytes."""
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as simulated:
        written = simulate(JobOptions(ranks=SIMULATED, steps=1, layers=1), Path(simulated))
        texts = [gzip.decompress(path.read_bytes()) for path, _ in written]
    paths = [folder / f"rank{rank}.pt.trace.json.gz" for rank in range(count)]
    for rank, path in enumerate(paths):
        text, found = _IDENTITY.subn(b'"rank": %d, "world_size": %d' % (rank, count), texts[rank % SIMULATED], count=1)
        assert found == 1
        path.write_bytes(gzip.compress(text, 1, mtime=0))
    return paths
