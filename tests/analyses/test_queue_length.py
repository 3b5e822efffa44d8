from __future__ import annotations

import pytest

from augment.analyses import queue_length
from augment.core.annotations import CounterTrack
from augment.core.findings import Findings, Skipped
from augment.core.trace import Category, Track
from tables import Event, call, copy, kernel, rows_of, trace_of


def findings_of(*events: Event) -> Findings:
    return queue_length.analyze(trace_of(*events))


def series_of(findings: Findings) -> dict[str, list[tuple[int, float]]]:
    tracks = [annotation for annotation in findings.annotations if isinstance(annotation, CounterTrack)]
    return {track.name: list(zip(track.ts.tolist(), track.values.tolist(), strict=True)) for track in tracks}


def test_the_queue_holds_what_is_launched_and_not_yet_started() -> None:
    findings = findings_of(
        call("cudaLaunchKernel", 0, 2, correlation=1),
        call("cudaLaunchKernel", 5, 6, correlation=2),
        kernel("a", 10, 30, correlation=1),
        kernel("b", 40, 50, correlation=2),
    )
    assert series_of(findings) == {"Queue Length stream 7": [(0, 1), (5, 2), (10, 1), (40, 0)]}
    mean = (1 * 5 + 2 * 5 + 1 * 30) / 40
    deviation = pytest.approx(((5 * (2 - mean) ** 2 + 35 * (1 - mean) ** 2) / 40) ** 0.5)
    assert rows_of(findings, "mean", "std", "p25", "p50", "p75", "max", "full_queue_ns") == [
        (mean, deviation, 1.0, 1.0, 1.0, 2, 0)
    ]


def test_kernels_of_one_graph_launch_all_count() -> None:
    findings = findings_of(
        call("cudaGraphLaunch", 0, 5, correlation=9),
        *(kernel("k", 10 * k, 10 * k + 5, correlation=9) for k in (1, 2, 3)),
    )
    assert series_of(findings) == {"Queue Length stream 7": [(0, 3), (10, 2), (20, 1), (30, 0)]}


def test_a_runtime_call_is_the_launch_before_the_drivers() -> None:
    findings = findings_of(
        call("cuLaunchKernel", 1, 2, correlation=1),
        call("cudaLaunchKernel", 3, 4, correlation=1),
        call("cudaLaunchKernel", 5, 6, correlation=1),
        kernel("a", 10, 20, correlation=1),
    )
    assert series_of(findings) == {"Queue Length stream 7": [(3, 1), (10, 0)]}


def test_a_launch_after_its_kernel_counts_as_at_its_start() -> None:
    findings = findings_of(call("hipLaunchKernel", 20, 25, correlation=1), kernel("a", 10, 30, correlation=1))
    assert rows_of(findings, "mean", "max", "full_queue_ns") == [(None, 0, 0)]
    assert series_of(findings) == {"Queue Length stream 7": [(10, 0)]}
    assert [(diagnostic.code, diagnostic.count) for diagnostic in findings.diagnostics] == [("launch_after_kernel", 1)]


def test_equal_values_in_a_row_are_drawn_once() -> None:
    findings = findings_of(
        call("cudaLaunchKernel", 0, 1, correlation=1),
        call("cudaLaunchKernel", 10, 11, correlation=2),
        kernel("a", 10, 20, correlation=1),
        kernel("b", 30, 40, correlation=2),
    )
    assert series_of(findings) == {"Queue Length stream 7": [(0, 1), (30, 0)]}


def test_work_without_a_launch_is_left_out_and_counted() -> None:
    findings = findings_of(
        call("cudaMemcpyAsync", 0, 1, correlation=1),
        copy("Memcpy HtoD", 5, 6, correlation=1, stream="7"),
        kernel("a", 10, 20, correlation=77, stream=8),
        kernel("b", 30, 40),
    )
    assert rows_of(findings, "stream") == [("7",)]
    assert [(each.code, each.count) for each in findings.diagnostics] == [("gpu_work_without_launch", 2)]


def test_a_full_queue_is_timed() -> None:
    launches = [call("cudaLaunchKernel", k, k + 1, correlation=k) for k in range(1024)]
    kernels = [kernel("a", 5000 + 10 * k, 5000 + 10 * k + 10, correlation=k) for k in range(1024)]
    assert rows_of(findings_of(*launches, *kernels), "max", "full_queue_ns") == [(1024, 5000 - 1023)]


def test_devices_of_equal_stream_numbers_are_apart() -> None:
    findings = findings_of(
        call("cudaLaunchKernel", 0, 1, correlation=1),
        call("cudaLaunchKernel", 0, 1, correlation=2),
        kernel("a", 5, 6, correlation=1, device=0),
        kernel("b", 5, 6, correlation=2, device=1),
    )
    assert rows_of(findings, "device", "stream", "max") == [(0, 7, 1), (1, 7, 1)]


def test_correlations_far_apart_are_found_too() -> None:
    findings = findings_of(
        call("cudaLaunchKernel", 0, 1, correlation=2**62),
        call("cudaLaunchKernel", 1, 2, correlation=-(2**62)),
        kernel("a", 5, 6, correlation=2**62),
        kernel("b", 7, 8, correlation=-(2**62)),
        kernel("c", 9, 10, correlation=5),
    )
    assert rows_of(findings, "max") == [(2,)]
    assert [(each.code, each.count) for each in findings.diagnostics] == [("gpu_work_without_launch", 1)]


def test_a_correlation_of_two_processes_is_doubtful() -> None:
    other = Track(0, 200, 1)
    findings = findings_of(
        call("cudaLaunchKernel", 0, 3, correlation=1),
        call("cuLaunchKernel", 1, 2, correlation=1),  # as the driver's call within the runtime's
        kernel("a", 5, 6, correlation=1),
        call("cudaLaunchKernel", 7, 8, correlation=2),
        Event(Category.CUDA_RUNTIME, "cudaLaunchKernel", 7, 8, other, 2),
        kernel("b", 9, 10, correlation=2),
        kernel("b", 9, 10, correlation=2, device=1),
    )
    assert [(diagnostic.code, diagnostic.count) for diagnostic in findings.diagnostics] == [("launch_disputed", 2)]


def test_without_a_link_it_is_skipped() -> None:
    trace = trace_of(call("cudaLaunchKernel", 0, 1, correlation=1), kernel("a", 5, 6, correlation=2))
    assert queue_length.analyze(trace) == Skipped("no GPU work whose correlation names a launch")


def test_time_at_a_full_queue_is_told_of_every_stream() -> None:
    streams = {7: 1024, 8: 1025, 9: 3}
    events, correlation = [], 0
    for stream, count in streams.items():
        for k in range(count):
            correlation += 1
            events.append(call("cudaLaunchKernel", k, k + 1, correlation=correlation))
            events.append(kernel("a", 5000 + 10 * k, 5005 + 10 * k, correlation=correlation, stream=stream))
    assert rows_of(findings_of(*events), "stream", "full_queue_ns") == [(7, 5000 - 1023), (8, 5010 - 1023), (9, 0)]
