from __future__ import annotations

from augment.analyses import communication_computation_overlap, temporal_breakdown
from augment.core import Findings, SliceTrack
from tables import call, copy, kernel, op, rows_of, slices_of, trace_of

COLUMNS = (
    "device", "span_ns", "busy_ns", "idle_ns", "compute_ns",
    "exposed_communication_ns", "exposed_memory_ns", "non_compute_ns",
)  # fmt: skip


def test_a_span_is_divided_without_rest() -> None:
    computing = kernel("gemm", 0, 10), kernel("gemm", 30, 40)
    trace = trace_of(*computing, kernel("ncclKernel", 5, 20, stream=8), copy("Memcpy HtoD", 15, 25, stream=9))
    assert rows_of(temporal_breakdown.analyze(trace), *COLUMNS) == [(0, 40, 35, 5, 20, 10, 5, 15)]


def test_overlapping_kernels_of_a_stream_count_once() -> None:
    trace = trace_of(kernel("a", 0, 10), kernel("b", 2, 5), kernel("c", 4, 12))
    assert rows_of(temporal_breakdown.analyze(trace), "busy_ns", "compute_ns") == [(12, 12)]


def test_devices_of_equal_stream_numbers_are_apart() -> None:
    trace = trace_of(kernel("a", 0, 10, device=1), kernel("b", 0, 7, device=0), kernel("c", 0, 3, device="GPU b"))
    assert rows_of(temporal_breakdown.analyze(trace), "device", "span_ns") == [(0, 7), (1, 10), ("GPU b", 3)]


def test_several_tracks_of_one_stream_are_one_device() -> None:
    trace = trace_of(
        kernel("a", 0, 10, pid="[TP00] 0"), kernel("b", 20, 30, pid="[TP01] 0"), kernel("c", 5, 6, stream=8)
    )
    findings = temporal_breakdown.analyze(trace)
    assert rows_of(findings, "device", "span_ns", "idle_ns") == [(0, 30, 10)]
    assert [(each.code, each.count) for each in findings.diagnostics] == [("processes_share_stream", 2)]


def test_work_of_no_or_negative_duration_holds_no_time() -> None:
    findings = temporal_breakdown.analyze(trace_of(kernel("a", 0, 0), kernel("b", 10, 8), kernel("c", 20, 25)))
    assert rows_of(findings, "span_ns", "busy_ns", "idle_ns") == [(25, 5, 20)]
    assert [(diagnostic.code, diagnostic.count) for diagnostic in findings.diagnostics] == [("negative_duration", 1)]


def test_work_that_cannot_be_of_the_recording_is_told_of() -> None:
    """As Kineto wrote in 2021: kernels at time 0."""
    now = 1_600_000_000 * 10**9
    host = (op("aten::mm", now, now + 100), call("cudaLaunchKernel", now + 10, now + 20))
    late = kernel("c", now + temporal_breakdown.FAR_NS, now + temporal_breakdown.FAR_NS + 5)
    findings = temporal_breakdown.analyze(trace_of(*host, kernel("a", 0, 0), kernel("b", now + 30, now + 40), late))
    assert rows_of(findings, "busy_ns") == [(15,)]
    assert [(diagnostic.code, diagnostic.count) for diagnostic in findings.diagnostics] == [("work_far_from_host", 1)]
    assert not temporal_breakdown.analyze(trace_of(kernel("a", 0, 0), kernel("b", now, now + 10))).diagnostics


OVERLAP = ("communication_ns", "computation_ns", "overlap_ns", "overlap_ratio")


def exposed(findings: Findings) -> SliceTrack:
    (track,) = findings.annotations
    assert track.name == "Exposed communication"
    return track


def test_communication_is_hidden_where_computation_runs() -> None:
    trace = trace_of(
        kernel("gemm", 0, 10),
        kernel("ncclA", 5, 25, stream=8, correlation=3),
        kernel("ncclB", 20, 30, stream=9, correlation=4),
        kernel("gemm", 12, 14),
        kernel("gemm", 26, 40),
    )
    findings = communication_computation_overlap.analyze(trace)
    assert rows_of(findings, *OVERLAP) == [(25, 26, 11, 11 / 25)]
    assert slices_of(exposed(findings)) == [
        {"ts": 10, "dur": 2, "name": "ncclA", "correlation": 3},
        {"ts": 14, "dur": 12, "name": "ncclA", "correlation": 3},
    ]


def test_a_slice_is_named_after_a_kernel_that_still_runs() -> None:
    trace = trace_of(kernel("ncclLong", 0, 30, stream=8), kernel("ncclShort", 2, 4, stream=9), kernel("gemm", 5, 10))
    expected = ["ncclLong", "ncclLong"]
    assert [each["name"] for each in slices_of(exposed(communication_computation_overlap.analyze(trace)))] == expected


def test_without_communication_there_is_no_ratio() -> None:
    findings = communication_computation_overlap.analyze(trace_of(kernel("gemm", 0, 10)))
    assert rows_of(findings, *OVERLAP) == [(0, 10, 0, None)]
    assert findings.annotations == []


def test_computation_of_another_device_hides_nothing() -> None:
    trace = trace_of(kernel("nccl", 0, 10, device=0), kernel("gemm", 0, 10, device=1))
    assert rows_of(communication_computation_overlap.analyze(trace), "device", "overlap_ns") == [(0, 0), (1, 0)]
