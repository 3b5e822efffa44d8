"""How much CPU and memory ``augment run`` needs beside the least that reading and writing a file can cost.

    python benchmarks/bench.py [--sizes 200MB,1.5GB] [--growth] [--json] [--runs 3] [--trace FILE …]

The traces are simulated once (``examples/simulate.py``) and kept outside git. *Floor* is a process that decompresses
the trace with isal into one reused buffer and compresses it again at isal's fastest level, and does nothing else. CPU
is user + system of the whole child process, its children included; RSS is its peak. Medians of alternating runs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GROWTH = ("100MB", "200MB", "400MB")
FLOOR = """
import sys
from isal import igzip
buffer = memoryview(bytearray(1 << 20))
with igzip.open(sys.argv[1], "rb") as source, igzip.open(sys.argv[2], "wb", compresslevel=0) as target:
    while count := source.readinto(buffer):
        target.write(buffer[:count])
"""


@dataclass(frozen=True)
class Usage:
    """What one child process took."""

    cpu_s: float
    wall_s: float
    rss_bytes: int


@dataclass(frozen=True)
class Result:
    """One trace: medians."""

    trace: str
    raw_bytes: int
    gz_bytes: int
    run: Usage
    floor: Usage

    @property
    def ratio(self) -> float:
        """CPU of the run beside the floor's."""
        return self.run.cpu_s / self.floor.cpu_s

    @property
    def speed(self) -> float:
        """MB of text a CPU second."""
        return self.raw_bytes / 1e6 / self.run.cpu_s

    @property
    def memory_ratio(self) -> float:
        """Peak memory beside the text's length."""
        return self.run.rss_bytes / self.raw_bytes


def cache() -> Path:
    """Where the traces are kept: ``$XDG_CACHE_HOME``, else beside this file (git ignores it)."""
    home = os.environ.get("XDG_CACHE_HOME")
    folder = Path(home) / "kineto-augment-bench" if home else ROOT / "benchmarks" / ".cache"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def simulated(size: str) -> Path:
    """A simulated trace with ``size`` of text, made at the first call and again when the simulator has changed."""
    sources = sorted((ROOT / "examples" / "simulator").glob("*.py"))
    version = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:8]
    path = cache() / f"sim-{size}-{version}.json.gz"
    if not path.exists():
        print(f"simulating {size} …", file=sys.stderr)
        with tempfile.TemporaryDirectory(dir=cache()) as folder:
            command = [sys.executable, str(ROOT / "examples" / "simulate.py"), "-o", folder, "--size", size]
            subprocess.run([*command, "--layers", "12", "--write-ranks", "0"], check=True, stdout=subprocess.DEVNULL)
            (Path(folder) / "rank0.pt.trace.json.gz").rename(path)
    return path


def text_length(path: Path) -> int:
    """How long the decompressed text is."""
    count = "import sys\nfrom isal import igzip\nb = bytearray(1 << 20)\nn = 0\nwith igzip.open(sys.argv[1]) as f:\n"
    count += "    while c := f.readinto(b):\n        n += c\nprint(n)"
    return int(subprocess.check_output([sys.executable, "-c", count, str(path)]))


def measure(command: Sequence[str]) -> Usage:
    """Run ``command`` to its end."""
    with tempfile.TemporaryFile() as errors:
        began = time.perf_counter()
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=errors)
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            errors.seek(0)
            text = errors.read().decode(errors="replace").strip()
            raise SystemExit(f"{' '.join(command)}: exit {process.returncode}\n{text[-2000:]}")
    unit = 1 if sys.platform == "darwin" else 1024
    return Usage(usage.ru_utime + usage.ru_stime, wall, usage.ru_maxrss * unit)


def median(usages: Sequence[Usage]) -> Usage:
    """The median of each figure."""
    return Usage(
        statistics.median(usage.cpu_s for usage in usages),
        statistics.median(usage.wall_s for usage in usages),
        int(statistics.median(usage.rss_bytes for usage in usages)),
    )


def augment_command(path: Path, output: Path, form: str = "chrome") -> list[str]:
    """What is measured."""
    return [sys.executable, "-m", "augment", "run", str(path), "-o", str(output), "--to", form, "--quiet"]


def bench(path: Path, runs: int) -> Result:
    """Alternate floor and run, so that a busy machine slows both."""
    floors, usages = [], []
    with tempfile.TemporaryDirectory(dir=cache()) as name:
        folder = Path(name)
        for _ in range(runs):
            floors.append(measure([sys.executable, "-c", FLOOR, str(path), str(folder / "floor.gz")]))
            usages.append(measure(augment_command(path, folder / "out")))
            shutil.rmtree(folder / "out", ignore_errors=True)
    return Result(path.name, text_length(path), path.stat().st_size, median(usages), median(floors))


def warm_up() -> None:
    """One run on a small trace: what is compiled or cached at the first run is no part of the figures."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    path = simulated("1MB")
    with tempfile.TemporaryDirectory(dir=cache()) as folder:
        measure(augment_command(path, Path(folder)))


def table(results: Sequence[Result]) -> str:
    """The results for people."""
    heads = ("text MB", "floor s", "run s", "ratio", "MB/s", "RSS MB", "RSS/text")
    lines = ["{:32} {:>8} {:>8} {:>8} {:>6} {:>6} {:>7} {:>8}".format("trace", *heads)]
    lines += [
        f"{row.trace[:32]:32} {row.raw_bytes / 1e6:8.0f} {row.floor.cpu_s:8.2f} {row.run.cpu_s:8.2f} {row.ratio:6.2f} "
        f"{row.speed:6.0f} {row.run.rss_bytes / 1e6:7.0f} {row.memory_ratio:8.2f}"
        for row in results
    ]
    return "\n".join(lines)


@dataclass(frozen=True)
class Growth:
    """Two costs between neighbouring sizes: equal if the cost grows in a straight line."""

    cpu_s_per_gb: list[float]
    rss_mb_per_gb: list[float]


def growth(results: Sequence[Result]) -> Growth:
    """What each further GB of text costs, from each size to the next."""
    pairs = list(pairwise(results))
    gigabytes = [(b.raw_bytes - a.raw_bytes) / 1e9 for a, b in pairs]
    return Growth(
        [(b.run.cpu_s - a.run.cpu_s) / more for (a, b), more in zip(pairs, gigabytes, strict=True)],
        [(b.run.rss_bytes - a.run.rss_bytes) / 1e6 / more for (a, b), more in zip(pairs, gigabytes, strict=True)],
    )


def main(arguments: list[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="200MB,1.5GB", help="of simulated traces, as text")
    parser.add_argument(
        "--growth", action="store_true", help=f"instead: does it grow in a line over {', '.join(GROWTH)}?"
    )
    parser.add_argument("--trace", nargs="+", type=Path, metavar="FILE", help="instead: these .json.gz files")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print JSON")
    chosen = parser.parse_args(arguments)
    sizes = GROWTH if chosen.growth else chosen.sizes.split(",")
    warm_up()
    results = [bench(path.resolve(), chosen.runs) for path in chosen.trace or [simulated(size) for size in sizes]]
    rows = [
        asdict(row) | {"ratio": row.ratio, "mb_per_cpu_s": row.speed, "rss_ratio": row.memory_ratio} for row in results
    ]
    further = growth(results) if chosen.growth else None
    if chosen.json:
        print(json.dumps({"results": rows, "growth": asdict(further) if further else None}, indent=1))
        return 0
    print(table(results))
    if further:
        print("each further GB of text: CPU s", *(f"{cost:.2f}" for cost in further.cpu_s_per_gb), end="; ")
        print("RSS MB", *(f"{cost:.0f}" for cost in further.rss_mb_per_gb))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
