"""CPU of reading, analysing and writing beside that of another commit, as ratios: medians of alternating processes.

    python benchmarks/against.py COMMIT [--rounds 5] [--size 50MB] [--trace FILE …]

CPU is user + system of all threads, the least of five times, in a process that has done the same on a small trace
before: what is loaded or compiled at first use is no part of it, and other work on the machine disturbs it little. Only
analyses that both commits have are run. The other commit is checked out beside the cached traces and runs with this
Python and its packages.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from bench import ROOT, cache, simulated

STAGES = ("read", "analyse", "chrome", "perfetto", "read native", "perfetto of native")
WORK = """
import json, sys, tempfile, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from augment.analyses import ANALYSES
from augment.pipeline import augment
from augment.readers import read
from augment.writers import write_all

def stages(path, only, folder):
    clocks = [time.process_time()]
    def passed(value):
        clocks.append(time.process_time())
        return value
    analysed = passed(augment(passed(read(path)), only=only))
    passed(write_all(analysed, folder, ["chrome"]))
    (native, *_) = passed(write_all(analysed, folder, ["perfetto"]))
    del analysed
    again = augment(passed(read(str(native))), only=only[:1])
    clocks[-1:] = [clocks[-1], time.process_time()]
    passed(write_all(again, folder / "again", ["perfetto"]))
    spent = [after - before for before, after in zip(clocks, clocks[1:])]
    return spent[:5] + spent[6:]

if len(sys.argv) == 2:
    print(json.dumps([analysis.NAME for analysis in ANALYSES]))
else:
    with tempfile.TemporaryDirectory() as name:
        only = json.loads(sys.argv[4])
        stages(sys.argv[3], only, Path(name))
        print(json.dumps([min(spent) for spent in zip(*(stages(sys.argv[2], only, Path(name)) for _ in range(5)))]))
"""


def run(tree: Path, *arguments: str) -> list[str] | list[float]:
    """What the work prints in a tree."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [sys.executable, "-c", WORK, str(tree), *arguments]
    return json.loads(subprocess.check_output(command, cwd=tree, env=environment))  # type: ignore[no-any-return]


def compare(other: Path, trace: Path, rounds: int) -> None:
    """Print the ratios for a trace."""
    names = [set(run(tree)) for tree in (ROOT, other)]
    arguments = str(trace), str(simulated("1MB")), json.dumps(sorted(set.intersection(*names)))  # type: ignore[type-var]
    spent: dict[Path, list[list[float]]] = {ROOT: [], other: []}
    for number in range(-1, rounds):
        for tree in (ROOT, other) if number % 2 else (other, ROOT):
            stages = run(tree, *arguments)
            if number >= 0:  # the first round fills caches
                spent[tree].append(stages)  # type: ignore[arg-type]
    print(
        f"{trace.name}: {rounds} rounds",
        f"{'stage':20} {'now s':>8} {'then s':>8} {'ratio':>7}  of each round",
        sep="\n",
    )
    for place, stage in enumerate(STAGES):
        now, then = ([each[place] for each in spent[tree]] for tree in (ROOT, other))
        ratios = sorted(a / b for a, b in zip(now, then, strict=True))
        medians = f"{statistics.median(now):8.2f} {statistics.median(then):8.2f} {statistics.median(ratios):7.2f}"
        print(f"{stage:20} {medians}  {' '.join(f'{ratio:.2f}' for ratio in ratios)}")


def main() -> None:
    """See the top of this file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--size", default="50MB")
    parser.add_argument("--trace", type=Path, action="append", default=[])
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=cache()) as name:
        other = Path(name) / "other"
        subprocess.run(
            ["git", "worktree", "add", "--quiet", "--detach", str(other), chosen.commit], cwd=ROOT, check=True
        )
        try:
            for trace in chosen.trace or [simulated(chosen.size)]:
                compare(other, trace.resolve(), chosen.rounds)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(other)], cwd=ROOT, check=True)


if __name__ == "__main__":
    main()
