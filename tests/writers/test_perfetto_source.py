"""What Perfetto's real engine has of each kind of event of the source, in its native format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from augment.core.findings import AugmentedTrace
from augment.readers import read
from augment.writers import perfetto as writer
from perfetto_engine import PerfettoEngine
from perfetto_traces import ALL, KERNEL, KERNEL_ARGS, NAMES, OP, TRACKS, args_by_key, arrows, codes, load

pytestmark = pytest.mark.slow


def test_times_are_exact(perfetto: PerfettoEngine, tmp_path: Path) -> None:
    events = [{**OP, "name": "a", "ts": 0, "dur": 0.001}]
    text = '{"traceEvents": [{"ph": "X", "name": "a", "pid": 1, "tid": 2, "ts": 1712195495406752.797, "dur": 0.001}]}'
    path = tmp_path / "exact.json"
    path.write_text(text)
    writer.write(AugmentedTrace(read(str(path)), {}), tmp_path / "exact.pftrace")
    assert perfetto.load(tmp_path / "exact.pftrace").rows(ALL) == [(1712195495406752797, 1, "a")]
    load(perfetto, tmp_path, events, baseTimeNanoseconds=1712195495406752797)
    assert perfetto.rows(ALL) == [(1712195495406752797, 1, "a")]


def test_nesting_and_touching(perfetto: PerfettoEngine, tmp_path: Path) -> None:
    """Neither the order of the file nor equal times change what lies in what."""
    spans = [("child", 0, 5), ("second", 5, 5), ("outer", 0, 10), ("next", 10, 4), ("leaf", 0, 2), ("empty", 10, 0)]
    rows = load(perfetto, tmp_path, [{**OP, "name": name, "ts": ts, "dur": dur} for name, ts, dur in spans])
    assert perfetto.rows("select name, ts, dur, depth from slice order by ts, depth") == [
        ("outer", 0, 10000, 0),
        ("child", 0, 5000, 1),
        ("leaf", 0, 2000, 2),
        ("second", 5000, 5000, 1),
        ("next", 10000, 4000, 0),
        ("empty", 10000, 0, 1),
    ]
    assert codes(rows) == {}


def test_slices_that_overlap_lie_on_tracks_of_one_name(perfetto: PerfettoEngine, tmp_path: Path) -> None:
    spans = [("a", 0, 10), ("b", 5, 10), ("c", 6, 12), ("in b", 7, 2), ("d", 16, 5)]
    kernels = [{**KERNEL, "name": name, "ts": ts, "dur": dur, "args": KERNEL_ARGS} for name, ts, dur in spans]
    result = load(perfetto, tmp_path, [*NAMES, *kernels])
    assert perfetto.rows(ALL) == [(ts * 1000, dur * 1000, name) for name, ts, dur in spans]
    assert perfetto.rows(
        "select t.name, count(*), count(distinct t.id) from slice join track t on t.id = track_id"
    ) == [("stream 7", 5, 3)]
    assert codes(result) == {"overlapping_slices": 2}
    load(perfetto, tmp_path, [{**OP, "name": name, "ts": ts, "dur": dur} for name, ts, dur in spans])
    assert perfetto.rows(ALL) == [(ts * 1000, dur * 1000, name) for name, ts, dur in spans]


def test_a_negative_duration_is_kept_and_told(perfetto: PerfettoEngine, tmp_path: Path) -> None:
    result = load(perfetto, tmp_path, [{**OP, "name": "back", "ts": 5, "dur": -2, "args": {"x": 1}}])
    assert perfetto.rows(ALL) == [(5000, 0, "back")]
    assert args_by_key(perfetto, "back") == {"x": 1, "dur_ns": -2000}
    assert codes(result) == {"negative_duration": 1}


def test_times_before_zero_move_all(perfetto: PerfettoEngine, tmp_path: Path) -> None:
    result = load(perfetto, tmp_path, [{**OP, "name": "a", "ts": -5, "dur": 2}, {**OP, "name": "b", "ts": 1, "dur": 2}])
    assert perfetto.rows(ALL) == [(0, 2000, "a"), (6000, 2000, "b")]
    assert codes(result) == {"negative_time": 1}


def test_args(perfetto: PerfettoEngine, tmp_path: Path) -> None:
    args = {
        "External id": 2049, "negative": -1, "largest": 2**63 - 1, "text": 'é "q" \\ \n\u0001', "nothing": None,
        "yes": True, "ratio": 0.1, "tiny": 1e-30, "Input Dims": [[4096, 2048], [], ["x"]],
        "object": {"a": {"b": 2}, "empty": {}}, "": "no key", "ké": 1.0, "precise": 12345678901234.567,
    }  # fmt: skip
    load(perfetto, tmp_path, [{**OP, "name": "a", "ts": 1, "dur": 2, "args": args}])
    assert args_by_key(perfetto, "a") == {
        "External id": 2049, "negative": -1, "largest": 2**63 - 1, "text": 'é "q" \\ \n\u0001', "nothing": "null",
        "yes": 1, "ratio": 0.1, "tiny": 1e-30, "Input Dims": '[[4096,2048],[],["x"]]',
        "object": '{"a":{"b":2},"empty":{}}', "": "no key", "ké": 1.0, "precise": 12345678901234.567,
    }  # fmt: skip


def test_begins_and_ends(perfetto: PerfettoEngine, tmp_path: Path) -> None:
    def event(phase: str, name: str, ts: float, **more: Any) -> dict[str, Any]:
        return {"ph": phase, "pid": 42, "tid": 43, "name": name, "ts": ts, **more}

    result = load(
        perfetto,
        tmp_path,
        [
            event("E", "never began", 0),
            event("B", "outer", 1, args={"x": 1}),
            event("B", "inner", 2),
            event("E", "", 3),
            event("E", "outer", 5, args={"y": 2}),
            event("B", "touching", 5),
            event("E", "touching", 6),
            event("B", "instant", 7),
            event("E", "instant", 7),
            event("B", "never ended", 8),
        ],
    )
    assert perfetto.rows(ALL) == [
        (0, 0, "never began"), (1000, 4000, "outer"), (2000, 1000, "inner"), (5000, 1000, "touching"),
        (7000, 0, "instant"), (8000, -1, "never ended"),
    ]  # fmt: skip
    assert args_by_key(perfetto, "outer") == {"x": 1, "y": 2}
    assert codes(result) == {"slice_without_end": 1, "end_without_slice": 1}


def test_moments_and_phases_that_perfetto_does_not_know(perfetto: PerfettoEngine, tmp_path: Path) -> None:
    value = {"pid": 42, "tid": 43, "ts": 3}
    rows = load(
        perfetto,
        tmp_path,
        [{**value, "ph": phase, "name": phase, "s": "g", "args": {"x": 1}} for phase in "iIRO"],
    )
    names = ("I", "O", "R", "i")
    assert perfetto.rows("select name, ts, dur from slice order by name") == [(name, 3000, 0) for name in names]
    assert args_by_key(perfetto, "i") == {"x": 1}
    assert codes(rows) == {"phase_as_instant": 1}


def test_asynchronous_slices_overlap(perfetto: PerfettoEngine, tmp_path: Path) -> None:
    def event(phase: str, ts: float, **more: Any) -> dict[str, Any]:
        return {"ph": phase, "pid": 42, "tid": 43, "cat": "net", "name": "request", "ts": ts, **more}

    load(
        perfetto,
        tmp_path,
        [
            event("b", 1, id="0x1", args={"x": 1}), event("b", 2, id="0x2"), event("n", 3, id="0x1", name="byte"),
            event("e", 4, id="0x1", args={"y": 2}), event("e", 9, id="0x2"),
            event("b", 5, id2={"local": 7}), event("e", 6, id2={"local": 7}),
            event("S", 20, id=3), event("T", 21, id=3, args={"step": "s"}), event("F", 22, id=3),
        ],
    )  # fmt: skip
    assert perfetto.rows(ALL) == [
        (1000, 3000, "request"), (2000, 7000, "request"), (3000, 0, "byte"), (5000, 1000, "request"),
        (20000, 2000, "request"), (21000, 0, "request"),
    ]  # fmt: skip
    assert {name for (name,) in perfetto.rows("select distinct t.name from slice join track t on t.id = track_id")} == {
        "request"
    }


def test_asynchronous_ends_find_their_names(perfetto: PerfettoEngine, tmp_path: Path) -> None:
    """Whatever else is open; what that costs is linear."""

    def event(phase: str, name: str, ts: float) -> dict[str, Any]:
        return {"ph": phase, "pid": 42, "tid": 43, "cat": "net", "name": name, "ts": ts, "id": 1}

    count = 20_000
    begun = [event("b", "outer" if at < count else "inner", at) for at in range(2 * count)]
    ends = [event("e", "outer", 3 * count + at) for at in range(count)]
    more = [event("e", "", 5 * count), event("e", "never", 5 * count)]
    result = load(perfetto, tmp_path, [*begun, *ends, *more])
    assert codes(result)["slice_without_end"] == count - 1
    assert codes(result)["end_without_slice"] == 1
    crossing = [event("b", "outer", 1), event("b", "inner", 2), event("e", "outer", 3), event("e", "inner", 4)]
    load(perfetto, tmp_path, crossing)
    assert perfetto.rows(ALL) == [(1000, 2000, "outer"), (2000, 2000, "inner")]


def test_counters(perfetto: PerfettoEngine, tmp_path: Path) -> None:
    def event(ts: float, name: str, args: dict[str, Any], **more: Any) -> dict[str, Any]:
        return {"ph": "C", "pid": 42, "tid": 43, "name": name, "ts": ts, "args": args, **more}

    result = load(
        perfetto,
        tmp_path,
        [event(1, "memory", {"used": 5, "free": "2.5"}), event(2, "memory", {"used": 7.25, "label": "x"}, id=3)],
    )
    sql = "select t.name, c.ts, c.value from counter c join track t on t.id = track_id order by t.name, ts"
    assert perfetto.rows(sql) == [
        ("memory free", 1000, 2.5), ("memory id: 3 used", 2000, 7.25), ("memory used", 1000, 5.0)
    ]  # fmt: skip
    assert codes(result) == {"counter_without_number": 1}


def test_flows_bind_as_in_chrome_files(perfetto: PerfettoEngine, tmp_path: Path) -> None:
    launch = [{**OP, "cat": "cuda_runtime", "name": f"launch {k}", "ts": 10 * k, "dur": 4} for k in (1, 2, 3)]
    ran = [("kernel 1", 13, 4, 1), ("kernel 2", 23, 4, 2), ("graph", 28, 1, 2)]
    kernels = [
        {**KERNEL, "name": name, "ts": ts, "dur": dur, "args": {**KERNEL_ARGS, "correlation": correlation}}
        for name, ts, dur, correlation in ran
    ]

    def flow(phase: str, key: int, ts: float, tid: int, **more: Any) -> dict[str, Any]:
        place = {"pid": 42 if tid == 43 else 0, "tid": tid}
        return {"ph": phase, "id": key, "cat": "ac2g", "name": "ac2g", **place, "ts": ts, **more}

    result = load(
        perfetto,
        tmp_path,
        [
            flow("f", 1, 13, 7, bp="e"), *launch, *kernels, flow("s", 1, 10, 43), flow("s", 2, 20, 43),
            flow("f", 2, 23, 7, bp="e"), flow("f", 2, 28, 7, bp="e"), flow("s", 3, 30, 43), flow("s", 9, 99, 43),
        ],
    )  # fmt: skip
    assert arrows(perfetto) == [("launch 1", "kernel 1"), ("launch 2", "graph"), ("launch 2", "kernel 2")]
    assert codes(result) == {"flow_without_slices": 2}


def test_a_kernel_before_its_launch_keeps_its_arrow(perfetto: PerfettoEngine, tmp_path: Path) -> None:
    result = load(
        perfetto,
        tmp_path,
        [
            {**KERNEL, "name": "kernel", "ts": 1, "dur": 4, "args": KERNEL_ARGS},
            {**OP, "cat": "cuda_runtime", "name": "launch", "ts": 2, "dur": 4, "args": {"correlation": 5}},
            {"ph": "s", "id": 5, "cat": "ac2g", "name": "ac2g", "pid": 42, "tid": 43, "ts": 2},
            {"ph": "f", "id": 5, "cat": "ac2g", "name": "ac2g", "pid": 0, "tid": 7, "ts": 1, "bp": "e"},
        ],
    )
    assert arrows(perfetto) == [("kernel", "launch")]
    assert codes(result) == {"flow_turned_round": 1}


def test_an_end_without_bp_binds_to_the_next_slice(perfetto: PerfettoEngine, tmp_path: Path) -> None:
    slices = [{**OP, "name": name, "ts": ts, "dur": 3} for name, ts in (("a", 0), ("b", 5), ("c", 10))]
    ends: list[dict[str, Any]] = [{"ph": "s", "ts": 1}, {"ph": "t", "ts": 6}, {"ph": "f", "ts": 7}]
    flows = [{**end, "id": 1, "cat": "x", "name": "x", "pid": 42, "tid": 43} for end in ends]
    load(perfetto, tmp_path, [*slices, *flows])
    assert arrows(perfetto) == [("a", "b"), ("b", "c")]


def test_processes_threads_and_devices(perfetto: PerfettoEngine, tmp_path: Path) -> None:
    events = [
        *NAMES,
        {**OP, "cat": "cuda_runtime", "name": "launch", "ts": 1, "dur": 1, "args": {"correlation": 5}},
        {**KERNEL, "name": "k", "ts": 3, "dur": 4, "args": KERNEL_ARGS},
        {**KERNEL, "pid": 1, "tid": 20, "name": "k1", "ts": 3, "dur": 4, "args": {"device": 1, "stream": 20}},
        {**OP, "pid": "Spans", "tid": "PyTorch Profiler", "name": "span", "ts": 0, "dur": 50},
        {**OP, "pid": 42, "tid": -1811, "name": "odd thread", "ts": 0, "dur": 50},
    ]
    load(perfetto, tmp_path, events)
    assert perfetto.rows("select pid, name from process where pid != 0") == [(42, "python")]
    assert perfetto.rows("select tid, name from thread where tid = 43") == [(43, "main")]
    paths = {text for (text,) in perfetto.rows(TRACKS)}
    assert {"GPU 0 > stream 7", "GPU 1 > stream 20", "Spans > PyTorch Profiler", "Thread -1811"} <= paths
    owner = "select p.pid from process_track t join process p using (upid) where t.name = 'stream 7'"
    assert perfetto.rows(owner) == [(42,)]


def test_members_of_the_outer_object_are_metadata(perfetto: PerfettoEngine, tmp_path: Path) -> None:
    load(perfetto, tmp_path, [{**OP, "name": "a", "ts": 0, "dur": 1}], trace_id="94DFF", schemaVersion=1)
    rows = dict(perfetto.rows("select name, str_value from metadata where name like 'cr-%'"))
    assert rows == {"cr-trace_id": "94DFF", "cr-schemaVersion": "1"}


@pytest.mark.parametrize("count", [0, 1])
def test_a_trace_of_nothing(perfetto: PerfettoEngine, tmp_path: Path, count: int) -> None:
    load(perfetto, tmp_path, NAMES[:count])
    assert perfetto.rows(ALL) == []


def test_a_thread_that_is_named_in_two_ways_is_one(perfetto: PerfettoEngine, tmp_path: Path) -> None:
    """As Kineto of 2020 and 2021 wrote them."""
    call = {"ph": "X", "cat": "cuda_runtime", "name": "launch", "pid": 42, "tid": "42 (python)", "ts": 1, "dur": 2}
    mark = {"ph": "i", "s": "t", "cat": "x", "name": "mark", "pid": 42, "tid": 42, "ts": 2}
    load(perfetto, tmp_path, [call, mark])
    threads = (
        "select distinct tid, thread.name from slice join thread_track t on t.id = track_id join thread using (utid)"
    )
    assert perfetto.rows(threads) == [(42, "42 (python)")]
