"""Two fronts, three workers, PostgreSQL and a store (SeaweedFS), each killed at random moments.

Meanwhile four clients upload, run jobs of one trace and whole jobs, and watch; a worker also stalls beyond its lease
and goes on. Exits 1 if anything is lost, done twice, or not as the command's. ``--kills``: of each kind.

python benchmarks/service_kills.py [--kills 50] [--stalls 10] [--jobs 400] [--ranks 64] [--seed 1]
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / part) for part in ("", "server", "tests/server", "tests/support")]

import killing  # noqa: E402
from postgres_cluster import cluster  # noqa: E402


def main() -> int:
    """Run it; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("kills", 50), ("stalls", 10), ("jobs", 400), ("ranks", 64), ("seed", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    asked = parser.parse_args()
    killing.PATIENCE_S = 20.0 * asked.ranks  # which a whole job takes while all around it is killed
    kills = ["front", "worker", "postgres", "store"] * asked.kills + ["stall"] * asked.stalls
    random.Random(asked.seed).shuffle(kills)
    with tempfile.TemporaryDirectory() as folder, cluster() as catalog:
        tally = killing.Storm(Path(folder), catalog, asked.ranks, asked.seed).run(kills, asked.jobs)
    print(tally)
    return int(bool(tally.lost or tally.twice or tally.wrong or tally.errors))


if __name__ == "__main__":
    sys.exit(main())
