"""Every goal of speed and memory in one table: what is measured, and the goal. Ratios, each within this run.

    python benchmarks/goals.py [--size 1.5GB] [--small 200MB] [--trace FILE] [--runs 2] [--only TEXT] [--json]

CPU is user + system of whole processes, the least of ``--runs``. *Floor* is that of ``bench.py``: decompress, compress
again. *Others* is how many cores other processes used meanwhile: wall times count only where that is near 0. Lines
that need Perfetto's engine (Node) or the server's packages are left out, with the reason, where these are missing.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bench import FLOOR, ROOT, Usage, cache, measure, simulated, text_length, warm_up

sys.path[:0] = [str(ROOT / part) for part in ("tests/batch", "examples")]

RUN = [sys.executable, "-m", "augment", "run"]
#: events of the source, rows added, bytes of the columns that reading leaves
COUNTS = """
import json, sys
import numpy as np
import augment
from augment.core.annotations import row_count
arrays = {}
def size(value):
    if isinstance(value, np.ndarray):
        arrays[id(value)] = value  # columns may share one
        return
    parts = [getattr(value, name) for name in getattr(value, "__slots__", ())]
    for part in value.values() if isinstance(value, dict) else parts:
        size(part)
trace = augment.read(sys.argv[1])
size(trace.events)
made = augment.augment(trace)
held = sum(array.nbytes for array in arrays.values())
print(json.dumps([len(trace.events), sum(map(row_count, made.annotations)), held]))
"""


RECORDED = ROOT.parent / "shared" / "traces"
#: a trace converted again and again, as by a worker of a batch or of the service
WARM = """
import sys, time
import augment
from augment.core.threads import keep_freed_memory
keep_freed_memory()
took = []
for _ in range(8):
    began = time.process_time()
    augment.write(augment.augment(augment.read(sys.argv[1])), sys.argv[2] + "/warm.pftrace")
    took.append(time.process_time() - began)
print(1000 * min(took))
"""


@dataclass(frozen=True)
class Line:
    """A goal: what is measured, its value, the goal as text, and what the value was made of."""

    what: str
    value: float | None
    goal: str
    of: str


@dataclass
class Bench:
    """Runs commands, each kind once, and keeps what they took."""

    path: Path
    small: Path
    folder: Path
    runs: int
    known: dict[tuple[str, ...], tuple[Usage, float]] = field(default_factory=dict)

    def cost(self, *command: str, fresh: Path | None = None) -> tuple[Usage, float]:
        """The least CPU of some runs, and how many cores others used; ``fresh`` is removed before each."""
        if command not in self.known:
            runs = []
            for _ in range(self.runs):
                if fresh:
                    shutil.rmtree(fresh, ignore_errors=True)
                busy, began = _busy_s(), time.perf_counter()
                usage = measure(command)
                wall = max(time.perf_counter() - began, 1e-9)
                runs.append((usage, max((_busy_s() - busy - usage.cpu_s) / wall, 0.0)))
            self.known[command] = min(runs, key=lambda run: run[0].cpu_s)
        return self.known[command]

    def run(self, path: Path, *options: str) -> tuple[Usage, float]:
        """``augment run`` of a file, with the outputs in a folder named after the options."""
        out = self.folder / "-".join(["out", path.name, *(option.strip("-") for option in options)]).replace("/", "_")
        return self.cost(*RUN, str(path), "-o", str(out), "--quiet", *options, fresh=out)

    def floor(self, path: Path) -> float:
        """CPU s of decompressing and compressing."""
        return self.cost(sys.executable, "-c", FLOOR, str(path), str(self.folder / "floor.gz"))[0].cpu_s


def _busy_s() -> float:
    """CPU s that all cores of the machine have worked so far; 0 where there is no /proc."""
    try:
        user, nice, system, _, _, irq, softirq, *_ = map(int, Path("/proc/stat").read_text().split()[1:9])
    except OSError:
        return 0.0
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def one_file(bench: Bench) -> Iterator[Line]:
    """CPU, wall and memory of one large file, and of smaller ones."""
    text = text_length(bench.path)
    single, _ = bench.run(bench.path, "--threads", "1")
    two, others = bench.run(bench.path, "--threads", "2")
    floor = bench.floor(bench.path)
    counted = subprocess.check_output([sys.executable, "-c", COUNTS, str(bench.path)], cwd=ROOT)
    events, added, columns = json.loads(counted)
    of = f"{single.cpu_s:.2f} CPU s, {single.cpu_s / floor:.1f} times the floor, {text / 1e6:.0f} MB of text"
    yield Line("CPU an event, all analyses, us", single.cpu_s / events * 1e6, "<= 2.2", of)
    walls = f"{two.wall_s:.2f} s wall of {single.cpu_s:.2f} CPU s; others {others:.1f} cores"
    yield Line("wall with two threads over CPU", two.wall_s / single.cpu_s, "<= 0.6", walls)
    peaks = f"{two.rss_bytes / 1e6:.0f} MB; one thread {single.rss_bytes / text:.2f}"
    yield Line("peak memory over text, two threads", two.rss_bytes / text, "<= 0.5", peaks)
    yield Line("bytes of columns an event", columns / events, "<= 32", f"{events} events")
    yield Line("added rows over the source's events", added / events, "<= 0.33", f"{added} rows")
    tiny = bench.run(simulated("1MB"))[0]
    yield Line("a file of 1 MB, whole process, CPU s", tiny.cpu_s, "", f"{tiny.wall_s:.2f} s wall")
    small = bench.run(bench.small, "--threads", "1")[0]
    cheap = bench.run(bench.small, "--threads", "1", "--only", "kernel_breakdown")[0]
    yield Line("--only kernel_breakdown over all", cheap.cpu_s / small.cpu_s, "", f"{cheap.cpu_s:.2f} CPU s")


def recorded(bench: Bench) -> Iterator[Line]:
    """Recorded traces, whose texts do not repeat as those of simulated ones do."""
    for name, goal in (("h100_8rank_modded_nanogpt", 20), ("hta_mtia", 15)):
        folder = RECORDED / name
        if not folder.is_dir():
            yield Line(f"{name}: CPU, ms a MB of text", None, f"<= {goal}", f"left out: no {folder}")
            continue
        paths = sorted(folder.glob("*.json.gz"))
        text, packed = sum(map(text_length, paths)), sum(path.stat().st_size for path in paths)
        took, _ = bench.run(folder, "--threads", "1", "--jobs", "1")
        cost = f"{took.cpu_s:.2f} CPU s, {text / 1e6:.0f} MB"
        yield Line(f"{name}: CPU, ms a MB of text", took.cpu_s / text * 1e9, f"<= {goal}", cost)
        made = list((bench.folder / f"out-{name}-threads-1-jobs-1").glob("*.pftrace"))
        size = sum(path.stat().st_size for path in made)
        yield Line(f"{name}: .pftrace over the source", size / packed, "<= 2", f"{size / 1e6:.1f} MB")
        try:
            from native import load_cpu_s

            before, after = min(load_cpu_s(paths[0]) for _ in range(2)), min(load_cpu_s(made[0]) for _ in range(2))
        except Exception as error:  # the engine's packages are optional, and so is Node
            yield Line(f"{name}: Perfetto loads it over the source", None, "<= 1.0", f"no engine: {error}")
            continue
        of = f"{after:.2f} of {before:.2f} CPU s"
        yield Line(f"{name}: Perfetto loads it over the source", after / before, "<= 1.0", of)
    small = RECORDED / "pairs_h100_vs_mi300_tracelens" / "bert_small_h100.json.gz"  # 1.1 MB of text; simulated: 2.2
    large = RECORDED / "h100_8rank_modded_nanogpt" / "rank0.json.gz"
    for path, goal in ((simulated("1MB"), 50), (small, 50), (large, 180)):
        if path.exists():
            again = subprocess.check_output([sys.executable, "-c", WARM, str(path), str(bench.folder)], cwd=ROOT)
            what = f"{path.name.split('-')[0].split('.')[0]}, in a warm process, CPU ms"
            yield Line(what, float(again), f"<= {goal}", "the least of eight")


def native_format(bench: Bench) -> Iterator[Line]:
    """Perfetto's format, in and out, beside JSON; and what its engine needs to load outputs."""
    from native import ONLY_NATIVE

    chrome = bench.run(bench.small, "--threads", "1", "--to", "chrome")[0]
    native = bench.run(bench.small, "--threads", "1", "--to", "perfetto")[0]
    yield Line(".pftrace out over JSON out, CPU", native.cpu_s / chrome.cpu_s, "<= 1.2", f"{native.cpu_s:.2f} CPU s")
    source = bench.folder / "source.pftrace"
    subprocess.run([sys.executable, "-c", ONLY_NATIVE, str(bench.small), str(source)], cwd=ROOT, check=True,
                   stdout=subprocess.DEVNULL)  # fmt: skip
    both = bench.run(source, "--threads", "1", "--to", "perfetto")[0]
    yield Line(".pftrace in and out over JSON's, CPU", both.cpu_s / chrome.cpu_s, "<= 1.2", f"{both.cpu_s:.2f} CPU s")
    try:
        from native import load_cpu_s

        before = load_cpu_s(bench.small)
        (out,) = (bench.folder / f"out-{bench.small.name}-threads-1-to-perfetto").glob("*.pftrace")
        after = load_cpu_s(out)
    except Exception as error:  # the engine's packages are optional, and so is Node
        yield Line("Perfetto loads the output over the source, CPU", None, "<= 1.0", f"no engine: {error}")
        return
    of = f"{after:.2f} of {before:.2f} CPU s"
    yield Line("Perfetto loads the output over the source, CPU", after / before, "<= 1.0", of)


def several_files(bench: Bench) -> Iterator[Line]:
    """Diff, merge, and the conclusion of a job, beside converting the files."""
    from many_ranks import like

    ranks = bench.folder / "ranks"
    like(simulated("20MB"), ranks, 4)
    first, second, *_ = sorted(ranks.iterdir())
    alone = bench.run(first, "--threads", "1")[0].cpu_s
    diff = bench.cost(sys.executable, "-m", "augment", "diff", str(first), str(second))[0].cpu_s
    yield Line("diff of two files over converting both", diff / (2 * alone), "", f"{diff:.2f} CPU s, 20 MB each")
    merge = [sys.executable, "-m", "augment", "merge", str(ranks), "-o", str(bench.folder / "m.pftrace"), "--quiet"]
    merged = bench.cost(*merge)[0].cpu_s
    yield Line("merge of four over converting them", merged / (4 * alone), "", f"{merged:.2f} CPU s")
    out = bench.folder / "job"
    whole = bench.cost(*RUN, str(ranks), "-o", str(out), "--quiet", "--threads", "1", fresh=out)[0].cpu_s
    again = bench.cost(*RUN, str(ranks), "-o", str(out), "--quiet", "--threads", "1", "--jobs", "1")[0].cpu_s
    yield Line("conclusion of a job over its conversion", again / whole, "", f"{again:.2f} of {whole:.2f} CPU s")


def round_trip(bench: Bench) -> Iterator[Line]:
    """A trace there and back through the service, beside the command."""
    try:
        from service import running, send
    except ImportError as error:
        yield Line("service: wall there and back over the command's", None, "", f"left out: {error}")
        return
    trace = simulated("20MB")
    alone = bench.run(trace, "--threads", "1")[0]
    folder = bench.folder / "service"
    folder.mkdir()
    with running(folder) as server:
        took = []
        for number in range(bench.runs):
            from service import variant

            copy = variant(trace, folder / f"rank{number}.json.gz", number)
            began = time.perf_counter()
            send(server.address, copy, folder / f"there{number}")
            took.append(time.perf_counter() - began)
    of = f"{min(took):.2f} of {alone.wall_s:.2f} s, 20 MB; its workers have started"
    yield Line("service: wall there and back over the command's", min(took) / alone.wall_s, "", of)


PARTS: tuple[Callable[[Bench], Iterator[Line]], ...] = (recorded, one_file, native_format, several_files, round_trip)


def main(arguments: list[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="1.5GB", help="of the large simulated trace, as text")
    parser.add_argument("--small", default="200MB", help="of the smaller one")
    parser.add_argument("--trace", type=Path, help="instead of the large one: this .json.gz file")
    parser.add_argument("--only", default="", help=f"one of {', '.join(part.__name__ for part in PARTS)}")
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="print JSON")
    chosen = parser.parse_args(arguments)
    warm_up()
    lines = []
    with tempfile.TemporaryDirectory(dir=cache()) as name:
        large = chosen.trace.resolve() if chosen.trace else simulated(chosen.size)
        bench = Bench(large, simulated(chosen.small), Path(name), chosen.runs)
        for part in PARTS:
            for line in part(bench) if chosen.only in ("", part.__name__) else ():
                lines.append(line)
                if not chosen.json:
                    value = "–" if line.value is None else f"{line.value:.2f}"
                    print(f"{line.what:48} {value:>7}  {line.goal:18} {line.of}", flush=True)
    if chosen.json:
        print(json.dumps([asdict(line) for line in lines], indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
