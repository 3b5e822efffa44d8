from __future__ import annotations

import gzip
import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from augment.analyses import launch_statistics
from augment.core.findings import Skipped
from augment.pipeline import augment
from augment.readers import read
from simulator import JobOptions, simulate
from tables import Event, call, copy, kernel, rows_of, trace_of


def row_of(*events: Event, **options: Any) -> Any:
    findings = launch_statistics.analyze(trace_of(*events), **options)
    (row,) = findings.rows
    return row


def test_a_launch_and_its_work() -> None:
    row = row_of(call("cudaLaunchKernel", 0, 60, correlation=1), kernel("k", 100, 130, correlation=1))
    assert (row.launch_count, row.call_count, row.short_kernel_count) == (1, 1, 1)
    assert (row.mean_cpu_ns, row.p50_cpu_ns, row.p99_cpu_ns, row.max_cpu_ns) == (60, 60, 60, 60)
    assert (row.max_gpu_ns, row.max_launch_delay_ns) == (30, 40)


def test_thresholds_are_exceeded_not_reached() -> None:
    events = (call("cudaLaunchKernel", 0, 60, correlation=1), kernel("k", 100, 160, correlation=1))
    options = {"runtime_cutoff_ns": 60, "launch_delay_cutoff_ns": 40}
    row = row_of(*events, **options)
    assert (row.short_kernel_count, row.runtime_outlier_count, row.launch_delay_outlier_count) == (0, 0, 0)
    row = row_of(*events, **{name: value - 1 for name, value in options.items()})
    assert (row.runtime_outlier_count, row.launch_delay_outlier_count) == (1, 1)


@pytest.mark.parametrize("name", ["cuLaunchKernelEx", "cudaGraphLaunch", "cudaLaunchCooperativeKernel",
                                  "hipExtModuleLaunchKernel", "urEnqueueKernelLaunch", "runFunction"])  # fmt: skip
def test_whatever_shares_the_correlation_is_a_launch(name: str) -> None:
    assert row_of(call(name, 0, 5, correlation=1), kernel("k", 9, 12, correlation=1)).launch_count == 1


def test_work_that_begins_before_its_launch_did_not_wait_and_is_counted() -> None:
    trace = trace_of(call("cudaLaunchKernel", 50, 60, correlation=1), kernel("k", 10, 30, correlation=1))
    findings = launch_statistics.analyze(trace)
    assert findings.rows[0].max_launch_delay_ns == 0
    assert [(diagnostic.code, diagnostic.count) for diagnostic in findings.diagnostics] == [("launch_after_kernel", 1)]
    rows = [diagnostic.code for diagnostic in augment(trace, only=["queue_length", "launch_statistics"]).diagnostics]
    assert rows == ["launch_after_kernel"], "two analyses see it, one line tells it"


def test_work_of_a_graph_shares_one_call() -> None:
    row = row_of(
        call("cudaGraphLaunch", 0, 10, correlation=1),
        *(kernel(f"k{number}", 20 + 10 * number, 25 + 10 * number, correlation=1) for number in range(5)),
    )
    assert (row.launch_count, row.call_count, row.max_launch_delay_ns, row.short_kernel_count) == (5, 1, 50, 5)


def test_streams_of_two_devices_are_two_and_copies_can_be_left_out() -> None:
    trace = trace_of(
        call("cudaMemcpyAsync", 0, 5, correlation=1),
        copy("Memcpy HtoD", 10, 20, 64, correlation=1),
        call("cudaLaunchKernel", 6, 8, correlation=2),
        kernel("k", 10, 20, device=1, correlation=2),
    )
    columns = ("device", "stream", "launch_count", "max_launch_delay_ns")
    assert rows_of(launch_statistics.analyze(trace), *columns) == [(0, 7, 1, 5), (1, 7, 1, 2)]
    assert rows_of(launch_statistics.analyze(trace, include_memory_events=False), *columns) == [(1, 7, 1, 2)]


def test_without_a_known_launch_it_is_skipped() -> None:
    trace = trace_of(call("cudaLaunchKernel", 0, 5, correlation=9), kernel("k", 9, 12, correlation=1))
    assert isinstance(launch_statistics.analyze(trace), Skipped)


def test_a_simulated_job_by_a_plain_loop(tmp_path: Path) -> None:
    ((path, truth),) = simulate(JobOptions(ranks=1, steps=3, layers=2, host_stall_us=700.0), tmp_path)
    outcome = launch_statistics.analyze(read(str(path)))
    result = {str(row.stream): row for row in outcome.rows}
    events = [event for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"] if event["ph"] == "X"]
    calls = {event["args"]["correlation"]: event for event in events if event["cat"] in ("cuda_runtime", "cuda_driver")}
    for known in truth["launch_statistics"]:
        row = result[known["stream"]]
        assert all(getattr(row, name) == known[name] for name in known if name not in ("device", "stream"))
        work = [each for each in events if each["args"].get("stream") == row.stream and "gpu_user" not in each["cat"]]
        cpu = [calls[each["args"]["correlation"]]["dur"] * 1000 for each in work]
        assert row.mean_cpu_ns == pytest.approx(statistics.fmean(cpu))
        assert row.p50_gpu_ns == pytest.approx(statistics.median(each["dur"] * 1000 for each in work))
        if len(work) > 1:
            quantiles = statistics.quantiles(cpu, n=100, method="inclusive")
            assert row.p99_cpu_ns == pytest.approx(quantiles[98])
