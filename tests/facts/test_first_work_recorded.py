"""Before the first work of real recordings: plain Python says until when the host can have been waited for."""

from __future__ import annotations

from pathlib import Path

import pytest

from augment.diagnosis.recording_completeness import MOST_LATE
from augment.diagnosis.rule import Found
from augment.diagnosis.rules import partial_recording
from augment.diagnosis.verdict import verdict
from augment.pipeline import augment
from augment.readers import read
from metamorphic import CALLS, GPU_WORK, Event, load, real_trace, save

NAMES = (
    "vllm_mi300_tracelens/decode_full_graph_execution.json.gz",
    "gtx1650_ao/gtx1650_trace.json.gz",
    "hta_annotations/gpu_user_annotation_GP100.json.gz",
)
LONGEST_LAUNCH_US = 30


@pytest.mark.parametrize("name", NAMES)
def test_the_host_holds_up_no_work_that_it_has_launched(name: str) -> None:
    path = real_trace(Path(name))
    events = [event for event in load(path)["traceEvents"] if event.get("ph") == "X"]
    work = sorted((event for event in events if event.get("cat") in GPU_WORK), key=lambda event: event["ts"])
    calls = [event for event in events if event.get("cat") in CALLS]
    first = work[0]
    launches = [call for call in calls if call["args"].get("correlation") == first["args"]["correlation"]]
    (row,) = augment(read(str(path)), only=["steps"]).outcomes["steps"].rows
    delays = [first["ts"] - (call["ts"] + call["dur"]) for call in launches]
    after_us = max(delays, default=first["ts"] - min(event["ts"] for event in events))
    if after_us >= LONGEST_LAUNCH_US:
        assert row.host_wait_ns <= max(0, row.idle_ns - int(after_us * 1000))  # before the recorded work: no step's


def queued_us(events: list[Event]) -> float:
    """The longest time without work between the return of the launch of a stream's first work and its begin."""
    work = sorted((event for event in events if event.get("cat") in GPU_WORK), key=lambda event: event["ts"])
    returned = {
        call["args"]["correlation"]: call["ts"] + call["dur"]
        for call in events
        if call.get("cat") in CALLS and "correlation" in call["args"]
    }
    first = {event["args"]["stream"]: event for event in reversed(work)}
    longest = 0.0
    for event in first.values():
        launched = returned.get(event["args"].get("correlation"), event["ts"])
        busy_until = max((each["ts"] + each["dur"] for each in work if each["ts"] < event["ts"]), default=launched)
        longest = max(longest, float(event["ts"] - max(launched, busy_until)))
    return longest


LACKING = ("vllm_mi300_tracelens/decode_full_graph_execution.json.gz", "sglang_mi300_tracelens/qwen3_8b_decode.json.gz")


@pytest.mark.parametrize("name", [*NAMES, *LACKING[1:]])
def test_earlier_work_that_the_file_lacks_is_told(name: str) -> None:
    path = real_trace(Path(name))
    events = [event for event in load(path)["traceEvents"] if event.get("ph") == "X"]
    span = max(event["ts"] + event["dur"] for event in events) - min(event["ts"] for event in events)
    ratio = queued_us(events) / float(span)
    assert not 0.08 < ratio < 0.12, "too close to the limit to tell"
    answer = "while the file shows an idle GPU" in verdict(read(str(path)))[0]
    assert answer == (ratio >= MOST_LATE) == (name in LACKING)


@pytest.mark.parametrize("share", [0.25, 0.5])
def test_a_file_that_loses_the_first_work_of_the_device_says_so(share: float, tmp_path: Path) -> None:
    path = real_trace("hta_ns_resolution/rank-0.ns_resolution.pt.trace.json.gz")  # whose host runs ahead
    whole = partial_recording.check(read(str(path)))
    assert not (isinstance(whole, Found) and whole.first)
    document = load(path)
    work = sorted(event["ts"] for event in document["traceEvents"] if event.get("cat") in GPU_WORK)
    begin = work[int(len(work) * share)]
    kept = [row for row in document["traceEvents"] if row.get("cat") not in GPU_WORK or row["ts"] >= begin]
    lost = read(str(save(document | {"traceEvents": kept}, tmp_path / "lost.json")))
    answer = partial_recording.check(lost)
    assert isinstance(answer, Found)
    assert answer.first
