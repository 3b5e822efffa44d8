from __future__ import annotations

from augment.analyses import communication_computation_overlap
from augment.core.annotations import SliceTrack
from augment.core.findings import Findings
from tables import kernel, rows_of, slices_of, trace_of

COLUMNS = ("communication_ns", "computation_ns", "overlap_ns", "overlap_ratio")


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
    assert rows_of(findings, *COLUMNS) == [(25, 26, 11, 11 / 25)]
    assert slices_of(exposed(findings)) == [
        {"ts": 10, "dur": 2, "name": "ncclA", "correlation": 3},
        {"ts": 14, "dur": 12, "name": "ncclA", "correlation": 3},
    ]


def test_a_slice_is_named_after_a_kernel_that_still_runs() -> None:
    trace = trace_of(kernel("ncclLong", 0, 30, stream=8), kernel("ncclShort", 2, 4, stream=9), kernel("gemm", 5, 10))
    assert [each["name"] for each in slices_of(exposed(communication_computation_overlap.analyze(trace)))] == [
        "ncclLong",
        "ncclLong",
    ]


def test_without_communication_there_is_no_ratio() -> None:
    findings = communication_computation_overlap.analyze(trace_of(kernel("gemm", 0, 10)))
    assert rows_of(findings, *COLUMNS) == [(0, 10, 0, None)]
    assert findings.annotations == []


def test_computation_of_another_device_hides_nothing() -> None:
    trace = trace_of(kernel("nccl", 0, 10, device=0), kernel("gemm", 0, 10, device=1))
    assert rows_of(communication_computation_overlap.analyze(trace), "device", "overlap_ns") == [(0, 0), (1, 0)]
