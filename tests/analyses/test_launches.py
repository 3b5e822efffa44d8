from __future__ import annotations

import gzip
import json
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from augment import Skipped, Trace, augment, read
from augment.analyses import launch_outliers, launch_statistics, operator_launch_delay
from augment.core import LAUNCHES, Category
from augment.facts.gpu.gpu_work import gpu_work
from augment.writers import write_all
from perfetto_engine import PerfettoEngine
from simulator import JobOptions, simulate
from tables import Event, call, copy, kernel, launched_kernel, op, rows_of, slices_of, trace_of


def row_of(*events: Event, **options: Any) -> Any:
    (row,) = launch_statistics.analyze(trace_of(*events), **options).rows
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
        *launched_kernel("k", (6, 8), (10, 20), device=1, correlation=2),
    )
    columns = ("device", "stream", "launch_count", "max_launch_delay_ns")
    assert rows_of(launch_statistics.analyze(trace), *columns) == [(0, 7, 1, 5), (1, 7, 1, 2)]
    assert rows_of(launch_statistics.analyze(trace, include_memory_events=False), *columns) == [(1, 7, 1, 2)]


def test_without_a_known_launch_statistics_are_skipped() -> None:
    trace = trace_of(call("cudaLaunchKernel", 0, 5, correlation=9), kernel("k", 9, 12, correlation=1))
    assert isinstance(launch_statistics.analyze(trace), Skipped)


def test_statistics_of_a_simulated_job_by_a_plain_loop(tmp_path: Path) -> None:
    ((path, truth),) = simulate(JobOptions(ranks=1, steps=3, layers=2, host_stall_us=700.0), tmp_path)
    result = {str(row.stream): row for row in launch_statistics.analyze(read(str(path))).rows}
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
            assert row.p99_cpu_ns == pytest.approx(statistics.quantiles(cpu, n=100, method="inclusive")[98])


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


def test_outliers_of_a_simulated_job_by_a_plain_loop(tmp_path: Path) -> None:
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
    perfetto.load(write_all(augmented, tmp_path / "out", [form])[0])
    seen = perfetto.rows(
        f"select name, count(*), sum(extract_arg(arg_set_id, '{prefix}.cpu_ns'))"
        " from slice where category = 'augment.launch_outliers' group by 1 order by 1"
    )
    rows = rows_of(augmented.outcomes["launch_outliers"], "kind", "cpu_ns")
    kinds = sorted({kind for kind, _ in rows})
    assert len(kinds) == 2
    assert seen == [(kind, len(row), sum(row)) for kind in kinds for row in [[ns for each, ns in rows if each == kind]]]
    assert not perfetto.problems()


def delays_of(*events: Event, **options: Any) -> list[tuple[Any, ...]]:
    outcome = operator_launch_delay.analyze(trace_of(*events), **options)
    return rows_of(outcome, "operator", "kernel_sequence", "count", "max_op_to_launch_ns", "max_launch_to_kernel_ns")


def test_the_innermost_operator_of_the_thread_launches() -> None:
    assert delays_of(
        op("aten::linear", 0, 50), op("aten::addmm", 10, 40),
        op("aten::other", 12, 60, thread=2),
        call("cudaLaunchKernel", 15, 18, correlation=1), kernel("gemm", 30, 90, correlation=1),
        call("cudaLaunchKernel", 20, 22, correlation=2), kernel("bias", 90, 95, correlation=2),
    ) == [("aten::addmm", ["gemm", "bias"], 1, 5, 15)]  # fmt: skip


def test_what_an_inner_operator_launches_is_not_its_outers() -> None:
    events = (
        op("custom::a", 0, 50), op("aten::b", 10, 20),
        call("cudaLaunchKernel", 2, 4, correlation=1), kernel("k1", 30, 40, correlation=1),
        call("cudaLaunchKernel", 12, 14, correlation=2), kernel("k2", 40, 50, correlation=2),
        call("cudaLaunchKernel", 22, 24, correlation=3), kernel("k3", 50, 60, correlation=3),
    )  # fmt: skip
    assert delays_of(*events) == [("aten::b", ["k2"], 1, 2, 28), ("custom::a", ["k1", "k3"], 1, 2, 28)]
    assert delays_of(*events, operator_prefix="custom") == [("custom::a", ["k1", "k2", "k3"], 1, 2, 28)]


def test_work_before_its_launch_graphs_and_launches_outside() -> None:
    trace = trace_of(
        op("graph", 0, 50),
        call("cudaGraphLaunch", 20, 30, correlation=1),
        kernel("b", 25, 28, stream=1, correlation=1), kernel("a", 10, 12, stream=2, correlation=1),
        call("cudaLaunchKernel", 60, 70, correlation=2), kernel("alone", 80, 90, correlation=2),
    )  # fmt: skip
    outcome = operator_launch_delay.analyze(trace)
    assert rows_of(outcome, "kernel_sequence", "max_launch_to_kernel_ns") == [(["a", "b"], 0)]
    expected = {"launch_after_kernel": 1, "launch_outside_operators": 1}
    assert {diagnostic.code: diagnostic.count for diagnostic in outcome.diagnostics} == expected


def test_without_a_known_launch_delays_are_skipped() -> None:
    assert isinstance(operator_launch_delay.analyze(trace_of(op("a", 0, 5), kernel("k", 9, 12))), Skipped)


def plain(trace: Trace) -> dict[tuple[str, tuple[str, ...]], list[tuple[int, int]]]:
    """The delays of each operator and sequence, by loops."""
    events, work = trace.events, gpu_work(trace)
    ts, end, track = events.ts.tolist(), events.end.tolist(), events.track.tolist()
    ops = events.slices_of(Category.CPU_OP).tolist()
    launched = defaultdict(list)
    for place, launch in enumerate(work.launch.tolist()):
        launched[launch].append((int(work.ts[place]), trace.names_of(work.row[[place]])[0]))
    owned = defaultdict(list)
    for launch in events.slices_of(*LAUNCHES).tolist():
        around = [row for row in ops if track[row] == track[launch] and ts[row] <= ts[launch] < end[row]]
        if launch in launched and around:
            owned[max(around, key=lambda row: (ts[row], -end[row]))].append(launch)
    delays = defaultdict(list)
    for row, launches in owned.items():
        work_of = [each for launch in launches for each in sorted(launched[launch])]
        key = trace.names_of(events.slices_of(Category.CPU_OP)[[ops.index(row)]])[0], tuple(each[1] for each in work_of)
        delays[key].append((ts[launches[0]] - ts[row], work_of[0][0] - ts[launches[0]]))
    return delays


def test_delays_of_a_simulated_job_by_a_plain_loop(tmp_path: Path) -> None:
    ((path, _),) = simulate(JobOptions(ranks=1, steps=2, layers=2, stacks=True), tmp_path)
    trace = read(str(path))
    known = plain(trace)
    outcome = operator_launch_delay.analyze(trace)
    assert len(outcome.rows) == len(known) > 10
    for row in outcome.rows:
        launch, start = zip(*known[row.operator, tuple(row.kernel_sequence)], strict=True)
        assert (row.count, row.max_op_to_launch_ns) == (len(launch), max(launch))
        assert row.max_launch_to_kernel_ns == max(start)
        assert row.mean_op_to_launch_ns == pytest.approx(statistics.fmean(launch))
        assert row.p50_op_to_launch_ns == statistics.median(launch)
        assert row.p50_launch_to_kernel_ns == statistics.median(start)
        assert row.mean_launch_to_kernel_ns == pytest.approx(statistics.fmean(start))
