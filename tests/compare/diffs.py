"""What every comparison must keep."""

from __future__ import annotations

from typing import Any

import numpy as np

from augment.arrays.types import NO_INDEX
from augment.compare import Diff

#: recorded traces, the first the control of the second
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
    "tiny": ("hta_tiny/trace_compare_base.json.gz", "hta_tiny/trace_compare_test.json.gz"),
    "GPU alone": ("mi210_tracelens/gpu_only_trace.json.gz", "mi308x_aiter/trace.json"),
    "host alone": ("cpu_dtu/resnet18_tb.pt.trace.json.gz", "cpu_dtu/exercise_trace.json.gz"),
    "host against GPU": ("cpu_dtu/resnet18_tb.pt.trace.json.gz", "hta_trace_diff_pair/test.json.gz"),
}


def rows(result: Diff, name: str) -> list[Any]:
    """The rows of a table."""
    outcome = result.outcomes[name]
    return list(outcome.rows)


def adds_up(result: Diff) -> None:
    """The parts of the waterfall, and the kinds of work, are the whole, to the nanosecond."""
    steps = rows(result, "diff_steps")
    for column in ("control_ns", "test_ns", "delta_ns"):
        whole = sum(getattr(step, column) for step in steps)
        assert sum(getattr(row, column) for row in rows(result, "diff_waterfall")) == whole
        assert sum(getattr(diff_kind, column) for diff_kind in rows(result, "diff_kinds")) == whole


def partners_are_partners(result: Diff) -> None:
    """Partners are mutual, of one call path and of one step."""
    for pair in result.pairs:
        for back, forth in (
            (pair.alignment.call_of_control, pair.alignment.call_of_test),
            (pair.alignment.work_of_control, pair.alignment.work_of_test),
        ):
            met = np.flatnonzero(back != NO_INDEX)
            assert (forth[back[met]] == met).all()
            assert (forth != NO_INDEX).sum() == len(met)
        met = np.flatnonzero(pair.alignment.call_of_control != NO_INDEX)
        partner = pair.alignment.call_of_control[met]
        assert (pair.control.calls.path[met] == pair.test.calls.path[partner]).all()
        assert (pair.control.calls.step[met] == pair.test.calls.step[partner]).all()
