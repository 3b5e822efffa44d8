"""What a step's time went into: parts that add up, against a moment-by-moment count."""

import re
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace
from test_roofline import launched, mm, on_h100

import augment
from augment.analyses import model_flops, step_efficiency
from augment.analyses.step_efficiency import BESIDE, COMPUTING, Row, sentence
from augment.core import Skipped, Trace
from augment.facts.operators.peaks import roofs
from augment.facts.steps.step_windows import step_windows
from tables import Event, annotation, call, copy, kernel, op, rows_of, shaped, slices_of

SHARED = Path(__file__).parents[3] / "shared" / "traces"
PARTS = (*COMPUTING, *BESIDE)


def rows(trace: Trace) -> list[Row]:
    return list(step_efficiency.analyze(trace).rows)


def parts(row: Row) -> dict[str, int]:
    return {name: getattr(row, f"{name}_ns") for name in PARTS}


def test_a_step_of_known_parts() -> None:
    flops, copied = 2 * 4096**3, 4 << 26
    trace = on_h100(
        annotation("ProfilerStep#3", 0, 1_000_000),
        op("aten::mm", 0, 10, args=mm(4096, 4096, 4096)), *launched(1, 2, 1000, 201_000),
        op("aten::copy_", 20, 30, args=shaped([1 << 26], [1 << 26])), *launched(2, 22, 201_000, 301_000, "copy_kernel"),
        op("aten::mm", 40, 50, args=mm(16, 16, 16)), *launched(3, 42, 301_000, 304_000),
        op("my::op", 60, 70), *launched(4, 62, 304_000, 324_000, "mine"),
        call("cudaMemcpyAsync", 80, 81, correlation=5), copy("Memcpy DtoD", 324_000, 334_000, correlation=5),
    )  # fmt: skip
    [row] = rows(trace)
    peak, memory = flops / 989.4e3, copied / 3350
    small = 2 * 16**3 / 989.4e3
    expected = {
        "ideal_compute": peak + small, "compute_above": 200_000 - peak, "memory_ideal": memory,
        "memory_above": 100_000 - memory, "latency_bound": 3000 - small, "unmodelled": 20_000,
        "exposed_communication": 0, "exposed_memory": 10_000, "host_wait": 667_000, "kernel_wait": 0,
        "other_wait": 0,
    }  # fmt: skip
    assert parts(row) == {name: pytest.approx(ns, abs=1) for name, ns in expected.items()}
    assert sum(parts(row).values()) == row.wall_ns == 1_000_000
    assert row.flops == row.model_flops == flops + 2 * 16**3
    assert row.mfu_ratio == row.hfu_ratio == pytest.approx((peak + small) / 1e6)
    assert row.covered_ratio == pytest.approx(303 / 323)
    assert (row.peak, row.lacking) == ("bf16 989.4 TFLOP/s, memory 3350 GB/s", None)
    assert sentence(row) == "14 % MFU; 67 % host, 10 % memory-bound, 6.1 % below peak, 2.0 % not modelled"


def random_trace(seed: int) -> Trace:
    """Two steps, kernels of three streams that overlap as they will, operators of one, two or no kernels."""
    random = np.random.default_rng(seed)
    events: list[Event] = [annotation("ProfilerStep#1", 0, 150), annotation("ProfilerStep#2", 150, 400)]
    number, at = 0, 1
    free = {7: 5, 8: 5, 9: 5}
    while at < 300:
        size = int(random.choice([2, 40, 90]))
        name, shapes = [("aten::mm", mm(size, size, size)), ("aten::copy_", shaped([size, size], [size, size])),
                        ("my::op", {})][int(random.integers(3))]  # fmt: skip
        events.append(op(name, at, at + 20, args=shapes))
        for _ in range(int(random.integers(0, 3))):
            number += 1
            stream = int(random.choice([7, 8, 9]))
            begin = max(free[stream], at + int(random.integers(2, 40)))
            free[stream] = begin + int(random.integers(0, 30))
            kind = "ncclKernel_AllReduce" if random.random() < 0.2 else "k"
            events += launched(number, at + number % 10 + 1, begin, free[stream], kind, stream)
        at += 30
    return on_h100(*events)


@pytest.mark.parametrize("seed", range(25))
def test_shares_are_those_of_a_count_moment_by_moment(seed: int) -> None:
    trace = random_trace(seed)
    windows = step_windows(trace)
    result = {row.step: row for row in rows(trace)}
    for place, number in enumerate(windows.number.tolist()):
        row = result[number]
        assert sum(parts(row).values()) == row.wall_ns == windows.end[place] - windows.start[place]
        assert min(parts(row).values()) >= 0
        expected = counted(trace, int(windows.start[place]), int(windows.end[place]))
        part = parts(row)
        assert sum(part[name] for name in COMPUTING) == pytest.approx(expected["computing"], abs=1)
        assert part["unmodelled"] == pytest.approx(expected["unmodelled"], abs=1.01)
        assert part["exposed_communication"] == expected["communicating"]


def counted(trace: Trace, start: int, end: int) -> dict[str, float]:
    """The moments of a window, one by one."""
    from augment.facts.gpu.gpu_work import gpu_work
    from augment.facts.operators.operator_work import operator_work

    work, result, part = gpu_work(trace), operator_work(trace), roofs(trace)
    spent = dict.fromkeys(("computing", "communicating", "unmodelled"), 0.0)
    for moment in range(start, end):
        running = [each for each in range(len(work)) if work.ts[each] <= moment < work.end[each]]
        computing = [each for each in running if work.type[each] == 0]
        plain = [each for each in computing if result.owner[each] < 0 or np.isnan(part.roof_ns[result.owner[each]])]
        spent["computing"] += bool(computing)
        spent["communicating"] += bool(running) and not computing
        spent["unmodelled"] += len(plain) / max(len(computing), 1)
    return spent


def test_recomputation_is_hardwares_alone() -> None:
    node = "autograd::engine::evaluate_function: CheckpointFunctionBackward"
    trace = on_h100(
        op("aten::mm", 0, 10, args=mm(4096, 4096, 4096)), *launched(1, 2, 1000, 201_000),
        op(node, 20, 100), op("aten::mm", 30, 40, args=mm(4096, 4096, 4096)), *launched(2, 32, 201_000, 401_000),
    )  # fmt: skip
    [row] = rows(trace)
    assert row.model_flops == row.flops / 2
    assert row.hfu_ratio == pytest.approx(2 * (row.mfu_ratio or 0))
    assert "recomputed operations at the peak's rate" in sentence(row)


def test_types_of_number_are_held_against_their_own_peak() -> None:
    trace = on_h100(
        op("aten::mm", 0, 10, args=mm(4096, 4096, 4096)),
        *launched(1, 2, 1000, 201_000),
        op("aten::_scaled_mm", 20, 30, args=mm(4096, 4096, 4096, "c10::Float8_e4m3fn")),
        *launched(2, 22, 201_000, 401_000),
    )
    [row] = rows(trace)
    assert row.mfu_ratio == pytest.approx(2 * 4096**3 * (1 / 989.4e3 + 1 / 1978.9e3) / row.wall_ns)


@pytest.mark.parametrize(
    ("name", "lacks"),
    [("nvjet_hsh_128x256", True), ("zzz_of_unknown_work", True), ("vectorized_elementwise_kernel", False)],
)
def test_what_may_be_products_that_no_operator_tells_of_leave_no_mfu(name: str, lacks: bool) -> None:
    extra = [kernel(name, 300_000, 400_000)]
    trace = on_h100(op("aten::mm", 0, 10, args=mm(4096, 4096, 4096)), *launched(1, 2, 1000, 201_000), *extra)
    [row] = rows(trace)
    assert (row.mfu_ratio is None) == lacks
    assert ("67 %" in (row.lacking or "")) == lacks
    assert lacks == (
        "no operator of its own (as in CUDA graphs)" in str(row.lacking) or "say nothing" in str(row.lacking)
    )
    assert rows_of(model_flops.analyze(trace), "lacking") == [(row.lacking,)]
    assert [ratio is None for (ratio,) in rows_of(model_flops.analyze(trace), "mfu_ratio")] == [lacks]
    ((given, lacking),) = rows_of(model_flops.analyze(trace, flops_per_step_count=10**11), "mfu_ratio", "lacking")
    assert (given is None, lacking) == (False, None)  # a user's own count covers what no operator tells of


@pytest.mark.parametrize(("launch", "name", "said"), [
    ("cudaGraphLaunch", "nvjet_hsh_128x256", "has no operator of its own (as in CUDA graphs), within `Compile` (33 %)"),
    ("", "nvjet_hsh_128x256", "has no operator of its own (as in CUDA graphs), such as `nvjet_hsh_128x256` (33 %)"),
    ("cudaLaunchKernel", "triton_1", "is in kernels whose names say nothing, such as `triton_1` (33 %)"),
])  # fmt: skip
def test_an_operator_is_no_name_of_kernels(launch: str, name: str, said: str) -> None:
    extra = [op("Compile", 20, 40), call(launch, 22, 32, correlation=2), kernel(name, 300_000, 400_000, correlation=2)]
    first = [op("aten::mm", 0, 10, args=mm(4096, 4096, 4096)), *launched(1, 2, 1000, 201_000)]
    trace = on_h100(*first, *extra[2 * (not launch) :])
    assert f"; most of the rest {said}; to name " in str(rows(trace)[0].lacking)


def test_what_is_lacking_is_said() -> None:
    plain = on_h100(op("aten::mm", 0, 9), *launched(1, 2, 1000, 201_000))
    assert "record_shapes=True" in (rows(plain)[0].lacking or "")
    assert rows(plain)[0].unmodelled_ns == 200_000


def test_drawn() -> None:
    findings = step_efficiency.analyze(random_trace(1))
    [track] = findings.annotations
    assert [each["name"] for each in slices_of(track)] == [sentence(row) for row in findings.rows]


# --- by a convention of one's own ---


def test_model_flops_as_given_and_by_parameters() -> None:
    trace = on_h100(op("aten::mm", 0, 10, args=mm(4096, 4096, 4096)), *launched(1, 2, 1000, 201_000))
    [shapes] = rows_of(model_flops.analyze(trace), "source", "model_flops", "wall_ns")
    assert shapes[:2] == ("shapes", 2 * 4096**3)
    given = rows_of(model_flops.analyze(trace, flops_per_step_count=10**11), "source", "model_flops", "mfu_ratio")
    assert given == [("given", 10**11, pytest.approx(10**11 / shapes[2] / 989.4e3))]
    options = {"parameters_count": 7000, "tokens_per_step_count": 11}
    options |= {"layers_count": 2, "hidden_count": 3, "sequence_count": 5}
    named = rows_of(model_flops.analyze(trace, **options), "source", "model_flops", "convention")
    assert named == [("parameters", 11 * (42_000 + 12 * 2 * 3 * 5), "6 N a token and whole attention")]


def test_model_flops_beyond_the_peak_are_no_mfu() -> None:
    trace = on_h100(op("aten::mm", 0, 10, args=mm(4096, 4096, 4096)), *launched(1, 2, 1000, 201_000))
    findings = model_flops.analyze(trace, parameters_count=7 * 10**9, tokens_per_step_count=500)
    ((ratio, lacking),) = rows_of(findings, "mfu_ratio", "lacking")
    assert ratio is None
    assert re.match(r"[\d,.]+ times what the device can do at most: give this rank's share of parameters", str(lacking))
    assert [(diagnostic.code, diagnostic.count) for diagnostic in findings.diagnostics] == [("mfu_above_peak", 1)]
    fitting = model_flops.analyze(trace, flops_per_step_count=10**11)
    assert (rows_of(fitting, "lacking"), fitting.diagnostics) == ([(None,)], [])


@pytest.mark.parametrize("counted", [0.9, 1.1])
def test_an_mfu_above_all_that_the_device_can_do_is_none(counted: float) -> None:
    """The product alone takes 139 µs at the peak."""
    end = 20 + round(2 * 4096**3 / 989.4e3 / counted)
    (row,) = rows(on_h100(op("aten::mm", 0, 10, args=mm(4096, 4096, 4096)), *launched(1, 2, 20, end)))
    assert (row.mfu_ratio is None, row.hfu_ratio is None) == (counted > 1, counted > 1)
    assert ("1.10 times what the device can do at most" in (row.lacking or "")) == (counted > 1)


@pytest.mark.parametrize(("name", "capability", "why"), [
    ("A new one", 99, "the peak of A new one is unknown; give its peaks: augment run TRACE --peak bf16=… --peak fp32"),
    ("NVIDIA A10G", 8, "NVIDIA A10G has no known peak of bf16: augment run TRACE --peak bf16="),
    ("Tesla T4", 7, "Tesla T4 has no units for bf16, and so no peak of it"),
    ("Tesla V100-SXM2-16GB", 7, "Tesla V100-SXM2-16GB has no units for bf16, and so no peak of it"),
])  # fmt: skip
def test_where_the_peak_of_a_type_of_number_lacks_that_is_told(name: str, capability: int, why: str) -> None:
    trace = on_h100(op("aten::mm", 0, 10, args=mm(4096, 4096, 4096)), *launched(1, 2, 1000, 4_001_000))
    device = {"id": 0, "name": name, "computeMajor": capability, "computeMinor": 0, "totalGlobalMem": 16 << 30}
    trace = replace(trace, source=replace(trace.source, metadata={"deviceProperties": [device]}))
    (row,) = rows(trace)
    assert row.mfu_ratio is None
    assert str(row.lacking).startswith(why)


def test_model_flops_names_the_peaks_that_a_device_has() -> None:
    trace = on_h100(op("aten::mm", 0, 10, args=mm(4096, 4096, 4096, "c10::Half")), *launched(1, 2, 1000, 2_001_000))
    v100 = {"id": 0, "name": "Tesla V100-SXM2-16GB", "totalGlobalMem": 16 << 30}
    trace = trace.changed(source=replace(trace.source, metadata={"deviceProperties": [v100]}))
    ((ratio, lacking),) = rows_of(model_flops.analyze(trace), "mfu_ratio", "lacking")
    assert ratio is None
    assert "Tesla V100-SXM2-16GB has no peak of bf16: set peak_number to one of " in str(lacking)
    assert "fp16" in str(lacking)
    assert rows_of(model_flops.analyze(trace, peak_number="fp16"), "lacking") == [(None,)]


def test_model_flops_needs_shapes_or_an_option() -> None:
    assert isinstance(model_flops.analyze(on_h100(op("aten::mm", 0, 9), *launched(1, 2, 1000, 201_000))), Skipped)
    assert isinstance(model_flops.analyze(on_h100(*launched(1, 2, 9, 10)), peak_number="bf17"), Skipped)


@pytest.mark.skipif(not SHARED.exists(), reason="the recorded traces are not at hand")
@pytest.mark.parametrize(
    ("folder", "name"),
    [("h100_8rank_modded_nanogpt", "rank0"), ("mi300_tracelens", "resnet_act_checkpoint_rank0of8"),
     ("hta_trace_diff_pair", "control"), ("b200_tracelens", "b200_eager_rank0of8"), ("rtx3060_luatil", "trace_04")],
)  # fmt: skip
def test_recorded_steps_are_parted_without_rest(folder: str, name: str) -> None:
    for row in rows(augment.read(SHARED / folder / f"{name}.json.gz")):
        assert sum(parts(row).values()) == row.wall_ns
        assert min(parts(row).values()) >= 0
        assert row.mfu_ratio is None or 0 <= row.mfu_ratio <= (row.hfu_ratio or 0) <= 1


@pytest.mark.skipif(not SHARED.exists(), reason="the recorded traces are not at hand")
def test_the_recorded_h100_job_by_a_count_of_its_own() -> None:
    """Four steps of 164.42 ms: the products' operations are those of another program, which knows no attention."""
    content = rows(augment.read(SHARED / "h100_8rank_modded_nanogpt" / "rank0.json.gz"))
    assert 45.24e12 < sum(row.flops or 0 for row in content) < 45.75e12
    weighted = sum((row.mfu_ratio or 0) * row.wall_ns for row in content) / sum(row.wall_ns for row in content)
    assert 0.2 < weighted < 0.3
