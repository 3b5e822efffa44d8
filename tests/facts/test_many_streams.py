"""What is asked of each stream, or device, is not asked of each pair of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from augment import augment
from augment.core.findings import Findings
from augment.core.trace import Category, Trace
from augment.facts.gpu.gpu_time import annotations_of_work
from augment.facts.waits.sync_dependencies import synchronizations
from tables import Event, call, kernel, sync, trace_of

COUNT = 200


class Counted(str):
    """The name of a stream or device that counts how often it is compared with another."""

    __slots__ = ()
    compared = 0

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return str.__eq__(self, other) is True

    __hash__ = str.__hash__


def many_streams() -> Trace:
    """Work, an annotation and a call that waits for it, of each of many streams."""
    events: list[Event] = [call("cudaLaunchKernel", 0, 1, correlation=1)]
    for i in range(COUNT):
        stream, ts = Counted(f"s{i}"), 10 * i
        work = kernel("k", ts, ts + 5, stream=stream, correlation=2 * i + 1)
        note = replace(work, category=Category.GPU_USER_ANNOTATION, name="note", correlation=-1)
        output = replace(sync("Stream Sync", ts + 5, ts + 7, correlation=2 * i + 2), track=work.track)
        events += [work, note, call("cudaStreamSynchronize", ts + 5, ts + 8, correlation=2 * i + 2), output]
    return trace_of(*events)


def many_devices() -> Trace:
    """An annotation of each of many devices."""
    work = [kernel("k", 10 * i, 10 * i + 5, device=Counted(f"d{i}")) for i in range(COUNT)]
    return trace_of(*(replace(each, category=Category.GPU_USER_ANNOTATION, name="note") for each in work))


def waits(trace: Trace) -> int:
    return len(synchronizations(trace).dependencies)


def annotated(trace: Trace) -> int:
    return int((annotations_of_work(trace, include_steps=False) >= 0).sum())


def aggregated(trace: Trace) -> int:
    outcome = augment(trace, only=["user_annotation_breakdown"]).outcomes["user_annotation_breakdown"]
    assert isinstance(outcome, Findings)
    return len(outcome.rows)


@pytest.mark.parametrize(
    ("make", "ask"), [(many_streams, waits), (many_streams, annotated), (many_devices, aggregated)]
)
def test_not_compared_with_each_other(make: Callable[[], Trace], ask: Callable[[Trace], int]) -> None:
    trace = make()
    Counted.compared = 0
    assert ask(trace) == COUNT
    assert Counted.compared < 20 * COUNT  # pairs would be COUNT / 2 times COUNT
