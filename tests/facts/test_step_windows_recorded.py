"""Windows of recorded steps: a recording that begins later tells of the same windows, and ranks of a job agree."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from augment.facts.steps.step_windows import step_windows
from augment.readers import read

TRACES = Path(__file__).parents[3] / "shared" / "traces"
RUNS_AHEAD = (
    "h100_rank0_pair_modded_nanogpt/control_current_rank0.json.gz",
    "hta_trace_diff_pair/test.json.gz",
    "mi300_tracelens/resnet_act_checkpoint_rank0of8.json.gz",
    "rtx3060_luatil/trace_04.json.gz",
)
ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation")

pytestmark = pytest.mark.skipif(not TRACES.is_dir(), reason=f"no recorded traces at {TRACES}")


def load(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(gzip.decompress((TRACES / name).read_bytes()))
    return loaded


def windows(trace: dict[str, Any], path: Path) -> dict[int, tuple[int, int]]:
    """The window of each step, in ns after the trace's base: what is cut off changes no time."""
    path.write_text(json.dumps(trace))
    rows = step_windows(read(str(path)))
    return {n: (a, b) for n, a, b in zip(rows.number.tolist(), rows.start.tolist(), rows.end.tolist(), strict=True)}


def cut(trace: dict[str, Any], at: float) -> dict[str, Any]:
    """What a recording would hold that began at that time: of calls those that begin later, and all work that does."""
    kept = [event for event in trace["traceEvents"] if event.get("ph") != "X" or event["ts"] >= at]
    return {**trace, "traceEvents": kept}


@pytest.mark.parametrize("name", RUNS_AHEAD)
def test_a_recording_that_begins_later_has_the_same_windows(name: str, tmp_path: Path) -> None:
    trace = load(name)
    whole = windows(trace, tmp_path / "whole.json")
    begins = {int(event["name"].split("#")[1]): event["ts"] for event in trace["traceEvents"]
              if event.get("ph") == "X" and event["name"].startswith("ProfilerStep#")
              and event.get("cat") not in ON_DEVICE}  # fmt: skip
    for first in sorted(begins)[1:4]:
        later = windows(cut(trace, begins[first]), tmp_path / f"{first}.json")
        assert later == {number: window for number, window in whole.items() if number >= first}


@pytest.mark.parametrize("job", ["h100_8rank_modded_nanogpt", "v100_4rank_pair_torchrec/control"])
def test_ranks_of_a_job_agree_about_the_first_step(job: str) -> None:
    """Collectives hold the ranks together, whatever the backlog was that each recording began with."""
    lengths = []
    for path in sorted((TRACES / job).glob("*.json.gz")):
        content = step_windows(read(str(path)))
        lengths.append(int(content.end[0] - content.start[0]))
    assert max(lengths) < 1.02 * min(lengths)


def test_a_step_that_only_ends_the_recording_is_none() -> None:
    """``step()`` begins ProfilerStep#2, 49 µs long, after all there is; plainly, nothing begins in it."""
    name = "hta_amd_mi250/mi250_minitoy_train_ROCm6_2.json.gz"
    rows = [each for each in load(name)["traceEvents"] if each.get("ph") == "X"]
    (last,) = (each for each in rows if each["name"] == "ProfilerStep#2")
    within = [each["name"] for each in rows if last["ts"] <= each["ts"] < last["ts"] + last["dur"]]
    assert within == ["ProfilerStep#2"]
    assert step_windows(read(str(TRACES / name))).number.tolist() == [1]
