"""Traces of a job of 16 ranks, TP 4 x DP 2 x PP 2, two steps, with Megatron's names of groups. Rank 5 is the slow one.

Variants:

- ``seq``: every collective has its group, ranks and sequence number;
- ``noseq``: without sequence numbers, as most recorded traces;
- ``nopg``: without group names, descriptions, ranks, and sequence numbers, but with sizes and ``Group size``;
- ``noargs``: only the names of the kernels;
- ``p2p``: ``seq``, and twelve sends and receives between the stages, with ``Src Rank`` and ``Dst Rank``;
- ``coalesced``: the same without peers, as ``batch_isend_irecv`` records it;
- ``deepep``: collectives are the dispatch and combine kernels of DeepEP, without args.

All ranks share one true clock, so that every correction of a clock is an error. Deterministic.
"""

from __future__ import annotations

import gzip
import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TP, DP, PP = 4, 2, 2
RANKS = TP * DP * PP
STEPS, LAYERS = 2, 6
SLOW = 5
GROUP_ARGS = ("Process Group Name", "Process Group Description", "Process Group Ranks", "Seq")
STAGE = TP * DP
TENSOR = [list(range(first, first + TP)) for first in range(0, RANKS, TP)]
DATA = [[tp + stage, tp + TP + stage] for stage in (0, STAGE) for tp in range(TP)]
PIPELINE = [[rank, rank + STAGE] for rank in range(STAGE)]
_ABOUT = [("TENSOR_MODEL_PARALLEL_GROUP", ranks) for ranks in TENSOR] + [
    ("DATA_PARALLEL_GROUP", ranks) for ranks in DATA
]
GROUPS = {tuple(ranks): (str(name), about) for name, (about, ranks) in enumerate(_ABOUT, 1)}
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
REDUCE_SCATTER = "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"


@dataclass
class LayeredJob:
    """The job while it is played. ``late``: the kernels of rank 5 take 30 % longer ("gpu"), or its host launches 150 µs
    late ("host"), or nothing is wrong ("")."""

    variant: str = "seq"
    buckets: int = 1
    late: str = "gpu"
    now: list[float] = field(default_factory=lambda: [1000.0] * RANKS)
    events: list[list[dict[str, Any]]] = field(default_factory=lambda: [[] for _ in range(RANKS)])
    correlation: list[int] = field(default_factory=lambda: [1] * RANKS)
    sequence: dict[tuple[int, ...], int] = field(default_factory=dict)
    random: random.Random = field(default_factory=lambda: random.Random(1))

    def slice(self, rank: int, category: str, name: str, ts: float, dur: float, args: dict[str, Any]) -> None:
        pid = rank % 8 if category == "kernel" else 100 + rank
        tid = args.get("stream", pid)
        self.events[rank].append(
            {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}
        )

    def kernel(
        self, rank: int, start: float, dur: float, name: str, stream: int, launched: float | None = None, **args: object
    ) -> None:
        correlation = self.correlation[rank]
        self.correlation[rank] += 1
        call = start - 400 if launched is None else launched
        self.slice(rank, "cuda_runtime", "cudaLaunchKernel", call, 5, {"correlation": correlation, "cbid": 211})
        where = {"device": rank % 8, "context": 1, "stream": stream, "correlation": correlation}
        self.slice(rank, "kernel", name, start, dur, where | args)

    def compute(self) -> None:
        for rank in range(RANKS):
            dur = 500 * self.random.uniform(0.99, 1.01)
            if rank == SLOW and self.late == "gpu":
                dur *= 1.3
            self.kernel(rank, self.now[rank], dur, "sm90_gemm", 7)
            self.now[rank] += dur + 1
            if rank == SLOW and self.late == "host":
                late = self.now[rank] + 150
                for number in range(3):
                    self.kernel(rank, late + 11 * number, 10, "elementwise", 7, launched=late - 8 + 2 * number)
                self.now[rank] = late + 33

    def collective(self, ranks: list[int], name: str, call: str, elements: int, stream: int, moving: float) -> None:
        end = max(self.now[rank] for rank in ranks) + moving
        key = tuple(ranks)
        self.sequence[key] = self.sequence.get(key, 0) + 1
        group, about = GROUPS[key]
        args: dict[str, Any] = {
            "Collective name": call, "In msg nelems": elements, "Out msg nelems": elements, "Group size": len(ranks),
            "dtype": "BFloat16", "In split size": "[]", "Out split size": "[]", "Process Group Name": group,
            "Process Group Description": about, "Process Group Ranks": str(ranks), "Seq": self.sequence[key],
        }  # fmt: skip
        if self.variant == "noseq":
            del args["Seq"]
        elif self.variant == "nopg":
            args = {name: value for name, value in args.items() if name not in GROUP_ARGS}
        elif self.variant in ("noargs", "deepep"):
            args = {}
        if self.variant == "deepep":
            half = "dispatch" if call == "allreduce" else "combine"
            name = f"void deep_ep::intranode::{half}<8, 768>(int4*, int*)"
        for rank in ranks:
            at_once = rank == SLOW and self.late == "host"
            launched = self.now[rank] - 30 if at_once else None
            self.kernel(rank, self.now[rank], end - self.now[rank], name, stream, launched, **args)
            self.now[rank] = end

    def send(self) -> None:
        for pair in PIPELINE:
            end = max(self.now[rank] for rank in pair) + 60
            key = tuple(pair)
            for rank, call, peer in ((pair[0], "send", "Dst Rank"), (pair[1], "recv", "Src Rank")):
                args: dict[str, Any] = {
                    "Collective name": "coalesced" if self.variant == "coalesced" else call, "In msg nelems": 1 << 20,
                    "Out msg nelems": 1 << 20, "Group size": 2, "dtype": "BFloat16",
                    "Process Group Name": str(40 + pair[0]),
                    "Process Group Description": "PIPELINE_MODEL_PARALLEL_GROUP", "Process Group Ranks": str(pair),
                    "Seq": self.sequence.get(key, 0),
                }  # fmt: skip
                if self.variant == "p2p":
                    args[peer] = pair[1] if rank == pair[0] else pair[0]
                self.kernel(rank, self.now[rank], end - self.now[rank], SEND_RECV, 31, **args)
            for rank in pair:
                self.now[rank] = end
            self.sequence[key] = self.sequence.get(key, 0) + 1

    def step(self, number: int) -> None:
        begin = list(self.now)
        for _ in range(LAYERS):
            if self.variant in ("p2p", "coalesced"):
                self.send()
            self.compute()
            for ranks in TENSOR:
                self.collective(ranks, ALL_REDUCE, "allreduce", 8 << 20, 23, 120)
        for _ in range(self.buckets):
            for ranks in DATA:
                self.collective(ranks, REDUCE_SCATTER, "_reduce_scatter_base", 32 << 20, 27, 400)
        for rank in range(RANKS):
            name, length = f"ProfilerStep#{number}", self.now[rank] - begin[rank] - 1
            self.slice(rank, "user_annotation", name, begin[rank] - 450, length, {})
            args = {"correlation": self.correlation[rank], "cbid": 165}
            self.slice(rank, "cuda_runtime", "cudaDeviceSynchronize", self.now[rank] - 300, 300, args)
            self.correlation[rank] += 1

    def trace(self, rank: int) -> dict[str, Any]:
        groups = [
            {"pg_name": name, "pg_desc": about, "backend_config": "cuda:nccl", "pg_size": len(of), "ranks": list(of)}
            for of, (name, about) in GROUPS.items()
            if rank in of
        ]
        info = {"backend": "nccl", "rank": rank, "world_size": RANKS, "pg_count": len(groups), "pg_config": groups}
        events = sorted(self.events[rank], key=lambda event: event["ts"])
        return {"schemaVersion": 1, "deviceProperties": [], "distributedInfo": info, "traceEvents": events}


def make(folder: Path, variant: str = "seq", buckets: int = 1, late: str = "gpu") -> list[Path]:
    """Write the traces; their paths by rank."""
    job = LayeredJob(variant, buckets, late)
    for number in range(STEPS):
        job.step(number)
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"rank{rank}.pt.trace.json.gz" for rank in range(RANKS)]
    for rank, path in enumerate(paths):
        path.write_bytes(gzip.compress(json.dumps(job.trace(rank)).encode(), mtime=0))
    return paths
