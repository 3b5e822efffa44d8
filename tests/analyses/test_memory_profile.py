"""Memory: traces of a few instants, and a slow reading of simulated and real ones."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from augment.analyses import memory_at_peak, memory_profile
from augment.core.annotations import CounterTrack, byte_unit
from augment.core.findings import Findings, Skipped
from augment.readers import read
from simulator import JobOptions, simulate
from tables import rows_of
from traces import HOST, THREAD, Event, kernel, op, write_trace

GPU, CPU = {"Device Type": 1, "Device Id": 0}, {"Device Type": 0, "Device Id": -1}


def memory(ts: float, size: int, address: int | None = None, thread: int = THREAD, **args: Any) -> Event:
    known = {} if address is None else {"Addr": address}
    args = {**(GPU if "Device Type" not in args else {}), "Bytes": size, **known, **args}
    return {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": HOST, "tid": thread,
            "ts": ts, "args": args}  # fmt: skip


def totals(allocated: int, reserved: int) -> dict[str, int]:
    return {"Total Allocated": allocated, "Total Reserved": reserved}


SOME = [
    op("aten::linear", 0, 50),
    op("aten::empty", 10, 10),
    memory(12, 100, 1, **totals(1100, 4000)),
    memory(30, 50, 2, **totals(1150, 4000)),
    memory(60, 8, 3, **totals(1158, 6000)),
    memory(70, -200, 9, **totals(958, 6000)),
    memory(80, -100, 1, **totals(858, 6000)),
    memory(90, 20, 1, **totals(878, 5000)),
    kernel(ts=40, dur=10),
]


def findings_of(analysis: Any, path: Path) -> Findings:
    return analysis.analyze(read(str(path)))


def test_peaks_fragmentation_and_counters(tmp_path: Path) -> None:
    trace = findings_of(memory_profile, write_trace(tmp_path / "rank3.json", *SOME))
    assert rows_of(trace, "rank", "device_type", "device", "allocation_count", "free_count") == [(3, "CUDA", 0, 4, 2)]
    assert rows_of(trace, "start_allocated_bytes", "end_allocated_bytes", "live_at_end_bytes") == [(1000, 878, 78)]
    assert rows_of(trace, "peak_allocated_bytes", "peak_allocated_at_ns") == [(1158, 60_000)]
    assert rows_of(trace, "peak_reserved_bytes", "peak_reserved_at_ns") == [(6000, 60_000)]
    assert rows_of(trace, "unmatched_free_count", "fragmentation_bytes", "fragmentation_ratio") == [
        (1, 4842, 4842 / 6000)
    ]
    tracks = {annotation.name: annotation for annotation in trace.annotations if isinstance(annotation, CounterTrack)}
    assert tracks["Memory allocated"].values.tolist() == [1100, 1150, 1158, 958, 858, 878]
    assert tracks["Memory reserved"].ts.tolist() == [12_000, 60_000, 90_000]
    assert tracks["Memory reserved"].values.tolist() == [4000, 6000, 5000]
    assert {track.unit for track in tracks.values()} == {"bytes"}
    assert trace.partial is None
    assert not trace.diagnostics


def test_counters_that_share_an_axis_share_the_unit_of_the_greater(tmp_path: Path) -> None:
    path = write_trace(
        tmp_path / "a.json",
        memory(1, 3_500_000, 1, **totals(3_500_000, 2_000_000_000)),
        memory(2, 1_500_000, 2, **totals(5_000_000, 2_500_000_000)),
        op(ts=0, dur=9),
    )
    result = findings_of(memory_profile, path)
    tracks = {row.name: (row.values.tolist(), row.unit) for row in result.annotations if isinstance(row, CounterTrack)}
    assert tracks == {"Memory allocated CUDA 0": ([0.0035, 0.005], "GB"), "Memory reserved CUDA 0": ([2.0, 2.5], "GB")}
    assert [byte_unit(size)[1] for size in (0, 999_999, 10**6, 10**9 - 1, 10**9)] == [
        "bytes",
        "bytes",
        "MB",
        "MB",
        "GB",
    ]


def test_what_is_live_at_the_peak(tmp_path: Path) -> None:
    trace = findings_of(memory_at_peak, write_trace(tmp_path / "a.json", *SOME))
    assert rows_of(trace, "origin", "outer_operator", "operator", "bytes", "count") == [
        ("operator", "aten::linear", "aten::empty", 100, 1),
        ("operator", "aten::linear", "aten::linear", 50, 1),
        ("no operator", None, None, 8, 1),
        ("before recording", None, None, 1000, None),
    ]


def test_an_address_is_used_again_and_a_free_was_missed(tmp_path: Path) -> None:
    path = write_trace(
        tmp_path / "a.json",
        memory(1, 10, 1, **totals(10, 100)),
        memory(2, -10, 1, **totals(0, 100)),
        memory(3, 30, 1, **totals(30, 100)),
        memory(4, 40, 1, **totals(40, 100)),
        memory(5, -40, 1, thread=7, **totals(0, 100)),
    )
    assert rows_of(findings_of(memory_at_peak, path), "bytes", "count") == [(40, 1)]
    result = findings_of(memory_profile, path)
    assert [(diagnostic.code, diagnostic.count) for diagnostic in result.diagnostics] == [("memory_allocated_twice", 1)]


def test_the_cpu_is_a_device_of_its_own(tmp_path: Path) -> None:
    path = write_trace(
        tmp_path / "a.json",
        kernel(),
        memory(1, 64, 5, **CPU, **totals(64, 0)),
        memory(2, 512, 5, **totals(512, 1024)),
        memory(3, 256, 6, **{"Device Type": 12, "Device Id": 2}, **totals(256, 256)),
        memory(4, -64, 5, **CPU, **totals(0, 0)),
    )
    result = findings_of(memory_profile, path)
    assert rows_of(result, "device_type", "device", "peak_reserved_bytes", "fragmentation_ratio") == [
        ("CUDA", 0, 1024, 0.5), ("XPU", 2, 256, 0.0), ("CPU", None, None, None)
    ]  # fmt: skip
    assert [annotation.name for annotation in result.annotations if isinstance(annotation, CounterTrack)] == [
        "Memory allocated", "Memory reserved", "Memory allocated XPU 2", "Memory reserved XPU 2", "Memory allocated CPU"
    ]  # fmt: skip


def test_instants_of_2021_without_totals_category_and_address(tmp_path: Path) -> None:
    events = [memory(ts, size) for ts, size in ((1, -30), (2, 10), (3, 40), (4, -50))]
    for event in events:
        del event["cat"]
    path = write_trace(tmp_path / "a.json", *events)
    result = findings_of(memory_profile, path)
    assert result.partial
    assert rows_of(result, "start_allocated_bytes", "peak_allocated_bytes", "end_allocated_bytes") == [(30, 50, 0)]
    assert rows_of(result, "unmatched_free_count", "live_at_end_bytes", "peak_reserved_bytes") == [(None, None, None)]
    assert memory_at_peak.analyze(read(str(path))) == Skipped("the [memory] instants have no addresses")


def test_bytes_that_are_no_number_are_left_out_and_counted(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "a.json", memory(1, 10, 1, **totals(10, 10)), memory(2, 0, 1, Bytes="many"))
    result = findings_of(memory_profile, path)
    assert rows_of(result, "allocation_count") == [(1,)]
    assert [(diagnostic.code, diagnostic.count) for diagnostic in result.diagnostics] == [("arg_dropped", 1)]


def test_without_instants_it_is_skipped(tmp_path: Path) -> None:
    trace = read(str(write_trace(tmp_path / "a.json", op())))
    for analysis in (memory_profile, memory_at_peak):
        assert isinstance(analysis.analyze(trace), Skipped)


def test_a_simulated_job(tmp_path: Path) -> None:
    ((path, _),) = simulate(JobOptions(ranks=1, steps=2, layers=2, memory=True), tmp_path)
    assert compare(path) > 0


def test_real_traces(shared_traces: Path) -> None:
    for name in ("cpu_dtu/exercise_trace.json.gz", "hta_memory_v100/df_index_resolver.json.gz",
                 "mi300_tracelens/normalization_layers.json.gz"):  # fmt: skip
        assert compare(shared_traces / name) > 0


def compare(path: Path) -> int:
    """A slow reading of the file, device by device; how many devices there are."""
    result = findings_of(memory_profile, path)
    at_peak = findings_of(memory_at_peak, path)
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    instants = sorted((event for event in events if event["name"] == "[memory]"), key=lambda item: float(item["ts"]))
    for row in result.rows:
        part = [
            instant["args"]
            for instant in instants
            if (None if instant["args"]["Device Type"] == 0 else instant["args"]["Device Id"]) == row.device
        ]
        live: dict[int, int] = {}
        unmatched = 0
        highest, live_then = -1, 0
        for args in part:
            if args["Bytes"] > 0:
                live[args["Addr"]] = args["Bytes"]
            elif live.pop(args["Addr"], None) is None:
                unmatched += 1
            if args["Total Allocated"] > highest:
                highest, live_then = args["Total Allocated"], sum(live.values())
                reserved_then = args["Total Reserved"]
        assert row.peak_allocated_bytes == highest
        assert row.unmatched_free_count == unmatched
        assert row.live_at_end_bytes == sum(live.values())
        assert row.allocation_count == sum(args["Bytes"] > 0 for args in part)
        assert row.end_allocated_bytes == part[-1]["Total Allocated"]
        if row.peak_reserved_bytes is not None:
            assert row.peak_reserved_bytes == max(args["Total Reserved"] for args in part)
            assert row.fragmentation_ratio == pytest.approx(1 - highest / reserved_then)
        rows = [each for each in at_peak.rows if (each.device_type, each.device) == (row.device_type, row.device)]
        assert sum(row.bytes for row in rows if row.origin != "before recording") == live_then
        assert sum(row.bytes for row in rows) == highest
    return len(result.rows)
