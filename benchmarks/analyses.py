"""What each analysis costs, and how the cost grows with the trace.

    python benchmarks/analyses.py [--size 1.5GB] [--growth 25MB,100MB,400MB] [--runs 3] [--json]

First: all analyses together beside the first seven, on one simulated trace, as CPU of the whole command and of the
analyses alone. Then each analysis alone, with all facts that it needs made anew, on traces of 1, 4 and 16 times a
size: CPU ns an event. What is linear stays level; the last column is the greatest over the middle size.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from bench import ROOT, augment_command, cache, measure, simulated, warm_up

FIRST = (
    "temporal_breakdown", "idle_time_breakdown", "communication_computation_overlap", "kernel_type_breakdown",
    "kernel_breakdown", "memory_bandwidth", "queue_length",
)  # fmt: skip
GROWTH = "25MB,100MB,400MB"
#: CPU s of each group of analyses, given as JSON; its facts are made anew
ALONE = """
import dataclasses, json, sys, time
import augment
from augment.analyses import ANALYSES
trace = augment.read(sys.argv[1])
groups = json.loads(sys.argv[2]) or {one.NAME: [one.NAME] for one in ANALYSES}
if not groups.get("all", True):
    groups["all"] = [one.NAME for one in ANALYSES]
augment.augment(trace.changed())  # what is loaded at the first call is no part of the figures
found = {}
for name, only in groups.items():
    part = trace.changed()
    began = time.process_time()
    augment.augment(part, only=only)
    found[name] = time.process_time() - began
print(json.dumps({"events": len(trace.events), "cpu_s": found}))
"""


@dataclass(frozen=True)
class Together:
    """All analyses beside the first seven, CPU s."""

    run_first_s: float
    run_all_s: float
    first_s: float
    all_s: float

    @property
    def run_ratio(self) -> float:
        """Of the whole command."""
        return self.run_all_s / self.run_first_s

    @property
    def ratio(self) -> float:
        """Of the analyses alone."""
        return self.all_s / self.first_s


def alone(path: Path, groups: dict[str, list[str]]) -> tuple[int, dict[str, float]]:
    """How many events there are, and the CPU s of each group of analyses; without groups, of each analysis."""
    command = [sys.executable, "-c", ALONE, str(path), json.dumps(groups)]
    figures = json.loads(subprocess.check_output(command, cwd=ROOT).splitlines()[-1])
    return figures["events"], figures["cpu_s"]


def together(path: Path, runs: int) -> Together:
    """The least of ``runs``: a busy machine only adds."""
    measured = []
    with tempfile.TemporaryDirectory(dir=cache()) as folder:
        command = augment_command(path, Path(folder))
        for _ in range(runs):
            first = measure([*command, "--only", ",".join(FIRST)]).cpu_s
            _, cpu = alone(path, {"first": list(FIRST), "all": []})
            measured.append((first, measure(command).cpu_s, cpu["first"], cpu["all"]))
    return Together(*map(min, zip(*measured, strict=True)))


def growth(sizes: list[str], runs: int) -> dict[str, list[float]]:
    """CPU ns an event of each analysis, at each size: the least of ``runs``."""
    costs: dict[str, list[float]] = {}
    for size in sizes:
        several = [alone(simulated(size), {}) for _ in range(runs)]
        for name in several[0][1]:
            costs.setdefault(name, []).append(min(1e9 * cpu[name] / events for events, cpu in several))
    return costs


def main(arguments: list[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="1.5GB", help="of the trace on which all are run together")
    parser.add_argument("--growth", default=GROWTH, metavar="SIZES", help="of the traces on which each is run alone")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print JSON")
    chosen = parser.parse_args(arguments)
    warm_up()
    both = together(simulated(chosen.size), chosen.runs)
    sizes = chosen.growth.split(",")
    costs = growth(sizes, chosen.runs)
    if chosen.json:
        print(
            json.dumps({"together": asdict(both) | {"ratio": both.ratio, "run_ratio": both.run_ratio}, "growth": costs})
        )
        return 0
    print(f"on {chosen.size}, CPU s:       first seven     all   ratio")
    print(f"{'augment run':28} {both.run_first_s:8.2f} {both.run_all_s:8.2f} {both.run_ratio:7.2f}")
    print(f"{'analyses alone':28} {both.first_s:8.2f} {both.all_s:8.2f} {both.ratio:7.2f}")
    print(f"\n{'CPU ns an event':34}" + "".join(f"{size:>9}" for size in sizes) + "    ratio")
    for name, ns in costs.items():
        print(f"{name:34.34}" + "".join(f"{value:9.1f}" for value in ns) + f"{ns[-1] / ns[len(ns) // 2]:9.2f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
