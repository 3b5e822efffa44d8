"""Before the first work of real recordings: plain Python says until when the host can have been waited for."""

from __future__ import annotations

from pathlib import Path

import pytest

from augment.pipeline import augment
from augment.readers import read
from metamorphic import CALLS, GPU_WORK, load, real_trace

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
    (row,) = augment(read(str(path)), only=["step_figures"]).outcomes["step_figures"].rows
    delays = [first["ts"] - (call["ts"] + call["dur"]) for call in launches]
    after_us = max(delays, default=first["ts"] - min(event["ts"] for event in events))
    if after_us >= LONGEST_LAUNCH_US:
        assert row.host_wait_ns <= row.idle_ns - int(after_us * 1000)
