"""Who comes late to the collectives."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from answered_jobs import answered, job_at
from augment import AugmentedTrace, Trace, diff, read
from augment.arrays import total, union
from augment.compare.gate import check
from augment.compare.totals import samples_of
from augment.facts.gpu.gpu_work import gpu_work
from augment.facts.gpu.launched_work import before_recording
from augment.facts.names import KernelType
from augment.facts.steps.step_windows import recorded_windows
from augment.job.ranks import read_summary, summarize
from augment.job.verdict.late_ranks import imbalance
from augment.stragglers import potential_stragglers, stragglers
from simulator import JobOptions, simulate
from tables import annotation, call, kernel, launched_kernel, op, trace_of
from traces import write_trace

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
        events += [op("record_param_comms", ts, ts + 10, args=args)]
        events += [*launched_kernel(NAME, (ts + 1, ts + 2), (ts + 900 - dur, ts + 900), correlation=number + 1)]
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


# Load imbalance of a first step leaves out work launched before the recording, of which each rank has another
# part.


def ratios(traces: list[Trace]) -> dict[int, float | None]:
    summaries = [read_summary(summarize(AugmentedTrace(each, {})), str(rank)) for rank, each in enumerate(traces)]
    return {row.step: row.imbalance_ratio for row in imbalance(summaries)}


def early_compute(trace: Trace) -> int:
    work = gpu_work(trace)
    early = before_recording(trace) & (work.type == KernelType.COMPUTATION)
    return total(union(work.ts[early], work.end[early]))


def test_recordings_that_begin_at_different_moments(tmp_path: Path) -> None:
    options = JobOptions(ranks=3, steps=7, layers=3, run_ahead=2, record_from=(2.3, 3.1, 3.6), causes=True)
    traces = [read(str(path)) for path, _ in simulate(options, tmp_path)]
    assert np.ptp([early_compute(trace) for trace in traces]) > 0
    result = ratios(traces)
    of_all = {number for number, ratio in result.items() if number >= 4}
    assert len(of_all) >= 3
    for number in sorted(of_all):
        ratio = result[number]
        assert ratio < 0.05, number


def test_a_real_job_begun_in_a_backlog(shared_traces: Path) -> None:
    """The kernels launched in step 10 are 28.8 to 29.3 ms on all ranks; 17 % was told with what was launched before."""
    content = ratios([read(str(path)) for path in job_at(shared_traces / "h100_8rank_modded_nanogpt")])
    assert sorted(content) == [10, 11, 12, 13]
    assert content[10] == pytest.approx(0.008, abs=0.002)
    assert all(ratio is not None and ratio < 0.01 for ratio in content.values())


# Recordings that begin while devices still do what no file has: the time before the first work belongs to
# nobody.
RANKS, ROUNDS, FREE = 4, 40, 500_000  #: µs: when the devices get free, on all ranks at one moment


def recorded(folder: Path, leads: Sequence[int], late: int | None = None) -> list[Path]:
    """Ranks that compute and exchange in turn; each recording begins so many µs before its device gets free, in a wait
    for it. ``late``: a rank whose kernels take half as long again."""
    now, paths = [FREE + 1] * RANKS, []
    group = {"Process Group Name": "0", "Process Group Ranks": str(list(range(RANKS))), "Group size": RANKS}
    events: list[list[dict[str, Any]]] = [[] for _ in range(RANKS)]

    def add(rank: int, name: str, category: str, start: int, end: int, **args: Any) -> None:
        place = {"pid": rank, "tid": 7} if category == "kernel" else {"pid": 100, "tid": 1}
        events[rank].append(
            {"ph": "X", "name": name, "cat": category, "ts": start, "dur": end - start, **place, "args": args}
        )

    for rank, lead in enumerate(leads):
        add(rank, "aten::to", "cpu_op", FREE - lead, FREE + 20)
        add(rank, "cudaStreamSynchronize", "cuda_runtime", FREE - lead + 20, FREE, correlation=1)
    for number in range(ROUNDS):
        arrived = []
        for rank in range(RANKS):
            took = round((700 + random.Random(100 * number + rank).randrange(30)) * (1.5 if rank == late else 1.0))
            correlation = 10 + 2 * number
            add(rank, "cudaLaunchKernel", "cuda_runtime", FREE + 30 + 2 * number, FREE + 31 + 2 * number,
                correlation=correlation)  # fmt: skip
            add(rank, "gemm", "kernel", now[rank], now[rank] + took, stream=7, device=rank, correlation=correlation)
            arrived.append(now[rank] + took + 2)
        done = max(arrived) + 200
        for rank in range(RANKS):
            add(rank, "cudaLaunchKernel", "cuda_runtime", FREE + 31 + 2 * number, FREE + 32 + 2 * number,
                correlation=11 + 2 * number)  # fmt: skip
            add(rank, "ncclDevKernel_AllReduce_Sum_bf16_RING_LL()", "kernel", arrived[rank], done, stream=7,
                device=rank, correlation=11 + 2 * number, **group)  # fmt: skip
            now[rank] = done + 2
    for rank in range(RANKS):
        listed = {"backend": "nccl", "rank": rank, "world_size": RANKS}
        paths.append(write_trace(folder / f"rank{rank}.json", *events[rank], distributedInfo=listed))
    return paths


@pytest.mark.parametrize("leads", [(100_000, 93_000, 30_000, 82_000), (64_000, 100, 100, 100), (0, 0, 0, 0)])
@pytest.mark.parametrize("late", [None, 2])
def test_where_recordings_begin_changes_no_verdict(leads: Sequence[int], late: int | None, tmp_path: Path) -> None:
    result = answered(recorded(tmp_path / "leads", leads, late))
    assert result.verdict.text == answered(recorded(tmp_path / "none", (0,) * RANKS, late)).verdict.text
    assert result.verdict.text[0].startswith("No rank stands out" if late is None else f"Rank {late} delays")
    assert "keeps others waiting" not in " ".join(result.verdict.text)


def recording(folder: Path, lead: int) -> Trace:
    return read(str(recorded(folder, (lead,) * RANKS)[0]))


def test_a_recording_that_began_earlier_is_not_slower(tmp_path: Path) -> None:
    control, test = recording(tmp_path / "a", 96_000), recording(tmp_path / "b", 126_000)
    assert diff(control, test).verdict.text[0].startswith("No difference")
    before, after = (samples_of(trace, recorded_windows(trace)) for trace in (control, test))
    assert check(before, after)[0].status == "pass"
    assert before["wall_ns"] == after["wall_ns"]
