"""``augment doctor``: what it finds in a trace, and what Perfetto would drop of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from running import Augment

from augment.cli.inspection import partly_overlapping
from tables import kernel as kernel_row
from tables import trace_of
from traces import event, kernel, launch, op, some_work, write_trace


def codes(report: dict[str, Any], part: str) -> dict[str, int]:
    return {each["code"]: each["count"] for each in report[part]}


def test_what_is_in_a_file(tmp_path: Path, augment: Augment) -> None:
    trace = write_trace(
        tmp_path / "a.json.gz",
        *some_work(),
        op("aten::add", 20, 1, **{"Input Dims": [[2, 3]]}),
        schemaVersion=1,
        distributedInfo={"rank": 5, "world_size": 8, "backend": "nccl"},
        deviceProperties=[{"id": 0, "name": "H200"}],
    )
    ended = augment("doctor", trace, "--json")
    report = json.loads(ended.out)
    assert ended.code == 0
    assert report["file"]["compression"] == ["gzip"]
    assert (report["file"]["layout"], report["file"]["schema_version"], report["file"]["events"]) == ("object", 1, 7)
    assert report["file"]["vendor"] == "NVIDIA (CUDA)"
    assert report["recording"]["ranks"] == [5]
    assert (report["recording"]["rank_from"], report["recording"]["world_size"]) == ("distributedInfo", 8)
    assert report["has"]["shapes"]
    assert not report["has"]["python_stacks"]
    assert report["launches"] == {
        "gpu_work_count": 2, "linked_ratio": 1.0, "launch_count": 2, "unmatched_launch_count": 0
    }  # fmt: skip
    assert {"category": "kernel", "phase": "X", "read_as": "kernel", "count": 1} in report["categories"]
    shown = augment("doctor", trace).out
    assert "rank       5 of 8 (from distributedInfo)" in shown
    assert "device 0   H200, 1 stream" in shown
    assert list(tmp_path.iterdir()) == [trace]


def test_what_is_odd(tmp_path: Path, augment: Augment) -> None:
    trace = write_trace(
        tmp_path / "a.json",
        launch(correlation=9),
        kernel(ts=30, dur=10, correlation=1),
        kernel(ts=35, dur=10, correlation=2),
        kernel(ts=20, dur=0, correlation=3),
        op(ts=50, dur=-1),
        event("Trace", "PyTorch Profiler (0)", 0, 100, "Spans", "PyTorch Profiler"),
        {"ph": "X", "name": "no time"},
    )
    report = json.loads(augment("doctor", trace, "--json").out)
    assert codes(report, "odd").items() >= {
        "negative_durations": 1, "zero_durations": 1, "out_of_order": 2, "text_ids": 1, "event_without_time": 1
    }.items()  # fmt: skip
    assert codes(report, "perfetto") == {"partly_overlapping": 1, "text_pids": 1}
    assert report["launches"]["unmatched_launch_count"] == 1
    assert "memory_bandwidth" in report["skipped"]


def test_a_native_file_has_none_of_the_limits_of_json(tmp_path: Path, augment: Augment) -> None:
    """Kernels that overlap, a text as pid, times that count from 1970."""
    ts = 1712195495406752.797
    odd = event("Trace", "PyTorch Profiler (0)", ts, 100, "Spans", "PyTorch Profiler")
    trace = write_trace(tmp_path / "a.json", kernel(ts=ts, dur=10), kernel(ts=ts + 5, dur=10, correlation=2), odd)
    assert codes(json.loads(augment("doctor", trace, "--json").out), "perfetto").keys() == {
        "partly_overlapping", "text_pids", "epoch_times"
    }  # fmt: skip
    assert augment("run", trace, "--to", "perfetto").code == 0
    native = tmp_path / "a.augmented.pftrace"
    report = json.loads(augment("doctor", native, "--json").out)
    assert codes(report, "perfetto") == {}
    assert (report["file"]["format"], report["file"]["layout"]) == ("perfetto", "packets")


def test_times_that_perfetto_rounds(tmp_path: Path, augment: Augment) -> None:
    whole = write_trace(tmp_path / "whole.json", op(ts=1712195495406752))
    assert json.loads(augment("doctor", whole, "--json").out)["perfetto"] == []
    text = whole.read_text().replace("1712195495406752,", "1712195495406752.797,")
    (tmp_path / "fraction.json").write_text(text)
    report = json.loads(augment("doctor", tmp_path / "fraction.json", "--json").out)
    assert codes(report, "perfetto") == {"epoch_times": 1}
    assert "rounded to 250 ns" in report["perfetto"][0]["message"]
    assert report["recording"]["start_ns"] == 1712195495406752797


def test_files_that_cannot_be_read(tmp_path: Path, augment: Augment) -> None:
    (tmp_path / "b.json").write_bytes(b"nothing")
    trace = write_trace(tmp_path / "a.json", launch())
    assert augment("doctor", tmp_path / "b.json").code == 3
    both = augment("doctor", tmp_path / "b.json", trace)
    assert both.code == 1
    assert both.out.startswith(str(trace))
    assert len(both.err.splitlines()) == 1


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=12))
def test_slices_that_perfetto_drops(slices: list[tuple[int, int]]) -> None:
    trace = trace_of(*(kernel_row("k", ts, ts + dur) for ts, dur in slices))
    kept: list[tuple[int, int]] = []
    dropped = 0
    for ts, dur in sorted(slices, key=lambda item: (item[0], -item[1])):
        around = [end for start, end in kept if start <= ts < end]
        if dur and around and ts + dur > min(around):
            dropped += 1
        else:
            kept.append((ts, ts + dur))
    assert partly_overlapping(trace) == dropped
