"""How often the gate is wrong: over many seeds, jobs that are equal but for jitter, and jobs that are slower.

    python benchmarks/gate_power.py [--seeds 100] [--steps 6] [--slower 5]

Prints of how many seeds the gate kept silent on equal jobs, and of how many it caught the slower one; exits with 1 if
either is below 95 %.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "examples")]

import augment  # noqa: E402
from augment.comparison.gate import check  # noqa: E402
from augment.comparison.totals import Samples, samples_of  # noqa: E402
from augment.derived.step_windows import step_windows  # noqa: E402
from simulator import JobOptions, simulate  # noqa: E402


def samples(folder: str, seed: int, steps: int, work: float = 1.0, jitter: float = 0.05) -> Samples:
    """The figures of each step of a simulated job."""
    options = JobOptions(ranks=1, steps=steps, layers=2, seed=seed, work=work, jitter=jitter)
    ((path, _),) = simulate(options, folder)
    trace = augment.read(str(path), engine="general")
    return samples_of(trace, step_windows(trace))


def work_for(folder: str, slower: float) -> float:
    """How much longer kernels must be for steps, which are not kernels alone, to be ``slower``: without jitter."""
    base, more = (float(samples(folder, 0, 2, work, jitter=0.0)["step_ns"].mean()) for work in (1.0, 1 + slower))
    return 1 + slower * slower / (more / base - 1)


def fails(control: Samples, test: Samples) -> list[str]:
    """The figures that fail."""
    return [line.figure.name for line in check(control, test) if line.status == "fail"]


def main() -> int:
    """Count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--slower", type=float, default=5, help="per cent")
    asked = parser.parse_args()
    silent = caught = 0
    with tempfile.TemporaryDirectory() as folder:
        work = work_for(folder, asked.slower / 100)
        for seed in range(asked.seeds):
            control = samples(folder, 3 * seed, asked.steps)
            silent += not (alarms := fails(control, samples(folder, 3 * seed + 1, asked.steps)))
            if alarms:
                print(f"seed {seed}: false alarm of {', '.join(alarms)}")
            found = fails(control, samples(folder, 3 * seed + 2, asked.steps, work))
            caught += "step_ns" in found
            if "step_ns" not in found:
                print(f"seed {seed}: missed")
    print(f"silent on equal jobs: {silent} of {asked.seeds}; caught {asked.slower:g} %: {caught} of {asked.seeds}")
    return 0 if min(silent, caught) >= 0.95 * asked.seeds else 1


if __name__ == "__main__":
    raise SystemExit(main())
