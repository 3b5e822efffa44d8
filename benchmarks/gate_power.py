"""How often the gate is wrong: false alarms and power over many draws of steps, of six kinds and several numbers.

    python benchmarks/gate_power.py [--draws 500] [--jitter 2] [--below 3] [--slower 10] [--steps 3,4,6,10]

Each draw is a baseline, an equal run, one that is slower by less than the limit of 5 % and one that is slower by more.
The kinds, all with independent jitter on each step:

    equal         nothing else
    warm-up       the first step takes 2.5 times as long, give or take 10 % in each run
    drifting      each step takes 2 % longer than the one before, in all runs
    heavy-tailed  one step in ten takes longer by 30 % on average (exponentially distributed), in each run another
    outliers      one step in twenty takes twice as long, in each run another
    alike         steps vary by 20 %, in all runs alike: their lengths depend on the data

Prints of the equal runs what share failed (false alarms) and could not be told, of those below the limit what share
failed, and of the slower ones what share was caught, could not be told, and passed (missed). Exits with 1 if false
alarms or misses are more than 5 of 100 anywhere. Takes some minutes.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

from augment.compare.compared_steps import without_outlying_first_step  # noqa: E402
from augment.compare.gate import check  # noqa: E402
from augment.compare.totals import Floats, Samples  # noqa: E402

Random = np.random.Generator
MOST = 0.05  #: of false alarms, and of misses
STEP_NS = 1e8


def warm_up(random: Random, _: Random, steps: int) -> Floats:
    """A first step of its own in each run."""
    first = np.zeros(steps)
    first[0] = np.log(2.5) + random.normal(0, 0.1)
    return first


def heavy_tailed(random: Random, _: Random, steps: int) -> Floats:
    """Now and then a long step."""
    return np.where(random.random(steps) < 0.1, random.exponential(0.3, steps), 0.0)


#: logarithms of factors on the steps, of a run's own random numbers and of those that runs have in common
KINDS: dict[str, Callable[[Random, Random, int], Floats]] = {
    "equal": lambda _, __, steps: np.zeros(steps),
    "warm-up": warm_up,
    "drifting": lambda _, __, steps: np.log(1.02) * np.arange(steps),
    "heavy-tailed": heavy_tailed,
    "outliers": lambda random, _, steps: np.where(random.random(steps) < 0.05, np.log(2), 0.0),
    "alike": lambda _, common, steps: common.normal(0, 0.2, steps),
}


def run(kind: str, steps: int, seed: int, which: int, jitter: float, factor: float = 1.0) -> Samples:
    """The step times of one run; ``seed`` is common to the runs that are compared."""
    random, common = np.random.default_rng([seed, which]), np.random.default_rng([seed])
    logs = KINDS[kind](random, common, steps) + random.normal(0, jitter, steps)
    return {"wall_ns": STEP_NS * factor * np.exp(logs)}


def status(control: Samples, test: Samples) -> str:
    """What the gate says, as ``augment check`` asks it."""
    control, test, _ = without_outlying_first_step(control, test)
    return check(control, test)[0].status


def rates(kind: str, steps: int, draws: int, jitter: float, slower: float = 0.0, which: int = 1) -> Counter[str]:
    """How often each status came of runs that are ``slower`` by this share; ``which`` seeds them."""
    counts: Counter[str] = Counter()
    for seed in range(draws):
        control, test = run(kind, steps, seed, 0, jitter), run(kind, steps, seed, which, jitter, 1 + slower)
        counts[status(control, test)] += 1
    return counts


def main() -> int:
    """Count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=500)
    parser.add_argument("--jitter", type=float, default=2, help="per cent")
    parser.add_argument("--below", type=float, default=3, help="per cent, less than the limit")
    parser.add_argument("--slower", type=float, default=10, help="per cent, more than the limit")
    parser.add_argument("--steps", default="3,4,6,10")
    asked = parser.parse_args()
    print(
        f"of 100 runs with a jitter of {asked.jitter:g} %: equal, {asked.below:g} % slower, {asked.slower:g} % slower"
    )
    print("kind          steps    fails  cannot tell    fails    fails  cannot tell  passes")
    wrong = 0.0
    for kind in KINDS:
        for steps in map(int, asked.steps.split(",")):
            changes = (0.0, asked.below / 100, asked.slower / 100)
            equal, below, slow = (
                rates(kind, steps, asked.draws, asked.jitter / 100, change, which)
                for which, change in enumerate(changes, start=1)
            )
            counts = (equal["fail"], equal["uncertain"], below["fail"], slow["fail"], slow["uncertain"], slow["pass"])
            alarm, unsure, early, caught, unknown, missed = (100 * count / asked.draws for count in counts)
            print(
                f"{kind:13} {steps:5} {alarm:8.1f} {unsure:12.1f} {early:8.1f}"
                f" {caught:8.1f} {unknown:12.1f} {missed:7.1f}"
            )
            wrong = max(wrong, alarm, missed)
    return 1 if wrong > 100 * MOST else 0


if __name__ == "__main__":
    raise SystemExit(main())
