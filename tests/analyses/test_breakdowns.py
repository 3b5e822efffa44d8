from __future__ import annotations

import gzip
import json
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from augment.analyses import (
    kernel_breakdown,
    kernel_family_breakdown,
    kernel_type_breakdown,
    operator_breakdown,
    user_annotation_breakdown,
)
from augment.core.trace import Category, Track
from augment.facts.gpu.gpu_work import gpu_work
from augment.facts.names import KernelType, copy_kind, type_of
from augment.readers import read
from simulator import JobOptions, simulate
from tables import Event, annotation, call, copy, kernel, launched_kernel, op, rows_of, trace_of


def test_every_name_has_its_figures() -> None:
    trace = trace_of(kernel("a", 0, 10), kernel("a", 20, 50), kernel("a", 60, 62), kernel("b", 70, 75, stream=8))
    assert rows_of(
        kernel_breakdown.analyze(trace), "name", "count", "sum_ns", "mean_ns", "min_ns", "max_ns", "std_ns"
    ) == [("a", 3, 42, 14.0, 2, 30, statistics.stdev([10, 30, 2])), ("b", 1, 5, 5.0, 5, 5, 0.0)]


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


# What kind of work a GPU does: sums that add up, unions, and matrix units.
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
    expected = [(0, 10, 1.0), (1, 30, 1.0)]
    assert rows_of(kernel_family_breakdown.analyze(trace), "device", "busy_ns", "time_ratio") == expected


def test_a_name_that_several_operators_launch_is_of_the_family_in_which_it_runs_longest() -> None:
    trace = trace_of(
        op("aten::sum", 0, 8),
        *launched_kernel("shared", (2, 4), (20, 30), correlation=1),
        op("aten::native_layer_norm", 10, 18),
        *launched_kernel("shared", (12, 14), (30, 70), correlation=2),
    )
    assert rows_of(kernel_breakdown.analyze(trace), "name", "family", "matrix_units") == [("shared", "norm", None)]


def test_matrix_units_of_names() -> None:
    trace = trace_of(kernel(GEMM, 0, 10), kernel("volta_sgemm_128x64_nt", 10, 30), kernel("my_gemm", 30, 31))
    expected = [("gemm", "not_used"), ("gemm", "used"), ("gemm", "unknown")]
    assert rows_of(kernel_breakdown.analyze(trace), "family", "matrix_units") == expected


def test_busy_time_is_divided_by_what_runs_at_each_moment() -> None:
    trace = trace_of(
        kernel("gemm", 0, 10), kernel("ncclKernel", 5, 20, stream=8), copy("Memset (Device)", 15, 25, stream=9)
    )
    assert rows_of(kernel_type_breakdown.analyze(trace), "kernel_types", "time_ns", "time_ratio") == [
        ("COMPUTATION", 5, 0.2),
        ("COMMUNICATION", 5, 0.2),
        ("MEMORY", 5, 0.2),
        ("COMMUNICATION overlapping COMPUTATION", 5, 0.2),
        ("COMMUNICATION overlapping MEMORY", 5, 0.2),
    ]


def test_all_three_at_once() -> None:
    trace = trace_of(kernel("a", 0, 4), kernel("nccl", 0, 4, stream=8), copy("Memcpy DtoD", 0, 4, stream=9))
    assert rows_of(kernel_type_breakdown.analyze(trace), "kernel_types", "time_ratio") == [
        ("COMMUNICATION overlapping COMPUTATION overlapping MEMORY", 1.0)
    ]


def test_no_time_at_all_has_no_row() -> None:
    assert rows_of(kernel_type_breakdown.analyze(trace_of(kernel("a", 5, 5)))) == []


@pytest.mark.parametrize(("name", "kernel_type"), [
    ("ampere_sgemm_128x64_tn", KernelType.COMPUTATION),
    ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", KernelType.COMMUNICATION),
    ("rcclGenericKernel", KernelType.COMMUNICATION),
    ("void vllm::cross_device_reduce_1stage<half>", KernelType.COMMUNICATION),
    ("multimem_all_reduce_kernel", KernelType.COMMUNICATION),
    ("deep_ep::intranode::dispatch", KernelType.COMMUNICATION),
    ("void dpsk::ep::internode::combine<false, 8, __nv_bfloat16, 8>(int4*)", KernelType.COMMUNICATION),
    ("void my::step::internodes()", KernelType.COMPUTATION),
    ("mori::moe::EpDispatchIntraNodeKernel<__hip_bfloat16>", KernelType.COMMUNICATION),
    ("mscclKernel_Sum_hip_bfloat16_Simple_false", KernelType.COMMUNICATION),
    ("void userbuffers_fp16_sum_inplace_gpu_rr_rs_oop<2>(int)", KernelType.COMMUNICATION),
    ("void c10d::symmetric_memory::(anonymous namespace)::barrier_kernel(unsigned int**)", KernelType.COMMUNICATION),
    ("hcom_broadcast__123_0_1", KernelType.COMMUNICATION),
    ("MEMCPY_ASYNC", KernelType.MEMORY),
    ("void at::native::vecClamp<float>", KernelType.COMPUTATION),
    ("__amd_rocclr_copyBuffer", KernelType.COMPUTATION),
    ("elementwise_kernel_memory::mori_a2a", KernelType.COMPUTATION),
    ("triton_poi_fused_all_reduce_mul_0", KernelType.COMPUTATION),
    ("void vllm::SyncNorm", KernelType.COMPUTATION),
    ("hipcub::DeviceReduce", KernelType.COMPUTATION),
    ("Memcpy DtoH (Device -> Pinned)", KernelType.MEMORY),
    ("Memset (Device)", KernelType.MEMORY),
])  # fmt: skip
def test_type_of(name: str, kernel_type: KernelType) -> None:
    assert type_of(name) is kernel_type


@pytest.mark.parametrize(("name", "kind"), [
    ("Memcpy HtoD (Pageable -> Device)", "Memcpy HtoD"),
    ("Memset (Unknown)", "Memset"),
    ("CopyHostToDevice", "Memcpy HtoD"),
])  # fmt: skip
def test_copy_kind(name: str, kind: str) -> None:
    assert copy_kind(name) == kind


COLUMNS = ("operator", "input_shapes", "count", "cpu_ns", "self_cpu_ns", "gpu_ns", "self_gpu_ns", "kernel_count")


def shaped(name: str, ts: int, end: int, dims: Any) -> Event:
    return Event(Category.CPU_OP, name, ts, end, Track(0, 100, 1), args={"Input Dims": dims})


def operators_of(*events: Event) -> list[tuple[Any, ...]]:
    return rows_of(operator_breakdown.analyze(trace_of(*events)), *COLUMNS)


def test_times_of_an_operator_and_of_those_in_it() -> None:
    assert operators_of(
        op("linear", 0, 100), op("addmm", 10, 50), op("addmm", 60, 80), op("other", 5, 95, thread=2),
        call("l", 20, 25, correlation=1), kernel("a", 200, 210, correlation=1),
        call("l", 85, 86, correlation=2), kernel("b", 210, 215, correlation=2),
        call("l", 300, 301, correlation=3), kernel("c", 310, 312, correlation=3), kernel("unknown", 400, 401),
    ) == [
        ("addmm", None, 2, 60, 60, 10, 10, 1),
        ("linear", None, 1, 100, 40, 15, 5, 1),
        ("other", None, 1, 90, 90, 0, 0, 0),
        (None, None, 0, 0, 0, 3, 3, 2),
    ]  # fmt: skip


def test_shapes_tell_operators_apart() -> None:
    assert operators_of(
        shaped("mm", 0, 10, [[2, 3], [3, 4]]), shaped("mm", 10, 25, [[2, 3], [3, 4]]), shaped("mm", 30, 31, [[], []]),
        op("mm", 50, 52), kernel("k", 0, 1),
    ) == [
        ("mm", "[[2, 3], [3, 4]]", 2, 25, 25, 0, 0, 0),
        ("mm", None, 1, 2, 2, 0, 0, 0),
        ("mm", "[[], []]", 1, 1, 1, 0, 0, 0),
        (None, None, 0, 0, 0, 1, 1, 1),
    ]  # fmt: skip


def test_without_a_gpu_nothing_is_said_of_it() -> None:
    assert operators_of(op("mm", 0, 10)) == [("mm", None, 1, 10, 10, None, None, None)]


def test_operators_of_a_simulated_job_by_a_plain_loop(tmp_path: Path) -> None:
    ((path, _),) = simulate(JobOptions(ranks=1, steps=2, layers=2, stacks=True), tmp_path)
    timed = [event for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"] if event["ph"] == "X"]
    ops = [each for each in timed if each["cat"] == "cpu_op"]
    calls = {each["args"]["correlation"]: each for each in timed if each["cat"] in ("cuda_runtime", "cuda_driver")}

    def around(inner: dict[str, Any]) -> list[dict[str, Any]]:
        """From outer to inner."""
        rows = [each for each in ops if each["tid"] == inner["tid"] and each is not inner
                 and each["ts"] <= inner["ts"] < each["ts"] + each["dur"]]  # fmt: skip
        return sorted(rows, key=lambda item: item["ts"])

    def key(value: dict[str, Any]) -> tuple[str, str | None]:
        dims = value["args"].get("Input Dims")
        return value["name"], None if dims is None else json.dumps(dims)

    known: dict[Any, list[int]] = defaultdict(lambda: [0] * 6)
    for each in ops:
        ns = round(each["dur"] * 1000)
        known[key(each)] = [a + b for a, b in zip(known[key(each)], (1, ns, ns, 0, 0, 0), strict=True)]
        for outer in around(each)[-1:]:
            known[key(outer)][2] -= ns
    for work in (each for each in timed if each["cat"] in ("kernel", "gpu_memcpy", "gpu_memset")):
        ns, outers = round(work["dur"] * 1000), around(calls[work["args"]["correlation"]])
        for outer in outers:
            known[key(outer)][3] += ns
        known[key(outers[-1])][4] += ns
        known[key(outers[-1])][5] += 1
    trace = read(str(path))
    outcome = operator_breakdown.analyze(trace)
    assert {row[:2]: list(row[2:]) for row in rows_of(outcome, *COLUMNS)} == known
    work_ns = int((gpu_work(trace).end - gpu_work(trace).ts).sum())
    assert sum(row.self_gpu_ns for row in outcome.rows) == work_ns


def on_gpu(name: str, ts: int, end: int, device: int = 0) -> Event:
    return Event(Category.GPU_USER_ANNOTATION, name, ts, end, Track(0, device, 7, device, 7))


def test_both_sides_by_name() -> None:
    trace = trace_of(
        annotation("a", 0, 100), annotation("b", 10, 20, thread=2), annotation("a", 110, 120, thread=3),
        on_gpu("a", 50, 90), on_gpu("a", 50, 80, device=1), kernel("a", 0, 1),
    )  # fmt: skip
    assert rows_of(user_annotation_breakdown.analyze(trace),
                   "side", "device", "name", "count", "sum_ns", "mean_ns", "min_ns", "max_ns") == [
        ("cpu", None, "a", 2, 110, 55, 10, 100),
        ("cpu", None, "b", 1, 10, 10, 10, 10),
        ("gpu", 0, "a", 1, 40, 40, 40, 40),
        ("gpu", 1, "a", 1, 30, 30, 30, 30),
    ]  # fmt: skip
    assert rows_of(user_annotation_breakdown.analyze(trace), "std_ns")[:2] == [(pytest.approx(63.63961),), (0,)]


def test_annotations_of_a_simulated_job_by_a_plain_loop(tmp_path: Path) -> None:
    ((path, _),) = simulate(JobOptions(ranks=1, steps=3, layers=2), tmp_path)
    durations: dict[tuple[str, str], list[int]] = defaultdict(list)
    sides = {"user_annotation": "cpu", "gpu_user_annotation": "gpu"}
    for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]:
        if event["ph"] == "X" and event["cat"] in sides:
            durations[sides[event["cat"]], event["name"]].append(round(event["dur"] * 1000))
    rows = user_annotation_breakdown.analyze(read(str(path))).rows
    assert len(rows) == len(durations)
    for row in rows:
        part = durations[row.side, row.name]
        assert (row.count, row.sum_ns, row.min_ns, row.max_ns) == (len(part), sum(part), min(part), max(part))
        assert row.std_ns == pytest.approx(statistics.stdev(part) if len(part) > 1 else 0)
