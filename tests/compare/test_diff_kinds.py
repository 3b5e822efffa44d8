"""The comparison by kind of work, work of other names matched by family, and efficiency of both sides."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from msgspec.structs import replace

import augment
from augment.compare import diff
from augment.core import Context, GraphCapture, Trace
from diffs import adds_up, partners_are_partners, rows
from simulator import JobOptions, simulate
from tables import annotation, call, kernel, op, shaped, trace_of

pytestmark = pytest.mark.slow

OTHER = {"sgemm_1": "Cijk_Ailk_1", "layer_norm_1": "rmsnorm_2", "elementwise_kernel_1": "elementwise_kernel_2"}


def recording(kernels: list[tuple[str, int]], *, within: str = "op", launch: str = "cudaGraphLaunch") -> list:
    """A step of kernels, one after another, that one operator or annotation launched."""
    events, at = [annotation("ProfilerStep#1", 0, 2000)], 40
    around = op if within == "op" else annotation
    events += [around("aten::layer" if within == "op" else "decode", 10, 30), call(launch, 15, 25, correlation=1)]
    for name, ns in kernels:
        events.append(kernel(name, at, at + ns, correlation=1))
        at += ns + 10
    return events


def renamed(kernels: list[tuple[str, int]], factor: int = 1) -> list[tuple[str, int]]:
    return [(OTHER.get(name, name), ns * factor) for name, ns in kernels]


WORK = [("sgemm_1", 100), ("elementwise_kernel_1", 20), ("sgemm_1", 120), ("layer_norm_1", 30)]


@pytest.mark.parametrize("within", ["op", "annotation"])
def test_work_of_other_names_is_matched_by_family(within: str) -> None:
    result = diff(trace_of(*recording(WORK, within=within)), trace_of(*recording(renamed(WORK, 2), within=within)))
    adds_up(result)
    partners_are_partners(result)
    parts = {row.control_names[0]: row for row in rows(result, "diff_waterfall") if row.kind == "computation"}
    assert {(name, row.change, row.test_names[0], row.delta_ns) for name, row in parts.items()} == {
        ("sgemm_1", "renamed", "Cijk_Ailk_1", 220),
        ("elementwise_kernel_1", "renamed", "elementwise_kernel_2", 20),
        ("layer_norm_1", "renamed", "rmsnorm_2", 30),
    }
    (pair,) = result.pairs
    assert pair.alignment.work_of_control.tolist() == [0, 1, 2, 3]
    assert pair.alignment.renamed.all()
    kinds = {row.kind_of_work: row for row in rows(result, "diff_kinds")}
    assert (kinds["gemm"].control_count, kinds["gemm"].control_ns, kinds["gemm"].test_sum_ns) == (2, 220, 440)
    assert kinds["norm"].delta_ns == 30


def test_families_keep_their_order_when_others_come_between() -> None:
    """A fused kernel less, and the rest in another order: the n-th of a family is the n-th."""
    test = [("elementwise_kernel_2", 20), ("Cijk_Ailk_1", 90), ("Cijk_Ailk_1", 95)]
    result = diff(trace_of(*recording(WORK)), trace_of(*recording(test)))
    adds_up(result)
    assert result.pairs[0].alignment.work_of_control.tolist() == [1, 0, 2, -1]
    assert [row.change for row in rows(result, "diff_waterfall") if row.control_names[:1] == ["layer_norm_1"]] == [
        "deleted"
    ]


def test_an_unknown_family_matches_only_within_an_operator() -> None:
    first, other = [("zzz_1", 50)], [("yyy_2", 60)]
    in_operator = diff(trace_of(*recording(first)), trace_of(*recording(other)))
    assert [row.change for row in rows(in_operator, "diff_waterfall") if row.kind == "computation"] == ["renamed"]
    in_graph = diff(trace_of(*recording(first, within="a")), trace_of(*recording(other, within="a")))
    assert {row.change for row in rows(in_graph, "diff_waterfall") if row.kind == "computation"} == {"added", "deleted"}
    for result in (in_operator, in_graph):
        adds_up(result)
        (unknown,) = [row for row in rows(result, "diff_kinds") if row.kind_of_work == "unknown"]
        assert unknown.delta_ns == 10


def captured() -> Trace:
    """The capture of a graph of a product and a sum: launches without kernels."""
    events = []
    for place, name in enumerate(("aten::mm", "aten::add")):
        at = 100 * place
        events += [op(name, at, at + 50, args=shaped([64, 64], [64, 64])),
                   call("cudaLaunchKernel", at + 10, at + 20, correlation=90 + place)]  # fmt: skip
    return trace_of(*events)


def test_kernels_of_graphs_have_the_operators_of_their_captures() -> None:
    sides = [trace_of(*recording([("sgemm_1", 100), ("zzz_1", 20 * factor)])) for factor in (1, 2)]
    with_captures = [replace(side, context=Context([GraphCapture(captured())])) for side in sides]
    result = diff(*with_captures)
    adds_up(result)
    partners_are_partners(result)
    parts = {row.path: row for row in rows(result, "diff_waterfall") if row.kind == "computation"}
    expected = {"aten::layer > aten::mm": ("aten::mm", 0), "aten::layer > aten::add": ("aten::add", 20)}
    assert {path: (row.operator, row.delta_ns) for path, row in parts.items()} == expected
    kinds = {row.kind_of_work: row.delta_ns for row in rows(result, "diff_kinds")}
    assert kinds["elementwise"] == 20
    assert "unknown" not in kinds  # as it is without captures
    assert "unknown" in {row.kind_of_work for row in rows(diff(*sides), "diff_kinds")}


def test_a_graph_against_eager_execution_by_operator() -> None:
    """Operators of the capture meet those that launched the same kernels one by one."""
    eager = [annotation("ProfilerStep#1", 0, 2000)]
    for place, (name, work) in enumerate((("aten::mm", "sgemm_1"), ("aten::add", "zzz_1"))):
        at = 100 * place
        eager += [op(name, at + 10, at + 60), call("cudaLaunchKernel", at + 15, at + 25, correlation=place + 1),
                  kernel(work, at + 40, at + 90, correlation=place + 1)]  # fmt: skip
    graph = trace_of(*recording([("sgemm_1", 70), ("zzz_1", 20)]), beside=[GraphCapture(captured())])
    result = diff(trace_of(*eager), graph)
    adds_up(result)
    parts = [row for row in rows(result, "diff_waterfall") if row.kind == "computation"]
    assert {row.operator: row.delta_ns for row in parts} == {"aten::mm": 20, "aten::add": -30}


def test_other_names_change_no_kind_of_work() -> None:
    """Metamorphic: kernels of the same times under other names of their family are no difference by kind."""
    result = diff(trace_of(*recording(WORK)), trace_of(*recording(renamed(WORK))))
    assert {row.delta_ns for row in rows(result, "diff_kinds")} == {0}


def test_peaks_of_both_sides_are_named_where_they_differ() -> None:
    """Products of FP32 without matrix units against the same in BF16: neither MFU is better."""
    device = {"id": 0, "name": "NVIDIA H100 80GB HBM3", "numSms": 132, "totalGlobalMem": 80_000_000_000}
    sides = []
    for types, name, ns in (("float", "ampere_sgemm_128x64_tn", 3_000_000), ("c10::BFloat16", "nvjet_hsh", 500_000)):
        events = []
        for step in range(4):
            at = 10_000_000 * step
            events += [annotation(f"ProfilerStep#{step}", at, at + 5_000_000),
                       op("aten::mm", at, at + 50, args=shaped([4096, 4096], [4096, 4096], types=types)),
                       call("cudaLaunchKernel", at + 10, at + 20, correlation=step + 1),
                       kernel(name, at + 100, at + 100 + ns + 7 * step, correlation=step + 1)]  # fmt: skip
        trace = trace_of(*events)
        sides.append(replace(trace, source=replace(trace.source, metadata={"deviceProperties": [device]})))
    row = next(row for row in rows(diff(*sides), "diff_efficiency") if row.figure == "mfu_ratio")
    assert row.control_peak == "fp32 67 TFLOP/s, memory 3350 GB/s"
    assert row.test_peak == "bf16 989.4 TFLOP/s, memory 3350 GB/s"
    assert row.test < row.control
    assert (row.better, row.verdict) == ("neither", "different")
    same = next(row for row in rows(diff(sides[0], sides[0]), "diff_efficiency") if row.figure == "mfu_ratio")
    assert (same.control_peak, same.better) == (same.test_peak, "higher")


def test_efficiency_of_both_sides(tmp_path: Path) -> None:
    job = JobOptions(ranks=1, steps=3, layers=2, collectives="none")
    sides = []
    for name, options in (("control", job), ("test", dataclasses.replace(job, stretch=2.0))):
        simulate(options, tmp_path / name)
        sides.append(augment.read(tmp_path / name / "rank0.pt.trace.json.gz"))
    result = diff(*sides)
    adds_up(result)
    figures = {row.figure: row for row in rows(result, "diff_efficiency")}
    assert figures["mfu_ratio"].test == pytest.approx(figures["mfu_ratio"].control / 2, rel=1e-5)
    assert figures["model_flops"].delta == 0
    assert figures["compute_above_ns"].verdict != "improvement"
    steps = {row.figure: row for row in rows(result, "diff_figures")}
    computing = ("ideal_compute_ns", "compute_above_ns", "memory_ideal_ns", "memory_above_ns", "latency_bound_ns",
                 "unmodelled_ns")  # fmt: skip
    assert sum(figures[name].test for name in computing) == pytest.approx(steps["compute_ns"].test, abs=1e-3)


def test_efficiency_says_what_lacks() -> None:
    outcome = diff(trace_of(*recording(WORK)), trace_of(*recording(WORK))).outcomes["diff_efficiency"]
    assert "no MFU of the control: shapes were not recorded: record with record_shapes=True" in outcome.reason


def test_two_vendors_with_graphs(shared_traces: Path) -> None:
    """SGLang's decoding is one graph on both GPUs, and no two kernels have a name in common."""
    folder = shared_traces / "sglang_qwen3_30b_b300_vs_mi300"
    result = diff(*(augment.read(path) for path in sorted(folder.glob("*.json.gz"))))
    kinds = {row.kind_of_work: row for row in rows(result, "diff_kinds")}
    assert {"gemm", "grouped_gemm", "attention", "norm", "moe_routing"} <= kinds.keys()
    busiest = sum(row.test_ns for row in kinds.values() if row.kind_of_work == "unknown")
    assert busiest < 0.05 * sum(row.test_ns for row in kinds.values())
    attention = [row for row in rows(result, "diff_waterfall") if "paged_attention" in " ".join(row.test_names)]
    assert [row.change for row in attention] == ["renamed"]
    assert "no MFU of the control" in (result.outcomes["diff_efficiency"].partial or "")
