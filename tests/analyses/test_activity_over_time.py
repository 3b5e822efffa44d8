"""A trace in little: what each part of it holds, against hand-made traces and sums of other analyses."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from augment import augment
from augment.analyses import activity_over_time
from augment.core.findings import Skipped
from augment.readers import read
from simulator import JobOptions, simulate
from tables import call, kernel, rows_of, trace_of


def test_parts_of_a_device() -> None:
    trace = trace_of(
        call("cudaLaunchKernel", 0, 2, correlation=1),
        call("cudaLaunchKernel", 5, 6, correlation=2),
        kernel("a", 10, 25, correlation=1),
        kernel("b", 20, 40, correlation=2, stream=8),
    )
    findings = activity_over_time.analyze(trace, part_count=4)
    assert rows_of(findings, "part", "start_ns", "dur_ns", "busy_ns", "launch_count", "queued_count") == [
        (0, 0, 10, 0, 2, 1),
        (1, 10, 10, 10, 0, 1),
        (2, 20, 10, 10, 0, 0),
        (3, 30, 10, 10, 0, 0),
    ]


def test_no_more_parts_than_nanoseconds() -> None:
    findings = activity_over_time.analyze(trace_of(kernel("a", 10, 13)))
    assert rows_of(findings, "part", "busy_ns", "queued_count", "allocated_bytes") == [
        (part, 1, None, None) for part in range(3)
    ]
    assert isinstance(activity_over_time.analyze(trace_of(kernel("a", 10, 10))), Skipped)


@pytest.mark.parametrize("parts", [1, 7, 120])
def test_parts_add_up_to_other_analyses(parts: int, tmp_path: Path) -> None:
    path = simulate(JobOptions(ranks=1, steps=3, layers=2, run_ahead=2, record_from=(1.4,)), tmp_path)[0][0]
    asked = ["activity_over_time", "temporal_breakdown", "launch_statistics", "queue_length"]
    outcomes = augment(read(str(path)), only=asked, options={asked[0]: {"part_count": parts}}).outcomes
    over_time, whole, launches, queues = (outcomes[name] for name in asked)
    assert len(over_time.rows) == parts
    assert sum(row.busy_ns for row in over_time.rows) == sum(row.busy_ns for row in whole.rows)
    assert sum(row.launch_count for row in over_time.rows) == sum(row.launch_count for row in launches.rows)
    assert max(row.queued_count for row in over_time.rows) == max(row.max for row in queues.rows)
    edges = [(row.start_ns, row.start_ns + row.dur_ns) for row in over_time.rows]
    assert all(end == start for (_, end), (start, _) in pairwise(edges))
