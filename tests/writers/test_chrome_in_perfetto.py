"""What Perfetto's real engine shows of augmented Chrome files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from augment.core.annotations import ArgColumn, CounterTrack, Ends, Flows, InstantTrack, SliceTrack, Texts, row_count
from augment.core.findings import AugmentedTrace, Findings
from augment.core.trace import Trace, Track
from augment.pipeline import augment
from augment.readers import read
from augment.writers import chrome
from augment.writers.chrome_events import seen_ns
from metamorphic import real_trace
from perfetto_engine import EngineError, PerfettoEngine
from traces import SIMULATED, by_folder
from writer_traces import PYTHON, STREAM_7, augmented, chrome_trace, ns, texts

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
    assert perfetto.rows(shown) == [
        ("args.correlation", 2**62 + 1, None),
        ("args.owner", None, 'ampere_sgemm<"é">'),
    ]
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
    assert perfetto.rows(sql + " where s.category = 'augment.idle' group by 1, 2, 3") == [
        ("above", 0, None, 50),
        ("below", 1, "above", 40),
    ]
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
    marks = InstantTrack("example", "Marks", 2, ns(4000), texts("here"))
    load(perfetto, tmp_path, augmented(trace, marks))
    assert perfetto.rows("select pid, name from process where name = 'Spans'") == [(10000001, "Spans")]


@pytest.mark.parametrize("step_ns", [1, 100, 255, 1001])
def test_touching_slices_of_epoch_times_all_arrive(perfetto: PerfettoEngine, tmp_path: Path, step_ns: int) -> None:
    ts = 1712195495406752797 + step_ns * np.arange(3000)
    dur = np.full(len(ts), step_ns)
    track = SliceTrack("example", "Touching", 0, ts, dur, Texts(np.zeros(len(ts), np.int32), ["a"]))
    load(perfetto, tmp_path, augmented(chrome_trace(SOURCE), track))
    assert perfetto.problems() == {}
    seen = perfetto.rows("select ts from slice where category = 'augment.example' order by ts")
    assert [row[0] for row in seen] == seen_ns(ts).tolist()


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
        (points + len(source_counters(trace.trace)),)
    ]


def source_counters(trace: Trace) -> list[int]:
    counters: list[int] = np.flatnonzero(trace.events.phase == ord("C")).tolist()
    return counters


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
