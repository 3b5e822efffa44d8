"""Real and simulated pairs: the parts add up, and each side finds its partner."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import augment
from augment.arrays.types import NO_INDEX
from augment.compare import diff
from augment.errors import InputError, UsageError
from diffs import adds_up, partners_are_partners, rows
from tables import annotation, call, kernel, op, trace_of

PAIRS = {
    "HTA's": ("hta_trace_diff_pair/control.json.gz", "hta_trace_diff_pair/test.json.gz"),
    "optimizer hook": (
        "h100_rank0_pair_modded_nanogpt/control_current_rank0.json.gz",
        "h100_rank0_pair_modded_nanogpt/test_hook_rank0.json.gz",
    ),
    "H100 against MI300X": (
        "pairs_h100_vs_mi300_tracelens/qwen1.5_0.5b_h100.json.gz",
        "pairs_h100_vs_mi300_tracelens/qwen1.5_0.5b_mi300.json.gz",
    ),
    "quantised": (
        "a100_torch_compile_ao/quantize_vit_bfloat16.json.gz",
        "a100_torch_compile_ao/quantize_vit_quant.json.gz",
    ),
    "workers": (
        "v100_2021_kineto_tb/resnet50_num_workers_0.1623143566756.pt.trace.json.gz",
        "v100_2021_kineto_tb/resnet50_num_workers_4.1623212756351.pt.trace.json.gz",
    ),
    "B300 against MI300X": (
        "sglang_qwen3_30b_b300_vs_mi300/qwen3_30b_a3b_decode_B300_TP0.trace.json.gz",
        "sglang_qwen3_30b_b300_vs_mi300/qwen3_30b_a3b_decode_MI300_TP0.trace.json.gz",
    ),
    "GPU alone": ("mi210_tracelens/gpu_only_trace.json.gz", "mi308x_aiter/trace.json"),
    "host alone": ("cpu_dtu/resnet18_tb.pt.trace.json.gz", "cpu_dtu/exercise_trace.json.gz"),
    "host against GPU": ("cpu_dtu/resnet18_tb.pt.trace.json.gz", "hta_trace_diff_pair/test.json.gz"),
}


@pytest.mark.parametrize("pair", PAIRS)
def test_real_pairs(pair: str, shared_traces: Path) -> None:
    control, test = (augment.read(str(shared_traces / name)) for name in PAIRS[pair])
    result = diff(control, test)
    adds_up(result)
    partners_are_partners(result)


def test_a_trace_beside_itself(shared_traces: Path) -> None:
    trace = augment.read(str(shared_traces / PAIRS["HTA's"][0]))
    result = diff(trace, trace)
    adds_up(result)
    for row in rows(result, "diff_figures"):
        assert row.delta == 0
        assert row.verdict == "within_noise"
    assert {row.delta_ns for row in rows(result, "diff_waterfall")} == {0}
    assert {row.change for row in rows(result, "diff_names")} == {"unchanged"}
    (pair,) = result.pairs
    inside = pair.control.calls.step >= 0
    assert (pair.alignment.call_of_control[inside] == np.flatnonzero(inside)).all()


def layers(inserted: int | None, gemm: int = 50) -> list:
    """Four layers of two operators with a kernel each; one more operator before the layer ``inserted``."""
    events, at = [annotation("ProfilerStep#3", 0, 1000)], 10
    for layer in range(4):
        for name, ns in [("aten::extra", 20)] * (layer == inserted) + [("aten::mm", gemm), ("aten::add", 10)]:
            events += [
                op(name, at, at + 40),
                call("cudaLaunchKernel", at + 5, at + 15, correlation=at),
                kernel(f"{name}_kernel", at + 30, at + 30 + ns, correlation=at),
            ]
            at += 100
    return events


def test_one_operator_more_shifts_nothing() -> None:
    result = diff(trace_of(*layers(None)), trace_of(*layers(2)))
    (pair,) = result.pairs
    assert (pair.alignment.call_of_control != NO_INDEX).all()
    assert pair.alignment.call_of_control.tolist() == [0, 1, 2, 3, 5, 6, 7, 8]
    assert (pair.alignment.work_of_control != NO_INDEX).all()
    added = [row for row in rows(result, "diff_call_paths") if row.change == "added"]
    assert [(row.path, row.test_count, row.test_gpu_ns) for row in added] == [("aten::extra", 1, 20)]
    adds_up(result)


def test_a_renamed_kernel_is_compared_as_its_operators_cost() -> None:
    events = [e if e.name != "aten::mm_kernel" else kernel("other_gemm", e.ts, e.ts + 30, correlation=e.correlation)
              for e in layers(None)]  # fmt: skip
    result = diff(trace_of(*layers(None)), trace_of(*events))
    (renamed,) = [row for row in rows(result, "diff_waterfall") if row.change == "renamed"]
    assert (renamed.operator, renamed.control_names, renamed.test_names, renamed.delta_ns) == (
        "aten::mm", ["aten::mm_kernel"], ["other_gemm"], -80
    )  # fmt: skip
    assert result.pairs[0].alignment.renamed.sum() == 4


def test_a_region_stands_for_steps() -> None:
    def recording(gemm: int) -> list:
        events = []
        for index in range(3):
            at = 1000 * index
            events += [annotation("timed", at, at + 400), op("aten::mm", at + 10, at + 50),
                       call("cudaLaunchKernel", at + 15, at + 25, correlation=index),
                       kernel("gemm", at + 40, at + 40 + gemm, correlation=index)]  # fmt: skip
        return events

    result = diff(trace_of(*recording(50)), trace_of(*recording(600)), region="timed")
    adds_up(result)
    assert [(row.control_ns, row.test_ns) for row in rows(result, "diff_steps")] == [(400, 640)] * 3
    (part,) = [row for row in rows(result, "diff_waterfall") if row.kind == "computation"]
    assert (part.operator, part.control_ns, part.test_ns) == ("aten::mm", 150, 1800)


def test_what_cannot_be_asked() -> None:
    trace = trace_of(*layers(None))
    with pytest.raises(UsageError, match=r"has no step 7 \(it has 3\)"):
        diff(trace, trace, step=7)
    with pytest.raises(UsageError, match=r"no rank 4 \(it "):
        diff([trace], [trace], control_rank=4)
    with pytest.raises(UsageError, match="no annotation or operator that matches 'timed'"):
        diff(trace, trace, region="timed")
    with pytest.raises(UsageError, match="nothing to compare"):
        diff([], trace)
    with pytest.raises(InputError, match="holds no operator"):
        diff(trace_of(), trace)
