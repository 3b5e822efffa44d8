from __future__ import annotations

from pathlib import Path
from typing import Any

from augment.analyses import launch_outliers
from augment.derived.gpu_work import gpu_work
from augment.readers import read
from simulator import JobOptions, simulate
from tables import Event, call, copy, kernel, op, rows_of, trace_of

CUTOFFS = {"runtime_cutoff_ns": 50, "launch_delay_cutoff_ns": 100}


def outliers_of(*events: Event, **options: Any) -> list[tuple[Any, ...]]:
    outcome = launch_outliers.analyze(trace_of(*events), **CUTOFFS, **options)
    return rows_of(outcome, "kind", "name", "launch_name", "ts_ns", "cpu_ns", "gpu_ns", "launch_delay_ns")


def test_each_kind_is_named() -> None:
    events = (
        op("aten::mm", 0, 90),
        call("cudaLaunchKernel", 10, 70, correlation=1), kernel("slow call", 80, 400, correlation=1),
        call("cudaLaunchKernel", 71, 76, correlation=2), kernel("late", 400, 420, correlation=2),
        call("cudaLaunchKernel", 77, 90, correlation=3), kernel("short", 95, 98, stream=9, correlation=3),
    )  # fmt: skip
    assert outliers_of(*events) == [
        ("short_kernel", "short", "cudaLaunchKernel", 77, 13, 3, 5),
        ("runtime_outlier", "slow call", "cudaLaunchKernel", 10, 60, 320, 10),
        ("launch_delay_outlier", "late", "cudaLaunchKernel", 71, 5, 20, 324),
    ]
    rows = rows_of(launch_outliers.analyze(trace_of(*events), **CUTOFFS), "stream", "operator", "correlation")
    assert rows == [(9, "aten::mm", 3), (7, "aten::mm", 1), (7, "aten::mm", 2)]


def test_the_worst_come_first_and_their_number_is_bounded() -> None:
    events = [call("cudaLaunchKernel", 1000 * n, 1000 * n + 60 + n % 4, correlation=n) for n in range(9)]
    events += [kernel(f"k{n}", 1000 * n + 100, 1000 * n + 900, correlation=n) for n in range(9)]
    assert [(row[1], row[4]) for row in outliers_of(*events, most_count=5)] == [
        ("k3", 63), ("k7", 63), ("k2", 62), ("k6", 62), ("k1", 61)
    ]  # fmt: skip


def test_a_graph_is_one_call_and_short_only_as_a_whole() -> None:
    launched = [kernel(f"k{n}", 90 - 10 * n, 95 - 10 * n, stream=n, correlation=1) for n in range(5)]
    assert outliers_of(call("cudaGraphLaunch", 0, 20, correlation=1), *launched) == []
    assert outliers_of(call("cudaGraphLaunch", 0, 30, correlation=1), *launched) == [
        ("short_kernel", "k4", "cudaGraphLaunch", 0, 30, 25, 20)
    ]


def test_copies_can_be_left_out() -> None:
    events = (call("cudaMemcpyAsync", 0, 20, correlation=1), copy("Memcpy HtoD", 30, 32, correlation=1))
    assert len(outliers_of(*events)) == 1
    assert outliers_of(*events, include_memory_events=False) == []


def test_a_simulated_job_by_a_plain_loop(tmp_path: Path) -> None:
    ((path, _),) = simulate(JobOptions(ranks=1, steps=2, layers=2, host_stall_us=700.0, work=0.05), tmp_path)
    trace = read(str(path))
    events, work = trace.events, gpu_work(trace)
    known = set()
    for place, launch in enumerate(work.launch.tolist()):
        gpu, cpu = int(work.end[place] - work.ts[place]), int(events.dur[launch])
        delay = int(work.ts[place] - events.ts[launch]) - cpu
        correlation = int(events.correlation[launch])
        known |= {("short_kernel", correlation, cpu, gpu)} if gpu < cpu else set()
        known |= {("launch_delay_outlier", correlation, cpu, gpu)} if delay > 20_000 else set()
    outcome = launch_outliers.analyze(trace, launch_delay_cutoff_ns=20_000, most_count=10_000)
    found = rows_of(outcome, "kind", "correlation", "cpu_ns", "gpu_ns")
    assert len(found) > 50
    assert set(found) == known
    assert len(known) == len(found)
