"""What steps of ranks went into, against another way to compute it, and known truth of simulated jobs."""

from __future__ import annotations

import gzip
import json
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from augment import AugmentedTrace, read
from augment.analyses import step_efficiency
from augment.facts.steps.step_windows import step_windows
from augment.job.answer import Answer, answer
from augment.job.path.step_parts import Row
from augment.job.ranks import read_summary, summarize
from simulator import JobOptions, simulate

pytestmark = pytest.mark.slow

PARTS = ("compute_ns", "exposed_wait_ns", "exposed_transfer_ns", "exposed_unmatched_ns", "exposed_memory_ns", "idle_ns")
OFFSETS = (0, 3_000_000_000, -7_000_000_000, 250_000)
JOBS = {
    "fsdp": JobOptions(ranks=4, steps=3, layers=2, collectives="fsdp", straggler=2, clock_offset_ns=OFFSETS),
    "ddp": JobOptions(ranks=4, steps=3, layers=2, collectives="ddp", straggler=1),
    "run ahead": JobOptions(ranks=2, steps=4, layers=2, run_ahead=1, side_streams=1),
    "alone": JobOptions(ranks=1, steps=2, layers=2, collectives="none"),
}


def answered(paths: list[Path]) -> Answer:
    contents = []
    for path in paths:
        trace = read(str(path))
        contents.append(summarize(AugmentedTrace(trace, {"step_efficiency": step_efficiency.analyze(trace)})))
    return answer(contents, [path.name for path in paths])


def rows(answer: Answer) -> list[Row]:
    return list(answer.outcomes["job_step_efficiency"].rows)


@pytest.fixture(params=JOBS)
def job(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Answer, list[Path]]:
    paths = [path for path, _ in simulate(JOBS[request.param], tmp_path)]
    return answered(paths), paths


def test_parts_are_the_step_and_as_if_counted_one_by_one(job: tuple[Answer, list[Path]]) -> None:
    expected_parts(*job)


def test_parts_of_a_recorded_job(shared_traces: Path) -> None:
    paths = [shared_traces / "h100_8rank_modded_nanogpt" / f"rank{rank}.json.gz" for rank in (0, 3, 6)]
    expected_parts(answered(paths), paths, within=2000)  # the summary has not every moment of a long trace


def expected_parts(answer: Answer, paths: list[Path], within: int = 0) -> None:
    """Every part but copies and idle time, from the text of the traces and the wait of each collective."""
    for row in rows(answer):
        assert sum(getattr(row, name) for name in PARTS) == row.wall_ns
        assert min(getattr(row, name) for name in PARTS) >= 0
    for member, path in enumerate(paths):
        part = [row for row in rows(answer) if row.trace == answer.summaries[member].name]
        windows = step_windows(read(str(path)))
        assert [row.wall_ns for row in part] == (windows.end - windows.start).tolist()
        computing, communicating = kernels(path)
        index = answer.matched.rows_of(member)
        ts, end = answer.matched.ts[index], answer.matched.end[index]
        turn = ts + answer.parted.wait_ns[index]
        for row, first, last in zip(part, windows.start.tolist(), windows.end.tolist(), strict=True):
            step = Covered(np.array([first]), np.array([last]))
            exposed = step & Covered(*communicating) - Covered(*computing)
            moving, waiting = Covered(turn, end), Covered(ts, turn)
            assert (step & Covered(*computing)).length == row.compute_ns
            assert exposed.length == row.exposed_wait_ns + row.exposed_transfer_ns + row.exposed_unmatched_ns
            assert row.exposed_wait_ns == pytest.approx((exposed & waiting - moving).length, abs=within)
            assert row.exposed_transfer_ns == pytest.approx((exposed & moving).length, abs=within)


class Covered:
    """A set of moments as sorted disjoint intervals; ``-`` binds before ``&``."""

    def __init__(self, start: Any, end: Any) -> None:
        self.pieces: list[list[int]] = []
        for each, other in sorted(zip(np.asarray(start).tolist(), np.asarray(end).tolist(), strict=True)):
            if other > each and self.pieces and each <= self.pieces[-1][1]:
                self.pieces[-1][1] = max(self.pieces[-1][1], other)
            elif other > each:
                self.pieces.append([each, other])

    @property
    def length(self) -> int:
        return sum(end - start for start, end in self.pieces)

    def __and__(self, other: Covered) -> Covered:
        both, part, yours = Covered([], []), iter(self.pieces), iter(other.pieces)
        first, two = next(part, None), next(yours, None)
        while first and two:
            start, end = max(first[0], two[0]), min(first[1], two[1])
            if start < end:
                both.pieces.append([start, end])
            if first[1] < two[1]:
                first = next(part, None)
            else:
                two = next(yours, None)
        return both

    def __sub__(self, other: Covered) -> Covered:
        edges = [-(1 << 62), *(edge for piece in other.pieces for edge in piece), 1 << 62]
        return self & Covered(edges[::2], edges[1::2])


def kernels(path: Path) -> tuple[Any, Any]:
    """Starts and ends of kernels that compute, and that communicate, from the file's text."""
    document = json.loads(gzip.decompress(path.read_bytes()))
    base = int(document.get("baseTimeNanoseconds", 0))
    table: tuple[list[list[int]], list[list[int]]] = ([], [])
    for event in document["traceEvents"]:
        if event.get("cat") == "kernel":
            start = round(event["ts"] * 1000) + base
            table["nccl" in event["name"]].append([start, start + round(event["dur"] * 1000)])
    return tuple(np.array(sort, np.int64).reshape(-1, 2).T for sort in table)  # type: ignore[return-value]


def test_the_late_rank_waits_least(tmp_path: Path) -> None:
    result = rows(answered([path for path, _ in simulate(replace(JOBS["fsdp"], steps=4), tmp_path)]))
    waited = {rank: sum(row.exposed_wait_ns for row in result if row.rank == rank) for rank in range(4)}
    assert min(waited, key=lambda rank: waited[rank]) == 2
    assert all(waited[rank] > 5 * waited[2] for rank in (0, 1, 3))


def test_efficiency_of_the_rank_is_beside_it(tmp_path: Path) -> None:
    paths = [path for path, _ in simulate(JOBS["ddp"], tmp_path)]
    part = step_efficiency.analyze(read(str(paths[1])))
    result = [row for row in rows(answered(paths)) if row.rank == 1]
    assert [(row.mfu_ratio, row.hfu_ratio) for row in result] == [(row.mfu_ratio, row.hfu_ratio) for row in part.rows]
    for row, alone in zip(result, part.rows, strict=True):
        exposed = row.exposed_wait_ns + row.exposed_transfer_ns + row.exposed_unmatched_ns
        assert (row.wall_ns, exposed, row.exposed_memory_ns) == (
            alone.wall_ns, alone.exposed_communication_ns, alone.exposed_memory_ns
        )  # fmt: skip


def test_collectives_that_a_rank_came_to_before_the_first_step_began(tmp_path: Path) -> None:
    """They are no stretch of own work; the others keep their moments."""
    contents = []
    for path, _ in simulate(JobOptions(ranks=2, steps=2, layers=2), tmp_path):
        summary = read_summary(summarize(AugmentedTrace(read(str(path)), {})), path.name)
        starts = summary.step_column("start").copy()
        starts[0] = summary.column("ts")[1] + 1
        summary.steps["start"] = starts.tobytes()
        contents.append(zlib.compress(msgspec.msgpack.encode(summary)))
    result = answer(contents, ["rank0", "rank1"])
    assert len(result.matched) > 2
    assert result.verdict.text
