"""A job of several dimensions: its clocks and its straggler, however much the traces say of the collectives."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import layered_job
from answered_jobs import answered, job_at
from augment.core.findings import Findings
from augment.job.answer import Answer
from augment.job.matching.matching import match
from job_summaries import Part, summary_of

pytestmark = pytest.mark.slow

INFERRED = ("nopg", "noargs", "deepep")
SLOW = layered_job.SLOW


def rows(result: Answer, question: str) -> Any:
    outcome = result.outcomes[question]
    return outcome.rows if isinstance(outcome, Findings) else ()


def shares(result: Answer) -> dict[int, float]:
    """The share of each rank in the critical path, the largest first."""
    whole = {row.rank: row.path_ratio for row in rows(result, "cross_rank_critical_path") if row.step is None}
    return dict(sorted(whole.items(), key=lambda item: -item[1]))


@pytest.fixture(scope="module", params=[
    ("seq", 1), ("seq", 4), ("p2p", 4), ("coalesced", 4), ("nopg", 1), ("noargs", 4), ("deepep", 4),
])  # fmt: skip
def layered(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Answer]:
    variant, buckets = request.param
    return variant, answered(layered_job.make(tmp_path_factory.mktemp("job"), variant, buckets))


def test_no_clock_is_corrected_as_all_are_true(layered: tuple[str, Answer]) -> None:
    for row in rows(layered[1], "clock_alignment"):
        assert row.offset_ns == 0
        assert row.drift_ppm == 0


def test_no_group_has_more_ranks_than_its_size(layered: tuple[str, Answer]) -> None:
    for row in rows(layered[1], "job_collectives"):
        assert row.ranks_seen <= row.group_size


def test_the_slow_rank_is_first_on_the_path_where_groups_are_named(layered: tuple[str, Answer]) -> None:
    variant, result = layered
    if variant not in INFERRED:
        path = shares(result)
        assert next(iter(path)) == SLOW
        assert path[SLOW] > 0.8


def test_ranks_are_joined_by_few_collectives_and_by_sends(layered: tuple[str, Answer]) -> None:
    variant, result = layered
    joined = [clock.rank for clock in result.clocks if clock.comparable]
    expected = {"seq": range(8), "p2p": range(16), "coalesced": range(16)}
    assert joined == list(expected.get(variant, joined))
    assert joined


def test_reasons_are_true(layered: tuple[str, Answer]) -> None:
    variant, result = layered
    for clock in result.clocks:
        if not clock.comparable:
            assert clock.refused is not None
            if variant == "seq":
                assert clock.refused.startswith("it shares collectives with ranks ")
                assert "which nothing joins with the other ranks" in clock.refused
            if clock.mismatched:
                assert "ppm" in clock.refused


def test_groups_that_are_not_named_are_inferred_from_ends(layered: tuple[str, Answer]) -> None:
    variant, result = layered
    if variant in INFERRED:
        tensor = {str(ranks) for ranks in layered_job.TENSOR}
        kinds = ("AllReduce", "AllToAll")
        matched = result.matched
        numbers = {
            int(group) for group, kind in zip(matched.group, matched.kind, strict=True) if matched.kinds[kind] in kinds
        }
        assert {matched.groups[number].ranks for number in numbers} & tensor == tensor


def test_trusted_clocks_join_what_nothing_else_joins(tmp_path: Path) -> None:
    result = answered(layered_job.make(tmp_path, "seq", 4), trust_clocks=True)
    assert all(clock.comparable or "tenth of a step" in (clock.refused or "") for clock in result.clocks)
    assert {clock.uncertainty_ns for clock in result.clocks[8:]} == {1_000_002}


def test_a_lost_kernel_costs_itself_alone(tmp_path: Path) -> None:
    paths = layered_job.make(tmp_path, "noseq", 4)
    whole = answered(paths)
    trace = json.loads(gzip.decompress(paths[6].read_bytes()))
    reduces = [event for event in trace["traceEvents"] if event["cat"] == "kernel" and "AllReduce" in event["name"]]
    trace["traceEvents"].remove(reduces[1])
    paths[6].write_bytes(gzip.compress(json.dumps(trace).encode()))
    damaged = answered(paths)
    assert len(damaged.matched) == len(whole.matched)
    assert (damaged.matched.members != whole.matched.members).sum() == 1
    lost = damaged.matched.members == 3
    assert damaged.matched.ts[damaged.matched.first[lost]] == whole.matched.ts[whole.matched.first[lost]]


def test_several_lost_kernels_of_clocks_far_apart() -> None:
    """Fifty all-reduces of which ranks lack some; what remains is matched right, with nothing else in common."""
    random = np.random.default_rng(5)
    starts = np.cumsum(random.integers(50_000, 2_000_000, 50))
    offsets = [0, 7_000_000_000, -3_000_000]
    lost = [set(), {3, 17, 44}, {0, 49}]
    summaries = []
    for rank, (offset, lacking) in enumerate(zip(offsets, lost, strict=True)):
        parts: list[Part] = [
            ("g", "AllReduce", number, int(ts) + offset - int(random.integers(0, 9000)), int(ts) + 40_000 + offset)
            for number, ts in enumerate(starts)
            if number not in lacking
        ]
        summaries.append(summary_of(rank, parts, numbered=False))
    matched = match(summaries)
    assert len(matched) == 50
    for row, instance in enumerate(matched.instance.tolist()):
        true = starts[sorted(set(range(50)) - lost[matched.member[row]])[matched.place[row]]]
        assert abs(matched.end[row] - offsets[matched.member[row]] - 40_000 - true) == 0
        others = (
            matched.end[matched.instance == instance] - np.array(offsets)[matched.member[matched.instance == instance]]
        )
        assert np.ptp(others) == 0


def test_sizes_decide_where_times_cannot() -> None:
    parts = [("g", "AllReduce", 0, 1000 * number, 1000 * number + 900) for number in range(8)]
    sizes = [8, 16, 24, 32, 40, 48, 56, 64]
    whole = summary_of(0, parts, bytes=sizes, numbered=False)  # type: ignore[arg-type]
    cut = summary_of(1, parts[:5] + parts[6:], bytes=sizes[:5] + sizes[6:], numbered=False)  # type: ignore[arg-type]
    matched = match([whole, cut])
    assert len(matched) == 7
    assert {(int(place), int(matched.bytes[number])) for number, place in enumerate(matched.place[0::2])} == {
        (place, size) for place, size in enumerate(sizes) if place != 5
    }


def test_half_the_ranks_or_fewer_charge_nobody(shared_traces: Path) -> None:
    result = answered(job_at(shared_traces / "hta_sampled_2_of_128"))
    assert [row.after_the_others_ns for row in rows(result, "stragglers")] == [0] * len(rows(result, "stragglers"))
    assert not rows(result, "cross_rank_critical_path")
    assert "nobody is charged" in (result.outcomes["stragglers"].partial or "")


def test_a_rank_that_is_cut_short_is_named(tmp_path: Path) -> None:
    paths = layered_job.make(tmp_path, "seq", 4)
    text = gzip.decompress(paths[6].read_bytes())
    paths[6].write_bytes(gzip.compress(text[: len(text) * 6 // 10]))
    result = answered(paths)
    (note,) = (each for each in result.diagnostics if each.code == "truncated_rank")
    assert note.count == 1
    assert paths[6].name in note.message
    assert any(sentence.startswith("Incomplete: rank 6 (") for sentence in result.verdict.text)
