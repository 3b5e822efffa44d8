"""Launches of GPU work: what lies within an operator, and what was launched before the recording."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from augment import augment, read
from augment.analyses import before_recording as analysis
from augment.analyses import critical_path, operator_breakdown, steps
from augment.core import Category, SliceTrack
from augment.diagnosis.judging import measure
from augment.diagnosis.recording_completeness import MOST_LATE
from augment.diagnosis.rule import Found
from augment.diagnosis.rules import partial_recording
from augment.diagnosis.verdict import verdict
from augment.facts.gpu.gpu_work import gpu_work
from augment.facts.gpu.launched_work import (
    before_recording,
    before_recording_diagnostics,
    launch_unknown,
    launched_work,
)
from augment.facts.host.call_stacks import call_stacks
from augment.facts.steps.step_windows import step_of_work, step_windows, steps_of_gpu_work
from metamorphic import (
    CALLS,
    GPU_WORK,
    Document,
    Event,
    load,
    real_trace,
    save,
    without_first_launches,
    without_first_ns,
)
from simulator import JobOptions, simulate
from tables import Event as Drawn
from tables import annotation, call, kernel, launched_kernel, op, python, rows_of, slices_of, trace_of

TIMES = st.tuples(st.integers(0, 12), st.integers(0, 12)).map(lambda ends: (min(ends), max(ends)))
HOST = st.lists(st.tuples(TIMES, st.sampled_from([op, annotation, python])), max_size=8)
LAUNCHED = st.lists(st.tuples(TIMES, st.integers(0, 99), st.integers(1, 2)), max_size=6, unique_by=lambda item: item[1])


@given(HOST, LAUNCHED)
def test_spans_hold_what_lies_within_in_the_order_of_launch(
    host: list[tuple[tuple[int, int], object]], calls: list[tuple[tuple[int, int], int, int]]
) -> None:
    events: list[Drawn] = [make(f"o{index}", *ends) for index, (ends, make) in enumerate(host)]  # type: ignore[operator]
    for ends, number, pieces in calls:
        events.append(call("cudaLaunchKernel", *ends, correlation=number))
        events += [kernel("k", 20 + piece, 21 + piece, correlation=number) for piece in range(pieces)]
    trace = trace_of(*events, op("last", 30, 31))
    stacks, launched, table = call_stacks(trace), launched_work(trace), trace.events
    assert len(launched.place) == sum(pieces for _, _, pieces in calls)
    launch = gpu_work(trace).launch[launched.listed]
    part: dict[str, tuple[int, int]] = {}
    for place, row in enumerate(stacks.row.tolist()):
        if table.category[row] == Category.CUDA_RUNTIME:
            continue
        (start,), (stop,) = launched.spans(stacks.place_of[[row]].astype(int))
        within = [
            each
            for each in set(launch.tolist())
            if stacks.place_of[each] > place
            and table.ts[row] <= table.ts[each] < table.end[row]
            and table.end[each] <= table.end[row]
        ]
        pieces = {number: count for _, number, count in calls}
        result = launch[start:stop].tolist()
        assert sorted(set(result)) == sorted(within)
        assert len(result) == sum(pieces[int(table.correlation[each])] for each in within)
        assert [table.ts[each] for each in result] == sorted(table.ts[each] for each in result)
        part[trace.names_of(stacks.row[[place]])[0]] = int(start), int(stop)
    found_rows = operator_breakdown.analyze(trace)
    for each in found_rows.rows:
        if each.operator is not None:
            assert (each.gpu_ns or 0) == part[each.operator][1] - part[each.operator][0]  # each piece takes 1 ns
    assert sum(row.self_gpu_ns or 0 for row in found_rows.rows) == len(launched.place)


def test_launches_of_one_moment_stand_by_correlation() -> None:
    trace = trace_of(
        op("aten::addmm", 100, 120),
        call("cudaLaunchKernel", 105, 113, correlation=12),
        call("cudaMemsetAsync", 105, 105, correlation=11),
        kernel("memset", 120, 122, correlation=11),
        kernel("sgemm", 123, 132, correlation=12),
    )
    assert trace.names_of(gpu_work(trace).row[launched_work(trace).place]) == ["memset", "sgemm"]


SMALL = JobOptions(steps=6, layers=2, causes=True)
JOBS: dict[str, dict[str, Any]] = {
    "waits": {},
    "cut in a backlog": {"run_ahead": 2, "record_from": (2.4, 3.1), "record_until": (5.5, 5.9), "side_streams": 2},
    "never waits": {"sync_every": 0, "record_from": (1.5,), "stacks": True, "memory": True, "ranks": 1},
    "whole µs": {"whole_us": True, "run_ahead": 1, "record_from": (1.4, 2.2), "cross_ns": 1000},
    "graphs": {"graphs": True, "run_ahead": 1, "record_from": (1.3, 1.6)},
    "lost kernels": {"lost_rank": 1, "lost_every": 4, "run_ahead": 2, "record_from": (2.2,), "ranks": 3},
}
BACKLOGS = (
    "h100_8rank_modded_nanogpt/rank1.json.gz",
    "hta_trace_diff_pair/test.json.gz",
    "mi300_tracelens/resnet_act_checkpoint_rank0of8.json.gz",
    "v100_4rank_pair_torchrec/control/pid44237.pt.trace.json.gz",
    "pairs_h100_vs_mi300_tracelens/qwen1.5_0.5b_h100.json.gz",
)


def early_names(*events: Drawn) -> list[str]:
    trace = trace_of(*events)
    return trace.names_of(gpu_work(trace).row[before_recording(trace)])


RUN = (op("aten::mm", 100, 200), *launched_kernel("own", (110, 115), (150, 160), correlation=10))


def test_work_is_early_if_its_correlation_is_below_all_calls_and_it_runs_first_on_its_stream() -> None:
    backlog = kernel("queued", 120, 140, correlation=9)
    assert early_names(*RUN, backlog) == ["queued"]
    assert early_names(*RUN, kernel("other stream", 155, 170, stream=20, correlation=9)) == ["other stream"]
    assert early_names(*RUN, backlog, call("cudaStreamSynchronize", 120, 130, correlation=4)) == []  # was recorded then


@pytest.mark.parametrize(
    "events",
    [
        (*RUN, kernel("no correlation", 120, 140)),
        (*RUN, kernel("lost launch", 120, 140, correlation=11)),
        (*RUN, kernel("behind own work", 170, 180, correlation=9)),
        (op("aten::mm", 100, 200), kernel("no calls at all", 120, 140, correlation=9)),
        (call("cudaDeviceSynchronize", 0, 5, correlation=50), kernel("calls of another kind", 9, 10, correlation=9)),
        (*RUN, kernel("queued", 120, 140, correlation=9),
         *(kernel("by an unknown call", 200 + i, 201 + i, correlation=20 + i) for i in range(5))),
    ],
)  # fmt: skip
def test_what_cannot_be_told_is_not_early(events: tuple[Drawn, ...]) -> None:
    assert early_names(*events) == []
    assert launch_unknown(trace_of(*events)).any()


def test_graphs_follow_their_launch() -> None:
    graph = [kernel("node", 200 + i, 201 + i, correlation=12) for i in range(4)]
    trace = trace_of(*RUN, call("cudaGraphLaunch", 160, 170, correlation=12), *graph)
    assert not before_recording(trace).any()
    assert not launch_unknown(trace).any()


def test_it_is_told_drawn_and_in_no_step() -> None:
    trace = trace_of(
        *RUN,
        annotation("ProfilerStep#1", 100, 300),
        kernel("queued", 90, 110, correlation=8),
        kernel("queued", 110, 140, correlation=9),
        kernel("copy", 90, 150, stream=20, correlation=7),
    )
    findings = analysis.analyze(trace)
    (row,) = findings.rows
    assert (row.count, row.gpu_ns, row.busy_ns, row.until_ns, row.unknown_count) == (3, 110, 60, 60, 0)
    assert row.gpu_ratio == pytest.approx(110 / 120)
    tracks = [annotation for annotation in findings.annotations if isinstance(annotation, SliceTrack)]
    what = {"name": "launched before the recording"}
    assert {track.name: slices_of(track) for track in tracks} == {
        "Before the recording stream 7": [{"ts": 90, "dur": 50, "count": 2, "gpu_ns": 50, **what}],
        "Before the recording stream 20": [{"ts": 90, "dur": 60, "count": 1, "gpu_ns": 60, **what}],
    }
    assert [(each.code, each.count) for each in before_recording_diagnostics(trace)] == [("before_recording", 3)]
    early = before_recording(trace)
    assert (steps_of_gpu_work(trace)[early] == -1).all()
    assert (step_of_work(trace, step_windows(trace))[early] == -1).all()
    assert rows_of(steps.analyze(trace), "work_count", "backlog_ns", "host_wall_ns") == [(1, 50, 200)]


def test_without_any_launch_it_is_skipped_with_the_reason() -> None:
    findings = analysis.analyze(trace_of(call("cudaDeviceSynchronize", 0, 5, correlation=50), kernel("k", 9, 10)))
    assert "the time of launch is unknown" in findings.reason


@pytest.mark.parametrize("name", JOBS)
def test_simulated_jobs_of_known_truth(name: str, tmp_path: Path) -> None:
    for path, truth in simulate(dataclasses.replace(SMALL, **JOBS[name]), tmp_path):
        trace = read(str(path))
        work, early = gpu_work(trace), before_recording(trace)
        before = truth["causes"]["before_recording"]
        assert (int(early.sum()), int((work.end - work.ts)[early].sum())) == (before["count"], before["ns"])
        assert not launch_unknown(trace).any()
        (row,) = analysis.analyze(trace).rows
        assert row.gpu_ratio == pytest.approx(before["share"])


def _reckoned(document: Document) -> set[Any]:
    """Correlations of the early work, in plain Python: of those without a call, the ones that run before the first work
    of their stream that has one. Only of recordings all of whose other work has a call."""
    calls = {event["args"]["correlation"] for event in document["traceEvents"]
             if event.get("cat") in CALLS and "correlation" in (event.get("args") or {})}  # fmt: skip
    streams = defaultdict(list)
    for each in document["traceEvents"]:
        if each.get("cat") in GPU_WORK:
            streams[each["args"]["device"], each["args"]["stream"]].append((each["ts"], each["args"]["correlation"]))
    early: set[Any] = set()
    for work in streams.values():
        known = [number in calls for _, number in sorted(work)]
        first = known.index(True) if True in known else len(known)
        assert all(known[first:])
        early |= {number for _, number in sorted(work)[:first]}
    return early


def _found(path: Path) -> set[Any]:
    trace = read(str(path))
    return set(trace.events.correlation[gpu_work(trace).row[before_recording(trace)]].tolist())


@pytest.mark.parametrize("name", BACKLOGS)
def test_real_recordings_that_begin_in_a_backlog(name: str) -> None:
    path = real_trace(name)
    assert _found(path) == _reckoned(load(path)) != set()


@pytest.mark.parametrize("name", ["mi300_tracelens/resnet_act_checkpoint_rank0of8.json.gz", *BACKLOGS[3:]])
def test_a_recording_that_begins_later_has_more_of_it(name: str, tmp_path: Path) -> None:
    document = load(real_trace(name))
    whole = _found(real_trace(name))
    for ns in (1_000_000, 20_000_000):
        cut = without_first_ns(document, ns)
        begin = min(event["ts"] for event in cut["traceEvents"] if event.get("cat") in CALLS)
        called = {
            event["args"]["correlation"]
            for event in document["traceEvents"]
            if event.get("cat") in CALLS and event["ts"] < begin and "correlation" in (event.get("args") or {})
        }
        kept = {event["args"]["correlation"] for event in cut["traceEvents"] if event.get("cat") in GPU_WORK}
        assert _found(save(cut, tmp_path / "cut.json")) == (whole | called) & kept


def test_a_call_that_is_lost_amid_others_says_nothing(tmp_path: Path) -> None:
    """Calls of other kinds were recorded before the launches that are cut: so the recording had begun."""
    name = "h100_8rank_modded_nanogpt/rank1.json.gz"
    document = load(real_trace(name))
    path = save(without_first_launches(document, 30), tmp_path / "cut.json")
    assert _found(path) <= _found(real_trace(name)) | {
        event["args"]["correlation"]
        for event in document["traceEvents"]
        if event.get("cat") in CALLS and "correlation" in (event.get("args") or {})
    }
    assert _found(path) >= _found(real_trace(name))


def test_the_paths_shares_of_a_step_leave_it_out(tmp_path: Path) -> None:
    ((path, _),) = simulate(dataclasses.replace(SMALL, sync_every=0, record_from=(1.5,), ranks=1), tmp_path)
    for trace in (read(str(path)), read(str(real_trace("h100_rank0_pair_modded_nanogpt/test_hook_rank0.json.gz")))):
        findings = critical_path.analyze(trace)
        assert "before_recording" in {diagnostic.code for diagnostic in findings.diagnostics}
        numbers = sorted({row.step for row in findings.rows})
        for number in numbers:
            rows = [row for row in findings.rows if row.step == number]
            assert sum(row.time_ns for row in rows) == rows[0].path_ns
            early = sum(row.before_recording_ns for row in rows)
            assert early == 0 or number is None  # a step begins when earlier work is done
            for row in rows:
                part = row.path_ns - early
                share = (row.time_ns - row.before_recording_ns) / part if part else 0
                assert row.time_ratio == pytest.approx(share)


NAMES = (
    "vllm_mi300_tracelens/decode_full_graph_execution.json.gz",
    "gtx1650_ao/gtx1650_trace.json.gz",
    "hta_annotations/gpu_user_annotation_GP100.json.gz",
)
LONGEST_LAUNCH_US = 30


@pytest.mark.parametrize("name", NAMES)
def test_the_host_holds_up_no_work_that_it_has_launched(name: str) -> None:
    path = real_trace(Path(name))
    events = [event for event in load(path)["traceEvents"] if event.get("ph") == "X"]
    work = sorted((event for event in events if event.get("cat") in GPU_WORK), key=lambda event: event["ts"])
    calls = [event for event in events if event.get("cat") in CALLS]
    first = work[0]
    launches = [call for call in calls if call["args"].get("correlation") == first["args"]["correlation"]]
    (row,) = augment(read(str(path)), only=["steps"]).outcomes["steps"].rows
    delays = [first["ts"] - (call["ts"] + call["dur"]) for call in launches]
    after_us = max(delays, default=first["ts"] - min(event["ts"] for event in events))
    if after_us >= LONGEST_LAUNCH_US:
        assert row.host_wait_ns <= max(0, row.idle_ns - int(after_us * 1000))  # before the recorded work: no step's


def queued_us(events: list[Event]) -> float:
    """The longest time without work between the return of the launch of a stream's first work and its begin, after the
    first work of all."""
    work = sorted((event for event in events if event.get("cat") in GPU_WORK), key=lambda event: event["ts"])
    returned = {
        call["args"]["correlation"]: call["ts"] + call["dur"]
        for call in events
        if call.get("cat") in CALLS and "correlation" in call["args"]
    }
    first = {event["args"]["stream"]: event for event in reversed(work)}
    longest = 0.0
    for event in first.values():
        if event is work[0]:
            continue
        launched = returned.get(event["args"].get("correlation"), event["ts"])
        busy_until = max((each["ts"] + each["dur"] for each in work if each["ts"] < event["ts"]), default=launched)
        longest = max(longest, float(event["ts"] - max(launched, busy_until)))
    return longest


LACKING = "sglang_mi300_tracelens/qwen3_8b_decode.json.gz"


@pytest.mark.parametrize("name", [*NAMES, LACKING])
def test_earlier_work_that_the_file_lacks_is_told(name: str) -> None:
    path = real_trace(Path(name))
    events = [event for event in load(path)["traceEvents"] if event.get("ph") == "X"]
    span = max(event["ts"] + event["dur"] for event in events) - min(event["ts"] for event in events)
    ratio = queued_us(events) / float(span)
    assert not 0.08 < ratio < 0.12, "too close to the limit to tell"
    trace = read(str(path))
    answer = "while the file shows an idle GPU" in verdict(trace)[0]
    assert (ratio >= MOST_LATE) == (name == LACKING)
    assert not answer
    if name == LACKING:  # the one step of an engine, which is judged from when the device is free
        assert measure(trace).lead_in_ns > 0.9 * ratio * float(span) * 1000


@pytest.mark.parametrize("share", [0.25, 0.5])
def test_a_file_that_loses_the_first_work_of_the_device_says_so(share: float, tmp_path: Path) -> None:
    path = real_trace("hta_ns_resolution/rank-0.ns_resolution.pt.trace.json.gz")  # whose host runs ahead
    whole = partial_recording.check(read(str(path)))
    assert not (isinstance(whole, Found) and whole.first)
    document = load(path)
    work = sorted(event["ts"] for event in document["traceEvents"] if event.get("cat") in GPU_WORK)
    begin = work[int(len(work) * share)]
    kept = [row for row in document["traceEvents"] if row.get("cat") not in GPU_WORK or row["ts"] >= begin]
    answer = partial_recording.check(read(str(save(document | {"traceEvents": kept}, tmp_path / "lost.json"))))
    assert isinstance(answer, Found)
    assert answer.first
