from __future__ import annotations

import gzip
import json
import statistics
from collections import defaultdict
from pathlib import Path

import pytest

from augment.analyses import user_annotation_breakdown
from augment.core.trace import Category, Track
from augment.readers import read
from simulator import JobOptions, simulate
from tables import Event, annotation, kernel, rows_of, trace_of


def on_gpu(name: str, ts: int, end: int, device: int = 0) -> Event:
    return Event(Category.GPU_USER_ANNOTATION, name, ts, end, Track(0, device, 7, device, 7))


def test_both_sides_by_name() -> None:
    trace = trace_of(
        annotation("a", 0, 100), annotation("b", 10, 20, thread=2), annotation("a", 110, 120, thread=3),
        on_gpu("a", 50, 90), on_gpu("a", 50, 80, device=1), kernel("a", 0, 1),
    )  # fmt: skip
    assert rows_of(user_annotation_breakdown.analyze(trace),
                   "side", "device", "name", "count", "sum_ns", "mean_ns", "min_ns", "max_ns") == [
        ("cpu", None, "a", 2, 110, 55, 10, 100),
        ("cpu", None, "b", 1, 10, 10, 10, 10),
        ("gpu", 0, "a", 1, 40, 40, 40, 40),
        ("gpu", 1, "a", 1, 30, 30, 30, 30),
    ]  # fmt: skip
    assert rows_of(user_annotation_breakdown.analyze(trace), "std_ns")[:2] == [(pytest.approx(63.63961),), (0,)]


def test_a_simulated_job_by_a_plain_loop(tmp_path: Path) -> None:
    ((path, _),) = simulate(JobOptions(ranks=1, steps=3, layers=2), tmp_path)
    durations: dict[tuple[str, str], list[int]] = defaultdict(list)
    sides = {"user_annotation": "cpu", "gpu_user_annotation": "gpu"}
    for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]:
        if event["ph"] == "X" and event["cat"] in sides:
            durations[sides[event["cat"]], event["name"]].append(round(event["dur"] * 1000))
    rows = user_annotation_breakdown.analyze(read(str(path))).rows
    assert len(rows) == len(durations)
    for row in rows:
        part = durations[row.side, row.name]
        assert (row.count, row.sum_ns, row.min_ns, row.max_ns) == (len(part), sum(part), min(part), max(part))
        assert row.std_ns == pytest.approx(statistics.stdev(part) if len(part) > 1 else 0)
