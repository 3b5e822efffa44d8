"""The latency of launches, and whether launch or stream decided when work started."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from augment.analyses import critical_path, critical_path_operators
from augment.core.trace import Trace
from augment.facts.critical.critical_path import BoundBy
from augment.facts.critical.critical_path import critical_path as path_of
from augment.facts.gpu.gpu_work import gpu_work
from augment.facts.waits import dependencies as module
from augment.facts.waits.dependencies import LONGEST_NS, launch_latencies
from tables import Event, annotation, call, kernel, op, rows_of, trace_of

US = 1000


def sums(*events: Event) -> dict[str, int]:
    return dict(rows_of(critical_path.analyze(trace_of(*events)), "bound_by", "time_ns"))


@given(st.lists(st.integers(-5, 60), max_size=40), st.sampled_from([1, 2, 4, 8]))
def test_it_is_the_least_lag_of_the_launches_that_follow(lags: list[int], reach: int) -> None:
    events = []
    for i, lag in enumerate(lags):
        start = (100 * i + lag) * US
        events.append(call("cudaLaunchKernel", 100 * i * US, (100 * i + 3) * US, correlation=i + 1))
        events.append(kernel("k", start, start + US, correlation=i + 1, stream=7 + i % 3))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_LAUNCHES", reach)
        trace = trace_of(*events, kernel("unknown", 0, 1, stream=99))
        result = dict(zip(trace.events.correlation[gpu_work(trace).row].tolist(), launch_latencies(trace), strict=True))
    for i in range(len(lags)):
        near = lags[min(i, max(len(lags) - reach, 0)) :][:reach]
        assert result[i + 1] == min((lag * US for lag in near if 0 < lag <= 30), default=LONGEST_NS)


def backlog(periods: int = 50, behind: int = 10_005) -> list[Event]:
    """A device that is ``behind`` µs later than its host from the first event on, and hardly ever idle."""
    events = []
    for i in range(periods):
        start = 200 * i
        events.append(call("cudaLaunchKernel", start * US, (start + 5) * US, correlation=1000 + i))
        events.append(kernel("earlier", (start + 5) * US, (start + 203) * US))
        begun = start + behind
        events.append(kernel("gemm", begun * US, (begun + 198) * US, correlation=1000 + i))
    return events


def test_a_device_with_a_backlog_is_bound_by_itself() -> None:
    result = sums(*backlog())
    assert result.keys() <= {"idle", "kernel_gap", "kernel_computation"}
    assert result["kernel_computation"] == 2 * 50 * 198 * US
    assert result["idle"] == 5 * US


def test_a_host_that_is_late_by_a_little_still_decides() -> None:
    """Each kernel starts 15 µs after its launch, which comes 10 µs before the kernel before it ends."""
    events = [call("hipLaunchKernel", 10 * i * US, (10 * i + 1) * US, correlation=i) for i in range(1, 100)]
    events += [kernel("k", (10 * i + 15) * US, (10 * i + 20) * US, correlation=i) for i in range(1, 100)]
    assert sums(*events)["kernel_computation"] == 5 * US  # the last


@pytest.mark.parametrize(
    ("launched", "kinds"),
    [(100, {"kernel_computation", "launch_delay"}), (980, {"outside_operators", "runtime_call", "launch_delay",
                                                           "kernel_computation"})],
)  # fmt: skip
def test_work_that_starts_while_its_stream_is_at_work(launched: int, kinds: set[str]) -> None:
    """A kernel that lets the next begin before it ends, or clocks that differ: what was launched long ago waited for
    it."""
    events = [
        call("cudaLaunchKernel", 0, 5 * US, correlation=1),
        call("cudaLaunchKernel", launched * US, (launched + 5) * US, correlation=2),
        kernel("one", 6 * US, 1_001 * US, correlation=1),
        kernel("two", 1_000 * US, 1_500 * US, correlation=2),
    ]
    assert sums(*events).keys() == kinds
    assert sums(*events)["launch_delay"] == (6 if launched == 100 else 20) * US


def test_work_follows_one_that_still_runs_behind_a_short_one() -> None:
    path = path_of(
        trace_of(
            call("cudaLaunchKernel", 0, 5 * US, correlation=1),
            call("cudaLaunchKernel", 5 * US, 8 * US, correlation=2),
            call("cudaLaunchKernel", 100 * US, 105 * US, correlation=3),
            kernel("long", 6 * US, 2_001 * US, correlation=1),
            kernel("short", 20 * US, 30 * US, correlation=2),
            kernel("next", 2_000 * US, 2_500 * US, correlation=3),
        )
    )
    assert path.bound_by.tolist() == [BoundBy.LAUNCH_DELAY, *2 * [BoundBy.KERNEL_COMPUTATION]]
    assert path.dur.tolist() == [6 * US, 1_994 * US, 500 * US]


def test_names_that_tie_are_told_in_their_own_order() -> None:
    """Not in that in which a reader met them."""
    names = ["zeta", "beta", "alpha", "epsilon", "gamma"]
    events = [op(name, 10 * i, 10 * i + 10) for i, name in enumerate(names)]
    trace = trace_of(*events, call("cudaLaunchKernel", 50, 60))
    turned = len(trace.strings) - 1 - trace.events.name
    other = Trace(msgspec.structs.replace(trace.events, name=turned), trace.strings[::-1], trace.tracks, trace.source)
    assert trace.names_of(np.arange(6)) == other.names_of(np.arange(6))
    for each in (trace, other):
        rows = rows_of(critical_path_operators.analyze(each, name_count=3), "name", "time_ns")
        assert rows == [("alpha", 10), ("beta", 10), ("cudaLaunchKernel", 10)]


def test_time_outside_operators_tells_where_it_was() -> None:
    events = [
        annotation("ProfilerStep#1", 0, 100),
        annotation("short", 20, 40),
        op("aten::mm", 60, 70),
        op("aten::mm", 110, 120),
        call("cudaLaunchKernel", 115, 116),
    ]
    findings = critical_path.analyze(trace_of(*events))
    track = findings.annotations[0]  # type: ignore[union-attr]
    source = track.args["source"]  # type: ignore[union-attr]
    rows = [source.values[code] for code in source.codes.tolist()]
    outside = BoundBy.OUTSIDE_OPERATORS
    kinds = track.names.codes.tolist()  # type: ignore[union-attr]
    assert [each for each, kind in zip(rows, kinds, strict=True) if kind == outside] == [
        "ProfilerStep#1", "ProfilerStep#1", "nothing recorded",
    ]  # fmt: skip


def test_rows_say_what_the_path_covers() -> None:
    findings = critical_path.analyze(trace_of(*backlog()))
    spans = {span for (span,) in rows_of(findings, "path_ns")}
    assert spans == {sum(ns for (ns,) in rows_of(findings, "time_ns"))} == {(50 * 200 + 10_005 - 2) * US}
    assert np.isclose(sum(ratio for (ratio,) in rows_of(findings, "time_ratio")), 1)
