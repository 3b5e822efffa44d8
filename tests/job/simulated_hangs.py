"""Jobs that hang, and what the flight recorder of each rank would dump, with the fault known.

Each rank's host enqueues its program in order, at most ``AHEAD`` operations beyond what its device has completed. The
device runs them in order, but for sends, which wait beside the others. An operation completes when all its members run
it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import product
from typing import Any

AHEAD = 40
STEPS, LAYERS, MICROBATCHES = 3, 3, 2
BEGIN_NS = 1_760_000_000_000_000_000


@dataclass
class Operation:
    group: str
    kind: str
    number: int  # of the operation among those of its kind of its group, or among those between the two ranks
    peer: int | None = None
    elements: int = 1024

    def key(self, rank: int) -> tuple[Any, ...]:
        if self.peer is None:
            return (self.group, self.number, self.kind, self.elements)
        ends = (rank, self.peer) if self.kind == "send" else (self.peer, rank)
        return (self.group, *ends, self.number)


@dataclass
class Job:
    tensor: int
    pipeline: int
    data: int
    groups: dict[str, list[int]] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    programs: list[list[Operation]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ranks = self.tensor * self.pipeline * self.data
        self._group("default_pg", range(self.ranks))
        shape = {"TENSOR": self.tensor, "PIPELINE": self.pipeline, "DATA": self.data}
        for name in shape:
            for fixed in product(*(range(size) for other, size in shape.items() if other != name)):
                others = dict(zip([other for other in shape if other != name], fixed, strict=True))
                self._group(f"{name}_PARALLEL_GROUP", [self.rank({**others, name: i}) for i in range(shape[name])])
        self.programs = [self._program(rank) for rank in range(self.ranks)]

    def _group(self, description: str, ranks: Any) -> None:
        name = str(len(self.groups) * 2)
        self.groups[name], self.names[name] = list(ranks), description

    def rank(self, place: dict[str, int]) -> int:
        return (place["PIPELINE"] * self.data + place["DATA"]) * self.tensor + place["TENSOR"]

    def of(self, rank: int, description: str) -> str:
        return next(name for name, ranks in self.groups.items() if self.names[name] == description and rank in ranks)

    def _program(self, rank: int) -> list[Operation]:
        program: list[Operation] = []
        counts: dict[Any, int] = {}
        chain = self.groups[self.of(rank, "PIPELINE_PARALLEL_GROUP")]
        stage = chain.index(rank)

        def add(description: str, kind: str, peer: int | None = None, elements: int = 1024) -> None:
            group = self.of(rank, description)
            key = (group, kind, peer) if peer is not None else group
            counts[key] = counts.get(key, 0) + 1
            if peer is None and len(self.groups[group]) == 1:
                return
            program.append(Operation(group, kind, counts[key], peer, elements))

        for step in range(STEPS):
            for back, _ in product((False, True), range(MICROBATCHES)):
                before, after = stage - 1, stage + 1
                if back:
                    before, after = after, before
                if 0 <= before < len(chain):
                    add("PIPELINE_PARALLEL_GROUP", "recv", chain[before])
                for layer in range(LAYERS):
                    add("TENSOR_PARALLEL_GROUP", "all_reduce" if layer % 2 else "_all_gather_base", elements=64 + layer)
                if 0 <= after < len(chain):
                    add("PIPELINE_PARALLEL_GROUP", "send", chain[after])
            add("DATA_PARALLEL_GROUP", "_reduce_scatter_base", elements=4096)
            add("DATA_PARALLEL_GROUP", "_all_gather_base", elements=2048)
            add("default_pg", "all_reduce", elements=1 + step % 1)
        return program


@dataclass
class Fault:
    cause: str  # host, device, no_dump, mismatch, order, group
    rank: int
    at: int  # the operation of the rank's program


def run(job: Job, faults: list[Fault], rng: random.Random) -> list[dict[str, Any]]:
    """The dump of each rank, None in place of one that was killed."""
    programs = [list(program) for program in job.programs]
    stopped = {fault.rank: fault.at for fault in faults if fault.cause in ("host", "no_dump")}
    unreported = {fault.rank: fault.at for fault in faults if fault.cause == "device"}
    never = set()
    for fault in faults:
        program = programs[fault.rank]
        if fault.cause == "mismatch":
            old = program[fault.at]
            program[fault.at] = Operation(old.group, old.kind, old.number, None, old.elements + 7)
        if fault.cause == "order":
            program[fault.at], program[fault.at + 1] = program[fault.at + 1], program[fault.at]
        if fault.cause == "group":
            never.add(program[fault.at].key(fault.rank))
    host = [0] * job.ranks
    done: list[set[int]] = [set() for _ in range(job.ranks)]
    while True:
        moved = False
        running: dict[Any, list[tuple[int, int]]] = {}
        for rank, program in enumerate(programs):
            limit = min(len(program), stopped.get(rank, len(program)), len(done[rank]) + AHEAD)
            moved |= limit > host[rank]
            host[rank] = max(host[rank], limit)
            for place in range(host[rank]):
                if place in done[rank]:
                    continue
                if rank not in unreported or place < unreported[rank] + 6:  # a dying device still serves some
                    running.setdefault(program[place].key(rank), []).append((rank, place))
                if program[place].kind != "send":
                    break
        for key, members in running.items():
            rank, place = members[0]
            operation = programs[rank][place]
            needed = 2 if operation.peer is not None else len(job.groups[operation.group])
            if len(members) == needed and key not in never:
                moved = True
                for member, where in members:
                    done[member].add(where)
        if not moved:
            break
    dead = {fault.rank for fault in faults if fault.cause == "no_dump"}
    return [
        {} if rank in dead else _dump(job, rank, programs[rank][: host[rank]], done[rank], unreported.get(rank), rng)
        for rank in range(job.ranks)
    ]


def _dump(
    job: Job, rank: int, program: list[Operation], done: set[int], unreported: int | None, rng: random.Random
) -> dict[str, Any]:
    numbers = {name: place for place, name in enumerate(n for n, ranks in job.groups.items() if rank in ranks)}
    status = {str(number): [0, 0] for number in numbers.values()}
    entries = []
    clock = BEGIN_NS + rng.randrange(10**6)
    for place, operation in enumerate(program):
        clock += rng.randrange(10_000, 1_000_000)
        is_done = place in done and (unreported is None or place < unreported)
        count = status[str(numbers[operation.group])]
        if operation.peer is None:
            count[0] = max(count[0], operation.number)
            count[1] = max(count[1], operation.number) if is_done else count[1]
        if is_done:
            continue
        members = job.groups[operation.group]
        name = f"nccl:{operation.kind}"
        if operation.peer is not None:
            arrow = "->" if operation.kind == "send" else "<-"
            name += f" {members.index(rank)}{arrow}{members.index(operation.peer)}"
        entries.append(
            {
                "record_id": place,
                "pg_id": numbers[operation.group],
                "process_group": (operation.group, job.names[operation.group]),
                "collective_seq_id": operation.number,
                "p2p_seq_id": 0 if operation.peer is None else operation.number,
                "op_id": place,
                "profiling_name": name,
                "time_created_ns": clock,
                "input_sizes": [[operation.elements]],
                "input_dtypes": ["Float"],
                "output_sizes": [[operation.elements]],
                "output_dtypes": ["Float"],
                "state": "scheduled",
                "time_discovered_started_ns": None,
                "time_discovered_completed_ns": None,
                "retired": False,
                "timeout_ms": 600000,
                "is_p2p": operation.peer is not None,
                "frames": [{"name": "step", "filename": "train.py", "line": 10 + place}],
            }
        )
    joined = {name: ranks for name, ranks in job.groups.items() if rank in ranks}
    return {
        "version": "2.9",
        "nccl_version": "2.27.3",
        "pg_config": {
            name: {"name": name, "desc": job.names[name], "ranks": str(ranks)} for name, ranks in joined.items()
        },
        "pg_status": {
            number: {"last_enqueued_collective": a, "last_started_collective": -1, "last_completed_collective": b}
            for number, (a, b) in status.items()
        },
        "entries": entries,
    }
