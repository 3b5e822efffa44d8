"""The gate on recorded traces: a uniform slowdown fails, an equal run passes, real pairs get their true verdict."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from augment import Trace, read
from augment.compare.compared_steps import without_outlying_first_step
from augment.compare.gate import Line, check, text_of
from augment.compare.totals import Samples, mean_of_ranks, samples_of
from augment.facts.steps.step_windows import step_windows

TRACES = Path(__file__).parents[3] / "shared" / "traces"
#: of several steps each, of ten programs, from two steps to ten
SEVERAL_STEPS = (
    "h100_rank0_pair_modded_nanogpt/control_current_rank0.json.gz",
    "h100_8rank_modded_nanogpt/rank3.json.gz",
    "hta_a100_rank0_of_16/negative_queue_length_rank0.json.gz",
    "hta_cpu_only/rank-34_of_300_cpu_only.pt.trace.json.gz",
    "hta_sampled_2_of_128/sampled_rank-0.json.gz",
    "hta_trace_diff_pair/test.json.gz",
    "mi300_tracelens/resnet_act_checkpoint_rank0of8.json.gz",
    "old_2020_21_kineto/resnet50_num_workers_0_jan2021.pt.trace.json.gz",
    "rtx3060_luatil/trace_04.json.gz",
    "torchbench/trace3.json",
    "v100_2021_kineto_tb/resnet50_num_workers_4.1623212756351.pt.trace.json.gz",
    "v100_4rank_pair_torchrec/control/pid44237.pt.trace.json.gz",
)
PARTS = ("compute_ns", "exposed_communication_ns", "exposed_memory_ns", "idle_ns", "host_wait_ns", "kernel_wait_ns")

pytestmark = pytest.mark.skipif(not TRACES.is_dir(), reason=f"no recorded traces at {TRACES}")


def stretched(trace: Trace, percent: int) -> Trace:
    """The same trace, all times so much later and longer."""
    events = trace.events
    first = int(events.ts[0])
    later = first + (events.ts - first) * (100 + percent) // 100
    return trace.changed(events=replace(events, ts=later, dur=events.dur * (100 + percent) // 100))


def figures(*traces: Trace) -> Samples:
    return mean_of_ranks([samples_of(trace, step_windows(trace)) for trace in traces])


def gate(control: Samples, test: Samples) -> list[Line]:
    control, test, _ = without_outlying_first_step(control, test)
    return check(control, test)


@pytest.mark.parametrize("name", SEVERAL_STEPS)
def test_a_uniform_slowdown_fails(name: str) -> None:
    trace = read(str(TRACES / name))
    control = figures(trace)
    assert all(line.status != "fail" for line in gate(control, control))
    assert gate(control, control)[0].status == "pass"
    for percent in (6, 30, 60):
        step = gate(control, figures(stretched(trace, percent)))[0]
        known = "uncertain" if name.startswith("hta_sampled") else "fail"  # two steps cannot tell
        assert (step.figure.name, step.status) == ("wall_ns", known), step.reason
        assert step.change == pytest.approx(step.control * percent / 100, rel=0.01)
    assert gate(control, figures(stretched(trace, 3)))[0].status == "pass", "within the limit"


def of_side(folder: str) -> Samples:
    return figures(*(read(str(path)) for path in sorted((TRACES / folder).glob("*.json.gz"))))


def test_the_torchrec_pair_fails() -> None:
    step = gate(of_side("v100_4rank_pair_torchrec/control"), of_side("v100_4rank_pair_torchrec/test"))[0]
    assert (step.status, step.paired) == ("fail", True)


def test_an_optimised_run_passes_with_an_interval_of_its_pairs() -> None:
    pair = "h100_rank0_pair_modded_nanogpt"
    step = gate(*(figures(read(str(TRACES / pair / name)))
                  for name in ("control_current_rank0.json.gz", "test_hook_rank0.json.gz")))[0]  # fmt: skip
    assert (step.status, step.paired) == ("pass", True)
    assert (step.high - step.low) / step.control < 0.04


def test_a_faster_step_fails_for_none_of_its_parts() -> None:
    folder = TRACES / "pairs_h100_vs_mi300_tracelens"
    lines = gate(*(figures(read(str(folder / f"qwen1.5_0.5b_{gpu}.json.gz"))) for gpu in ("h100", "mi300")))
    assert lines[0].change < 0
    assert {line.figure.name for line in lines if line.status == "fail"} <= {"memory_peak_bytes"}
    assert any("2.089 GB" in text_of(line) for line in lines)
    assert {line.figure.name for line in lines if line.status == "info"} & set(PARTS), "parts explain"


def slow_step_times(name: str) -> list[float]:
    """From the text alone: each step from the end of the work launched before it to that of its own."""
    events = [
        row for row in json.loads(gzip.decompress((TRACES / name).read_bytes()))["traceEvents"] if row.get("ph") == "X"
    ]
    calls = [event for event in events if event.get("cat") in ("cuda_runtime", "cuda_driver") and "args" in event]
    launched = {call["args"].get("correlation"): call["ts"] for call in calls}
    work = [event for event in events if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    steps = sorted((event["ts"], event["ts"] + event["dur"]) for event in events
                   if event["name"].startswith("ProfilerStep#") and event.get("cat") == "user_annotation")  # fmt: skip

    def done(before: float) -> float:
        """When all that was launched before that moment, or before the recording, is done."""
        return max(
            (row["ts"] + row["dur"] for row in work if launched.get(row["args"]["correlation"], 0) < before), default=0
        )

    return [max(end, done(end)) - max(begin, done(begin)) for begin, end in steps]


@pytest.mark.parametrize("name", [SEVERAL_STEPS[0], SEVERAL_STEPS[1], SEVERAL_STEPS[5], SEVERAL_STEPS[-1]])
def test_steps_are_as_long_as_the_text_alone_tells(name: str) -> None:
    content = figures(read(str(TRACES / name)))["wall_ns"]
    assert content == pytest.approx(1000 * np.array(slow_step_times(name)), rel=1e-6)
