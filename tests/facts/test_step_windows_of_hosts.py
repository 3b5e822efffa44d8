"""Steps of a recording."""

from __future__ import annotations

import numpy as np

from augment.core.trace import Category, Track
from augment.facts.steps.step_windows import steps
from tables import Event, kernel, trace_of


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
