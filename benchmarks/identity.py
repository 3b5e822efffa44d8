"""Do outputs depend on the number of threads or on a bound of memory? They must not, to the byte.

    python benchmarks/identity.py FOLDER … [--most 6M] [--digests FILE] [--alone]

Each trace below the folders is converted to both formats by one thread, by two threads (whatever its size), and with
every array of 16 kB and more in files. The exit code is 1 if any output differs. ``--digests`` writes the digests of
the first way as JSON: those of two commits are the same if a change left outputs as they were. ``--alone``: only that.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

from bench import ROOT, cache

sys.path.insert(0, str(ROOT))

from augment.batch import spilling
from augment.batch.conversion import Progress, RunPlan, convert
from augment.batch.inputs import Input
from augment.pipeline.request import Request
from augment.readers import containers

WAYS = {"one thread": (1, None), "two threads": (2, None), "in files": (1, 1 << 20)}
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def traces(folders: list[Path], most: int) -> Iterator[Path]:
    """The files that may be traces, the smallest first."""
    files = {path for folder in folders for path in (folder.rglob("*") if folder.is_dir() else [folder])}
    named = [path for path in files if path.is_file() and {".json", ".pftrace"} & {*path.suffixes}]
    yield from sorted((path for path in named if path.stat().st_size <= most), key=lambda path: path.stat().st_size)


def digests(path: Path, threads: int, bound: int | None) -> dict[str, str]:
    """The digests of all outputs; of a file that cannot be read, the reason."""
    with tempfile.TemporaryDirectory(dir=cache()) as folder:
        plan = RunPlan(Request(formats=("chrome", "perfetto")), threads=threads, memory=bound)
        result = convert(Input(str(path), folder, named=True), plan, Progress())
        if not result.outputs:
            return {result.status: result.message.replace(folder, "")}
        return {Path(name).name: hashlib.sha256(Path(name).read_bytes()).hexdigest() for name in result.outputs}


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--most", default="6M", help="bytes of a file; larger ones are left out")
    parser.add_argument("--digests", type=Path, help="write the digests there")
    parser.add_argument("--alone", action="store_true", help="convert by one thread only")
    chosen = parser.parse_args()
    ways = list(WAYS)[:1] if chosen.alone else list(WAYS)
    most = int(float(chosen.most.rstrip("KMG")) * _UNITS.get(chosen.most[-1], 1))
    known, different, began = {}, 0, time.process_time()
    forced = [
        patch("augment.pipeline.THREADS_FROM", 0), patch.object(containers, "AHEAD_FROM", 0),
        patch.object(spilling, "LEAST_ARRAY", 1 << 14), patch.object(spilling, "_FULL", 0.0),
        patch.object(spilling, "_EASED", 0.0),
    ]  # fmt: skip
    for each in forced:
        each.start()
    for path in traces(chosen.folders, most):
        first, *others = (digests(path, *WAYS[way]) for way in ways)
        known[str(path)] = first
        for name, other in zip(ways[1:], others, strict=True):
            if other != first:
                different += 1
                print(f"{path}: other outputs with {name}: {[key for key in first if first[key] != other.get(key)]}")
    if chosen.digests:
        chosen.digests.write_text(json.dumps(known, indent=1, sort_keys=True))
    converted = sum("failed" not in each for each in known.values())
    print(
        f"{len(known)} files, {converted} converted, {different} differences, {time.process_time() - began:.0f} CPU s"
    )
    return int(bool(different))


if __name__ == "__main__":
    raise SystemExit(main())
