from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from augment import Findings, Skipped, Trace, augment, read
from augment.analyses import activity_over_time, memory_bandwidth, queue_length
from augment.core import Category, CounterTrack, Track
from simulator import JobOptions, simulate
from tables import Event, call, copy, kernel, launched_kernel, rows_of, trace_of


def queues_of(*events: Event) -> Findings:
    return queue_length.analyze(trace_of(*events))


def series_of(findings: Findings) -> dict[str, list[tuple[int, float]]]:
    tracks = [annotation for annotation in findings.annotations if isinstance(annotation, CounterTrack)]
    return {track.name: list(zip(track.ts.tolist(), track.values.tolist(), strict=True)) for track in tracks}


def test_the_queue_holds_what_is_launched_and_not_yet_started() -> None:
    findings = queues_of(
        *launched_kernel("a", (0, 2), (10, 30), correlation=1), *launched_kernel("b", (5, 6), (40, 50), correlation=2)
    )
    assert series_of(findings) == {"Queue Length stream 7": [(0, 1), (5, 2), (10, 1), (40, 0)]}
    mean = (1 * 5 + 2 * 5 + 1 * 30) / 40
    deviation = pytest.approx(((5 * (2 - mean) ** 2 + 35 * (1 - mean) ** 2) / 40) ** 0.5)
    assert rows_of(findings, "mean", "std", "p25", "p50", "p75", "max", "full_queue_ns") == [
        (mean, deviation, 1.0, 1.0, 1.0, 2, 0)
    ]


def test_kernels_of_one_graph_launch_all_count() -> None:
    findings = queues_of(
        call("cudaGraphLaunch", 0, 5, correlation=9),
        *(kernel("k", 10 * k, 10 * k + 5, correlation=9) for k in (1, 2, 3)),
    )
    assert series_of(findings) == {"Queue Length stream 7": [(0, 3), (10, 2), (20, 1), (30, 0)]}


def test_a_runtime_call_is_the_launch_before_the_drivers() -> None:
    findings = queues_of(
        call("cuLaunchKernel", 1, 2, correlation=1),
        call("cudaLaunchKernel", 3, 4, correlation=1),
        *launched_kernel("a", (5, 6), (10, 20), correlation=1),
    )
    assert series_of(findings) == {"Queue Length stream 7": [(3, 1), (10, 0)]}


def test_a_launch_after_its_kernel_counts_as_at_its_start() -> None:
    findings = queues_of(call("hipLaunchKernel", 20, 25, correlation=1), kernel("a", 10, 30, correlation=1))
    assert rows_of(findings, "mean", "max", "full_queue_ns") == [(None, 0, 0)]
    assert series_of(findings) == {"Queue Length stream 7": [(10, 0)]}
    assert [(diagnostic.code, diagnostic.count) for diagnostic in findings.diagnostics] == [("launch_after_kernel", 1)]


def test_equal_values_in_a_row_are_drawn_once() -> None:
    findings = queues_of(
        *launched_kernel("a", (0, 1), (10, 20), correlation=1), *launched_kernel("b", (10, 11), (30, 40), correlation=2)
    )
    assert series_of(findings) == {"Queue Length stream 7": [(0, 1), (30, 0)]}


def test_work_without_a_launch_is_left_out_and_counted() -> None:
    findings = queues_of(
        call("cudaMemcpyAsync", 0, 1, correlation=1),
        copy("Memcpy HtoD", 5, 6, correlation=1, stream="7"),
        kernel("a", 10, 20, correlation=77, stream=8),
        kernel("b", 30, 40),
    )
    assert rows_of(findings, "stream") == [("7",)]
    assert [(each.code, each.count) for each in findings.diagnostics] == [("gpu_work_without_launch", 2)]


def test_devices_of_equal_stream_numbers_are_apart() -> None:
    findings = queues_of(
        call("cudaLaunchKernel", 0, 1, correlation=1),
        *launched_kernel("b", (0, 1), (5, 6), correlation=2, device=1),
        kernel("a", 5, 6, correlation=1, device=0),
    )
    assert rows_of(findings, "device", "stream", "max") == [(0, 7, 1), (1, 7, 1)]


def test_correlations_far_apart_are_found_too() -> None:
    findings = queues_of(
        *launched_kernel("a", (0, 1), (5, 6), correlation=2**62),
        *launched_kernel("b", (1, 2), (7, 8), correlation=-(2**62)),
        kernel("c", 9, 10, correlation=5),
    )
    assert rows_of(findings, "max") == [(2,)]
    assert [(each.code, each.count) for each in findings.diagnostics] == [("gpu_work_without_launch", 1)]


def test_a_correlation_of_two_processes_is_doubtful() -> None:
    other = Track(0, 200, 1)
    findings = queues_of(
        *launched_kernel("a", (0, 3), (5, 6), correlation=1),
        call("cuLaunchKernel", 1, 2, correlation=1),  # as the driver's call within the runtime's
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
    assert rows_of(queues_of(*events), "stream", "full_queue_ns") == [(7, 5000 - 1023), (8, 5010 - 1023), (9, 0)]


STATISTICS = ("mean_gbps", "p25_gbps", "p50_gbps", "p75_gbps", "max_gbps")


def copies_of(*events: Event) -> Findings:
    return memory_bandwidth.analyze(trace_of(*events))


def test_copies_are_weighted_by_time() -> None:
    findings = copies_of(copy("Memcpy HtoD (Pageable -> Device)", 0, 10, 100), copy("Memcpy HtoD", 20, 50, 600))
    assert rows_of(findings, "kind", "count", "bytes", "busy_ns") == [("Memcpy HtoD", 2, 700, 40)]
    assert rows_of(findings, *STATISTICS) == [(17.5, 10.0, 20.0, 20.0, 20.0)]
    assert series_of(findings) == {"Memcpy HtoD bandwidth": [(0, 10.0), (10, 0.0), (20, 20.0), (50, 0.0)]}


def test_overlapping_copies_add_up_and_fall_to_zero_exactly() -> None:
    findings = copies_of(
        copy("Memcpy DtoD", 0, 30, 1), copy("Memcpy DtoD", 10, 20, 7, stream=8), copy("Memset (Device)", 0, 10, 10)
    )
    series = series_of(findings)["Memcpy DtoD bandwidth"]
    assert [ts for ts, _ in series] == [0, 10, 20, 30]
    assert series[-1] == (30, 0.0)
    assert abs(series[1][1] - (1 / 30 + 7 / 10)) < 1e-8
    assert rows_of(findings, "kind", "busy_ns") == [("Memcpy DtoD", 30), ("Memset", 10)]


def test_copies_of_no_known_bandwidth_are_counted_and_left_out() -> None:
    copies = (0, 10, None), (20, 20, 50), (30, 40, 10)
    findings = copies_of(*(copy("Memcpy DtoH", *each) for each in copies), copy("Memcpy PtoP", 50, 60))
    expected = [("Memcpy DtoH", 3, 60, 20, 1.0), ("Memcpy PtoP", 1, 0, 10, None)]
    assert rows_of(findings, "kind", "count", "bytes", "busy_ns", "mean_gbps") == expected
    assert [(each.code, each.count) for each in findings.diagnostics] == [("copy_without_bandwidth", 3)]
    assert list(series_of(findings)) == ["Memcpy DtoH bandwidth"]


def test_devices_are_apart() -> None:
    findings = copies_of(copy("Memcpy HtoD", 0, 10, 10, device=1), copy("Memcpy HtoD", 0, 10, 20, device=0))
    assert rows_of(findings, "device", "max_gbps") == [(0, 2.0), (1, 1.0)]


def test_a_broken_clock_makes_no_bandwidth() -> None:
    assert rows_of(copies_of(copy("Memcpy HtoD", 0, 1, 10**17)), *STATISTICS) == [(None,) * 5]


def test_without_copies_it_is_skipped() -> None:
    trace: Trace = trace_of(kernel("gemm", 0, 10))
    assert memory_bandwidth.analyze(trace) == Skipped("no copy and no memset")


# A trace in little: what each part of it holds, against hand-made traces and sums of other analyses.


def test_parts_of_a_device() -> None:
    trace = trace_of(
        *launched_kernel("a", (0, 2), (10, 25), correlation=1),
        *launched_kernel("b", (5, 6), (20, 40), correlation=2, stream=8),
    )
    findings = activity_over_time.analyze(trace, part_count=4)
    expected = [(0, 0, 10, 0, 2, 1), (1, 10, 10, 10, 0, 1), (2, 20, 10, 10, 0, 0), (3, 30, 10, 10, 0, 0)]
    assert rows_of(findings, "part", "start_ns", "dur_ns", "busy_ns", "launch_count", "queued_count") == expected


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
