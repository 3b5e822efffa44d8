"""Windows and figures of steps: by hand, and beside a slow reckoning moment by moment."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import asdict

from augment import Findings, Trace, augment, read
from augment.analyses import steps
from augment.facts.gpu.gpu_work import gpu_work
from augment.facts.names import KernelType
from augment.facts.steps.step_windows import region_windows, step_numbers, step_of_work, step_windows
from augment.facts.steps.step_windows import steps as steps_of
from augment.results.report.of_trace import step_parts
from tables import Event, annotation, call, copy, kernel, launched_kernel, op, rows_of, slices_of, trace_of

NAME = "steps"


def jobs(seed: int) -> list[Event]:
    """Steps of a host that runs ahead of two streams, now and then."""
    rng = random.Random(seed)
    events: list[Event] = [kernel("early", 5, 40, correlation=5)]  # launched before the recording
    free, at = {7: 0, 20: 0}, 10
    for number in range(4):
        begin = at
        for _ in range(rng.randrange(number // 3, 4)):  # a last step that does nothing has no window
            correlation, stream = 10 + len(events), rng.choice([7, 20])
            name = rng.choice(["gemm", "ncclDevKernel_AllReduce", "Memcpy HtoD"])
            start = max(at + rng.randrange(2, 8), free[stream])
            free[stream] = start + rng.randrange(1, 60)
            make = copy if name.startswith("Memcpy") else kernel
            events += [call("cudaLaunchKernel", at, at + 4, correlation=correlation),
                       make(name, start, free[stream], stream=stream, correlation=correlation)]  # fmt: skip
            at += rng.randrange(5, 20)
        at += 3
        if rng.random() < 0.4:
            at = max(at, *free.values())
        events.append(annotation(f"ProfilerStep#{number + 5}", begin, at))
        at += rng.randrange(3)
    return events


def slow_windows(events: list[Event]) -> list[tuple[int, int]]:
    """From the definition: all work launched before the begin is done, all launched before the end is done."""
    launched = {e.correlation: e.ts for e in events if e.name == "cudaLaunchKernel"}
    on_device = [e for e in events if e.track.device is not None]
    work = []
    for each in on_device:
        linked = [e.ts for e in on_device if e.track == each.track and e.correlation in launched]
        leads = bool(linked) and each.correlation not in launched and each.ts < min(linked)
        work.append((-1 if leads else launched.get(each.correlation, each.ts), each.end))
    windows = []
    for each in sorted((e for e in events if e.name.startswith("Profiler")), key=lambda e: e.ts):
        start = max([each.ts, *(done for at, done in work if at < each.ts)])
        windows.append((start, max([start, each.end, *(done for at, done in work if at < each.end)])))
    return windows


@pytest.mark.parametrize("seed", range(30))
def test_as_reckoned_moment_by_moment(seed: int) -> None:
    events = jobs(seed)
    trace = trace_of(*events)
    windows = step_windows(trace)
    expected = slow_windows(events)
    assert list(zip(windows.start.tolist(), windows.end.tolist(), strict=True)) == expected
    running = {kind: [e for e in events if e.track.device is not None and e.name.startswith(kind)]
               for kind in ("gemm", "nccl", "Memcpy", "early")}  # fmt: skip
    sums = []
    for start, end in expected:
        owned = {"compute": 0, "communication": 0, "memory": 0, "idle": 0}
        for moment in range(start, end):
            runs = {kind for kind, some in running.items() if any(e.ts <= moment < e.end for e in some)}
            compute = runs & {"gemm", "early"}
            owned["compute" if compute else "communication" if "nccl" in runs else "memory" if runs else "idle"] += 1
        sums.append((end - start, *owned.values()))
    columns = ("wall_ns", "compute_ns", "exposed_communication_ns", "exposed_memory_ns", "idle_ns")
    outcome = augment(trace, only=[NAME]).outcomes[NAME]
    assert rows_of(outcome, *columns) == sums
    for row in outcome.rows:
        assert row.busy_ns + row.idle_ns == row.wall_ns
        assert row.host_wait_ns + row.kernel_wait_ns + row.other_wait_ns == row.idle_ns


def test_work_launched_before_the_recording_is_of_no_step() -> None:
    trace = trace_of(*jobs(3))
    step = step_of_work(trace, step_windows(trace))
    (early,) = np.flatnonzero([name == "early" for name in trace.names_of(gpu_work(trace).row)])
    assert step[early] == -1
    assert (np.delete(step, early) >= 0).all()


def test_the_first_window_takes_in_no_work_launched_before_it() -> None:
    """Three pieces were queued when the recording began, on two streams; the fourth is the step's own."""
    trace = trace_of(
        kernel("before", 0, 30, correlation=1), kernel("before", 30, 60, correlation=3),
        kernel("before", 40, 70, stream=20, correlation=2),
        annotation("ProfilerStep#1", 10, 50), call("cudaLaunchKernel", 12, 14, correlation=11),
        kernel("own", 60, 110, correlation=11), call("cudaLaunchKernel", 20, 22, correlation=12),
        kernel("own", 70, 80, stream=20, correlation=12),
        annotation("ProfilerStep#2", 50, 90), call("cudaLaunchKernel", 60, 62, correlation=13),
        kernel("own", 110, 150, correlation=13),
    )  # fmt: skip
    outcome = augment(trace, only=[NAME]).outcomes[NAME]
    assert rows_of(outcome, "step", "wall_ns", "backlog_ns") == [(1, 40, 60), (2, 40, 60)]


def test_where_most_launches_are_lost_none_is_called_before_the_recording() -> None:
    trace = trace_of(
        annotation("ProfilerStep#1", 0, 100), call("cudaLaunchKernel", 60, 62, correlation=1),
        kernel("lost", 10, 20), kernel("lost", 30, 40), kernel("own", 65, 70, correlation=1),
        kernel("lost", 80, 82), kernel("lost", 90, 92),
    )  # fmt: skip
    assert rows_of(augment(trace, only=[NAME]).outcomes[NAME], "wall_ns", "backlog_ns") == [(100, 0)]


def test_without_launches_work_is_of_the_step_in_which_it_begins() -> None:
    trace = trace_of(annotation("ProfilerStep#1", 0, 50), annotation("ProfilerStep#2", 50, 100),
                     kernel("a", 10, 20), kernel("b", 60, 70))  # fmt: skip
    assert step_of_work(trace, step_windows(trace)).tolist() == [0, 1]


def test_a_recording_without_steps_is_one_window() -> None:
    events = [op("aten::mm", 3, 20), call("cudaLaunchKernel", 5, 8, correlation=1)]
    outcome = augment(trace_of(*events, kernel("gemm", 10, 70, correlation=1)), only=[NAME]).outcomes[NAME]
    columns = ("step", "wall_ns", "busy_ns", "host_wait_ns", "backlog_ns")
    assert rows_of(outcome, *columns) == [(None, 60, 60, 0, 7)], "what the device did before its first work is unknown"
    after = [annotation("ncclCommDestroy", 20, 500), op("aten::item", 80, 400), call("cudaEventQuery", 90, 95)]
    later = trace_of(*events, kernel("gemm", 10, 70, correlation=1), *after)
    outcome = augment(later, only=[NAME]).outcomes[NAME]
    assert rows_of(outcome, *columns) == [(None, 60, 60, 0, 7)], "the end of a process is no idle time"


@pytest.mark.parametrize("lead", [0, 500, 40_000_000])
def test_time_before_the_first_work_belongs_to_nobody(lead: int) -> None:
    """However long before that the recording begins, as of a server whose device still does what no file has."""
    waits = [op("aten::to", 0, lead + 900), call("cudaStreamSynchronize", 100, lead + 800)]
    work = [(lead + 1000, lead + 3000), (lead + 3500, lead + 6000)]
    launch = [call("cudaLaunchKernel", lead + 950 + i, lead + 970 + i, correlation=i) for i in (1, 2)]
    kernels = [kernel("gemm", *span, correlation=i) for i, span in enumerate(work, 1)]
    outcome = augment(trace_of(*waits, *launch, *kernels), only=[NAME]).outcomes[NAME]
    columns = ("wall_ns", "busy_ns", "idle_ns", "backlog_ns")
    assert rows_of(outcome, *columns) == [(5000, 4500, 500, lead + 1000)]


@pytest.mark.parametrize(("launched", "host_wait_ns", "other_wait_ns"), [
    ((5_000, 8_000), 8_000, 92_000),  # long after its launch returned: the host did not hold it up
    ((5_000, 70_000), 70_000, 30_000),
    ((5_000, 70_001), 100_000, 0),  # as long as a launch may take
    (None, 0, 100_000),  # nobody knows
])  # fmt: skip
def test_the_host_is_waited_for_until_the_first_launch_returns(
    launched: tuple[int, int] | None, host_wait_ns: int, other_wait_ns: int
) -> None:
    calls = [call("cudaLaunchKernel", *launched, correlation=1)] if launched else []
    step = annotation("ProfilerStep#1", 0, 200_000)
    trace = trace_of(step, op("aten::mm", 0, 90_000), *calls, kernel("gemm", 100_000, 200_000, correlation=1))
    outcome = augment(trace, only=[NAME]).outcomes[NAME]
    assert rows_of(outcome, "host_wait_ns", "other_wait_ns") == [(host_wait_ns, other_wait_ns)]


def test_the_host_alone_has_no_figures_of_a_device() -> None:
    outcome = augment(trace_of(annotation("ProfilerStep#1", 0, 50)), only=[NAME]).outcomes[NAME]
    assert rows_of(outcome, "step", "device", "wall_ns", "busy_ns") == [(1, None, 50, None)]


def test_the_host_alone_runs_operators_waits_in_collectives_or_does_neither() -> None:
    """Of 100 ns: 30 in operators of two threads, 40 in a collective, 10 of which an operator runs beside."""
    ran = op("aten::mm", 10, 30), op("aten::mm", 20, 40, thread=2)
    outcome = augment(
        trace_of(annotation("ProfilerStep#1", 0, 100), *ran, annotation("gloo:all_reduce", 30, 70, thread=3)),
        only=[NAME],
    ).outcomes[NAME]
    parts = rows_of(outcome, "operator_ns", "host_collective_ns", "outside_ns")
    assert parts == [(30, 30, 40)]
    assert isinstance(outcome, Findings)
    sidecar = {"analyses": {"steps": {"status": "done", "rows": [*map(asdict, outcome.rows)]}}, "source": {}}
    assert [share for _, share, _ in step_parts(sidecar)] == [0.3, 0.3, 0.4]


def test_regions_do_not_overlap() -> None:
    trace = trace_of(
        annotation("region", 0, 30), annotation("region", 10, 20), annotation("region", 30, 45), kernel("gemm", 5, 50)
    )
    result = region_windows(trace, "region")
    assert (result.number.tolist(), result.begin.tolist(), result.end.tolist()) == ([0, 1], [0, 30], [50, 50])
    assert len(region_windows(trace, "nothing")) == 0


def test_work_of_negative_duration_leaves_the_step_as_long_as_it_is() -> None:
    """As CUPTI records it now and then; the parts of a step sum to the step."""
    events = [annotation("ProfilerStep#1", 0, 100)]
    events += [kernel("gemm", ts, end, stream=stream) for ts, end, stream in ((10, 20, 7), (40, 33, 20), (90, 84, 7))]
    outcome = augment(trace_of(*events), only=[NAME]).outcomes[NAME]
    assert rows_of(outcome, "wall_ns", "busy_ns", "idle_ns") == [(100, 10, 90)]


def step(number: int, ts: int, end: int) -> Event:
    return annotation(f"ProfilerStep#{number}", ts, end)


def test_what_is_a_step() -> None:
    """Of the oldest recordings they are operators; a number beyond 64 bits is none."""
    names = [f"ProfilerStep#{what}" for what in ("", "x", "-1", "9" * 19, "9" * 5000)]
    odd = [annotation(name, 10 * k, 10 * k + 10) for k, name in enumerate(names)]
    trace = trace_of(
        *odd, step(7, 100, 200), annotation("ProfilerStep#8", 150, 160), op("ProfilerStep # 009", 200, 210)
    )
    assert steps_of(trace).number.tolist() == [7, 9]
    assert step_numbers(trace) == [7, 8, 9]


def test_an_outlier() -> None:
    lengths = [100, 101, 99, 100, 102, 98, 150]
    starts = np.cumsum([0, *lengths]).tolist()
    trace = trace_of(*(step(k, starts[k], starts[k + 1]) for k in range(len(lengths))))
    deviation = 1 / 0.6745
    assert rows_of(steps.analyze(trace), "robust_z", "is_outlier", "median_ratio") == [
        (pytest.approx((length - 100) / deviation), length == 150, length / 100) for length in lengths
    ]


def test_equal_steps_have_no_outliers() -> None:
    trace = trace_of(*(step(k, 10 * k, 10 * k + 10) for k in range(5)))
    assert rows_of(steps.analyze(trace), "robust_z") == [(None,)] * 5


def test_real_traces(shared_traces: Path) -> None:
    for name in ("h100_8rank_modded_nanogpt/rank3.json.gz", "rtx3060_luatil/trace_04.json.gz",
                 "hta_amd_mi250/mi250_minitoy_train_ROCm6_2.json.gz"):  # fmt: skip
        assert compare(read(str(shared_traces / name))) > 0


def compare(trace: Trace) -> int:
    """Against a sweep over every start and end within each step; how many rows there are."""
    findings = steps.analyze(trace)
    work, known = gpu_work(trace), step_windows(trace)
    pieces = list(zip(work.ts.tolist(), work.end.tolist(), work.type.tolist(), strict=True))
    (device,) = work.devices
    for row, start, end in zip(findings.rows, known.start.tolist(), known.end.tolist(), strict=True):
        sums = dict.fromkeys(("compute", "communication", "memory", "idle"), 0)
        inside = [(max(a, start), min(b, end), kind) for a, b, kind in pieces if a < end and b > start]
        for left, right in pairwise(sorted({start, end, *(a for a, _, _ in inside), *(b for _, b, _ in inside)})):
            running = {kind for a, b, kind in inside if a <= left < b}
            what = (
                "compute" if KernelType.COMPUTATION in running
                else "communication" if KernelType.COMMUNICATION in running
                else "memory" if running else "idle"
            )  # fmt: skip
            sums[what] += right - left
        assert (row.compute_ns, row.exposed_communication_ns, row.exposed_memory_ns, row.idle_ns) == tuple(
            sums.values()
        )
        assert row.busy_ns + row.idle_ns == row.wall_ns == end - start
        assert row.device == device.device
    assert [(row.host_start_ns, row.host_wall_ns) for row in findings.rows] == [
        (begin - int(trace.events.ts[0]), finish - begin)
        for begin, finish in zip(known.begin.tolist(), known.finish.tolist(), strict=True)
    ]
    return len(findings.rows)


def test_the_row_of_steps_shows_their_windows() -> None:
    """The host runs ahead: the second window begins when the work of the first step is done."""
    findings = steps.analyze(
        trace_of(
            step(3, 0, 1_000_000),
            step(4, 1_000_000, 2_000_000),
            *launched_kernel("gemm", (10, 20), (30, 5_000_000), correlation=1),
            *launched_kernel("gemm", (1_000_010, 1_000_020), (5_000_000, 9_500_000), correlation=2),
        )
    )
    (track,) = findings.annotations
    assert track.name == "Steps"
    assert slices_of(track) == [
        {"ts": 0, "dur": 5_000_000, "name": "step 3 (device): 5 ms", "number": 3, "host_wall_ns": 1_000_000,
         "backlog_ns": 0},
        {"ts": 5_000_000, "dur": 4_500_000, "name": "step 4 (device): 4.5 ms", "number": 4, "host_wall_ns": 1_000_000,
         "backlog_ns": 4_000_000},
    ]  # fmt: skip


def test_a_long_step_is_named_in_seconds() -> None:
    findings = steps.analyze(trace_of(annotation("ProfilerStep#1", 0, 13_340_000_000), kernel("gemm", 30, 90)))
    (track,) = findings.annotations
    assert slices_of(track)[0]["name"] == "step 1 (device): 13.34 s"
    (track,) = steps.analyze(trace_of(annotation("ProfilerStep#1", 0, 13_340_000_000))).annotations
    assert slices_of(track)[0]["name"] == "step 1 (host): 13.34 s"
