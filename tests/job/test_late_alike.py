"""Ranks that are late alike are one finding, with what all of them gain together: alone none would gain."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from augment.core.findings import AugmentedTrace
from augment.job.answer import Answer, answer
from augment.job.ranks.summary import read_summary, summarize
from augment.job.verdict.verdict_text import place_of
from augment.readers import read
from job_summaries import summary_of
from simulator import JobOptions, simulate

pytestmark = pytest.mark.slow

JOB = JobOptions(ranks=4, steps=5, layers=3, run_ahead=2)
PER_NODE = 4


def nodes_of(options: JobOptions, folder: Path, count: int = 2) -> Answer:
    """The job repeated on several nodes: all ranks of all nodes do each collective together."""
    contents, names = [], []
    for node in range(count):
        for rank, (path, _) in enumerate(simulate(options, folder / str(node))):
            number, whole = node * PER_NODE + rank, count * PER_NODE
            summary = read_summary(summarize(AugmentedTrace(read(str(path)), {})), path.name)
            summary.rank, summary.host, summary.world, summary.name = number, f"node{node}", whole, f"rank{number}"
            every = str(list(range(whole)))
            summary.groups = [[name, about, every, comms, whole, at] for name, about, _, comms, _, at in summary.groups]
            contents.append(encoded(summary))
            names.append(summary.name)
    return answer(contents, names)


def encoded(summary: Any) -> bytes:
    import zlib

    import msgspec

    return zlib.compress(msgspec.msgpack.encode(summary))


@pytest.mark.parametrize(
    ("fault", "cause"),
    [({"host_stall_us": 20_000.0, "host_stall_rank": 1}, "host"), ({"straggler": 1}, "compute")],
)
def test_the_same_local_rank_of_each_node(fault: dict[str, Any], cause: str, tmp_path: Path) -> None:
    """Truth: the same job without the fault on any node."""
    result = nodes_of(replace(JOB, **fault), tmp_path / "a")
    healthy = nodes_of(JOB, tmp_path / "b")
    whole = result.judgement.recorded_ns
    lost = 1 - healthy.judgement.recorded_ns / whole
    assert lost > 0.1
    (row,) = result.verdict.rows
    assert (row.rank, row.ranks, row.cause) == (1, [1, 5], cause)
    assert row.place == "local rank 1 of all 2 nodes"
    assert row.gain_ns / whole == pytest.approx(lost, abs=0.05)
    assert result.verdict.text[0].startswith("Local rank 1 of all 2 nodes (ranks 1 and 5) delay the others in ")
    assert "Together at the median's speed a step would take " in result.verdict.text[0]


def test_a_single_late_rank_is_one_rank(tmp_path: Path) -> None:
    paths = [path for path, _ in simulate(replace(JOB, straggler=1), tmp_path)]
    result = answer([summarize(AugmentedTrace(read(str(path)), {})) for path in paths], [path.name for path in paths])
    (row,) = result.verdict.rows
    assert (row.rank, row.ranks, row.place) == (1, [], "")


@pytest.mark.parametrize(
    ("late", "place"),
    [
        ((1, 5), "local rank 1 of all 2 nodes"),
        ((4, 5, 6, 7), "all ranks of b"),
        ((1, 6), ""),
        ((4, 5), ""),
        ((0, 1, 4, 5), ""),
    ],
)
def test_places(late: tuple[int, ...], place: str) -> None:
    summaries = []
    for rank in range(8):
        summary = summary_of(rank, [])
        summary.host = "ab"[rank // PER_NODE]
        summaries.append(summary)
    assert place_of([summaries[rank] for rank in late], summaries) == place
