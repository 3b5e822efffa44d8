"""The critical path of simulated and recorded jobs: who must be on it, and its parts counted event by event."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from augment import AugmentedTrace, Trace, read
from augment.facts.gpu.gpu_work import gpu_work
from augment.facts.names import KernelType
from augment.job.answer import Answer, answer
from augment.job.path import Path as JobPath
from augment.job.path import is_handover
from augment.job.ranks import summarize
from simulator import JobOptions, simulate

RECORDED = ("h100_8rank_modded_nanogpt", "dlrm_8rank_v100_param/kineto", "v100_4rank_pair_torchrec/control")
ORDER = (KernelType.COMPUTATION, KernelType.COMMUNICATION, KernelType.MEMORY)


def job(paths: list[Path]) -> tuple[Answer, list[Trace]]:
    traces = [read(str(path)) for path in paths]
    contents = [summarize(AugmentedTrace(trace, {})) for trace in traces]
    return answer(contents, [path.name for path in paths]), traces


def simulated(folder: Path, **options: Any) -> tuple[Answer, list[Trace]]:
    return job([path for path, _ in simulate(JobOptions(**options), folder)])


def path_in(answer: Answer) -> JobPath:
    assert isinstance(answer.path, JobPath)
    return answer.path


def counted(trace: Trace, start: int, end: int) -> list[int]:
    """The time between two moments by the first of :data:`ORDER` that runs in it, and that in which none does."""
    work = gpu_work(trace)
    inside = np.flatnonzero((work.end > start) & (work.ts < end) & (work.end > work.ts))
    spans = [(max(int(work.ts[at]), start), min(int(work.end[at]), end), KernelType(work.type[at])) for at in inside]
    edges = sorted([(ts, 1, each) for ts, _, each in spans] + [(ts, -1, each) for _, ts, each in spans])
    running, before, spent = dict.fromkeys(KernelType, 0), start, [0, 0, 0, 0]
    for ts, change, each in [*edges, (end, 0, KernelType.MEMORY)]:
        first = next((place for place, type_ in enumerate(ORDER) if running[type_]), 3)
        spent[first] += ts - before
        before = ts
        running[each] += change
    return spent


def expect_true_sums(answer: Answer, traces: list[Trace]) -> None:
    path = path_in(answer)
    assert (path.start[1:] == path.end[:-1]).all()
    for place in np.flatnonzero(~path.is_transfer()).tolist():
        part = counted(traces[path.member[place]], int(path.own_start[place]), int(path.own_end[place]))
        part[int(np.argmax(part))] += int(path.dur[place]) - sum(part)
        parts = path.compute_ns, path.communication_ns, path.memory_ns, path.idle_ns
        assert [int(part[place]) for part in parts] == part
    whole = sum(row.path_ns for row in answer.outcomes["cross_rank_critical_path"].rows if row.step is None)
    assert whole == path.end[-1] - path.start[0]
    # it ends when the last rank is done, on the job's clock
    ends = [int(clock.to_common(each.step_column("end"))[-1]) for clock, each in
            zip(answer.clocks, answer.summaries, strict=True) if clock.comparable]  # fmt: skip
    assert path.end[-1] == max(ends)
    # and comes to a rank when that one's part begins, and none of the others' begins later than clocks may be wrong by
    matched = answer.matched
    for place in np.flatnonzero(is_handover(path)).tolist():
        late = int(path.late[place])
        rank = int(matched.member[late])
        assert path.start[place] == answer.clocks[rank].to_common(matched.ts[late : late + 1])[0]
        mates = np.flatnonzero(matched.instance == matched.instance[late])
        for mate in mates[answer.parted.by_arrival[matched.instance[mates]]].tolist():
            clock = answer.clocks[matched.member[mate]]
            assert clock.to_common(matched.ts[mate : mate + 1])[0] <= path.start[place]


@pytest.mark.parametrize("collectives", ["ddp", "fsdp"])
def test_the_straggler_is_the_path(tmp_path: Path, collectives: str) -> None:
    result, traces = simulated(
        tmp_path, ranks=4, steps=4, collectives=collectives, straggler=2,
        clock_offset_ns=(0, 3_000_000_000, -7_000_000_000, 250_000), clock_drift_ppm=(0.0, 30.0, -40.0, 0.0),
    )  # fmt: skip
    expect_true_sums(result, traces)
    rows = [row for row in result.outcomes["cross_rank_critical_path"].rows if row.rank == 2]
    assert [row.step for row in rows] == [0, 1, 2, 3, None]
    assert all(row.path_ratio > 0.98 for row in rows)
    # what it computes all in all, but for the little that is computed beside what holds it up
    steps = result.summaries[2].step_column("compute_ns")
    assert 0.97 < rows[-1].compute_ns / steps.sum() < 1 + 50e-6  # the job's clock goes so much faster


def test_without_a_straggler_the_path_goes_through_ranks(tmp_path: Path) -> None:
    result, traces = simulated(tmp_path, ranks=4, steps=3, collectives="fsdp", jitter=0.1)
    expect_true_sums(result, traces)
    outcome = result.outcomes["cross_rank_handovers"]
    assert sum(row.count for row in outcome.rows) == is_handover(path_in(result)).sum() >= 2
    assert all(row.late_rank != row.waiting_rank for row in outcome.rows)
    assert all(row.wait_ns >= row.lead_ns > 0 for row in outcome.rows)


def test_a_job_of_late_hosts_is_bound_by_idle_time(tmp_path: Path) -> None:
    result, traces = simulated(tmp_path, ranks=2, steps=3, collectives="fsdp", host_stall_us=20_000.0)
    expect_true_sums(result, traces)
    assert path_in(result).idle_ns.sum() > 3 * 20_000_000 * 0.99


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_jobs(name: str, shared_traces: Path) -> None:
    rows, traces = job(sorted((shared_traces / name).glob("*.json.gz")))
    expect_true_sums(rows, traces)
    assert is_handover(path_in(rows)).any()
