"""Some steps of a trace as a trace."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

import augment
from augment.core import Category, Flows, Track
from augment.errors import UsageError
from augment.facts.gpu.gpu_work import gpu_work
from augment.facts.steps.step_windows import steps
from augment.facts.steps.window import chosen, limits_of, within
from simulator import JobOptions, simulate
from tables import Event, annotation, call, copy, kernel, launched_kernel, op, python, rows_of, sync, trace_of


def note(name: str, ts: int, end: int) -> Event:
    """An annotation of the device, on the stream of its work."""
    return Event(Category.GPU_USER_ANNOTATION, name, ts, end, Track(0, 0, 7, 0, 7))


TRACE = trace_of(
    python("main", 0, 400),
    annotation("ProfilerStep#3", 10, 100),
    annotation("ProfilerStep#4", 100, 200),
    annotation("ProfilerStep#5", 210, 300),
    op("in 3", 20, 30),
    op("in 4", 100, 150),
    op("in 5", 210, 250),
    *launched_kernel("of 3", (30, 31), (105, 120), correlation=1),
    *launched_kernel("of 4", (110, 111), (310, 330), correlation=2),
    *launched_kernel("between", (205, 206), (340, 350), correlation=3),
    call("cudaStreamSynchronize", 190, 195, correlation=4),
    note("note 3", 105, 120),
    note("note 4", 310, 330),
    kernel("unknown in 3", 90, 95),
    kernel("unknown in 4", 130, 140),
    copy("Memcpy of 4", 350, 360, 77, correlation=2),
    sync("Stream Synchronize", 335, 336, correlation=4),
)


def names(first: int, last: int) -> set[str]:
    part = within(TRACE, first, last)
    return set(part.names_of(np.arange(len(part.events)))) - {"cudaLaunchKernel", "cudaStreamSynchronize"}


def test_arrows_of_a_window_lead_to_slices_of_the_whole_trace() -> None:
    trace = trace_of(
        annotation("ProfilerStep#3", 0, 100),
        op("in 3", 0, 90),
        annotation("ProfilerStep#4", 1_000_000, 1_900_000),
        *launched_kernel("before", (1_000_000, 1_000_001), (1_000_002, 1_000_010), correlation=1),
        op("late", 1_000_003, 1_500_000),
        *launched_kernel("after", (1_500_000, 1_500_001), (1_500_002, 1_500_010), correlation=2),
    )
    augmented = augment.augment(trace, only=["idle_time_breakdown"], steps=(4, 4))
    flows = [annotation for annotation in augmented.annotations if isinstance(annotation, Flows) and len(annotation)]
    assert flows
    for flow in flows:
        (ends,) = [ends for ends in (flow.out, flow.into) if ends.track is None]
        assert trace.names_of(ends.rows) == ["late"]


def test_a_step_that_took_no_time() -> None:
    trace = trace_of(annotation("ProfilerStep#3", 100, 100), kernel("after", 100, 110))
    with pytest.raises(UsageError, match="nothing happened in the steps 3 to 3"):
        augment.augment(trace, steps=(3, 3))


def test_what_belongs_to_a_step() -> None:
    assert names(3, 3) == {"ProfilerStep#3", "in 3", "of 3", "note 3", "unknown in 3"}
    assert names(4, 4) == {
        "ProfilerStep#4", "in 4", "of 4", "note 4", "unknown in 4", "Memcpy of 4", "Stream Synchronize"
    }  # fmt: skip
    assert names(3, 4) == names(3, 3) | names(4, 4)
    assert names(4, 5) == names(4, 4) | {"between", "ProfilerStep#5", "in 5"}


def test_around_a_step_is_what_reaches_into_it() -> None:
    keep = chosen(TRACE, *limits_of(TRACE, 4, 4), around=True)
    assert set(TRACE.names_of(TRACE.events.where(keep))) - names(4, 4) == {
        "main", "of 3", "note 3", "cudaLaunchKernel", "cudaStreamSynchronize"
    }  # fmt: skip


def test_each_piece_of_work_is_in_the_period_that_launched_it() -> None:
    bounds = [0, 31, 95, 110, 200, 400]
    times = np.sum([chosen(TRACE, *period) for period in itertools.pairwise(bounds)], axis=0)
    assert times.tolist() == [1] * len(TRACE.events)


def test_work_of_before_the_recording_stays_around_its_beginning() -> None:
    trace = trace_of(
        kernel("early", 0, 20, correlation=1),
        kernel("early, later", 20, 30, correlation=2),
        *launched_kernel("own", (0, 5), (30, 40), correlation=10),
        *launched_kernel("next", (50, 55), (60, 70), correlation=11),
    )
    kernels = trace.events.slices_of(Category.KERNEL)
    assert trace.names_of(kernels[chosen(trace, 0, 50)[kernels]]) == ["own"]
    assert trace.names_of(kernels[chosen(trace, 0, 50, around=True)[kernels]]) == ["early", "early, later", "own"]
    assert trace.names_of(kernels[chosen(trace, 50, 80, around=True)[kernels]]) == ["next"]


def test_columns_stay_equal_and_point_to_the_same_text() -> None:
    part = within(TRACE, 4, 9)
    assert part.events.bytes.at(part.events.slices_of(Category.GPU_MEMCPY), -1).tolist() == [77]
    assert (np.diff(part.events.ts) >= 0).all()
    assert {len(getattr(part.events, name)) for name in ("ts", "dur", "phase", "track", "offset", "length")} == {
        len(part.events)
    }
    assert gpu_work(part).launch.tolist().count(-1) == 1
    assert len(TRACE.events) == 20


def test_no_such_step() -> None:
    with pytest.raises(UsageError, match=r"no step of 7 to 9; it has steps 3 to 5"):
        within(TRACE, 7, 9)
    with pytest.raises(UsageError, match="no annotation of a step"):
        within(trace_of(kernel("a", 1, 2)), 1, 1)


def test_steps_of_a_job_add_up_to_the_whole(tmp_path: Path) -> None:
    """The simulator's steps end with the host waiting, so sums over steps are sums over the file."""
    ((path, _),) = simulate(JobOptions(ranks=1, steps=3, layers=2), tmp_path)
    trace = augment.read(str(path))
    whole = augment.augment(trace, only=["kernel_breakdown", "memory_bandwidth"])
    parts = [augment.augment(trace, only=["kernel_breakdown", "memory_bandwidth"], steps=(k, k)) for k in range(3)]
    asked = {"kernel_breakdown": ("name", "count", "sum_ns"), "memory_bandwidth": ("kind", "count", "bytes")}
    for analysis, columns in asked.items():
        summed: dict[str, list[int]] = {}
        for part in parts:
            for name, *values in rows_of(part.outcomes[analysis], *columns):
                known = summed.setdefault(name, [0, 0])
                known[:] = [known[0] + values[0], known[1] + values[1]]
        assert summed == {name: list(values) for name, *values in rows_of(whole.outcomes[analysis], *columns)}


def test_outputs_hold_the_whole_source_and_annotations_of_the_window(tmp_path: Path) -> None:
    ((path, _),) = simulate(JobOptions(ranks=1, steps=3, layers=1), tmp_path)
    trace = augment.read(str(path))
    augmented = augment.augment(trace, only=["queue_length", "steps"], steps=(1, 1))
    assert augmented.trace is trace
    assert rows_of(augmented.outcomes["steps"], "step", "start_ns") == [(1, 0)]
    *_, sidecar = augment.write(augmented, tmp_path)
    content = json.loads(sidecar.read_bytes())["source"]
    assert content["steps"] == [0, 1, 2]
    assert content["window"] == {"first_step": 1, "last_step": 1, "start_ns": augmented.window.start_ns}
    again = augment.read(str(tmp_path / "rank0.augmented.pftrace"))
    added = [again.strings[code].startswith("augment.") for code in again.events.category_name.tolist()]
    assert len(added) - sum(added) == len(trace.events)
    place = steps(trace).number.tolist().index(1)
    start, end = int(steps(trace).ts[place]), int(steps(trace).end[place])
    assert all(start <= ts <= end for ts, part in zip(again.events.ts.tolist(), added, strict=True) if part)


# Steps of a recording.


def step(name: str, ts: int, end: int, thread: int = 0, category: Category = Category.USER_ANNOTATION) -> Event:
    return Event(category, name, ts, end, Track(0, 1, thread))


def test_steps_are_the_hosts_annotations() -> None:
    trace = trace_of(
        step("ProfilerStep#7", 0, 10),
        step("ProfilerStep# 8", 10, 30, category=Category.CPU_OP),
        step("ProfilerStepper#9", 30, 40),
        step("ProfilerStep#10", 50, 60, category=Category.GPU_USER_ANNOTATION),
        kernel("k", 5, 8),
    )
    result = steps(trace)
    assert result.number.tolist() == [7, 8]
    assert result.ts.tolist() == [0, 10]
    assert result.end.tolist() == [10, 30]
    assert result.at(np.array([-1, 0, 9, 10, 29, 30])).tolist() == [-1, 0, 0, 1, 1, -1]


def test_two_threads_with_one_step() -> None:
    trace = trace_of(
        step("ProfilerStep#1", 0, 10), step("ProfilerStep#1", 1, 9, thread=2), step("ProfilerStep#2", 10, 20)
    )
    assert steps(trace).number.tolist() == [1, 2]


def test_no_steps() -> None:
    result = steps(trace_of(kernel("k", 5, 8)))
    assert len(result) == 0
    assert result.at(np.array([6])).tolist() == [-1]
