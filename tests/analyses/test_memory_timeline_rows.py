"""Memory by category: timelines beside hand-made, simulated and recorded traces."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from augment.analyses import memory_profile, memory_timeline
from augment.core.annotations import CounterTrack
from augment.core.findings import Findings, Skipped
from augment.core.trace import Trace
from augment.facts.source.several_ranks import trace_on_clock
from augment.pipeline import augment
from augment.readers import read
from augment.readers.attachments import with_memory_timeline
from augment.readers.attachments.recorded_files import CATEGORIES
from augment.viewer.view import view_of
from augment.writers import write_all
from memory_timelines import memory_timeline_of, write_memory_timeline
from perfetto_engine import PerfettoEngine
from simulator import JobOptions, simulate
from tables import rows_of
from traces import HOST, THREAD, Event, kernel, op, write_trace

BASE = 1_700_000_000_000_000_000
CUDA, CPU = (1, 0), (0, -1)
SIZES = {"bytes": 1, "MB": 10**6, "GB": 10**9}


def instant(us: float, size: int = 8, device: tuple[int, int] = CUDA) -> Event:
    args = {"Bytes": size, "Device Type": device[0], "Device Id": device[1]}
    return {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": HOST, "tid": THREAD,
            "ts": us, "args": args}  # fmt: skip


def traced(folder: Path, events: Sequence[Event], changes: Any) -> Trace:
    path = write_trace(folder / "rank3.json", *events, baseTimeNanoseconds=BASE)
    return with_memory_timeline(read(str(path)), write_memory_timeline(folder / "a.raw.json.gz", changes))


def analyzed(trace: Trace) -> Findings:
    findings = memory_timeline.analyze(trace)
    assert isinstance(findings, Findings), findings
    return findings


def refused(trace: Trace) -> str:
    findings = memory_timeline.analyze(trace)
    assert isinstance(findings, Skipped)
    return findings.reason


def tracks_of(findings: Findings) -> dict[str, list[tuple[int, int]]]:
    tracks = [annotation for annotation in findings.annotations if isinstance(annotation, CounterTrack)]
    [(unit, scale)] = {(track.unit, track.scale) for track in tracks}
    assert scale == "memory timeline", "the counters share a y axis, and so a unit"
    factor = SIZES[unit]
    return {row.name: list(zip(row.ts.tolist(), np.rint(row.values * factor).tolist(), strict=True)) for row in tracks}


SOME = [
    [-1, 1, 100, 0], [-1, 1, 5, 7], [BASE + 20_500, 2, 30, 4], [BASE + 40_000, 3, -30, 4], [BASE + 40_000, 3, 30, 5],
    [BASE + 60_000, 2, 50, 4], [BASE + 80_000, 4, -30, 5],
]  # fmt: skip


def test_each_category_and_the_total(tmp_path: Path) -> None:
    result = analyzed(traced(tmp_path, [op(ts=10, dur=90), kernel(ts=50, dur=10)], SOME))
    columns = ("category", "start_bytes", "end_bytes", "peak_bytes", "peak_at_ns", "at_total_peak_bytes")
    assert rows_of(result, "rank", *columns) == [
        (3, "total", 105, 155, 185, 50_000, 185),
        (3, "Parameter", 100, 100, 100, 0, 100),
        (3, "Activation", 0, 50, 50, 50_000, 50),
        (3, "Gradient", 0, 0, 30, 30_000, 30),
        (3, "Unknown", 5, 5, 5, 0, 5),
    ]
    assert rows_of(result, "at_total_peak_ratio")[2] == (50 / 185,)
    assert tracks_of(result) == {
        "Memory timeline total": [
            (BASE + 10_000, 105), (BASE + 20_500, 135), (BASE + 60_000, 185), (BASE + 80_000, 155),
        ],
        "Memory timeline Parameter": [(BASE + 10_000, 100), (BASE + 80_000, 100)],
        "Memory timeline Activation": [
            (BASE + 10_000, 0), (BASE + 20_500, 30), (BASE + 40_000, 0), (BASE + 60_000, 50), (BASE + 80_000, 50),
        ],
        "Memory timeline Gradient": [(BASE + 10_000, 0), (BASE + 40_000, 30), (BASE + 80_000, 0)],
        "Memory timeline Unknown": [(BASE + 10_000, 5), (BASE + 80_000, 5)],
    }  # fmt: skip
    assert not result.diagnostics


def test_only_what_lies_within_the_trace_counts(tmp_path: Path) -> None:
    rows = analyzed(traced(tmp_path, [op(ts=30, dur=40)], SOME))
    assert rows_of(rows, "category", "start_bytes", "end_bytes", "peak_bytes", "peak_at_ns")[0] == (
        "total", 135, 185, 185, 30_000,
    )  # fmt: skip
    assert {ts for points in tracks_of(rows).values() for ts, _ in points} == {BASE + us * 1000 for us in (30, 40, 60)}


def test_the_device_is_that_of_the_instants_at_the_same_times(tmp_path: Path) -> None:
    """Here in whole microseconds, as before PyTorch 2.4."""
    events = [op(ts=0, dur=100), kernel(ts=50, dur=10)]
    result = analyzed(traced(tmp_path, [*events, instant(20), instant(60), instant(80), instant(70, 9, CPU)], SOME))
    (under,) = {annotation.under for annotation in result.annotations if isinstance(annotation, CounterTrack)}
    assert "Memory timeline total" in tracks_of(result)
    trace = read(str(tmp_path / "rank3.json"))
    assert trace.tracks[under].stream == 7
    result = analyzed(traced(tmp_path, [*events, *(instant(us, 8, CPU) for us in (20, 60, 80)), instant(70)], SOME))
    (under,) = {annotation.under for annotation in result.annotations if isinstance(annotation, CounterTrack)}
    assert read(str(tmp_path / "rank3.json")).tracks[under].tid == THREAD
    assert "Memory timeline total CPU" in tracks_of(result)


def test_what_has_no_instant_is_told_and_most_of_it_refused(tmp_path: Path) -> None:
    events = [op(ts=0, dur=100), instant(10), instant(90)]
    result = analyzed(traced(tmp_path, [*events, instant(20), instant(80)], SOME))
    assert [(diagnostic.code, diagnostic.count) for diagnostic in result.diagnostics] == [
        ("memory_timeline_differs", 1)
    ]
    reason = refused(traced(tmp_path, [*events, instant(20)], SOME))
    assert "another recording: 2 of 3 allocations and frees have no [memory] instant" in reason


@pytest.mark.parametrize(
    ("events", "changes", "reason"),
    [
        ([op(ts=0, dur=10.5)], SOME, "it begins 0.000010 s after the trace ends"),
        ([op(ts=2_000_080, dur=10)], SOME, "it ends 2.000000 s before the trace begins"),
        ([op(ts=0, dur=10)], [[5, 2, 8, 0]], "it ends 1,699,999,999.999999 s before the trace begins"),
        ([op(ts=0, dur=10)], [[-1, 1, 8, 0]], "the memory timeline tells of nothing that happened while recording"),
        ([op(ts=0, dur=10)], [], "the memory timeline tells of nothing that happened while recording"),
    ],
)
def test_a_timeline_of_another_time_is_refused(
    tmp_path: Path, events: list[Event], changes: list[list[int]], reason: str
) -> None:
    assert reason in refused(traced(tmp_path, events, changes))


def test_without_a_timeline_it_is_skipped(tmp_path: Path) -> None:
    trace = read(str(write_trace(tmp_path / "a.json")))
    assert refused(trace) == "no memory timeline is given beside the trace; name one with --memory-timeline"


def test_it_goes_with_its_trace_onto_another_clock(tmp_path: Path) -> None:
    trace = traced(tmp_path, [op(ts=10, dur=90), instant(20), instant(60), instant(80)], SOME)
    moved = trace_on_clock(trace, lambda ts: ts - 10**18)
    assert analyzed(moved).rows == analyzed(trace).rows
    for name, points in tracks_of(analyzed(trace)).items():
        assert tracks_of(analyzed(moved))[name] == [(ts - 10**18, value) for ts, value in points]


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Trace, list[list[int]]]]:
    """Of two ranks."""
    folder = tmp_path_factory.mktemp("job")
    made = []
    for number, (path, _) in enumerate(simulate(JobOptions(ranks=2, steps=3, layers=2, memory=True), folder)):
        changes = memory_timeline_of(path)
        changes += [[-1, 1, 4096, 0], [changes[0][0], 2, 512, 1]]  # what no later step frees
        beside = write_memory_timeline(folder / f"{number}.raw.json.gz", changes)
        made.append((with_memory_timeline(read(str(path)), beside), changes))
    return made


def held(changes: list[list[int]], moment: int) -> list[int]:
    """The bytes of each category at a moment, change by change."""
    sums = [0] * len(CATEGORIES)
    for ts, _, size, category in changes:
        if ts <= moment:
            sums[category] += size
    return sums


@pytest.mark.parametrize("steps", [None, (1, 1)])
def test_a_simulated_job(simulated: list[tuple[Trace, list[list[int]]]], steps: tuple[int, int] | None) -> None:
    trace, changes = simulated[0]
    result = augment(trace, only=["memory_timeline", "steps"], steps=steps)
    actual = result.outcomes["memory_timeline"]
    assert not actual.diagnostics, "every allocation and free has its instant"
    start = int(trace.events.ts[0]) if result.window is None else result.window.start_ns
    tracks = tracks_of(actual)
    moments = [ts for ts, _ in tracks["Memory timeline total"]]
    assert len(moments) > 20
    if steps:
        assert held(changes, start) != held(changes, int(trace.events.ts[0]))
    sums = {moment: held(changes, moment) for moment in moments}
    assert tracks["Memory timeline total"] == [(moment, sum(sums[moment])) for moment in moments]
    peak = max(moments, key=lambda moment: (sum(sums[moment]), -moment))
    rows = {row.category: row for row in actual.rows}
    assert (rows["total"].peak_bytes, rows["total"].peak_at_ns) == (sum(sums[peak]), peak - start)
    assert set(rows) == {"total", *CATEGORIES}
    for number, name in enumerate(CATEGORIES):
        points = tracks[f"Memory timeline {name}"]
        assert points == [(moment, held(changes, moment)[number]) for moment, _ in points]
        assert rows[name].start_bytes == held(changes, start)[number]
        assert rows[name].peak_bytes == max(value for _, value in points)
        assert rows[name].at_total_peak_bytes == sums[peak][number]


def test_the_timeline_of_another_rank_is_refused(simulated: list[tuple[Trace, list[list[int]]]]) -> None:
    (trace, _), (other, _) = simulated
    reason = refused(msgspec.structs.replace(trace, context=other.context.fresh()))
    assert "the memory timeline is of another recording" in reason


@pytest.mark.parametrize("form", ["chrome", "perfetto"])
def test_perfetto_shows_the_counters(
    simulated: list[tuple[Trace, list[list[int]]]], tmp_path: Path, perfetto: PerfettoEngine, form: str
) -> None:
    trace, changes = simulated[0]
    perfetto.load(write_all(augment(trace, only=["memory_timeline"]), tmp_path, [form])[0])
    seen = perfetto.rows(
        "select counter.ts, cast(round(value * 1e6) as int) from counter"
        " join counter_track on track_id = counter_track.id"
        " where counter_track.name || ' ' || ifnull(unit, '') glob 'Memory timeline Gradient*MB*' order by 1"
    )
    base = 0 if form == "perfetto" else seen[0][0] - int(trace.events.ts[0])
    assert len(seen) > 10
    assert [value for _, value in seen] == [held(changes, ts - base)[5] for ts, _ in seen]
    assert not perfetto.problems()


def test_what_is_worth_seeing_is_pinned(simulated: list[tuple[Trace, list[list[int]]]]) -> None:
    trace = simulated[0][0]
    findings = memory_profile.analyze(trace)
    [pinned] = [pin for pin in view_of(trace).pins if "Memory" in pin]
    drawn = {f"{each.name} {each.unit}" for each in findings.annotations if isinstance(each, CounterTrack)}
    assert [name.rpartition(" ")[0] for name in drawn if re.fullmatch(pinned, name)] == ["Memory allocated"]


def test_a_recorded_timeline(shared_traces: Path, tmp_path: Path) -> None:
    """Beside a trace of its time; that of its own recording is not there."""
    path = shared_traces / "hta_memory_timeline" / "memory_timeline.raw.gz"
    changes = json.loads(gzip.decompress(path.read_bytes()))
    first, last = (pick(ts for ts, *_ in changes if ts >= 0) for pick in (min, max))
    spanning = op(ts=first // 1000, dur=(last - first) // 1000 + 2)
    trace = with_memory_timeline(read(str(write_trace(tmp_path / "a.json", spanning))), path)
    result = analyzed(trace)
    tracks = tracks_of(result)
    for row in result.rows[1:]:
        points = tracks[f"Memory timeline {row.category}"]
        assert row.start_bytes == held(changes, first // 1000 * 1000)[CATEGORIES.index(row.category)]
        for ts, value in points[:: len(points) // 5 + 1]:
            assert value == held(changes, ts)[CATEGORIES.index(row.category)]
