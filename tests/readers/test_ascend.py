"""Ascend's trace_view: its devices' events have no category, its collectives a process of their own."""

from __future__ import annotations

import gzip
import json
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from augment import AugmentedTrace, MalformedTrace, read
from augment.analyses import temporal_breakdown
from augment.arrays import NO_INDEX
from augment.batch.inputs import has_events
from augment.core import Category
from augment.diagnosis.verdict import verdict
from augment.diagnosis.wording import track_of
from augment.facts.gpu.gpu_work import gpu_work
from augment.readers import stage_timeline
from augment.writers import perfetto
from metamorphic import real_trace
from tables import rows_of

HARDWARE, COLLECTIVES = 800, 1400


def named(what: str, name: str, pid: int, tid: int = 0) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}


def task(name: str, ts: str, dur: float, pid: int = HARDWARE, tid: int = 3) -> dict[str, Any]:
    return {"ph": "X", "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": {"Stream Id": tid}}


PROCESSES = [
    named("process_name", "Ascend Hardware", HARDWARE),
    named("process_name", "Communication", COLLECTIVES),
    named("thread_name", "Group 0 Communication", COLLECTIVES, 3),
    named("thread_name", "Plane 0", COLLECTIVES, 4),
]
TASKS = [
    task("aclnnMm_MatMulCommon_MatMulV2", "1704161511420300.000", 10),
    task("MEMCPY_ASYNC", "1704161511420312.000", 3),
    task("EVENT_WAIT_SQE", "1704161511420315.000", 85),
    task("aclnnAdd_AddAiCore_Add", "1704161511420400.000", 2),
    task("hcom_allReduce__123_0_1", "1704161511420305.000", 15, COLLECTIVES, 3),
    task("Notify_Wait", "1704161511420306.000", 90, COLLECTIVES, 4),
]


def write(folder: Path, events: list[Any]) -> str:
    path = folder / "trace_view.json"
    path.write_text(json.dumps(events))
    return str(path)


def test_what_its_devices_do(tmp_path: Path) -> None:
    trace = read(write(tmp_path, TASKS + PROCESSES))
    assert {
        trace.strings[each]: Category(kind).name
        for each, kind in zip(trace.events.name.tolist(), trace.events.category.tolist(), strict=True)
    } == {
        "aclnnMm_MatMulCommon_MatMulV2": "KERNEL",
        "MEMCPY_ASYNC": "KERNEL",
        "EVENT_WAIT_SQE": "CUDA_SYNC",
        "aclnnAdd_AddAiCore_Add": "KERNEL",
        "hcom_allReduce__123_0_1": "KERNEL",
        "Notify_Wait": "OTHER",
    }
    places = {(HARDWARE, 3), (HARDWARE, "Group 0 Communication"), (None, None)}
    assert {(track.device, track.stream) for track in trace.tracks} == places


def test_time_is_parted_between_streams_and_collectives(tmp_path: Path) -> None:
    trace = read(write(tmp_path, PROCESSES + TASKS))
    perfetto.write(AugmentedTrace(trace, {}), tmp_path / "trace_view.pftrace")
    columns = ("device", "span_ns", "compute_ns", "exposed_communication_ns", "exposed_memory_ns", "idle_ns")
    for each in (trace, read(str(tmp_path / "trace_view.pftrace"))):
        assert rows_of(temporal_breakdown.analyze(each), *columns) == [(HARDWARE, 102_000, 12_000, 10_000, 0, 80_000)]


NAMED = ("NOTIFY_WAIT", "MEMCPY_ASYNC", "REDUCE_ASYNC_V2")


def msprof(kind: str = "AllReduce", names: tuple[str, ...] = NAMED) -> list[dict[str, Any]]:
    """As msprof writes it: a step of one stream, then a collective, whose tasks lie on another stream and a plane."""
    base, tid = 1704161511420000, 70000
    events = [
        named("process_name", "Ascend Hardware", HARDWARE),
        named("process_name", "CANN", 12),
        named("process_name", "HCCL", COLLECTIVES),
        named("thread_name", "Communication Kernel", COLLECTIVES, tid),
        named("thread_name", "Plane 0", COLLECTIVES, 0),
        named("thread_name", "Stream 13", HARDWARE, 13),
    ]
    events += [task(f"Default/network/Conv2D-op{i}", f"{base + 42 * i}.000", 40.0) for i in range(100)]
    now = base + 4200
    events.append(task(f"Default/{kind}-op534_0", f"{now}.000", 41_440.0, COLLECTIVES, tid))
    for _ in range(80):
        for name, plane, dur in zip(names, ("Notify_Wait", "Memcpy", "Reduce_Inline"), (430, 48, 40), strict=True):
            events += [task(name, f"{now}.000", dur, HARDWARE, 13), task(plane, f"{now}.000", dur, COLLECTIVES, 0)]
            now += dur
    return events


@pytest.mark.parametrize("names", [NAMED, ("Notify Wait", "SDMA", "Write Value"), ("Other",) * 3])
@pytest.mark.parametrize("kind", ["AllReduce", "Broadcast"])
def test_a_collective_is_communication_and_its_tasks_are_nothing_else(
    kind: str, names: tuple[str, ...], tmp_path: Path
) -> None:
    """Whatever msprof calls its tasks: subtasks have names of their own, and of some it knows none."""
    trace = read(write(tmp_path, msprof(kind, names)))
    columns = ("span_ns", "compute_ns", "exposed_communication_ns", "exposed_memory_ns")
    expected = [(45_640_000, 4_000_000, 41_440_000, 0)]
    assert rows_of(temporal_breakdown.analyze(trace), *columns) == expected
    perfetto.write(AugmentedTrace(trace, {}), tmp_path / "msprof.pftrace")
    assert rows_of(temporal_breakdown.analyze(read(str(tmp_path / "msprof.pftrace"))), *columns) == expected
    text = " ".join(verdict(trace))
    assert "NPU" in text
    assert "GPU" not in text
    assert re.search(r"9[01](\.\d)? % exposed communication", text)


def test_without_the_collective_its_tasks_are_what_is_known(tmp_path: Path) -> None:
    """Transfers of a stream of their own are copies where no thread has the collectives as a whole."""
    events = [event for event in msprof() if event["pid"] != COLLECTIVES]
    ((memory,),) = rows_of(temporal_breakdown.analyze(read(write(tmp_path, events))), "exposed_memory_ns")
    assert memory == 80 * 48_000


def test_collectives_of_one_of_two_devices_are_no_ones(tmp_path: Path) -> None:
    trace = read(write(tmp_path, [named("process_name", "Ascend Hardware", 801), *PROCESSES, *TASKS]))
    assert {track.device for track in trace.tracks} == {HARDWARE, None}
    assert track_of(trace, int(gpu_work(trace).row[0])) == "NPU stream 3"  # 800 is a process
    others = trace.events.name[trace.events.category == Category.OTHER].tolist()
    assert [trace.strings[name] for name in others] == ["hcom_allReduce__123_0_1", "Notify_Wait"]


def arrow(number: int, begin: str, end: str, kind: str = "HostToDevice") -> list[dict[str, Any]]:
    place = {"pid": HOST, "tid": 9} if kind == "HostToDevice" else {"pid": PYTHON, "tid": 9}
    both = {"name": kind, "cat": kind, "id": str(number), "bp": "e"}
    return [both | {"ph": "s", "ts": begin} | place, both | {"ph": "f", "ts": end, "pid": HARDWARE, "tid": 3}]


PYTHON, HOST = 77, 7702
T = "17041615114203"


def test_calls_of_the_runtime_launch_what_their_arrows_lead_to(tmp_path: Path) -> None:
    """One call launches two kernels, from within a call in it; the arrow of the operator launches nothing."""
    events = [
        named("process_name", "CANN", HOST),
        task("AscendCL@aclnnMm", f"{T}10.000", 20, HOST, 9),
        task("AscendCL@opCompile", f"{T}11.000", 5, HOST, 9),
        task("AscendCL@aclnnAdd", f"{T}40.000", 4, HOST, 9),
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": PYTHON, "tid": 9, "ts": f"{T}05.000", "dur": 60},
        task("mm", f"{T}21.500", 5),
        task("cast", f"{T}28.500", 5),
        task("add", f"{T}46.000", 2),
        task("alone", f"{T}60.000", 2),
        *arrow(1, f"{T}15.000", f"{T}21.500"),
        *arrow(2, f"{T}27.000", f"{T}28.500"),
        *arrow(3, f"{T}43.000", f"{T}46.000"),
        *arrow(4, f"{T}06.000", f"{T}21.500", "async_npu"),
        *arrow(5, f"{T}50.000", f"{T}60.000", "async_npu"),
    ]
    expected = {"mm": "AscendCL@aclnnMm", "cast": "AscendCL@aclnnMm", "add": "AscendCL@aclnnAdd", "alone": None}
    trace = read(write(tmp_path, PROCESSES + events))
    perfetto.write(AugmentedTrace(trace, {}), tmp_path / "again.pftrace")
    for each in (trace, read(str(tmp_path / "again.pftrace"))):
        work = gpu_work(each)
        calls = [None if row == NO_INDEX else each.names_of([row])[0] for row in work.launch.tolist()]
        assert dict(zip(each.names_of(work.row), calls, strict=True)) == expected


def test_recorded_launches_are_those_of_the_file() -> None:
    """By the file's JSON: the outermost call around the begin of each arrow."""
    path = real_trace("ascend_trace_view/trace_view.json.gz")
    events = json.loads(gzip.decompress(path.read_bytes()), parse_float=Decimal)
    calls = [event for event in events if event["ph"] == "X" and event["name"].startswith("AscendCL@")]
    begins = {event["id"]: event for event in events if event.get("cat") == "HostToDevice" and event["ph"] == "s"}
    launched = {}
    for end in (event for event in events if event.get("cat") == "HostToDevice" and event["ph"] == "f"):
        begin = begins[end["id"]]
        around = [
            call for call in calls
            if (call["pid"], call["tid"]) == (begin["pid"], begin["tid"])
            and Decimal(call["ts"]) <= Decimal(begin["ts"]) <= Decimal(call["ts"]) + Decimal(call["dur"])
        ]  # fmt: skip
        launched[int(Decimal(end["ts"]) * 1000)] = max(around, key=lambda item: item["dur"])["name"]
    trace = read(str(path))
    work = gpu_work(trace)
    known = work.launch != NO_INDEX
    assert (len(known), int(known.sum())) == (276, 274)
    names = trace.names_of(work.launch[known])
    assert dict(zip(trace.events.ts[work.row[known]].tolist(), names, strict=True)) == launched


# Timelines of pipeline stages by Primus and MegatronApp.
PRIMUS = {
    "1": {"total": 9.5, "fwd_start": [0.5, 2], "fwd_end": [1.5, 3], "bwd_start": [4, 6], "bwd_end": [5, 9]},
    "2": {"total": 2, "memory": 84.3, "fwd_start": [0], "fwd_end": [1], "bwd_start": [1], "bwd_end": [2]},
}  # fmt: skip
MEGATRON_APP = [
    {"name": "iteration", "ph": "B", "pad_before": 0},
    {"name": "forward", "ph": "B", "rel_ts": 10},
    {"name": "forward", "ph": "E", "rel_ts": 30, "microbatch": 0, "model_chunk": 1, "pp_rank": 2},
    {"name": "iteration", "ph": "E", "rel_ts": 100, "duration_wall": 101, "duration_cuda": 100},
    {"name": "iteration", "ph": "B", "pad_before": 5},
    {"name": "backward", "ph": "B", "rel_ts": 1},
    {"name": "backward", "ph": "E", "rel_ts": 2, "microbatch": 0, "model_chunk": 1, "pp_rank": 2},
    {"name": "iteration", "ph": "E", "rel_ts": 50, "duration_wall": 51, "duration_cuda": 50},
]


def slices(path: Path) -> list[tuple[str, int, int]]:
    events = read(str(path)).events
    names = read(str(path)).strings
    return [(names[code], ts, dur) for code, ts, dur in
            zip(events.name.tolist(), events.ts.tolist(), events.dur.tolist(), strict=True)]  # fmt: skip


def test_primus(tmp_path: Path) -> None:
    path = tmp_path / "pp_rank_3.json"
    path.write_text(json.dumps(PRIMUS))
    assert has_events(str(path))  # so that augment open takes it from a folder
    assert read(str(path)).rank == 3
    assert slices(path) == [
        ("ProfilerStep#1", 0, 9_500_000),
        ("Forward 0", 500_000, 1_000_000),
        ("Forward 1", 2_000_000, 1_000_000),
        ("Backward 0", 4_000_000, 1_000_000),
        ("Backward 1", 6_000_000, 3_000_000),
        ("ProfilerStep#2", 9_500_000, 2_000_000),
        ("Forward 0", 9_500_000, 1_000_000),
        ("Backward 0", 10_500_000, 1_000_000),
    ]


def test_megatron_app(tmp_path: Path) -> None:
    path = tmp_path / "pp_rank_0.json"
    path.write_text(json.dumps(MEGATRON_APP, indent=2))
    assert slices(path) == [
        ("ProfilerStep#0", 0, 100),
        ("Forward 0 of chunk 1", 10, 20),
        ("ProfilerStep#1", 105, 50),
        ("Backward 0 of chunk 1", 106, 1),
    ]


@pytest.mark.parametrize("text", [
    json.dumps(PRIMUS)[:-9],
    json.dumps({"1": {"total": 1, "fwd_start": [1], "fwd_end": [2]}}),
    json.dumps({"1": {"total": 1, "fwd_start": ["x"], "fwd_end": [2], "bwd_start": [], "bwd_end": []}}),
    json.dumps([*MEGATRON_APP[:1], {"name": "forward", "ph": "E", "rel_ts": 1, "microbatch": 0}]),
    json.dumps([*MEGATRON_APP[:1], 7]),
])  # fmt: skip
def test_what_is_broken_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "pp_rank_0.json"
    path.write_text(text)
    with pytest.raises(MalformedTrace, match="pipeline stage"):
        read(str(path))


@pytest.mark.parametrize(
    "text", [b'{"traceEvents": []}', b'[{"name": "iteration", "ph": "B", "ts": 1}]', b'{"1": {"a": 2}}', b""]
)
def test_other_files_are_left_to_other_readers(text: bytes) -> None:
    assert not stage_timeline.recognizes(text)
