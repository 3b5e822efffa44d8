"""Operators held against their roof."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

import augment
from augment.analyses import cupti_counters, roofline
from augment.core import Category, CounterTrack, Skipped, SliceTrack, Trace, Track
from augment.facts.operators.peaks import union_ns
from augment.readers import read
from simulator import JobOptions, simulate
from tables import Event, call, launched_kernel, op, rows_of, shaped, slices_of, trace_of

SHARED = Path(__file__).parents[3] / "shared" / "traces"
H100 = {"id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85028372480}
TENSOR, SIMT = "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize32x32x8", "ampere_sgemm_128x64_tn"


def on_h100(*events: Event) -> Trace:
    trace = trace_of(*events)
    return replace(trace, source=replace(trace.source, metadata={"deviceProperties": [H100]}))


def launched(number: int, at: int, ts: int, end: int, name: str = "nvjet_hsh_128x256", stream: int = 7) -> list[Event]:
    return [*launched_kernel(name, (at, at + 1), (ts, end), correlation=number, stream=stream)]


def mm(m: int, k: int, n: int, types: str = "c10::BFloat16") -> dict[str, object]:
    return shaped([m, k], [k, n], types=types)


def test_a_product_bound_by_compute_and_a_copy_bound_by_memory() -> None:
    trace = on_h100(
        op("aten::mm", 0, 10, args=mm(4096, 4096, 4096)), *launched(1, 2, 1000, 201_000),
        op("aten::copy_", 20, 30, args=shaped([1 << 26], [1 << 26])), *launched(2, 22, 300_000, 400_000, "copy_kernel"),
    )  # fmt: skip
    flops, size = 2 * 4096**3, 4 << 26
    columns = ("operator", "number", "flops", "size_bytes", "bound", "roof_ns", "lost_ns", "confidence")
    assert rows_of(roofline.analyze(trace), *columns) == [
        (
            "aten::mm",
            "bf16",
            flops,
            6 * 4096**2,
            "compute",
            round(flops / 989.4e3),
            200_000 - round(flops / 989.4e3),
            "high",
        ),
        ("aten::copy_", None, None, size, "memory", round(size / 3350), round(100_000 - size / 3350), "modelled_bytes"),
    ]


@pytest.mark.parametrize(("name", "number", "rate"), [(TENSOR, "tf32", 494.7), (SIMT, "fp32", 67)])
def test_fp32_has_the_rate_of_what_its_kernel_used(name: str, number: str, rate: float) -> None:
    trace = on_h100(op("aten::mm", 0, 9, args=mm(4096, 4096, 4096, "float")), *launched(1, 2, 1000, 9_001_000, name))
    assert rows_of(roofline.analyze(trace), "number", "roof_ns") == [(number, round(2 * 4096**3 / rate / 1e3))]


def test_fp32_of_an_unknown_kernel_has_no_roof() -> None:
    events = op("aten::mm", 0, 9, args=mm(4096, 4096, 4096, "float")), *launched(1, 2, 1000, 9_001_000, "gemm_x")
    assert rows_of(roofline.analyze(on_h100(*events)), "number", "roof_ns", "bound", "confidence") == [
        (None, None, "unknown", "unknown")
    ]
    v100 = {"deviceProperties": [{"id": 0, "name": "Tesla V100-SXM2-32GB"}]}  # which has a single rate for them
    other = trace_of(*events)
    other = replace(other, source=replace(other.source, metadata=v100))
    assert rows_of(roofline.analyze(other), "number", "bound") == [("fp32", "compute")]


def test_a_short_operator_is_bound_by_latency() -> None:
    trace = on_h100(op("aten::mm", 0, 9, args=mm(16, 16, 16)), *launched(1, 2, 1000, 4000))
    assert rows_of(roofline.analyze(trace), "bound") == [("latency",)]


def test_sequences_of_unknown_lengths_may_leave_the_bound_open() -> None:
    qkv = [16384, 6, 128]
    args = shaped(qkv, qkv, qkv, [128], [128], *([] for _ in range(8)), values={8: "True", 11: "-1", 12: "-1"})
    trace = on_h100(
        op("aten::_flash_attention_forward", 0, 9, args=args), *launched(1, 2, 1000, 2_001_000, "flash_fwd")
    )
    assert rows_of(roofline.analyze(trace), "bound", "confidence") == [("unknown", "bounded")]


def test_bytes_that_cannot_have_been_moved_are_not_believed() -> None:
    trace = on_h100(
        op("aten::copy_", 0, 9, args=shaped([1 << 30], [1 << 30])), *launched(1, 2, 1000, 11_000, "copy_kernel")
    )
    findings = roofline.analyze(trace)
    assert rows_of(findings, "bound", "roof_ns") == [("unknown", None)]
    assert [diagnostic.code for diagnostic in findings.diagnostics] == ["bytes_not_moved"]
    assert not findings.annotations  # nor is a rate of memory drawn that there never was


def test_what_is_faster_than_the_peak_is_told() -> None:
    findings = roofline.analyze(on_h100(op("aten::mm", 0, 9, args=mm(4096, 4096, 4096)), *launched(1, 2, 1000, 2000)))
    assert [diagnostic.code for diagnostic in findings.diagnostics] == ["above_peak"]


def test_an_unknown_device_has_rates_but_no_roof() -> None:
    result = roofline.analyze(trace_of(op("aten::mm", 0, 9, args=mm(4096, 4096, 4096)), *launched(1, 2, 1000, 201_000)))
    assert rows_of(result, "achieved_tflops", "roof_ns", "bound") == [(2 * 4096**3 / 200_000 / 1e3, None, "unknown")]
    assert ["--peak bf16=" in diagnostic.message for diagnostic in result.diagnostics] == [True]


def test_without_shapes_it_says_how_to_record_them() -> None:
    findings = roofline.analyze(trace_of(op("aten::mm", 0, 9), *launched(1, 2, 1000, 201_000)))
    assert "record_shapes=True" in findings.reason


def test_drawn() -> None:
    trace = on_h100(
        op("aten::mm", 0, 10, args=mm(4096, 4096, 4096)), *launched(1, 2, 1000, 201_000),
        *launched(2, 4, 201_000, 202_000, "splitK"),
        op("aten::mm", 20, 30, args=mm(4096, 4096, 4096)), *launched(3, 22, 202_000, 402_000),
    )  # fmt: skip
    findings = roofline.analyze(trace)
    counters = {each.name: each for each in findings.annotations if isinstance(each, CounterTrack)}
    rate = counters["Achieved TFLOP/s"]
    assert rate.values[-1] == 0
    done = float((rate.values[:-1] * np.diff(rate.ts)).sum()) * 1e3
    assert done == pytest.approx(4 * 4096**3, rel=1e-6)  # the area below the counter are the operations
    [slices] = [annotation for annotation in findings.annotations if isinstance(annotation, SliceTrack)]
    expected = [(1000, 201_000, "compute-bound", "compute"), (202_000, 200_000, "compute-bound", "compute")]
    assert [(drawn["ts"], drawn["dur"], drawn["name"], drawn["bound"]) for drawn in slices_of(slices)] == expected
    assert [slices.inner.values[code] for code in slices.inner.codes] == ["mm 69 % of roof"] * 2


def test_a_rate_far_below_the_peak_is_not_drawn() -> None:
    """Half a million operations in 200 µs: 2.6 GFLOP/s, shown as 3m TFLOP/s."""
    findings = roofline.analyze(on_h100(op("aten::mm", 0, 10, args=mm(64, 64, 64)), *launched(1, 2, 1000, 201_000)))
    assert len(findings.rows) == 1
    assert not [annotation for annotation in findings.annotations if isinstance(annotation, CounterTrack)]


def test_the_union_of_each_group() -> None:
    random = np.random.default_rng(3)
    for _ in range(200):
        count, groups = int(random.integers(0, 12)), int(random.integers(1, 4))
        group = random.integers(0, groups, count).astype(np.int32)
        ts = random.integers(0, 20, count)
        end = ts + random.integers(0, 8, count)
        expected = [
            len({moment for each in range(count) if group[each] == part for moment in range(ts[each], end[each])})
            for part in range(groups)
        ]
        assert union_ns(group, ts, end, groups).tolist() == expected


@pytest.mark.skipif(not SHARED.exists(), reason="the recorded traces are not at hand")
@pytest.mark.parametrize(
    ("folder", "name"),
    [("h100_8rank_modded_nanogpt", "rank0"), ("mi300_tracelens", "resnet_act_checkpoint_rank0of8"),
     ("a100_sam_fast", "amg_example_trace"), ("xdit_flux_mi300_tracelens", "capture_trace_rank_0"),
     ("hta_trace_diff_pair", "control"), ("pairs_h100_vs_mi300_tracelens", "qwen1.5_0.5b_h100")],
)  # fmt: skip
def test_no_recorded_product_is_faster_than_its_dense_peak(folder: str, name: str) -> None:
    findings = roofline.analyze(augment.read(SHARED / folder / f"{name}.json.gz"))
    fast = [row for row in findings.rows if row.flops and row.roof_ratio is not None and row.bound == "compute"]
    assert all(row.roof_ratio <= 1 for row in fast)
    assert "above_peak" not in {diagnostic.code for diagnostic in findings.diagnostics}


# CUPTI's counters by operator.
OP = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum"


def measured(ts: int, **args: float) -> Event:
    return Event(Category.CUDA_PROFILER_RANGE, "__missing__", ts, ts + 5, Track(0, 0, 0), args=args)


def counted(ts: int, **by_op: int) -> Event:
    return measured(ts, **{OP.format(name): value for name, value in by_op.items()})


def test_the_nth_range_is_of_the_nth_launch() -> None:
    findings = cupti_counters.analyze(
        trace_of(
            op("aten::linear", 0, 30),
            op("aten::addmm", 5, 25),
            call("cudaLaunchKernel", 10, 12, correlation=1),
            call("cuLaunchKernel", 11, 12, correlation=1),  # within the other
            call("cudaMemcpyAsync", 13, 14, correlation=2),
            call("cudaLaunchKernelExC", 15, 16, correlation=3),
            call("cuLaunchKernel", 40, 41, correlation=4),
            counted(100, ffma=10, fadd=1),
            counted(101, ffma=20, fadd=2),
            counted(102, hmul=7, dfma=1),
        )
    )
    assert findings.partial is None
    assert rows_of(findings, "outer_operator", "operator", "counter", "statistic", "value", "kernel_count") == [
        ("aten::linear", "aten::addmm", OP.format("ffma"), "sum", 30, 2),
        ("aten::linear", "aten::addmm", OP.format("fadd"), "sum", 3, 2),
        ("aten::linear", "aten::addmm", "flop", "sum", 63, 2),
        (None, None, OP.format("hmul"), "sum", 7, 1),
        (None, None, OP.format("dfma"), "sum", 1, 1),
        (None, None, "flop", "sum", 9, 1),
    ]


def test_other_counters_are_not_summed() -> None:
    findings = cupti_counters.analyze(
        trace_of(
            measured(1, **{"sm__throughput.avg.pct": 10.0, "x.max": 3, "x.min": 3, "text": "a"}),  # type: ignore[arg-type]
            measured(2, **{"sm__throughput.avg.pct": 20.0, "x.max": 4, "x.min": 2}),
        )
    )
    assert findings.partial == "2 ranges and 0 launches of kernels: nothing tells which belongs to which"
    assert rows_of(findings, "operator", "counter", "statistic", "value") == [
        (None, "sm__throughput.avg.pct", "mean", 15.0), (None, "x.max", "max", 4), (None, "x.min", "min", 2)
    ]  # fmt: skip


def test_ranges_without_counters() -> None:
    assert isinstance(cupti_counters.analyze(trace_of(measured(1))), Skipped)


def test_a_simulated_job(tmp_path: Path) -> None:
    ((path, _),) = simulate(JobOptions(ranks=1, steps=2, layers=2, counters=True), tmp_path)
    trace = read(str(path))
    findings = cupti_counters.analyze(trace)
    assert findings.partial is None
    ranges = trace.args_of(trace.events.slices_of(Category.CUDA_PROFILER_RANGE))
    expected = sum(2 * args[OP.format("ffma")] + args[OP.format("fadd")] for args in ranges)
    assert sum(row.value for row in findings.rows if row.counter == "flop") == expected
    # the name of a kernel goes into its fadd counter: so each operator's sum is that of the kernels it launched
    kernels = trace.events.slices_of(Category.KERNEL)
    external = {args["External id"]: 0 for args in trace.args_of(kernels)}
    for args, name in zip(trace.args_of(kernels), trace.names_of(kernels), strict=True):
        external[args["External id"]] += sum(map(ord, name))
    operators = trace.events.slices_of(Category.CPU_OP)
    by_operator: dict[str, int] = {}
    for args, name in zip(trace.args_of(operators), trace.names_of(operators), strict=True):
        if args["External id"] in external:
            by_operator[name] = by_operator.get(name, 0) + external[args["External id"]]
    summed: dict[str | None, float] = {}
    for row in findings.rows:
        if row.counter == OP.format("fadd"):
            summed[row.operator] = summed.get(row.operator, 0) + row.value
    assert {name: value for name, value in summed.items() if name in by_operator} == by_operator


def test_real_trace(shared_traces: Path) -> None:
    findings = cupti_counters.analyze(read(str(shared_traces / "hta_cupti" / "cupti_profiler.json.gz")))
    assert findings.partial is None
    assert sum(row.kernel_count for row in findings.rows if row.counter == "flop") == 77
    assert all(row.operator for row in findings.rows)
