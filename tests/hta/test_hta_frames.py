"""Shapes of HTA's API: windows, folders, devices, "others", weights, plots; on traces made by hand."""

from __future__ import annotations

import gzip
import json
import math
import statistics
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import networkx as nx
import numpy as np
import pytest

from augment import InputError, UsageError, augment, hta, read
from simulator import JobOptions, simulate
from traces import HOST, THREAD, Event, copy, event, kernel, launch, op, step, write_trace

TWO_STEPS = [
    step(1, 0, 100),
    step(2, 100, 100),
    op("aten::mm", 2, 20),
    launch("cudaLaunchKernel", 5, 2, correlation=1),
    kernel("gemm", 10, 30, correlation=1),
    launch("cudaLaunchKernel", 50, 2, correlation=2),
    kernel("gemm", 150, 10, correlation=2),  # launched in step 1, runs in step 2
    launch("cudaMemcpyAsync", 105, 2, correlation=3),
    copy("Memcpy HtoD (Pinned -> Device)", 170, 10, correlation=3),
    kernel("unknown", 60, 5, correlation=99),
]


def analysis(tmp_path: Path, *events: Any, **options: Any) -> hta.TraceAnalysis:
    return hta.TraceAnalysis(trace_files={0: str(write_trace(tmp_path / "rank0.json", *events))}, **options)


def test_the_last_step_is_left_out(tmp_path: Path) -> None:
    frame = analysis(tmp_path, *TWO_STEPS).get_temporal_breakdown(visualize=False)
    assert frame["kernel_time(us)"].tolist() == [150.0]  # from 10 to 160: what step 1 launched
    assert frame["compute_time(us)"].tolist() == [40.0]
    whole = analysis(tmp_path, *TWO_STEPS, include_last_profiler_step=True)
    assert whole.get_temporal_breakdown(visualize=False)["kernel_time(us)"].tolist() == [170.0]
    assert whole.get_profiler_steps() == [1, 2]
    one_step = analysis(tmp_path, *(two_step for two_step in TWO_STEPS if two_step["name"] != "ProfilerStep#2"))
    assert one_step.get_temporal_breakdown(visualize=False)["kernel_time(us)"].tolist() == [170.0]
    assert one_step.get_profiler_steps() == [1]


def test_frame_of_events(tmp_path: Path) -> None:
    frame = analysis(tmp_path, *TWO_STEPS, include_last_profiler_step=True).t.get_trace(0)
    late = frame[(frame["name"] == "gemm") & (frame["ts"] == 150)].iloc[0]
    assert (late["iteration"], late["dur"], late["end"], late["cat"]) == (1, 10, 160, "kernel")
    assert frame.loc[late["index_correlation"], "name"] == "cudaLaunchKernel"
    assert frame.loc[frame.loc[late["index_correlation"], "index_correlation"], "ts"] == 150
    host = frame[frame["name"] == "aten::mm"].iloc[0]
    assert (host["stream"], host["correlation"], host["index_correlation"]) == (-1, -1, -1)
    assert frame[frame["name"] == "gemm"]["stream"].ge(0).all()


def test_annotations_have_args_in_the_frame(tmp_path: Path) -> None:
    args = {"External id": 7, "Input Dims": [[8]], "Input type": ["Float"]}
    noted = event("user_annotation", "nccl:all_to_all", 20, 5, HOST, THREAD, **args)
    on_device = event("gpu_user_annotation", "nccl:all_to_all", 9, 31, 0, 7, **{"External id": 7})
    frame = analysis(tmp_path, *TWO_STEPS, noted, on_device, include_last_profiler_step=True).t.get_trace(0)
    result = frame[frame["name"] == "nccl:all_to_all"].set_index("cat")
    assert result["external_id"].to_dict() == {"user_annotation": 7, "gpu_user_annotation": 7}
    assert result["input_dims"].to_dict() == {"user_annotation": [[8]], "gpu_user_annotation": "-1"}


def test_times_count_from_the_first_slice_of_the_frames(tmp_path: Path) -> None:
    began = {"ph": "i", "name": "[memory]", "ts": 0, "pid": HOST, "tid": THREAD, "args": {}}
    profiler = event("Trace", "PyTorch Profiler (0)", 5, 90, HOST, THREAD)
    first = write_trace(tmp_path / "a.json", began, profiler, op("aten::mm", 30, 4), launch("cudaLaunchKernel", 31, 1),
                        kernel(ts=70, dur=8), profiler | {"ts": 95}, distributedInfo={"rank": 0})  # fmt: skip
    second = write_trace(tmp_path / "b.json", op("aten::mm", 20, 4), distributedInfo={"rank": 1})
    write_trace(tmp_path / "c.json", began, distributedInfo={"rank": 2})
    t = hta.TraceAnalysis(trace_dir=str(tmp_path)).t
    assert t.get_trace(0)["ts"].tolist() == [10, 11, 50]
    assert t.get_trace(1)["ts"].tolist() == [0]
    assert (t.get_trace_duration(), t.get_trace_duration(1), t.get_trace_duration(2)) == (40, 0, 0)
    assert t.get_trace_start_unixtime_ns(0) == read(second).events.ts[0] == read(first).events.ts[0] + 20_000
    assert t.is_parsed


@pytest.mark.parametrize("stream", [1 << 63, -(1 << 63) - 1, "high"])
def test_streams_that_are_no_int64(tmp_path: Path, stream: Any) -> None:
    frame = analysis(tmp_path, kernel(stream=stream), kernel(ts=20, stream=7)).t.get_trace(0)
    assert frame["stream"].tolist() == [stream, 7]


def test_comparisons_see_every_step(tmp_path: Path) -> None:
    analyzer = analysis(tmp_path, *TWO_STEPS)
    trace = hta.TraceDiff.compare_traces(
        analyzer.t, analyzer.t, control_iteration=1, test_iteration=2, device_type=hta.DeviceType.GPU
    )
    assert trace[["Control_counts", "Test_counts"]].to_numpy().tolist() == [[0, 1], [2, 0]]
    assert trace.index.tolist() == ["Memcpy HtoD (Pinned -> Device)", "gemm"]
    assert trace["diff_duration"].tolist() == [10, -40]
    assert analyzer.get_profiler_steps() == [1]  # whose own window stays


def test_idle_times_are_named_as_in_hta(tmp_path: Path) -> None:
    analyzer = analysis(
        tmp_path,
        launch(ts=0, dur=1, correlation=1),
        launch(ts=1, dur=1, correlation=2),
        launch(ts=2, dur=1, correlation=3),
        kernel("a", 10, 10, correlation=1),
        kernel("b", 49, 11, correlation=2),  # 29 us later: below 30
        kernel("c", 90, 10, correlation=3),  # 30 us later
    )
    frame, stats = analyzer.get_idle_time_breakdown(visualize=False, show_idle_interval_stats=True)
    assert frame[["idle_category", "idle_time"]].to_numpy().tolist() == [["kernel_wait", 29], ["other", 30]]
    assert stats.index.name == "idle_category"
    assert math.isnan(stats.loc["other", "std"])
    shorter, nothing = analyzer.get_idle_time_breakdown(visualize=False, consecutive_kernel_delay=31)
    assert nothing is None
    assert shorter[shorter["idle_category"] == "kernel_wait"]["idle_time"].tolist() == [59]


def test_others_have_statistics_of_their_own(tmp_path: Path) -> None:
    durations = {"a": [100, 100], "b": [30, 50], "c": [7], "d": [1, 2, 6]}
    at = iter(range(0, 10_000, 200))
    events = [kernel(name, next(at), dur) for name, several in durations.items() for dur in several]
    _, frame = analysis(tmp_path, *events).get_gpu_kernel_breakdown(visualize=False, num_kernels=2, duration_ratio=1)
    assert frame["name"].tolist() == ["a", "b", "others"]
    others = frame.iloc[2]
    rest = [7, 1, 2, 6]
    assert (others["sum (us)"], others["max (us)"], others["min (us)"]) == (16, 7, 1)
    assert others["mean (us)"] == 4
    assert math.isclose(others["stddev"], statistics.stdev(rest))
    assert math.isclose(frame.iloc[1]["stddev"], statistics.stdev([30, 50]))


def test_kernel_types_are_joined_as_in_hta(tmp_path: Path) -> None:
    analyzer = analysis(
        tmp_path,
        kernel("gemm", 0, 10),
        event("kernel", "ncclDevKernel_AllReduce", 5, 10, 0, 8, device=0, stream=8),
        event("gpu_memcpy", "Memcpy DtoD (Device -> Device)", 8, 10, 0, 9, device=0, stream=9),
    )
    by_type, _ = analyzer.get_gpu_kernel_breakdown(visualize=False)
    times = dict(zip(by_type["kernel_type"], by_type["sum"], strict=True))
    assert times == {
        "COMPUTATION": 5,
        "COMPUTATION overlapping COMMUNICATION": 3,
        "COMPUTATION overlapping COMMUNICATION overlapping MEMORY": 2,
        "COMMUNICATION overlapping MEMORY": 5,
        "MEMORY": 3,
    }
    assert math.isclose(by_type["percentage"].sum(), 100, abs_tol=0.3)
    by_type, kernels = analyzer.get_gpu_kernel_breakdown(visualize=False, include_memory_kernels=False)
    assert dict(zip(by_type["kernel_type"], by_type["sum"], strict=True)) == {
        "COMPUTATION": 5, "COMPUTATION overlapping COMMUNICATION": 5, "COMMUNICATION": 5,
    }  # fmt: skip
    assert set(kernels["kernel_type"]) == {"COMPUTATION", "COMMUNICATION"}


def test_summaries_are_weighted_by_time(tmp_path: Path) -> None:
    analyzer = analysis(
        tmp_path,
        launch(ts=0, dur=1, correlation=1),
        launch(ts=10, dur=1, correlation=2),
        kernel("a", 20, 10, correlation=1),
        kernel("b", 100, 10, correlation=2),
    )
    series = analyzer.get_queue_length_time_series()
    assert series[0][["ts", "queue_length"]].to_numpy().tolist() == [[0, 1], [10, 2], [20, 1], [100, 0]]
    assert series[0].index.name == "index"
    events = analyzer.t.get_trace(0).set_index("index")["name"]
    assert events[series[0].index].tolist() == ["cudaLaunchKernel", "cudaLaunchKernel", "a", "b"]
    summary = analyzer.get_queue_length_summary_from_time_series(series)
    assert summary.index.names == ["rank", "stream"]
    output = summary.loc[(0, 7), "queue_length"]
    assert output["mean"] == (10 + 20 + 80) / 100
    assert (output["count"], output["min"], output["50%"], output["max"]) == (4, 0, 1, 2)
    full = analyzer.get_time_spent_blocked_on_full_queue(series, max_queue_length=1)
    assert full.to_dict("records") == [
        {"rank": 0, "stream": 7, "duration_at_max_queue_length": 100.0, "relative_duration_at_max_queue_length": 1.0}
    ]
    with pytest.warns(UserWarning, match="rank 0: no memory_bandwidth: no copy and no memset"):
        assert analyzer.get_memory_bw_summary() is None


NOTHING = [
    (lambda t: t.get_queue_length_summary(), None, "rank 0: no queue_length: no event of category kernel"),
    (lambda t: t.get_memory_bw_summary(), None, "rank 0: no memory_bandwidth: no event of category kernel"),
    (lambda t: len(t.get_cuda_kernel_launch_stats()[0]), 0, "rank 0: no launch_statistics: no event of"),
    (lambda t: t.get_gpu_kernels_with_user_annotations(0), None, "rank 0: no gpu_time_by_annotation: no event of"),
    (lambda t: t.get_gpu_user_annotation_breakdown(), None, "rank 0: no user_annotation_breakdown: no event of"),
    (lambda t: t.get_cupti_counter_data_with_operators(), [], "rank 0: no cupti_counters: no event of category cuda_p"),
    (lambda t: t.get_potential_stragglers(), [], "no stragglers: no collective is shared by two ranks"),
]


@pytest.mark.filterwarnings("ignore:no annotation on the GPU")
@pytest.mark.parametrize(("asked", "answer", "reason"), NOTHING, ids=[reason for _, _, reason in NOTHING])
def test_why_there_is_nothing_is_said(tmp_path: Path, asked: Any, answer: Any, reason: str) -> None:
    analyzer = analysis(tmp_path, op("aten::mm", 0, 10))
    with pytest.warns(UserWarning, match=reason):
        assert asked(analyzer) == answer


def test_copies_without_bytes_have_no_bandwidth(tmp_path: Path) -> None:
    silent = copy("Memcpy HtoD", 170, 10, correlation=3)
    del silent["args"]["bytes"]
    with pytest.warns(UserWarning, match="rank 0: no memory_bandwidth: the copies have no bytes"):
        assert analysis(tmp_path, silent).get_memory_bw_summary() is None


def test_annotations_of_the_host_are_none_of_the_device(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="no annotation on the GPU in any trace"):
        assert analysis(tmp_path, *TWO_STEPS).get_gpu_user_annotation_breakdown() is None


def test_devices_have_a_column_where_a_rank_has_several(tmp_path: Path) -> None:
    events = [
        launch(ts=0, dur=1, correlation=1),
        launch(ts=2, dur=1, correlation=2),
        event("kernel", "a", 10, 10, 0, 7, correlation=1, device=0, stream=7),
        event("kernel", "b", 10, 30, 1, 7, correlation=2, device=1, stream=7),
    ]
    analyzer = analysis(tmp_path, *events)
    frame = analyzer.get_temporal_breakdown(visualize=False)
    assert frame[["rank", "device", "kernel_time(us)"]].to_numpy().tolist() == [[0, 0, 10], [0, 1, 30]]
    assert analyzer.get_queue_length_summary().index.to_list() == [(0, 0, 7), (0, 1, 7)]


def test_launches(tmp_path: Path) -> None:
    analyzer = analysis(tmp_path, *TWO_STEPS, include_last_profiler_step=True)
    frame = analyzer.get_cuda_kernel_launch_stats(visualize=False)[0]
    assert frame.to_numpy().tolist() == [[1, 2, 30, 3], [2, 2, 10, 98], [3, 2, 10, 63]]
    kernels = analyzer.get_cuda_kernel_launch_stats(visualize=False, include_memory_events=False)[0]
    assert kernels["correlation"].tolist() == [1, 2]


def test_traces_with_counters_and_overlays_are_no_inputs(tmp_path: Path) -> None:
    write_trace(tmp_path / "rank0.json", *TWO_STEPS)
    analyzer = hta.TraceAnalysis(trace_dir=str(tmp_path))
    written = analyzer.generate_trace_with_counters()
    assert written == {0: str(tmp_path / "rank0_with_counters.json.gz")}
    added = [
        each for each in json.loads(gzip.decompress(Path(written[0]).read_bytes()))["traceEvents"] if each["ph"] == "C"
    ]
    assert any("Queue" in each["name"] for each in added)
    assert max(each["ts"] for each in added) >= 150  # the last step has counters, too
    graph, result = analyzer.critical_path_analysis(0, "ProfilerStep", 0)
    assert result
    overlaid = Path(analyzer.overlay_critical_path_analysis(0, graph, str(tmp_path)))
    assert overlaid.name == "overlaid_critical_path_rank0.json.gz"
    events = json.loads(gzip.decompress(overlaid.read_bytes()))["traceEvents"]
    names = [event["name"] for event in events if event.get("cat") == "augment.critical_path" and event["ph"] == "X"]
    assert names
    analyzer.get_frequent_cuda_kernel_sequences("aten::mm", str(tmp_path), min_pattern_len=1)
    assert (tmp_path / "overlaid_rank0.json.gz").exists()
    assert hta.TraceAnalysis(trace_dir=str(tmp_path)).t.trace_files == {0: str(tmp_path / "rank0.json")}
    queues = hta.TraceAnalysis(trace_dir=str(tmp_path)).generate_trace_with_counters(
        hta.TimeSeriesTypes.QUEUE_LENGTH, [0], "_q"
    )
    events = json.loads(gzip.decompress(Path(queues[0]).read_bytes()))["traceEvents"]
    assert not any("Memcpy" in event["name"] for event in events if event["ph"] == "C")


def test_sequences(tmp_path: Path) -> None:
    analyzer = analysis(tmp_path, *TWO_STEPS)
    frame = analyzer.get_frequent_cuda_kernel_sequences("aten::mm", str(tmp_path), min_pattern_len=1)
    assert frame.to_dict("records") == [
        {"pattern": "aten::mm|gemm", "count": 1, "GPU kernel duration (us)": 30.0, "CPU op duration (us)": 20.0}
    ]
    alone = hta.TraceAnalysis(
        trace_files={3: analyzer.t.trace_files[0]}
    )  # there is no rank 0, which is asked by default
    assert alone.get_frequent_cuda_kernel_sequences("aten::mm", str(tmp_path), 1).equals(frame)
    with pytest.raises(UsageError, match="no rank 2; there are 3"):
        alone.get_frequent_cuda_kernel_sequences("aten::mm", str(tmp_path), 1, rank=2)
    with pytest.warns(UserWarning, match="launched 9 or more"):
        assert analyzer.get_frequent_cuda_kernel_sequences("aten::mm", str(tmp_path), min_pattern_len=9).empty
    with pytest.warns(UserWarning, match="operator_name is empty"):
        assert analyzer.get_frequent_cuda_kernel_sequences("", str(tmp_path)).empty


def test_critical_path_of_an_instance(tmp_path: Path) -> None:
    analyzer = analysis(tmp_path, *TWO_STEPS, include_last_profiler_step=True)
    graph, result = analyzer.critical_path_analysis(0, "ProfilerStep", (0, 1))
    assert result
    assert isinstance(graph, hta.CPGraph)
    assert math.isclose(graph.get_critical_path_breakdown()["duration"].sum(), 200)
    assert math.isclose(graph.summary().sum(), 100)
    assert set(graph.summary().index) >= {"cpu_bound"}
    last, _ = analyzer.critical_path_analysis(0, "ProfilerStep", (1, 9))
    assert math.isclose(last.get_critical_path_breakdown()["duration"].sum(), 100)  # of step 2, which is all there is
    with pytest.raises(UsageError, match="no instance 2 to 9"):
        analyzer.critical_path_analysis(0, "ProfilerStep", (2, 9))
    with pytest.raises(UsageError, match="no instance 2: 'ProfilerStep' occurs 2 times"):
        analyzer.critical_path_analysis(0, "ProfilerStep", 2)
    assert not [name for name in graph.summary().index if not name]
    with pytest.warns(UserWarning, match="no critical path: no name on the host contains 'nothing'"):
        assert analyzer.critical_path_analysis(0, "nothing", None) is None


def test_ranks_are_those_of_the_traces(tmp_path: Path) -> None:
    write_trace(tmp_path / "a.json", distributedInfo={"rank": 3})
    write_trace(tmp_path / "b.json.gz")
    write_trace(tmp_path / "c.json")
    (tmp_path / "notes.json").write_text('{"a": 1}')
    with pytest.warns(UserWarning, match="passed over: .*notes.json"):
        job = hta.Trace(trace_dir=str(tmp_path))
    names = {rank: Path(path).name for rank, path in job.trace_files.items()}
    assert names == {3: "a.json", 0: "b.json.gz", 1: "c.json"}
    assert job.get_ranks() == [0, 1, 3]
    write_trace(tmp_path / "d.json", distributedInfo={"rank": 3})
    with pytest.warns(UserWarning, match="rank 3 is in two files"):
        hta.Trace(["a.json", "d.json"], str(tmp_path))
    analyzer = hta.TraceAnalysis({3: "a.json"}, str(tmp_path))
    assert set(analyzer.get_cuda_kernel_launch_stats(visualize=False)) == {3}
    with pytest.raises(UsageError, match="no rank 0; there are 3"):
        analyzer.get_cuda_kernel_launch_stats([0])
    with pytest.raises(InputError, match="no such folder"):
        hta.TraceAnalysis(trace_dir=str(tmp_path / "nowhere"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no trace to analyse"):
        hta.TraceAnalysis(trace_dir=str(tmp_path / "empty"))


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The figures that are shown, in an environment that names a renderer."""
    base = pytest.importorskip("plotly.basedatatypes")
    figures: list[Any] = []
    monkeypatch.setattr(base.BaseFigure, "show", lambda figure, renderer=None: figures.append((figure, renderer)))
    monkeypatch.setenv("PLOTLY_RENDERER", "json")
    return figures


def test_plots(tmp_path: Path, shown: list[Any]) -> None:
    analyzer = analysis(tmp_path, *TWO_STEPS)
    analyzer.get_temporal_breakdown()
    (figure, renderer) = shown.pop()
    assert renderer == "json"
    assert {bar.name for bar in figure.data} == {"idle_time_pctg", "compute_time_pctg", "non_compute_time_pctg"}
    analyzer.get_gpu_kernel_breakdown(image_renderer="svg")
    assert [renderer for _, renderer in shown] == ["svg", "svg"]
    shown.clear()
    analyzer.get_idle_time_breakdown()
    analyzer.get_comm_comp_overlap()
    analyzer.get_cuda_kernel_launch_stats()
    analyzer.get_gpu_user_annotation_breakdown(use_gpu_annotation=False)
    analyzer.get_frequent_cuda_kernel_sequences("aten::mm", str(tmp_path), 1, visualize=True)
    with pytest.warns(UserWarning, match="no straggler"):
        analyzer.get_potential_stragglers(visualize=True)
    assert len(shown) == 1 + 1 + 3 + 1 + 1 + 1
    shown.clear()
    frame = hta.TraceDiff.compare_traces(analyzer.t, analyzer.t)
    hta.TraceDiff.visualize_counts_diff(frame)
    hta.TraceDiff.visualize_duration_diff(frame)
    counts, durations = (figure for figure, _ in shown)
    assert [bar.name for bar in counts.data] == ["Control_counts", "Test_counts", "diff_counts"]
    assert len(durations.data) == 3
    shown.clear()
    timeline = tmp_path / "memory.raw.json"
    timeline.write_text("[[-1, 0, 100, 0], [10, 1, 50, 4], [20, 3, -50, 4]]")
    hta.MemoryAnalysis(timeline).plot_memory_timeline()
    ((figure, _),) = shown
    assert np.allclose(figure.data[4].y, [50 / 1024**3, 0])


def test_no_browser_is_opened_unasked(tmp_path: Path, shown: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    import plotly.io

    monkeypatch.delenv("PLOTLY_RENDERER")
    monkeypatch.setattr(plotly.io.renderers, "default", "browser")
    analysis(tmp_path, *TWO_STEPS).get_temporal_breakdown()
    assert not shown
    monkeypatch.setattr(plotly.io.renderers, "default", "notebook")
    analysis(tmp_path, *TWO_STEPS).get_temporal_breakdown()
    assert len(shown) == 1


def test_a_renderer_that_cannot_draw_costs_no_figures(tmp_path: Path) -> None:
    analyzer = analysis(tmp_path, *TWO_STEPS)
    with pytest.warns(UserWarning, match="nothing is drawn: plotly's renderer such: .*such"):
        types, kernels = analyzer.get_gpu_kernel_breakdown(image_renderer="such")
    assert (len(types), len(kernels)) == (1, 1)


def test_without_plotly_it_is_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hta.frames.importlib.util, "find_spec", lambda _: None)
    monkeypatch.setattr(hta.frames, "_TOLD", set())
    analyzer = analysis(tmp_path, *TWO_STEPS)
    with pytest.warns(UserWarning, match="plotly is not installed") as output:
        assert [len(analyzer.get_temporal_breakdown()) for _ in range(2)] == [1, 1]
    assert len(output) == 1
    hta.TraceDiff.visualize_counts_diff(hta.TraceDiff.compare_traces(analyzer.t, analyzer.t))
    hta.MemoryAnalysis(tmp_path / "not there").plot_memory_timeline()


def test_without_pandas_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    analyzer = analysis(tmp_path, *TWO_STEPS)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UsageError, match=r"pip install 'kineto-augment\[hta\]'"):
        analyzer.get_temporal_breakdown(visualize=False)


def test_reading_again_gives_the_source(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "rank0.json", *TWO_STEPS)
    written = hta.TraceAnalysis({0: str(path)}).generate_trace_with_counters()
    assert gzip.decompress(Path(written[0]).read_bytes()).startswith(path.read_bytes().rstrip(b"\n]} \r"))
    assert len(read(written[0]).events) > len(read(str(path)).events)


def test_host_and_thread_are_those_of_the_frame(tmp_path: Path) -> None:
    frame = analysis(tmp_path, *TWO_STEPS).t.get_trace(0)
    assert set(zip(frame[frame["stream"] == -1]["pid"], frame[frame["stream"] == -1]["tid"], strict=True)) == {
        (HOST, THREAD)
    }


# HTA's critical path graph: what its users do with it, on our nodes and edges.
SYNC = hta.CPEdgeType.SYNC_DEPENDENCY
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
def analyzer(tmp_path: Path) -> hta.TraceAnalysis:
    path = write_trace(tmp_path / "rank0.json", *EVENTS)
    return hta.TraceAnalysis(trace_files={0: str(path)}, include_last_profiler_step=True)


def row_of(t: hta.Trace, name: str, number: int = 0) -> int:
    frame = t.get_trace(0)
    return int(frame[frame["name"] == name]["index"].iloc[number])


def graph_of(analyzer: hta.TraceAnalysis, *asked: Any) -> hta.CPGraph:
    answer = analyzer.critical_path_analysis(0, *(asked or ("", None)))
    graph, result = answer
    assert result
    weights = {each["object"].weight for *_, each in graph.edges(data=True) if each["object"].type == SYNC}
    assert weights <= {0}, "a synchronisation takes no time; what follows it may"
    return graph


def test_it_is_a_graph_of_networkx(analyzer: hta.TraceAnalysis) -> None:
    graph = graph_of(analyzer)
    assert isinstance(graph, nx.DiGraph)
    assert nx.is_directed_acyclic_graph(graph)
    assert list(graph.nodes) == list(range(len(graph.node_list)))
    for begin, end, data in graph.edges(data=True):
        edge = data["object"]
        assert (type(edge), edge.begin, edge.end, edge.weight) == (hta.CPEdge, begin, end, data["weight"])
    assert round(nx.dag_longest_path_length(graph), 6) == 200
    assert {type(node) for node in graph.node_list} == {hta.CPNode}
    assert graph.copy().number_of_edges() == graph.number_of_edges()
    assert graph.reverse().has_edge(*next(iter(graph.edges))[::-1])


def test_events_have_nodes_and_edges(analyzer: hta.TraceAnalysis) -> None:
    graph, t = graph_of(analyzer), analyzer.t
    call, gemm, outer = row_of(t, "cudaLaunchKernel"), row_of(t, "gemm"), row_of(t, "aten::linear")
    (begun, ended), (start, end) = graph.get_nodes_for_event(call), graph.get_nodes_for_event(gemm)
    assert begun and ended and start and end  # noqa: PT018
    assert [(each.ts, each.ev_idx, each.is_start) for each in (begun, ended, start, end)] == [
        (5, call, True), (8, call, False), (10, gemm, True), (50, gemm, False)
    ]  # fmt: skip
    launched = graph.edges[begun.idx, start.idx]["object"]
    assert (launched.type, launched.weight) == (hta.CPEdgeType.KERNEL_LAUNCH_DELAY, 5)
    assert graph.get_events_for_edge(launched) == (call, gemm)
    ran = graph.edges[start.idx, end.idx]["object"]
    assert (ran.type, ran.weight) == (hta.CPEdgeType.OPERATOR_KERNEL, 40)
    assert graph.get_event_attribution_for_edge(ran) == gemm
    assert set(graph.get_edges_attributed_to_event(gemm)) == {launched, ran}
    part = graph.get_edges_attributed_to_event(outer)
    assert sum(edge.weight for edge in part) == 10, "from its start to mm's, from mm's end to its own"
    waits = graph.get_nodes_for_event(row_of(t, "cudaDeviceSynchronize"))
    assert waits[0] and waits[1] and waits[0].is_blocking and not begun.is_blocking  # noqa: PT018
    synced = graph.edges[end.idx, waits[1].idx]["object"]
    assert (synced.type, synced.weight) == (SYNC, 0)
    returned = [edge for edge in graph.get_edges_attributed_to_event(waits[1].ev_idx) if edge.weight]
    assert [(edge.type, edge.end, edge.weight) for edge in returned] == [
        (hta.CPEdgeType.OPERATOR_KERNEL, waits[1].idx, 2)
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
    analyzer = hta.TraceAnalysis({0: str(write_trace(tmp_path / "rank0.json", *events))})
    graph = graph_of(analyzer)
    first, second = (graph.get_nodes_for_event(row_of(analyzer.t, name)) for name in ("first", "second"))
    assert first[1] and second[0]  # noqa: PT018
    edge = graph.edges[first[1].idx, second[0].idx]["object"]
    assert (edge.type, edge.weight) == (SYNC, 0)
    path_edges = [graph.edges[pair]["object"] for pair in pairwise(graph.critical_path_nodes)]
    late = [edge for edge in path_edges if edge.end == second[0].idx]
    assert [(each.type, each.weight) for each in late] == [(hta.CPEdgeType.KERNEL_KERNEL_DELAY, 4)]
    assert SYNC in {edge.type for edge in path_edges}
    assert graph.summary().sum() == pytest.approx(100)


def test_the_path_and_its_breakdown(analyzer: hta.TraceAnalysis) -> None:
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


def test_what_would_be(analyzer: hta.TraceAnalysis) -> None:
    graph = graph_of(analyzer)
    for edge in graph.get_edges_attributed_to_event(row_of(analyzer.t, "gemm", 1)):
        if edge.type == hta.CPEdgeType.OPERATOR_KERNEL:
            graph.edges[edge.begin, edge.end]["weight"] = 0
    assert graph.critical_path()
    breakdown = graph.get_critical_path_breakdown()
    assert breakdown["duration"].sum() == 167, "until the host waits, and from then on to the end of the step"
    before = nx.DiGraph()
    before.add_weighted_edges_from((u, v, data["weight"]) for u, v, data in graph.edges(data=True))
    assert breakdown["duration"].sum() == pytest.approx(nx.dag_longest_path_length(before))
    graph.add_edge(graph.critical_path_nodes[-1], 0, weight=0)
    assert not graph.critical_path(), "a circle has no longest path"


def test_an_instance_names_events_as_the_traces_frame(analyzer: hta.TraceAnalysis) -> None:
    graph = graph_of(analyzer, "ProfilerStep", 1)
    assert row_of(analyzer.t, "gemm", 1) in graph.critical_path_events_set
    names = analyzer.t.get_trace(0).loc[graph.trace_df["index"], "name"]
    assert names.tolist() == graph.trace_df["name"].tolist()
    assert sorted(names) == ["ProfilerStep#2", "aten::mm", "cudaDeviceSynchronize", "cudaLaunchKernel", "gemm"]


def test_it_is_kept_and_restored(analyzer: hta.TraceAnalysis, tmp_path: Path) -> None:
    graph = graph_of(analyzer, "ProfilerStep", 1)
    u, v = next(iter(graph.edges))
    graph.edges[u, v]["weight"] += 7
    path = graph.save(str(tmp_path / "kept"))
    assert path == str(tmp_path / "kept.zip")
    again = hta.restore_cpgraph(path, analyzer.t, 0)
    assert again.node_list == graph.node_list
    assert dict(again.edges) == dict(graph.edges)
    assert again.critical_path_nodes == graph.critical_path_nodes
    assert again.critical_path_events_set == graph.critical_path_events_set
    assert again.critical_path_edges_set == graph.critical_path_edges_set
    assert again.trace_df.equals(graph.trace_df)
    assert again.critical_path()
    assert again.edge_to_event_map == graph.edge_to_event_map
    with pytest.raises(InputError, match="not a graph written by"):
        hta.restore_cpgraph(str(tmp_path / "rank0.json"), analyzer.t, 0)
    for odd in ("[]", "{}", "1"):
        with ZipFile(tmp_path / "odd.zip", "w") as archive:
            archive.writestr("cp_graph.json", odd)
        with pytest.raises(InputError, match="not a graph written by"):
            hta.restore_cpgraph(str(tmp_path / "odd.zip"), analyzer.t, 0)


def test_the_path_is_logged(analyzer: hta.TraceAnalysis, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        graph_of(analyzer).show_critical_path()
    assert "ev_name = gemm" in caplog.text


def test_a_simulated_job_has_the_figures_of_the_analysis(tmp_path: Path) -> None:
    ((path, _),) = simulate(JobOptions(ranks=1, steps=3, layers=2, stacks=True, memory=True), tmp_path)
    graph = graph_of(hta.TraceAnalysis({0: str(path)}, include_last_profiler_step=True), "ProfilerStep", (0, 2))
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
        graph = graph_of(hta.TraceAnalysis({0: str(path)}, include_last_profiler_step=True))
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
