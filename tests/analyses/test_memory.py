"""Memory: traces of a few instants, and a slow reading of simulated and real ones."""

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

from augment import Findings, Skipped, Trace, augment, read, with_memory_timeline
from augment.analyses import memory_at_peak, memory_profile, memory_timeline
from augment.core import CounterTrack, byte_unit
from augment.facts.source.several_ranks import trace_on_clock
from augment.readers.attachments.recorded_files import CATEGORIES
from augment.viewer.view import view_of
from augment.writers import write_all
from memory_timelines import memory_timeline_of, write_memory_timeline
from perfetto_engine import PerfettoEngine
from simulator import JobOptions, simulate
from tables import rows_of
from traces import HOST, THREAD, Event, kernel, op, write_trace

GPU, OF_CPU = {"Device Type": 1, "Device Id": 0}, {"Device Type": 0, "Device Id": -1}


def memory(ts: float, size: int, address: int | None = None, thread: int = THREAD, **args: Any) -> Event:
    known = {} if address is None else {"Addr": address}
    args = {**(GPU if "Device Type" not in args else {}), "Bytes": size, **known, **args}
    return {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": HOST, "tid": thread,
            "ts": ts, "args": args}  # fmt: skip


def totals(allocated: int, reserved: int) -> dict[str, int]:
    return {"Total Allocated": allocated, "Total Reserved": reserved}


INSTANTS = [
    op("aten::linear", 0, 50),
    op("aten::empty", 10, 10),
    memory(12, 100, 1, **totals(1100, 4000)),
    memory(30, 50, 2, **totals(1150, 4000)),
    memory(60, 8, 3, **totals(1158, 6000)),
    memory(70, -200, 9, **totals(958, 6000)),
    memory(80, -100, 1, **totals(858, 6000)),
    memory(90, 20, 1, **totals(878, 5000)),
    kernel(ts=40, dur=10),
]


def findings_of(analysis: Any, path: Path) -> Findings:
    return analysis.analyze(read(str(path)))


def test_peaks_fragmentation_and_counters(tmp_path: Path) -> None:
    trace = findings_of(memory_profile, write_trace(tmp_path / "rank3.json", *INSTANTS))
    assert rows_of(trace, "rank", "device_type", "device", "allocation_count", "free_count") == [(3, "CUDA", 0, 4, 2)]
    assert rows_of(trace, "start_allocated_bytes", "end_allocated_bytes", "live_at_end_bytes") == [(1000, 878, 78)]
    assert rows_of(trace, "peak_allocated_bytes", "peak_allocated_at_ns") == [(1158, 60_000)]
    assert rows_of(trace, "peak_reserved_bytes", "peak_reserved_at_ns") == [(6000, 60_000)]
    assert rows_of(trace, "unmatched_free_count", "fragmentation_bytes", "fragmentation_ratio") == [
        (1, 4842, 4842 / 6000)
    ]
    tracks = {annotation.name: annotation for annotation in trace.annotations if isinstance(annotation, CounterTrack)}
    assert tracks["Memory allocated"].values.tolist() == [1100, 1150, 1158, 958, 858, 878]
    assert tracks["Memory reserved"].ts.tolist() == [12_000, 60_000, 90_000]
    assert tracks["Memory reserved"].values.tolist() == [4000, 6000, 5000]
    assert {track.unit for track in tracks.values()} == {"bytes"}
    assert trace.partial is None
    assert not trace.diagnostics


def test_counters_that_share_an_axis_share_the_unit_of_the_greater(tmp_path: Path) -> None:
    path = write_trace(
        tmp_path / "a.json",
        memory(1, 3_500_000, 1, **totals(3_500_000, 2_000_000_000)),
        memory(2, 1_500_000, 2, **totals(5_000_000, 2_500_000_000)),
        op(ts=0, dur=9),
    )
    result = findings_of(memory_profile, path)
    tracks = {row.name: (row.values.tolist(), row.unit) for row in result.annotations if isinstance(row, CounterTrack)}
    assert tracks == {"Memory allocated CUDA 0": ([0.0035, 0.005], "GB"), "Memory reserved CUDA 0": ([2.0, 2.5], "GB")}
    sizes = 0, 999_999, 10**6, 10**9 - 1, 10**9
    assert [byte_unit(size)[1] for size in sizes] == ["bytes", "bytes", "MB", "MB", "GB"]


def test_what_is_live_at_the_peak(tmp_path: Path) -> None:
    trace = findings_of(memory_at_peak, write_trace(tmp_path / "a.json", *INSTANTS))
    assert rows_of(trace, "origin", "outer_operator", "operator", "bytes", "count") == [
        ("operator", "aten::linear", "aten::empty", 100, 1),
        ("operator", "aten::linear", "aten::linear", 50, 1),
        ("no operator", None, None, 8, 1),
        ("before recording", None, None, 1000, None),
    ]


def test_an_address_is_used_again_and_a_free_was_missed(tmp_path: Path) -> None:
    path = write_trace(
        tmp_path / "a.json",
        memory(1, 10, 1, **totals(10, 100)),
        memory(2, -10, 1, **totals(0, 100)),
        memory(3, 30, 1, **totals(30, 100)),
        memory(4, 40, 1, **totals(40, 100)),
        memory(5, -40, 1, thread=7, **totals(0, 100)),
    )
    assert rows_of(findings_of(memory_at_peak, path), "bytes", "count") == [(40, 1)]
    result = findings_of(memory_profile, path)
    assert [(diagnostic.code, diagnostic.count) for diagnostic in result.diagnostics] == [("memory_allocated_twice", 1)]


def test_the_cpu_is_a_device_of_its_own(tmp_path: Path) -> None:
    path = write_trace(
        tmp_path / "a.json",
        kernel(),
        memory(1, 64, 5, **OF_CPU, **totals(64, 0)),
        memory(2, 512, 5, **totals(512, 1024)),
        memory(3, 256, 6, **{"Device Type": 12, "Device Id": 2}, **totals(256, 256)),
        memory(4, -64, 5, **OF_CPU, **totals(0, 0)),
    )
    result = findings_of(memory_profile, path)
    assert rows_of(result, "device_type", "device", "peak_reserved_bytes", "fragmentation_ratio") == [
        ("CUDA", 0, 1024, 0.5), ("XPU", 2, 256, 0.0), ("CPU", None, None, None)
    ]  # fmt: skip
    assert [annotation.name for annotation in result.annotations if isinstance(annotation, CounterTrack)] == [
        "Memory allocated", "Memory reserved", "Memory allocated XPU 2", "Memory reserved XPU 2", "Memory allocated CPU"
    ]  # fmt: skip


def test_instants_of_2021_without_totals_category_and_address(tmp_path: Path) -> None:
    events = [memory(ts, size) for ts, size in ((1, -30), (2, 10), (3, 40), (4, -50))]
    for event in events:
        del event["cat"]
    path = write_trace(tmp_path / "a.json", *events)
    result = findings_of(memory_profile, path)
    assert result.partial
    assert rows_of(result, "start_allocated_bytes", "peak_allocated_bytes", "end_allocated_bytes") == [(30, 50, 0)]
    assert rows_of(result, "unmatched_free_count", "live_at_end_bytes", "peak_reserved_bytes") == [(None, None, None)]
    assert memory_at_peak.analyze(read(str(path))) == Skipped("the [memory] instants have no addresses")


def test_bytes_that_are_no_number_are_left_out_and_counted(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "a.json", memory(1, 10, 1, **totals(10, 10)), memory(2, 0, 1, Bytes="many"))
    result = findings_of(memory_profile, path)
    assert rows_of(result, "allocation_count") == [(1,)]
    assert [(diagnostic.code, diagnostic.count) for diagnostic in result.diagnostics] == [("arg_dropped", 1)]


def test_without_instants_it_is_skipped(tmp_path: Path) -> None:
    trace = read(str(write_trace(tmp_path / "a.json", op())))
    for analysis in (memory_profile, memory_at_peak):
        assert isinstance(analysis.analyze(trace), Skipped)


def test_the_profile_of_a_simulated_job(tmp_path: Path) -> None:
    ((path, _),) = simulate(JobOptions(ranks=1, steps=2, layers=2, memory=True), tmp_path)
    assert compare(path) > 0


def test_real_traces(shared_traces: Path) -> None:
    for name in ("cpu_dtu/exercise_trace.json.gz", "hta_memory_v100/df_index_resolver.json.gz",
                 "mi300_tracelens/normalization_layers.json.gz"):  # fmt: skip
        assert compare(shared_traces / name) > 0


def compare(path: Path) -> int:
    """A slow reading of the file, device by device; how many devices there are."""
    result = findings_of(memory_profile, path)
    at_peak = findings_of(memory_at_peak, path)
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    instants = sorted((event for event in events if event["name"] == "[memory]"), key=lambda item: float(item["ts"]))
    for row in result.rows:
        part = [
            instant["args"]
            for instant in instants
            if (None if instant["args"]["Device Type"] == 0 else instant["args"]["Device Id"]) == row.device
        ]
        live: dict[int, int] = {}
        unmatched = 0
        highest, live_then = -1, 0
        for args in part:
            if args["Bytes"] > 0:
                live[args["Addr"]] = args["Bytes"]
            elif live.pop(args["Addr"], None) is None:
                unmatched += 1
            if args["Total Allocated"] > highest:
                highest, live_then = args["Total Allocated"], sum(live.values())
                reserved_then = args["Total Reserved"]
        assert row.peak_allocated_bytes == highest
        assert row.unmatched_free_count == unmatched
        assert row.live_at_end_bytes == sum(live.values())
        assert row.allocation_count == sum(args["Bytes"] > 0 for args in part)
        assert row.end_allocated_bytes == part[-1]["Total Allocated"]
        if row.peak_reserved_bytes is not None:
            assert row.peak_reserved_bytes == max(args["Total Reserved"] for args in part)
            assert row.fragmentation_ratio == pytest.approx(1 - highest / reserved_then)
        rows = [each for each in at_peak.rows if (each.device_type, each.device) == (row.device_type, row.device)]
        assert sum(row.bytes for row in rows if row.origin != "before recording") == live_then
        assert sum(row.bytes for row in rows) == highest
    return len(result.rows)


# Memory by category: timelines beside hand-made, simulated and recorded traces.
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
    assert read(str(tmp_path / "rank3.json")).tracks[under].stream == 7
    result = analyzed(traced(tmp_path, [*events, *(instant(us, 8, CPU) for us in (20, 60, 80)), instant(70)], SOME))
    (under,) = {annotation.under for annotation in result.annotations if isinstance(annotation, CounterTrack)}
    assert read(str(tmp_path / "rank3.json")).tracks[under].tid == THREAD
    assert "Memory timeline total CPU" in tracks_of(result)


def test_what_has_no_instant_is_told_and_most_of_it_refused(tmp_path: Path) -> None:
    events = [op(ts=0, dur=100), instant(10), instant(90)]
    result = analyzed(traced(tmp_path, [*events, instant(20), instant(80)], SOME))
    assert [(each.code, each.count) for each in result.diagnostics] == [("memory_timeline_differs", 1)]
    reason = refused(traced(tmp_path, [*events, instant(20)], SOME))
    assert "another recording: 2 of 3 allocations and frees have no [memory] instant" in reason


@pytest.mark.parametrize(("events", "changes", "reason"), [
    ([op(ts=0, dur=10.5)], SOME, "it begins 0.000010 s after the trace ends"),
    ([op(ts=2_000_080, dur=10)], SOME, "it ends 2.000000 s before the trace begins"),
    ([op(ts=0, dur=10)], [[5, 2, 8, 0]], "it ends 1,699,999,999.999999 s before the trace begins"),
    ([op(ts=0, dur=10)], [[-1, 1, 8, 0]], "the memory timeline tells of nothing that happened while recording"),
    ([op(ts=0, dur=10)], [], "the memory timeline tells of nothing that happened while recording"),
])  # fmt: skip
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
def test_the_timeline_of_a_simulated_job(
    simulated: list[tuple[Trace, list[list[int]]]], steps: tuple[int, int] | None
) -> None:
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
    result = analyzed(with_memory_timeline(read(str(write_trace(tmp_path / "a.json", spanning))), path))
    tracks = tracks_of(result)
    for row in result.rows[1:]:
        points = tracks[f"Memory timeline {row.category}"]
        assert row.start_bytes == held(changes, first // 1000 * 1000)[CATEGORIES.index(row.category)]
        for ts, value in points[:: len(points) // 5 + 1]:
            assert value == held(changes, ts)[CATEGORIES.index(row.category)]
