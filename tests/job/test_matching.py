"""Collectives of many process groups, by number and by order; clocks across groups; what cannot be matched."""

from __future__ import annotations

import itertools
import zlib
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from augment import AugmentedTrace, Findings, read
from augment.facts.collectives.collective_kernels import collectives
from augment.job.answer import Answer, answer
from augment.job.collectives import Waits, apart, waits
from augment.job.matching import Clock, Matched, align, match
from augment.job.path import path_of
from augment.job.ranks import RankSummary, summarize
from job_summaries import Part, summary_of
from traces import Event, event, step, write_trace


def packed(rank_summary: RankSummary) -> bytes:
    return zlib.compress(msgspec.msgpack.encode(rank_summary))


def counts_of(diagnostics: object) -> dict[str, int]:
    return {diagnostic.code: diagnostic.count for diagnostic in diagnostics}  # type: ignore[attr-defined]


def mesh(offsets: list[int], rows: int = 4, count: int = 20, host: bool = False) -> list[RankSummary]:
    """Ranks in a mesh: a group for each of ``rows`` of it, and for each column; no group has all ranks."""
    random = np.random.default_rng(1)
    columns = len(offsets) // rows
    parts: list[list[tuple[int, Part]]] = [[] for _ in offsets]
    for number in range(count):
        for of in range(rows + columns):
            group = f"row{of}" if of < rows else f"column{of - rows}"
            members = [rank for rank in range(len(offsets))
                       if (rank // columns == of if of < rows else rank % columns == of - rows)]  # fmt: skip
            begin = number * 1_000_000 + of * 50_000
            for rank in members:
                start = begin + int(random.integers(0, 5000)) + offsets[rank]
                end = begin + 40_000 + int(random.integers(-20, 20)) + offsets[rank]
                parts[rank].append((start, (group, "AllReduce", number, start, end)))
    return [
        summary_of(rank, [part for _, part in sorted(part)], host=f"h{rank // columns}" if host else "")
        for rank, part in enumerate(parts)
    ]


def test_clocks_are_carried_from_group_to_group() -> None:
    offsets = np.random.default_rng(2).integers(-(10**10), 10**10, 16).tolist()
    summaries = mesh(offsets)
    matched = match(summaries)
    assert len(matched) == 20 * 8
    clocks, doubts = align(matched, summaries)
    assert not doubts
    for clock, offset in zip(clocks, offsets, strict=True):
        assert abs(clock.offset_ns - (offset - offsets[0])) <= clock.uncertainty_ns < 300


def test_ranks_of_a_host_have_one_clock_unless_they_clearly_have_not() -> None:
    offsets = [[0, 5_000_000, -7, 9][rank // 4] for rank in range(16)]
    summaries = mesh(offsets, host=True)
    clocks, doubts = align(match(summaries), summaries)
    assert [clock.offset_ns for clock in clocks[:4]] == [0, 0, 0, 0]
    assert len({clock.offset_ns for clock in clocks[4:8]}) == 1
    assert clocks[4].offset_ns == pytest.approx(5_000_000, abs=100)
    assert not doubts
    offsets[6] += 3_000_000
    summaries = mesh(offsets, host=True)
    clocks, doubts = align(match(summaries), summaries)
    assert counts_of(doubts) == {"clock_unlike_host": 1}
    assert clocks[6].offset_ns == pytest.approx(8_000_000, abs=100)
    assert clocks[5].offset_ns == pytest.approx(5_000_000, abs=100)


def test_without_numbers_the_order_within_a_step_and_kind_tells() -> None:
    def rank(which: int, kinds: list[str], steps: list[int]) -> RankSummary:
        parts = [("g", kind, 0, 1000 * place + which, 1000 * place + 500) for place, kind in enumerate(kinds)]
        return summary_of(which, parts, numbered=False, step=steps)

    kinds, steps = ["AllReduce", "AllGather", "AllReduce", "AllReduce"], [1, 1, 1, 2]
    matched = match([rank(0, kinds, steps), rank(1, kinds, steps)])
    assert len(matched) == 4
    assert all(len(set(pair)) == 1 for pair in matched.place.reshape(-1, 2).tolist())
    cut = match([rank(0, kinds, steps), rank(1, kinds[1:], steps[1:])])
    assert counts_of(cut.diagnostics) == {"collectives_of_one_rank": 1}  # step 1's all-reduces: 2 and 1
    assert sorted(zip(cut.place[0::2].tolist(), cut.place[1::2].tolist(), strict=True)) == [(1, 0), (2, 1), (3, 2)]
    unclear = match([rank(0, ["AllReduce"] * 2, [1, 1]), rank(1, ["AllReduce"], [1])])  # the first or the second
    assert counts_of(unclear.diagnostics) == {"collectives_counted_differently": 3}


def test_groups_of_one_name_and_other_ranks_are_two() -> None:
    parts: list[Part] = [("tp", "AllReduce", number, number * 100, number * 100 + 50) for number in range(3)]
    summaries = [summary_of(rank, parts, members={"tp": ["[0, 1]", "[2, 3]"][rank // 2]}) for rank in range(4)]
    matched = match(summaries)
    assert len(matched) == 6
    assert matched.members.tolist() == [2] * 6


def test_what_ranks_tell_differently_is_left_out_and_counted() -> None:
    parts: list[Part] = [("g", "AllReduce", 0, 0, 9), ("g", "AllReduce", 1, 10, 19), ("g", "Send", 2, 20, 29)]
    matched = match([summary_of(0, parts, bytes=[8, 8, 8]), summary_of(1, parts, bytes=[8, 16, 8])])
    assert len(matched) == 1
    assert counts_of(matched.diagnostics) == {"point_to_point_left_out": 2, "collectives_told_differently": 1}
    alone = match([summary_of(0, parts[:1]), summary_of(1, parts[1:2])])
    assert not len(alone)
    assert counts_of(alone.diagnostics) == {"collectives_of_one_rank": 2}


def test_a_size_that_one_rank_does_not_tell_differs_from_none() -> None:
    parts: list[Part] = [("g", "AllReduce", number, number * 10, number * 10 + 9) for number in range(2)]
    matched = match([summary_of(0, parts), summary_of(1, parts, bytes=[8, 16]), summary_of(2, parts, bytes=[8, 32])])
    assert matched.bytes.tolist() == [8]
    assert matched.members.tolist() == [3]
    assert counts_of(matched.diagnostics) == {"collectives_told_differently": 1}


def test_long_lists_of_ranks_that_are_cut_short_tell_groups_of_one_name_apart() -> None:
    parts: list[Part] = [("dp", "AllReduce", 0, 0, 9)]
    lists = ["[0, 2, 4, ..., 126]", "[1, 3, 5, ..., 127]"]
    matched = match([summary_of(rank, parts, members={"dp": lists[rank % 2]}) for rank in range(4)])
    assert matched.members.tolist() == [2, 2]
    assert sorted(map(tuple, matched.member.reshape(-1, 2).tolist())) == [(0, 2), (1, 3)]


def test_collectives_of_no_told_group_are_doubtful_among_more_than_two() -> None:
    contents = [packed(summary_of(rank, [("", "AllReduce", 0, 0, 9)])) for rank in range(3)]
    assert counts_of(answer(contents, ["a", "b", "c"]).diagnostics) == {"group_not_told": 1}
    assert counts_of(answer(contents[:2], ["a", "b"]).diagnostics) == {}


def test_a_rank_that_two_traces_claim_is_told() -> None:
    contents = [packed(summary_of(rank, [("g", "AllReduce", 0, 0, 9)])) for rank in (0, 1, 1, 1)]
    assert counts_of(answer(contents, ["a", "b", "c", "d"]).diagnostics) == {"rank_claimed_twice": 2}
    assert counts_of(answer(contents[:2], ["a", "b"]).diagnostics) == {}


def test_too_few_collectives_give_no_clock_and_durations_tell_the_waits() -> None:
    far = 10**12
    left = [("g", "AllReduce", 0, 0, 100), ("g", "AllReduce", 1, 200, 260)]
    right = [("g", "AllReduce", 0, far + 70, far + 100), ("g", "AllReduce", 1, far + 200, far + 260)]
    summaries = [summary_of(0, left), summary_of(1, right)]
    matched = match(summaries)
    clocks, _ = align(matched, summaries)
    assert not clocks[1].comparable
    # the ends may be apart by a whole collective, and the recording is not much longer
    assert clocks[1].refused == "uncertain by 0.000 ms, more than a tenth of a step (0.000 ms)"
    assert clocks[1].uncertainty_ns == 62
    parted = waits(matched, clocks)
    assert not parted.by_arrival.any()
    assert parted.wait_ns.tolist() == [70, 0, 0, 0]
    assert parted.transfer_ns.tolist() == [30, 30, 60, 60]
    assert parted.lead_ns.tolist() == [70, 0]
    assert matched.member[parted.late].tolist() == [1, 0]


def test_a_clock_by_which_ranks_would_end_before_others_begin_is_refused() -> None:
    """What no common clock can explain: not the same collectives."""
    random = np.random.default_rng(3)
    starts = np.cumsum(random.integers(1000, 10**6, 40))
    left = [("g", "AllReduce", n, int(ts), int(ts) + 100) for n, ts in enumerate(starts)]
    others = np.cumsum(random.integers(1000, 10**6, 40))
    right = [("g", "AllReduce", n, int(ts), int(ts) + 100) for n, ts in enumerate(others)]
    summaries = [summary_of(0, left), summary_of(1, right)]
    matched = match(summaries)
    clocks, _ = align(matched, summaries)
    assert not waits(matched, clocks).by_arrival.any()


def test_nothing_to_match() -> None:
    for summaries in ([], [summary_of(0, [])], [summary_of(0, []), summary_of(1, [("g", "AllReduce", 0, 0, 5)])]):
        matched = match(summaries)
        clocks, _ = align(matched, summaries)
        assert len(matched) == 0
        assert [clock.comparable for clock in clocks] == [False] * len(summaries)
        assert not len(waits(matched, clocks).late)


def test_ranks_of_groups_that_are_not_told_are_not_one_collective_if_they_are_apart() -> None:
    summaries = []
    for rank in range(4):
        parts: list[Part] = [("all", "AllReduce", n, n * 1000, n * 1000 + 100 + n % 2) for n in range(30)]
        late = 5_000 * (rank // 2)  # two pairs of ranks, each with all-reduces of its own
        parts += [("", "AllReduce", n, 40_000 + late + n * 100, 40_050 + late + n * 100) for n in range(2)]
        summaries.append(summary_of(rank, parts))
    matched = match(summaries)
    clocks, _ = align(matched, summaries)
    assert [clock.comparable for clock in clocks] == [True] * 4
    wrong = apart(matched, clocks)
    assert [matched.groups[group].name for group in matched.group[wrong].tolist()] == ["", ""]
    left = matched.take(~wrong)
    assert len(left) == 30
    assert waits(left, clocks).by_arrival.all()


def pairs(between_ns: int, late_ns: int, group_of: list[int], count: int = 30) -> list[RankSummary]:
    """Ranks of unnamed groups whose collectives end ``between_ns`` apart from group to group, and begin within
    ``late_ns``."""
    random = np.random.default_rng(3)
    parts: list[list[Part]] = [[] for _ in group_of]
    for number in range(count):
        begin = number * 1_000_000
        shift = {group: int(random.integers(0, between_ns)) for group in set(group_of)}
        start = {group: int(random.integers(0, max(late_ns, 1))) for group in set(group_of)}
        for rank, group in enumerate(group_of):
            end = begin + 30_000 + start[group] + shift[group] + int(random.integers(0, 40))
            parts[rank].append(("", "AllReduce", number, begin + start[group], end))
    return [summary_of(rank, part, numbered=False, steps=([0], [0], [10**8], [0])) for rank, part in enumerate(parts)]


def test_groups_that_end_at_about_the_same_time_are_not_merged() -> None:
    alike = match(pairs(20_000, 1, [0, 0, 1, 1]))  # one group of two hosts, or two groups: nothing tells
    assert len(alike) == 0
    assert counts_of(alike.diagnostics) == {"group_members_not_told": 120}
    apart_ = match(pairs(20_000, 90_000, [0, 0, 1, 1]))  # a pair ends before the other begins
    assert {group.ranks for group in apart_.groups if group.ranks} == {"[0, 1]", "[2, 3]"}
    assert len(apart_) == 60
    assert len(match(pairs(20_000, 90_000, [0, 0, 0, 0]))) == 30


# Sends matched with their receives: by pair of ranks and order; who waited; the critical path through them.
Sent = tuple[str, int, int, int]  #: kind, the other rank, start, end


def rank_of(rank: int | None, sent: list[Sent], **options: Any) -> RankSummary:
    parts = [("g", kind, number, start, end) for number, (kind, _, start, end) in enumerate(sent)]
    made = summary_of(rank or 0, parts, peer=[peer for _, peer, *_ in sent], **options)
    made.rank = rank
    return made


def clocks_of(summaries: list[RankSummary], uncertainty: int = 1) -> list[Clock]:
    return [Clock(summary.rank, "", comparable=True, uncertainty_ns=uncertainty) for summary in summaries]


def parted(summaries: list[RankSummary], uncertainty: int = 1) -> tuple[Matched, Waits]:
    matched = match(summaries)
    return matched, waits(matched, clocks_of(summaries, uncertainty))


def test_the_order_between_two_ranks_pairs_them() -> None:
    """A ring of three: each sends twice to the next, in other orders and with other numbers than they receive."""
    ranks = [
        rank_of(0, [("Send", 1, 0, 100), ("Recv", 2, 200, 300), ("Send", 1, 400, 500), ("Recv", 2, 600, 700)]),
        rank_of(1, [("Recv", 0, 0, 100), ("Recv", 0, 400, 500), ("Send", 2, 510, 520), ("Send", 2, 530, 540)]),
        rank_of(2, [("Send", 0, 210, 300), ("Recv", 1, 512, 520), ("Recv", 1, 535, 540), ("Send", 0, 600, 700)]),
    ]
    matched = match(ranks)
    assert not matched.diagnostics
    assert {matched.kinds[kind] for kind in matched.kind} == {"SendRecv"}
    pairs = {(int(matched.member[at]), int(matched.place[at]), int(matched.member[at + 1]), int(matched.place[at + 1]))
             for at in matched.first.tolist()}  # fmt: skip
    assert pairs == {(0, 0, 1, 0), (0, 2, 1, 1), (1, 2, 2, 1), (1, 3, 2, 2), (0, 1, 2, 0), (0, 3, 2, 3)}
    assert matched.size().tolist() == [2] * 6


@pytest.mark.parametrize(("sent", "code", "count"), [
    ([("Send", -1, 0, 9)], "point_to_point_left_out", 1),  # to whom is not told
    ([("SendRecv", 0, 0, 9)], "point_to_point_left_out", 1),  # several at once
    ([("Send", 7, 0, 9)], "collectives_of_one_rank", 1),  # whose trace is not there
    ([("Send", 0, 0, 9), ("Send", 0, 20, 29)], "collectives_counted_differently", 3),
])  # fmt: skip
def test_what_cannot_be_paired_is_left_out_and_counted(sent: list[Sent], code: str, count: int) -> None:
    other: list[Sent] = [("Recv", 1, 0, 9)] if code == "collectives_counted_differently" else []
    matched = match([rank_of(0, other), rank_of(1, sent)])
    assert len(matched) == 0
    assert [(diagnostic.code, diagnostic.count) for diagnostic in matched.diagnostics] == [(code, count)]


def test_a_rank_that_is_not_known_is_in_no_pair() -> None:
    matched = match([rank_of(0, [("Send", 1, 0, 9)]), rank_of(None, [("Recv", 0, 0, 9)])])
    expected = {"point_to_point_left_out": 1, "collectives_of_one_rank": 1}
    assert {diagnostic.code: diagnostic.count for diagnostic in matched.diagnostics} == expected


def test_sizes_must_agree() -> None:
    ranks = [rank_of(0, [("Send", 1, 0, 9)], bytes=[64]), rank_of(1, [("Recv", 0, 0, 9)], bytes=[32])]
    assert [diagnostic.code for diagnostic in match(ranks).diagnostics] == ["collectives_told_differently"]


def test_a_receive_waits_for_the_later_send() -> None:
    ranks = [rank_of(0, [("Send", 1, 700, 1000)]), rank_of(1, [("Recv", 0, 100, 1000)])]
    matched, output = parted(ranks)
    assert output.wait_ns.tolist() == [0, 600]
    assert output.transfer_ns.tolist() == [300, 300]
    assert (matched.member[output.late].tolist(), output.lead_ns.tolist()) == ([0], [600])


def test_a_send_waits_for_a_receive_unless_it_is_done_before() -> None:
    waiting = [rank_of(0, [("Send", 1, 100, 1000)]), rank_of(1, [("Recv", 0, 700, 1000)])]
    assert parted(waiting)[1].wait_ns.tolist() == [600, 0]
    buffered = [rank_of(0, [("Send", 1, 100, 160)]), rank_of(1, [("Recv", 0, 700, 710)])]
    output = parted(buffered)[1]
    assert output.wait_ns.tolist() == [0, 0]
    assert output.transfer_ns.tolist() == [60, 10]
    assert (output.lead_ns.tolist(), output.by_arrival.tolist()) == ([0], [True])
    # clocks too uncertain to say so leave it to the durations
    assert parted(buffered, 600)[1].wait_ns.tolist() == [50, 0]


def test_the_path_goes_through_a_pipeline() -> None:
    window = {"steps": ([-1], [0], [1000], [0])}
    ranks = [
        rank_of(0, [("Send", 1, 300, 350)], **window),
        rank_of(1, [("Recv", 0, 50, 350), ("Send", 2, 600, 640)], **window),
        rank_of(2, [("Recv", 1, 60, 640)], steps=([-1], [0], [1001], [0])),
    ]
    matched, output = parted(ranks)
    path = path_of(matched, output, clocks_of(ranks), ranks)
    assert not isinstance(path, str)
    assert list(zip(path.member.tolist(), path.start.tolist(), path.end.tolist(), strict=True)) == [
        (0, 0, 300), (1, 300, 350), (1, 350, 600), (2, 600, 640), (2, 640, 1001),
    ]  # fmt: skip


def test_no_straggler_is_told_by_the_stages_of_a_pipeline() -> None:
    ranks = [rank_of(0, [("Send", 1, 700, 1000)]), rank_of(1, [("Recv", 0, 100, 1000)])]
    matched, output = parted(ranks)
    result = Answer(ranks, clocks_of(ranks), matched, output, [])
    assert not isinstance(result.outcomes["stragglers"], Findings)
    (row,) = result.outcomes["job_collectives"].rows
    assert (row.kind, row.group_size, row.count, row.wait_ns, row.transfer_ns) == ("SendRecv", 2, 1, 600, 600)


def sent(what: str, peer: int, ts: float, dur: float, number: int) -> list[Event]:
    """As PyTorch records a send or receive: the launch and the kernel, which bears the args."""
    output = {"Dst Rank" if what == "send" else "Src Rank": peer}
    args = {
        "device": 0, "stream": 20, "correlation": number, "Collective name": what, "In msg nelems": 1024,
        "Out msg nelems": 1024, "Group size": 4, "dtype": "BFloat16", "Process Group Name": "3",
        "Process Group Description": "pp", "Process Group Ranks": "[4, 5, 6, 7]", "Seq": number, **output,
    }  # fmt: skip
    return [
        event("cuda_runtime", "cudaLaunchKernelExC", ts - 8, 4, 1, 1, correlation=number),
        event("kernel", "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", ts, dur, 0, 20, **args),
    ]


def test_from_traces(tmp_path: Path) -> None:
    moments = [(100.0 * at, 100.0 * at + 30) for at in range(1, 5)]
    first = list(itertools.chain(*(sent("send", 6, late, 30, at) for at, (_, late) in enumerate(moments))))
    second = list(itertools.chain(*(sent("recv", 5, early, 60, 7 + at) for at, (early, _) in enumerate(moments))))
    paths = [write_trace(tmp_path / f"rank{rank}.json", step(0, 0, 600), *events, distributedInfo={"rank": rank})
             for rank, events in ((5, first), (6, second))]  # fmt: skip
    traces = [read(str(path)) for path in paths]
    assert [np.unique(collectives(trace).peer).tolist() for trace in traces] == [[6], [5]]
    rows = answer([summarize(AugmentedTrace(trace, {})) for trace in traces], ["a", "b"])
    assert not rows.diagnostics
    assert len(rows.matched) == 4
    assert rows.matched.bytes.tolist() == [2048] * 4
    assert rows.parted.wait_ns[rows.matched.member == 1].tolist() == [30_000] * 4
    instance, member, _ = rows.links()
    assert instance.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert member.tolist() == [1, 0] * 4  # the receive came first
