"""The critical graph, path, slack and what-if against plain searches, on traces made at random."""

from __future__ import annotations

from collections import Counter, defaultdict
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from augment.core.trace import Category, Trace
from augment.facts.critical import longest_path, what_if
from augment.facts.critical.critical_graph import NEVER, CriticalGraph, critical_graph
from augment.facts.critical.critical_graph import saved as saved_by_graph
from augment.facts.critical.what_if import longest_names
from augment.facts.gpu.gpu_work import gpu_work
from augment.facts.host.call_stacks import call_stacks
from augment.facts.waits.dependencies import DependencyKind
from augment.hta.cp_graph import event_graph
from oracles import plain_kernels
from tables import Event, annotation, call, copy, kernel, op, sync, trace_of

pytestmark = pytest.mark.slow

CALLS = ("cudaLaunchKernel", "cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaMemcpyAsync", "cudaEventRecord")


@st.composite
def recordings(draw: st.DrawFn) -> Trace:
    """Two threads and three streams; anything may be late, early, overlapping, unlinked, or take no time."""
    events: list[Event] = []
    small, any_length = st.integers(0, 9), st.integers(-2, 9)
    for correlation in range(1, draw(st.integers(2, 10))):
        ts, thread = draw(st.integers(0, 60)), draw(st.sampled_from([1, 1, 2]))
        name = draw(st.sampled_from(CALLS))
        end = ts + draw(any_length)
        events.append(op(draw(st.sampled_from("abc")), ts - draw(small), end + draw(small), thread=thread))
        events.append(call(name, ts, end, thread=thread, correlation=correlation))
        start = ts + draw(st.integers(-3, 30))
        stream = draw(st.integers(7, 9))
        if name == "cudaLaunchKernel":
            events.append(kernel(draw(st.sampled_from("kl")), start, start + draw(any_length), stream=stream,
                                 correlation=draw(st.sampled_from([correlation, correlation, 99]))))  # fmt: skip
        elif name == "cudaMemcpyAsync":
            events.append(copy("Memcpy DtoH", start, start + draw(small), correlation=correlation, stream=stream))
        elif draw(st.booleans()):
            output = draw(st.sampled_from(["Context Sync", "Stream Sync", "Event Sync", "Stream Wait Event"]))
            events.append(sync(output, ts, end, stream=draw(st.integers(-1, 9)), correlation=correlation,
                               wait_on_stream=draw(st.integers(6, 9)),
                               wait_on_cuda_event_record_corr_id=draw(st.integers(-1, 9))))  # fmt: skip
    if draw(st.booleans()):
        events.append(annotation("ProfilerStep#1", 5, 30))
        events.append(annotation("ProfilerStep#2", 30, 47))
    if draw(st.booleans()):
        events.append(op("autograd::engine::evaluate_function: b", 63, 70, thread=2))
    events.append(call("cudaLaunchKernel", 61, 62))
    return trace_of(*events)


def longest(graph: CriticalGraph, weight: dict[int, int]) -> dict[int, int]:
    """The longest path from the start to every node, found without an order of the nodes."""
    leading = defaultdict(list)
    for edge, target in enumerate(graph.target.tolist()):
        leading[target].append(edge)
    result = {0: int(graph.ts[0])}

    def reach(node: int) -> int:
        if node not in result:
            result[node] = max(reach(int(graph.source[edge])) + weight[edge] for edge in leading[node])
        return result[node]

    return {node: reach(node) for node in range(len(graph))}


def weights(graph: CriticalGraph) -> dict[int, int]:
    """By edge."""
    return dict(enumerate(graph.weight.tolist()))


def test_a_wait_of_negative_duration_takes_nothing_away() -> None:
    trace = trace_of(
        op("a", 22, 20, thread=2), call("cudaDeviceSynchronize", 22, 20, thread=2, correlation=6),
        op("a", 24, 24), call("cudaLaunchKernel", 24, 24, correlation=1), kernel("k", 21, 20, correlation=1),
        call("cudaLaunchKernel", 61, 62),
    )  # fmt: skip
    graph = critical_graph(trace)
    assert (graph.self_ns >= 0).all()
    assert (event_graph(trace).weight >= 0).all()
    assert graph.weight[longest_path.critical_path(trace).edges].sum() == graph.ts[-1] - graph.ts[0]


@given(recordings())
@settings(max_examples=50)
def test_the_path_is_the_longest_and_as_long_as_the_recording(trace: Trace) -> None:
    graph, path = critical_graph(trace), longest_path.critical_path(trace)
    assert (graph.ts[graph.source] <= graph.ts[graph.target]).all()
    assert (graph.kind[:-1] <= graph.kind[1:]).all()
    assert (graph.weight >= graph.self_ns).all()
    assert (graph.self_ns >= 0).all()
    assert (graph.weight <= graph.ts[graph.target] - graph.ts[graph.source]).all()
    assert longest(graph, weights(graph)) == dict(enumerate(graph.ts.tolist()))
    assert graph.weight[path.edges].sum() == graph.ts[-1] - graph.ts[0]
    assert (path.dur > 0).all()
    assert path.dur.sum() == graph.ts[-1] - graph.ts[0]
    assert (path.ts[1:] == path.ts[:-1] + path.dur[:-1]).all()
    position = np.empty(len(graph), np.int64)
    position[graph.order] = np.arange(len(graph))
    assert (position[graph.source] < position[graph.target]).all()


@given(recordings())
@settings(max_examples=80)
def test_a_node_for_each_start_and_end_changes_no_path(trace: Trace) -> None:
    graph, path, result = critical_graph(trace), longest_path.critical_path(trace), event_graph(trace)
    took = result.ts[result.target] - result.ts[result.source]
    assert (result.weight >= 0).all()
    assert (result.weight <= took).all()
    leading = defaultdict(list)
    for edge, target in enumerate(result.target.tolist()):
        leading[target].append(edge)
    best: dict[int, tuple[int, list[int]]] = {}  # length of the longest path, and its edges; of equals the first

    def reach(node: int) -> tuple[int, list[int]]:
        if node not in best:
            ways = [(reach(int(result.source[edge]))[0] + int(result.weight[edge]), edge) for edge in leading[node]]
            length, edge = max(ways, key=lambda way: way[0], default=(0, -1))
            best[node] = length, [] if edge < 0 else [*reach(int(result.source[edge]))[1], edge]
        return best[node]

    length, edges = reach(len(result.ts) - 1)
    assert length == graph.ts[-1] - graph.ts[0] == max(reach(node)[0] for node in range(len(result.ts)))
    sums = np.bincount(result.bound_by[edges], result.weight[edges], len(longest_path.BoundBy))
    assert sums.tolist() == np.bincount(path.bound_by, path.dur, len(longest_path.BoundBy)).tolist()
    ends = trace.events.ts + np.maximum(trace.events.dur, 0)
    known = result.row >= 0
    moment = np.where(result.is_start[known], trace.events.ts[result.row[known]], ends[result.row[known]])
    assert moment.tolist() == result.ts[known].tolist()
    assert len(np.unique(2 * result.row[known] + result.is_start[known])) == np.count_nonzero(known)


@given(recordings())
@settings(max_examples=50)
def test_slack_is_what_may_be_added_before_the_end_moves(trace: Trace) -> None:
    graph, room, work = critical_graph(trace), longest_path.node_slack(trace), gpu_work(trace)
    assert (room >= 0).all()
    for place in range(len(work)):
        node = graph.first_work + place
        part = int(room[node])
        matters = (
            longest_path.latest_of_nodes(trace)[node] < NEVER
        )  # else the end does not depend on it, however long it takes
        for extra, late in ((part, 0), (part + 1, 1 if matters else 0)):
            longer = weights(graph)
            for edge in np.flatnonzero(graph.source == node).tolist():
                longer[edge] += extra
            if (graph.source == node).any():
                assert longest(graph, longer)[len(graph) - 1] == graph.ts[-1] + late


def cuts(trace: Trace, graph: CriticalGraph, name: str, start: int, stop: int) -> dict[int, int]:
    """How much of each edge is spent in ``name`` from ``start`` to ``stop``, nanosecond by nanosecond."""
    work, events = gpu_work(trace), trace.events
    order = call_stacks(trace).row.tolist()
    result: dict[int, int] = defaultdict(int)
    for edge in range(len(graph.kind)):
        source, target = int(graph.source[edge]), int(graph.target[edge])
        begun = int(graph.ts[source])
        if graph.self_ns[edge]:
            row = work.row[source - graph.first_work]
            if trace.names_of(np.array([row])) == [name]:
                result[edge] = len(range(max(begun, start), min(begun + int(graph.self_ns[edge]), stop)))
        elif graph.kind[edge] == DependencyKind.THREAD and graph.weight[edge]:
            for moment in range(max(begun, start), min(int(graph.ts[target]), stop)):
                on = [row for row in order if events.track[row] == graph.lane[source]
                      and events.ts[row] <= moment < events.end[row]]  # fmt: skip
                result[edge] += bool(on) and trace.names_of(np.array(on[-1:])) == [name]
    return result


@given(recordings())
@settings(max_examples=50)
def test_what_is_saved_is_what_a_search_without_it_finds(trace: Trace) -> None:
    graph = critical_graph(trace)
    result = longest_names(trace, 3)
    start, stop = longest_path.windows(trace)
    for place, window in enumerate(result.window.tolist()):
        less = cuts(trace, graph, trace.strings[result.name[place]], int(start[window]), int(stop[window]))
        shorter = {edge: weight - less.get(edge, 0) for edge, weight in weights(graph).items()}
        without = longest(graph, shorter)[len(graph) - 1]
        assert result.saved_ns[place] == graph.ts[-1] - without
        assert 0 <= result.saved_ns[place] <= result.ns[place] <= result.total_ns[place]


@given(recordings())
@settings(max_examples=25)
def test_compiled_and_interpreted_loops_agree(trace: Trace) -> None:
    answers = []
    for way in (nullcontext, plain_kernels):
        again = Trace(trace.events, trace.strings, trace.tracks, trace.source)
        with way():
            graph, path, names = critical_graph(again), longest_path.critical_path(again), longest_names(again, 5)
            columns = [graph.binding, graph.head, graph.following, path.ts, path.row, longest_path.node_slack(again)]
            columns += [names.saved_ns, names.slack_ns, names.total_ns]
        answers.append([column.tolist() for column in columns])
    assert answers[0] == answers[1]


def test_an_edge_past_many_steps_is_not_looked_at_in_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work that begins 50 steps after its launch, on threads that do nothing for as many."""
    steps, lag = 200, 50
    events: list[Event] = []
    for i in range(steps):
        ts, thread = 100 * i, 2 + i % lag
        events += [
            annotation(f"ProfilerStep#{i}", ts, ts + 99),
            op("aten::mm", ts + 1, ts + 50, thread=thread),
            call("cudaLaunchKernel", ts + 10, ts + 20, thread=thread, correlation=i + 1),
            kernel("gemm", ts + 100 * lag, ts + 100 * lag + 90, correlation=i + 1),
        ]
    asked: list[int] = []

    def saved(*columns: Any) -> Any:
        asked.append(len(columns[7]))
        return saved_by_graph(*columns)

    monkeypatch.setattr(what_if, "saved", saved)
    trace = trace_of(*events)
    assert len(longest_names(trace, 3).name)
    (leaving,) = asked
    assert leaving < 2 * len(critical_graph(trace).kind)  # of launches alone it were steps * lag
    assert 2 * len(critical_graph(trace).kind) < steps * lag


def moments(trace: Trace) -> list[tuple[int, int, int, int]]:
    """Window, kind, slice and outermost operator of each nanosecond of the path, by definition; -1 is none."""
    graph, path, work, events = critical_graph(trace), longest_path.critical_path(trace), gpu_work(trace), trace.events
    order = call_stacks(trace).row.tolist()
    end = events.ts + events.dur
    start, stop = longest_path.windows(trace)
    known = []
    for edge in path.edges.tolist():
        source, kind = int(graph.source[edge]), int(graph.kind[edge])
        begun, until = int(graph.ts[source]), int(graph.ts[graph.target[edge]])
        for at in range(begun, until):
            row, outer = -1, -1
            if kind == DependencyKind.THREAD:
                on = [
                    row for row in order if events.track[row] == graph.lane[source] and events.ts[row] <= at < end[row]
                ]
                row = on[-1] if on else -1
                bound_by = int(longest_path.host_kinds(trace, np.array([row]))[0])
                around = [each for each in order if row >= 0 and events.track[each] == events.track[row]
                          and events.category[each] == Category.CPU_OP
                          and order.index(each) <= order.index(row) and end[each] >= end[row]]  # fmt: skip
                outer = around[0] if around else row
            elif at < begun + graph.self_ns[edge]:
                place = source - graph.first_work
                row, bound_by = int(work.row[place]), longest_path.BoundBy.KERNEL_COMPUTATION + int(work.type[place])
            else:
                rest = np.array([until - begun - graph.self_ns[edge]])
                row, bound_by = int(graph.to_row[edge]), int(longest_path.delay_kinds(graph.kind[[edge]], rest)[0])
            window = next((i for i in range(len(start)) if start[i] <= at < stop[i]), -1)
            by_call = bound_by in (longest_path.BoundBy.CPU_OPERATOR, longest_path.BoundBy.DATA_LOADING)
            known.append((window, bound_by, row, outer if by_call else row))
    return known


@given(recordings())
@settings(max_examples=50)
def test_slices_and_sums_are_those_of_each_nanosecond(trace: Trace) -> None:
    path, known = longest_path.critical_path(trace), moments(trace)
    time = np.zeros((len(longest_path.windows(trace)[0]), len(longest_path.BoundBy)), np.int64)
    names: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    slices: list[list[tuple[int, int, int, int]]] = []
    for moment in known:
        window, kind, row, source = moment
        if window >= 0:
            time[window, kind] += 1
            if row >= 0 and kind in longest_path.NAMED:
                names[window, int(trace.events.name[row]), kind].append(row)
        previous = slices[-1][-1] if slices else None
        outside = kind == longest_path.BoundBy.OUTSIDE_OPERATORS
        if previous and previous[:2] == (window, kind) and (outside or previous[3] == source):
            slices[-1].append(moment)
        else:
            slices.append([moment])
    assert path.time.tolist() == time.tolist()
    assert path.dur.tolist() == [len(slice_) for slice_ in slices]
    assert path.bound_by.tolist() == [slice_[0][1] for slice_ in slices]
    for row, each in zip(path.row.tolist(), slices, strict=True):
        if each[0][1] == longest_path.BoundBy.OUTSIDE_OPERATORS:
            ns = Counter(moment[2] for moment in each)
            assert row == min(ns, key=lambda row: (-ns[row], row))
        else:
            assert row == each[0][3]
    result = path.names
    assert {(window, name, kind): ns for window, name, kind, ns, _ in zip(*map(np.ndarray.tolist, (
        result.window, result.name, result.bound_by, result.ns, result.count)), strict=True)
    } == {key: len(rows) for key, rows in names.items()}  # fmt: skip
    assert result.count.tolist() == [
        len(set(names[key]))
        for key in zip(result.window.tolist(), result.name.tolist(), result.bound_by.tolist(), strict=True)
    ]


def test_slices_of_many_threads_are_cut_by_many_steps() -> None:
    """There are more pieces than segments, nodes and ends of steps together."""
    steps, threads = 50, 30
    events: list[Event] = []
    for i in range(steps):
        events.append(annotation(f"ProfilerStep#{i}", 100 * i, 100 * i + 100))
        events.append(op("aten::mm", 100 * i + 1, 100 * i + 99))
    for thread in range(2, 2 + threads):
        events.append(op("aten::mm", 1, 100 * steps - 1, thread=thread))
        events.append(call("cudaLaunchKernel", 10, 20, thread=thread, correlation=thread))
        events.append(kernel("gemm", 20 + 2 * thread, 21 + 2 * thread, correlation=thread))
    trace = trace_of(*events)
    result = longest_names(trace, 3)
    totals = {(window, trace.strings[name]): ns for window, name, ns in zip(
        result.window.tolist(), result.name.tolist(), result.total_ns.tolist(), strict=True)}  # fmt: skip
    asked = [window for window, name in totals if name == "aten::mm"]
    assert asked == list(range(steps))
    for window in asked:
        length = 100 - (window == 0) - (window == steps - 1) - 10 * (window == 0)
        assert totals[window, "aten::mm"] == threads * length + 98


def test_work_behind_the_end_of_its_step_on_the_host_saves_time() -> None:
    """A step lasts until its work is done, also for what would be saved."""
    step = [annotation("ProfilerStep#1", 0, 30), annotation("ProfilerStep#2", 30, 47)]
    launch, beside = call("cudaLaunchKernel", 31, 37, correlation=1), call("cudaMalloc", 61, 62)
    trace = trace_of(*step, launch, kernel("gemm", 54, 163, correlation=1), beside)
    names = longest_names(trace, 9)
    (gemm,) = np.flatnonzero([trace.strings[code] == "gemm" for code in names.name.tolist()]).tolist()
    assert (names.window[gemm], names.ns[gemm], names.total_ns[gemm], names.saved_ns[gemm]) == (1, 109, 109, 101)
