"""HTA's critical path graph: what its users do with it, on our nodes and edges."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import networkx as nx
import pytest

from augment.errors import InputError
from augment.hta import CPEdge, CPEdgeType, CPGraph, CPNode, Trace, TraceAnalysis, restore_cpgraph
from augment.pipeline import augment
from simulator import JobOptions, simulate
from traces import Event, event, kernel, launch, op, step, write_trace

SYNC = CPEdgeType.SYNC_DEPENDENCY
EVENTS: list[Event] = [
    step(1, 0, 100),
    step(2, 100, 100),
    op("aten::linear", 2, 20),
    op("aten::mm", 4, 10),
    launch("cudaLaunchKernel", 5, 3, correlation=1),
    kernel("gemm", 10, 40, correlation=1),
    launch("cudaDeviceSynchronize", 30, 22, correlation=9),
    op("aten::mm", 110, 40),
    launch("cudaLaunchKernel", 115, 3, correlation=2),
    kernel("gemm", 130, 60, correlation=2),
    launch("cudaDeviceSynchronize", 160, 33, correlation=10),
]


@pytest.fixture
def analyzer(tmp_path: Path) -> TraceAnalysis:
    path = write_trace(tmp_path / "rank0.json", *EVENTS)
    return TraceAnalysis(trace_files={0: str(path)}, include_last_profiler_step=True)


def row_of(t: Trace, name: str, number: int = 0) -> int:
    frame = t.get_trace(0)
    return int(frame[frame["name"] == name]["index"].iloc[number])


def graph_of(analyzer: TraceAnalysis, *asked: Any) -> CPGraph:
    answer = analyzer.critical_path_analysis(0, *(asked or ("", None)))
    assert answer is not None
    graph, result = answer
    assert result
    weights = {each["object"].weight for *_, each in graph.edges(data=True) if each["object"].type == SYNC}
    assert weights <= {0}, "a synchronisation takes no time; what follows it may"
    return graph


def test_it_is_a_graph_of_networkx(analyzer: TraceAnalysis) -> None:
    graph = graph_of(analyzer)
    assert isinstance(graph, nx.DiGraph)
    assert nx.is_directed_acyclic_graph(graph)
    assert list(graph.nodes) == list(range(len(graph.node_list)))
    for begin, end, data in graph.edges(data=True):
        edge = data["object"]
        assert (type(edge), edge.begin, edge.end, edge.weight) == (CPEdge, begin, end, data["weight"])
    assert round(nx.dag_longest_path_length(graph), 6) == 200
    assert {type(node) for node in graph.node_list} == {CPNode}
    assert graph.copy().number_of_edges() == graph.number_of_edges()
    assert graph.reverse().has_edge(*next(iter(graph.edges))[::-1])


def test_events_have_nodes_and_edges(analyzer: TraceAnalysis) -> None:
    graph, t = graph_of(analyzer), analyzer.t
    call, gemm, outer = row_of(t, "cudaLaunchKernel"), row_of(t, "gemm"), row_of(t, "aten::linear")
    (begun, ended), (start, end) = graph.get_nodes_for_event(call), graph.get_nodes_for_event(gemm)
    assert begun and ended and start and end  # noqa: PT018
    assert [(each.ts, each.ev_idx, each.is_start) for each in (begun, ended, start, end)] == [
        (5, call, True), (8, call, False), (10, gemm, True), (50, gemm, False)
    ]  # fmt: skip
    launched = graph.edges[begun.idx, start.idx]["object"]
    assert (launched.type, launched.weight) == (CPEdgeType.KERNEL_LAUNCH_DELAY, 5)
    assert graph.get_events_for_edge(launched) == (call, gemm)
    ran = graph.edges[start.idx, end.idx]["object"]
    assert (ran.type, ran.weight, graph.get_event_attribution_for_edge(ran)) == (CPEdgeType.OPERATOR_KERNEL, 40, gemm)
    assert set(graph.get_edges_attributed_to_event(gemm)) == {launched, ran}
    part = graph.get_edges_attributed_to_event(outer)
    assert sum(edge.weight for edge in part) == 10, "from its start to mm's, from mm's end to its own"
    waits = graph.get_nodes_for_event(row_of(t, "cudaDeviceSynchronize"))
    assert waits[0] and waits[1] and waits[0].is_blocking and not begun.is_blocking  # noqa: PT018
    synced = graph.edges[end.idx, waits[1].idx]["object"]
    assert (synced.type, synced.weight) == (SYNC, 0)
    returned = [edge for edge in graph.get_edges_attributed_to_event(waits[1].ev_idx) if edge.weight]
    assert [(edge.type, edge.end, edge.weight) for edge in returned] == [
        (CPEdgeType.OPERATOR_KERNEL, waits[1].idx, 2)
    ], "from the end of the kernel until the call returns"
    assert {each["object"].type for *_, each in graph.in_edges(returned[0].begin, data=True)} == {SYNC}
    assert graph.get_nodes_for_event(row_of(t, "ProfilerStep#1")) == (None, None)


def test_work_that_waits_for_another_stream(tmp_path: Path) -> None:
    wait = event("cuda_sync", "Stream Wait Event", 12, 1, 0, 8, correlation=3, device=0, stream=8,
                 wait_on_stream=7, wait_on_cuda_event_record_corr_id=2)  # fmt: skip
    events = [
        op("aten::mm", 0, 14),
        launch("cudaLaunchKernel", 1, 2, correlation=1),
        kernel("first", 5, 40, correlation=1),
        launch("cudaEventRecord", 4, 1, correlation=2),
        launch("cudaStreamWaitEvent", 6, 1, correlation=3),
        wait,
        launch("cudaLaunchKernel", 8, 2, correlation=4),
        event("kernel", "second", 49, 30, 0, 8, correlation=4, device=0, stream=8),
    ]
    path = write_trace(tmp_path / "rank0.json", *events)
    analyzer = TraceAnalysis({0: str(path)})
    graph = graph_of(analyzer)
    first, second = (graph.get_nodes_for_event(row_of(analyzer.t, name)) for name in ("first", "second"))
    assert first[1] and second[0]  # noqa: PT018
    edge = graph.edges[first[1].idx, second[0].idx]["object"]
    assert (edge.type, edge.weight) == (SYNC, 0)
    path_edges = [graph.edges[pair]["object"] for pair in pairwise(graph.critical_path_nodes)]
    late = [edge for edge in path_edges if edge.end == second[0].idx]
    assert [(each.type, each.weight) for each in late] == [(CPEdgeType.KERNEL_KERNEL_DELAY, 4)]
    assert SYNC in {edge.type for edge in path_edges}
    assert graph.summary().sum() == pytest.approx(100)


def test_the_path_and_its_breakdown(analyzer: TraceAnalysis) -> None:
    graph, t = graph_of(analyzer), analyzer.t
    names = set(t.get_trace(0).loc[sorted(graph.critical_path_events_set), "name"])
    assert names == {"aten::linear", "aten::mm", "cudaLaunchKernel", "gemm", "cudaDeviceSynchronize"}
    assert len(graph.critical_path_edges_set) == len(graph.critical_path_nodes) - 1
    breakdown = graph.get_critical_path_breakdown()
    assert len(breakdown) == len(graph.critical_path_edges_set)
    sums = breakdown[breakdown["duration"] > 0].groupby("bound_by")["duration"].sum().to_dict()
    assert sums == {
        "gpu_compute_bound": 100, "gpu_kernel_launch_overhead": 20, "sync": 5,
        "cpu_bound": 5 + 63 + 7,  # until the first launch, from sync to launch, after the last sync
    }  # fmt: skip
    assert graph.summary()["gpu_compute_bound"] == pytest.approx(50)
    gemms = breakdown[breakdown["s_name"] == "gemm"]
    assert set(gemms["event_idx"]) == {row_of(t, "gemm", 0), row_of(t, "gemm", 1)}


def test_what_would_be(analyzer: TraceAnalysis) -> None:
    graph = graph_of(analyzer)
    second = row_of(analyzer.t, "gemm", 1)
    for edge in graph.get_edges_attributed_to_event(second):
        if edge.type == CPEdgeType.OPERATOR_KERNEL:
            graph.edges[edge.begin, edge.end]["weight"] = 0
    assert graph.critical_path()
    breakdown = graph.get_critical_path_breakdown()
    assert breakdown["duration"].sum() == 167, "until the host waits, and from then on to the end of the step"
    before = nx.DiGraph()
    before.add_weighted_edges_from((u, v, data["weight"]) for u, v, data in graph.edges(data=True))
    assert breakdown["duration"].sum() == pytest.approx(nx.dag_longest_path_length(before))
    graph.add_edge(graph.critical_path_nodes[-1], 0, weight=0)
    assert not graph.critical_path(), "a circle has no longest path"


def test_an_instance_names_events_as_the_traces_frame(analyzer: TraceAnalysis) -> None:
    graph = graph_of(analyzer, "ProfilerStep", 1)
    assert row_of(analyzer.t, "gemm", 1) in graph.critical_path_events_set
    names = analyzer.t.get_trace(0).loc[graph.trace_df["index"], "name"]
    assert names.tolist() == graph.trace_df["name"].tolist()
    assert sorted(names) == ["ProfilerStep#2", "aten::mm", "cudaDeviceSynchronize", "cudaLaunchKernel", "gemm"]


def test_it_is_kept_and_restored(analyzer: TraceAnalysis, tmp_path: Path) -> None:
    graph = graph_of(analyzer, "ProfilerStep", 1)
    u, v = next(iter(graph.edges))
    graph.edges[u, v]["weight"] += 7
    path = graph.save(str(tmp_path / "kept"))
    assert path == str(tmp_path / "kept.zip")
    again = restore_cpgraph(path, analyzer.t, 0)
    assert again.node_list == graph.node_list
    assert dict(again.edges) == dict(graph.edges)
    assert again.critical_path_nodes == graph.critical_path_nodes
    assert again.critical_path_events_set == graph.critical_path_events_set
    assert again.critical_path_edges_set == graph.critical_path_edges_set
    assert again.trace_df.equals(graph.trace_df)
    assert again.critical_path()
    assert again.edge_to_event_map == graph.edge_to_event_map
    with pytest.raises(InputError, match="not a graph written by"):
        restore_cpgraph(str(tmp_path / "rank0.json"), analyzer.t, 0)
    for odd in ("[]", "{}", "1"):
        with ZipFile(tmp_path / "odd.zip", "w") as archive:
            archive.writestr("cp_graph.json", odd)
        with pytest.raises(InputError, match="not a graph written by"):
            restore_cpgraph(str(tmp_path / "odd.zip"), analyzer.t, 0)


def test_the_path_is_logged(analyzer: TraceAnalysis, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        graph_of(analyzer).show_critical_path()
    assert "ev_name = gemm" in caplog.text


def test_a_simulated_job_has_the_figures_of_the_analysis(tmp_path: Path) -> None:
    ((path, _),) = simulate(JobOptions(ranks=1, steps=3, layers=2, stacks=True, memory=True), tmp_path)
    graph = graph_of(TraceAnalysis({0: str(path)}, include_last_profiler_step=True), "ProfilerStep", (0, 2))
    breakdown = graph.get_critical_path_breakdown()
    rows = augment(graph.events, only=["critical_path"]).outcomes["critical_path"].rows  # type: ignore[union-attr]
    for bound_by, ours in (
        ("gpu_compute_bound", ("kernel_computation", "kernel_memory")),
        ("gpu_kernel_launch_overhead", ("launch_delay",)),
        ("gpu_kernel_kernel_overhead", ("kernel_gap",)),
        ("sync", ("sync",)),
    ):
        truth = sum(row.time_ns for row in rows if row.bound_by in ours) / 1000
        assert breakdown[breakdown["bound_by"] == bound_by]["duration"].sum() == pytest.approx(truth, abs=1e-6)
    assert len(graph.critical_path_events_set) > 100


def test_recorded_paths_are_as_long_as_the_recording(shared_traces: Path) -> None:
    for name in ("simple_add", "alexnet", "cuda_event_sync", "cuda_event_sync_multi_stream"):
        path = shared_traces / "hta_cuda_sync" / f"{name}.json.gz"
        graph = graph_of(TraceAnalysis({0: str(path)}, include_last_profiler_step=True))
        breakdown = graph.get_critical_path_breakdown()
        length = graph.node_list[-1].ts - graph.node_list[0].ts
        assert breakdown["duration"].sum() == pytest.approx(length, abs=1e-3)


def test_without_networkx_it_is_said(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "rank0.json", *EVENTS)
    code = (
        "import sys; sys.modules['networkx'] = None\n"
        "from augment.errors import UsageError\n"
        "from augment.hta import TraceAnalysis\n"
        f"analyzer = TraceAnalysis({{0: {str(path)!r}}})\n"
        "print(len(analyzer.get_temporal_breakdown(visualize=False)))\n"
        "try:\n    analyzer.critical_path_analysis(0, '', None)\n"
        "except UsageError as error:\n    print(error)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    missing = "augment.hta's critical path needs networkx: pip install 'kineto-augment[hta]'"
    assert ended.stdout.splitlines() == ["1", missing], ended.stderr
