"""The critical path through the ranks: of small jobs, beside a slow search for it, and what it adds up to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from augment.core.findings import Skipped
from augment.job.answer import Answer
from augment.job.collectives import waits
from augment.job.matching.clocks import Clock
from augment.job.matching.matching import match
from augment.job.path import path as path_figures
from augment.job.path.path import Path, figures, handovers, path_of
from augment.job.ranks.summary import RankSummary
from job_summaries import summary_of

pytestmark = pytest.mark.slow

Piece = tuple[int, int, int, bool]  #: member, start, end, whether data are moved
AR = "AllReduce"


def whole_path(summaries: Sequence[RankSummary], clocks: Sequence[Clock]) -> Path:
    matched = match(summaries)
    path = path_of(matched, waits(matched, clocks), clocks, summaries)
    assert isinstance(path, Path), path
    return path


def exact(summaries: Sequence[RankSummary], uncertainty: int = 0, offsets: Sequence[int] = ()) -> list[Clock]:
    return [
        Clock(each.rank, "", comparable=True, uncertainty_ns=uncertainty, offset_ns=offset)
        for each, offset in zip(summaries, offsets or [0] * len(summaries), strict=True)
    ]


def job(summaries: Sequence[RankSummary], clocks: Sequence[Clock]) -> Answer:
    matched = match(summaries)
    return Answer(summaries, clocks, matched, waits(matched, clocks), [])


def pieces(path: Path) -> list[Piece]:
    return list(zip(*(each.tolist() for each in (path.member, path.start, path.end, path.is_transfer())), strict=True))


@pytest.fixture
def three() -> list[RankSummary]:
    """Rank 1 is late to the first all-reduce, rank 2 to the second; in two steps."""
    at = ((100, 700), (300, 600), (120, 800))
    return [
        summary_of(
            rank,
            [("g", AR, 0, at[rank][0], 350), ("g", AR, 1, at[rank][1], 860)],
            steps=([4, 5], [0, 400], [400, 1000], [0, 0]),
            computing=[(10, 90), (360, at[rank][1] - 20)],
        )
        for rank in range(3)
    ]


def test_the_path_of_a_small_job(three: list[RankSummary]) -> None:
    path = whole_path(three, exact(three))
    assert pieces(path) == [
        (1, 0, 300, False), (2, 300, 350, True), (2, 350, 400, False), (2, 400, 800, False), (0, 800, 860, True),
        (0, 860, 1000, False),
    ]  # fmt: skip
    assert path.step.tolist() == [4, 4, 4, 5, 5, 5]
    assert path.compute_ns.tolist() == [80, 0, 40, 380, 0, 0]
    assert path.idle_ns.tolist() == [220, 0, 10, 20, 0, 140]


def test_its_figures(three: list[RankSummary]) -> None:
    clocks, matched = exact(three, 7), match(three)
    path = whole_path(three, clocks)
    rows = sorted(figures(path, clocks, three), key=lambda row: (row.step is None, row.step or 0, row.rank or 0))
    output = [
        (row.step, row.rank, row.path_ns, row.compute_ns, row.idle_ns, row.transfer_ns, row.visit_count) for row in rows
    ]
    assert output == [
        (4, 1, 300, 80, 220, 0, 1),
        (4, 2, 100, 40, 10, 50, 1),
        (5, 0, 200, 0, 140, 60, 1),
        (5, 2, 400, 380, 20, 0, 1),
        (None, 0, 200, 0, 140, 60, 1),
        (None, 1, 300, 80, 220, 0, 1),
        (None, 2, 500, 420, 30, 50, 1),
    ]
    assert [row.path_ratio for row in rows[-3:]] == [0.2, 0.3, 0.5]
    assert {row.uncertainty_ns for row in rows} == {7}
    over = handovers(path, matched, waits(matched, clocks), three).rows
    expected = [(1, 2, 180, 180, 50), (2, 0, 100, 100, 60)]
    assert [(row.late_rank, row.waiting_rank, row.wait_ns, row.lead_ns, row.transfer_ns) for row in over] == expected


def test_a_wait_within_the_uncertainty_hands_nothing_over() -> None:
    late = [summary_of(rank, [("g", AR, 0, start, 200)]) for rank, start in enumerate((100, 140))]
    assert pieces(whole_path(late, exact(late, 39))) == [(0, 140, 200, True)]
    assert pieces(whole_path(late, exact(late, 40))) == [(0, 100, 200, True)]


def test_only_what_held_the_rank_up_hands_over() -> None:
    def ranks(**of_first: Any) -> list[RankSummary]:
        both = [("g", AR, 0, 100, 400), ("g", AR, 1, 405, 500)]
        late = [("g", AR, 0, 300, 400), ("g", AR, 1, 405, 500)]
        windows = ([-1], [0], [600], [0])
        return [summary_of(0, both, steps=windows, **of_first), summary_of(1, late, steps=windows, **of_first)]

    held, free, queued = ranks(), ranks(held=[0, 1]), ranks(held=[0, 1], follows=[-1, 0])
    assert [piece[0] for piece in pieces(whole_path(free, exact(free)))] == [0, 0, 0]
    for each in (held, queued):
        assert pieces(whole_path(each, exact(each)))[:2] == [(1, 0, 300, False), (0, 300, 400, True)]


def test_a_broadcast_tells_nobody_who_was_late() -> None:
    ranks = [summary_of(rank, [("g", "Broadcast", 0, start, 400)]) for rank, start in enumerate((100, 300))]
    assert pieces(whole_path(ranks, exact(ranks))) == [(0, 100, 400, False)]


def test_where_there_is_no_path(three: list[RankSummary]) -> None:
    refused = [Clock(each.rank, "", refused="why") for each in three]
    for clocks in (refused, [*exact(three)[:1], *refused[1:]]):
        outcome = job(three, clocks).outcomes["cross_rank_critical_path"]
        assert outcome == Skipped("no two ranks have comparable clocks")
    alone = job(three[:1], exact(three[:1])).outcomes
    assert alone["cross_rank_critical_path"] == Skipped("no collective was found on two ranks")
    assert alone["cross_rank_handovers"] == Skipped("no collective was found on two ranks")


def test_a_rank_without_a_clock_is_told_of(three: list[RankSummary]) -> None:
    apart = [("h", AR, number, 100 * number, 100 * number + 90) for number in range(3)]
    four = [summary_of(3, apart), *three, summary_of(4, apart)]
    clocks = [Clock(3, "", refused="why"), *exact(three), Clock(4, "", refused="why")]
    outcome = job(four, clocks).outcomes["cross_rank_critical_path"]
    assert outcome.partial == "the path cannot reach 2 ranks, whose clocks are not comparable with the others'"
    assert {row.rank for row in outcome.rows} == {0, 1, 2}


def test_handovers_beyond_the_limit_are_counted(monkeypatch: pytest.MonkeyPatch, three: list[RankSummary]) -> None:
    monkeypatch.setattr(path_figures, "MOST_HANDOVERS", 1)
    outcome = job(three, exact(three)).outcomes["cross_rank_handovers"]
    assert [(row.late_rank, row.wait_ns) for row in outcome.rows] == [(1, 180)]
    assert [(each.code, each.count) for each in outcome.diagnostics] == [("handovers_beyond_limit", 1)]


@st.composite
def jobs(draw: st.DrawFn) -> tuple[list[RankSummary], list[int]]:
    """Ranks with two streams of collectives each, on clocks with these offsets; of no two do ends on a rank agree."""
    count = draw(st.integers(2, 4))
    free = [[0, 1] for _ in range(count)]
    parts: list[list[tuple[str, str, int, int, int]]] = [[] for _ in range(count)]
    streams: list[list[int]] = [[] for _ in range(count)]
    for number in range(draw(st.integers(1, 12))):
        members = sorted(draw(st.sets(st.integers(0, count - 1), min_size=2)))
        stream = draw(st.integers(0, 1))
        start = {member: free[member][stream] + 2 * draw(st.integers(0, 30)) for member in members}
        end = max(start.values()) + 2 * draw(st.integers(1, 10))
        for member in members:
            parts[member].append((f"{members}{stream}", AR, number, start[member], end))
            streams[member].append(stream)
            free[member][stream] = end
    offsets = [0, *draw(st.lists(st.integers(-500, 500), min_size=count - 1, max_size=count - 1))]
    numbers = draw(st.lists(st.integers(0, 9), max_size=3, unique=True).map(sorted))
    made = []
    for rank in range(count):
        order = sorted(range(len(parts[rank])), key=lambda place: parts[rank][place][3])
        last = {0: -1, 1: -1}
        follows = []
        for place, member in enumerate(order):
            stream = streams[rank][member]
            follows.append(last[stream] if draw(st.booleans()) else -1)
            last[stream] = place
        ahead = offsets[rank]
        part = [(*part[:3], part[3] + ahead, part[4] + ahead) for part in (parts[rank][each] for each in order)]
        edges = sorted(draw(st.sets(st.integers(-20, max(max(free)) + 20), min_size=8, max_size=8)))
        steps = np.array(edges[: 2 * max(len(numbers), 1)]).reshape(-1, 2) + ahead
        computing = [(each + ahead, two + ahead) for each, two in zip(edges[::2], edges[1::2], strict=True)]
        held = draw(st.lists(st.integers(0, 1), min_size=len(part), max_size=len(part)))
        made.append(summary_of(rank, part, held=held, follows=follows, computing=computing,
                               steps=(numbers or [-1], steps[:, 0], steps[:, 1], [0] * len(steps))))  # fmt: skip
    return made, offsets


def slowly(summaries: Sequence[RankSummary], offsets: Sequence[int], uncertainty: int) -> list[Piece]:
    """The path, from the last piece to the first, its steps not told apart."""
    parts: dict[int, dict[int, tuple[int, int]]] = defaultdict(dict)
    places: list[list[int]] = []
    for rank, each in enumerate(summaries):
        places.append(each.column("seq").tolist())
        times = zip(each.column("ts").tolist(), each.column("end").tolist(), strict=True)
        for number, (start, end) in zip(places[-1], times, strict=True):
            parts[number][rank] = start - offsets[rank], end - offsets[rank]
    first, last = ([int(each.step_column(side)[at]) - ahead for each, ahead in zip(summaries, offsets, strict=True)]
                   for side, at in (("start", 0), ("end", -1)))  # fmt: skip

    def later(number: int, rank: int) -> int:
        """The rank that the path goes on at."""
        start, _ = parts[number][rank]
        arrival = max(each for each, _ in parts[number].values())
        waited = arrival - start  # also where durations tell, as all end together
        return rank if waited <= uncertainty else min(each for each, (at, _) in parts[number].items() if at == arrival)

    def back() -> Iterator[Piece]:
        rank = last.index(max(last))
        now, at = last[rank], -1
        while now > first[rank]:
            behind = int(summaries[rank].column("follows")[places[rank].index(at)]) if at >= 0 else -1
            held = [(parts[number][rank][1], number) for number, flag in
                    zip(places[rank], summaries[rank].column("held").tolist(), strict=True)
                    if flag and parts[number][rank][1] <= now]  # fmt: skip
            number = places[rank][behind] if behind >= 0 else max(held, default=(0, -1))[1]
            if number < 0 or parts[number][rank][1] <= first[rank]:
                yield rank, first[rank], now, False
                return
            end = parts[number][rank][1]
            if end < now:
                yield rank, end, now, False
            to = later(number, rank)
            yield rank, parts[number][to][0], end, True
            rank, now, at = to, parts[number][to][0], number

    return list(back())


@given(jobs(), st.integers(0, 8))
def test_it_is_what_a_slow_search_finds(case: tuple[list[RankSummary], list[int]], uncertainty: int) -> None:
    summaries, offsets = case
    path = whole_path(summaries, exact(summaries, uncertainty, offsets))
    joined: list[Piece] = []
    for member, start, end, moves in pieces(path):
        if joined and not moves and joined[-1][0] == member and not joined[-1][3]:
            start = joined.pop()[1]
        joined.append((member, start, end, moves))
    assert joined[::-1] == slowly(summaries, offsets, uncertainty)


@given(jobs(), st.lists(st.floats(-1e-3, 1e-3), min_size=4, max_size=4), st.integers(0, 8))
def test_its_parts_add_up_on_any_clocks(
    case: tuple[list[RankSummary], list[int]], drifts: list[float], uncertainty: int
) -> None:
    summaries, offsets = case
    clocks = [Clock(at, "", offset, drift, comparable=True, uncertainty_ns=uncertainty)
              for at, (offset, drift) in enumerate(zip(offsets, drifts, strict=False))]  # fmt: skip
    path = whole_path(summaries, clocks)
    assert (path.start[1:] == path.end[:-1]).all()
    assert (path.dur >= 0).all()
    times = np.array([path.compute_ns, path.communication_ns, path.memory_ns, path.idle_ns])
    assert (times >= 0).all()
    assert (times.sum(axis=0) == np.where(path.is_transfer(), 0, path.dur)).all()
    assert (np.diff(path.step) >= 0).all()
    rows = list(figures(path, clocks, summaries))
    whole = int(path.end[-1] - path.start[0])
    assert sum(row.path_ns for row in rows if row.step is None) == whole
    stepped = [row.path_ns for row in rows if row.step is not None]
    assert not stepped or sum(stepped) == whole


@given(jobs())
def test_it_is_on_no_rank_before_that_has_arrived(case: tuple[list[RankSummary], list[int]]) -> None:
    summaries, offsets = case
    clocks, matched = exact(summaries, 0, offsets), match(summaries)
    path = whole_path(summaries, clocks)
    for number in np.flatnonzero(path_figures.is_handover(path)).tolist():
        late = int(path.late[number])
        rank = int(matched.member[late])
        assert path.start[number] == matched.ts[late] - offsets[rank]
        assert number == 0 or path.member[number - 1] == rank
        mates = matched.instance == matched.instance[late]
        started = matched.ts[mates] - np.array(offsets)[matched.member[mates]]
        assert path.start[number] == started.max()
