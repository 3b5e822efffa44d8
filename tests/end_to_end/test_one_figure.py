"""What terminal, report, timeline and sidecar say of the same thing is the same: of recorded traces of many makers."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import augment
from augment.cli.show import main_tables
from augment.core.text import percent, time
from augment.results.report.of_trace import document, idle
from augment.results.sidecars import in_steady_steps
from augment.writers.metrics import as_read

pytestmark = pytest.mark.slow

TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces"
CHOSEN = (
    "h100_8rank_modded_nanogpt/rank0.json.gz",
    "h100_8rank_modded_nanogpt/rank5.json.gz",
    "h100_rank0_pair_modded_nanogpt/test_hook_rank0.json.gz",
    "v100_2021_kineto_tb/resnet50_num_workers_0.1623143566756.pt.trace.json.gz",
    "v100_2021_kineto_tb/resnet50_num_workers_4.1623212756351.pt.trace.json.gz",
    "mi300_tracelens/resnet_act_checkpoint_rank0of8.json.gz",
    "hta_trace_diff_pair/control.json.gz",
    "hta_trace_diff_pair/test.json.gz",
    "ascend_trace_view/trace_view.json.gz",
    "hta_triton/triton_example.json.gz",
)
#: parts of the verdict's first sentence, by the column that they are of
SAID = {
    "computing": "compute",
    "exposed communication": "exposed_communication",
    "exposed copies": "exposed_memory",
    "waiting for the host": "host_wait",
    "between kernels": "kernel_wait",
}


@pytest.mark.parametrize("name", CHOSEN)
def test_a_figure_that_appears_twice_is_one_figure(name: str) -> None:
    path = TRACES / name
    if not path.exists():
        pytest.skip("without ../shared")
    augmented = augment.augment(str(path))
    sidecar = as_read(augmented)
    rows = in_steady_steps(sidecar, "steps")
    if len({row["device"] for row in rows}) != 1 or any(row["step"] is None for row in rows):
        pytest.skip("several devices, or no steps")
    sentence = sidecar["verdict"]["text"][0]
    if "(without " in sentence:
        pytest.skip("the sentence leaves out what was not recorded, and says so")
    (mean,) = main_tables(sidecar)["analyses"]["mean_step"]["rows"]
    shares = {words: number for number, words in re.findall(r"([\d.]+ %) ([a-z ]+[a-z])", sentence)}
    assert float(re.search(r"busy ([\d.]+) %", sentence)[1]) == pytest.approx(100 * mean["busy_ratio"], abs=0.51)  # type: ignore[index]
    bars = {label: share for label, share, _ in document(sidecar).parts}
    for words, column in SAID.items():
        if words in shares:
            assert percent(mean[f"{column}_ratio"]) == shares[words], words
            assert mean[f"{column}_ratio"] in [pytest.approx(share) for share in bars.values()], words
    for row in in_steady_steps(sidecar, "step_efficiency"):  # the waterfall of the terminal and of the report
        (step,) = (each for each in rows if each["step"] == row["step"])
        for column in ("wall_ns", "exposed_communication_ns", "exposed_memory_ns", "host_wait_ns", "kernel_wait_ns"):
            assert row[column] == step[column]
    steps = next(each for each in augmented.outcomes["steps"].annotations if each.name == "Steps")  # type: ignore[union-attr]
    drawn = sorted(int(end - start) for start, end in zip(steps.ts, steps.ts + steps.dur, strict=True))  # type: ignore[union-attr]
    for row in rows:
        assert row["wall_ns"] in drawn
    assert json.dumps(sidecar["verdict"]["text"]) in json.dumps(document(sidecar).verdict)


def test_the_waits_of_the_only_stream_and_those_around_them_are_the_steps(shared_traces: Path) -> None:
    sidecar = as_read(augment.augment(str(shared_traces / "ascend_trace_view" / "trace_view.json.gz")))
    names = ("steps", "temporal_breakdown", "idle_time_breakdown")
    (step,), (whole,), gaps = (sidecar["analyses"][name]["rows"] for name in names)
    within = sum(row["device_host_wait_ns"] for row in gaps)
    assert within + step["wall_ns"] - whole["span_ns"] == step["host_wait_ns"]
    assert idle(sidecar).lead.startswith(f"From its first to its last work, NPU stream 3 waited {time(within)} for")
