"""How often the diagnosis is right: faults are simulated alone, in pairs and not at all, over seeds.

    python benchmarks/diagnosis.py [--seeds 100] [--first 0]

For each fault: in how many of the seeds in which its cure would save at least 6 % its rule fires (``warning`` or
graver), and by how many percentage points of a step the predicted saving differs from that of the same job without the
fault. For pairs the same for each of the two. For healthy jobs: every finding that is a warning or graver. The
parameters of the jobs are drawn anew for each seed.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter, defaultdict
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "examples"), str(ROOT / "tests" / "diagnosis")]

from simulated_jobs import changed, diagnosis_of, severities, trace_of  # noqa: E402

from augment.diagnosis.judging import measure  # noqa: E402

#: each fault: its rule, what it changes, and in which jobs it matters
FAULTS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "slow loader": ("data_loading", {"host_stall_us": 20_000.0}, {}),
    "items": ("synchronizing_calls", {"faults": ("items",)}, {"work": 0.15, "collectives": "none"}),
    "pageable": ("pageable_copies", {"faults": ("pageable",)}, {"work": 0.1, "collectives": "none",
                                                            "faults": ("inline_copy",)}),
    "mallocs": ("allocator_calls", {"faults": ("mallocs",)}, {"work": 0.15, "collectives": "none"}),
    "pauses": ("host_gaps", {"faults": ("pauses",)}, {"work": 0.4, "collectives": "none"}),
    "short kernels": ("launch_bound", {"graphs": False}, {"work": 0.05, "graphs": True, "run_ahead": None,
                                                         "collectives": "none"}),
    "single operations": ("elementwise_chains", {"faults": ("single_operations",)}, {}),
    "unfused optimizer": ("unfused_optimizer", {"faults": ("unfused_optimizer",)}, {"work": 0.6}),
    "plain products": ("matrix_units", {"faults": ("plain_products",)}, {}),
    "staged copies": ("exposed_copies", {"faults": ("staged",)}, {"work": 0.1, "collectives": "none"}),
    "late copies": ("exposed_copies", {"faults": ("late_copies",)}, {}),
    "slow links": ("exposed_communication", {"collectives": "ddp"}, {"gpu": "T4", "collectives": "none"}),
}  # fmt: skip
MATTERS = 0.06  #: share of a step; a warning begins at 5 %
PAIRS = ("slow loader", "single operations", "plain products", "late copies", "unfused optimizer")


def drawn(seed: int) -> dict[str, Any]:
    """What differs from seed to seed in every job."""
    random = np.random.default_rng([seed, 4711])
    return {
        "seed": seed,
        "layers": int(random.integers(3, 7)),
        "steps": int(random.integers(4, 8)),
        "jitter": float(random.uniform(0.01, 0.08)),
        "gpu": str(random.choice(["H100", "A100"])),
        "cross_ns": int(random.choice([0, 0, 20_000])),
        "side_streams": int(random.choice([0, 0, 2])),
    }


def healthy(seed: int) -> Any:
    """A job with nothing wrong: hidden communication, a host that runs ahead."""
    return changed(**{**drawn(seed), "collectives": ("ddp", "fsdp", "none")[seed % 3]})


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    seeds = range(options.first, options.first + options.seeds)
    hits: Counter[str] = Counter()
    errors: dict[str, list[float]] = defaultdict(list)
    wrong: list[str] = []
    asked: Counter[str] = Counter()
    for seed in seeds:
        wrong += [f"seed {seed}: {rule} ({level})" for rule, level in severities(healthy(seed)).items()]
        for name, (rule, fault, job) in FAULTS.items():
            cured = {**drawn(seed), **job}
            faulty = changed(**{**cured, **fault})
            true = gain(faulty, changed(**cured))
            for finding in diagnosis_of(faulty).findings:
                if finding.rule == rule and finding.saved_ratio is not None:
                    errors[name].append(100 * (finding.saved_ratio - true))
            if true >= MATTERS:
                asked[name] += 1
                hits[name] += rule in severities(faulty)
        for pair in combinations(PAIRS, 2):
            judge_pair(seed, pair, asked, hits)
        trace_of.cache_clear()
    report(errors, asked, hits)
    print(f"healthy jobs: {len(wrong)} false findings in {len(seeds)}: {'; '.join(wrong) or 'none'}")
    return 0


def judge_pair(seed: int, pair: tuple[str, ...], asked: Counter[str], hits: Counter[str]) -> None:
    """Count of each fault of a pair whether it is found, if its cure alone would matter."""

    def job(*names: str) -> Any:
        merged: dict[str, Any] = {**drawn(seed), "run_ahead": None}
        for name in names:
            merged |= {key: value for key, value in FAULTS[name][1].items() if key != "faults"}
        merged["faults"] = tuple(fault for name in names for fault in FAULTS[name][1].get("faults", ()))
        return changed(**merged)

    both = job(*pair)
    for name, other in (pair, pair[::-1]):
        if gain(both, job(other)) >= MATTERS:
            label = f"{name}, with {other}"
            asked[label] += 1
            hits[label] += FAULTS[name][0] in severities(both)


def gain(faulty: Any, cured: Any) -> float:
    """The share of a step that the cure saves."""
    before, after = (measure(trace_of(each)).length_ns for each in (faulty, cured))
    return 1 - after / before


def report(errors: dict[str, list[float]], asked: Counter[str], hits: Counter[str]) -> None:
    """Print a line for each fault."""
    print(f"{'fault':42} {'found':>9} {'error of the saving, points: median, worst':>44}")
    for name in asked:
        error = np.array(errors.get(name) or [np.nan])
        worst = error[np.argmax(np.abs(error))]
        text = f"{np.median(error):+30.1f} {worst:+13.1f}" if name in errors else ""
        print(f"{name:42} {hits[name]:4}/{asked[name]:<4} {text}")
    print(f"all: {sum(hits.values())} of {sum(asked.values())} found")


if __name__ == "__main__":
    raise SystemExit(main())
