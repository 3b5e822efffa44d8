from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from augment.analyses import launch_outliers
from augment.facts.gpu.gpu_work import gpu_work
from augment.pipeline import augment
from augment.readers import read
from augment.writers import write_all
from perfetto_engine import PerfettoEngine
from simulator import JobOptions, simulate
from tables import Event, call, copy, kernel, op, rows_of, slices_of, trace_of

CUTOFFS = {"runtime_cutoff_ns": 50, "launch_delay_cutoff_ns": 100}


def outliers_of(*events: Event, **options: Any) -> list[tuple[Any, ...]]:
    outcome = launch_outliers.analyze(trace_of(*events), **CUTOFFS, **options)
    return rows_of(outcome, "kind", "name", "launch_name", "ts_ns", "cpu_ns", "gpu_ns", "launch_delay_ns")


@pytest.mark.parametrize("order", [1, -1])
def test_of_two_calls_of_one_correlation_and_start_the_longer_is_the_launch(order: int) -> None:
    calls = [call("hipMemsetAsync", 100, 193, correlation=1), call("hipArray3DCreate", 100, 184, correlation=1)]
    result = outliers_of(op("copy_", 90, 250), *calls[::order], copy("Memset (Device)", 220, 240, correlation=1))
    assert {each[2] for each in result} == {"hipMemsetAsync"}


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
    result = rows_of(outcome, "kind", "correlation", "cpu_ns", "gpu_ns")
    assert len(result) > 50
    assert set(result) == known
    assert len(known) == len(result)


def drawn(*events: Event, **options: Any) -> dict[str, list[tuple[Any, ...]]]:
    outcome = launch_outliers.analyze(trace_of(*events), **CUTOFFS, **options)
    columns = ("name", "ts", "dur", "kernel", "cpu_ns", "gpu_ns", "launch_delay_ns")
    return {track.name: [tuple(each[c] for c in columns) for each in slices_of(track)] for track in outcome.annotations}


def test_calls_are_marked_on_the_thread_and_late_work_on_the_stream() -> None:
    events = (
        call("cudaLaunchKernel", 10, 70, correlation=1), kernel("both", 80, 90, correlation=1),
        call("cudaLaunchKernel", 71, 76, correlation=2), kernel("late", 400, 420, correlation=2),
        call("cudaLaunchKernel", 77, 79, correlation=3), kernel("overlaps", 410, 440, correlation=3),
    )  # fmt: skip
    assert drawn(*events) == {
        "Launch outliers": [
            ("runtime_outlier", 10, 60, "both", 60, 10, 10),
            ("short_kernel", 10, 60, "both", 60, 10, 10),
        ],
        "Launch outliers stream 7": [
            ("launch_delay_outlier", 400, 10, "late", 5, 20, 324),
            ("launch_delay_outlier", 410, 30, "overlaps", 2, 30, 331),
        ],
    }
    assert len(drawn(*events, most_count=1)["Launch outliers stream 7"]) == 1


def test_each_thread_and_stream_has_its_own_track() -> None:
    events = [call("cudaLaunchKernel", 0, 60, thread=n, correlation=n) for n in (1, 2)]
    events += [kernel(f"k{n}", 500, 600, device=n, stream=n, correlation=n) for n in (1, 2)]
    assert {name: len(slices) for name, slices in drawn(*events).items()} == {
        "Launch outliers": 1, "Launch outliers stream 1": 1, "Launch outliers stream 2": 1
    }  # fmt: skip
    outcome = launch_outliers.analyze(trace_of(*events), **CUTOFFS)
    assert len(outcome.annotations) == 4, "a track for each of the two threads"


@pytest.mark.parametrize(("form", "prefix"), [("chrome", "args"), ("perfetto", "debug")])
def test_perfetto_shows_every_row(tmp_path: Path, perfetto: PerfettoEngine, form: str, prefix: str) -> None:
    ((path, _),) = simulate(JobOptions(ranks=1, steps=2, layers=2, host_stall_us=700.0, work=0.05), tmp_path)
    options = {"launch_outliers": {"launch_delay_cutoff_ns": 20_000}}
    augmented = augment(read(str(path)), only=["launch_outliers"], options=options)
    written = write_all(augmented, tmp_path / "out", [form])[0]
    perfetto.load(written)
    seen = perfetto.rows(
        f"select name, count(*), sum(extract_arg(arg_set_id, '{prefix}.cpu_ns'))"
        " from slice where category = 'augment.launch_outliers' group by 1 order by 1"
    )
    rows = rows_of(augmented.outcomes["launch_outliers"], "kind", "cpu_ns")
    kinds = sorted({kind for kind, _ in rows})
    assert len(kinds) == 2
    assert seen == [(kind, len(row), sum(row)) for kind in kinds for row in [[ns for each, ns in rows if each == kind]]]
    assert not perfetto.problems()
