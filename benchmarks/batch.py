"""Batches: ranks per minute with one process and with two, and what killing a batch of many ranks costs.

    python benchmarks/batch.py [--ranks 1000] [--kills 10] [--size 20MB] [--count 12]

Two batches, of many tiny ranks and of some of ``--size`` of text, each converted anew with ``--jobs 1`` and with
``--jobs 2``: ranks a minute of wall time, CPU time of all processes, and whether the outputs are equal. Then each
merged into one timeline: CPU time, speed, memory. Then the memory of one process along the many ranks. Then these
again with two processes, killed (SIGKILL) at random moments and started again until all is done: how many conversions
were begun, and how many the manifest tells of.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from bench import ROOT, cache, measure, simulated, text_length, warm_up

sys.path.insert(0, str(ROOT / "tests" / "batch"))
sys.path.insert(0, str(ROOT / "examples"))
from many_ranks import like, write_ranks

JOBS = 2
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests" / "batch")])}
SCRIPT = ROOT / "tests" / "batch" / "counted_batch.py"


def contents(folder: Path) -> dict[str, bytes]:
    """What was made of the inputs."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix != ".jsonl"}


def throughput(title: str, source: Path, folder: Path) -> None:
    """Both numbers of processes, and whether they do the same."""
    count = len(list(source.iterdir()))
    made = []
    for jobs in (1, JOBS):
        out = folder / f"{source.name}-{jobs}"
        command = [sys.executable, "-m", "augment", "run", str(source), "-o", str(out), "--jobs", str(jobs), "--quiet"]
        usage = measure(command)
        made.append(contents(out))
        print(
            f"{title}, --jobs {jobs}: {count * 60 / usage.wall_s:,.0f} ranks/min, "
            f"{usage.cpu_s * 1000 / count:.0f} CPU ms a rank"
        )
    print(f"{title}: outputs {'equal' if made[0] == made[1] else 'DIFFER'}")


def merging(title: str, source: Path, folder: Path) -> None:
    """What ``augment merge`` of all the ranks costs, with every analysis; each rank is read twice for it."""
    paths = list(source.iterdir())
    out = folder / f"{source.name}.pftrace"
    usage = measure([sys.executable, "-m", "augment", "merge", str(source), "-o", str(out), "--all", "--quiet"])
    text = text_length(paths[0]) * len(paths)  # they differ by their ranks' numbers alone
    speed = text / 1e6 / usage.cpu_s
    print(
        f"{title}, merged: {usage.cpu_s * 1000 / len(paths):.0f} CPU ms a rank, {speed:.0f} MB of text per CPU s, "
        f"peak {usage.rss_bytes / 1e6:.0f} MB; {out.stat().st_size / 1e6:.1f} MB written"
    )


def killed(source: Path, folder: Path, kills: int) -> None:
    """Kill and start again until the batch is complete."""
    out, log = folder / "killed", folder / "log"
    by_chance, left = random.Random(), kills
    began = time.perf_counter()
    while True:
        command = [sys.executable, SCRIPT, log, str(JOBS), source, out]
        process = subprocess.Popen(command, env=ENVIRONMENT, stderr=subprocess.DEVNULL)
        try:
            code = process.wait(by_chance.uniform(1, 8) if left else None)
            break
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            left -= 1
    took = time.perf_counter() - began
    manifest = (out / "augment-manifest.jsonl").read_text().splitlines()
    recorded = [json.loads(line) for line in manifest if line.endswith("}")]
    counts = Counter(line["input"] for line in recorded if line["status"] != "concluded")
    lines = [line.split() for line in log.read_text().splitlines()]
    begun = Counter(name for name, *_ in lines if name != "end")
    count = len(list(source.iterdir()))
    print(
        f"killed {kills - left} times: exit {code} after {took:.0f} s; {len(counts)} of {count} ranks done, "
        f"{sum(counts.values()) - len(counts)} told of twice, {sum(begun.values()) - count} begun again; "
        f"largest process {max(int(peak) for *_, peak in lines) / 1024:.0f} MB"
    )


def growth(source: Path, folder: Path) -> None:
    """The memory of one process along the batch."""
    log = folder / "log1"
    subprocess.run([sys.executable, SCRIPT, log, "1", source, folder / "growth"], env=ENVIRONMENT, check=True)
    peaks = [int(line.split()[2]) for line in log.read_text().splitlines()[:-1]]
    marks = [len(peaks) // 100, len(peaks) // 10, len(peaks) // 2, len(peaks) - 1]
    text = ", ".join(f"{peaks[at] / 1024:.0f} MB after {at + 1}" for at in marks)
    print(f"peak memory of one process: {text}")


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=1000)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--size", default="20MB")
    parser.add_argument("--count", type=int, default=12)
    wanted = parser.parse_args()
    warm_up()
    with tempfile.TemporaryDirectory(dir=cache()) as name:
        folder = Path(name)
        tiny, large = folder / "tiny", folder / "large"
        write_ranks(tiny, wanted.ranks)
        like(simulated(wanted.size), large, wanted.count)
        throughput(f"{wanted.ranks} ranks of 75 KB", tiny, folder)
        throughput(f"{wanted.count} ranks of {wanted.size}", large, folder)
        merging(f"{wanted.ranks} ranks of 75 KB", tiny, folder)
        merging(f"{wanted.count} ranks of {wanted.size}", large, folder)
        growth(tiny, folder)
        killed(tiny, folder, wanted.kills)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
