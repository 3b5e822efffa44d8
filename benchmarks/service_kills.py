"""Two servers on one catalog and one folder; servers, workers and PostgreSQL are killed. Exits 1 if anything is lost.

python benchmarks/service_kills.py [--kills 50] [--jobs 400] [--seed 1]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / part) for part in ("", "server", "tests/server", "tests/support")]

from killing import storm  # noqa: E402
from postgres_cluster import cluster  # noqa: E402


def main() -> int:
    """Run it; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("kills", 50), ("jobs", 400), ("seed", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, cluster() as catalog:
        tally = storm(Path(folder), catalog, kills=asked.kills, jobs=asked.jobs, seed=asked.seed)
    print(tally)
    return int(bool(tally.lost or tally.twice or tally.wrong))


if __name__ == "__main__":
    sys.exit(main())
