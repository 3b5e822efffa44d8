"""Steps: by hand, and by counting nanoseconds."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from augment.analyses import step_variation, steps
from augment.core.annotations import SliceTrack
from augment.core.findings import Findings, Skipped
from augment.core.trace import Trace
from augment.facts.gpu.gpu_work import gpu_work
from augment.facts.names.kernel_types import KernelType
from augment.facts.steps.steps import step_numbers
from augment.facts.steps.steps import steps as steps_of
from augment.readers import read
from simulator import JobOptions, simulate
from tables import Event, annotation, call, copy, kernel, op, rows_of, slices_of, trace_of


def step(number: int, ts: int, end: int, thread: int = 1) -> Event:
    return annotation(f"ProfilerStep#{number}", ts, end, thread=thread)


def test_parts_of_a_step_and_what_it_launched() -> None:
    findings = steps.analyze(
        trace_of(
            step(3, 10, 110),
            step(4, 110, 200),
            call("cudaLaunchKernel", 20, 21, correlation=1),
            call("cudaLaunchKernel", 30, 31, correlation=2),
            call("cudaLaunchKernel", 120, 121, correlation=3),
            kernel("gemm", 5, 15),  # of no step
            kernel("gemm", 40, 60, correlation=1),
            kernel("ncclDevKernel", 50, 130, correlation=2, stream=8),
            copy("Memcpy HtoD", 125, 150, correlation=3),
        )
    )
    columns = ("step", "start_ns", "wall_ns", "busy_ns", "compute_ns", "exposed_communication_ns", "exposed_memory_ns",
               "idle_ns", "kernel_count", "launched_busy_ns")  # fmt: skip
    assert rows_of(findings, *columns) == [
        (3, 5, 100, 75, 25, 50, 0, 25, 2, 90),
        (4, 105, 90, 40, 0, 20, 20, 50, 0, 25),
    ]
    assert rows_of(findings, "robust_z", "is_outlier") == [(None, None)] * 2


def test_what_is_a_step() -> None:
    """Of the oldest recordings they are operators; a number beyond 64 bits is none."""
    names = [f"ProfilerStep#{what}" for what in ("", "x", "-1", "9" * 19, "9" * 5000)]
    odd = [annotation(name, 10 * k, 10 * k + 10) for k, name in enumerate(names)]
    trace = trace_of(
        *odd, step(7, 100, 200), annotation("ProfilerStep#8", 150, 160), op("ProfilerStep # 009", 200, 210)
    )
    assert steps_of(trace).number.tolist() == [7, 9]
    assert step_numbers(trace) == [7, 8, 9]


def test_a_row_for_each_device_and_one_without() -> None:
    two = trace_of(step(0, 0, 10), kernel("a", 2, 4), kernel("b", 2, 8, device=1))
    assert rows_of(steps.analyze(two), "device", "busy_ns", "kernel_count") == [(0, 2, 1), (1, 6, 1)]
    none = trace_of(step(0, 0, 10), op("aten::mm", 1, 2))
    assert rows_of(steps.analyze(none), "device", "wall_ns", "busy_ns", "kernel_count") == [(None, 10, None, None)]


def test_an_outlier() -> None:
    lengths = [100, 101, 99, 100, 102, 98, 150]
    starts = np.cumsum([0, *lengths]).tolist()
    trace = trace_of(*(step(k, starts[k], starts[k + 1]) for k in range(len(lengths))))
    median, deviation = 100, 1 / 0.6745
    assert rows_of(steps.analyze(trace), "robust_z", "is_outlier") == [
        (pytest.approx((length - median) / deviation), length == 150) for length in lengths
    ]
    variation = step_variation.analyze(trace)
    assert rows_of(variation, "count", "min_ns", "p50_ns", "max_ns", "outlier_count") == [(7, 98, 100.0, 150, 1)]
    (ratio,) = rows_of(variation, "variation_ratio")[0]
    assert ratio == pytest.approx(np.std(lengths, ddof=1) / np.mean(lengths))


def test_equal_steps_have_no_outliers() -> None:
    trace = trace_of(*(step(k, 10 * k, 10 * k + 10) for k in range(5)))
    assert rows_of(steps.analyze(trace), "robust_z") == [(None,)] * 5
    assert rows_of(step_variation.analyze(trace), "std_ns", "outlier_count") == [(0.0, None)]


def test_without_steps_it_is_skipped() -> None:
    for analysis in (steps, step_variation):
        assert isinstance(analysis.analyze(trace_of(annotation("forward", 0, 5), kernel("a", 1, 2))), Skipped)


def test_a_simulated_job(tmp_path: Path) -> None:
    ((path, _),) = simulate(JobOptions(ranks=1, steps=3, layers=2), tmp_path)
    assert compare(read(str(path))) == 3


def test_real_traces(shared_traces: Path) -> None:
    for name in ("h100_8rank_modded_nanogpt/rank3.json.gz", "rtx3060_luatil/trace_04.json.gz",
                 "hta_amd_mi250/mi250_minitoy_train_ROCm6_2.json.gz"):  # fmt: skip
        assert compare(read(str(shared_traces / name))) > 0


def compare(trace: Trace) -> int:
    """Against a sweep over every start and end within each step; how many rows there are."""
    findings = steps.analyze(trace)
    assert isinstance(findings, Findings)
    work, known = gpu_work(trace), steps_of(trace)
    pieces = list(zip(work.ts.tolist(), work.end.tolist(), work.type.tolist(), strict=True))
    (device,) = work.devices
    for row, start, end in zip(findings.rows, known.ts.tolist(), known.end.tolist(), strict=True):
        sums = dict.fromkeys(("compute", "communication", "memory", "idle"), 0)
        inside = [(max(a, start), min(b, end), kind) for a, b, kind in pieces if a < end and b > start]
        edges = sorted({start, end, *(a for a, _, _ in inside), *(b for _, b, _ in inside)})
        for left, right in pairwise(edges):
            running = {kind for a, b, kind in inside if a <= left < b}
            what = (
                "compute" if KernelType.COMPUTATION in running
                else "communication" if KernelType.COMMUNICATION in running
                else "memory" if running else "idle"
            )  # fmt: skip
            sums[what] += right - left
        assert (row.compute_ns, row.exposed_communication_ns, row.exposed_memory_ns, row.idle_ns) == tuple(
            sums.values()
        )
        assert row.busy_ns + row.idle_ns == row.wall_ns == end - start
        launch = np.where(work.launch >= 0, trace.events.ts[work.launch], work.ts).tolist()
        part = [piece for piece, when in zip(pieces, launch, strict=True) if start <= when < end]
        assert row.kernel_count <= len(part)
        assert row.launched_busy_ns == busy([(a, b) for a, b, _ in part])
        assert row.device == device.device
    return len(findings.rows)


def busy(pieces: list[tuple[int, int]]) -> int:
    total, reach = 0, -(1 << 62)
    for start, end in sorted(pieces):
        total += max(0, end - max(start, reach))
        reach = max(reach, end)
    return total


def test_the_row_of_steps_shows_their_windows() -> None:
    """The host runs ahead: the second window begins when the work of the first step is done."""
    findings = steps.analyze(
        trace_of(
            step(3, 0, 1_000_000),
            step(4, 1_000_000, 2_000_000),
            call("cudaLaunchKernel", 10, 20, correlation=1),
            call("cudaLaunchKernel", 1_000_010, 1_000_020, correlation=2),
            kernel("gemm", 30, 5_000_000, correlation=1),
            kernel("gemm", 5_000_000, 9_500_000, correlation=2),
        )
    )
    assert isinstance(findings, Findings)
    (track,) = findings.annotations
    assert isinstance(track, SliceTrack)
    assert track.name == "Steps"
    assert slices_of(track) == [
        {"ts": 0, "dur": 5_000_000, "name": "step 3: 5 ms", "number": 3, "wall_ns": 1_000_000, "backlog_ns": 0},
        {"ts": 5_000_000, "dur": 4_500_000, "name": "step 4: 4.5 ms", "number": 4, "wall_ns": 1_000_000,
         "backlog_ns": 4_000_000},
    ]  # fmt: skip


def test_a_long_step_is_named_in_seconds() -> None:
    findings = steps.analyze(trace_of(annotation("ProfilerStep#1", 0, 13_340_000_000), kernel("gemm", 30, 90)))
    assert isinstance(findings, Findings)
    (track,) = findings.annotations
    assert isinstance(track, SliceTrack)
    assert slices_of(track)[0]["name"] == "step 1: 13.34 s"
