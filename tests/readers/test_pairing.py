"""``B`` and ``E`` events are slices: Perfetto's engine pairs them alike, and figures are those of ``X`` events."""

from __future__ import annotations

import gzip
import json
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from augment import Findings, Trace, augment, read
from augment.arrays import NO_INDEX
from augment.readers.pairing import matched
from augment.writers import write_all
from oracles import plain_kernels
from perfetto_engine import PerfettoEngine
from perfetto_messages import diagnostic_counts
from simulator import JobOptions, simulate
from traces import kernel, launch

SLICES = "select name, ts, dur from slice where not name glob 'mark*' order by ts"
Event = dict[str, Any]


def mark(phase: str, ts: float, name: str | None = None, tid: int = 1, **more: Any) -> Event:
    named = {} if name is None else {"name": name}
    return {"ph": phase, "pid": 1, "tid": tid, "ts": ts, **named, **more}


def write(path: Path, *events: Event) -> Path:
    path.write_text(json.dumps({"traceEvents": events}))
    return path


def slices(trace: Trace) -> list[tuple[str, int, int]]:
    """As Perfetto's engine tells them: one that has no end lasts -1."""
    events = trace.events
    columns = events.name.tolist(), events.ts.tolist(), events.dur.tolist(), events.phase.tolist()
    return [
        (trace.strings[name], ts, dur if phase == ord("X") else -1)
        for name, ts, dur, phase in zip(*columns, strict=True)
        if phase in b"XB"
    ]


@pytest.mark.parametrize("seed", range(3))
def test_as_perfetto_pairs_them(perfetto: PerfettoEngine, tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    ends_of_b = ["a", "b", "never", None, None]
    events: list[Event] = []
    for tid in range(1, 400):
        for _ in range(chance.randrange(1, 14)):
            phase = chance.choice("BBE")
            name = chance.choice(["a", "b", "c"] if phase == "B" else ends_of_b)
            category = {"cat": chance.choice(["k", "m"])} if chance.random() < 0.3 else {}
            events.append(mark(phase, len(events), name, tid, **category))
        events.append(mark("i", 10**6, "mark", tid, s="t"))
    path = write(tmp_path / "a.json", *events)
    trace = read(str(path))
    assert slices(trace) == perfetto.load(path).rows(SLICES)
    assert {"slice_without_end", "end_without_slice", "slice_without_own_end"} <= diagnostic_counts(trace).keys()


def test_what_is_counted(tmp_path: Path) -> None:
    events = [
        mark("E", 0), mark("B", 1, "outer"), mark("B", 2, "cut"), mark("E", 3, "outer"), mark("E", 4, "cut"),
        mark("B", 5, "kept", cat="cpu_op"), mark("E", 6, "kept"), mark("B", 7, "open"),
        mark("B", 8, "elsewhere", tid=2), mark("E", 9, tid=3),
    ]  # fmt: skip
    trace = read(str(write(tmp_path / "a.json", *events)))
    assert slices(trace) == [
        ("outer", 1000, 2000), ("cut", 2000, 1000), ("kept", 5000, 1000), ("open", 7000, -1), ("elsewhere", 8000, -1),
    ]  # fmt: skip
    assert diagnostic_counts(trace) == {"slice_without_end": 2, "end_without_slice": 3, "slice_without_own_end": 1}


def test_time_decides_not_the_order_of_the_file(tmp_path: Path) -> None:
    trace = read(str(write(tmp_path / "a.json", mark("E", 3), mark("B", 1, "a"), mark("E", 5), mark("B", 3, "b"))))
    assert slices(trace) == [("a", 1000, 2000), ("b", 3000, 2000)]


def test_beside_events_that_are_none(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", mark("B", 1, "a"), {"ph": 0}, mark("E", 2), {"ph": "B", "ts": "x"})
    assert slices(read(str(path))) == [("a", 1000, 1000)]


def test_a_slice_of_years_is_left_out(tmp_path: Path) -> None:
    trace = read(str(write(tmp_path / "a.json", mark("B", -4e15, "a"), mark("E", 9e15), mark("X", 1, "b", dur=1))))
    assert slices(trace) == [("b", 1000, 1000)]
    assert diagnostic_counts(trace) == {"time_out_of_range": 2}  # its begin and its end


def test_a_device_is_told_by_the_beginning(tmp_path: Path) -> None:
    args = {"device": 3, "stream": 9}
    events = mark("B", 1, "k", cat="kernel", args=args), mark("E", 4, "k", cat="kernel", args={"correlation": 5})
    trace = read(str(write(tmp_path / "a.json", *events)))
    assert [(track.device, track.stream) for track in trace.tracks] == [(3, 9)]
    assert trace.events.correlation.tolist() == [5, 5]


@pytest.mark.parametrize("count", [1000, 120_000])
def test_stacks_that_nothing_closes(tmp_path: Path, count: int) -> None:
    """What it costs is linear, by sorting and by compiled code."""
    begun = [mark("B", at, f"s{at % 7}") for at in range(count)]
    wrong = [mark("E", count + at, "other") for at in range(count)]
    trace = read(str(write(tmp_path / "a.json", *begun, *wrong, mark("E", 3 * count, "s0"))))
    assert diagnostic_counts(trace)["end_without_slice"] == count
    assert diagnostic_counts(trace)["slice_without_end"] == max(at for at in range(count) if at % 7 == 0)


def as_two(events: list[Event]) -> list[Event]:
    """The same with a beginning and an end for each slice that lasts."""
    made: list[tuple[float, int, float, Event]] = []
    for event in events:
        if event["ph"] != "X" or not event["dur"]:
            made.append((event.get("ts", 0), 1, 0, event))
            continue
        begin = {key: value for key, value in event.items() if key != "dur"} | {"ph": "B"}
        end = {"ph": "E", "pid": event["pid"], "tid": event["tid"], "ts": event["ts"] + event["dur"]}
        made += [(event["ts"], 2, -event["dur"], begin), (end["ts"], 0, -event["ts"], end)]
    return [each for *_, each in sorted(made, key=lambda each: each[:3])]


def test_figures_are_those_of_whole_slices(tmp_path: Path) -> None:
    ((path, _),) = simulate(JobOptions(ranks=1, steps=2), tmp_path / "job")
    document = json.loads(gzip.decompress(path.read_bytes()), parse_float=Decimal)
    (whole := tmp_path / "whole.json").write_text(json.dumps(document, default=str))
    document["traceEvents"] = as_two(document["traceEvents"])
    (two := tmp_path / "two.json").write_text(json.dumps(document, default=str))
    figures = []
    for each in (whole, two):
        outcomes = augment(read(str(each))).outcomes
        figures.append({name: result.rows for name, result in outcomes.items() if isinstance(result, Findings)})
    assert figures[0].keys() == figures[1].keys()
    for name, rows in figures[0].items():
        assert rows == figures[1][name], name


def test_both_formats_draw_them(perfetto: PerfettoEngine, tmp_path: Path) -> None:
    args = {"device": 0, "stream": 7, "correlation": 1}
    device = {"pid": 0, "tid": 7}
    source = write(
        tmp_path / "a.json",
        launch(),
        {"ph": "B", "cat": "kernel", "name": "gemm", "ts": 20, **device, "args": args},
        {"ph": "E", "ts": 30, **device, "args": {"grid": 4}},
        kernel("after", 50, 5, correlation=2),
    )
    written = write_all(augment(read(str(source))), tmp_path / "out", ["chrome", "perfetto"])
    assert gzip.decompress(written[0].read_bytes()).startswith(source.read_bytes().removesuffix(b"]}"))
    for path in written[:2]:
        result = perfetto.load(path).rows("select name, ts, dur from slice where name in ('gemm', 'idle') order by ts")
        assert ("gemm", 20_000, 10_000) in result
        keys = perfetto.rows("select key from args join slice using (arg_set_id) where slice.name = 'gemm'")
        assert {key.rpartition(".")[2] for (key,) in keys if isinstance(key, str)} >= {"correlation", "grid"}


EVENTS = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 2), st.booleans()), max_size=30)


def by_stacks(events: list[tuple[int, int, bool]]) -> list[int]:
    """The definition: time, track and whether it begins, in the order of the file."""
    numbers = {True: 0, False: 0}
    numbered = []
    for ts, track, begins in events:
        numbered.append((ts, track, begins, numbers[begins]))
        numbers[begins] += 1
    end_of = [NO_INDEX] * numbers[True]
    stacks: dict[int, list[int]] = {}
    for _, track, begins, number in sorted(numbered, key=lambda item: item[0]):
        if begins:
            stacks.setdefault(track, []).append(number)
        elif stacks.get(track):
            end_of[stacks[track].pop()] = number
    return end_of


@given(events=EVENTS)
def test_both_ways_do_what_stacks_do(events: list[tuple[int, int, bool]]) -> None:
    begins = [event for event in events if event[2]]
    ends = [event for event in events if not event[2]]
    before, so_far = [], 0
    for event in events:
        so_far += event[2]
        if not event[2]:
            before.append(so_far)
    columns = (
        np.array([ts for ts, _, _ in begins], np.int64),
        np.array([track for _, track, _ in begins], np.int32),
        np.array([ts for ts, _, _ in ends], np.int64),
        np.array([track for _, track, _ in ends], np.int32),
        np.array(before, np.int64),
    )
    assert matched(*columns, 3).tolist() == by_stacks(events)
    with plain_kernels():
        assert matched(*columns, 3).tolist() == by_stacks(events)
