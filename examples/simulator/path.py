"""The true critical path: back from the end of the job, at each moment to what was waited for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from simulator.causes import Ledger
from simulator.program import GpuOp
from simulator.timing import EVENT, LAUNCH, Wake


class Piece(NamedTuple):
    """A part of the path: what ``rank`` was at from ``start`` to ``end``, ns on the shared clock."""

    rank: int
    start: int
    end: int
    resource: str
    name: str


def resource_of(op: GpuOp) -> str:
    """``kernel``, ``collective`` or ``copy``."""
    return "copy" if op.category != "kernel" else "collective" if op.collective else "kernel"


@dataclass
class _Walk:
    """From ``rank``'s host at ``now`` back to ``begin``; between ranks if ``across``."""

    ledgers: dict[int, Ledger]
    rank: int
    now: int
    begin: int
    across: bool

    def pieces(self, place: int | None) -> Iterator[Piece]:
        """From the last to the first; the last is operation ``place``, or the host."""
        yield from self._device(place)
        while self.now > self.begin:
            wake = self._last_wake()
            until = wake.time if wake else self.begin
            yield from self._to(until, "host", "")
            if wake is None or self.now <= self.begin:
                return
            yield from self._device(wake.by)

    def _to(self, moment: int, resource: str, name: str) -> Iterator[Piece]:
        if moment < self.now:
            yield Piece(self.rank, max(moment, self.begin), self.now, resource, name)
            self.now = moment

    def _last_wake(self) -> Wake | None:
        wakes = [wake for step in self.ledgers[self.rank].steps for wake in step.times.wakes]
        return max((wake for wake in wakes if wake.by >= 0 and wake.time <= self.now), default=None)

    def _device(self, place: int | None) -> Iterator[Piece]:
        """Back through what operations waited for, until the host's call of one of them."""
        resource = "wake"
        while place is not None and self.now > self.begin:
            ledger = self.ledgers[self.rank]
            op = ledger.ops[place]
            end, start = ledger.shared(place)
            yield from self._to(end, resource, "")
            if op.collective and self.across:  # a collective moves data when its last rank is there
                self.rank, place = int(ledger.last_rank[place]), int(ledger.last_op[place])
                ledger = self.ledgers[self.rank]
                _, start = ledger.shared(place)
            yield from self._to(start, resource_of(op), op.name)
            why, by = int(ledger.why[place]), int(ledger.by[place])
            if why == LAUNCH:
                yield from self._to(ledger.shared_call(place), "launch_latency", "")
                return
            resource, place = ("event" if why == EVENT else "pause"), by if by >= 0 else None


def path_of(ledgers: dict[int, Ledger]) -> list[Piece]:
    """The job's path, from its last moment on host or device to its first."""
    begin = min(int(ledger.steps[0].times.host[0]) for ledger in ledgers.values())
    ends = {rank: (int(ledger.steps[-1].times.host[-1]), ledger.newest_op()) for rank, ledger in ledgers.items()}
    rank = max(ends, key=lambda rank: max(ends[rank][0], ends[rank][1][0]))
    host, (device, place) = ends[rank]
    walk = _Walk(ledgers, rank, max(host, device), begin, across=True)
    return list(walk.pieces(place if device > host else None))[::-1]


def path_of_rank(ledger: Ledger) -> list[Piece]:
    """The path of what a rank's recording holds, where a collective is work as any other."""
    begin, finish = ledger.shared_window()
    device, place = ledger.newest_op(ledger.recorded)
    walk = _Walk({ledger.rank: ledger}, ledger.rank, max(finish, device), begin, across=False)
    return list(walk.pieces(place if device > finish else None))[::-1]


def shares(pieces: Sequence[Piece]) -> dict[str, float]:
    """The part of each resource."""
    total: Counter[str] = Counter()
    for piece in pieces:
        total[piece.resource] += piece.end - piece.start
    return {resource: ns / total.total() for resource, ns in total.most_common()} if total.total() else {}


def job_figures(ledgers: dict[int, Ledger]) -> dict[str, Any]:
    """The job's path, and which rank the others wait for.

    ``waited_ns`` is the time that a rank's collectives spent waiting for others, ``caused_ns`` the time that all
    others spent waiting for it; messages between stages, whose waits are the pipeline's own, do not count.
    """
    pieces = path_of(ledgers)
    waited, caused = dict.fromkeys(ledgers, 0), dict.fromkeys(ledgers, 0)
    for rank, ledger in ledgers.items():
        for place, op in enumerate(ledger.ops):
            if op.collective and "SendRecv" not in op.name:
                last = int(ledger.last_rank[place])
                ns = ledgers[last].shared(int(ledger.last_op[place]))[1] - ledger.shared(place)[1]
                waited[rank] += ns
                caused[last] += ns
    late = max(caused, key=lambda rank: caused[rank])
    parts = shares([piece for piece in pieces if piece.rank == late])
    host = parts.get("host", 0.0) + parts.get("launch_latency", 0.0)
    return {
        "path": [piece._asdict() for piece in pieces],
        "path_shares": shares(pieces),
        "waited_ns": waited,
        "caused_ns": caused,
        "straggler": late if caused[late] else None,
        "straggler_cause": None if not caused[late] else "host" if host > 0.5 else "gpu",
    }
