"""HTA's API on recorded traces: figures that HTA's own tests ask for, and no traceback on any of them."""

from __future__ import annotations

import gzip
import json
import math
import shutil
import warnings
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from augment import UnknownFormat, read
from augment.hta import DeviceType, LabeledTrace, MemoryAnalysis, Trace, TraceAnalysis, TraceDiff

SHARED_TRACES = Path(__file__).parents[3] / "shared" / "traces"
SMALL = 50_000  #: bytes
FILES = sorted(path for path in SHARED_TRACES.rglob("*.json*") if path.stat().st_size < SMALL)

pytestmark = pytest.mark.filterwarnings("ignore:rank .*:UserWarning")  # what a trace lacks is said, and no error


@pytest.fixture(scope="module")
def ns(shared_traces: Path) -> TraceAnalysis:
    path = shared_traces / "hta_ns_resolution" / "rank-0.ns_resolution.pt.trace.json.gz"
    return TraceAnalysis(trace_files={0: str(path)})


@pytest.fixture(scope="module")
def mtia(shared_traces: Path) -> TraceAnalysis:
    return TraceAnalysis(trace_files={0: str(shared_traces / "hta_mtia" / "mtia_rank_0.json.gz")})


@pytest.fixture(scope="module")
def a100(shared_traces: Path) -> TraceAnalysis:
    path = shared_traces / "hta_a100_rank0_of_16" / "negative_queue_length_rank0.json.gz"
    return TraceAnalysis(trace_files={0: str(path)})


def row(frame: Any, **where: Any) -> dict[str, Any]:
    """The only row of ``frame`` with these values."""
    for column, value in where.items():
        frame = frame[frame[column] == value]
    (result,) = frame.to_dict("records")
    return dict(result)


def test_annotations_of_the_ns_trace(ns: TraceAnalysis) -> None:
    on_device = ns.get_gpu_user_annotation_breakdown(visualize=False)
    assert len(on_device) == 3
    on_host = ns.get_gpu_user_annotation_breakdown(use_gpu_annotation=False, visualize=False)
    assert len(on_host) == 12
    few = ns.get_gpu_user_annotation_breakdown(False, False, num_kernels=5, allowlist_patterns=["Optimizer"])
    assert len(few) == 8
    assert few["name"].str.contains("Optimizer").sum() == 2
    assert math.isclose(few["sum (us)"].sum(), on_host["sum (us)"].sum())


def test_kernels_with_annotations_of_the_ns_trace(ns: TraceAnalysis) -> None:
    frame = ns.get_gpu_kernels_with_user_annotations(0)
    assert len(frame) == 4876
    assert frame["user_annotation"].nunique(dropna=False) == 4
    match_row = row(frame, correlation=135139)
    assert match_row["s_user_annotation"] == "DistributedDataParallel.forward"
    assert match_row["s_name"] == "Memcpy DtoD (Device -> Device)"
    match_row = row(frame, correlation=164926)
    assert match_row["s_user_annotation"] == "Optimizer.step#SGD.step"
    assert match_row["s_name"] == "at::native::::multi_tensor_apply_kernel"
    assert (frame["user_annotation"] == "Optimizer.step#SGD.step").sum() == 36  # HTA: 27, without those below 1 us


def test_window_is_htas(a100: TraceAnalysis, shared_traces: Path) -> None:
    result = row(a100.get_temporal_breakdown(visualize=False), rank=0)
    output = {"idle_time(us)": 705853, "compute_time(us)": 143836, "non_compute_time(us)": 166865}
    assert {key: result[key] for key in output} == output
    assert row(a100.get_comm_comp_overlap(False), rank=0)["comp_comm_overlap_pctg"] == 1.37
    assert a100.get_profiler_steps() == [550, 551, 552, 553]
    path = str(shared_traces / "hta_memory_v100" / "df_index_resolver.json.gz")
    v100 = TraceAnalysis(trace_files=[path])
    (result,) = v100.get_temporal_breakdown(visualize=False).to_dict("records")
    output = {"idle_time(us)": 643612, "compute_time(us)": 496485, "non_compute_time(us)": 256572}
    assert {key: result[key] for key in output} == output
    idle, stats = v100.get_idle_time_breakdown(visualize=False, show_idle_interval_stats=True)
    times = [("host_wait", 791330, 0.9), ("kernel_wait", 16727, 0.02), ("other", 73829, 0.08)]
    part = idle[idle["stream"] == 7]
    assert list(zip(part["idle_category"], part["idle_time"], part["idle_time_ratio"], strict=True)) == times
    assert stats[stats["stream"] == 14].loc["other"].tolist()[2:] == [84, 52.9, 49.8, 31, 35, 36, 38, 263]
    all_steps = TraceAnalysis(trace_files=[path], include_last_profiler_step=True)
    assert all_steps.get_profiler_steps() == [*v100.get_profiler_steps(), 6]


def test_window_to_the_nanosecond(ns: TraceAnalysis) -> None:
    """By a slow reading of the file, in decimals."""
    text = gzip.decompress(Path(ns.t.trace_files[0]).read_bytes())
    events = [event for event in json.loads(text, parse_float=Decimal)["traceEvents"] if event["ph"] == "X"]
    last = max(event["ts"] for event in events if event["name"].startswith("ProfilerStep"))
    launched = {row["args"].get("correlation") for row in events if row["cat"] == "cuda_runtime" and row["ts"] < last}
    work = [event for event in events if event["cat"] in ("kernel", "gpu_memcpy", "gpu_memset")]
    spans = sorted((each["ts"], each["ts"] + each["dur"]) for each in work if each["args"]["correlation"] in launched)
    until, idle = spans[0][1], Decimal(0)
    for begin, end in spans:
        idle += max(begin - until, Decimal(0))
        until = max(until, end)
    (result,) = ns.get_temporal_breakdown(visualize=False).to_dict("records")
    assert result["idle_time(us)"] == float(idle)
    assert result["kernel_time(us)"] == float(until - spans[0][0])


def test_kernels_have_their_own_statistics(shared_traces: Path) -> None:
    """HTA shows the mean 646 of ``ampere_gcgemm…`` in this trace, which is the sum of two."""
    path = shared_traces / "hta_cuda_sync" / "simple_add.json.gz"
    _, frame = TraceAnalysis({0: str(path)}).get_gpu_kernel_breakdown(visualize=False)
    (gemm,) = frame[frame["name"].str.contains("ampere_gcgemm")].to_dict("records")
    assert round(gemm["sum (us)"]) == 646
    assert round(gemm["mean (us)"]) == 323
    assert len(frame[frame["kernel_type"] == "COMPUTATION"]) <= 11


def test_counters_of_the_a100_trace(a100: TraceAnalysis) -> None:
    bandwidth = a100.get_memory_bw_summary([0])
    queues = a100.get_queue_length_summary([0])
    assert [name for _, name in bandwidth.index] == ["Memcpy DtoD", "Memcpy DtoH", "Memcpy HtoD", "Memset"]
    assert len(queues) == 6
    assert (a100.get_memory_bw_time_series()[0]["memory_bw_gbps"] >= 0).all()
    assert (a100.get_queue_length_time_series()[0]["queue_length"] >= 0).all()


def test_the_mtia_trace(mtia: TraceAnalysis) -> None:
    delays = mtia.get_aten_op_kernels_and_delay(sort_by=["occurrence_count", "avg_aten_op_launch_delay"])[0].iloc[0]
    assert delays["aten_op_name"] == "aten::mul"
    assert delays["kernel_sequence"] == "customized_fba_mul_const-dtype_Float"
    assert delays["occurrence_count"] == 822
    assert abs(delays["avg_aten_op_launch_delay"] - 1092.545) < 2
    assert abs(delays["avg_runtime_delay"] - 293.113) < 2
    launch = row(mtia.get_cuda_kernel_launch_stats(visualize=False)[0], correlation=423)
    assert launch == {"correlation": 423, "cpu_duration": 435.2, "gpu_duration": 124.768, "launch_delay": 0}
    assert mtia.get_queue_length_summary([0]).index.to_list() == [(0, 1), (0, 102)]
    full = mtia.get_time_spent_blocked_on_full_queue(mtia.get_queue_length_time_series(), max_queue_length=1)
    assert abs(row(full, stream=102)["duration_at_max_queue_length"] - 1060) < 20  # HTA has the last stream alone
    assert 1 in set(full["stream"])
    copies = row(mtia.get_gpu_kernel_breakdown(visualize=False)[1], kernel_type="MEMORY")
    assert 0 < copies["sum (us)"] - 403067 < 25_000  # 22,361 copies, of each of which HTA rounds a part away


def test_hardware_counters(shared_traces: Path) -> None:
    analyzer = TraceAnalysis({0: str(shared_traces / "hta_cupti" / "cupti_profiler.json.gz")})
    (frame,) = analyzer.get_cupti_counter_data_with_operators()
    assert len(frame) == 77
    fifth = frame.sort_values("ts").iloc[5]
    assert fifth["cat"] == "cuda_profiler_range"
    assert "fft2d_r2c_32x32" in fifth["name"]
    assert fifth["smsp__sass_thread_inst_executed_op_fadd_pred_on.sum"] == 86114304
    assert (fifth["top_level_op"], fifth["bottom_level_op"]) == ("aten::conv2d", "aten::cudnn_convolution")
    assert fifth["op_stack"][0] == "aten::conv2d"


def test_no_gpu_no_frames(shared_traces: Path) -> None:
    analyzer = TraceAnalysis({0: str(shared_traces / "hta_rank_missing" / "rank_non_gpu.json.gz")})
    assert analyzer.get_queue_length_time_series() == {}
    assert analyzer.get_queue_length_summary([0]) is None
    assert analyzer.get_memory_bw_summary([0]) is None
    assert analyzer.get_cupti_counter_data_with_operators() == []
    with pytest.warns(UserWarning, match="rank 0: no temporal_breakdown: no event of category kernel"):
        assert len(analyzer.get_temporal_breakdown()) == 0


def test_memory_timeline(shared_traces: Path) -> None:
    memory = MemoryAnalysis(shared_traces / "hta_memory_timeline" / "memory_timeline.raw.gz")
    times, sizes = memory._process_raw_events()
    assert len(times) == len(sizes)
    # HTA's row 744, for what was there before the recording is two rows of one moment there
    assert sizes[743] == [102440608, 102228128, 19395584, 0, 2618160128, 58417152, 41811968, 25494440]


@pytest.fixture
def labeled(shared_traces: Path, tmp_path: Path) -> tuple[LabeledTrace, LabeledTrace]:
    sides = []
    for name in ("base", "test"):
        folder = tmp_path / name
        folder.mkdir()
        shutil.copy(shared_traces / "hta_tiny" / f"trace_compare_{name}.json.gz", folder)
        sides.append(LabeledTrace(label=name, trace_dir=str(folder)))
    return sides[0], sides[1]


def test_labeled_traces(labeled: tuple[LabeledTrace, LabeledTrace]) -> None:
    base, _ = labeled
    assert base.ranks() == [1]
    assert base.iterations() == [1009, 1010]
    assert len(base.extract_ops(1, 1010, DeviceType.CPU)) == 6
    assert len(base.extract_ops(1, 1010, DeviceType.GPU)) == 1
    summary = base.get_ops_summary(base.extract_ops(1, 1010, DeviceType.CPU)).set_index("name")
    assert summary["counts"].to_dict() == dict.fromkeys(summary.index, 1)
    assert summary["total_duration"].to_dict() == {
        "ProfilerStep#1010": 122149,
        "aten::as_strided": 0,
        "aten::empty": 0,
        "cudaEventQuery": 4,
        "cudaLaunchKernel": 4,
        "nccl:all_reduce": 67,
    }


def test_tiny_traces_compared(labeled: tuple[LabeledTrace, LabeledTrace]) -> None:
    asked = (*labeled, 1, 1, 1010, 1010)
    on_host = TraceDiff.compare_traces(*asked, device_type=DeviceType.CPU, use_short_name=True)
    assert on_host["counts_change_categories"].value_counts().to_dict() == {"=": 5, "+": 3, "-": 1}
    assert on_host.index.name == "short_name"
    on_device = TraceDiff.compare_traces(*asked, device_type=DeviceType.GPU, use_short_name=True)
    assert on_device["counts_change_categories"].value_counts().to_dict() == {"-": 1}
    assert TraceDiff.ops_diff(*asked, device_type=DeviceType.CPU) == {
        "added": ["AddmmBackward0", "All2All_Pooled_Req", "CatBackward0"],
        "deleted": ["nccl:all_reduce"],
        "increased": [],
        "decreased": [],
        "unchanged": ["ProfilerStep#1010", "aten::as_strided", "aten::empty", "cudaEventQuery", "cudaLaunchKernel"],
    }
    TraceDiff.visualize_counts_diff(on_host, show_image=False)
    TraceDiff.visualize_duration_diff(on_host, show_image=False)


def calls(analyzer: TraceAnalysis, rank: int, folder: str) -> Iterator[Any]:
    """What every method gives."""
    yield analyzer.get_profiler_steps()
    yield analyzer.get_temporal_breakdown()
    yield analyzer.get_comm_comp_overlap()
    yield analyzer.get_idle_time_breakdown(show_idle_interval_stats=True)
    yield analyzer.get_gpu_kernel_breakdown(num_kernels=2)
    yield analyzer.get_gpu_kernel_breakdown(include_memory_kernels=False)
    yield analyzer.get_gpu_user_annotation_breakdown()
    yield analyzer.get_gpu_user_annotation_breakdown(use_gpu_annotation=False, num_kernels=1)
    yield analyzer.get_gpu_kernels_with_user_annotations(rank)
    yield analyzer.get_memory_bw_summary()
    yield analyzer.get_queue_length_summary()
    yield analyzer.get_time_spent_blocked_on_full_queue(analyzer.get_queue_length_series(), 1)
    yield analyzer.get_cuda_kernel_launch_stats()
    yield analyzer.get_aten_op_kernels_and_delay()
    yield analyzer.get_frequent_cuda_kernel_patterns("aten::", folder, 1, rank)
    yield analyzer.get_cupti_counter_data_with_operators()
    yield analyzer.get_potential_stragglers()
    graph, result = analyzer.critical_path_analysis(rank, "", None)
    yield result, graph.summary(), graph.get_critical_path_breakdown(), graph.critical_path_events_set
    yield TraceDiff.compare_traces(analyzer.t, Trace(analyzer.t.trace_files), use_short_name=True)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SHARED_TRACES)))
def test_every_method_on_every_small_trace(path: Path, tmp_path: Path) -> None:
    try:
        read(str(path))
    except UnknownFormat:  # an execution trace, for example: it is said, as by every reader
        with pytest.raises(UnknownFormat):
            TraceAnalysis({3: str(path)})
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        assert len(list(calls(TraceAnalysis({3: str(path)}), 3, str(tmp_path)))) == 19
