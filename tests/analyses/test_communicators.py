"""Communicators of NCCL's logs: which ranks are joined by what, in rings and trees, and how long that took."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import augment
from augment.core.findings import Skipped
from traces import HOST, step, write_trace

PIDS = (HOST, HOST + 1)


def lines(rank: int, number: int, *more: str, start: bool = True) -> list[str]:
    """What a rank logs of its communicator of this number; what comes ``more`` is between its beginning and end."""
    of = f"comm 0x{number}0 rank {rank} nranks 2 cudaDev {rank} busId {rank}a000 commId 0xfe{number}"
    layout = f"comm 0x{number}0 rank {rank} nRanks 2 nNodes 1 localRanks 2 localRank {rank} MNNVL 0"
    said = [f"ncclCommInitRank {of} - Init START"] if start else []
    said += [layout, *more, f"ncclCommInitRank {of} - Init COMPLETE"]
    said.append(f"Init timings - ncclCommInitRank: rank {rank} nranks 2 total {0.5 + rank} (kernels 0.2, alloc 0.1)")
    return [f"n0:{PIDS[rank]}:9 [{rank}] NCCL INFO {each}" for each in said]


def parts(rank: int) -> list[str]:
    return [
        "=== System : maxBw 240.0 totalBw 240.0 ===",
        "Channel 00/02 : 0 1",
        "Channel 01/02 : 0 1",
        "Trees [0] -1/-1/-1->1->0 [1] -1/-1/-1->1->0" if rank else "Trees [0] 1/-1/-1->0->-1 [1] 1/-1/-1->0->-1",
        f"Channel 00/0 : {rank}[{rank}] -> {1 - rank}[{1 - rank}] via P2P/direct pointer/read",
        f"Channel 01/0 : {rank}[{rank}] -> {1 - rank}[{1 - rank}] via P2P/direct pointer/read",
        "2 coll channels, 0 collnet channels, 0 nvls channels, 2 p2p channels, 2 p2p channels per peer",
    ]


def outcome(folder: Path, text: list[str], trace: Path | None = None) -> Any:
    path = folder / "nccl.txt"
    path.write_text("\n".join(text) + "\n")
    read = augment.with_nccl_log(augment.read(str(trace)), str(path)) if trace else augment.read(str(path))
    return augment.augment(read, only=["communicators"]).outcomes["communicators"]


def test_a_communicator_with_its_pairs_rings_and_trees(tmp_path: Path) -> None:
    findings = outcome(tmp_path, [*lines(0, 1, *parts(0)), *lines(1, 1, *parts(1))])
    made, *rest = findings.rows
    assert (made.communicator, made.by, made.name, made.group_size) == ("0xfe1", "communicator", "0-1", 2)
    assert (made.node_count, made.logged_count, made.transport) == (1, 2, "P2P/direct pointer/read")
    assert (made.channel_count, made.init_ns, made.least_init_ns) == (2, 1_500_000_000, 500_000_000)
    assert (made.max_gbps, made.reached_gbps) == (240.0, None)
    assert [(row.by, row.name, row.transport, row.channel_count) for row in rest] == [
        ("pair", "0 → 1", "P2P/direct pointer/read", 2),
        ("pair", "1 → 0", "P2P/direct pointer/read", 2),
        ("ring", "0 1", None, 2),
        ("tree", "0: root, above 1", None, 2),
        ("tree", "1: under 0", None, 2),
    ]


def test_beside_a_trace_those_of_its_process(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "rank0.json", step(0))
    text = [*lines(0, 1, *parts(0)), *lines(1, 1, *parts(1)), *lines(1, 2)]
    findings = outcome(tmp_path, text, trace)
    assert {row.communicator for row in findings.rows} == {"0xfe1"}
    assert findings.rows[0].logged_count == 2
    assert isinstance(outcome(tmp_path, lines(1, 2), trace), Skipped)
    assert isinstance(augment.augment(str(trace), only=["communicators"]).outcomes["communicators"], Skipped)


@pytest.mark.parametrize("says_which", [False, True])
def test_ranks_that_are_connected_later(tmp_path: Path, says_which: bool) -> None:
    """Of several communicators the one whose collective comes before; else the line is of none that is known."""
    head = f"n0:{PIDS[0]}:9 [0] NCCL INFO"
    collective = f"{head} AllReduce: opCount 0 sendbuff 0x1 recvbuff 0x2 count 4 datatype 7 op 0 root 0 comm 0x10"
    edge = f"{head} Channel 00/0 : 0[0] -> 1[1] via SHM/direct/direct"
    text = [*lines(0, 1), *lines(0, 2), *([f"{collective} [nranks=2] stream 0x5"] if says_which else []), edge]
    findings = outcome(tmp_path, text)
    pairs = [(row.communicator, row.transport) for row in findings.rows if row.by == "pair"]
    assert pairs == ([("0xfe1", "SHM/direct/direct")] if says_which else [])
    assert [each.count for each in findings.diagnostics] == ([] if says_which else [1])
    alone = outcome(tmp_path, [*lines(0, 1), edge])
    assert [row.transport for row in alone.rows if row.by == "pair"] == ["SHM/direct/direct"]


def test_trees_of_all_versions(tmp_path: Path) -> None:
    for text, name in (
        ("Trees [0] 3->1->0/-1/-1", "1: under 3, above 0"),  # NCCL 2.4
        ("Trees [0] 0/-1/-1->1->3|3->1->0/-1/-1", "1: under 3, above 0"),  # NCCL 2.5 to 2.7
        ("Trees [0] 0/2/-1->1->-1", "1: root, above 0, 2"),
    ):
        findings = outcome(tmp_path, lines(1, 1, text))
        assert [row.name for row in findings.rows if row.by == "tree"] == [name]


def test_many_rows_are_cut_with_a_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("augment.analyses.communicators.MOST", 1)
    findings = outcome(tmp_path, [*lines(0, 1, *parts(0)), *lines(1, 1, *parts(1))])
    assert [row.by for row in findings.rows] == ["communicator", "pair", "ring", "tree"]
    assert findings.partial == "left out: 1 of 2 rows about a pair and 1 of 2 rows about a tree"
