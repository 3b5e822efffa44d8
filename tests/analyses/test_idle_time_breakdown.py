from __future__ import annotations

from typing import Any

import pytest

from augment.analyses import idle_time_breakdown
from augment.analyses.idle_time_breakdown import analyze
from augment.core import Category, Findings, Flows, SliceTrack, Trace, Track
from tables import Event, annotation, call, kernel, launched_kernel, op, python, rows_of, slices_of, sync, trace_of


def findings_of(*events: Event) -> Findings:
    return idle_time_breakdown.analyze(trace_of(*events), consecutive_kernel_delay_ns=30)


def idle_of(findings: Findings) -> dict[Any, tuple[int, int]]:
    rows = rows_of(findings, "device", "stream", "category", "idle_ns", "gap_count")
    return {row[:3]: row[3:] for row in rows if row[4]}


def gaps_of(findings: Findings, name: str = "Idle stream 7") -> list[dict[str, Any]]:
    (track,) = [annotation for annotation in findings.annotations if one_is(annotation, name)]
    return slices_of(track)


def parts_of(findings: Findings) -> dict[Any, tuple[int, int, int, int]]:
    """Of each stream and category: another stream works; the device waits for the host, at its pace, for others."""
    parts = ("other_stream_busy_ns", "device_host_wait_ns", "device_kernel_wait_ns", "device_other_ns")
    rows = rows_of(findings, "stream", "category", "idle_ns", *parts)
    assert all(row[2] == sum(row[3:]) for row in rows)
    return {row[:2]: row[3:] for row in rows if row[2]}


def one_is(track: object, name: str) -> bool:
    return isinstance(track, SliceTrack) and track.name == name


def test_a_gap_is_of_the_category_of_the_work_that_ends_it() -> None:
    findings = findings_of(
        call("cudaLaunchKernel", 5, 6, correlation=2),
        kernel("a", 0, 10),
        kernel("b", 20, 30, correlation=2),  # launched before the gap, short: kernel_wait
        call("cudaLaunchKernel", 31, 32, correlation=3),
        kernel("c", 40, 50, correlation=3),  # launched within: host_wait
        call("cudaLaunchKernel", 41, 42, correlation=4),
        kernel("d", 80, 90, correlation=4),  # launched before, but 30: other
        kernel("e", 95, 99),  # launch not known: other
    )
    expected = [("host_wait", 10, 1, 10 / 55), ("kernel_wait", 10, 1, 10 / 55), ("other", 35, 2, 35 / 55)]
    assert rows_of(findings, "category", "idle_ns", "gap_count", "idle_ratio") == expected
    assert [finding["name"] for finding in gaps_of(findings)] == ["kernel_wait", "host_wait", "other", "other"]


def test_a_launch_at_the_very_moment_of_the_end_is_in_time() -> None:
    findings = findings_of(
        kernel("a", 0, 10), call("cudaLaunchKernel", 10, 11, correlation=1), kernel("b", 20, 30, correlation=1)
    )
    assert idle_of(findings) == {(0, 7, "kernel_wait"): (10, 1)}


def test_statistics_of_the_gaps() -> None:
    findings = findings_of(*(kernel("k", ts, ts + 10) for ts in (0, 11, 23, 36, 50)))
    columns = ("mean_ns", "std_ns", "min_ns", "p25_ns", "p50_ns", "p75_ns", "max_ns")
    figures = (2.5, pytest.approx(1.2909944), 1, 1.75, 2.5, 3.25, 4)
    assert rows_of(findings, *columns) == [(None,) * 7, (None,) * 7, figures]


def test_overlapping_work_leaves_no_gap_before_the_longest_ends() -> None:
    findings = findings_of(kernel("long", 0, 100), kernel("short", 10, 20), kernel("next", 110, 120))
    assert idle_of(findings) == {(0, 7, "other"): (10, 1)}
    assert gaps_of(findings)[0]["previous_kernel"] == "long"
    assert [(diagnostic.code, diagnostic.count) for diagnostic in findings.diagnostics] == [("overlapping_gpu_work", 1)]


def test_the_device_is_idle_where_no_stream_works() -> None:
    findings = findings_of(
        kernel("a", 0, 10), kernel("b", 50, 60), kernel("c", 5, 20, stream=8), kernel("d", 40, 55, stream=8)
    )
    assert [(finding["ts"], finding["dur"]) for finding in gaps_of(findings, "Idle")] == [(20, 20)]
    assert [finding["previous_kernel"] for finding in gaps_of(findings, "Idle stream 8")] == ["c"]


def test_streams_of_one_number_on_two_devices_are_apart() -> None:
    findings = findings_of(kernel("a", 0, 10, device=0), kernel("b", 20, 30, device=0), kernel("c", 12, 18, device=1))
    assert idle_of(findings) == {(0, 7, "other"): (10, 1)}
    assert len(findings.rows) == 6


def test_a_stream_may_be_named_by_a_string() -> None:
    findings = findings_of(kernel("a", 0, 10, stream="compute"), kernel("b", 20, 30, stream="compute"))
    assert gaps_of(findings, "Idle stream compute") == gaps_of(findings, "Idle")


def test_work_of_no_duration_ends_a_gap_and_begins_the_next() -> None:
    findings = findings_of(kernel("a", 0, 10), kernel("none", 20, 20), kernel("b", 30, 40))
    assert [(finding["ts"], finding["dur"]) for finding in gaps_of(findings)] == [(10, 10), (20, 10)]


def test_work_of_negative_duration_has_none() -> None:
    events = [kernel("early", 0, -5), kernel("a", 0, 10), kernel("b", 20, 30)]
    side = [kernel("c", 40, 35, stream=8), kernel("d", 50, 55, stream=8)]
    for findings in (findings_of(*events), findings_of(*events, *side)):
        assert gaps_of(findings)[0]["ts"] == 10
        assert parts_of(findings)[7, "other"] == (0, 0, 0, 10)


def test_kernels_of_one_graph_launch_share_it() -> None:
    graph = [kernel("k", ts, ts + 5, correlation=9) for ts in (20, 30, 40)]
    findings = findings_of(kernel("a", 0, 5), call("cudaGraphLaunch", 10, 15, correlation=9), *graph)
    assert idle_of(findings) == {(0, 7, "host_wait"): (15, 1), (0, 7, "kernel_wait"): (10, 2)}


def test_the_owner_of_a_host_wait_is_the_operator_that_took_most_of_it() -> None:
    findings = findings_of(
        kernel("first", 0, 100),
        op("aten::outer", 50, 400),
        op("aten::inner", 110, 150),
        op("aten::inner", 160, 230),  # 110 in all; outer alone has 100..110, 150..160, 230..260 = 50
        op("aten::elsewhere", 100, 300, thread=2),
        python("train.py(3): step", 0, 1000),
        python("model.py(7): forward", 120, 390),
        *launched_kernel("second", (240, 260), (300, 350), correlation=5),
    )
    assert gaps_of(findings) == [
        {
            "ts": 100,
            "dur": 200,
            "name": "host_wait",
            "correlation": 5,
            "launch_delay_ns": 40,
            "owner": "aten::inner",
            "owner_ns": 110,
            "python_function": "model.py(7): forward",
            "python_function_ns": 140,
        }
    ]
    assert gaps_of(findings, "Idle") == gaps_of(findings)


def test_what_the_host_does_after_the_launch_owns_nothing() -> None:
    findings = findings_of(
        kernel("a", 0, 10),
        op("aten::mm", 40, 52),
        *launched_kernel("b", (45, 50), (75, 200), correlation=1),
        op("aten::item", 52, 200),
        call("cudaStreamSynchronize", 53, 199, correlation=2),
    )
    (gap,) = gaps_of(findings)
    assert (gap["name"], gap["owner"], gap["owner_ns"]) == ("host_wait", "aten::mm", 10)


def test_a_late_start_after_a_launch_in_the_gap_is_not_the_hosts() -> None:
    findings = findings_of(
        kernel("a", 0, 10),
        op("aten::mm", 5, 30),
        call("cudaLaunchKernel", 15, 20, correlation=1),
        kernel("b", 120, 130, correlation=1),  # 100 of the 110 are after the launch
    )
    assert idle_of(findings) == {(0, 7, "host_wait"): (110, 1)}  # as HTA has it
    assert parts_of(findings) == {(7, "host_wait"): (0, 0, 0, 110)}
    for track in ("Idle", "Idle stream 7"):
        (gap,) = gaps_of(findings, track)
        assert (gap["name"], gap["launch_delay_ns"], gap["previous_kernel"]) == ("other", 100, "a")
        assert "owner" not in gap
    assert gaps_of(findings)[0]["hta_category"] == "host_wait"


def test_without_operators_a_gap_has_no_owner() -> None:
    findings = findings_of(
        kernel("a", 0, 10), call("cudaLaunchKernel", 15, 16, correlation=1), kernel("b", 20, 30, correlation=1)
    )
    assert not {"owner", "owner_ns", "python_function"} & set(gaps_of(findings)[0])


def test_a_call_after_the_launch_explains_nothing() -> None:
    findings = findings_of(
        call("cudaLaunchKernel", 0, 1, correlation=1),
        kernel("a", 0, 10),
        call("cudaEventSynchronize", 5, 15, correlation=2, thread=2),
        call("cudaStreamSynchronize", 12, 45, correlation=3),
        sync("Event Sync", 13, 45, correlation=3, wait_on_stream=20, wait_on_cuda_event_id=8),
        kernel("b", 50, 60, correlation=1),
    )
    gap = {"ts": 10, "dur": 40, "name": "other", "correlation": 1, "previous_kernel": "a"}
    assert gaps_of(findings) == gaps_of(findings, "Idle") == [gap]


def test_one_piece_of_work_has_no_gap() -> None:
    findings = findings_of(kernel("a", 0, 10))
    assert rows_of(findings, "idle_ns", "idle_ratio") == [(0, None)] * 3
    assert findings.annotations == []


def test_an_annotation_owns_what_no_operator_does_but_a_step_owns_nothing() -> None:
    events = [
        kernel("first", 0, 100),
        annotation("ProfilerStep#3", 0, 400),
        *launched_kernel("second", (290, 295), (300, 350), correlation=5),
    ]
    (gap,) = gaps_of(findings_of(*events))
    assert "owner" not in gap
    (gap,) = gaps_of(findings_of(*events, annotation("enumerate(DataLoader)", 90, 280), op("aten::copy_", 100, 110)))
    assert (gap["owner"], gap["owner_ns"]) == ("enumerate(DataLoader)", 170)


def test_arrows_lead_from_what_the_device_waited_for() -> None:
    trace = trace_of(
        kernel("a", 0, 10),
        op("load", 5, 200),
        op("aten::mm", 205, 230),
        call("cudaLaunchKernel", 210, 220, correlation=1),
        kernel("b", 240, 250, correlation=1),  # host_wait: "load" took most of it
        call("cudaLaunchKernel", 380, 381, correlation=2, thread=2),
        kernel("c", 400, 410, correlation=2),  # host_wait, of a thread that says nothing but its launch
        call("cudaLaunchKernel", 401, 402, correlation=3),
        call("cudaDeviceSynchronize", 405, 600),
        kernel("d", 590, 600, correlation=3),  # other: nothing on the device says why
        kernel("e", 605, 610),  # short
        kernel("f", 900, 910),  # nothing is known
    )
    findings = idle_time_breakdown.analyze(trace, consecutive_kernel_delay_ns=30, arrow_min_gap_ns=50)
    tracks = [annotation for annotation in findings.annotations if isinstance(annotation, SliceTrack)]
    flows = [annotation for annotation in findings.annotations if isinstance(annotation, Flows)]
    assert [track.name for track in tracks] == ["Idle stream 7", "Idle"]
    for track, arrows in zip(tracks, flows, strict=True):
        assert arrows.into.track is track
        assert arrows.out.track is None
        result = zip(track.ts[arrows.into.rows].tolist(), trace.names_of(arrows.out.rows), strict=True)
        assert list(result) == [(10, "load"), (250, "cudaLaunchKernel")]


def test_below_a_cause_stands_what_was_waited_for() -> None:
    findings = findings_of(
        *launched_kernel("a", (1, 2), (3, 10), correlation=1),
        op("aten::item", 12, 40),
        *launched_kernel("b", (35, 38), (40, 50), correlation=2),
        call("cudaLaunchKernel", 44, 45, correlation=3),
        kernel("c", 200, 250, correlation=3),  # launched in time, late
        kernel("d", 300, 310),  # its launch is not known
        call("cudaLaunchKernel", 301, 302, correlation=4),
        kernel("e", 312, 320, correlation=4),  # soon enough
    )
    (track,) = [each for each in findings.annotations if isinstance(each, SliceTrack) and each.name == "Idle"]
    below = [track.inner.values[code] if code >= 0 else None for code in track.inner.codes.tolist()]
    assert [each["name"] for each in slices_of(track)] == ["host_wait", "other", "other", "kernel_wait"]
    assert below == ["aten::item", "after b", "launch not recorded", None]
    assert slices_of(track)[2]["launch"] == "not recorded"


def test_below_the_work_of_other_streams_stands_which_it_was() -> None:
    findings = findings_of(
        *launched_kernel("a", (1, 2), (2, 20), correlation=1),
        *launched_kernel("ncclDevKernel", (3, 4), (4, 90_000), correlation=2, stream=4),
        call("cudaEventRecord", 5, 6, correlation=9),
        call("cudaStreamWaitEvent", 7, 8, correlation=10),
        *launched_kernel("b", (9, 10), (90_010, 90_050), correlation=3),
        sync(
            "Stream Wait Event", 7, 8, stream=7, correlation=10, wait_on_stream=4, wait_on_cuda_event_record_corr_id=9
        ),
    )
    (track,) = [annotation for annotation in findings.annotations if one_is(annotation, "Idle stream 7")]
    busy = [place for place, each in enumerate(slices_of(track)) if each["name"] == "other_stream_busy"]
    assert [track.inner.values[track.inner.codes[place]] for place in busy] == ["stream 4: ncclDevKernel"]


# A gap is named by the frame that covers it, not by the operator that ends it.
US = 1_000


def gap(begin_us: int, *, stacks: bool = True) -> Trace:
    """The device waits from 10 to 230 us; the operator that ends the gap begins at ``begin_us``, a frame before it."""
    frame = Event(Category.PYTHON_FUNCTION, "preprocess", 11 * US, 228 * US, Track(0, 100, 1))
    return trace_of(
        *launched_kernel("gemm", (0, 1 * US), (2 * US, 10 * US), correlation=1),
        *([frame] if stacks else []),
        op("aten::copy_", begin_us * US, 230 * US),
        *launched_kernel("gemm", (229 * US, 230 * US), (230 * US, 240 * US), correlation=2),
    )


@pytest.mark.parametrize(("trace", "name"), [
    (gap(227), "preprocess"),
    (gap(227, stacks=False), "several, longest aten::copy_"),  # nothing else is known
    (gap(20), "aten::copy_"),
])  # fmt: skip
def test_who_covers_a_gap_is_named(trace: Trace, name: str) -> None:
    findings = analyze(trace)
    (track,) = (each for each in findings.annotations if isinstance(each, SliceTrack) and each.name == "Idle")
    assert [track.inner.values[code] for code in track.inner.codes] == [name]
    flows = [each for each in findings.annotations if isinstance(each, Flows)]
    assert trace.names_of(flows[-1].out.rows) == [name.removeprefix("several, longest ")]
