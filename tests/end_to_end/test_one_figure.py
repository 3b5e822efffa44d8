"""What terminal, report, timeline and sidecar say of the same thing is the same: of recorded and simulated traces."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from simulated_jobs import changed

import augment
from augment.cli.show import main_tables
from augment.core import CounterTrack, SliceTrack, Texts
from augment.core.text import percent, size, time
from augment.results.report.health import lines_of, report_on
from augment.results.report.of_trace import document, idle
from augment.results.report.sections import short_heading
from augment.results.sidecars import in_steady_steps
from augment.writers.metrics import as_read
from simulator import JobOptions, simulate

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
TRACES = ROOT.parent / "shared" / "traces"
CHOSEN: tuple[str | JobOptions, ...] = (
    changed(host_stall_us=10_000.0, run_ahead=None, faults=("late_copies",)),
    changed(host_stall_us=3_000.0),
    "simulated/one_gpu/rank0.pt.trace.json.gz",
    "simulated/job/rank0.pt.trace.json.gz",
    "h100_8rank_modded_nanogpt/rank0.json.gz",
    "v100_2021_kineto_tb/resnet50_num_workers_0.1623143566756.pt.trace.json.gz",
    "mi300_tracelens/resnet_act_checkpoint_rank0of8.json.gz",
    "hta_trace_diff_pair/control.json.gz",
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


@pytest.mark.parametrize("chosen", CHOSEN)
def test_a_figure_that_appears_twice_is_one_figure(chosen: str | JobOptions, tmp_path: Path) -> None:
    if isinstance(chosen, JobOptions):
        path, _ = simulate(chosen, tmp_path)[0]
    else:
        path = next((each for each in (ROOT / "examples" / chosen, TRACES / chosen) if each.exists()), None)
    if path is None:
        pytest.skip("without ../shared")
    augmented = augment.augment(str(path))
    sidecar = as_read(augmented)
    page, terminal = document(sidecar), "\n".join(lines_of([report_on(str(path), print)], markdown=False, brief=False))
    assert json.dumps(sidecar["verdict"]["text"]) in json.dumps(page.verdict)
    assert all(f"  {sentence}\n" in terminal for sentence in sidecar["verdict"]["text"])
    drawn = [each for outcome in augmented.outcomes.values() for each in outcome.annotations]
    # What each cure saves: its sentence, its heading in terminal, report and timeline, and the slice's figure
    (diagnosis,) = (each for each in drawn if isinstance(each, SliceTrack) and each.name == "Diagnosis")
    assert isinstance(diagnosis.names, Texts)
    names = [diagnosis.names.values[code] for code in diagnosis.names.codes]
    slices = dict(list(zip(names, diagnosis.args["saved_per_step_ns"], strict=True))[1:])
    for row in (row for row in sidecar["analyses"]["diagnosis"]["rows"] if row["status"] == "found"):
        headed = short_heading(row)
        (saved_ns,) = {int(ns) for name, ns in slices.items() if name.startswith(f"{headed}: {row['title']}")}
        assert saved_ns == (-1 if row["saved_ns"] is None else row["saved_ns"])
        assert (headed if row["in_verdict"] else row["title"]) in terminal
        if row["saved_ns"]:
            assert f"{time(row['saved_ns'])} per step ({percent(row['saved_ratio'])})" in row["title"]
    # The peak of allocated memory: table, sentence and counter
    for row in sidecar["analyses"]["memory_profile"]["rows"][:1]:
        (memory,) = (each for each in drawn if isinstance(each, CounterTrack) and each.name == "Memory allocated")
        peak, (section,) = row["peak_allocated_bytes"], (each for each in page.sections if each.title == "Memory")
        assert section.lead.startswith(f"At most {size(peak)} were allocated on GPU {row['device']}")
        assert max(memory.values) * {"MB": 1e6, "GB": 1e9}[memory.unit] == pytest.approx(peak)
        assert all((each["memory_peak_bytes"] or 0) <= peak for each in sidecar["analyses"]["steps"]["rows"])
    # The mean step: its length, what the device does in it, and why it idles
    rows = in_steady_steps(sidecar, "steps")
    stated = re.compile(r" (?:busy|computes for) ([\d.]+) %")
    sentence, busy = next((text, at[1]) for text in sidecar["verdict"]["text"] if (at := stated.search(text)))
    if len({row["device"] for row in rows}) != 1 or any(row["step"] is None for row in rows) or "(without " in sentence:
        pytest.skip("several devices, no steps, or a sentence that leaves out what was not recorded, and says so")
    (mean,) = main_tables(sidecar)["analyses"]["mean_step"]["rows"]
    assert re.search(rf" of a (?:mean )?step of {time(mean['wall_ns'])}", sentence)
    assert next(f" {time(mean['wall_ns'])}" in each.lead for each in page.sections if each.title == "Where a step goes")
    shares = {words: number for number, words in re.findall(r"([\d.]+ %) ([a-z ]+[a-z])", sentence)}
    assert float(busy) == pytest.approx(100 * mean["busy_ratio"], abs=0.51)
    bars = {label: share for label, share, _ in page.parts}
    for words, column in SAID.items():
        if words in shares:
            assert percent(mean[f"{column}_ratio"]) == shares[words], words
            assert mean[f"{column}_ratio"] in [pytest.approx(share) for share in bars.values()], words
    for row in in_steady_steps(sidecar, "step_efficiency"):  # the waterfall of the terminal and of the report
        (step,) = (each for each in rows if each["step"] == row["step"])
        for column in ("wall_ns", "exposed_communication_ns", "exposed_memory_ns", "host_wait_ns", "kernel_wait_ns"):
            assert row[column] == step[column]
    steps = next(each for each in drawn if each.name == "Steps")
    lengths = [int(end - start) for start, end in zip(steps.ts, steps.ts + steps.dur, strict=True)]  # type: ignore[union-attr]
    assert {row["wall_ns"] for row in rows} <= {*lengths}
    for row in sidecar["analyses"]["diagnosis"]["rows"]:
        if row["rule"] == "exposed_communication" and row["status"] == "found":
            assert time(mean["wall_ns"] * mean["exposed_communication_ratio"]) in row["title"]


def test_the_waits_of_the_only_stream_and_those_around_them_are_the_steps(shared_traces: Path) -> None:
    sidecar = as_read(augment.augment(str(shared_traces / "ascend_trace_view" / "trace_view.json.gz")))
    names = ("steps", "temporal_breakdown", "idle_time_breakdown")
    (step,), (whole,), gaps = (sidecar["analyses"][name]["rows"] for name in names)
    within = sum(row["device_host_wait_ns"] for row in gaps)
    assert within + step["wall_ns"] - whole["span_ns"] == step["host_wait_ns"]
    assert idle(sidecar).lead.startswith(f"From its first to its last work, NPU stream 3 waited {time(within)} for")
