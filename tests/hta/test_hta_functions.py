"""HTA's functions beside its classes: execution traces, filters, names, raw events."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from augment import hta
from augment.errors import InputError, UsageError
from augment.facts.gpu.counter_ranges import counter_ranges
from augment.hta import TraceAnalysis, trace_filter
from augment.readers import read
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
def analyzer(tmp_path: Path) -> TraceAnalysis:
    path = write_trace(tmp_path / "rank0.json", *EVENTS)
    return TraceAnalysis({0: str(path)}, include_last_profiler_step=True)


def names(frame: pd.DataFrame) -> list[str]:
    return frame["name"].tolist()


@pytest.mark.parametrize("seed", range(4))
def test_execution_traces(tmp_path: Path, seed: int) -> None:
    ((path, _),) = simulate(JobOptions(ranks=1, steps=3, layers=2), tmp_path)
    document = execution_trace_of(path)
    dice = random.Random(seed)
    document["nodes"] = [node for node in document["nodes"] if dice.random() < 0.7]
    written = write_execution_trace(tmp_path / "et" / "et.json.gz", document)
    et = hta.load_execution_trace(str(written))
    assert set(et.nodes) == {node["id"] for node in document["nodes"]}
    t = TraceAnalysis({0: str(path)}).t
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
    t = TraceAnalysis({0: str(path)}).t
    hta.correlate_execution_trace(t, 0, hta.load_execution_trace(et))
    operators = t.get_trace(0).query("cat == 'cpu_op'")
    assert len(operators) == 10
    assert operators["et_node"].tolist() == list(range(100, 110))


def test_execution_traces_that_do_not_fit(analyzer: TraceAnalysis, tmp_path: Path) -> None:
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


def test_args_of_collectives_and_python(analyzer: TraceAnalysis) -> None:
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
def test_filters(analyzer: TraceAnalysis, chosen: Any, wanted: list[str]) -> None:
    frame = analyzer.t.get_trace(0)
    before = frame.copy()
    assert names(chosen(frame)) == names(chosen(frame, analyzer.t.symbol_table)) == wanted
    assert frame.equals(before)


def test_filters_of_frames_that_lack_something(analyzer: TraceAnalysis) -> None:
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
    assert trace_filter.NameIdColumnFilter is hta.NameFilter


def test_old_and_new_word(analyzer: TraceAnalysis) -> None:
    t = analyzer.t
    frame = t.get_trace(0)
    frame.loc[frame["name"] == "gemm", "name"] = "void gemm<float>(int)"
    frame.loc[frame["name"] == "void gemm<float>(int)", "s_name"] = hta.shorten_name("void gemm<float>(int)")

    def first(**how: bool) -> str:
        result = analyzer.get_gpu_kernels_with_user_annotations(0, **how)
        return str(result["s_name"].iloc[0])

    assert first() == first(shorten_names=True) == first(shortern_names=True) == "gemm"
    assert first(shorten_names=False) == first(shortern_names=False) == "void gemm<float>(int)"


def test_symbols_of_a_column(analyzer: TraceAnalysis) -> None:
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
    (frame,) = TraceAnalysis({0: str(path)}).get_cupti_counter_data_with_operators()
    flop = sum(frame[name].iloc[0] * weight for name, weight in weights.items())
    assert flop == counter_ranges(read(str(path))).counters[0]["flop"]


def test_raw_events(analyzer: TraceAnalysis, tmp_path: Path) -> None:
    path = write_trace(tmp_path / "based.json", *(event | {"ts": event["ts"] + 1000.125} for event in EVENTS),
                       baseTimeNanoseconds=1_700_000_000_000_000_000)  # fmt: skip
    t = TraceAnalysis({0: str(path)}, include_last_profiler_step=True).t
    series = TraceAnalysis({0: str(path)}).get_queue_length_time_series()[0]
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


def test_errors_are_those_of_hta(analyzer: TraceAnalysis, tmp_path: Path) -> None:
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
    with pytest.raises(ValueError, match="no step of"):
        analyzer.get_potential_stragglers([17])
