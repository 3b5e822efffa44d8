"""Ascend's trace_view: its devices' events have no category, its collectives a process of their own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from augment.analyses import temporal_breakdown
from augment.findings import AugmentedTrace
from augment.readers import read
from augment.trace import Category
from augment.writers import perfetto
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
        trace.strings[one]: Category(kind).name
        for one, kind in zip(trace.events.name.tolist(), trace.events.category.tolist(), strict=True)
    } == {
        "aclnnMm_MatMulCommon_MatMulV2": "KERNEL",
        "MEMCPY_ASYNC": "KERNEL",
        "EVENT_WAIT_SQE": "CUDA_SYNC",
        "aclnnAdd_AddAiCore_Add": "KERNEL",
        "hcom_allReduce__123_0_1": "KERNEL",
        "Notify_Wait": "OTHER",
    }
    assert {(one.device, one.stream) for one in trace.tracks} == {
        (HARDWARE, 3), (HARDWARE, "Group 0 Communication"), (None, None)
    }  # fmt: skip


def test_time_is_parted_between_streams_and_collectives(tmp_path: Path) -> None:
    found = temporal_breakdown.analyze(read(write(tmp_path, PROCESSES + TASKS)))
    columns = ("device", "span_ns", "compute_ns", "exposed_communication_ns", "exposed_memory_ns", "idle_ns")
    assert rows_of(found, *columns) == [(HARDWARE, 102_000, 12_000, 10_000, 0, 80_000)]


def test_the_native_format_tells_the_same(tmp_path: Path) -> None:
    trace = read(write(tmp_path, PROCESSES + TASKS))
    perfetto.write(AugmentedTrace(trace, {}), tmp_path / "trace_view.pftrace")
    again = temporal_breakdown.analyze(read(str(tmp_path / "trace_view.pftrace")))
    assert again.rows == temporal_breakdown.analyze(trace).rows


def test_collectives_of_one_of_two_devices_are_no_ones(tmp_path: Path) -> None:
    trace = read(write(tmp_path, [named("process_name", "Ascend Hardware", 801), *PROCESSES, *TASKS]))
    assert {one.device for one in trace.tracks} == {HARDWARE, None}
    assert [trace.strings[one] for one in trace.events.name[trace.events.category == Category.OTHER].tolist()] == [
        "hcom_allReduce__123_0_1",
        "Notify_Wait",
    ]
