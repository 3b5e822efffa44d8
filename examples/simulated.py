"""Write the small traces with GPU work of ``examples/simulated/``, which tests read.

    python examples/simulated.py [DIR]

The same version of the simulator writes the same texts: ``tests/simulator/test_simulated.py`` compares them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from simulator import JobOptions, simulate

FOLDER = Path(__file__).resolve().parent / "simulated"
#: what each folder of traces shows
JOBS = {
    "one_gpu": JobOptions(ranks=1, steps=2, layers=2, collectives="none", stacks=True, memory=True),
    "counters": JobOptions(
        ranks=1, steps=2, layers=2, collectives="none", gpu="A100", layout="lines", counters=True, seed=1
    ),
    "backlog": JobOptions(
        ranks=1, steps=4, layers=1, collectives="none", run_ahead=2, record_from=(1.4,), side_streams=1, seed=2
    ),
    "job": JobOptions(ranks=2, steps=2, layers=2, straggler=1, clock_offset_ns=(0, 150_000), seed=3),
}


def write(folder: Path) -> list[Path]:
    """Write all traces below ``folder``; their paths."""
    return [path for name, options in JOBS.items() for path, _ in simulate(options, folder / name)]


def main(arguments: Sequence[str]) -> int:
    """Print what was written. The truth of each rank, which tests do not read, is removed."""
    folder = Path(arguments[0]) if arguments else FOLDER
    for path in write(folder):
        print(path)
    for truth in folder.glob("*/*.truth.json"):
        truth.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
