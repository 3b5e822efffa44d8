"""Launches, streams and queues on the critical path: their latencies, slow calls, starts that nothing explains."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from augment.analyses import critical_path, critical_path_operators
from augment.core.trace import LAUNCHES, Trace
from augment.facts.critical.critical_graph import critical_graph
from augment.facts.critical.longest_path import BoundBy
from augment.facts.critical.longest_path import critical_path as path_of
from augment.facts.critical.what_if import saved_ns, without_host_time
from augment.facts.gpu.gpu_work import gpu_work
from augment.facts.names import LONG_CALL_NS
from augment.facts.waits import dependencies as module
from augment.facts.waits.dependencies import LONGEST_NS, launch_latencies, unexplained_starts
from augment.facts.waits.gap_causes import GapCategory, device_categories, device_gaps
from augment.readers import read
from metamorphic import CALLS, GPU_WORK, Document, later_from, load, real_trace, save
from tables import Event, annotation, call, kernel, launched, launched_kernel, op, rows_of, trace_of

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
    events = [*launched_kernel("one", (0, 5 * US), (6 * US, 1_001 * US), correlation=1)]
    events += [*launched_kernel("two", (launched * US, (launched + 5) * US), (1_000 * US, 1_500 * US), correlation=2)]
    assert sums(*events).keys() == kinds
    assert sums(*events)["launch_delay"] == (6 if launched == 100 else 20) * US


def test_work_follows_one_that_still_runs_behind_a_short_one() -> None:
    path = path_of(
        trace_of(
            *launched_kernel("long", (0, 5 * US), (6 * US, 2_001 * US), correlation=1),
            *launched_kernel("short", (5 * US, 8 * US), (20 * US, 30 * US), correlation=2),
            *launched_kernel("next", (100 * US, 105 * US), (2_000 * US, 2_500 * US), correlation=3),
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


FIRST = [call("cudaLaunchKernel", 0, 5 * US, correlation=1), kernel("a", 4 * US, 50 * US, correlation=1)]  # latency: 4


def launch(begin: int, end: int) -> Event:
    return call("cudaLaunchKernel", begin * US, end * US, correlation=2)


def second(begin: int, **where: int) -> Event:
    return kernel("b", begin * US, (begin + 10) * US, correlation=2, **where)


def without_calls(trace: Trace) -> int:
    """What is saved if no call takes time, µs."""
    rows = trace.events.slices_of(*LAUNCHES)
    start, end = trace.events.ts[rows], trace.events.ts[rows] + trace.events.dur[rows]
    return saved_ns(trace, without_host_time(trace, trace.events.track[rows], start, end)) // US


def test_time_in_which_a_call_holds_its_work_back_is_time_of_the_call() -> None:
    trace = trace_of(*FIRST, launch(10, 900), second(890))
    path = path_of(trace)
    assert path.dur[path.bound_by == BoundBy.RUNTIME_CALL].sum() // US >= 876
    assert path.dur[path.bound_by == BoundBy.LAUNCH_DELAY].sum() // US <= 4
    assert 835 <= without_calls(trace) <= 840  # the first kernel ends at 50, the second could follow
    assert device_categories(trace, device_gaps(trace)[0]).tolist() == [GapCategory.HOST_WAIT]


def test_the_delay_after_a_call_stays() -> None:
    """Nobody knows what kept the work after the call had returned."""
    trace = trace_of(*FIRST, launch(10, 500), second(890))
    assert without_calls(trace) == 5 + 490  # the delay of 390 stays
    assert device_categories(trace, device_gaps(trace)[0]).tolist() == [GapCategory.HOST_WAIT]  # for most of the gap
    late = trace_of(*FIRST, launch(10, 100), second(890))
    assert device_categories(late, device_gaps(late)[0]).tolist() == [GapCategory.OTHER]


@pytest.mark.parametrize("others", [
    [launch(10, 20), second(400)],  # an ordinary call: what kept its work is not known
    [launch(10, 300), second(52)],  # its work followed the work before it
    [launch(10, 300), second(31, stream=8)],  # it handed its work over soon
], ids=["short", "queued", "at once"])  # fmt: skip
def test_other_launches_count_from_the_start_of_their_call(others: list[Event]) -> None:
    trace = trace_of(*FIRST, *others)
    graph = critical_graph(trace)
    edges = np.flatnonzero(graph.from_row == np.flatnonzero(trace.events.correlation[:] == 2)[0])
    assert (graph.ts[graph.source[edges]] == 10 * US).all()


def test_work_that_waited_for_another_stream_did_not_wait_for_its_call() -> None:
    other = [*launched_kernel("c", (6 * US, 9 * US), (12 * US, 200 * US), stream=9, correlation=3)]
    assert without_calls(trace_of(*FIRST, *other, launch(10, 260), second(203))) <= 70


def held_back(document: Document, ns: int) -> Document:
    """The document in which one launch onto an idle device takes ``ns`` longer, and hands its work over as much later.
    All that began later comes later."""
    events = [event for event in document["traceEvents"] if event.get("ph") == "X"]
    work = {event["args"]["correlation"]: event for event in events if event.get("cat") in GPU_WORK}
    calls = [event for event in events if event.get("cat") in CALLS and "LaunchKernel" in event["name"]]
    in_order = sorted(work.values(), key=lambda event: event["ts"])
    ended: dict[int, Decimal] = {}
    reached = in_order[0]["ts"]
    for event in in_order:
        ended[event["args"]["correlation"]] = reached
        reached = max(reached, event["ts"] + event["dur"])
    calls = [each for each in calls if (code := each["args"].get("correlation")) in work and ended[code] < each["ts"]]
    chosen = calls[len(calls) // 2]
    return later_from(document, chosen["ts"], chosen, Decimal(ns) / 1000)


@pytest.mark.parametrize(
    "name",
    ["hta_amd_mi250/mi250_minitoy_train_ROCm6_2.json.gz", "pairs_h100_vs_mi300_tracelens/bert_small_h100.json.gz",
     "pairs_h100_vs_mi300_tracelens/nsfw_vit_mi300.json.gz"],
)  # fmt: skip
def test_a_call_that_is_made_longer_saves_as_much_more(tmp_path: Path, name: str) -> None:
    """Metamorphic: the recording is longer by what the call takes longer, so without it as much more is saved."""
    document = load(real_trace(name))
    longer_ns = 40_000_000
    changed = held_back(document, longer_ns)
    saved = []
    for place, each in enumerate((document, changed)):
        trace = read(str(save(each, tmp_path / f"{place}.json")))
        rows = trace.events.slices_of(*LAUNCHES)
        rows = rows[trace.events.dur[rows] >= LONG_CALL_NS]
        start, end = trace.events.ts[rows], trace.events.ts[rows] + trace.events.dur[rows]
        saved.append(saved_ns(trace, without_host_time(trace, trace.events.track[rows], start, end)))
    assert saved[1] - saved[0] == pytest.approx(longer_ns, rel=0.02)


def causes(*events: Event) -> dict[str, str]:
    """The work that each late piece of work is taken to wait for, by name. Everything was ready at 100 µs."""
    trace = trace_of(*(replace(event, ts=event.ts * 1000, end=event.end * 1000) for event in events))
    waits = unexplained_starts(trace, np.minimum(gpu_work(trace).ts, 100_000)).dependencies
    names = trace.names_of(gpu_work(trace).row)
    return {names[late]: names[cause] for cause, late in zip(waits.from_work, waits.to_work, strict=True)}


def test_a_late_start_follows_the_work_that_ended_just_before() -> None:
    assert causes(*launched("reduce", 10, 90, 900, 20, 1), *launched("b", 30, 903, 990, 7, 2)) == {"b": "reduce"}


def test_work_launched_later_counts_only_without_another() -> None:
    """It may have occupied the device."""
    late = launched("b", 30, 903, 990, 7, 2), launched("reduce", 40, 90, 900, 20, 1)
    assert causes(*late[0], *late[1]) == {"b": "reduce"}
    assert causes(*late[0], *late[1], *launched("gather", 20, 90, 880, 21, 3)) == {"b": "gather"}


def test_of_two_ends_the_work_that_was_launched_first_counts() -> None:
    later = launched("reduce", 40, 90, 900, 20, 1)
    ending = launched("gather", 20, 90, 905, 21, 3)  # ends after the start, within the error of clocks
    assert causes(*launched("b", 30, 903, 990, 7, 2), *later, *ending) == {"b": "gather"}


def test_of_two_streams_that_end_together_the_one_that_is_waited_for_elsewhere_counts() -> None:
    """Computation waits for gathers of parameters, beside which gradients are scattered, and never for these alone."""
    alone = [*launched("gather", 20, 190, 900, 21, 1), *launched("a", 30, 903, 990, 7, 2)]
    both = [*launched("gather", 50, 1_090, 1_900, 21, 3), *launched("scatter", 40, 1_090, 1_901, 20, 4)]
    assert causes(*alone, *both, *launched("b", 60, 1_904, 1_990, 7, 5))["b"] == "gather"
    assert causes(*both, *launched("b", 60, 1_904, 1_990, 7, 5))["b"] == "scatter"


def test_work_of_unknown_launch_may_be_waited_for() -> None:
    assert causes(kernel("reduce", 90, 900, stream=20), *launched("b", 30, 903, 990, 7, 2)) == {"b": "reduce"}
