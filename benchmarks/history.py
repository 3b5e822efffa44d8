"""Years of simulated runs of six kinds: how many that never changed have a change, and how often a change is found.

    python benchmarks/history.py [--years 100] [--runs 200]

The goal is at most 5 % of years with a false change, of each kind; the exit code is 1 if it is missed.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

sys.path[:0] = [str(Path(__file__).parents[1] / folder) for folder in ("", "tests/history")]

from test_changes import KINDS, SPREAD, year  # noqa: E402

from augment.history.changes import changes  # noqa: E402

MOST = 0.05
SHIFTS = (1.5, 3.0, 5.0)  #: spreads


def main() -> int:
    """Measure and tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--years", type=int, default=100)
    parser.add_argument("--runs", type=int, default=200)
    chosen = parser.parse_args()
    missed = False
    for kind in KINDS:
        years = [year(kind, seed, chosen.runs) for seed in range(chosen.years)]
        false = np.mean([bool(changes(runs)) for runs in years])
        since, shares = chosen.runs * 3 // 5, []
        for shift in SHIFTS:
            for runs in (shifted := [runs.copy() for runs in years]):
                runs[since:] *= np.exp(shift * SPREAD)
            near = [any(abs(change.first - since) <= 12 for change in changes(runs)) for runs in shifted]
            shares.append(f"{shift:g} spreads {100 * np.mean(near):.0f} %")
        missed |= bool(false > MOST)
        print(f"{kind}: {100 * false:.0f} % of years with a false change; found: {', '.join(shares)}", flush=True)
    return int(missed)


if __name__ == "__main__":
    raise SystemExit(main())
