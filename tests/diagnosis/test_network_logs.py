"""Proofs of ``network_setup``: simulated logs whose truth is known, recorded ones by a reader of its own, and what must
not matter."""

from __future__ import annotations

import gzip
import random
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import augment
from augment.diagnosis.rule import Found
from augment.diagnosis.rules import network_setup
from traces import HOST, step, write_trace

EVIDENCE = Path(__file__).parents[3] / "shared" / "evidence" / "nccl"
RECORDED = sorted([*EVIDENCE.glob("*.gz"), *EVIDENCE.glob("excerpts/*.log")])
PREFIXES = ("", "[1,{rank}]<stdout>:", "{rank}: ", "(Worker pid={pid}, ip=10.0.0.{rank}) ", "2026-01-01T00:00:00 ")
OTHER = (
    "step {rank}: loss 0.3",
    "warning: NCCL is slow today",
    "[0] step done",
    "Traceback (most recent call last):",
    "",
)


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
        return seen

    def lines(self, rank: int) -> list[str]:
        """What a rank logs."""
        node, device = divmod(rank, self.devices)
        head = f"node{node}:{self.pids[rank]}:{self.pids[rank] + 1} [{device}] NCCL INFO "
        said = [
            "Bootstrap : Using eth0:10.0.0.1<0>",
            "NET/Socket : Using [0]eth0:10.0.0.1<0>",
            f"Using network {self.network}",
        ]
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


@pytest.mark.parametrize("seed", range(100))
def test_simulated_logs(tmp_path: Path, trace: Path, seed: int) -> None:
    chance = random.Random(seed)
    cluster = cluster_of(chance)
    assert problems(written(cluster, chance), tmp_path) == cluster.truth(alone=True)
    assert problems(written(cluster, chance), tmp_path, trace) == cluster.truth(alone=False)
    for alone in (True, False):  # what is glued or lost may hide something, and adds nothing
        text = written(cluster, chance, glued=0.05, lost=0.1)
        assert problems(text, tmp_path, None if alone else trace) <= cluster.truth(alone=alone)


@pytest.mark.parametrize("seed", range(10))
def test_what_must_not_matter(tmp_path: Path, trace: Path, seed: int) -> None:
    chance = random.Random(1000 + seed)
    cluster = cluster_of(chance)
    text = written(cluster, chance)
    known = problems(text, tmp_path, trace)
    lines = text.splitlines()
    others = {
        "other hosts": text.replace("node", "gpu-a100-"),
        "other text between": "\n".join(part for line in lines for part in (line, "a line of the program: 0x1a [0]")),
        "written twice": f"{text}\n{text}",
        "another order of ranks": written(cluster, random.Random(seed)),
        "other pointers": text.replace("comm 0x", "comm 0x7f"),
        "a prefix": "\n".join(f"7: {line}" for line in lines),
    }
    assert {name: problems(other, tmp_path, trace) for name, other in others.items()} == dict.fromkeys(others, known)
    assert problems(text.replace("Using network Socket", "Using network IB"), tmp_path, trace) == known - {"sockets"}


def by_words(text: str) -> dict[str, Any]:
    """What a log shows, word by word and without patterns of NCCL's versions: the rule's reader shares nothing."""
    hosts, networks, types, nodes, channels, warned = set(), [], set(), [0], [], False
    for line in text.replace("\r", "\n").split("\n"):
        words = line.split()
        for at, word in enumerate(words):
            following = words[at + 1 : at + 4]
            if word == "NCCL" and following[:1] == ["WARN"]:
                warned = True
            if word == "network" and at and words[at - 1] == "Using" and "NCCL" in words[:at]:
                networks.append(" ".join(words[at + 1 :]))
            if word == "type" and "Pattern" in words[:at] and "nChannels 0," not in line and "/" in following[0]:
                types.add(following[0].split("/")[0])
            if word == "nNodes":
                nodes.append(int(following[0]))
            if word == "coll" and following[:1] == ["channels,"]:
                channels.append(int(words[at - 1]))
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
    }


@pytest.mark.parametrize("path", RECORDED, ids=[path.name.partition(".")[0] + path.name[-30:] for path in RECORDED])
def test_recorded_logs(tmp_path: Path, path: Path) -> None:
    text = (gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()).decode(errors="replace")
    known = by_words(text)
    nodes = known["nodes"] or len(known["hosts"])
    most = max(known["networks"], key=known["networks"].count, default="")
    joined = known["types"] & {"NVL", "NVB"}
    expected = {"warnings"} if known["warned"] else set()
    expected |= {"sockets"} if nodes > 1 and "socket" in most.lower() else set()
    expected |= {"host_bridge"} if joined and known["types"] & {"PHB", "SYS", "NODE"} else set()
    assert problems(text, tmp_path) == expected
    said = " ".join(network_setup.sentences_alone(augment.read(str(tmp_path / "nccl.txt"))))
    assert (f"on {nodes} nodes" in said) == (nodes > 1)
    assert most in said
    counted = re.search(r"has (\d+) communicators?", said)
    assert counted is not None
