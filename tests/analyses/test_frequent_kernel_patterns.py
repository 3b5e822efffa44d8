from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from augment import Findings, Skipped, read
from augment.analyses import frequent_kernel_patterns as module
from augment.core import LAUNCHES, Category
from augment.facts.gpu.gpu_work import gpu_work
from simulator import JobOptions, simulate
from tables import Event, annotation, call, kernel, op, python, rows_of, slices_of, trace_of


def launched(name: str, ts: int, correlation: int, *, stream: int = 7, thread: int = 1) -> list[Event]:
    """A call at ``ts``, and its kernel 100 ns later, which takes 10."""
    return [
        call("cudaLaunchKernel", ts, ts + 1, thread=thread, correlation=correlation),
        kernel(name, ts + 100, ts + 110, stream=stream, correlation=correlation),
    ]


def softmax(at: int, **where: Any) -> list[Event]:
    """An operator that launches a, and b through another one."""
    return [
        op("softmax", at, at + 30),
        *launched("a", at + 2, 10 * at, **where),
        op("inner", at + 10, at + 25),
        *launched("b", at + 12, 10 * at + 1, **where),
    ]


def findings_of(*events: Event, **options: Any) -> Findings:
    return module.analyze(trace_of(*events), **{"min_kernel_count": 2, **options})


def patterns_of(*events: Event, **options: Any) -> list[tuple[Any, ...]]:
    return rows_of(findings_of(*events, **options), "operator", "pattern", "count", "kernel_ns", "cpu_ns")


def test_all_that_an_operator_launches_is_its_pattern() -> None:
    events = [*softmax(1000), *softmax(2000), *launched("c", 3000, 5)]
    assert patterns_of(*events) == [("softmax", ["a", "b"], 2, 40, 60)]
    assert patterns_of(*events, min_kernel_count=1)[1:] == [("inner", ["b"], 2, 20, 30)]


def test_what_occurs_once_is_frequent_only_if_asked_for() -> None:
    assert patterns_of(*softmax(1000)) == []
    assert patterns_of(*softmax(1000), operator="soft") == [("softmax", ["a", "b"], 1, 20, 30)]


def test_of_operators_that_launch_the_same_the_innermost_stands_for_all() -> None:
    events = [op("outer", 990, 1040), op("empty", 995, 999), *softmax(1000), op("outer", 1990, 2040), *softmax(2000)]
    assert [row[0] for row in patterns_of(*events)] == ["softmax"]
    assert [row[0] for row in patterns_of(*events, operator="outer")] == ["outer"]


def test_a_name_is_looked_for_in_the_outermost() -> None:
    inner = [*softmax(1000), *softmax(1100)]
    events = [python("nn.Module: softmax_0", 900, 1500), *inner, annotation("step", 2000, 3000), *softmax(2500)]
    expected = {"nn.Module: softmax_0": 1, "softmax": 1}
    assert {row[0]: row[2] for row in patterns_of(*events, operator="softmax")} == expected
    assert [row[0] for row in patterns_of(*events, operator="softmax", at_minimum_depth=True)] == [
        "nn.Module: softmax_0"
    ]


def test_the_most_frequent_come_first_and_are_bounded() -> None:
    events = [*softmax(1000), *softmax(2000), *softmax(3000, stream=9)]
    for at in (4000, 5000):
        events += [op("gelu", at, at + 50), *launched("x", at + 1, at * 10), *launched("y", at + 5, at * 10 + 1)]
    assert [(row[0], row[2]) for row in patterns_of(*events)] == [("softmax", 3), ("gelu", 2)]
    assert [row[0] for row in patterns_of(*events, top_pattern_count=1)] == ["softmax"]


def test_launches_of_another_thread_and_of_graphs() -> None:
    events = [op("graph", 1000, 1100), *launched("elsewhere", 1010, 5, thread=2),
              call("cudaGraphLaunch", 1020, 1030, correlation=6)]  # fmt: skip
    events += [kernel(name, ts, ts + 5, stream=ts % 2, correlation=6) for name, ts in (("c", 1300), ("a", 1201))]
    assert patterns_of(*events, operator="graph") == [("graph", ["a", "c"], 1, 10, 100)]


def test_nothing_to_find_is_skipped_with_the_reason() -> None:
    assert "'linear'" in module.analyze(trace_of(*softmax(1000)), operator="linear").reason
    assert isinstance(module.analyze(trace_of(*softmax(1000)), min_kernel_count=3), Skipped)
    assert isinstance(module.analyze(trace_of(op("a", 0, 5), kernel("k", 9, 12))), Skipped)


def test_occurrences_are_marked_on_each_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    events = [*softmax(1000), *softmax(2000), *softmax(3000, stream=9)]
    foreign = kernel("foreign", 2104, 2108)  # between a and b of the second
    first, second = findings_of(*events, foreign).annotations
    assert (first.name, second.name) == ("Frequent kernel patterns stream 7", "Frequent kernel patterns stream 9")
    evidence = {"name": "softmax", "pattern": 1, "kernel_count": 2, "occurrence_count": 3}
    assert slices_of(first) == [
        {"ts": 1102, "dur": 20, **evidence},
        {"ts": 2102, "dur": 10, **evidence},
        {"ts": 2112, "dur": 10, **evidence},
    ]
    assert slices_of(second) == [{"ts": 3102, "dur": 20, **evidence}]
    monkeypatch.setattr(module, "DRAWN_AT_MOST", 2)
    bounded = findings_of(*events)
    assert len(bounded.annotations) == 1
    assert [(diagnostic.code, diagnostic.count) for diagnostic in bounded.diagnostics] == [("pattern_not_drawn", 1)]


def test_overlapping_kernels_are_marked_without_overlap() -> None:
    events = [op("a", 0, 50), call("l", 5, 6, correlation=1), call("l", 7, 8, correlation=2),
              op("a", 60, 90), call("l", 65, 66, correlation=3), call("l", 67, 68, correlation=4)]  # fmt: skip
    events += [kernel("k", 100 + 10 * n, 135 + 10 * n, correlation=n) for n in (1, 2, 3, 4)]
    (track,) = findings_of(*events).annotations
    assert [(each["ts"], each["dur"]) for each in slices_of(track)] == [(110, 20), (130, 45)]


def test_a_simulated_job_by_a_plain_loop(tmp_path: Path) -> None:
    ((path, _),) = simulate(JobOptions(ranks=1, steps=2, layers=2, stacks=True), tmp_path)
    trace = read(str(path))
    events, work = trace.events, gpu_work(trace)
    ts, end, track = events.ts.tolist(), events.end.tolist(), events.track.tolist()
    place_of = {launch: place for place, launch in enumerate(work.launch.tolist())}
    launches = [row for row in events.slices_of(*LAUNCHES).tolist() if row in place_of]
    count: Counter[tuple[str, ...]] = Counter()
    times = defaultdict(lambda: [0, 0])
    for row in events.slices_of(Category.CPU_OP).tolist():
        inside = [place_of[each] for each in launches if track[each] == track[row] and ts[row] <= ts[each] < end[row]]
        if len(inside) >= 3:
            names = tuple(trace.strings[events.name[work.row[place]]] for place in inside)
            key = (trace.strings[events.name[row]], *names)
            count[key] += 1
            times[key][0] += sum(int(work.end[place] - work.ts[place]) for place in inside)
            times[key][1] += end[row] - ts[row]
    outcome = module.analyze(trace, top_pattern_count=1000)
    assert outcome.rows
    for each in outcome.rows:
        key = (each.operator, *each.pattern)
        assert (each.count, [each.kernel_ns, each.cpu_ns]) == (count[key], times[key])
    # whatever is not there launches exactly what something in it does
    assert {key[1:] for key, times in count.items() if times > 1} == {tuple(row.pattern) for row in outcome.rows}
    named = module.analyze(trace, operator="AddmmBackward0", top_pattern_count=1000)
    assert {(row.operator, *row.pattern): row.count for row in named.rows} == {
        key: times for key, times in count.items() if key[0].startswith("autograd") and "Addmm" in key[0]
    }
