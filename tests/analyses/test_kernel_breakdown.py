from __future__ import annotations

import statistics

from augment.analyses import kernel_breakdown
from tables import copy, kernel, rows_of, trace_of


def test_every_name_has_its_figures() -> None:
    trace = trace_of(kernel("a", 0, 10), kernel("a", 20, 50), kernel("a", 60, 62), kernel("b", 70, 75, stream=8))
    assert rows_of(
        kernel_breakdown.analyze(trace), "name", "count", "sum_ns", "mean_ns", "min_ns", "max_ns", "std_ns"
    ) == [
        ("a", 3, 42, 14.0, 2, 30, statistics.stdev([10, 30, 2])),
        ("b", 1, 5, 5.0, 5, 5, 0.0),
    ]


def test_rows_ascend_by_device_and_type_then_the_longest_first() -> None:
    trace = trace_of(
        kernel("z", 0, 5),
        kernel("a", 0, 5, stream=8),
        kernel("long", 0, 50, stream=9),
        copy("Memset (Device)", 0, 99, stream=1),
        kernel("nccl", 0, 1, stream=2),
        kernel("other", 0, 1, device="x"),
        kernel("far", 0, 1, device=10),
        kernel("near", 0, 1, device=2),
    )
    assert rows_of(kernel_breakdown.analyze(trace), "device", "kernel_type", "name") == [
        (0, "COMMUNICATION", "nccl"),
        (0, "COMPUTATION", "long"),
        (0, "COMPUTATION", "a"),
        (0, "COMPUTATION", "z"),
        (0, "MEMORY", "Memset (Device)"),
        (2, "COMPUTATION", "near"),
        (10, "COMPUTATION", "far"),
        ("x", "COMPUTATION", "other"),
    ]


def test_a_kernel_and_a_copy_of_one_name_are_two_rows() -> None:
    trace = trace_of(kernel("x", 0, 1), copy("x", 2, 4))
    assert rows_of(kernel_breakdown.analyze(trace), "kernel_type", "sum_ns") == [("COMPUTATION", 1), ("MEMORY", 2)]


def test_durations_of_equal_length_have_no_deviation() -> None:
    base = 1_712_195_495_406_752_797
    trace = trace_of(*(kernel("a", base + 10 * k, base + 10 * k + 7) for k in range(100)))
    assert rows_of(kernel_breakdown.analyze(trace), "count", "mean_ns", "std_ns") == [(100, 7.0, 0.0)]
