"""States of a device and causes of its gaps: against definitions, and in plain Python from files of real traces."""

from __future__ import annotations

import gzip
import json
from bisect import bisect_left
from collections import defaultdict
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from augment import augment, read
from augment.analyses import temporal_breakdown
from augment.facts.waits.gap_causes import STATES, device_states
from augment.writers import chrome
from tables import Event, call, copy, kernel, slices_of, trace_of

WORK = st.lists(
    st.tuples(st.sampled_from(["gemm", "ncclDevKernel", "Memcpy HtoD"]), st.integers(0, 60), st.integers(-2, 20)),
    min_size=1,
    max_size=12,
)


def events_of(pieces: list[tuple[str, int, int]]) -> list[Event]:
    made = []
    for number, (name, start, dur) in enumerate(pieces):
        make = copy if name.startswith("Memcpy") else kernel
        made.append(make(name, start, start + dur, stream=number % 3, correlation=number + 1))
        if number % 2:
            made.append(call("cudaLaunchKernel", max(start - 5, 0), start, correlation=number + 1))
    return made


@given(WORK)
def test_every_nanosecond_has_the_state_that_it_should_have(pieces: list[tuple[str, int, int]]) -> None:
    (result,) = device_states(trace_of(*events_of(pieces)))
    first, last = min(start for _, start, _ in pieces), max(start + dur for _, start, dur in pieces)
    runs = {kind: {t for name, s, d in pieces if name == kind for t in range(s, s + d)} for kind, _, _ in pieces}
    assert (result.start[1:] == result.end[:-1]).all()
    assert (np.diff(result.state.astype(int)) != 0).all()
    assert (result.end > result.start).all()
    held = {t: STATES[s] for a, b, s in zip(result.start, result.end, result.state, strict=True) for t in range(a, b)}
    assert set(held) == set(range(first, max(first, last)))
    for moment, state in held.items():
        wanted = next(
            (
                name
                for kind, name in (("gemm", "compute"), ("ncclDevKernel", "communication"), ("Memcpy HtoD", "copy"))
                if moment in runs.get(kind, ())
            ),
            "idle",
        )
        assert ("idle" if state in STATES[3:] else state) == wanted


@given(WORK)
def test_slices_add_up_to_the_temporal_breakdown(pieces: list[tuple[str, int, int]]) -> None:
    findings = temporal_breakdown.analyze(trace_of(*events_of(pieces)))
    (row,) = findings.rows
    ns = dict.fromkeys(STATES, 0)
    for track in findings.annotations:
        assert track.name == "GPU state"
        for each in slices_of(track):
            ns[each["name"]] += each["dur"]
    assert ns["compute"] == row.compute_ns
    assert ns["communication"] == row.exposed_communication_ns
    assert ns["copy"] == row.exposed_memory_ns
    assert sum(ns[name] for name in STATES[3:]) == row.idle_ns


RECORDED = Path(__file__).resolve().parents[3] / "shared" / "traces"
ANALYSIS = "augment.idle_time_breakdown"
GPU_WORK = ("kernel", "gpu_memcpy", "gpu_memset")
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
Slice = dict[str, Any]


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
        self.work = sorted(
            (each for each in slices if each.get("cat") in GPU_WORK), key=lambda item: int(item["start"])
        )
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

    def at(self, correlation: str, moment: int) -> Slice:
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
