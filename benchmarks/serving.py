"""Simulated engines with known truth: how many faults are named, and how often a healthy one is accused.

make bench-serving [ARGS=100]: so many servers of each kind, and half as many jobs of ranks that share experts. Exits
with 1 below 95 % or with a false finding.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from augment.diagnosis.ranking import diagnose
from serving import RULES, counts, healthy, is_found, serve, serve_experts, told_of_experts, with_fault

LEAST_RECALL = 0.95


def main(count: int) -> int:
    """Print a line a rule."""
    accused = Counter(
        each.rule
        for seed in range(count)
        for each in diagnose(serve(replace(healthy(seed), hiccups=()))).findings
        if each.is_grave or counts(each)
    )
    print(f"{count} healthy servers: {sum(accused.values())} false findings of any rule {dict(accused) or ''}")
    failed = bool(accused)
    for rule in RULES:
        named = Counter(name for seed in range(count) for name in is_found(with_fault(rule, 10_000 + seed)))
        beside = {name: times for name, times in named.items() if name != rule}
        print(f"{rule:22} {named[rule]:4} of {count} named; beside them {beside or 'nothing'}")
        failed |= named[rule] < LEAST_RECALL * count
    jobs = max(count // 2, 1)
    for what, hot, expected in (
        ("experts in balance", None, []),
        ("a rank's hot experts", 2, [(2, True)]),
        ("a slow device", 1, [(1, False)]),
    ):
        right = 0
        for seed in range(jobs):
            with tempfile.TemporaryDirectory() as folder:
                paths = serve_experts(Path(folder), 20_000 + seed, hot, device=expected == [(1, False)])
                right += told_of_experts(paths) == expected
        print(f"{what:22} {right:4} of {jobs} jobs judged right")
        failed |= right < (LEAST_RECALL if hot else 1) * jobs
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 100))
