from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from augment import AugmentedTrace, Findings, OutputError, Trace, augment, read
from augment.core import CounterTrack, Ends, Flows, InstantTrack, SliceTrack, Texts, Track, row_count
from augment.core.annotations import ArgColumn
from augment.writers import chrome
from metamorphic import real_trace
from perfetto_engine import EngineError, PerfettoEngine
from traces import SIMULATED, by_folder
from writer_traces import (
    PYTHON,
    STREAM_7,
    Text,
    added_events,
    augmented,
    chrome_trace,
    ns,
    stripped,
    texts,
    with_source,
    written,
)

KERNEL = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 5, "dur": 2}
IDLE = SliceTrack(
    "idle_time_breakdown",
    "Idle stream 7",
    0,
    ns(7000, 9001),
    ns(2001, 10),
    texts("host_wait", "other"),
    {"correlation": ns(5, -1), "owner": Texts(np.array([-1, 0], np.int32), ["aten::mm"])},
)
QUEUE = CounterTrack("queue_length", "Queue Length stream 7", 0, ns(1000, 2500), ns(1, 0), "operations")


def write(trace: Trace, path: Path, *annotations: object) -> list[dict[str, object]]:
    """The added events, after a look at what must hold of every file."""
    chrome.write(augmented(trace, *annotations), path)  # type: ignore[arg-type]
    text = written(path)
    if trace.source.closing is None:
        assert stripped(text) == b"".join(bytes(chunk) for chunk in trace.source.text.chunks())
    json.loads(text)
    return added_events(path)


def test_what_is_written(tmp_path: Path) -> None:
    events = write(chrome_trace([KERNEL]), tmp_path / "out", IDLE, QUEUE)
    idle, queue = "augment.idle_time_breakdown", "augment.queue_length"
    thread = {"pid": 0, "tid": 10000001}
    assert events == [
        {"cat": idle, "ph": "M", "name": "thread_name", **thread, "args": {"name": "Idle stream 7"}},
        {"cat": idle, "ph": "M", "name": "thread_sort_index", **thread, "args": {"sort_index": 7}},
        {"cat": idle, "ph": "X", "ts": 7.0, "dur": 2.001, **thread, "name": "host_wait", "args": {"correlation": 5}},
        {"cat": idle, "ph": "X", "ts": 9.001, "dur": 0.01, **thread, "name": "other", "args": {"owner": "aten::mm"}},
        {"cat": queue, "ph": "C", "ts": 1.0, "pid": 0, "name": "Queue Length stream 7", "args": {"operations": 1}},
        {"cat": queue, "ph": "C", "ts": 2.5, "pid": 0, "name": "Queue Length stream 7", "args": {"operations": 0}},
    ]


def test_no_event_before_and_none_to_add(tmp_path: Path) -> None:
    assert len(write(chrome_trace(), tmp_path / "empty source", IDLE)) == 4
    trace = chrome_trace([KERNEL])
    assert write(trace, tmp_path / "no annotation") == []
    assert written(tmp_path / "no annotation") == b"".join(bytes(chunk) for chunk in trace.source.text.chunks())


@pytest.mark.parametrize("piece", [1, 10, 10**6])
def test_source_pieces_of_any_size(tmp_path: Path, piece: int) -> None:
    trace = chrome_trace([KERNEL])
    text = b"".join(bytes(chunk) for chunk in trace.source.text.chunks())
    write(trace, tmp_path / "expected", IDLE, QUEUE)
    write(with_source(trace, text=Text(text, piece)), tmp_path / "out", IDLE, QUEUE)
    assert (tmp_path / "out").read_bytes() == (tmp_path / "expected").read_bytes()


@pytest.mark.parametrize("cut", [b"", b',\n{"ph": "X", "na'])
def test_a_truncated_source_is_closed(tmp_path: Path, cut: bytes) -> None:
    trace = chrome_trace([KERNEL])
    whole = b"".join(bytes(chunk) for chunk in trace.source.text.chunks())[: trace.source.insert_at]
    truncated = with_source(trace, text=Text(whole + cut), text_bytes=len(whole + cut), closing=b"]}")
    assert len(write(truncated, tmp_path / "out", QUEUE)) == 2
    assert stripped(written(tmp_path / "out")) == whole + b"]}"


def test_times_are_exact_and_relative_to_the_base(tmp_path: Path) -> None:
    epoch = 1712195495406752797
    point = CounterTrack("example", "c", 0, ns(epoch), ns(1), "")
    write(chrome_trace([KERNEL]), tmp_path / "absolute", point)
    assert b'"ts":1712195495406752.797,' in written(tmp_path / "absolute")
    write(with_source(chrome_trace([KERNEL]), base_ns=epoch - 1234), tmp_path / "relative", point)
    assert b'"ts":1.234,' in written(tmp_path / "relative")


def test_adjacent_slices_are_shortened_for_perfetto(tmp_path: Path) -> None:
    ts = 1712195495406752797 + np.arange(0, 10**6, 1001)
    track = SliceTrack("example", "Touching", 0, ts, np.full(len(ts), 1001), Texts(np.zeros(len(ts), np.int32), ["a"]))
    (diagnostic,) = chrome.write(augmented(chrome_trace([KERNEL]), track), tmp_path / "out")
    shorter = [e for e in added_events(tmp_path / "out") if e["ph"] == "X" and e["dur"] != 1.001]
    assert diagnostic.code == "chrome_slices_shortened"
    assert len(shorter) == diagnostic.count > 0
    assert all(event["args"] == {"dur_ns": 1001} for event in shorter)


def test_what_perfetto_drops_for_its_time_is_told(tmp_path: Path) -> None:
    early = [{**KERNEL, "ts": -5}, KERNEL]
    idle = SliceTrack("example", "Idle", 0, ns(-2000, 1000), ns(500, 10), texts("a", "b"))
    (diagnostic,) = chrome.write(augmented(chrome_trace(early), idle), tmp_path / "out")
    assert (diagnostic.code, diagnostic.count) == ("chrome_negative_time", 2)
    assert [event["ts"] for event in added_events(tmp_path / "out") if event["ph"] == "X"] == [-2.0, 1.0]


def test_points_that_are_no_number_are_left_out(tmp_path: Path) -> None:
    values = np.array([1.5, np.nan, np.inf])
    counter = CounterTrack("example", "c", 0, ns(1, 2, 3), values, "GB/s")
    (diagnostic,) = chrome.write(augmented(chrome_trace([KERNEL]), counter), tmp_path / "out")
    assert (diagnostic.code, diagnostic.count) == ("counter_not_finite", 2)
    assert [event["args"] for event in added_events(tmp_path / "out")] == [{"GB/s": 1.5}]
    write(chrome_trace([KERNEL]), tmp_path / "none", CounterTrack("example", "c", 0, ns(1), values[1:2], ""))


def test_fresh_numbers_are_used_by_nothing_else(tmp_path: Path) -> None:
    tracks = [Track(0, 10000001, 10000003), Track(0, "Spans", "x", process_name="Spans"), Track(0, None, None)]
    instants = [InstantTrack("example", "i", under, ns(1), texts("now")) for under in (0, 1, 1, 2)]
    events = write(chrome_trace([KERNEL], tracks), tmp_path / "out", *instants)
    places = [(event["pid"], event["tid"]) for event in events if event["ph"] == "i"]
    assert places == [(10000001, 10000005), (10000002, 10000006), (10000002, 10000007), (10000004, 10000008)]
    processes = {event["pid"]: event["args"] for event in events if event["name"] == "process_name"}
    assert processes == {10000002: {"name": "Spans"}, 10000004: {"name": "trace"}}


def test_devices_of_one_process_are_told_apart_by_name(tmp_path: Path) -> None:
    tracks = [Track(0, 5, 7, device, 7) for device in (0, 1)] + [Track(0, 5, 5)]
    counters = [CounterTrack("example", "Memset bandwidth", under, ns(1), ns(1), "GB/s") for under in (0, 1, 2)]
    names = [event["name"] for event in write(chrome_trace([KERNEL], tracks), tmp_path / "out", *counters)]
    assert names == ["Memset bandwidth device 0", "Memset bandwidth device 1", "Memset bandwidth"]


def test_counters_never_share_a_name(tmp_path: Path) -> None:
    known = {"ph": "C", "name": QUEUE.name, "pid": 0, "ts": 1, "args": {"operations": 3}}
    names = {event["name"] for event in write(chrome_trace([KERNEL, known]), tmp_path / "out", QUEUE, QUEUE)}
    assert names == {"Queue Length stream 7 (2)", "Queue Length stream 7 (3)"}


def test_flow_ids_are_unique_in_the_file(tmp_path: Path) -> None:
    known = [{"ph": "s", "name": "f", "pid": 0, "tid": 7, "ts": 1, "id": i} for i in (5, "1f", "not hex")]
    tracks = (STREAM_7, PYTHON, Track(0, "Spans", 'a"b'))
    span = {**KERNEL, "pid": "Spans", "tid": 'a"b', "ts": 6}
    flows = Flows("example", "waits", Ends(ns(3)), Ends(ns(4)))
    events = write(chrome_trace([KERNEL, *known, span], tracks), tmp_path / "out", flows, flows)
    assert ends_of_flows(events) == [
        ("s", 32, 5.0, 0, 7, None), ("f", 32, 6.0, "Spans", 'a"b', "e"),
        ("s", 33, 5.0, 0, 7, None), ("f", 33, 6.0, "Spans", 'a"b', "e"),
    ]  # fmt: skip


def test_flows_of_added_slices_begin_at_the_earlier_one(tmp_path: Path) -> None:
    flows = Flows("example", "waits", Ends(ns(1, 0), IDLE), Ends(ns(0, 0)))
    among = Flows("example", "next", Ends(ns(0), IDLE), Ends(ns(1), IDLE))
    events = write(chrome_trace([KERNEL]), tmp_path / "out", IDLE, flows, among)
    added = (0, 10000001)
    assert ends_of_flows(events) == [
        ("s", 1, 5.0, 0, 7, None), ("f", 1, 9.001, *added, "e"),
        ("s", 2, 5.0, 0, 7, None), ("f", 2, 7.0, *added, "e"),
        ("s", 3, 7.0, *added, None), ("f", 3, 9.001, *added, "e"),
    ]  # fmt: skip


def test_arrows_name_the_threads_that_they_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not every thread of the trace, for every kind of arrow: there may be thousands of both."""
    tracks = [Track(0, 4242, tid) for tid in range(50)]
    events = [{"ph": "X", "pid": 4242, "tid": each, "ts": each, "dur": 1, "name": "op"} for each in range(50)]
    named: list[object] = []

    def counting(value: object) -> str:
        named.append(value)
        return json.dumps(value)

    monkeypatch.setattr("augment.writers.chrome_events._identity", counting)
    flows = [Flows("example", "waits", Ends(ns(each)), Ends(ns(each + 1))) for each in range(49)]
    added = write(chrome_trace(events, tracks), tmp_path / "o.json", *flows)
    assert [(each["tid"], each["ts"]) for each in added if each["ph"] in "sf"] == [
        (each, each) for flow in range(49) for each in (flow, flow + 1)
    ]
    assert len(named) <= 4 * len(flows)


def ends_of_flows(events: list[dict[str, object]]) -> list[tuple[object, ...]]:
    return [(e["ph"], e["id"], e["ts"], e["pid"], e["tid"], e.get("bp")) for e in events if str(e["ph"]) in "sf"]


def test_a_source_that_is_no_chrome_json(tmp_path: Path) -> None:
    trace = with_source(chrome_trace(), insert_at=None, format="perfetto")
    with pytest.raises(OutputError, match="Chrome JSON only"):
        chrome.write(augmented(trace), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


# What Perfetto's real engine shows of augmented Chrome files.
SOURCE = [
    {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "python"}},
    {"ph": "M", "name": "thread_name", "pid": 0, "tid": 7, "args": {"name": "stream 7 "}},
    {"ph": "X", "cat": "cpu_op", "name": "launch", "pid": 4242, "tid": 4243, "ts": 1.5, "dur": 2},
    {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 5, "dur": 2.001},
]
SLICES = """
    select p.pid, t.tid, t.name, s.ts, s.dur, s.name, s.category
    from slice s join thread_track on thread_track.id = s.track_id
    join thread t using (utid) join process p using (upid)
"""
COUNTERS = """
    select p.pid, t.name, c.ts, c.value
    from counter c join process_counter_track t on t.id = c.track_id join process p using (upid)
"""
REAL = [
    "hta_ns_resolution/rank-0.ns_resolution.pt.trace.json.gz",  # epoch microseconds with a fraction
    "h100_8rank_modded_nanogpt/rank0.json.gz",  # baseTimeNanoseconds
    "mi300_tracelens/torch_compile_triton.json.gz",  # an AMD device, numbered 2
    "v100_4rank_pair_torchrec/test/pid45920.pt.trace.json.gz",  # epoch microseconds, whole
    "old_2020_21_kineto/resnet50_num_workers_0_jan2021.pt.trace.json.gz",  # the old categories
    "legacy_autograd_array/pipe_visualized.json",  # a bare array
]


def load(perfetto: PerfettoEngine, folder: Path, trace: AugmentedTrace) -> PerfettoEngine:
    chrome.write(trace, folder / "out.json.gz")
    return perfetto.load(folder / "out.json.gz")


def test_slices(perfetto: PerfettoEngine, tmp_path: Path) -> None:
    owners = Texts(np.array([0, -1], np.int32), ['ampere_sgemm<"é">'])
    args: dict[str, ArgColumn] = {"correlation": ns(2**62 + 1, -1), "owner": owners}
    idle = SliceTrack("idle", "Idle stream 7", 0, ns(7001, 9002), ns(2001, 10), texts("host_wait", "other"), args)
    load(perfetto, tmp_path, augmented(chrome_trace(SOURCE), idle))
    assert perfetto.problems() == {}
    assert perfetto.rows(SLICES + "where s.category like 'augment.%' order by s.ts") == [
        (0, 10000001, "Idle stream 7", 7001, 2001, "host_wait", "augment.idle"),
        (0, 10000001, "Idle stream 7", 9002, 10, "other", "augment.idle"),
    ]
    shown = (
        "select key, int_value, string_value from slice join args using (arg_set_id) where category = 'augment.idle'"
    )
    assert perfetto.rows(shown) == [("args.correlation", 2**62 + 1, None), ("args.owner", None, 'ampere_sgemm<"é">')]
    assert perfetto.rows("select pid, name from process where pid = 0 and upid != 0") == [(0, "python")]


@pytest.mark.parametrize("start", [1000, 1_712_195_495_406_752_797])
def test_second_slices_lie_below_the_first(perfetto: PerfettoEngine, tmp_path: Path, start: int) -> None:
    """Also of epoch times, of which Perfetto sees a coarse grain."""
    count = 50
    ts = start + np.arange(count) * 1301
    below = Texts(np.where(np.arange(count) % 5 > 0, 0, -1).astype(np.int32), ["below"])
    names = Texts(np.zeros(count, np.int32), ["above"])
    track = SliceTrack("idle", "Idle", 0, ts, np.full(count, 1301), names, {}, "", below)
    load(perfetto, tmp_path, augmented(chrome_trace(SOURCE), track))
    assert perfetto.problems() == {}
    sql = "select s.name, s.depth, up.name, count(*) from slice s left join slice up on up.id = s.parent_id"
    expected = [("above", 0, None, 50), ("below", 1, "above", 40)]
    assert perfetto.rows(sql + " where s.category = 'augment.idle' group by 1, 2, 3") == expected
    apart = "select count(*) from slice s join slice up on up.id = s.parent_id where s.ts != up.ts or s.dur != up.dur"
    assert perfetto.rows(apart + " and s.category = 'augment.idle'") == [(0,)]


def test_the_name_of_a_counter_ends_in_its_unit(perfetto: PerfettoEngine, tmp_path: Path) -> None:
    queue = CounterTrack("queue_length", "Queue Length stream 7", 0, ns(1001, 2500), ns(1, 0), "operations")
    copies = CounterTrack("memory_bandwidth", "Memcpy HtoD bandwidth", 0, ns(1001), np.array([12.345678]), "GB/s")
    load(perfetto, tmp_path, augmented(chrome_trace(SOURCE), queue, copies))
    assert perfetto.problems() == {}
    assert perfetto.rows(COUNTERS + "order by t.name, c.ts") == [
        (0, "Memcpy HtoD bandwidth GB/s", 1001, 12.345678),
        (0, "Queue Length stream 7 operations", 1001, 1.0),
        (0, "Queue Length stream 7 operations", 2500, 0.0),
    ]


def test_instants_and_flows(perfetto: PerfettoEngine, tmp_path: Path) -> None:
    instants = InstantTrack("example", "Marks", 1, ns(4000), texts("here"))
    known = [
        {"ph": phase, "bp": "e", "cat": "ac2g", "name": "ac2g", "id": 1, "pid": pid, "tid": tid, "ts": ts}
        for phase, pid, tid, ts in (("s", 4242, 4243, 1.5), ("f", 0, 7, 5))
    ]
    trace = chrome_trace([*SOURCE, *known])
    launch, kernel = np.flatnonzero(trace.events.phase == ord("X"))
    idle = SliceTrack("example", "Idle", 0, ns(3500, 4000), ns(500, 1000), texts("a", "b"))
    flows = [
        Flows("example", "waits", Ends(ns(launch)), Ends(ns(kernel))),
        Flows("example", "waits", Ends(ns(0, 1), idle), Ends(ns(launch, kernel))),
        Flows("example", "next", Ends(ns(0), idle), Ends(ns(1), idle)),
    ]
    load(perfetto, tmp_path, augmented(trace, instants, idle, *flows))
    assert perfetto.problems() == {}
    assert (4242, 10000001, "Marks", 4000, 0, "here", "augment.example") in perfetto.rows(SLICES)
    arrows = "select a.name, b.name from flow join slice a on a.id = slice_out join slice b on b.id = slice_in"
    assert sorted(perfetto.rows(arrows)) == [("a", "b"), ("b", "k"), ("launch", "a"), ("launch", "k"), ("launch", "k")]


def test_tracks_of_a_process_without_a_number(perfetto: PerfettoEngine, tmp_path: Path) -> None:
    trace = chrome_trace(SOURCE, [STREAM_7, PYTHON, Track(0, "Spans", "x", process_name="Spans")])
    load(perfetto, tmp_path, augmented(trace, InstantTrack("example", "Marks", 2, ns(4000), texts("here"))))
    assert perfetto.rows("select pid, name from process where name = 'Spans'") == [(10000001, "Spans")]


def problems_of_source(perfetto: PerfettoEngine, path: Path) -> dict[str, int]:
    try:
        return perfetto.load(path).problems()
    except EngineError as refused:
        pytest.skip(f"Perfetto refuses the source itself: {refused}")


@pytest.mark.parametrize("name", [*SIMULATED, *REAL], ids=by_folder)
def test_whole_traces_get_no_new_problem(perfetto: PerfettoEngine, tmp_path: Path, name: str | Path) -> None:
    path = real_trace(name)
    before = problems_of_source(perfetto, path)
    trace = augment(read(str(path)))
    load(perfetto, tmp_path, trace)
    assert perfetto.problems() == before
    slices = sum(row_count(annotation) for annotation in trace.annotations if isinstance(annotation, SliceTrack))
    points = sum(len(annotation.ts) for annotation in trace.annotations if isinstance(annotation, CounterTrack))
    assert perfetto.rows("select count(*) from slice where category like 'augment.%'") == [(slices,)]
    assert perfetto.rows("select count(*) from counter where track_id in (select id from process_counter_track)") == [
        (points + np.count_nonzero(trace.trace.events.phase == ord("C")),)
    ]


@pytest.mark.parametrize("name", [SIMULATED[0], REAL[0]], ids=by_folder)
def test_every_slice_of_a_whole_stream_can_be_annotated(
    perfetto: PerfettoEngine, tmp_path: Path, name: str | Path
) -> None:
    path = real_trace(name)
    trace = read(str(path))
    ts = np.unique(trace.events.ts)
    track = SliceTrack("example", "All", 0, ts[:-1], np.diff(ts), Texts(np.zeros(len(ts) - 1, np.int32), ["a"]))
    before = problems_of_source(perfetto, path)
    load(perfetto, tmp_path, AugmentedTrace(trace, {"example": Findings([], [track])}))
    assert perfetto.problems() == before
