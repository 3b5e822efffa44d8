"""Devices that begin launched work late: at first, as earlier work is missing, or again and again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from simulated_jobs import changed
from test_rules_by_hand import problem_of

from augment.diagnosis.diagnose import diagnose
from augment.diagnosis.rule import Fine
from augment.diagnosis.rules import partial_recording
from augment.diagnosis.whole import held_up, late_device
from augment.readers import read
from augment.trace import Trace
from metamorphic import Document, load, real_trace, save
from said import title_of
from simulator import simulate

LATE = 400.0  #: µs that another process keeps a shared device
JOB = changed(ranks=1, steps=2, layers=3, collectives="none", work=0.02, run_ahead=None)
GPU = ("kernel", "gpu_memcpy", "gpu_memset")


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Document:
    """A job without steps on a single stream."""
    document = load(simulate(JOB, tmp_path_factory.mktemp("job"))[0][0])
    rows = [each for each in document["traceEvents"] if not str(each["name"]).startswith("ProfilerStep")]
    return document | {"traceEvents": [each | {"tid": 7} if each.get("cat") in GPU else each for each in rows]}


def delayed(document: Document, most: int) -> tuple[Document, int]:
    """The job whose device, when it was idle, begins late: the first ``most`` times. And how often it does."""
    rows = document["traceEvents"]
    calls = [each for each in rows if str(each.get("cat")).startswith("cuda_")]
    launched = {each["args"]["correlation"]: float(each["ts"] + each["dur"]) for each in calls}
    end, times, later = 0.0, 0, dict[int, Document]()
    for each in sorted((each for each in rows if each.get("cat") in GPU), key=lambda each: float(each["ts"])):
        begin = max(float(each["ts"]), end)
        if launched[each["args"]["correlation"]] > end and times < most:
            begin, times = begin + LATE, times + 1
        later[id(each)] = each | {"ts": begin}
        end = begin + float(each["dur"])
    return document | {"traceEvents": [later.get(id(each), each) for each in rows]}, times


def trace_of(document: Document, folder: Path) -> Trace:
    return read(str(save(document, folder / "job.json")))


def test_a_device_that_is_late_once_lacks_earlier_work(job: Document, tmp_path: Path) -> None:
    trace = trace_of(delayed(job, 1)[0], tmp_path)
    assert late_device(trace) == 0
    assert held_up(trace) is None
    assert "lacks earlier work" in title_of(problem_of(partial_recording.check(trace)))


def test_a_device_that_is_late_again_and_again_is_held_up(job: Document, tmp_path: Path) -> None:
    document, times = delayed(job, 1_000)
    trace = trace_of(document, tmp_path)
    held = held_up(trace)
    assert held is not None
    assert len(held.start) == times > 3
    assert (held.end - held.start).tolist() == pytest.approx([LATE * 1_000] * times, rel=0.05)
    answer = problem_of(partial_recording.check(trace))
    assert f"{times} times: something that is not in the file holds it up" in title_of(answer)
    assert all(each.found.confidence == "low" for each in diagnose(trace).findings if each.found.saved_ns)


def test_a_healthy_device_is_not_late(job: Document, tmp_path: Path) -> None:
    trace = trace_of(job, tmp_path)
    assert late_device(trace) is None
    assert held_up(trace) is None
    assert isinstance(partial_recording.check(trace), Fine)


@pytest.mark.parametrize("shift", [0, 7_000_000])
def test_where_the_recording_begins_changes_nothing(job: Document, tmp_path: Path, shift: int) -> None:
    """Metamorphic: the same delays, later."""
    document, times = delayed(job, 1_000)
    rows = [each | ({"ts": float(each["ts"]) + shift} if "ts" in each else {}) for each in document["traceEvents"]]
    held = held_up(trace_of(document | {"traceEvents": rows}, tmp_path))
    assert held is not None
    assert len(held.start) == times


@pytest.mark.parametrize(
    "name",
    ["sglang_mi300_tracelens/qwen3_8b_decode.json.gz", "vllm_mi300_tracelens/decode_full_graph_execution.json.gz"],
)
def test_recorded_devices_are_late_once(name: str) -> None:
    """Plainly: the idle time before each piece of work beyond the end of its launch, in the order of time."""
    path = real_trace(name)
    rows = [each for each in load(path)["traceEvents"] if each.get("ph") == "X"]
    calls = {each["args"].get("correlation"): float(each["ts"]) + float(each["dur"]) for each in rows
             if each.get("cat") == "cuda_runtime"}  # fmt: skip
    end, lags = None, []
    for each in sorted((each for each in rows if each.get("cat") in GPU), key=lambda each: float(each["ts"])):
        begin, launch = float(each["ts"]), calls.get(each["args"].get("correlation"))
        if launch is not None:
            lags.append(begin - max(launch, launch if end is None else end))
        end = max(end or 0, begin + float(each["dur"]))
    late = np.sort(lags)
    assert late[-1] > late[:-1][late[:-1] > 100].sum()
    trace = read(str(path))
    assert late_device(trace) is not None
    assert held_up(trace) is None


def test_a_recording_that_ends_early_is_told_from_lost_kernels(job: Document, tmp_path: Path) -> None:
    """Metamorphic: the same number of kernels is missing, the last ones or every fifth."""
    rows = job["traceEvents"]
    kernels = sorted((each for each in rows if each.get("cat") == "kernel"), key=lambda each: float(each["ts"]))
    count = len(kernels) // 5
    for gone, words in ((kernels[-count:], "ends before the GPU ran the last"), (kernels[::5], "not in the recording")):
        lost = {id(each) for each in gone}
        trace = trace_of(job | {"traceEvents": [each for each in rows if id(each) not in lost]}, tmp_path)
        assert words in title_of(problem_of(partial_recording.check(trace)))
