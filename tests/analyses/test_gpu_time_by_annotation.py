from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from augment.analyses import gpu_time_by_annotation
from augment.core.findings import Skipped
from augment.core.trace import Category, Track
from augment.facts.gpu.gpu_work import gpu_work
from augment.readers import read
from simulator import JobOptions, simulate
from tables import Event, annotation, call, kernel, rows_of, trace_of


def on_gpu(name: str, ts: int, end: int, *, device: int = 0, stream: int = 7) -> Event:
    return Event(Category.GPU_USER_ANNOTATION, name, ts, end, Track(0, device, stream, device, stream))


def times_of(*events: Event, **options: Any) -> list[tuple[Any, ...]]:
    outcome = gpu_time_by_annotation.analyze(trace_of(*events), **options)
    return rows_of(outcome, "device", "annotation", "kernel_count", "gpu_ns")


def test_the_innermost_of_the_stream_at_the_start_of_the_work() -> None:
    assert times_of(
        on_gpu("outer", 0, 100), on_gpu("inner", 20, 40), on_gpu("elsewhere", 0, 100, stream=9),
        on_gpu("elsewhere", 0, 100, device=1),
        kernel("a", 0, 20), kernel("b", 20, 60), kernel("c", 90, 120), kernel("d", 100, 105),
    ) == [(0, "outer", 2, 50), (0, "inner", 1, 40), (0, None, 1, 5)]  # fmt: skip


def test_the_hosts_annotation_where_there_is_none_on_the_gpu() -> None:
    events = (
        annotation("ProfilerStep#1", 0, 100), annotation("outer", 5, 90), annotation("inner", 10, 20),
        annotation("other thread", 0, 100, thread=2),
        call("l", 12, 14, correlation=1), kernel("a", 200, 210, correlation=1),
        call("l", 30, 31, correlation=2), kernel("b", 220, 221, correlation=2),
        call("l", 95, 96, correlation=3), kernel("c", 230, 232, correlation=3),
        call("l", 13, 14, correlation=4), kernel("d", 300, 304, correlation=4), on_gpu("on the gpu", 300, 304),
    )  # fmt: skip
    expected = [(0, "inner", 1, 10), (0, "on the gpu", 1, 4), (0, None, 1, 2), (0, "outer", 1, 1)]
    assert times_of(*events) == expected
    expected[2] = (0, "ProfilerStep#1", 1, 2)
    assert times_of(*events, include_steps=True) == expected


def test_of_annotations_that_cross_the_one_that_began_last_goes_on() -> None:
    events = (on_gpu("A", 0, 10_001), on_gpu("B", 10_000, 110_000))
    kernels = [kernel("k", start, start + 5_000) for start in range(20_000, 70_000, 10_000)]
    assert times_of(*events, *kernels) == [(0, "B", 5, 25_000)]
    outcome = gpu_time_by_annotation.analyze(trace_of(*events, *kernels))
    assert [(diagnostic.code, diagnostic.count) for diagnostic in outcome.diagnostics] == [("gpu_annotations_cross", 1)]


def test_nothing_annotated_is_skipped() -> None:
    trace = trace_of(
        annotation("ProfilerStep#1", 0, 9), call("l", 2, 3, correlation=1), kernel("k", 5, 9, correlation=1)
    )
    assert isinstance(gpu_time_by_annotation.analyze(trace), Skipped)


def test_a_simulated_job_by_a_plain_loop(tmp_path: Path) -> None:
    ((path, _),) = simulate(JobOptions(ranks=1, steps=2, layers=2, stacks=True), tmp_path)
    trace = read(str(path))
    events, work = trace.events, gpu_work(trace)
    ts, end, track = events.ts.tolist(), events.end.tolist(), events.track.tolist()
    names = trace.names_of(events.slices_of(*Category))
    rows = dict(zip(events.slices_of(*Category).tolist(), names, strict=True))
    known: Counter[str | None] = Counter()

    def leaf(category: Category, row: int, at: int) -> str | None:
        """The shortest of a row's track around a moment."""
        around = [other for other in events.slices_of(category).tolist()
                  if track[other] == track[row] and ts[other] <= at < end[other]
                  and not rows[other].startswith("ProfilerStep")]  # fmt: skip
        return rows[min(around, key=lambda other: end[other] - ts[other])] if around else None

    for row, launch in zip(work.row.tolist(), work.launch.tolist(), strict=True):
        name = leaf(Category.GPU_USER_ANNOTATION, row, ts[row]) or leaf(Category.USER_ANNOTATION, launch, ts[launch])
        known[name] += end[row] - ts[row]
    outcome = gpu_time_by_annotation.analyze(trace)
    assert dict(rows_of(outcome, "annotation", "gpu_ns")) == known
    assert len(known) == 3
    assert sum(ratio for (ratio,) in rows_of(outcome, "gpu_ratio")) == pytest.approx(1)
