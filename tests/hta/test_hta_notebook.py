"""The notebook of the assignment "Trace Analysis with HTA": four folders of traces, HTA's classes on our figures."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from augment.hta import DeviceType, LabeledTrace, TraceAnalysis, TraceDiff
from simulator import JobOptions, simulate

ONE = JobOptions(ranks=1, steps=3, layers=2, collectives="none")
JOBS = {
    "baseline": ONE,
    "ddp": dataclasses.replace(ONE, ranks=2, collectives="ddp"),
    "fsdp": dataclasses.replace(ONE, ranks=2, collectives="fsdp"),
    "roll": dataclasses.replace(ONE, ranks=2, collectives="ddp", extra_operator="aten::roll"),
}
TRUTH: dict[str, list[dict[str, Any]]] = {}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    result = {}
    for name, options in JOBS.items():
        folder = tmp_path_factory.mktemp(name)
        TRUTH[name] = [truth for _, truth in simulate(options, folder)]
        for path in folder.glob("*.truth.json"):
            path.unlink()
        result[name] = str(folder)
    return result


@pytest.mark.parametrize("name", JOBS)
def test_temporal_breakdown(folders: dict[str, str], name: str) -> None:
    analyzer = TraceAnalysis(trace_dir=folders[name], include_last_profiler_step=True)
    frame = analyzer.get_temporal_breakdown(visualize=False)
    assert frame["rank"].tolist() == list(range(JOBS[name].ranks))
    for (_, row), truth in zip(frame.iterrows(), TRUTH[name], strict=True):
        (true,) = truth["temporal_breakdown"]
        assert row["idle_time(us)"] == true["idle_ns"] / 1000
        assert row["compute_time(us)"] == true["compute_ns"] / 1000
        assert row["non_compute_time(us)"] == true["non_compute_ns"] / 1000
        assert row["kernel_time(us)"] == true["span_ns"] / 1000
        assert row["idle_time_pctg"] == round(100 * true["idle_ns"] / true["span_ns"], 2)
    parts = frame["idle_time(us)"] + frame["compute_time(us)"] + frame["non_compute_time(us)"]
    assert (parts - frame["kernel_time(us)"]).abs().max() < 1e-6


def test_overlap(folders: dict[str, str]) -> None:
    for name in ("ddp", "fsdp"):
        analyzer = TraceAnalysis(trace_dir=folders[name], include_last_profiler_step=True)
        frame = analyzer.get_comm_comp_overlap(visualize=False)
        ratios = [truth["communication_computation_overlap"][0]["overlap_ratio"] for truth in TRUTH[name]]
        assert frame["comp_comm_overlap_pctg"].tolist() == [round(100 * ratio, 2) for ratio in ratios]
    frame = TraceAnalysis(trace_dir=folders["baseline"]).get_comm_comp_overlap(visualize=False)
    assert frame["comp_comm_overlap_pctg"].isna().tolist() == [True]


def test_traces_are_compared(folders: dict[str, str]) -> None:
    baseline = LabeledTrace(label="baseline", trace_dir=folders["baseline"])
    ddp = LabeledTrace(label="ddp", trace_dir=folders["ddp"])
    assert baseline.ranks() == [0]
    assert ddp.ranks() == [0, 1]
    assert baseline.iterations() == ddp.iterations() == [0, 1, 2]
    frame = TraceDiff.compare_traces(baseline, ddp, 0, 1, 1, 2, DeviceType.GPU)
    assert list(frame.columns) == [
        "baseline_counts", "baseline_total_duration", "ddp_counts", "ddp_total_duration",
        "diff_counts", "diff_duration", "counts_change_categories",
    ]  # fmt: skip
    assert frame.index.name == "name"
    collectives = frame[frame.index.str.contains("nccl", case=False)]
    assert len(collectives)
    assert (collectives["baseline_counts"] == 0).all()
    assert (collectives["diff_counts"] == collectives["ddp_counts"]).all()
    assert set(collectives["counts_change_categories"]) == {"+"}
    slowest = frame.sort_values(by="diff_duration", ascending=False).head(10)
    assert slowest.iloc[0]["diff_duration"] == frame["diff_duration"].max()


def test_operators_that_were_added(folders: dict[str, str]) -> None:
    ddp = LabeledTrace(label="ddp", trace_dir=folders["ddp"])
    roll = LabeledTrace(label="roll", trace_dir=folders["roll"])
    trace = TraceDiff.ops_diff(ddp, roll, 0, 0, 1, 1, DeviceType.CPU)
    assert set(trace) == {"added", "deleted", "increased", "decreased", "unchanged"}
    assert trace["added"] == ["aten::roll"]
    assert not trace["deleted"]
    same = TraceDiff.ops_diff(ddp, ddp, 0, 0, 1, 1, DeviceType.ALL)
    assert not [name for kind in ("added", "deleted", "increased", "decreased") for name in same[kind]]
    assert same["unchanged"]
    overlap = TraceDiff.ops_diff(folders["baseline"], folders["fsdp"], device_type=DeviceType.GPU)["added"]
    assert any("AllGather" in name for name in overlap)


def test_counts_are_those_of_a_slow_reading(folders: dict[str, str]) -> None:
    import gzip

    (path,) = Path(folders["baseline"]).glob("*.gz")
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    step = next(each for each in events if each.get("name") == "ProfilerStep#1" and each["cat"] == "user_annotation")
    inside = {
        event["args"]["correlation"]
        for event in events
        if event.get("cat") in ("cuda_runtime", "cuda_driver") and step["ts"] <= event["ts"] < step["ts"] + step["dur"]
    }
    counts: dict[str, int] = {}
    for event in events:
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset") and event["args"]["correlation"] in inside:
            counts[event["name"]] = counts.get(event["name"], 0) + 1
    labeled = LabeledTrace(trace_dir=folders["baseline"])
    summary = labeled.get_ops_summary(labeled.extract_ops(0, 1, DeviceType.GPU))
    assert dict(zip(summary["name"], summary["counts"], strict=True)) == counts


def test_a_straggler_is_found(tmp_path: Path) -> None:
    options = JobOptions(ranks=4, steps=4, layers=3, straggler=2, straggler_factor=1.3)
    simulate(dataclasses.replace(options, clock_offset_ns=(0, 10**6, -(10**6), 0)), tmp_path)
    analyzer = TraceAnalysis(
        trace_files={rank: f"rank{rank}.pt.trace.json.gz" for rank in range(4)}, trace_dir=str(tmp_path)
    )
    assert analyzer.get_profiler_steps() == [0, 1, 2]
    assert analyzer.get_potential_stragglers(num_candidates=1) == [2]
    assert analyzer.get_potential_stragglers([1], num_candidates=1) == [2]
    with pytest.raises(ValueError, match="no step of"):
        analyzer.get_potential_stragglers([17])

    def first_ranks(frame: Any, symbols: Any, count: int, visualize: bool) -> Any:
        nccl = [symbols.get_sym_id_map()[name] for name in symbols.get_sym_table() if name.startswith("nccl")]
        assert not visualize
        return -frame[frame["name"].isin(nccl)].groupby("rank")["dur"].max() * count

    assert analyzer.get_potential_stragglers(num_candidates=1, straggler_identification_impl=first_ranks) == [2]
