"""What a comparison draws: what the simulator changed and nothing else, and sums that agree with the tables."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import augment
from augment.arrays import NO_INDEX
from augment.compare import Diff, diff
from augment.compare.diff_timeline import MIN_DELTA_NS, drawn
from augment.compare.outputs import Drawing, most_changed, write_all
from augment.core import Annotation, Category, CounterTrack, EventTable, SliceTrack, SparseColumn, Texts, Trace
from augment.facts.gpu.gpu_work import gpu_work
from augment.viewer.preparing import prepare
from augment.writers.perfetto.several import first_view
from diffs import PAIRS, rows
from perfetto_engine import PerfettoEngine
from simulator import JobOptions, simulate
from traces import op, step, write_trace

JOB = JobOptions(ranks=2, steps=3, layers=2, jitter=0.0)
DENSE = ("ts", "dur", "phase", "category", "category_name", "name", "track", "correlation", "offset", "length")
Slice = dict[str, Any]


def trace(folder: Path, **changes: Any) -> Trace:
    """Rank 0 of the job, changed."""
    return augment.read(str(simulate(dataclasses.replace(JOB, **changes), folder)[0][0]))


@pytest.fixture(scope="module")
def control(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return trace(tmp_path_factory.mktemp("control"))


def slices(annotations: list[Annotation], *, device: bool, test: Trace, gone: bool = False) -> list[Slice]:
    """The slices on devices or threads, as a viewer shows them; either what is ``gone`` or what is there."""
    result = []
    for annotation in annotations:
        if isinstance(annotation, SliceTrack) and device == (test.tracks[annotation.under].device is not None):
            expect_names(annotation, test)
            columns = {"name": texts(annotation.names), "ts": annotation.ts.tolist(), "dur": annotation.dur.tolist()}
            columns |= {key: texts(c) if isinstance(c, Texts) else c.tolist() for key, c in annotation.args.items()}
            result += [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    chosen = [each for each in result if (each["change"] == "deleted") == gone]
    return sorted(chosen, key=lambda item: (item["ts"], -item["dur"]))


def expect_names(slice_track: SliceTrack, test: Trace) -> None:
    """The place tells the sign; the label is in the name of the group, or in the description."""
    device, signs = test.tracks[slice_track.under].device, {text[:1] for text in texts(slice_track.names) if text}
    if device is None:
        assert (slice_track.name, slice_track.group) in (("Δ host", ""), ("Δ host deleted", ""))
        return
    (row,) = {"slower", "faster", "same"} & set(slice_track.name.split())
    assert (slice_track.name, slice_track.group) == (f"Δ GPU {device} {row}", "Diff vs C")
    assert row == "same" or signs <= {"slower": {"▲", "+"}, "faster": {"▼", "−"}}[row]


def texts(column: Texts) -> list[str | None]:
    return [None if code < 0 else column.values[code] for code in column.codes.tolist()]


def counter(annotations: list[Annotation], *, device: bool, test: Trace) -> CounterTrack:
    (rows,) = [annotation for annotation in annotations if isinstance(annotation, CounterTrack)
                and device == (test.tracks[annotation.under].device is not None)]  # fmt: skip
    return rows


def shown(control: Trace, test: Trace, **options: Any) -> tuple[Diff, list[Annotation]]:
    result = diff(control, test)
    return result, drawn(result.pairs[0], "C", **{"min_delta_ns": MIN_DELTA_NS, **options}).annotations


def test_a_trace_beside_itself_shows_nothing(control: Trace) -> None:
    assert shown(control, control)[1] == []


def test_a_slower_kernel(control: Trace, tmp_path: Path) -> None:
    test = trace(tmp_path, slow_kernel="nvjet", slow_percent=20.0)
    result, annotations = shown(control, test)
    kernels = slices(annotations, device=True, test=test)
    matching = [n for n in test.names_of(test.events.slices_of(Category.KERNEL)) if "nvjet" in n]
    assert Counter(kernel["name"] for kernel in kernels) == Counter("▲ " + name for name in matching)
    assert all(row["change"] == "increased" and row["control_ns"] + row["delta_ns"] == row["dur"] for row in kernels)
    assert {kernel["delta_ratio"] for kernel in kernels} == {"+20.0 %"}
    assert {kernel["operator"] for kernel in kernels} == {"aten::mm", "aten::addmm"}
    assert {kernel["control_name"] for kernel in kernels} == {None}
    grown = sum(row.delta_ns for row in rows(result, "diff_names") if row.side == "gpu")
    assert sum(kernel["delta_ns"] for kernel in kernels) == grown
    host = slices(annotations, device=False, test=test)
    assert {each["name"] for each in host} == {
        "▲ aten::addmm (GPU)", "▲ aten::linear (GPU)", "▲ aten::mm (GPU)", "▲ AddmmBackward0 (GPU)",
        "▲ autograd::engine::evaluate_function: AddmmBackward0 (GPU)", "▲ aten::item", "▲ aten::_local_scalar_dense",
    }  # fmt: skip
    innermost = [each for each in host if each["name"] in ("▲ aten::addmm (GPU)", "▲ aten::mm (GPU)")]
    assert sum(each["gpu_delta_ns"] for each in innermost) == grown
    assert slices(annotations, device=True, test=test, gone=True) == []
    longer = rows(result, "diff_steps")[0].delta_ns
    for device in (False, True):
        assert counter(annotations, device=device, test=test).values.max() * 1e6 == pytest.approx(longer) == grown // 3


def test_an_added_operator(control: Trace, tmp_path: Path) -> None:
    test = trace(tmp_path, extra_operator="aten::extra")
    _, annotations = shown(control, test)
    host = slices(annotations, device=False, test=test)
    added = [each for each in host if each["change"] == "added"]
    assert [each["name"] for each in added] == ["+ aten::extra"] * 6
    assert {each["control_ns"] for each in added} == {-1}
    assert {each["name"] for each in host if each not in added} == {"▲ aten::item", "▲ aten::_local_scalar_dense"}
    kernels = slices(annotations, device=True, test=test)
    assert [(kernel["change"], kernel["operator"]) for kernel in kernels] == [("added", "aten::extra")] * 6
    assert counter(annotations, device=True, test=test).values.max() * 1e6 == pytest.approx(
        sum(kernel["dur"] for kernel in kernels) // 3
    )


def test_a_dropped_collective(control: Trace, tmp_path: Path) -> None:
    test = trace(tmp_path, drop_collective=1)
    result, annotations = shown(control, test)
    (pair,) = result.pairs
    for device, name in ((False, "− c10d::allreduce_"), (True, "− ncclDevKernel_AllReduce")):
        gone = slices(annotations, device=device, test=test, gone=True)
        assert [each["change"] for each in gone] == ["deleted"] * 3
        assert all(each["name"].startswith(name) and each["dur"] == 0 for each in gone)
        assert all(each["delta_ns"] == -each["control_ns"] < 0 for each in gone)
        windows = zip(pair.test.steps.start.tolist(), pair.test.steps.end.tolist(), gone, strict=True)
        assert all(start <= each["ts"] <= end for start, end, each in windows)
    gone = slices(annotations, device=False, test=test, gone=True)
    calls, alignment = pair.control.calls, pair.alignment
    for mark in gone:  # right after its predecessor among its siblings, seen one by one
        (call,) = [
            call
            for call in np.flatnonzero((alignment.call_of_control == NO_INDEX) & (calls.parent == -1)).tolist()
            if calls.step[call] == [row["ts"] for row in gone].index(mark["ts"]) and calls.thread[call] == 1
        ]
        before = [each for each in range(call) if calls.parent[each] == -1 and calls.thread[each] == calls.thread[call]
                  and calls.step[each] == calls.step[call] and alignment.call_of_control[each] != NO_INDEX]  # fmt: skip
        partner = pair.test.calls.row[alignment.call_of_control[before[-1]]]
        assert mark["ts"] == test.events.ts[partner] + test.events.dur[partner]


def test_what_would_have_been_at_one_moment_has_one_mark(tmp_path: Path) -> None:
    """Three calls in a row are gone, one before all others, and one in a call of which nothing else is left."""
    names = ["aten::first", "aten::a", "aten::x", "aten::x", "aten::y", "aten::b", "outer"]
    calls = [op(name, 10 * place, 8 + place) for place, name in enumerate(names, start=1)]
    calls = [call | {"dur": 9} for call in calls] + [op("aten::inner", 72, 5), op("aten::y", 77, 2)]
    calls[2]["dur"] = 9.5
    before = augment.read(str(write_trace(tmp_path / "a.json", step(3, 5, 100), *calls)))
    kept = [call | {"ts": call["ts"] + 500} for call in calls if call["name"] in ("aten::a", "aten::b", "outer")]
    test = augment.read(str(write_trace(tmp_path / "b.json", step(9, 505, 100), *kept)))
    gone = slices(shown(before, test)[1], device=False, test=test, gone=True)
    seen = [(row["name"], row["ts"] - test.source.base_ns, row["names"], row["count"], row["delta_ns"]) for row in gone]
    assert seen == [
        ("− aten::first", 510_000, None, 1, -9000),
        ("− aten::x", 529_000, "2 × aten::x, aten::y", 3, -27_500),
        ("− aten::inner", 570_000, "aten::inner, aten::y", 2, -7000),
    ]
    assert all(each["control_ns"] == -each["delta_ns"] for each in gone)


def test_a_host_that_stalls(control: Trace, tmp_path: Path) -> None:
    test = trace(tmp_path, host_stall_us=800.0)
    _, annotations = shown(control, test)
    (value, *_) = host = slices(annotations, device=False, test=test)
    assert len(host) == 3
    assert value["name"] == "▲ enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    assert value["delta_ns"] == 800_000
    assert slices(annotations, device=True, test=test) == []
    late = counter(annotations, device=False, test=test)
    assert late.values.max() == 0.8
    assert not any(isinstance(each, CounterTrack) and each is not late for each in annotations), "no GPU work differs"


def test_every_call_is_drawn_where_the_least_difference_is_none(control: Trace, tmp_path: Path) -> None:
    test = trace(tmp_path, slow_kernel="nvjet")
    result, annotations = shown(control, test, min_delta_ns=0)
    side = result.pairs[0].test
    assert len(slices(annotations, device=False, test=test)) == np.count_nonzero(side.calls.step >= 0)
    names = {annotation.name for annotation in annotations if isinstance(annotation, SliceTrack)}
    assert names == {"Δ GPU 0 slower", "Δ GPU 0 same", "Δ host"}
    work = slices(annotations, device=True, test=test)
    assert {each["stream"] for each in work} == {7, 20, 23}
    assert len(work) == np.count_nonzero(side.work.step >= 0)
    assert {each["change"] for each in work} == {"increased", "unchanged"}


def test_by_default_only_what_makes_up_a_share_of_the_step_is_drawn(tmp_path: Path) -> None:
    """Kernels that are slower are drawn, each or together 1 % of the step; what varies by less is not."""
    before = trace(tmp_path / "control", seed=1, jitter=0.02)
    test = trace(tmp_path / "test", seed=2, slow_kernel="nvjet", slow_percent=20.0, jitter=0.02)
    (pair,) = diff(before, test).pairs
    named, every = (
        Counter(
            text[2:]
            for annotation in drawn(pair, "C", least).annotations
            if isinstance(annotation, SliceTrack) and test.tracks[annotation.under].device is not None
            for text in texts(annotation.names)
            if text
        )
        for least in (None, MIN_DELTA_NS)
    )
    assert any("nvjet" in name for name in named)
    assert named.total() < every.total()
    lengths = pair.control.steps.end - pair.control.steps.start
    deltas: dict[str, list[int]] = {}
    columns = pair.test.work.row, pair.test.work.ns, pair.test.work.step, pair.alignment.work_of_test
    for row, ns, number, partner in zip(*(column.tolist() for column in columns), strict=True):
        if number >= 0:
            assert partner != NO_INDEX, "nothing is new"
            deltas.setdefault(test.names_of([row])[0], []).append(ns - int(pair.control.work.ns[partner]))
    for name, each in deltas.items():
        large = [each for each in each if abs(each) >= 0.01 * lengths.mean()]
        together = [row for row in each if abs(row) >= MIN_DELTA_NS] if abs(sum(each)) >= 0.01 * lengths.sum() else []
        assert named[name] == len(together or large), name


def naive_sum(result: Diff, step: int) -> int:
    """The sum of the differences of GPU work of a step, of the device that comes first."""
    (pair,) = result.pairs
    device = [gpu_work(side.trace).devices[0] for side in (pair.control, pair.test)]
    sums = [
        int(side.work.ns[each.places][side.work.step[each.places] == step].sum())
        for side, each in zip((pair.control, pair.test), device, strict=True)
    ]  # fmt: skip
    return int(sums[1] - sums[0])


def test_counters_end_at_the_sums(control: Trace, tmp_path: Path) -> None:
    test = trace(tmp_path, jitter=0.2, seed=5)
    result, annotations = shown(control, test)
    track = counter(annotations, device=True, test=test)
    for place, end in enumerate(result.pairs[0].test.steps.end.tolist()):
        at = int(np.searchsorted(track.ts, end, side="right")) - 1
        assert track.values[at] * 1e6 == pytest.approx(naive_sum(result, place))
    assert track.values[-1] == 0
    assert (np.diff(track.ts) > 0).all()


@pytest.mark.parametrize("pair", list(PAIRS)[1:7])
def test_recorded_pairs_in_perfetto(shared_traces: Path, perfetto: PerfettoEngine, tmp_path: Path, pair: str) -> None:
    """The engine has as many slices of ours as were drawn, and nothing to complain of that it had not before."""
    first, second = PAIRS[pair]
    result = diff(augment.read(str(shared_traces / first)), augment.read(str(shared_traces / second)))
    annotations = drawn(result.pairs[0], "C", MIN_DELTA_NS, result.verdict.text).annotations
    expect_nested(annotations)
    count = sum(len(annotation.ts) for annotation in annotations if isinstance(annotation, SliceTrack))
    points = sum(len(annotation.ts) for annotation in annotations if isinstance(annotation, CounterTrack))
    perfetto.load(shared_traces / second)
    before = perfetto.problems()
    paths = write_all(result, tmp_path, "t", Drawing(("chrome", "perfetto"), "C", MIN_DELTA_NS, overlay=True))
    for path in paths[:-1]:
        perfetto.load(path)
        assert perfetto.problems() == (before if path.name.endswith(".json.gz") else {})
        assert perfetto.rows("select count(*) from slice where category = 'augment.diff'") == [(count,)]
        ours = "(select id from counter_track where name glob '*Δ * cumulative*')"
        assert perfetto.rows(f"select count(*) from counter where track_id in {ours}") == [(points,)]


def expect_nested(annotations: list[Annotation]) -> None:
    """Of the slices of a track each lies within those that are open when it begins."""
    for annotation in annotations:
        if isinstance(annotation, SliceTrack):
            ends: list[int] = []
            for ts, end in zip(annotation.ts.tolist(), (annotation.ts + annotation.dur).tolist(), strict=True):
                while ends and ends[-1] <= ts:
                    ends.pop()
                assert not ends or end <= ends[-1]
                ends.append(end)


def test_an_overlay_holds_both(control: Trace, perfetto: PerfettoEngine, tmp_path: Path) -> None:
    test = trace(tmp_path / "in", slow_kernel="nvjet", slow_percent=20.0, extra_operator="aten::extra")
    result = diff(control, test, step=(1, 2))
    (pair,) = result.pairs
    paths = write_all(result, tmp_path, "t", Drawing(("perfetto",), "before", overlay=True, arrow_count=7))
    assert [path.name for path in paths] == ["rank0.diff.pftrace", "rank0.diff.overlay.pftrace", "t.diff.metrics.json"]
    perfetto.load_clean(paths[1])
    roots = perfetto.rows("select name from track where parent_id is null and name like '%: %' order by name")
    assert roots == [("control: before",), ("test: rank0",)]
    under = """with recursive tree(id, root) as (
        select id, name from track where parent_id is null
        union all select track.id, root from track join tree on track.parent_id = tree.id)"""
    both = perfetto.rows(f"{under} select root, count(*) from slice join tree on track_id = tree.id "
                         "where category not like 'augment.%' group by root order by root")  # fmt: skip
    assert both == [
        ("control: before", np.count_nonzero(control.events.phase == ord("X"))),
        ("test: rank0", np.count_nonzero(test.events.phase == ord("X"))),
    ]
    begin = perfetto.rows(f"{under} select root, ts from slice join tree on track_id = tree.id where "
                          "(root, slice.name, category) in (values "
                          "('control: before', 'ProfilerStep#1', 'user_annotation'), "
                          "('test: rank0', 'ProfilerStep#2', 'user_annotation'))")  # fmt: skip
    assert dict(begin) == dict.fromkeys(("control: before", "test: rank0"), int(pair.test.steps.begin[0]))
    arrows = perfetto.rows(f"""{under} select a.name, b.name from flow join slice a on slice_out = a.id
        join slice b on slice_in = b.id join tree ta on ta.id = a.track_id join tree tb on tb.id = b.track_id
        where ta.root != tb.root""")
    assert len(arrows) == 7
    assert all(each == other for each, other in arrows)
    assert {each for each, _ in arrows} <= {"aten::mm", "aten::addmm", "aten::_local_scalar_dense"}


def test_an_overlay_begins_with_the_step_in_the_middle(
    control: Trace, perfetto: PerfettoEngine, tmp_path: Path
) -> None:
    result = diff(control, trace(tmp_path / "in", slow_kernel="nvjet", slow_percent=20.0))
    ours, before = result.pairs[0].test.steps, result.pairs[0].control.steps
    paths = write_all(result, tmp_path, "t", Drawing(("chrome", "perfetto"), "before", overlay=True))
    view = first_view(paths[2])
    begin = int(ours.begin[1])
    assert view.window == (begin, max(int(ours.end[1]), begin + int(before.end[1] - before.begin[1])))
    perfetto.load(paths[2])
    starts = perfetto.rows("select ts from slice where name = 'ProfilerStep#1' and category = 'user_annotation'")
    assert starts == [(begin,), (begin,)], "of both sides"
    tracks = [name for (name,) in perfetto.rows("select distinct name from track where name is not null")]
    pinned = [[name for name in tracks if re.fullmatch(pin, name)] for pin in view.pins]
    assert pinned == [
        ["What changed in the test"], ["Δ GPU 0 slower test"], [], ["Δ GPU 0 cumulative test"],
        ["Steps control"], ["Steps test"],
        ["GPU state control"], ["GPU state test"], ["stream 7 control"], ["stream 7 test"],
    ]  # fmt: skip
    assert prepare(str(paths[2]), tmp_path, print, print).view.pins == view.pins
    joins = "join track g on g.id = t.parent_id join track d on d.id = g.parent_id"
    above = f"select t.name, g.name, d.name from track t {joins}"
    perfetto.load(paths[1])
    assert perfetto.rows(f"{above} where t.name like '%slower'") == [("Δ GPU 0 slower", "Diff vs before", "GPU 0")]
    perfetto.load(paths[0])
    names = perfetto.rows("select distinct name from thread where name like '%slower'")
    assert names == [("Diff vs before: Δ GPU 0 slower",)], "Chrome JSON has no groups"


def test_the_overlay_of_a_test_that_begins_at_zero(control: Trace, perfetto: PerfettoEngine, tmp_path: Path) -> None:
    """The control's times before its first step would be negative: both are moved."""
    moved = msgspec.structs.replace(control.events, ts=control.events.ts - control.events.ts[0])
    result = diff(control, control.changed(events=moved), step=(2, 0))
    perfetto.load_clean(write_all(result, tmp_path, "t", Drawing(("perfetto",), overlay=True))[1])
    assert perfetto.rows("select min(ts) from slice") == [(0,)]


def test_what_changed_most_is_linked(control: Trace, tmp_path: Path) -> None:
    (pair,) = diff(control, trace(tmp_path, slow_kernel="nvjet")).pairs

    def make_one(place: int) -> int:
        partner = int(pair.alignment.call_of_test[place])
        now, was = pair.test.calls, pair.control.calls
        return max(abs(int(now.cpu_self_ns[place] - was.cpu_self_ns[partner])),
                   abs(int(now.gpu_self_ns[place] - was.gpu_self_ns[partner])))  # fmt: skip

    met = np.flatnonzero((pair.alignment.call_of_test != NO_INDEX) & (pair.test.calls.step >= 0)).tolist()
    largest = sorted(map(make_one, met), reverse=True)[:10]
    assert sorted(map(make_one, most_changed(pair, 10).tolist()), reverse=True) == largest
    assert len(most_changed(pair, 10**6)) == sum(make_one(place) > 0 for place in met)
    assert len(most_changed(pair, 0)) == 0


@pytest.mark.parametrize("on_device", [True, False])
def test_only_a_gpu_or_only_a_host(control: Trace, *, on_device: bool) -> None:
    """Half a trace is drawn as far as it goes."""
    kept = np.array([track.device is not None for track in control.tracks])[control.events.track] == on_device
    halves = []
    for slower in (1, 2):
        events = control.events
        none = SparseColumn(np.zeros(0, np.int64), np.zeros(0, np.int64))
        columns = {name: getattr(events, name)[kept] for name in DENSE}
        columns["ts"] = events.ts[0] + (columns["ts"] - events.ts[0]) * slower
        columns["dur"] = columns["dur"] * slower
        halves.append(control.changed(events=EventTable(**columns, bytes=none, flow_id=none)))
    diff_result = drawn(diff(*halves).pairs[0], "C", MIN_DELTA_NS).annotations
    tracks = [each for each in diff_result if isinstance(each, SliceTrack)]
    assert {control.tracks[track.under].device is not None for track in tracks} == {on_device}
    assert set(Counter(change for track in tracks for change in texts(track.args["change"]))) == {"increased"}
