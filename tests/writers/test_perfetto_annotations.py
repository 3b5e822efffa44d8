"""What Perfetto's real engine has of annotations, in its native format and in a bundle."""

from __future__ import annotations

import gzip
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest

from augment.core.annotations import CounterTrack, Ends, Flows, InstantTrack, SliceTrack, Texts
from augment.core.findings import AugmentedTrace
from augment.pipeline import augment
from augment.readers import read
from augment.writers import bundle
from augment.writers import perfetto as writer
from perfetto_engine import PerfettoEngine
from perfetto_traces import (
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

LAUNCH = {**OP, "cat": "cuda_runtime", "name": "launch", "ts": 1, "dur": 2, "args": {"correlation": 5}}
EVENTS = [*NAMES, LAUNCH, {**KERNEL, "name": "k", "ts": 5, "dur": 2.001, "args": KERNEL_ARGS}]
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
        (10, 10, "w", 0, None),
        (10, 10, "a", 1, "w"),
        (20, 10, "x", 0, None),
        (30, 0, "y", 0, None),
        (30, 7, "z", 0, None),
        (30, 7, "b", 1, "z"),
    ]
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
    flows = Flows("why", "waits", Ends(ns(0)), Ends(ns(1)))
    load(perfetto, tmp_path, EVENTS, MARKS, flows)
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
    (output,) = bundle.write(trace_of_events(tmp_path, EVENTS, IDLE, *flows), tmp_path / "t.zip")
    assert (output.code, output.count) == ("bundle_flow_left_out", 1)
    perfetto.load(tmp_path / "t.zip")
    assert perfetto.problems() == {}
    assert arrows(perfetto) == [("host_wait", "other")]


@pytest.mark.parametrize("base_ns", [0, 1712195495406752797])
def test_a_bundle_is_one_timeline(perfetto: PerfettoEngine, tmp_path: Path, base_ns: int) -> None:
    trace = trace_of_events(tmp_path, EVENTS, baseTimeNanoseconds=base_ns).trace
    shifted = SliceTrack("idle", "Idle", STREAM, IDLE.ts + base_ns, IDLE.dur, IDLE.names)
    assert bundle.write(augmented(trace, shifted), tmp_path / "t.zip") == []
    perfetto.load(tmp_path / "t.zip")
    assert perfetto.problems() == {}
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
        bundle.write(trace, tmp_path / out)
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        assert archive.namelist() == [path.name, "annotations.pftrace"]
        assert archive.getinfo(path.name).compress_type == zipfile.ZIP_STORED
        assert archive.read(path.name) == path.read_bytes()
        assert archive.testzip() is None
    perfetto.load(tmp_path / "a.zip")
    assert perfetto.rows("select count(*) from slice where name = 'host_wait'") == [(1,)]


def test_equal_traces_give_equal_files(tmp_path: Path) -> None:
    trace: AugmentedTrace = augment(read(str(source(tmp_path, EVENTS))))
    writer.write(trace, tmp_path / "a.pftrace")
    writer.write(augment(read(str(tmp_path / "t.json"))), tmp_path / "b.pftrace")
    assert (tmp_path / "a.pftrace").read_bytes() == (tmp_path / "b.pftrace").read_bytes()
