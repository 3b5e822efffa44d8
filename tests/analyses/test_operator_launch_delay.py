from __future__ import annotations

import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from augment.analyses import operator_launch_delay
from augment.core.findings import Skipped
from augment.core.trace import LAUNCHES, Category, Trace
from augment.facts.gpu.gpu_work import gpu_work
from augment.readers import read
from simulator import JobOptions, simulate
from tables import Event, call, kernel, op, rows_of, trace_of


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
    assert {diagnostic.code: diagnostic.count for diagnostic in outcome.diagnostics} == {
        "launch_after_kernel": 1,
        "launch_outside_operators": 1,
    }


def test_without_a_known_launch_it_is_skipped() -> None:
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


def test_a_simulated_job_by_a_plain_loop(tmp_path: Path) -> None:
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
