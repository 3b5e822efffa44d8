"""HTA's call graph, Gantt charts and parser configuration, as its notebooks use them."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import pytest

from augment import UsageError, hta
from simulator import JobOptions, simulate

pd = pytest.importorskip("pandas")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("traces")
    simulate(JobOptions(ranks=2, steps=3, layers=2), path)
    for truth in path.glob("*.truth.json"):
        truth.unlink()
    return str(path)


@pytest.fixture
def trace(folder: str) -> hta.Trace:
    trace = hta.Trace(trace_dir=folder)
    trace.parse_multiple_ranks([0, 1], use_multiprocessing=False)
    trace.decode_symbol_ids()
    return trace


def test_every_import_that_the_page_tells_works() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "hta.md").read_text()
    imports = re.findall(r"`(from augment\.hta(?:\.\w+)? import [\w, ]+)`", page)
    assert len(imports) > 10
    for each in imports:
        exec(each, {})


def test_the_call_graph_is_that_of_the_events(trace: hta.Trace) -> None:
    graph = hta.CallGraph(trace, ranks=[0])
    frame = trace.get_trace(0)
    assert set(graph.mapping["label"]) >= {"main"}
    by_index = frame.set_index("index")
    inside = frame[(frame["parent"] >= 0) & (frame["stream"] < 0)]
    around = by_index.loc[inside["parent"]]
    assert (around["ts"].to_numpy() <= inside["ts"].to_numpy()).all()
    assert (around["end"].to_numpy() >= inside["end"].to_numpy()).all()
    assert (around["depth"].to_numpy() + 1 == inside["depth"].to_numpy()).all()
    assert (around["height"].to_numpy() > inside["height"].to_numpy()).all()
    work = frame[(frame["stream"] >= 0) & (frame["parent"] >= 0)]
    assert len(work)
    assert (work["parent"] == work["index_correlation"]).all()
    assert (work["height"] == 0).all()
    step = frame[frame["name"] == "ProfilerStep#1"].iloc[0]
    launched = work[
        (work["parent"].map(by_index["ts"]) >= step["ts"]) & (work["parent"].map(by_index["ts"]) < step["end"])
    ]
    assert step["num_kernels"] == len(launched)
    assert step["kernel_dur_sum"] == pytest.approx(launched["dur"].sum())
    assert step["first_kernel_start"] == pytest.approx(launched["ts"].min())
    assert step["last_kernel_end"] == pytest.approx(launched["end"].max())
    assert step["kernel_span"] == pytest.approx(launched["end"].max() - launched["ts"].min())
    idle = frame[(frame["num_kernels"] == 0) & (frame["stream"] < 0)]
    assert set(idle["first_kernel_start"]) == {-1.0}
    with pytest.raises(UsageError, match="no rank 7"):
        hta.CallGraph(trace, ranks=[7])


def test_figures_agree_with_htas(shared_traces: Path) -> None:
    """Of these 74,936 events HTA 0.5.0 counts the same kernels below each."""
    trace = hta.Trace(trace_files=[str(shared_traces / "hta_trace_diff_pair" / "control.json.gz")])
    mapping = hta.CallGraph(trace).mapping
    assert mapping["label"].tolist()[:2] == ["main", "bwd"]
    frame = trace.get_trace(trace.get_ranks()[0])
    backward = frame[frame["tid"] == mapping["tid"][1]]
    outermost = backward[backward["parent"].map(frame.set_index("index")["tid"]) != mapping["tid"][1]]
    names = outermost["parent"].map(frame.set_index("index")["name"]).dropna().unique()
    assert set(names) == {"## backward ##"}
    assert frame["depth"].max() == 10


class Mine(hta.Filter):
    def __call__(self, df: pd.DataFrame, symbol_table: object = None) -> pd.DataFrame:  # type: ignore[name-defined]
        return hta.NameFilter(".*gemm|Memcpy|nccl")(hta.GPUKernelFilter()(hta.IterationIndexFilter(1)(df)))


def test_timelines_are_drawn(trace: hta.Trace, tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    hta.CallGraph(trace, ranks=[0])
    frame, symbols = trace.get_trace(0), trace.symbol_table
    page = hta.TimelinePlotSetting(plot_format=hta.PlotFormat.HTML)
    for chosen in (None, hta.GPUKernelFilter(), Mine()):
        drawn = hta.Timeline(frame, symbols, filter_func=chosen, setting=page)
        assert len(drawn.timeline_events)
        assert "plotly" in (drawn.plot("a timeline", str(tmp_path / "t.html")) or "")
    assert (tmp_path / "t.html").stat().st_size > 1000
    aligned = hta.align_module_with_kernels(frame, ["aten::mm", "aten::addmm"], sym_table=symbols)
    modules = aligned[aligned["stream"] == 0]
    assert len(modules)
    assert (modules["dur"] > 0).all()
    tasks = set(hta.Timeline(aligned, symbols).timeline_events["task"])
    assert "gpu annotation" in tasks
    with pytest.raises(UsageError, match="run CallGraph"):
        hta.align_module_with_kernels(trace.get_trace(1), ["aten::mm"])
    frames = pd.concat(trace.get_all_traces(), names=["rank", "idx"]).reset_index()
    hta.plot_timeline_gpu_kernels("kernels", frames, symbols, iterations=[1], streams=[7], duration_threshold=2000)


def test_further_args_are_columns(folder: str) -> None:
    config = hta.ParserConfig.get_default_cfg().clone()
    config.add_args(hta.ParserConfig.ARGS_INPUT_SHAPE)
    assert config.added() == []
    wanted = ("grid", "sequence", "registers_per_thread")
    config.add_args([each for each in hta.ParserConfig.ARGS_COMPLETE if each.name in wanted])
    frame = hta.Trace(trace_dir=folder, parser_config=config).get_trace(0)
    assert {"grid", "sequence", "registers_per_thread"} <= set(frame.columns)
    assert "grid" not in hta.Trace(trace_dir=folder).get_trace(0)
    kernels = frame[frame["cat"] == "kernel"]
    assert all(isinstance(each, list) and len(each) == 3 for each in kernels["grid"])


def test_a_range_that_lies_outside_warns(trace: hta.Trace) -> None:
    frame = trace.get_trace(0)
    with pytest.warns(UserWarning, match="no event in the range of .* counted from 0"):
        assert not len(hta.TimeRangeFilter((1_682_725_898_237_042, 1_682_725_898_240_570))(frame))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hta.TimeRangeFilter((frame["ts"].min(), frame["end"].max()))(frame)


def test_the_rest_of_a_trace(trace: hta.Trace, folder: str) -> None:
    assert trace.get_device_type() == "UNKNOWN"
    graph, _ = hta.TraceAnalysis(trace_dir=folder).critical_path_analysis(0, "ProfilerStep", 1)
    breakdown = graph.get_critical_path_breakdown()
    assert [graph.bound_by(row) for _, row in breakdown.iterrows()] == breakdown["bound_by"].tolist()
