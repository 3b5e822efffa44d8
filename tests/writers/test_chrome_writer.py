from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from augment.core.annotations import CounterTrack, Ends, Flows, InstantTrack, SliceTrack, Texts
from augment.core.trace import Trace, Track
from augment.errors import OutputError
from augment.writers import chrome
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

    def counting(value: object) -> bytes:
        named.append(value)
        return json.dumps(value).encode()

    monkeypatch.setattr("augment.writers.chrome_events._identity", counting)
    flows = [Flows("example", "waits", Ends(ns(each)), Ends(ns(each + 1))) for each in range(49)]
    added = write(chrome_trace(events, tracks), tmp_path / "o.json", *flows)
    assert [(each["tid"], each["ts"]) for each in added if each["ph"] in "sf"] == [
        (each, each) for flow in range(49) for each in (flow, flow + 1)
    ]
    assert len(named) <= 4 * len(flows)


def ends_of_flows(events: list[dict[str, object]]) -> list[tuple[object, ...]]:
    return [(e["ph"], e["id"], e["ts"], e["pid"], e["tid"], e.get("bp")) for e in events if str(e["ph"]) in "sf"]


def test_same_trace_same_bytes(tmp_path: Path) -> None:
    write(chrome_trace([KERNEL]), tmp_path / "a", IDLE, QUEUE)
    write(chrome_trace([KERNEL]), tmp_path / "b", IDLE, QUEUE)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_source_that_is_no_chrome_json(tmp_path: Path) -> None:
    trace = with_source(chrome_trace(), insert_at=None, format="perfetto")
    with pytest.raises(OutputError, match="Chrome JSON only"):
        chrome.write(augmented(trace), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
