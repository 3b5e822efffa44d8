"""What kind of work a GPU does: sums that add up, unions, and matrix units."""

from __future__ import annotations

from augment.analyses import kernel_breakdown, kernel_family_breakdown
from tables import call, copy, kernel, op, rows_of, trace_of

GEMM = "ampere_bf16_s16816gemm_bf16_128x128_tn"


def test_families_add_up_and_overlap_counts_once() -> None:
    trace = trace_of(
        kernel(GEMM, 0, 10),
        kernel("volta_sgemm_128x64_nt", 5, 20, stream=8),
        kernel("vectorized_elementwise_kernel", 20, 25),
        kernel("ncclDevKernel_AllReduce_Sum", 30, 40),
        copy("Memcpy HtoD (Pageable -> Device)", 40, 42),
        kernel("nobodys", 50, 51),
    )
    columns = ("family", "count", "sum_ns", "busy_ns", "matrix_used_ns", "matrix_not_used_ns")
    assert rows_of(kernel_family_breakdown.analyze(trace), *columns) == [
        ("gemm", 2, 25, 20, 10, 15),
        ("all_reduce", 1, 10, 10, None, None),
        ("elementwise", 1, 5, 5, None, None),
        ("memory", 1, 2, 2, None, None),
        ("unknown", 1, 1, 1, None, None),
    ]
    ratios = [ratio for (ratio,) in rows_of(kernel_family_breakdown.analyze(trace), "time_ratio")]
    assert sum(ratios) == 1.0


def test_devices_have_rows_of_their_own() -> None:
    trace = trace_of(kernel(GEMM, 0, 10), kernel(GEMM, 0, 30, device=1))
    assert rows_of(kernel_family_breakdown.analyze(trace), "device", "busy_ns", "time_ratio") == [
        (0, 10, 1.0),
        (1, 30, 1.0),
    ]


def test_a_name_that_several_operators_launch_is_of_the_family_in_which_it_runs_longest() -> None:
    trace = trace_of(
        op("aten::sum", 0, 8),
        call("cudaLaunchKernel", 2, 4, correlation=1),
        kernel("shared", 20, 30, correlation=1),
        op("aten::native_layer_norm", 10, 18),
        call("cudaLaunchKernel", 12, 14, correlation=2),
        kernel("shared", 30, 70, correlation=2),
    )
    assert rows_of(kernel_breakdown.analyze(trace), "name", "family", "matrix_units") == [("shared", "norm", None)]


def test_matrix_units_of_names() -> None:
    trace = trace_of(kernel(GEMM, 0, 10), kernel("volta_sgemm_128x64_nt", 10, 30), kernel("my_gemm", 30, 31))
    assert rows_of(kernel_breakdown.analyze(trace), "family", "matrix_units") == [
        ("gemm", "not_used"),
        ("gemm", "used"),
        ("gemm", "unknown"),
    ]
