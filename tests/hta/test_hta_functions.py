"""HTA's functions beside its classes: execution traces, filters, names, raw events."""

from __future__ import annotations

import inspect
import math
import random
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from augment import InputError, UsageError, hta, read
from augment.facts.gpu.hardware_samples import counter_ranges
from execution_traces import execution_trace_of, write_execution_trace
from simulator import JobOptions, simulate
from traces import HOST, THREAD, copy, event, kernel, launch, op, step, write_trace

NCCL = {
    "Collective name": "allreduce", "dtype": "Float", "In msg nelems": 64, "Out msg nelems": 64, "Group size": 4,
    "Rank": 3, "In split size": [32, 32], "Out split size": "[]",
}  # fmt: skip
EVENTS = [
    step(1, 0, 100),
    step(2, 100, 100),
    op("aten::mm", 2, 20, **{"External id": 1}),
    op("aten::add", 5, 3, **{"External id": 2}),
    launch("cudaLaunchKernel", 10, 2, correlation=1),
    kernel("gemm", 20, 30, correlation=1),
    op("record_param_comms", 105, 5, **{"External id": 3}, **NCCL),
    launch("cudaLaunchKernel", 106, 2, correlation=2),
    event("kernel", "ncclDevKernel_AllReduce", 120, 30, 0, 8, device=0, stream=8, correlation=2, **NCCL),
    launch("cudaMemcpyAsync", 112, 2, correlation=3),
    copy("Memcpy HtoD (Pinned -> Device)", 160, 10, correlation=3),
    event("cuda_sync", "Context Sync", 170, 20, 0, -1, device=0, stream=-1, correlation=9),
    event("gpu_user_annotation", "forward", 20, 30, 0, 7, device=0, stream=7),
    event("python_function", "model.py(3): forward", 1, 60, HOST, THREAD, **{"Python id": 8, "Python parent id": 5}),
]


@pytest.fixture
def analyzer(tmp_path: Path) -> hta.TraceAnalysis:
    return hta.TraceAnalysis({0: str(write_trace(tmp_path / "rank0.json", *EVENTS))}, include_last_profiler_step=True)


def names(frame: pd.DataFrame) -> list[str]:
    return frame["name"].tolist()


@pytest.mark.parametrize("seed", range(4))
def test_execution_traces(tmp_path: Path, seed: int) -> None:
    ((path, _),) = simulate(JobOptions(ranks=1, steps=3, layers=2), tmp_path)
    document = execution_trace_of(path)
    dice = random.Random(seed)
    document["nodes"] = [node for node in document["nodes"] if dice.random() < 0.7]
    et = hta.load_execution_trace(str(write_execution_trace(tmp_path / "et" / "et.json.gz", document)))
    assert set(et.nodes) == {node["id"] for node in document["nodes"]}
    t = hta.TraceAnalysis({0: str(path)}).t
    hta.correlate_execution_trace(t, 0, et)
    frame = t.get_trace(0)
    by_id = {node["rf_id"]: node for node in document["nodes"] if node["rf_id"]}
    wanted = {
        row: by_id[external]["id"]
        for row, category, external in frame[["cat", "external_id"]].itertuples()
        if category == "cpu_op" and external in by_id
    }
    assert wanted == frame["et_node"].dropna().to_dict()
    assert 0 < len(wanted) < len(frame)
    copied = frame.copy()
    for column in ("op_schema", "input_shapes", "input_types", "output_shapes", "output_types", "et_node_name"):
        hta.add_et_column(copied, et, column)
        member = "name" if column == "et_node_name" else column
        node_of = {node["id"]: node for node in document["nodes"]}
        linked = copied.dropna(subset=["et_node"])
        assert linked[column].tolist() == [node_of[each][member] for each in linked["et_node"]]
        assert copied[copied["et_node"].isna()][column].isna().all()
    assert "op_schema" not in frame


def test_the_window_does_not_hide_a_link(tmp_path: Path) -> None:
    """The last step is no part of the frame; the names that it has in common with the nodes count all the same."""
    events = [step(1, 0, 100), step(2, 100, 100)]
    events += [op(f"op {k % 3}", 10 * k, 5, **{"External id": k + 1}) for k in range(20)]
    path = write_trace(tmp_path / "rank0.json", *events)
    et = write_execution_trace(tmp_path / "et.json.gz", execution_trace_of(path))
    t = hta.TraceAnalysis({0: str(path)}).t
    hta.correlate_execution_trace(t, 0, hta.load_execution_trace(et))
    operators = t.get_trace(0).query("cat == 'cpu_op'")
    assert len(operators) == 10
    assert operators["et_node"].tolist() == list(range(100, 110))


def test_execution_traces_that_do_not_fit(analyzer: hta.TraceAnalysis, tmp_path: Path) -> None:
    frame = analyzer.t.get_trace(0)
    other = write_execution_trace(tmp_path / "et.json.gz", {"nodes": [{"id": 4, "name": "other", "rf_id": 77}, "odd"]})
    et = hta.load_execution_trace(other)
    assert (et.nodes[4].rf_id, et.nodes[4].op_schema) == (77, None)
    with pytest.warns(UserWarning, match="run correlate_execution_trace"):
        hta.add_et_column(frame, et, "op_schema")
    with pytest.warns(UserWarning, match="rank 0: no et_node: no execution trace node"):
        hta.correlate_execution_trace(analyzer.t, 0, et)
    assert "et_node" not in frame
    frame["et_node"] = math.nan
    with pytest.warns(UserWarning, match="unknown column 'inputs'; known: op_schema"):
        hta.add_et_column(frame, et, "inputs")
    with pytest.raises(ValueError, match="no rank 5"):
        hta.correlate_execution_trace(analyzer.t, 5, et)
    with pytest.raises(InputError, match="not an execution trace"):
        hta.load_execution_trace(analyzer.t.trace_files[0])


def test_args_of_collectives_and_python(analyzer: hta.TraceAnalysis) -> None:
    frame = analyzer.t.get_trace(0).set_index("name")
    columns = ["collective_name", "in_msg_nelems", "out_msg_nelems", "msg_dtype", "group_size", "process_rank",
               "in_split_size", "out_split_size"]  # fmt: skip
    for name in ("record_param_comms", "ncclDevKernel_AllReduce"):
        assert frame.loc[name, columns].tolist() == ["allreduce", 64, 64, "Float", 4, 3, [32, 32], "[]"]
    assert frame.loc["gemm", columns].tolist() == ["", 0, 0, "", 0, -1, "[]", "[]"]
    assert frame.loc["model.py(3): forward", ["python_id", "python_parent_id"]].tolist() == [8, 5]
    assert frame.loc["gemm", ["python_id", "python_parent_id"]].tolist() == [-1, -1]


FILTERS: list[tuple[Any, list[str]]] = [
    (hta.IterationFilter(2), ["ProfilerStep#2", "record_param_comms", "cudaLaunchKernel", "cudaMemcpyAsync",
                              "ncclDevKernel_AllReduce", "Memcpy HtoD (Pinned -> Device)", "Context Sync"]),
    (hta.CompositeFilter([hta.IterationIndexFilter([1]), hta.GPUKernelFilter()]),
     ["ncclDevKernel_AllReduce", "Memcpy HtoD (Pinned -> Device)", "Context Sync"]),
    (hta.CompositeFilter([hta.FirstIterationFilter(), hta.GPUKernelFilter()]), ["gemm"]),
    (hta.CompositeFilter([hta.CPUOperatorFilter(), hta.IterationFilter([2])]),
     ["ProfilerStep#2", "record_param_comms", "cudaLaunchKernel", "cudaMemcpyAsync"]),
    (hta.TimeRangeFilter((5, 50)), ["aten::add", "cudaLaunchKernel", "gemm", "forward"]),
    (hta.NameFilter("aten::.*d"), ["aten::add"]),
    (hta.NameFilter("mm"), []),
    (hta.NameFilter("gpu_", name_column="cat"), ["forward", "Memcpy HtoD (Pinned -> Device)"]),
    (hta.MemCopyEventFilter("Memcpy HtoD (Pinned -> Device)"), ["Memcpy HtoD (Pinned -> Device)"]),
    (hta.MemCopyEventFilter("gemm"), []),
    (hta.CompositeFilter([hta.ZeroDurationFilter, hta.QueryFilter("dur > 60")]), ["ProfilerStep#1", "ProfilerStep#2"]),
]  # fmt: skip


@pytest.mark.parametrize(("chosen", "wanted"), FILTERS, ids=range(len(FILTERS)))
def test_filters(analyzer: hta.TraceAnalysis, chosen: Any, wanted: list[str]) -> None:
    frame = analyzer.t.get_trace(0)
    before = frame.copy()
    assert names(chosen(frame)) == names(chosen(frame, analyzer.t.symbol_table)) == wanted
    assert frame.equals(before)


def test_filters_of_frames_that_lack_something(analyzer: hta.TraceAnalysis) -> None:
    frame = analyzer.t.get_trace(0)
    with pytest.warns(UserWarning, match="not filtered: the frame has no column rank"):
        assert hta.RankFilter(0)(frame) is frame
    assert len(hta.RankFilter([1, 2])(frame.assign(rank=2))) == len(frame)
    with pytest.warns(UserWarning, match="no step \\[7\\]: the frame has 2"):
        assert hta.IterationIndexFilter(7)(frame).empty
    assert len(hta.FirstIterationFilter()(frame.assign(iteration=-1))) == len(frame)
    assert names(hta.NameFilter("g")(frame.rename(columns={"name": "s_name"}).assign(name=frame["name"]))) == ["gemm"]
    with pytest.warns(UserWarning, match="no column name"):
        assert hta.NameFilter("g")(frame[["ts"]]).equals(frame[["ts"]])
    with pytest.raises(UsageError, match="time_range: 5 is after 4"):
        hta.TimeRangeFilter((5, 4))

    class Long(hta.Filter):
        def chosen(self, df: pd.DataFrame) -> Any:
            return df["dur"] > 60

    assert names(Long()(frame)) == ["ProfilerStep#1", "ProfilerStep#2"]
    assert hta.trace_filter.NameIdColumnFilter is hta.NameFilter


def test_old_and_new_word(analyzer: hta.TraceAnalysis) -> None:
    frame = analyzer.t.get_trace(0)
    frame.loc[frame["name"] == "gemm", "name"] = "void gemm<float>(int)"
    frame.loc[frame["name"] == "void gemm<float>(int)", "s_name"] = hta.shorten_name("void gemm<float>(int)")

    def first(**how: bool) -> str:
        return str(analyzer.get_gpu_kernels_with_user_annotations(0, **how)["s_name"].iloc[0])

    assert first() == first(shorten_names=True) == first(shortern_names=True) == "gemm"
    assert first(shorten_names=False) == first(shortern_names=False) == "void gemm<float>(int)"


def test_symbols_of_a_column(analyzer: hta.TraceAnalysis) -> None:
    frame = analyzer.get_gpu_kernels_with_user_annotations(0)
    frame.loc[2, "user_annotation"] = -1  # of none
    for column in ("name", "cat", "user_annotation"):
        analyzer.t.symbol_table.add_symbols_to_trace_df(frame, column)
    assert frame[["name", "cat", "user_annotation"]].to_numpy().tolist() == [
        ["gemm", "kernel", "forward"],
        ["ncclDevKernel_AllReduce", "kernel", "ProfilerStep#2"],
        ["Memcpy HtoD (Pinned -> Device)", "gpu_memcpy", ""],
    ]


def test_names() -> None:
    assert hta.shorten_name("void at::native::add<float, (int)4>(float*, int)") == "at::native::add"
    assert hta.shorten_name("Memcpy HtoD (Pinned -> Device)") == "Memcpy HtoD (Pinned -> Device)"
    frame = pd.DataFrame([[1, 2, 3]], columns=pd.MultiIndex.from_tuples([("a", "b"), ("a", ""), (1, "c")]))
    hta.flatten_column_names(frame)
    assert list(frame.columns) == ["a_b", "a", "1_c"]
    hta.flatten_column_names(frame)
    assert list(frame.columns) == ["a_b", "a", "1_c"]


def test_flops_are_those_of_the_analysis(tmp_path: Path) -> None:
    weights = hta.CUDA_SASS_INSTRUCTION_COUNTER_FLOPS
    assert len(weights) == 9
    counts = {name: 10**place for place, name in enumerate(weights)}
    path = write_trace(
        tmp_path / "a.json",
        launch("cudaLaunchKernel", 5, 3, correlation=1),
        event("cuda_profiler_range", "gemm", 20, 10, 0, 0, **counts),
    )
    (frame,) = hta.TraceAnalysis({0: str(path)}).get_cupti_counter_data_with_operators()
    flop = sum(frame[name].iloc[0] * weight for name, weight in weights.items())
    assert flop == counter_ranges(read(str(path))).counters[0]["flop"]


def test_raw_events(analyzer: hta.TraceAnalysis, tmp_path: Path) -> None:
    path = write_trace(tmp_path / "based.json", *(event | {"ts": event["ts"] + 1000.125} for event in EVENTS),
                       baseTimeNanoseconds=1_700_000_000_000_000_000)  # fmt: skip
    t = hta.TraceAnalysis({0: str(path)}, include_last_profiler_step=True).t
    series = hta.TraceAnalysis({0: str(path)}).get_queue_length_time_series()[0]
    events = t.convert_time_series_to_events(series.assign(id=7), "Queue Length", "queue_length")
    assert events[0] == {"ph": "C", "name": "Queue Length", "pid": 0, "ts": 1010.125,
                         "args": {"Queue Length": 1}, "id": 7}  # fmt: skip
    assert len(events) == len(series)
    named = pd.DataFrame({"pid": [1], "ts": [0.875], "name": ["copies"], "value": [2]})
    (value,) = t.convert_time_series_to_events(named, "Memcpy BW", "value")
    assert (value["name"], value["ts"], value["args"]) == ("copies", 1001, {"Memcpy BW": 2})
    with pytest.warns(UserWarning, match="no counter x: the frame has no column ts, value"):
        assert t.convert_time_series_to_events(named[["pid"]], "x", "value") == []
    start = t.flow_event(1, 2, 3, 4, True, "a", "b")
    assert start == {"ph": "s", "id": 1, "pid": 2, "tid": 3, "ts": 4, "cat": "b", "name": "a"}
    end = hta.Trace.flow_event(1, 2, 3, 4, False, "a", "b", {"c": 5})
    assert end == {**start, "ph": "f", "args": {"c": 5}, "bp": "e"}


def test_errors_are_those_of_hta(analyzer: hta.TraceAnalysis, tmp_path: Path) -> None:
    t = analyzer.t
    for ask in (t.get_trace, t.get_raw_trace_for_one_rank, t.get_trace_start_unixtime_ns, t.get_trace_duration):
        with pytest.raises(ValueError, match="no rank 9"):
            ask(9)
    assert t.get_iterations(9) == []
    t.parse_single_rank(0)
    assert 0 in t.traces
    for trace_dir in (str(tmp_path / "nothing"), None):
        with pytest.raises(ValueError, match=r"no such folder|needs a Trace"):
            hta.LabeledTrace("a", trace_dir=trace_dir)


# The names, arguments, defaults and columns of HTA 0.5.0, listed: notebooks rely on them.
SIGNATURES = """
TraceAnalysis.__init__(trace_files=None, trace_dir='/tmp/trace', include_last_profiler_step=False)
TraceAnalysis.get_comm_comp_overlap(visualize=True)
TraceAnalysis.get_profiler_steps()
TraceAnalysis.get_potential_stragglers(profiler_steps=None, num_candidates=2, visualize=False,
    straggler_identification_impl=None)
TraceAnalysis.get_gpu_kernel_breakdown(visualize=True, duration_ratio=0.8, num_kernels=10,
    include_memory_kernels=True, image_renderer='')
TraceAnalysis.get_gpu_kernels_with_user_annotations(rank, expand_names=True, shorten_names=True)
TraceAnalysis.get_gpu_user_annotation_breakdown(use_gpu_annotation=True, visualize=True, duration_ratio=0.8,
    num_kernels=1000, allowlist_patterns=None, image_renderer=None)
TraceAnalysis.get_temporal_breakdown(visualize=True)
TraceAnalysis.get_frequent_cuda_kernel_sequences(operator_name, output_dir, min_pattern_len=3, rank=0, top_k=5,
    visualize=False, compress_other_kernels=True)
TraceAnalysis.get_aten_op_kernels_and_delay(ranks=None, sort_by=None)
TraceAnalysis.get_cuda_kernel_launch_stats(ranks=None, runtime_cutoff=50, launch_delay_cutoff=100,
    include_memory_events=True, visualize=True)
TraceAnalysis.generate_trace_with_counters(time_series=None, ranks=None, output_suffix='_with_counters')
TraceAnalysis.get_queue_length_summary(ranks=None)
TraceAnalysis.get_queue_length_summary_from_time_series(queue_length_dict)
TraceAnalysis.get_queue_length_time_series(ranks=None)
TraceAnalysis.get_time_spent_blocked_on_full_queue(queue_length_dict, max_queue_length=1024)
TraceAnalysis.get_memory_bw_summary(ranks=None)
TraceAnalysis.get_memory_bw_time_series(ranks=None)
TraceAnalysis.get_idle_time_breakdown(ranks=None, streams=None, visualize=True, visualize_pctg=True,
    show_idle_interval_stats=False, consecutive_kernel_delay=30)
TraceAnalysis.get_cupti_counter_data_with_operators(ranks=None)
TraceAnalysis.critical_path_analysis(rank, annotation, instance_id)
TraceAnalysis.overlay_critical_path_analysis(rank, critical_path_graph, output_dir, only_show_critical_events=True,
    show_all_edges=False)
TraceDiff.compare_traces(control, test, control_rank=None, test_rank=None, control_iteration=None,
    test_iteration=None, device_type=DeviceType.ALL, use_short_name=False)
TraceDiff.ops_diff(control, test, control_rank=None, test_rank=None, control_iteration=None, test_iteration=None,
    device_type=DeviceType.ALL)
TraceDiff.visualize_counts_diff(df, show_image=True, export_image_path=None)
TraceDiff.visualize_duration_diff(df, show_image=True, export_image_path=None)
LabeledTrace.__init__(label=None, t=None, trace_dir=None)
LabeledTrace.ranks()
LabeledTrace.iterations()
LabeledTrace.extract_ops(rank=None, iteration=None, device_type=DeviceType.ALL)
LabeledTrace.get_ops_summary(ops)
MemoryAnalysis.__init__(path)
MemoryAnalysis.plot_memory_timeline(save_graph=False)
Trace.load_traces(include_last_profiler_step=False, use_multiprocessing=True, use_memory_profiling=True)
Trace.parse_traces(max_ranks=-1, use_multiprocessing=True, use_memory_profiling=True)
Trace.align_and_filter_trace(include_last_profiler_step=False)
Trace.get_ranks()
Trace.get_iterations(rank=None)
Trace.get_trace_duration(rank=None)
Trace.get_trace(rank)
Trace.get_all_traces()
Trace.get_raw_trace_for_one_rank(rank=0)
Trace.write_raw_trace(output_file, trace_contents)
Trace.decode_symbol_ids(use_shorten_name=True)
Trace.get_trace_start_unixtime_ns(rank)
Trace.parse_single_rank(rank)
Trace.convert_time_series_to_events(series, counter_name, counter_col)
Trace.flow_event(id, pid, tid, ts, is_start, name, cat, args=None)
CPGraph.get_nodes_for_event(ev_id)
CPGraph.get_events_for_edge(edge)
CPGraph.get_event_attribution_for_edge(edge)
CPGraph.get_edges_attributed_to_event(ev_idx)
CPGraph.critical_path()
CPGraph.get_critical_path_breakdown()
CPGraph.summary()
CPGraph.show_critical_path()
CPGraph.save(out_dir)
"""
CALLS = [" ".join(signature.split()) for signature in re.split(r"\n(?=\S)", SIGNATURES.strip())]


def arguments(call: str) -> list[tuple[str, Any]]:
    """Each argument of ``call`` and its default, if it has one."""
    texts = re.findall(r"(\w+)(?:=([^,]+))?(?:, |$)", call.partition("(")[2].removesuffix(")"))
    return [(name, eval(default, vars(hta)) if default else inspect.Parameter.empty) for name, default in texts]


@pytest.mark.parametrize("call", CALLS, ids=lambda item: item.partition("(")[0])
def test_signature(call: str) -> None:
    owner, _, name = call.partition("(")[0].partition(".")
    method = getattr(getattr(hta, owner), name)
    ours = [parameter for parameter in inspect.signature(method).parameters.values() if parameter.name != "self"]
    theirs = arguments(call)
    assert [(their.name, their.default) for their in ours[: len(theirs)]] == theirs
    assert all(their.default is not inspect.Parameter.empty for their in ours[len(theirs) :]), "more is never asked for"
    assert all(our.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for our in ours)


def test_members() -> None:
    assert {each.name: each.value for each in hta.DeviceType} == {"CPU": 1, "GPU": 2, "ALL": 3}
    assert {each.name: each.value for each in hta.TimeSeriesTypes} == {"QUEUE_LENGTH": 1, "MEMCPY_BANDWIDTH": 2}
    assert {each.name for each in hta.CPEdgeType} == {
        "OPERATOR_KERNEL", "DEPENDENCY", "KERNEL_LAUNCH_DELAY", "KERNEL_KERNEL_DELAY", "SYNC_DEPENDENCY"
    }  # fmt: skip
    assert hta.CPNode() == hta.CPNode(-1, -1, 0, False, False)
    edge = hta.CPEdge(1, 2, hta.CPEdgeType.SYNC_DEPENDENCY)
    assert (edge.begin, edge.end, edge.type, edge.weight) == (1, 2, hta.CPEdgeType.SYNC_DEPENDENCY, 0)
    assert hta.CPEdge(1, 2, hta.CPEdgeType.DEPENDENCY, 7).weight == 7
    assert hta.TraceAnalysis.get_queue_length_series is hta.TraceAnalysis.get_queue_length_time_series
    assert hta.TraceAnalysis.get_frequent_cuda_kernel_patterns is hta.TraceAnalysis.get_frequent_cuda_kernel_sequences


STATISTICS = ["count", "mean", "std", "min", "25%", "50%", "75%", "max"]
NAMED = ["name", "sum (us)", "max (us)", "min (us)", "stddev", "mean (us)"]
EVENT_COLUMNS = ["index", "cat", "name", "pid", "tid", "ts", "dur", "stream", "correlation", "bytes", "memory_bw_gbps",
          "wait_on_stream", "wait_on_cuda_event_record_corr_id", "input_dims", "input_type", "input_strides",
          "external_id", "python_id", "python_parent_id", "collective_name", "in_msg_nelems", "out_msg_nelems",
          "msg_dtype", "group_size", "process_rank", "in_split_size", "out_split_size",
          "index_correlation", "iteration", "end"]  # fmt: skip
FRAMES: dict[str, tuple[Any, list[str]]] = {
    "temporal": (lambda t: t.get_temporal_breakdown(False), [
        "rank", "idle_time(us)", "compute_time(us)", "non_compute_time(us)", "kernel_time(us)", "idle_time_pctg",
        "compute_time_pctg", "non_compute_time_pctg"]),
    "overlap": (lambda t: t.get_comm_comp_overlap(False), ["rank", "comp_comm_overlap_pctg"]),
    "idle": (lambda t: t.get_idle_time_breakdown([0], None, False)[0],
             ["rank", "stream", "idle_category", "idle_time", "idle_time_ratio"]),
    "gaps": (lambda t: t.get_idle_time_breakdown([0], None, False, False, True)[1], ["rank", "stream", *STATISTICS]),
    "types": (lambda t: t.get_gpu_kernel_breakdown(False)[0], ["kernel_type", "sum", "percentage"]),
    "kernels": (lambda t: t.get_gpu_kernel_breakdown(False)[1], [*NAMED, "kernel_type", "rank"]),
    "annotations": (lambda t: t.get_gpu_user_annotation_breakdown(False, False), [*NAMED, "rank"]),
    "annotated": (lambda t: t.get_gpu_kernels_with_user_annotations(0),
                  [*EVENT_COLUMNS, "user_annotation", "s_name", "s_cat", "s_user_annotation"]),
    "annotated_short": (lambda t: t.get_gpu_kernels_with_user_annotations(0, False),
                        [*EVENT_COLUMNS, "user_annotation"]),
    "launches": (lambda t: t.get_cuda_kernel_launch_stats(visualize=False)[0],
                 ["correlation", "cpu_duration", "gpu_duration", "launch_delay"]),
    "operators": (lambda t: t.get_aten_op_kernels_and_delay()[0],
                  ["aten_op_name", "kernel_sequence", "occurrence_count", "avg_aten_op_launch_delay",
                   "avg_runtime_delay"]),
    "queue": (lambda t: t.get_queue_length_series()[0], ["ts", "pid", "tid", "stream", "queue_length"]),
    "queue_summary": (lambda t: t.get_queue_length_summary()["queue_length"], STATISTICS),
    "full": (lambda t: t.get_time_spent_blocked_on_full_queue(t.get_queue_length_series(), 1),
             ["rank", "stream", "duration_at_max_queue_length", "relative_duration_at_max_queue_length"]),
    "copies": (lambda t: t.get_memory_bw_time_series()[0], ["ts", "pid", "name", "memory_bw_gbps"]),
    "copies_summary": (lambda t: t.get_memory_bw_summary()["memory_bw_gbps"], STATISTICS),
    "path": (lambda t: t.critical_path_analysis(0, "ProfilerStep", 0)[0].get_critical_path_breakdown(),
             ["event_idx", "duration", "type", "s_name", "cat", "pid", "tid", "stream", "index", "bound_by"]),
    "compared": (lambda t: hta.TraceDiff.compare_traces(t.t, t.t), [
        "Control_counts", "Control_total_duration", "Test_counts", "Test_total_duration", "diff_counts",
        "diff_duration", "counts_change_categories"]),
    "frame": (lambda t: t.t.get_trace(0), [*EVENT_COLUMNS, "s_name", "s_cat"]),
    "operations": (lambda t: hta.LabeledTrace(t=t.t).extract_ops(0), [*EVENT_COLUMNS, "s_name", "s_cat"]),
}  # fmt: skip
TEXTS = {
    "idle_category", "kernel_type", "name", "cat", "s_name", "s_cat", "s_user_annotation", "user_annotation",
    "aten_op_name", "kernel_sequence", "type", "bound_by", "counts_change_categories", "input_dims", "input_type",
    "input_strides", "collective_name", "msg_dtype", "in_split_size", "out_split_size",
}  # fmt: skip


def numbers_of(frame: Any) -> set[str]:
    return {str(column) for column in frame.columns if frame[column].dtype.kind in "if"} - {"pid", "tid"}


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> hta.TraceAnalysis:
    ((path, _),) = simulate(JobOptions(ranks=1, steps=3, layers=2), tmp_path_factory.mktemp("job"))
    return hta.TraceAnalysis({0: str(path)})


@pytest.mark.parametrize("name", FRAMES)
def test_columns(job: hta.TraceAnalysis, name: str) -> None:
    ask, columns = FRAMES[name]
    frame = ask(job)
    assert len(frame)
    assert list(frame.columns) == columns
    assert numbers_of(frame) == set(columns) - TEXTS - {"pid", "tid"}, "of a trace, these may be text"


@pytest.mark.parametrize("name", ["temporal", "overlap", "idle", "types", "kernels", "operators", "full"])
def test_a_frame_without_rows_has_the_same_columns(tmp_path: Path, name: str) -> None:
    path = tmp_path / "host.json"
    path.write_text(
        '{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a", "ts": 1, "dur": 2, "pid": 1, "tid": 1}]}'
    )
    ask, columns = FRAMES[name]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        frame = ask(hta.TraceAnalysis({0: str(path)}))
    assert any("rank 0: no" in str(each.message) for each in said) or name == "full"
    assert (len(frame), list(frame.columns)) == (0, columns)
    assert numbers_of(frame) == set(columns) - TEXTS


def test_args_of_the_frame(job: hta.TraceAnalysis) -> None:
    frame = job.t.get_trace(0)
    copies = frame[frame["bytes"] >= 0]
    assert set(copies["cat"]) <= {"gpu_memcpy", "gpu_memset"}
    assert len(copies)
    rates = copies["bytes"] / (copies["dur"] * 1000)
    assert (rates - copies["memory_bw_gbps"]).abs().max() < 1e-9
    linear = frame[frame["name"] == "aten::linear"].iloc[0]
    args = job.t.of_rank(0).args_of(np.array([linear["index"]]))[0]
    assert (linear["input_dims"], linear["external_id"]) == (args["Input Dims"], args["External id"])
    assert set(frame[frame["cat"] == "cuda_runtime"]["input_dims"]) == {"-1"}


def test_frames_are_changed_in_place_as_in_hta(job: hta.TraceAnalysis) -> None:
    job.t.decode_symbol_ids(use_shorten_name=False)
    frame = job.t.get_trace(0)
    assert frame["s_name"].tolist() == frame["name"].tolist()
    job.t.decode_symbol_ids()
    assert frame["s_name"].tolist() != frame["name"].tolist()


def test_the_raw_trace(job: hta.TraceAnalysis, tmp_path: Path) -> None:
    raw = job.t.get_raw_trace_for_one_rank(0)
    assert job.t.meta_data[0] == {name: value for name, value in raw.items() if name != "traceEvents"}
    assert list(job.t.meta_data) == job.t.get_ranks()
    assert {"traceEvents", "deviceProperties"} <= set(raw)
    job.t.write_raw_trace(str(tmp_path / "again.json.gz"), raw)
    again = hta.TraceAnalysis({0: str(tmp_path / "again.json.gz")})
    assert again.t.get_trace(0)["name"].tolist() == job.t.get_trace(0)["name"].tolist()
    row, ts = job.t.get_trace(0)[["index", "ts"]].iloc[-1]
    assert job.t.get_trace_start_unixtime_ns(0) == int(job.t.events[0].events.ts[int(row)]) - round(ts * 1000)


def test_symbols_stand_for_themselves(job: hta.TraceAnalysis) -> None:
    table, frame = job.t.symbol_table, job.t.get_trace(0)
    assert not table.is_empty()
    result = table.find_matches(["^aten::lin", "^aten::add$"])
    assert result == table.find_matched_symbols(["^aten::lin", "^aten::add$"])
    assert {"aten::linear", "aten::add"} <= set(result)
    assert set(frame[frame["name"].isin(result)]["name"]) <= set(result)
    assert table.get_sym_index()["aten::linear"] == table.sym_table["aten::linear"] == "aten::linear"
