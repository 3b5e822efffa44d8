"""No cause told of an idle stream is impossible: real traces, judged in plain Python from the files alone."""

from __future__ import annotations

import gzip
import json
from bisect import bisect_left
from collections import defaultdict
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from augment.pipeline import augment
from augment.readers import read
from augment.writers import chrome

RECORDED = Path(__file__).resolve().parents[3] / "shared" / "traces"
ANALYSIS = "augment.idle_time_breakdown"
WORK = ("kernel", "gpu_memcpy", "gpu_memset")
CALLS = ("cuda_runtime", "cuda_driver")
CAUSES = ("host_wait", "kernel_wait", "other", "other_stream_busy")  #: below each may stand a second slice
CLOCK_NS, JUST_BEFORE_NS = 2_000, 30_000
SOME = (
    "mi300_tracelens/resnet_act_checkpoint_rank0of8.json.gz",
    "h100_rank0_pair_modded_nanogpt/control_current_rank0.json.gz",
    "hta_nccl/nccl_data.json.gz",
    "hta_cuda_sync/alexnet.json.gz",
    "hta_cuda_sync/simple_add.json.gz",
    "hta_a100_rank0_of_16/negative_queue_length_rank0.json.gz",
    "hta_sampled_2_of_128/sampled_rank-0.json.gz",
    "rtx3060_luatil/trace_04.json.gz",
    "hta_amd_mi250/mi250_minitoy_train_ROCm6_2.json.gz",
)
Event = dict[str, Any]


def nanoseconds(value: Any) -> int:
    return round(Decimal(value) * 1000)


class Written:
    """A written trace: its work by stream, its launches, and what was added of idle time, all in ns."""

    def __init__(self, path: Path) -> None:
        document = json.loads(gzip.decompress(path.read_bytes()), parse_float=str, parse_int=str, strict=False)
        slices = [event for event in document["traceEvents"] if event.get("ph") == "X"]
        for slice_ in slices:
            slice_["start"] = nanoseconds(slice_["ts"])
            slice_["end"] = slice_["start"] + nanoseconds(slice_.get("dur", 0))
            slice_["args"] = slice_.get("args") or {}
            if slice_.get("cat") == ANALYSIS and "dur_ns" in slice_["args"]:
                slice_["end"] = slice_["start"] + int(slice_["args"]["dur_ns"])
        names = {(event["pid"], event["tid"]): event["args"]["name"] for event in document["traceEvents"]
                 if event.get("ph") == "M" and event["name"] == "thread_name"}  # fmt: skip
        self.work = sorted((each for each in slices if each.get("cat") in WORK), key=lambda item: int(item["start"]))
        self.starts = [each["start"] for each in self.work]
        self.by_correlation = defaultdict(list)
        for slice_ in self.work:
            self.by_correlation[slice_["args"].get("correlation")].append(slice_)
        self.ends = sorted(self.work, key=lambda item: int(item["end"]))
        self.calls = {slice_["args"]["correlation"]: slice_ for slice_ in slices
                      if slice_.get("cat") in CALLS and "correlation" in slice_["args"]}  # fmt: skip
        self.host = defaultdict(list)
        for slice_ in slices:
            if slice_.get("cat") in ("cpu_op", "user_annotation"):
                self.host[slice_["name"]].append(slice_)
        self.idle = [
            (names[slice_["pid"], slice_["tid"]].partition(" stream ")[2], slice_)
            for slice_ in slices
            if slice_.get("cat") == ANALYSIS and slice_["name"] in CAUSES
        ]

    def at(self, correlation: str, moment: int) -> Event:
        """The work of this correlation that starts then."""
        return min(self.by_correlation[correlation], key=lambda item: abs(int(item["start"]) - moment))


@pytest.fixture(scope="module", params=SOME)
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Written:
    if not (RECORDED / request.param).is_file():
        pytest.skip(f"no recorded trace at {RECORDED / request.param}")
    path = tmp_path_factory.mktemp("written") / "trace.json.gz"
    chrome.write(augment(read(str(RECORDED / request.param)), only=["idle_time_breakdown"]), path)
    return Written(path)


def test_no_call_is_blamed(written: Written) -> None:
    assert written.idle
    assert not [each for _, each in written.idle if "sync_call" in each["args"]]


def test_host_wait_ends_with_a_late_launch_and_nothing_runs(written: Written) -> None:
    for stream, each in written.idle:
        if each["name"] == "host_wait" and "joined_count" not in each["args"]:
            call = written.calls[each["args"]["correlation"]]
            assert call["start"] > each["start"], (stream, each)
            place = bisect_left(written.starts, each["start"])
            device = written.at(each["args"]["correlation"], each["end"])["args"]["device"]
            within = (other for other in written.work[place : place + 50] if other["start"] < each["end"])
            assert all(other["args"]["device"] != device or other["start"] >= each["end"] for other in within)
            if owner := each["args"].get("owner"):
                until = min(each["end"], call["end"])
                assert any(host["start"] < until and host["end"] > each["start"] for host in written.host[owner])


def test_what_was_waited_for_ended_just_before_and_was_launched_before(written: Written) -> None:
    """The launch of one comes before the launch of the other, or an event would have to be of the future."""
    ends = [end["end"] for end in written.ends]
    for stream, each in written.idle:
        if not (name := each["args"].get("waited_for")) or "joined_count" in each["args"]:
            continue
        assert each["name"] == "other_stream_busy"
        waiting = written.at(each["args"]["correlation"], each["end"])
        assert waiting["args"]["stream"] == stream != each["args"]["waited_for_stream"]
        first = bisect_left(ends, waiting["start"] - JUST_BEFORE_NS)
        last = bisect_left(ends, waiting["start"] + CLOCK_NS + 1)
        causes = [
            other
            for other in written.ends[first:last]
            if other["name"] == name
            and other["args"]["stream"] == each["args"]["waited_for_stream"]
            and other["args"]["device"] == waiting["args"]["device"]
            and other["start"] < waiting["start"]
            and other["end"] > each["start"]
        ]
        assert causes, each
        launch = written.calls[each["args"]["correlation"]]
        called = [written.calls[other["args"]["correlation"]] for other in causes]
        assert any(call["start"] <= launch["start"] for call in called), each


def test_the_9_ms_gap_of_resnet_names_the_collective(tmp_path: Path) -> None:
    source = RECORDED / SOME[0]
    if not source.is_file():
        pytest.skip(f"no recorded trace at {source}")
    chrome.write(augment(read(str(source)), only=["idle_time_breakdown"]), tmp_path / "trace.json.gz")
    idle = [each for stream, each in Written(tmp_path / "trace.json.gz").idle if stream == "0"]
    longest = max(idle, key=lambda item: int(item["end"]) - int(item["start"]))
    assert longest["end"] - longest["start"] == 9_203_108
    assert longest["name"] == "other_stream_busy"
    assert longest["args"]["waited_for"].startswith("ncclDevKernel")
    assert longest["args"]["waited_for_stream"] == "4"
