from __future__ import annotations

from augment.analyses import memory_bandwidth
from augment.core.annotations import CounterTrack
from augment.core.findings import Findings, Skipped
from augment.core.trace import Trace
from tables import Event, copy, kernel, rows_of, trace_of

STATISTICS = ("mean_gbps", "p25_gbps", "p50_gbps", "p75_gbps", "max_gbps")


def findings_of(*events: Event) -> Findings:
    return memory_bandwidth.analyze(trace_of(*events))


def series_of(findings: Findings) -> dict[str, list[tuple[int, float]]]:
    tracks = [annotation for annotation in findings.annotations if isinstance(annotation, CounterTrack)]
    return {track.name: list(zip(track.ts.tolist(), track.values.tolist(), strict=True)) for track in tracks}


def test_copies_are_weighted_by_time() -> None:
    findings = findings_of(copy("Memcpy HtoD (Pageable -> Device)", 0, 10, 100), copy("Memcpy HtoD", 20, 50, 600))
    assert rows_of(findings, "kind", "count", "bytes", "busy_ns") == [("Memcpy HtoD", 2, 700, 40)]
    assert rows_of(findings, *STATISTICS) == [(17.5, 10.0, 20.0, 20.0, 20.0)]
    assert series_of(findings) == {"Memcpy HtoD bandwidth": [(0, 10.0), (10, 0.0), (20, 20.0), (50, 0.0)]}


def test_overlapping_copies_add_up_and_fall_to_zero_exactly() -> None:
    findings = findings_of(
        copy("Memcpy DtoD", 0, 30, 1), copy("Memcpy DtoD", 10, 20, 7, stream=8), copy("Memset (Device)", 0, 10, 10)
    )
    series = series_of(findings)["Memcpy DtoD bandwidth"]
    assert [ts for ts, _ in series] == [0, 10, 20, 30]
    assert series[-1] == (30, 0.0)
    assert abs(series[1][1] - (1 / 30 + 7 / 10)) < 1e-8
    assert rows_of(findings, "kind", "busy_ns") == [("Memcpy DtoD", 30), ("Memset", 10)]


def test_copies_of_no_known_bandwidth_are_counted_and_left_out() -> None:
    findings = findings_of(
        copy("Memcpy DtoH", 0, 10),
        copy("Memcpy DtoH", 20, 20, 50),
        copy("Memcpy DtoH", 30, 40, 10),
        copy("Memcpy PtoP", 50, 60),
    )
    assert rows_of(findings, "kind", "count", "bytes", "busy_ns", "mean_gbps") == [
        ("Memcpy DtoH", 3, 60, 20, 1.0),
        ("Memcpy PtoP", 1, 0, 10, None),
    ]
    assert [(each.code, each.count) for each in findings.diagnostics] == [("copy_without_bandwidth", 3)]
    assert list(series_of(findings)) == ["Memcpy DtoH bandwidth"]


def test_devices_are_apart() -> None:
    findings = findings_of(copy("Memcpy HtoD", 0, 10, 10, device=1), copy("Memcpy HtoD", 0, 10, 20, device=0))
    assert rows_of(findings, "device", "max_gbps") == [(0, 2.0), (1, 1.0)]


def test_a_broken_clock_makes_no_bandwidth() -> None:
    findings = findings_of(copy("Memcpy HtoD", 0, 1, 10**17))
    assert rows_of(findings, *STATISTICS) == [(None,) * 5]


def test_without_copies_it_is_skipped() -> None:
    trace: Trace = trace_of(kernel("gemm", 0, 10))
    assert memory_bandwidth.analyze(trace) == Skipped("no copy and no memset")
