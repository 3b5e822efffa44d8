"""A slow link between two ranks is named as a link, with what NCCL joins them by where its log says."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import truth

import augment
from augment.core import AugmentedTrace, Trace
from augment.job.answer import Answer, answer
from augment.job.ranks import summarize
from traces import HOST, Event, event, kernel, launch, write_trace

STEPS, STEP_US, COMPUTE_US = 6, 10_000, 2_000
MOVING_US = {"1": 500, "2": 2500}  # of the group of ranks 0 and 1, and of that of ranks 2 and 3


def rank_of(folder: Path, rank: int) -> Trace:
    events: list[Event] = []
    pair = "1" if rank < 2 else "2"
    members = [0, 1] if rank < 2 else [2, 3]
    number = 0

    def add(name: str, ts: float, dur: float, stream: int, **args: object) -> None:
        nonlocal number
        number += 1
        made = kernel(name, ts, dur, correlation=number, stream=stream)
        made["args"] |= args
        events.extend([made, launch(ts=ts - 5, dur=1, correlation=number)])

    def reduce(ts: float, dur: float, group: str, about: str, ranks: list[int], seq: int) -> None:
        of = {"Collective name": "allreduce", "In msg nelems": 10**6, "Out msg nelems": 10**6, "dtype": "Float"}
        named = {"Process Group Name": group, "Process Group Description": about, "Process Group Ranks": str(ranks)}
        add("ncclDevKernel_AllReduce", ts, dur, 20, **of, **named, **{"Group size": len(ranks), "Seq": seq})

    for step in range(STEPS):
        begin = 100 + step * STEP_US
        events.append(event("user_annotation", f"ProfilerStep#{step}", begin - 50, STEP_US, HOST, 1))
        add("gemm", begin, COMPUTE_US, 7)
        ended = begin + COMPUTE_US
        reduce(ended, MOVING_US[pair], pair, "DATA_PARALLEL_GROUP", members, step)
        world = begin + COMPUTE_US + max(MOVING_US.values()) + 50
        reduce(
            ended + MOVING_US[pair] + 20, world + 30 - ended - MOVING_US[pair], "0", "default_pg", [0, 1, 2, 3], step
        )
    info = {"rank": rank, "world_size": 4}
    return augment.read(str(write_trace(folder / f"rank{rank}.json", *events, distributedInfo=info)))


def log_of(folder: Path, rank: int, *ways: str) -> str:
    head = f"n{rank // 2}:{HOST}:{HOST} [0] NCCL INFO"
    lines = []
    for number, way in enumerate(ways):
        of = f"comm 0x{number:x}a rank {rank % 2} nranks 2 cudaDev 0 busId 1a000 commId 0xf{number}"
        lines += [f"{head} {of} - Init START", f"{head} Channel 00/0 : 0[0] -> 1[1] {way}"]
        lines.append(f"{head} {of} - Init COMPLETE")
    path = folder / f"nccl.{rank}.log"
    path.write_text("".join(f"{line}\n" for line in lines))
    return str(path)


@pytest.mark.parametrize(("ways", "words"), [
    ((), "rank 2 and rank 3 delays"),
    (("[receive] via NET/Socket/0",), "rank 2 and rank 3 (NET/Socket/0) delays"),
    (("[send] via NET/IB/0/GDRDMA", "[send] via NET/IB/1"), "rank 2 and rank 3 (NET) delays"),
    (("via P2P/CUMEM", "[send] via NET/IB/1"), "rank 2 and rank 3 delays"),  # one of them, and nobody knows which
])  # fmt: skip
def test_a_slow_link(tmp_path: Path, ways: tuple[str, ...], words: str) -> None:
    traces = [rank_of(tmp_path, rank) for rank in range(4)]
    if ways:
        traces = [augment.with_nccl_log(trace, log_of(tmp_path, at, *ways)) for at, trace in enumerate(traces)]
    result = answer([summarize(AugmentedTrace(trace, {})) for trace in traces], [f"rank{rank}" for rank in range(4)])
    (sentence,) = [text for text in result.verdict.text if "link" in text]
    assert f"The link between {words} the job in" in sentence
    assert "it moves data 5.0 times as long as the other links of its dimension" in sentence


def of_stages(slower: float, names_nodes: bool, sized: bool = True) -> Answer:
    """Four pipeline stages, of which the second and the third move their messages ``slower``."""
    with TemporaryDirectory() as folder:
        world = truth.generator().World(4, seed=7, kn=0.03)
        for rank in world.ranks:
            rank.coll_ = slow_coll(rank, slower)
        traces = []
        for rank in world.run(truth.generator().pipeline(5, 10, 4, 8, 2, 0.3, 0.6)).ranks:
            path = f"{folder}/rank{rank.r}.json"
            rank.write(path, dev=rank.r if names_nodes else 0)
            if not sized:
                Path(path).write_text(Path(path).read_text().replace(" msg nelems", ""))
            traces.append(augment.read(path))
        return answer([summarize(AugmentedTrace(trace, {})) for trace in traces], [f"rank{at}" for at in range(4)])


def slow_coll(rank: Any, slower: float) -> Any:
    """A rank's messages, which take so many times as long if they are of these two."""
    sends = rank.coll_

    def send(*args: Any, members: Any = None, **more: Any) -> Any:
        times = slower if members and set(members) == {1, 2} else 1.0
        return sends(*args[:5], args[5] * times, *args[6:], members=members, **more)

    return send


def test_a_slow_link_of_messages_within_a_node() -> None:
    """Metamorphic: where nodes are unknown, it may be the one across them; where sizes are, it may have more to move;
    and equal links are none."""
    if not truth.GENERATOR.exists():
        pytest.skip(f"no generator at {truth.GENERATOR}")
    slow, unknown, equal = of_stages(4.0, True), of_stages(4.0, False), of_stages(1.0, True)
    unsized = of_stages(4.0, True, sized=False)
    assert slow.verdict.text[0].startswith("The link between rank 1 and rank 2 delays the job in pipeline parallelism")
    assert "4.0 times as long" in slow.verdict.text[0]
    assert slow.verdict.text[0].endswith(", at best.")
    assert not any(row.cause == "communication" for each in (unknown, unsized, equal) for row in each.verdict.rows)
