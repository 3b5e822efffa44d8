"""The critical path of tiny traces whose path is known."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from augment.analyses import critical_path, critical_path_operators
from augment.core import Category, Flows, Skipped, Track
from augment.facts.critical.longest_path import DRAWN, KINDS
from tables import (
    Event,
    annotation,
    call,
    copy,
    kernel,
    launched_kernel,
    op,
    python,
    rows_of,
    slices_of,
    sync,
    trace_of,
)

KIND_OF = dict(zip(DRAWN, KINDS, strict=True))


def path_of(*events: Event) -> list[tuple[str, int]]:
    """What each drawn slice of the path is bound by, and how long."""
    track = critical_path.analyze(trace_of(*events)).annotations[0]
    return [(KIND_OF[each["name"]], each["dur"]) for each in slices_of(track)]


def sums_of(*events: Event) -> dict[str, int]:
    """The time of each kind, where there is one step or none."""
    return dict(rows_of(critical_path.analyze(trace_of(*events)), "bound_by", "time_ns"))


def arrows_of(*events: Event) -> set[tuple[int, int]]:
    """From when to when arrows lead."""
    trace = trace_of(*events)
    flows = [annotation for annotation in critical_path.analyze(trace).annotations if isinstance(annotation, Flows)]
    return {pair for flow in flows
            for pair in zip(flow.out.times(trace).tolist(), flow.into.times(trace).tolist(), strict=True)}  # fmt: skip


def saved_by(*events: Event) -> dict[str, int]:
    """What the recording would gain without each name."""
    return dict(rows_of(critical_path_operators.analyze(trace_of(*events)), "name", "saved_ns"))


GPU_BOUND = (
    annotation("ProfilerStep#3", 0, 100),
    op("aten::mm", 5, 20),
    call("cudaLaunchKernel", 10, 15, correlation=1),
    op("aten::add", 20, 30),
    call("cudaLaunchKernel", 22, 28, correlation=2),
    kernel("gemm", 17, 60, correlation=1),
    kernel("add", 62, 80, correlation=2),
    call("cudaDeviceSynchronize", 40, 85),
)


def test_a_device_that_is_never_idle_holds_the_path() -> None:
    assert path_of(*GPU_BOUND) == [
        ("outside_operators", 5), ("cpu_operator", 5), ("launch_delay", 7), ("kernel_computation", 43),
        ("kernel_gap", 2), ("kernel_computation", 18), ("sync", 5), ("outside_operators", 15),
    ]  # fmt: skip
    assert rows_of(critical_path.analyze(trace_of(*GPU_BOUND)), "step", "bound_by", "time_ns", "time_ratio") == [
        (3, "cpu_operator", 5, 0.05), (3, "outside_operators", 20, 0.2), (3, "launch_delay", 7, 0.07),
        (3, "kernel_computation", 61, 0.61), (3, "kernel_gap", 2, 0.02), (3, "sync", 5, 0.05),
    ]  # fmt: skip
    blocking = annotation("ProfilerStep#3", 0, 100), *launched_kernel("k", (20, 90), (30, 80), correlation=1)
    busy = rows_of(critical_path.analyze(trace_of(*blocking)), "bound_by", "time_ns", "device_busy_ns")
    assert busy == [("runtime_call", 70, 50), ("outside_operators", 30, 0)]


def test_arrows_lead_along_the_path_from_track_to_track() -> None:
    assert arrows_of(*GPU_BOUND) == {(10, 17), (62, 85)}


def test_slices_tell_their_source_and_correlation() -> None:
    track = critical_path.analyze(trace_of(*GPU_BOUND)).annotations[0]
    rows = {(each["name"], each["ts"]): (each.get("source"), each.get("correlation")) for each in slices_of(track)}
    assert rows["host: op", 5] == ("aten::mm", None)
    assert rows["launch delay", 10] == ("gemm", 1)
    assert rows["compute", 17] == ("gemm", 1)
    assert rows["sync", 80] == ("cudaDeviceSynchronize", None)
    assert rows["host: other", 0] == ("ProfilerStep#3", None)


def test_a_step_recorded_as_operator_names_nothing_that_lies_in_another() -> None:
    """As profilers did until 2021, and Ascend's do."""
    fetch = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    trace = trace_of(
        op("ProfilerStep#1", 0, 100), op(fetch, 10, 40), op("aten::stack", 20, 30), op("aten::mm", 50, 70),
        call("cudaLaunchKernel", 60, 65, correlation=1), kernel("gemm", 66, 90, correlation=1),
    )  # fmt: skip
    inner = [
        (KIND_OF[each["name"]], each.get("source")) for each in slices_of(critical_path.analyze(trace).annotations[0])
    ]
    assert ("data_loading", fetch) in inner
    assert ("cpu_operator", "aten::mm") in inner
    assert {name for kind, name in inner if kind == "data_loading"} == {fetch}


def test_a_late_host_holds_the_path() -> None:
    events = (
        op("aten::mm", 0, 20),
        *launched_kernel("gemm", (10, 15), (14, 24), correlation=1),
        op("aten::slow", 20, 90),
        *launched_kernel("add", (80, 84), (86, 96), correlation=2),
    )
    assert path_of(*events) == [
        ("cpu_operator", 10), ("runtime_call", 5), ("cpu_operator", 5), ("cpu_operator", 60), ("launch_delay", 6),
        ("kernel_computation", 10),
    ]  # fmt: skip
    assert saved_by(*events)["aten::slow"] == 60  # its own time before the launch; what follows it is off the path
    assert "gemm" not in saved_by(*events)


def test_what_a_kernel_hides_is_not_gained() -> None:
    gained = saved_by(*GPU_BOUND)
    assert gained == {"gemm": 33, "add": 18, "ProfilerStep#3": 20, "aten::mm": 5}
    # without gemm, add starts at 29 (the fastest launch takes 7), the call returns at 29 + 18 + 5, and 15 follow


def test_a_wait_that_was_over_when_it_began_is_the_calls_own_time() -> None:
    assert path_of(
        op("aten::mm", 0, 20),
        *launched_kernel("gemm", (10, 15), (14, 24), correlation=1),
        call("cudaDeviceSynchronize", 40, 50),
    ) == [
        ("cpu_operator", 10), ("runtime_call", 5), ("cpu_operator", 5), ("outside_operators", 20), ("runtime_call", 10),
    ]  # fmt: skip


def test_a_stream_waits_for_an_event_of_another() -> None:
    events = (
        call("cudaLaunchKernel", 0, 2, correlation=1),
        call("cudaEventRecord", 3, 4, correlation=2),
        call("cudaStreamWaitEvent", 5, 6, correlation=3),
        call("cudaLaunchKernel", 7, 9, correlation=4),
        kernel("slow", 4, 90, correlation=1, stream=7),
        kernel("waits", 93, 99, correlation=4, stream=20),
        sync(
            "Stream Wait Event", 5, 6, stream=20, correlation=3, wait_on_stream=7, wait_on_cuda_event_record_corr_id=2
        ),
    )
    assert path_of(*events) == [
        ("launch_delay", 4), ("kernel_computation", 86), ("sync", 3), ("kernel_computation", 6),
    ]  # fmt: skip
    assert arrows_of(*events) == {(0, 4), (4, 93)}


def test_an_event_covers_what_was_launched_before_it_was_recorded() -> None:
    events = [
        *launched_kernel("awaited", (0, 2), (4, 38), correlation=1),
        call("cudaEventRecord", 3, 4, correlation=2),
        *launched_kernel("not awaited", (5, 6), (38, 39), correlation=5),
        call("cudaEventSynchronize", 8, 40, correlation=3),
        op("after", 40, 90),
    ]
    output = sync("Event Sync", 8, 40, correlation=3, wait_on_stream=7, wait_on_cuda_event_record_corr_id=2)
    assert sums_of(*events, output)["sync"] == 2
    assert sums_of(*events)["sync"] == 1  # untold, the last work to end counts


def test_an_event_of_a_stream_without_work_waits_for_the_others() -> None:
    """The default stream waits for the streams beside it."""
    events = [
        *launched_kernel("awaited", (0, 2), (4, 78), correlation=1, stream=13),
        call("cudaEventRecord", 3, 4, correlation=2),
        call("cudaEventSynchronize", 8, 80, correlation=3),
        op("after", 80, 90),
    ]
    output = sync("Event Sync", 8, 80, correlation=3, wait_on_stream=7, wait_on_cuda_event_record_corr_id=2)
    assert sums_of(*events, output) == {
        "cpu_operator": 10, "launch_delay": 4, "kernel_computation": 74, "sync": 2,
    }  # fmt: skip
    later = launched_kernel("of the stream, but later", (5, 6), (6, 7), correlation=5)
    assert sums_of(*events, *later, output) == sums_of(*events, output)


def test_a_stream_sync_waits_for_its_stream_alone() -> None:
    events = [
        *launched_kernel("mine", (0, 2), (3, 40), correlation=1, stream=7),
        *launched_kernel("theirs", (2, 4), (5, 48), correlation=2, stream=8),
        call("cudaStreamSynchronize", 5, 50, correlation=3),
        op("after", 50, 90),
    ]
    output = sync("Stream Sync", 5, 50, stream=7, correlation=3)
    assert sums_of(*events, output) == {
        "cpu_operator": 40, "launch_delay": 3, "kernel_computation": 37, "sync": 10,
    }  # fmt: skip


def test_a_copy_to_the_host_blocks_its_call() -> None:
    assert path_of(
        op("aten::item", 0, 60),
        call("cudaMemcpyAsync", 10, 50, correlation=1),
        copy("Memcpy DtoH (Device -> Pageable)", 14, 46, correlation=1),
    ) == [("cpu_operator", 10), ("launch_delay", 4), ("kernel_memory", 32), ("sync", 4), ("cpu_operator", 10)]


def test_work_of_a_graph_follows_its_launch() -> None:
    assert path_of(
        call("cudaGraphLaunch", 0, 5, correlation=1),
        kernel("a", 8, 20, correlation=1),
        kernel("b", 21, 30, correlation=1),
        kernel("c", 9, 40, correlation=1, stream=8),
    ) == [("launch_delay", 9), ("kernel_computation", 31)]


def test_a_late_start_is_put_down_to_the_stream_that_has_just_ended() -> None:
    assert path_of(
        *launched_kernel("ncclDevKernel_AllReduce", (0, 2), (5, 100_000), correlation=1, stream=20),
        *launched_kernel("optimizer", (3, 5), (101_000, 110_000), correlation=2, stream=7),
    ) == [("launch_delay", 5), ("kernel_communication", 99_995), ("sync", 1_000), ("kernel_computation", 9_000)]


def test_so_is_one_of_work_that_was_queued_before_the_recording() -> None:
    assert path_of(
        call("cudaLaunchKernel", 0, 2, correlation=1),
        kernel("gemm", 0, 5, stream=7),
        kernel("ncclDevKernel_AllReduce", 3, 100_000, stream=20),
        kernel("optimizer", 101_000, 110_000, stream=7),
    ) == [("idle", 3), ("kernel_communication", 99_997), ("sync", 1_000), ("kernel_computation", 9_000)]


def test_work_without_a_launch_was_launched_with_what_is_before_it() -> None:
    launched_early = (
        call("cudaLaunchKernel", 0, 2, correlation=1),
        kernel("one", 5, 10, correlation=1, stream=7),
        call("cudaLaunchKernel", 12, 14, correlation=2),
        kernel("ncclDevKernel_AllReduce", 15, 100_000, correlation=2, stream=20),
    )
    assert sums_of(*launched_early, kernel("unknown", 101_000, 101_010, stream=7))["sync"] == 1_000
    launched_late = call("cudaLaunchKernel", 100_950, 100_960, correlation=3)
    late = kernel("two", 100_970, 100_980, correlation=3, stream=7)
    result = sums_of(*launched_early, launched_late, late, kernel("unknown", 101_000, 101_010, stream=7))
    assert ("sync" in result, result["kernel_gap"]) == (False, 20)


def test_a_late_start_without_a_reason_is_idle() -> None:
    assert sums_of(
        *launched_kernel("one", (0, 2), (5, 10), correlation=1),
        *launched_kernel("two", (3, 5), (101_000, 101_010), correlation=2),
    ) == {"launch_delay": 5, "kernel_computation": 15, "idle": 100_990}


def backward(*, flows: bool = False) -> list[Event]:
    """A forward pass on one thread, a backward pass on another while the first waits, an optimizer on the first."""
    name = "MulBackward0" if flows else "autograd::engine::evaluate_function: MulBackward0"
    return [
        op("forward", 0, 20),
        op(name, 25, 60, thread=2),
        op(name, 62, 70, thread=2),
        op("optimizer", 74, 80),
        call("cudaLaunchKernel", 30, 33, thread=2, correlation=1),
        kernel("k", 35, 36, correlation=1),
    ]


def test_threads_take_turns() -> None:
    assert path_of(*backward()) == [
        ("cpu_operator", 20), ("thread_handover", 5), ("cpu_operator", 5), ("runtime_call", 3), ("cpu_operator", 27),
        ("outside_operators", 2), ("cpu_operator", 8), ("thread_handover", 4), ("cpu_operator", 6),
    ]  # fmt: skip


def test_a_thread_takes_its_turn_a_nanosecond_before_the_other_is_done() -> None:
    """As times are rounded: it waited for the other all the same."""
    name = "autograd::engine::evaluate_function: MulBackward0"
    later = [op("forward", 0, 1_000), op(name, 999, 2_000, thread=2), op("optimizer", 3_000, 4_000)]
    again = [op("forward", 5_000, 6_000), op(name, 5_999, 7_000, thread=2), op("optimizer", 7_500, 8_000)]
    launched = [call("cudaLaunchKernel", 7_600, 7_610, correlation=1), kernel("k", 7_700, 7_710, correlation=1)]
    assert ("thread_handover", 1_000) in path_of(*later, *again, *launched)


def test_a_thread_that_works_for_no_other_is_not_waited_for() -> None:
    assert path_of(
        op("one", 0, 20), op("loader", 25, 60, thread=2), op("two", 74, 80), call("cudaLaunchKernel", 75, 76)
    ) == [
        ("cpu_operator", 20),
        ("outside_operators", 54),
        ("cpu_operator", 1),
        ("runtime_call", 1),
        ("cpu_operator", 4),
    ]


def test_a_data_loader_and_all_within_it_is_data_loading() -> None:
    sums = sums_of(
        annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, 50),
        op("aten::stack", 10, 30),
        op("aten::mm", 50, 60),
        call("cudaLaunchKernel", 55, 56),
    )
    assert sums == {"data_loading": 50, "cpu_operator": 9, "runtime_call": 1}


def test_the_path_is_cut_at_steps() -> None:
    trace = trace_of(
        annotation("ProfilerStep#1", 0, 30),
        annotation("ProfilerStep#2", 30, 60),
        *launched_kernel("gemm", (10, 15), (20, 50), correlation=1),
        call("cudaDeviceSynchronize", 35, 55),
    )
    assert rows_of(critical_path.analyze(trace), "step", "bound_by", "time_ns") == [
        (1, "outside_operators", 10), (1, "launch_delay", 10), (1, "kernel_computation", 30),
        (2, "outside_operators", 5), (2, "sync", 5),
    ]  # fmt: skip
    assert rows_of(critical_path_operators.analyze(trace), "step", "name", "time_ns", "saved_ns") == [
        (1, "gemm", 30, 20), (1, "ProfilerStep#1", 10, 10), (2, "ProfilerStep#2", 5, 5),
    ]  # fmt: skip


def full(name: str, early: int) -> list[Event]:
    """More launches than a queue holds; the last blocks until the first kernel ends and the second begins."""
    events = [call(name, index, index + 1, correlation=index) for index in range(1, 1026)]
    events += [kernel("k", 2000 * index + 3, 2000 * index + 2003, correlation=index) for index in range(1, 1026)]
    return [*events, call(name, 1030, early, correlation=1026), kernel("last", 2_060_000, 2_060_001, correlation=1026)]


def test_a_launch_onto_a_full_queue_waits_for_room() -> None:
    sums = sums_of(*full("cudaLaunchKernel", 4010), op("after", 4010, 3_000_000))
    assert sums["sync"] == 7  # the second kernel begins at 4003
    assert sums["cpu_operator"] == 3_000_000 - 4010


@pytest.mark.parametrize(
    "events",
    [
        [call("cudaLaunchKernel", 50, 55, correlation=1), kernel("early", 20, 60, correlation=1)],
        [call("cudaLaunchKernel", 0, 5), kernel("orphan", 20, 60), kernel("orphan", 10, 90, stream=8)],
        [call("cudaLaunchKernel", 0, 5, correlation=1), kernel("a", 6, 50, correlation=1), kernel("b", 20, 40)],
        [call("cudaLaunchKernel", 5, 5, correlation=1), kernel("a", 5, 5, correlation=1),
         call("cudaDeviceSynchronize", 5, 5), kernel("b", 5, 5, correlation=1), op("c", 5, 9)],
        [call("cudaDeviceSynchronize", 5, 20), call("cudaStreamSynchronize", 6, 19)],
        [msgspec.structs.replace(call("hipLaunchKernel", 0, 5, correlation=1), track=Track(None, "python", "main")),
         msgspec.structs.replace(kernel("a", 7, 50, correlation=1), track=Track(None, "gpu", "s", "gpu", "s"))],
        [call("cudaLaunchKernel", 0, 9), python("main", -5, 30), op("lone", 100, 120, thread=9)],
        [sync("Event Sync", 0, 9, correlation=7, wait_on_stream="x"),
         call("cudaEventSynchronize", 0, 9, correlation=7)],
    ],
)  # fmt: skip
def test_odd_recordings_have_a_path_without_a_gap(events: list[Event]) -> None:
    findings = critical_path.analyze(trace_of(*events))
    track: Any = findings.annotations[0]
    assert (track.dur > 0).all()
    assert (track.ts[1:] == track.ts[:-1] + track.dur[:-1]).all()
    rows = rows_of(findings, "time_ns")
    first = min(event.ts for event in events if event.track.tid != 9 and event.category != Category.CUDA_SYNC)
    last = max(event.end for event in events if event.track.tid != 9 and event.category != Category.CUDA_SYNC)
    assert sum(ns for (ns,) in rows) == last - first


def test_what_is_doubtful_is_counted() -> None:
    findings = critical_path.analyze(
        trace_of(
            *launched_kernel("early", (30, 35), (20, 60), correlation=1),
            kernel("orphan", 70, 80),
            call("cudaStreamSynchronize", 40, 50, correlation=2),
            sync("Stream Sync", 40, 50, stream=7, correlation=2),
        )
    )
    assert {diagnostic.code: diagnostic.count for diagnostic in findings.diagnostics} == {
        "gpu_work_without_launch": 1, "launch_after_kernel": 1, "wait_before_end": 1,
    }  # fmt: skip


def test_a_recording_that_takes_no_time_is_skipped() -> None:
    trace = trace_of(call("cudaLaunchKernel", 5, 5))
    assert isinstance(critical_path.analyze(trace), Skipped)
    assert isinstance(critical_path_operators.analyze(trace), Skipped)


def test_slack_is_of_what_is_off_the_path() -> None:
    trace = trace_of(
        *launched_kernel("long", (0, 2), (3, 90), correlation=1, stream=7),
        *launched_kernel("same", (2, 4), (8, 20), correlation=2, stream=8),
        *launched_kernel("same", (4, 6), (95, 99), correlation=3, stream=7),
    )
    (row,) = [each for each in rows_of(critical_path_operators.analyze(trace), "name", "count", "total_ns", "slack_ns")
              if each[0] == "same"]  # fmt: skip
    assert row == ("same", 1, 16, 99 - 20)
