"""Sends matched with their receives: by pair of ranks and order; who waited; the critical path through them."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from augment.core.findings import AugmentedTrace, Findings
from augment.facts.collectives.collective_kernels import collectives
from augment.job.answer import Answer, answer
from augment.job.collectives.waits import Waits, waits
from augment.job.matching.clocks import Clock
from augment.job.matching.matching import Matched, match
from augment.job.path.path import path_of
from augment.job.ranks.summary import RankSummary, summarize
from augment.readers import read
from job_summaries import summary_of
from traces import Event, event, step, write_trace

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


@pytest.mark.parametrize(
    ("sent", "code", "count"),
    [
        ([("Send", -1, 0, 9)], "point_to_point_left_out", 1),  # to whom is not told
        ([("SendRecv", 0, 0, 9)], "point_to_point_left_out", 1),  # several at once
        ([("Send", 7, 0, 9)], "collectives_of_one_rank", 1),  # whose trace is not there
        ([("Send", 0, 0, 9), ("Send", 0, 20, 29)], "collectives_counted_differently", 3),
    ],
)
def test_what_cannot_be_paired_is_left_out_and_counted(sent: list[Sent], code: str, count: int) -> None:
    other: list[Sent] = [("Recv", 1, 0, 9)] if code == "collectives_counted_differently" else []
    matched = match([rank_of(0, other), rank_of(1, sent)])
    assert len(matched) == 0
    assert [(diagnostic.code, diagnostic.count) for diagnostic in matched.diagnostics] == [(code, count)]


def test_a_rank_that_is_not_known_is_in_no_pair() -> None:
    matched = match([rank_of(0, [("Send", 1, 0, 9)]), rank_of(None, [("Recv", 0, 0, 9)])])
    assert {diagnostic.code: diagnostic.count for diagnostic in matched.diagnostics} == {
        "point_to_point_left_out": 1,
        "collectives_of_one_rank": 1,
    }


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
    figures = result.outcomes["job_collectives"]
    (row,) = figures.rows
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
