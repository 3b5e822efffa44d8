"""Who comes late to the collectives."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from augment.core.trace import Trace
from augment.readers import read
from augment.stragglers import potential_stragglers, stragglers
from simulator import JobOptions, simulate
from tables import annotation, call, kernel, op, trace_of

NAME = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


def rank(*durations: int, offset: int = 0, name: str = NAME, steps: bool = True) -> Trace:
    """A rank with a collective in each step of 1,000 ns."""
    events = []
    for number, dur in enumerate(durations):
        begin = offset + 1000 * number
        if steps:
            events.append(annotation(f"ProfilerStep#{number}", begin, begin + 1000))
        events.append(call("cudaLaunchKernel", begin + 1, begin + 2, correlation=number + 1))
        events.append(kernel(name, begin + 900 - dur, begin + 900, correlation=number + 1))
    return trace_of(*events)


@pytest.mark.parametrize("name", [NAME, "rcclGenericKernel", "void vllm::cross_device_reduce_1stage<half>"])
def test_three_ranks(name: str) -> None:
    """Rank 1 is last in both steps, and its clock is far ahead."""
    job = {0: rank(100, 300, name=name), 1: rank(20, 50, offset=10**9, name=name), 2: rank(60, 90, name=name)}
    result = {straggler.rank: straggler for straggler in stragglers(job)}
    assert list(result) == [1, 2, 0]
    assert [result[each].late_ns for each in range(3)] == [0, 80 + 250, 40 + 210]
    assert [result[each].waited_ns for each in range(3)] == [80 + 250, 0, 40 + 40]
    assert [result[each].last_count for each in range(3)] == [0, 2, 0]
    assert [result[each].lost_ns for each in range(3)] == [0, 40 + 40, 0]
    assert result[1].score == 330 / 400
    assert potential_stragglers(job, count=1) == [1]
    assert potential_stragglers(job, [0], 2) == [1, 2]


def test_what_one_rank_has_alone_says_nothing() -> None:
    job = {0: rank(100, 300, 7), 1: rank(50)}
    (late, early) = stragglers(job)
    assert (late.rank, late.collective_count, late.late_ns) == (1, 1, 50)
    assert (early.rank, early.collective_count, early.waited_ns) == (0, 1, 50)
    assert [straggler.late_ns for straggler in stragglers({5: rank(10)})] == [0]
    assert potential_stragglers({5: rank(10)}) == []
    assert stragglers({}) == []


def test_a_recording_without_steps_is_one() -> None:
    job = {0: rank(100, 300, steps=False), 1: rank(90, 30, steps=False)}
    assert potential_stragglers(job, count=1) == [1]
    assert stragglers(job)[0].late_ns == 10 + 270


def telling(*collectives: tuple[int, dict[str, Any]]) -> Trace:
    """A rank that tells of its collectives, of so many ns, by their operators."""
    events = []
    for number, (dur, args) in enumerate(collectives):
        ts = 1000 * number
        events += [
            op("record_param_comms", ts, ts + 10, args=args),
            call("cudaLaunchKernel", ts + 1, ts + 2, correlation=number + 1),
            kernel(NAME, ts + 900 - dur, ts + 900, correlation=number + 1),
        ]
    return trace_of(*events)


def test_kernels_of_one_name_are_told_apart_by_kind() -> None:
    """Two ranks begin two collectives in another order, as on two streams of the host."""
    sum_, all_ = {"Collective name": "allreduce"}, {"Collective name": "alltoall"}
    job = {0: telling((100, sum_), (10, all_)), 1: telling((30, all_), (70, sum_))}
    assert [(each.rank, each.late_ns, each.waited_ns) for each in stragglers(job)] == [(1, 30, 20), (0, 20, 30)]


def test_process_groups_are_told_apart() -> None:
    """Ranks 2 and 3 wait for nobody of the group of ranks 0 and 1."""
    low, high = ({"Collective name": "allreduce", "Process Group Ranks": ranks} for ranks in ("[0, 1]", "[2, 3]"))
    job = {0: telling((500, low)), 1: telling((400, low)), 2: telling((50, high)), 3: telling((40, high))}
    result = {straggler.rank: (straggler.late_ns, straggler.last_count) for straggler in stragglers(job)}
    assert result == {0: (0, 0), 1: (100, 1), 2: (0, 0), 3: (10, 1)}


def test_sends_and_what_ranks_count_differently_are_left_out() -> None:
    send, receive = ({"Collective name": kind, "Dst Rank": 1, "Src Rank": 0} for kind in ("send", "recv"))
    assert {each.collective_count for each in stragglers({0: telling((9, send)), 1: telling((5, receive))})} == {0}
    assert {step.collective_count for step in stragglers({0: rank(1, 2, steps=False), 1: rank(1, steps=False)})} == {0}


def test_a_slow_rank_of_a_simulated_job(tmp_path: Path) -> None:
    for straggler in (0, 3):
        options = JobOptions(ranks=4, steps=2, layers=2, straggler=straggler, clock_offset_ns=(0, 5000, -70000, 0))
        folder = tmp_path / str(straggler)
        folder.mkdir()
        written = simulate(dataclasses.replace(options), folder)
        job = {place: read(str(path)) for place, (path, _) in enumerate(written)}
        worst, *others = stragglers(job)
        assert worst.rank == straggler
        assert worst.score > 2 * max(other.score for other in others)
        assert worst.lost_ns > sum(other.lost_ns for other in others)
