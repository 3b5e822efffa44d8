"""Proofs of ``network_setup``: simulated logs whose truth is known, recorded ones by a reader of its own, and what must
not matter."""

from __future__ import annotations

import gzip
import json
import random
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import augment
from augment import cli
from augment.core.text import words_of
from augment.diagnosis.rule import Found
from augment.diagnosis.rules import network_setup
from augment.readers.attachments import nccl_log
from traces import HOST, step, write_trace

EVIDENCE = Path(__file__).parents[3] / "shared" / "evidence" / "nccl"
RECORDED = sorted([*EVIDENCE.glob("*.gz"), *EVIDENCE.glob("excerpts/*.log")])
PREFIXES = ("", "[1,{rank}]<stdout>:", "{rank}: ", "(Worker pid={pid}, ip=10.0.0.{rank}) ", "2026-01-01T00:00:00 ")
OTHER = "step {rank}: loss 0.3", "warning: NCCL is slow today", "[0] step done"
OTHER += "Traceback (most recent call last):", ""


@dataclass
class Cluster:
    """A job of one communicator over all devices, and one of each node, by NCCL of a generation: 2.10, 2.18 or 2.22."""

    generation: int
    nodes: int
    devices: int
    network: str
    path: str
    other_path: str
    channels: int
    warns: bool
    counts: list[int]
    differs: int | None
    is_forced: bool
    pids: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.pids = [HOST + rank for rank in range(self.nodes * self.devices)]

    def truth(self, *, alone: bool) -> set[str]:
        """What is wrong and can be seen: only later generations say on how many nodes a communicator is."""
        seen = {"warnings"} if self.warns else set()
        if self.nodes > 1 and self.network == "Socket" and (alone or self.generation > 10):
            seen.add("sockets")
        types = {self.path, self.other_path}
        if types & {"PHB", "SYS", "NODE"} and types & {"NVL", "NVB"}:
            seen.add("host_bridge")
        if types & {"NVL", "NVB"} and self.channels <= 2 and self.generation >= 22:
            seen.add("few_channels")
        # from then on communicators have ids; of two ranks either may have lost what comes again
        can_be_told = len(self.pids) > 2 or self.counts.count(self.counts[3]) == 1
        if self.differs is not None and self.generation > 10 and can_be_told:
            seen.add("differing")
        if self.is_forced and self.generation >= 22 and len(self.pids) >= 16:
            seen.add("rings")
        return seen

    def lines(self, rank: int) -> list[str]:
        """What a rank logs."""
        node, device = divmod(rank, self.devices)
        head = f"node{node}:{self.pids[rank]}:{self.pids[rank] + 1} [{device}] NCCL INFO "
        wired = "eth0:10.0.0.1<0>"
        said = [f"Bootstrap : Using {wired}", f"NET/Socket : Using [0]{wired}", f"Using network {self.network}"]
        groups = (("0xaa", rank, len(self.pids), "0xfe", self.nodes, self.path),
                  ("0xbb", device, self.devices, f"0xe{node}", 1, self.other_path),
                  ("0xcc", 0, 1, f"0xd{rank}", 1, "SYS"))  # fmt: skip
        for pointer, own_rank, size, identity, nodes, path in groups:
            of = f"comm {pointer}{rank:x} rank {own_rank} nranks {size} cudaDev {device} busId {device + 1}a000"
            of += f" commId {identity}" if self.generation > 10 else ""
            if self.generation > 10:
                said.append(f"ncclCommInitRank {of} - Init START")
            if self.generation >= 22:
                layout = (
                    f"comm {pointer}{rank:x} rank {own_rank} nRanks {size} nNodes {nodes} localRanks {self.devices}"
                )
                said.append(f"{layout} localRank {device} MNNVL 0")
            if size > 1:
                for pattern, used in ((4, self.channels), (3, self.channels), (5, 0)):
                    kind = path if used else "SYS"
                    about = f"bw 20.0/20.0, type {kind}/PIX, sameChannels 1"
                    said.append(f"Pattern {pattern}, crossNic 0, nChannels {used}, {about}")
            channels = self.channels if size > 1 else 1
            others = "0 collnet channels, 0 nvls channels, 2 p2p channels, 2 p2p channels per peer"
            said.append(f"{channels} coll channels, {others}")
            said.append(f"ncclCommInitRank {of} - Init COMPLETE")
        for place, count in enumerate(self.counts):
            kind, number = ("AllGather", 77_777) if rank == self.differs and place == 3 else ("AllReduce", count)
            where = f"sendbuff 0x1 recvbuff 0x2 count {number} datatype 7 op 0 root 0 comm 0xaa{rank:x}"
            said.append(f"{kind}: opCount {place:x} {where} [nranks={len(self.pids)}] stream 0x5")
            if self.generation >= 22 and rank == 0:  # as a communicator's first rank does
                algorithm = "RING" if self.is_forced else "TREE"
                said.append(f"{kind}: {4 * number} Bytes -> Algo {algorithm} proto LL channel{{Lo..Hi}}={{0..1}}")
        lines = [head + each for each in said]
        if self.warns and rank == 0:
            lines.insert(
                3,
                f"node{node}:{self.pids[rank]}:9 [{device}] transport/net_ib.cc:789 NCCL WARN NET/IB : Got completion",
            )
        return lines


def cluster_of(chance: random.Random) -> Cluster:
    return Cluster(
        chance.choice([10, 18, 22]), chance.choice([1, 1, 2, 4]), chance.choice([2, 4]),
        chance.choice(["IB", "Socket", "AWS Libfabric"]), chance.choice(["NVL", "PIX", "PHB", "SYS"]),
        chance.choice(["NVL", "PIX"]), chance.choice([1, 2, 4, 24]), chance.random() < 0.3,
        chance.choices([250, 1000, 3000], k=chance.choice([9, 20])), chance.choice([None, None, 0, 1]),
        chance.random() < 0.5,
    )  # fmt: skip


def written(cluster: Cluster, chance: random.Random, *, glued: float = 0.0, lost: float = 0.0) -> str:
    """The lines of all ranks in one file: those of a rank in their order."""
    prefix, waiting = chance.choice(PREFIXES), [cluster.lines(rank) for rank in range(len(cluster.pids))]
    text = ""
    while any(waiting):
        rank = chance.choice([rank for rank, lines in enumerate(waiting) if lines])
        line = waiting[rank].pop(0)
        if chance.random() < lost:
            continue
        text += prefix.format(rank=rank, pid=cluster.pids[rank]) + line
        text += "" if chance.random() < glued else chance.choice(["\n", "\n", "\r\n"])
        if chance.random() < 0.2 and text.endswith("\n"):
            text += chance.choice(OTHER).format(rank=rank) + "\n"
    return text


def problems(text: str, folder: Path, trace: Path | None = None) -> set[str]:
    """What the rule says of a log, alone or beside the trace of rank 0."""
    path = folder / "nccl.txt"
    path.write_bytes(text.encode())
    read = augment.with_nccl_log(augment.read(str(trace)), str(path)) if trace else augment.read(str(path))
    answer = network_setup.check(read)
    return {*answer.seen.figures["problems"]} if isinstance(answer, Found) else set()


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_trace(tmp_path_factory.mktemp("trace") / "rank0.json", step(0))


@pytest.mark.parametrize("seed", range(60))
def test_simulated_logs(tmp_path: Path, trace: Path, seed: int) -> None:
    chance = random.Random(seed)
    cluster = cluster_of(chance)
    assert problems(written(cluster, chance), tmp_path) == cluster.truth(alone=True)
    assert problems(written(cluster, chance), tmp_path, trace) == cluster.truth(alone=False)
    for alone in (True, False):  # what is glued or lost may hide something, and adds nothing
        for glued, lost in ((0.05, 0.1), (0.0, 0.1)):
            text = written(cluster, chance, glued=glued, lost=lost)
            true = cluster.truth(alone=alone) | ({"differing"} if cluster.differs is not None else set())
            assert problems(text, tmp_path, None if alone else trace) <= true


@pytest.mark.parametrize("seed", range(5))
def test_what_must_not_matter(tmp_path: Path, trace: Path, seed: int) -> None:
    chance = random.Random(1000 + seed)
    cluster = cluster_of(chance)
    text = written(cluster, chance)
    if seed % 2:  # it fails, too
        text += "\nnode0:9:9 [0] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer n1<57557>"
    known = problems(text, tmp_path, trace)
    assert ("failures" in known) == seed % 2
    lines = text.splitlines()
    others = {
        "other hosts": text.replace("node", "gpu-a100-"),
        "other text between": "\n".join(part for line in lines for part in (line, "a line of the program: 0x1a [0]")),
        "written twice": f"{text}\n{text}",
        "another order of ranks": written(cluster, random.Random(seed)) + "\n" + lines[-1] * (seed % 2),
        "other pointers": text.replace("comm 0x", "comm 0x7f"),
        "a prefix": "\n".join(f"7: {line}" for line in lines),
    }
    assert {name: problems(other, tmp_path, trace) for name, other in others.items()} == dict.fromkeys(others, known)
    assert problems(text.replace("Using network Socket", "Using network IB"), tmp_path, trace) == known - {"sockets"}


def by_words(text: str) -> dict[str, Any]:
    """What a log shows, word by word and without patterns of NCCL's versions: the rule's reader shares nothing."""
    hosts, networks, types, nodes, channels, warned = set(), [], set(), [0], [], set()
    orders: dict[Any, list[Any]] = {}
    ids: dict[Any, str] = {}
    for line in text.replace("\r", "\n").split("\n"):
        words = line.split()
        for at, word in enumerate(words):
            following = words[at + 1 : at + 4]
            if word == "NCCL" and following[:1] == ["WARN"]:
                warned.add("failures" if "completion with error" in line else "warnings")
            if word == "network" and at and words[at - 1] == "Using" and "NCCL" in words[:at]:
                networks.append(" ".join(words[at + 1 :]))
            if word == "type" and "Pattern" in words[:at] and "nChannels 0," not in line and "/" in following[0]:
                types.add(following[0].split("/")[0])
            if word == "nNodes":
                nodes.append(int(following[0]))
            if word == "coll" and following[:1] == ["channels,"]:
                channels.append(int(words[at - 1]))
            if word == "opCount" and "[nranks=" in line and at and words[at - 1] not in ("Send:", "Recv:"):
                headers = [each for each in words if each.count(":") == 2 and each.split(":")[1].isdecimal()]
                comm, number = words[words.index("comm", at) + 1], words[words.index("count", at) + 1]
                orders.setdefault((*headers[:1], comm), []).append((words[at - 1], number))
            if word == "commId" and "Init" in words[at:]:
                headers = [each for each in words if each.count(":") == 2 and each.split(":")[1].isdecimal()]
                ids[(*headers[:1], words[words.index("comm") + 1])] = following[0]
            if word == "Init" and following[:1] in (["COMPLETE"], ["START"]):
                header = [each for each in words if each.count(":") == 2 and each.split(":")[1].isdecimal()]
                hosts |= {each.split(":")[0] for each in header}
    return {
        "hosts": hosts,
        "networks": networks,
        "types": types,
        "nodes": max(nodes),
        "channels": channels,
        "warned": warned,
        "differing": any(
            first[: len(second)] != second[: len(first)]
            for key, first in orders.items()
            for other, second in orders.items()
            if key in ids and ids[key] == ids.get(other)
        ),
    }


@pytest.mark.parametrize("path", RECORDED, ids=[path.name.partition(".")[0] + path.name[-30:] for path in RECORDED])
def test_recorded_logs(tmp_path: Path, path: Path) -> None:
    text = (gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()).decode(errors="replace")
    known = by_words(text)
    nodes = known["nodes"] or len(known["hosts"])
    most = max(known["networks"], key=known["networks"].count, default="")
    joined = known["types"] & {"NVL", "NVB"}
    expected = known["warned"] | ({"sockets"} if nodes > 1 and "socket" in most.lower() else set())
    expected |= {"differing"} if known["differing"] else set()
    expected |= {"host_bridge"} if joined and known["types"] & {"PHB", "SYS", "NODE"} else set()
    assert problems(text, tmp_path) == expected
    said = " ".join(network_setup.sentences_alone(augment.read(str(tmp_path / "nccl.txt"))))
    assert (f"on {nodes} nodes" in said) == (nodes > 1)
    assert most in said
    assert re.search(r"NCCL's log (has (\d+) communicators?|lacks the beginning)", said)


def titled(trace: augment.Trace) -> tuple[str, str]:
    answer = network_setup.check(trace)
    assert isinstance(answer, Found)
    return answer.seen.title(words_of("nvidia")), answer.confidence


def test_who_differs_is_named(tmp_path: Path, trace: Path) -> None:
    cluster = Cluster(22, 2, 2, "IB", "NVL", "NVL", 24, False, [250] * 9, 1, False)
    path = tmp_path / "nccl.txt"
    path.write_text(written(cluster, random.Random(1)))
    said = "Rank 1 enqueues AllGather of 311 kB where the others enqueue AllReduce of 1.0 kB, as collective 4 of"
    assert titled(augment.read(str(path))) == (f"{said} communicator 0xfe", "high")
    assert titled(augment.with_nccl_log(augment.read(str(trace)), str(path)))[0] == f"{said} communicator 0xfe"
    two = Cluster(22, 1, 2, "IB", "NVL", "NVL", 24, False, [1, 2, 3, 250, 5], 1, False)
    path.write_text(written(two, random.Random(1)))
    said, confidence = titled(augment.read(str(path)))
    assert said.startswith("Ranks 0 and 1 enqueue different collectives, AllGather of 311 kB and AllReduce of 1.0 kB")
    assert confidence == "medium"


def test_a_rank_that_leaves_out_or_adds_is_not_told_from_lost_lines(tmp_path: Path) -> None:
    cluster = Cluster(22, 2, 2, "IB", "NVL", "NVL", 24, False, [250, 1000, 3000, 500, 9000, 700, 800], None, False)
    lines = written(cluster, random.Random(1)).splitlines()
    without = [line for line in lines if not ("count 3000 " in line and "comm 0xaa2 " in line)]
    assert len(without) == len(lines) - 1
    assert problems("\n".join(without) + "\n", tmp_path) == set()
    at = next(place for place, line in enumerate(lines) if "count 3000 " in line and "comm 0xaa2 " in line)
    assert problems("\n".join([*lines[:at], lines[at].replace("3000", "4"), *lines[at:]]) + "\n", tmp_path) == set()


@pytest.mark.parametrize(("gbps", "slow"), [(20.0, True), (150.0, False)])
def test_what_is_reached_of_the_topology(tmp_path: Path, gbps: float, slow: bool) -> None:
    """By the Inspector alone; a size of group with communicators of several nodes, or timed by the host, is not
    judged."""
    head = "n0:7:7 [0] NCCL INFO "
    of = "comm 0xaa rank 0 nranks 4 cudaDev 0 busId 1a000 commId 0xfe"
    layout = "comm 0xaa rank 0 nRanks 4 nNodes 1 localRanks 4 localRank 0 MNNVL 0"
    said = [f"ncclCommInitRank {of} - Init START", layout, "=== System : maxBw 240.0 totalBw 240.0 ===",
            f"ncclCommInitRank {of} - Init COMPLETE"]  # fmt: skip
    large = 1 << 28
    micros = int(large * 1.5 / gbps / 1000)

    def reached(source: str, log: str) -> set[str]:
        record = {
            "header": {"id": "0xfe", "rank": 0, "n_ranks": 4, "nnodes": 1},
            "metadata": {"inspector_output_format_version": "v4.2", "hostname": "n0", "pid": 7},
            "coll_perf": {
                "coll": "AllReduce", "coll_sn": 1, "coll_msg_size_bytes": large, "coll_exec_time_us": micros,
                "coll_timing_source": source,
            },
        }  # fmt: skip
        (tmp_path / "i.log").write_text(f"{json.dumps(record)}\n" * 10)
        (tmp_path / "nccl.txt").write_text(log)
        read = augment.with_nccl_inspector(augment.read(str(tmp_path / "nccl.txt")), str(tmp_path / "i.log"))
        answer = network_setup.check(read)
        assert isinstance(answer, Found) == (slow and source == "kernel_gpu" and "nNodes 1 " in log)
        return {*answer.seen.figures["problems"]} if isinstance(answer, Found) else set()

    log = "".join(f"{head}{each}\n" for each in said)
    assert reached("kernel_gpu", log) == ({"low_bandwidth"} if slow else set())
    assert reached("collective_cpu", log) == set()
    assert reached("kernel_gpu", log.replace("nNodes 1 ", "nNodes 2 ")) == set()


def said_of(folder: Path, lines: list[str]) -> list[str]:
    (folder / "nccl.txt").write_text("\n".join(lines) + "\n")
    return network_setup.sentences_alone(augment.read(str(folder / "nccl.txt")))


def ring(size: int, ways: dict[int, str], *, identity: str = "0xfe", node: str = "n0", pid: int = 70) -> list[str]:
    """What ``size`` ranks of a node log that are joined in a ring, from each rank by P2P or one of ``ways``; each
    enqueues three all-reduces."""
    lines = []
    for rank in range(size):
        head = f"{node}:{pid + rank}:{pid + rank} [{rank}] NCCL INFO "
        of = f"comm 0x{pid}{rank} rank {rank} nranks {size} cudaDev {rank} busId {rank}a000"
        of += f" commId {identity}" if identity else ""
        way, to = ways.get(rank, "P2P/CUMEM/read"), (rank + 1) % size
        said = [f"Channel 0{channel} : {rank}[{rank}] -> {to}[{to}] via {way}" for channel in range(2)]
        reduce = f"sendbuff 0x1 recvbuff 0x2 count 8 datatype 7 op 0 root 0 comm 0x{pid}{rank} [nranks={size}] stream 0"
        said += [f"{of} - Init COMPLETE", *[f"AllReduce: opCount {place} {reduce}" for place in range(3)]]
        lines += [head + each for each in said]
    return lines


def test_ranks_of_a_node_that_are_joined_by_its_memory(tmp_path: Path) -> None:
    lines = ring(4, {1: "SHM/direct/direct", 3: "SHM/direct/direct"})
    made, problem, why, counted = said_of(tmp_path, lines)
    assert made == "NCCL's log has 1 communicator; ranks are joined by P2P (2 pairs) and SHM (2 pairs)."
    assert problem == (
        "NCCL joins 2 pairs of ranks of a node through its host's memory (SHM) and 2 from device to device (P2P)."
    )
    assert why.startswith("The log does not say why")
    assert counted == "There are 12 records of 3 collectives: AllReduce."
    for value, is_cause in (("1", True), ("0", False)):
        setting = f"n0:70:70 [0] NCCL INFO NCCL_P2P_DISABLE set by environment to {value}."
        why = said_of(tmp_path, [setting, *lines])[2]
        assert ("Unset or correct NCCL_P2P_DISABLE (it is 1)" in why) == is_cause, why
    assert len(said_of(tmp_path, ring(4, {}))) == 2  # nothing is wrong


def test_failures_come_first_with_who_warns(tmp_path: Path) -> None:
    lines = ring(4, {1: "SHM/direct/direct", 3: "SHM/direct/direct"})
    advice = "n0:70:70 [0] init.cpp:120 NCCL WARN Missing iommu=pt from kernel command line"
    fails = "n0:73:99 [3] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer n1<57557>"
    _, problem, _, *more, _ = said_of(tmp_path, [advice, *lines, fails, fails.replace("73:99 [3]", "72:99 [2]")])
    said = "misc/socket.cc:49 socketProgress: Connection closed by remote peer n1<57557>."
    assert problem == f"NCCL warns of a failure: n0:73 [3] {said}"
    assert more == [f"NCCL warns, too: n0:72 [2] {said}", "Beside that: 2 pairs of ranks by SHM and 1 warning."]
    assert said_of(tmp_path, [advice, *lines])[1].startswith("NCCL joins 2 pairs")


def test_ranks_that_begin_a_communicator_and_do_not_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = ring(4, {})
    begun = [line.replace("COMPLETE", "START") for line in whole if "Init COMPLETE" in line]
    said = "NCCL's log does not say that communicator 0xfe of 4 ranks became complete on "
    assert said_of(tmp_path, begun[:3])[1] == f"{said}ranks 0-2; it has no line of rank 3."
    ended = [line for line in whole if "Init COMPLETE" in line]
    assert said_of(tmp_path, begun)[1] == f"{said}ranks 0-3."
    assert len(said_of(tmp_path, [*begun, *ended[1:]])) == 1  # one end is lost
    assert len(said_of(tmp_path, [*begun, *(f"step 3{line}" for line in ended)])) == 1
    used = [line for line in whole if "opCount" in line]
    assert len(said_of(tmp_path, [*begun, *used])) == 2  # the ends were lost
    monkeypatch.setattr(nccl_log, "MOST_KEPT", 4)  # and left out
    said = "NCCL's logs have 4 more messages than are kept, so less could be judged."
    assert said_of(tmp_path, [*begun, *ended])[1:] == [said]


def test_one_file_a_process_is_judged_as_one_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    other = ring(4, {}, identity="0xfa", node="n1", pid=80)
    other = [line.replace("count 8 ", "count 9 ") if ":82 " in line and "opCount 0" in line else line for line in other]
    for line in [*ring(4, {}), *other, *ring(1, {}, identity="0xfb", node="n2", pid=90)]:
        with (tmp_path / f"nccl.{line.split(':')[1]}.log").open("a") as file:
            file.write(f"{line}\n")
    monkeypatch.setattr(sys, "argv", ["augment", str(tmp_path)])
    read, reading = list[str](), nccl_log._LogReading
    differs = "Rank 2 enqueues AllReduce of 36 B where the others enqueue AllReduce of 32 B"
    monkeypatch.setattr(nccl_log, "_LogReading", lambda log, most: (read.append(log.path), reading(log, most))[1])
    assert cli.main() == 0
    said = capsys.readouterr().out
    assert (said.count("4 logs of NCCL:"), said.count(differs), said.count("are kept")) == (2, 1, 0)
    assert sorted(read) == sorted(map(str, tmp_path.iterdir()))  # each once
    monkeypatch.setattr(nccl_log, "MOST_KEPT", 8)  # of the third log of a job the first two, of its last none
    assert cli.main() == 0
    said = capsys.readouterr().out
    assert (said.count("There are 8 records of 3 collectives"), said.count(differs)) == (2, 0)
    assert said.count("NCCL's logs have 4 more messages than are kept, so less could be judged.") == 2


def test_channels_without_the_beginning_of_their_communicator(tmp_path: Path) -> None:
    lines = [line for line in ring(2, {0: "SHM/direct/direct", 1: "SHM/direct/direct"}) if "Channel" in line]
    assert said_of(tmp_path, ["NCCL version 2.24.3"]) == ["NCCL's log has no communicator: set NCCL_DEBUG=INFO."]
    made, problem, _ = said_of(tmp_path, lines)
    assert made == "NCCL's log lacks the beginning of its communicators; ranks are joined by SHM (1 pair)."
    assert "NCCL joins 1 pair of ranks of a node through its host's memory (SHM) and none from" in problem
    rows = augment.augment(str(tmp_path / "nccl.txt"), only=["communicators"]).outcomes["communicators"].rows
    assert [(row.name, row.transport) for row in rows if row.by == "pair"] == [
        (pair, "SHM/direct/direct") for pair in ("0 → 1", "1 → 0")
    ]


@pytest.mark.parametrize("identity", ["0xf{}", ""])
def test_communicators_and_collectives_count_once(tmp_path: Path, identity: str) -> None:
    """One of each of three nodes, and one of two ranks; before NCCL 2.16 they have no identity."""
    lines = [
        line
        for node in range(4)
        for line in ring(2 if node == 3 else 4, {}, identity=identity.format(node), node=f"n{node}", pid=70 + 10 * node)
    ]
    made, counted, *_ = said_of(tmp_path, lines)
    assert "has 4 communicators" in made
    assert counted == "There are 42 records of 12 collectives: AllReduce."
