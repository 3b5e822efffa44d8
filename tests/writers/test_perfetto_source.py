"""What Perfetto's real engine has of each kind of event of the source, in its native format."""

from __future__ import annotations

import gzip
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from augment import AugmentedTrace, read
from augment.arrays import Int64s
from augment.core import COMPLETE, Annotation, CounterTrack, Ends, Flows, InstantTrack, SliceTrack, Texts
from augment.core.output_files import replacing
from augment.writers import bundle
from augment.writers import perfetto as writer
from augment.writers.chrome_events import _EXACT, _seen, fitting_durations, seen_ns
from augment.writers.perfetto.several import Links, Several, TraceGroup, is_of_several
from perfetto_engine import PerfettoEngine
from perfetto_traces import (
    ALL,
    KERNEL,
    KERNEL_ARGS,
    NAMES,
    OP,
    TRACKS,
    args_by_key,
    arrows,
    codes,
    load,
    source,
    trace_of_events,
)
from writer_traces import augmented, ns, texts

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
        perfetto, tmp_path, [{**value, "ph": phase, "name": phase, "s": "g", "args": {"x": 1}} for phase in "iIRO"]
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


# What Perfetto's real engine has of annotations, in its native format and in a bundle.
LAUNCHING = {**OP, "cat": "cuda_runtime", "name": "launch", "ts": 1, "dur": 2, "args": {"correlation": 5}}
EVENTS = [*NAMES, LAUNCHING, {**KERNEL, "name": "k", "ts": 5, "dur": 2.001, "args": KERNEL_ARGS}]
HOST, STREAM = 0, 1  #: tracks of EVENTS
IDLE = SliceTrack(
    "idle", "Idle stream 7", STREAM, ns(7001, 9002), ns(2001, 0), texts("host_wait", "other"),
    {"correlation": ns(2**62 + 1, -1), "owner": Texts(np.array([0, -1], np.int32), ['gemm<"é">'])}, "why",
)  # fmt: skip
QUEUE = CounterTrack("queue", "Queue Length stream 7", STREAM, ns(1000, 5000), ns(1, 0), "count", scale="count")
MARKS = InstantTrack("marks", "Marks", HOST, ns(4000), texts("here"))


def test_added_tracks_lie_under_their_device(perfetto: PerfettoEngine, tmp_path: Path) -> None:
    load(perfetto, tmp_path, EVENTS, IDLE, QUEUE, MARKS)
    paths = {text for (text,) in perfetto.rows(TRACKS)}
    assert {"GPU 0", "GPU 0 > stream 7", "GPU 0 > Idle stream 7", "GPU 0 > Queue Length stream 7"} <= paths


def test_slices(perfetto: PerfettoEngine, tmp_path: Path) -> None:
    load(perfetto, tmp_path, EVENTS, IDLE)
    sql = "select s.ts, s.dur, s.name, s.category, t.name from slice s join track t on t.id = track_id"
    sql += " where category = 'augment.idle'"
    assert perfetto.rows(sql) == [
        (7001, 2001, "host_wait", "augment.idle", "Idle stream 7"),
        (9002, 0, "other", "augment.idle", "Idle stream 7"),
    ]
    assert args_by_key(perfetto, "host_wait") == {"correlation": 2**62 + 1, "owner": 'gemm<"é">'}
    assert args_by_key(perfetto, "other") == {}


def test_second_slices_lie_below_the_first(perfetto: PerfettoEngine, tmp_path: Path) -> None:
    """They touch, one has no duration, and an arrow leads to the first."""
    below = Texts(np.array([0, -1, 1, 1], np.int32), ["a", "b"])
    track = SliceTrack(
        "idle", "Idle", STREAM, ns(10, 20, 30, 30), ns(10, 10, 0, 7), texts(*"wxyz"), {"n": ns(1, 2, 3, 4)}, "", below
    )
    load(perfetto, tmp_path, EVENTS, track, Flows("idle", "to", Ends(ns(0)), Ends(ns(3), track)))
    sql = "select s.ts, s.dur, s.name, s.depth, up.name from slice s left join slice up on up.id = s.parent_id"
    assert perfetto.rows(sql + " where s.category = 'augment.idle' order by s.ts, s.dur, s.depth") == [
        (10, 10, "w", 0, None), (10, 10, "a", 1, "w"), (20, 10, "x", 0, None), (30, 0, "y", 0, None),
        (30, 7, "z", 0, None), (30, 7, "b", 1, "z"),
    ]  # fmt: skip
    assert args_by_key(perfetto, "z") == {"n": 4}
    assert args_by_key(perfetto, "b") == {"n": 4}
    assert perfetto.problems() == {}
    assert perfetto.rows("select s.name from flow join slice s on s.id in (slice_in, slice_out) where s.name = 'z'")


def test_counters_have_a_unit_and_share_a_scale(perfetto: PerfettoEngine, tmp_path: Path) -> None:
    copies = CounterTrack("memory_bandwidth", "Memset bandwidth", STREAM, ns(1001), np.array([12.345678]), "GB/s")
    load(perfetto, tmp_path, EVENTS, QUEUE, copies)
    sql = "select t.name, t.unit, c.ts, c.value from counter c join counter_track t on t.id = track_id"
    sql += " order by t.name, ts"
    assert perfetto.rows(sql) == [
        ("Memset bandwidth", "GB/s", 1001, 12.345678),
        ("Queue Length stream 7", "count", 1000, 1.0),
        ("Queue Length stream 7", "count", 5000, 0.0),
    ]


def test_descriptions_and_share_keys_are_in_the_file(tmp_path: Path) -> None:
    from perfetto_schema import protos as schema

    of_device = CounterTrack("queue", "Queue Length", STREAM, ns(1000), ns(1), "count"), SliceTrack(
        "idle", "Idle", STREAM, ns(7001), ns(2001), texts("other"))  # fmt: skip
    writer.write(trace_of_events(tmp_path, EVENTS, IDLE, QUEUE, *of_device), tmp_path / "t.pftrace")
    outer = schema.Trace.FromString((tmp_path / "t.pftrace").read_bytes())
    packets = [p for o in outer.packet for p in schema.Trace.FromString(zlib.decompress(o.compressed_packets)).packet]
    tracks = {p.track_descriptor.name: p.track_descriptor for p in packets if p.HasField("track_descriptor")}
    assert tracks["Idle stream 7"].description == "why"
    assert tracks["Queue Length stream 7"].counter.y_axis_share_key == "queue count"
    ranks = {name: each.sibling_order_rank for name, each in tracks.items()}
    assert ranks["Idle"] < ranks["Queue Length"] < ranks["Idle stream 7"] < ranks["stream 7"]
    assert tracks["GPU 0"].child_ordering == schema.TrackDescriptor.EXPLICIT


def test_instants_and_flows(perfetto: PerfettoEngine, tmp_path: Path) -> None:
    load(perfetto, tmp_path, EVENTS, MARKS, Flows("why", "waits", Ends(ns(0)), Ends(ns(1))))
    assert perfetto.rows("select ts, name from slice where category = 'augment.marks'") == [(4000, "here")]
    assert arrows(perfetto) == [("launch", "k")]


@pytest.mark.parametrize("rows", [2, 40_000])
def test_arrows_of_added_slices(perfetto: PerfettoEngine, tmp_path: Path, rows: int) -> None:
    """By the compiled and the plain way; several at one slice; in the order of time, then of the file."""
    tied = [{**KERNEL, "name": "tied", "ts": 100.002, "dur": 1}]
    ts = np.append(2000 + np.arange(rows - 1), 100002)
    names = Texts(np.arange(rows, dtype=np.int32), [f"gap {row}" for row in range(rows)])
    chain = SliceTrack("why", "Chain", STREAM, ts, np.ones(rows, np.int64), names, {"n": np.arange(rows)})
    last = rows - 1
    flows = [
        Flows("why", "waits", Ends(ns(0, last, last), chain), Ends(ns(0, 1, 2))),
        Flows("why", "next", Ends(ns(0, last), chain), Ends(ns(last, last), chain)),
        Flows("why", "idle", Ends(ns(last), chain), Ends(ns(0), IDLE)),
    ]
    result = load(perfetto, tmp_path, [*EVENTS, *tied], IDLE, chain, *flows)
    end = f"gap {last}"
    assert arrows(perfetto) == sorted(
        [("launch", "gap 0"), ("k", end), ("tied", end), ("gap 0", end), ("host_wait", end)], key=repr
    )
    assert codes(result) == {"flow_without_slices": 1}, "a slice that leads to itself"
    assert args_by_key(perfetto, "gap 0") == {"n": 0}
    assert args_by_key(perfetto, end) == {"n": last}


def test_a_bundle_has_the_arrows_between_added_slices(perfetto: PerfettoEngine, tmp_path: Path) -> None:
    flows = [Flows("why", "waits", Ends(ns(0), IDLE), Ends(ns(1), IDLE)),
             Flows("why", "waits", Ends(ns(0), IDLE), Ends(ns(1)))]  # fmt: skip
    (output,) = bundle.write_seamed(trace_of_events(tmp_path, EVENTS, IDLE, *flows), tmp_path / "t.zip").diagnostics
    assert (output.code, output.count) == ("bundle_flow_left_out", 1)
    perfetto.load_clean(tmp_path / "t.zip")
    assert arrows(perfetto) == [("host_wait", "other")]


@pytest.mark.parametrize("base_ns", [0, 1712195495406752797])
def test_a_bundle_is_one_timeline(perfetto: PerfettoEngine, tmp_path: Path, base_ns: int) -> None:
    trace = trace_of_events(tmp_path, EVENTS, baseTimeNanoseconds=base_ns).trace
    shifted = SliceTrack("idle", "Idle", STREAM, IDLE.ts + base_ns, IDLE.dur, IDLE.names)
    assert bundle.write_seamed(augmented(trace, shifted), tmp_path / "t.zip").diagnostics == []
    perfetto.load_clean(tmp_path / "t.zip")
    assert perfetto.rows("select ts, dur, name from slice order by ts") == [
        (1000, 2000, "launch"), (5000, 2001, "k"), (7001, 2001, "host_wait"), (9002, 0, "other"),
    ]  # fmt: skip
    assert perfetto.rows("select count(*) from process where pid = 42") == [(1,)]


@pytest.mark.parametrize("name", ["rank0.pt.trace.json.gz", "größe.json.gz"])
def test_a_bundle_keeps_the_source_as_it_is(perfetto: PerfettoEngine, tmp_path: Path, name: str) -> None:
    plain = source(tmp_path, EVENTS)
    path = tmp_path / name
    path.write_bytes(gzip.compress(plain.read_bytes(), 9))
    trace = augmented(read(str(path)), IDLE)
    for out in ("a.zip", "b.zip"):
        bundle.write_seamed(trace, tmp_path / out)
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        assert archive.namelist() == [path.name, "annotations.pftrace"]
        assert archive.getinfo(path.name).compress_type == zipfile.ZIP_STORED
        assert archive.read(path.name) == path.read_bytes()
        assert archive.testzip() is None
    perfetto.load(tmp_path / "a.zip")
    assert perfetto.rows("select count(*) from slice where name = 'host_wait'") == [(1,)]


# Several traces in one native file, as Perfetto's engine reads it: nothing of one is mistaken for another's.
LAUNCH = {"ph": "X", "cat": "cuda_runtime", "pid": 42, "tid": 43, "name": "cudaLaunchKernel"}
LAUNCH["args"] = {"correlation": 5}
ARROW = [
    {"ph": "s", "id": 5, "pid": 42, "tid": 43, "ts": 2, "cat": "ac2g", "name": "ac2g"},
    {"ph": "f", "id": 5, "pid": 0, "tid": 7, "ts": 20, "cat": "ac2g", "name": "ac2g", "bp": "e"},
]


def rank(folder: Path, name: str, *annotations: Annotation, at: float = 0) -> AugmentedTrace:
    """A rank whose numbers (pids, correlations, flow ids) are those of every other, and whose texts are its own."""
    events: list[dict[str, Any]] = [
        *NAMES,
        {**OP, "name": f"op {name}", "ts": 1, "dur": 10, "args": {"who": name, f"only {name}": [1, name]}},
        {**LAUNCH, "ts": 2, "dur": 2, "args": {"correlation": 5}},
        {**KERNEL, "name": f"kernel {name}", "ts": 20, "dur": 5, "args": KERNEL_ARGS},
        *ARROW,
    ]
    events = [{**event, "ts": event["ts"] + at} if "ts" in event else event for event in events]
    folder = folder / f"rank {name}"
    folder.mkdir()
    return trace_of_events(folder, events, *annotations, distributedInfo={"rank": int(name)})


def kernel_row(augmented_trace: AugmentedTrace) -> int:
    names = augmented_trace.trace.names_of(np.arange(len(augmented_trace.trace.events)))
    is_slice = augmented_trace.trace.events.phase[:] == COMPLETE
    (row,) = (row for row, name in enumerate(names) if name.startswith("kernel") and is_slice[row])
    return row


def idle(under: int = 0) -> list[Annotation]:
    """An added track, and an arrow from its slice to the source's last."""
    ts = np.array([12_000], np.int64)
    track = SliceTrack(
        "a", "Idle", under, ts, ts, Texts(np.zeros(1, np.int32), ["waiting"]), {"gap": np.array([7], np.int64)}
    )
    return [track, Flows("a", "waits for", Ends(np.array([0]), track), Ends(np.array([0])))]


def merged(perfetto: PerfettoEngine, folder: Path, ranks: dict[str, AugmentedTrace], *, linked: bool = True) -> None:
    """Write ``ranks``, their kernels linked, and have the engine read the file."""
    with replacing(folder / "all.pftrace") as file:
        several = Several(file)
        for name, each in ranks.items():
            links = Links(np.array([kernel_row(each)]), np.array([0]))
            output = several.add(each, TraceGroup(f"rank {name}", f"from {name}"), *([links] if linked else []))
            assert codes(output) == {}
    assert is_of_several(folder / "all.pftrace")
    perfetto.load_clean(folder / "all.pftrace")


def test_each_trace_keeps_its_own_slices_args_and_arrows(perfetto: PerfettoEngine, tmp_path: Path) -> None:
    ranks = {name: rank(tmp_path, name, *idle()) for name in "012"}
    merged(perfetto, tmp_path, ranks, linked=False)
    expected = [("cudaLaunchKernel", f"kernel {name}") for name in "012"]
    assert arrows(perfetto) == sorted([*expected, *((f"op {name}", "waiting") for name in "012")])
    assert perfetto.rows("select count(*) from slice where category <> 'augment.overview'") == [(12,)]
    for name in "012":
        sql = f"select key, string_value from slice join args using (arg_set_id) where name = 'op {name}'"
        result = dict(perfetto.rows(f"{sql} and key glob 'debug*'"))
        assert result == {"debug.who": name, f"debug.only {name}": f'[1,"{name}"]'}
    assert perfetto.rows(
        "select count(*) from flow join slice a on a.id = slice_out join slice b on b.id = slice_in where a.ts > b.ts"
    ) == [(0,)]


def test_ranks_are_root_tracks_in_their_order(perfetto: PerfettoEngine, tmp_path: Path) -> None:
    merged(perfetto, tmp_path, {name: rank(tmp_path, name, *idle(1)) for name in "210"})
    roots = """select name, extract_arg(source_arg_set_id, 'description') from track
               where parent_id is null and name is not null
               order by extract_arg(source_arg_set_id, 'sibling_order_rank')"""
    assert perfetto.rows(roots) == [(f"rank {name}", f"from {name}") for name in "210"]
    paths = {path for (path,) in perfetto.rows(TRACKS)}
    for name in "012":
        assert {f"rank {name} > GPU 0 > stream 7", f"rank {name} > python 42 > main"} <= paths
    below = "select count(*) from slice join track on slice.track_id = track.id where track.parent_id is null"
    assert perfetto.rows(f"{below} and category <> 'augment.overview'") == [(0,)]


def test_the_overview_says_when_each_gpu_is_busy(perfetto: PerfettoEngine, tmp_path: Path) -> None:
    """The UI draws it from threads, in the order of processes: those with most slices first."""
    merged(perfetto, tmp_path, {name: rank(tmp_path, name) for name in "210"})
    table = "slice join thread_track on track_id = thread_track.id join thread using (utid) join process using (upid)"
    rows = perfetto.rows(f"select process.name, pid, count(*), sum(dur) from {table} group by upid order by 3 desc")
    assert [(name, pid, busy) for name, pid, _, busy in rows] == [
        (f"GPU busy, rank {name}: overview row", number, 5_000) for number, name in enumerate("210", 1)
    ]
    kernels = "select min(ts), max(ts + dur) from slice where category = 'kernel'"
    busy = "select min(ts), max(ts + dur) from slice where category = 'augment.overview' and dur > 0"
    ((begin, end),), ((first, last),) = perfetto.rows(kernels), perfetto.rows(busy)
    assert abs(first - begin) < 100
    assert abs(last - end) < 100


def test_links_lead_from_trace_to_trace_in_the_order_of_time(perfetto: PerfettoEngine, tmp_path: Path) -> None:
    late = {"0": 3, "1": 1, "2": 2}
    merged(perfetto, tmp_path, {name: rank(tmp_path, name, at=at) for name, at in late.items()})
    across = [(a, b) for a, b in arrows(perfetto) if a != "cudaLaunchKernel"]
    assert across == [("kernel 1", "kernel 2"), ("kernel 2", "kernel 0")]


def test_names_that_two_have_are_told_apart(perfetto: PerfettoEngine, tmp_path: Path) -> None:
    events = [
        *NAMES,
        {"ph": "M", "name": "thread_name", "pid": 42, "tid": 44, "args": {"name": "main"}},
        {**OP, "name": "a", "ts": 1, "dur": 9},
        {**OP, "name": "b", "ts": 2, "dur": 9, "tid": 44},
        {**OP, "name": "c", "ts": 3, "dur": 9, "pid": "text", "tid": "thread"},
    ]
    trace = trace_of_events(tmp_path, events)
    with replacing(tmp_path / "all.pftrace") as file:
        several = Several(file)
        for _ in range(2):
            several.add(trace, TraceGroup("rank"))
    perfetto.load(tmp_path / "all.pftrace")
    paths = [str(path) for (path,) in perfetto.rows(TRACKS)]
    leaves = ["python 42 > main 43", "python 42 > main 44", "text > thread"]
    leaf_paths = [path for path in paths if path.count(">") == 2]
    assert sorted(leaf_paths) == sorted(f"{root} > {leaf}" for root in ("rank", "rank (2)") for leaf in leaves)
    assert perfetto.problems() == {}


def test_times_before_the_first_trace_are_the_next_ones_own(perfetto: PerfettoEngine, tmp_path: Path) -> None:
    merged(perfetto, tmp_path, {"0": rank(tmp_path, "0", at=10**9), "1": rank(tmp_path, "1", at=0)})
    result = perfetto.rows("select name, ts, dur from slice where name glob 'kernel*' order by ts")
    assert result == [("kernel 1", 20_000, 5_000), ("kernel 0", 10**12 + 20_000, 5_000)]


def test_metadata_of_each_trace(perfetto: PerfettoEngine, tmp_path: Path) -> None:
    merged(perfetto, tmp_path, {name: rank(tmp_path, name) for name in "01"})
    sql = "select str_value from metadata where name glob 'cr-*rank {} distributedInfo'"
    assert [perfetto.rows(sql.format(name)) for name in "01"] == [[('{"rank": 0}',)], [('{"rank": 1}',)]]


EPOCH_NS = 1_712_195_495_406_752_797
RANGES = [(0, 10**6), (10**12, 10**15), (10**15, 10**16), (10**17, 10**18), (EPOCH_NS, EPOCH_NS + 10**9)]


def times(low: int, high: int, count: int = 5000) -> Int64s:
    return np.sort(np.random.default_rng(low).integers(low, high, count))


@pytest.mark.parametrize(("low", "high"), [*RANGES, (4 * 10**18, 9 * 10**18)])
def test_seen_is_what_perfetto_sees(perfetto: PerfettoEngine, tmp_path: Path, low: int, high: int) -> None:
    ts = times(low, high)
    form = '{"ph":"i","s":"t","pid":1,"tid":1,"name":"a","ts":%d.%03d}'
    path = tmp_path / "t.json"
    path.write_text(f"[{','.join(form % divmod(t, 1000) for t in ts.tolist())}]")
    perfetto.load(path)
    assert [row[0] for row in perfetto.rows("select ts from slice order by ts")] == seen_ns(ts).tolist()


def test_short_times_are_seen_as_they_are() -> None:
    ns = np.concatenate((times(0, 2 * _EXACT) - _EXACT + 1, [-_EXACT + 1, -1, 0, 1, _EXACT - 1]))
    assert (_seen(ns) == ns).all()
    assert (seen_ns(ns) == ns).all()


@pytest.mark.parametrize(("low", "high"), RANGES)
def test_no_slice_reaches_into_the_next(low: int, high: int) -> None:
    ts = times(low, high)
    dur = np.diff(ts, append=ts[-1] + 1)
    fitting = fitting_durations(ts, dur, 0)
    seen = seen_ns(ts)
    assert (seen[:-1] + seen_ns(fitting)[:-1] <= seen[1:]).all()
    assert (fitting >= 0).all()
    assert (fitting <= dur).all()
    assert (dur - fitting < 512).all()


def test_years_between_slices() -> None:
    """Where clocks disagree, a gap may last from 1970 until today: its length is rounded, too."""
    for start in range(1000):
        ts = np.array([start, EPOCH_NS])
        dur = np.array([EPOCH_NS - start, 1])
        fitting = fitting_durations(ts, dur, 0)
        assert seen_ns(ts)[0] + seen_ns(fitting)[0] <= seen_ns(ts)[1]
        assert 0 <= dur[0] - fitting[0] < 1024


@pytest.mark.parametrize(("low", "high"), RANGES)
def test_slices_within_others_stay_there(perfetto: PerfettoEngine, tmp_path: Path, low: int, high: int) -> None:
    """Each slice of the first level holds two that fill it, each of which holds one that fills it."""
    edges = np.unique(times(low, high, 4500))
    edges = edges[: len(edges) // 3 * 3]
    bounds = [(outer, (outer[0], outer[1]), (outer[1], outer[2])) for outer in edges.reshape(-1, 3).tolist()]
    spans = [span for (a, _, c), each, other in bounds for span in ((a, c), each, each, other, other)]
    ts, end = np.array(spans).T
    fitting = fitting_durations(ts, end - ts, 0)
    assert (fitting >= 0).all()
    assert (fitting <= end - ts).all()
    assert (end - ts - fitting < 512).all()
    form = '{"ph":"X","pid":1,"tid":1,"name":"a","ts":%d.%03d,"dur":%d.%03d}'
    events = [
        form % (*divmod(row, 1000), *divmod(dur, 1000)) for row, dur in zip(ts.tolist(), fitting.tolist(), strict=True)
    ]
    path = tmp_path / "t.json"
    path.write_text(f"[{','.join(events)}]")
    perfetto.load_clean(path)
    assert perfetto.rows("select count(*) from slice") == [(len(ts),)]


def test_small_times_are_left_alone() -> None:
    ts = times(0, 10**9) + EPOCH_NS
    dur = np.diff(ts, append=ts[-1] + 1)
    assert (fitting_durations(ts, dur, EPOCH_NS) == dur).all()
    assert (fitting_durations(ts, dur, 0) != dur).any()


def test_threads_become_no_args(perfetto: PerfettoEngine, tmp_path: Path) -> None:
    """The engine tells the last thread that was described in their sequence as an arg of slices on other tracks."""
    load(perfetto, tmp_path, EVENTS, IDLE)
    assert perfetto.rows("select key from slice join args using (arg_set_id) where key not glob 'debug*'") == []
