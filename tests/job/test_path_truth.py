"""The critical path of simulated jobs beside the true one, which the simulator's own rules tell.

Every operation there starts when its launch arrives, when its stream is free or when what it waits for is done; a
collective moves data when its last rank is there; the host goes on after its own work or, at a synchronization, when
the device is done.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from answered_jobs import answered
from augment.job.path.path import Path as JobPath
from simulator import JobOptions, job, simulate
from simulator.kineto import BASE_TIME_NS
from simulator.timing import LAUNCH_LATENCY_NS, WAIT_NS, WAKE_NS, Clock, StepTimes

pytestmark = pytest.mark.slow

Spent = tuple[int, int, int]  #: rank, from, until


class Recorded(Clock):
    """A clock that keeps what it played."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.played: list[list[StepTimes]] = []

    def step(self, number: int) -> list[StepTimes]:
        self.played.append(super().step(number))
        return self.played[-1]


class Truth:
    """Walks back from the end of the job; ``moment`` is where it is."""

    def __init__(self, clock: Recorded) -> None:
        (program,) = clock.programs[0].values()  # one for all steps and ranks
        self.played, self.ops, self.syncs = clock.played, program.ops, program.syncs
        self.ranks = range(clock.options.ranks)

    def walk(self) -> Iterator[Spent]:
        step = len(self.played) - 1
        rank = max(self.ranks, key=lambda item: int(self.played[step][item].host[-1]))
        host = len(self.played[step][rank].host) - 1
        now = int(self.played[step][rank].host[host])
        while True:
            result = self.waited_for(step, rank, host)
            if result is None and step == 0:
                yield rank, int(self.played[0][rank].host[0]), now
                return
            if result is None:
                step, host = step - 1, len(self.played[step - 1][rank].host) - 1
                continue
            op = result
            while op is not None:  # on the device
                end = int(self.played[step][rank].end[op])
                yield rank, end, now
                begins = max(self.ranks, key=lambda item: int(self.played[step][item].start[op]))
                late = begins if self.ops[op].collective else rank
                now = int(self.played[step][late].start[op])
                yield rank, now, end
                rank, host = late, self.ops[op].launch
                if now == int(self.played[step][rank].host[host]) + LAUNCH_LATENCY_NS:
                    break
                step, op = self.before(step, rank, op, now)

    def waited_for(self, step: int, rank: int, host: int) -> int | None:
        """The operation that the host last had to wait for until its point ``host``."""
        times = self.played[step][rank]
        for sync in reversed([sync for sync in self.syncs if sync.end <= host]):
            streams = {op.stream for op in self.ops} if sync.stream is None else {sync.stream}
            awaited = [place for place in range(sync.ops) if self.ops[place].stream in streams]
            last = max(awaited, key=lambda place: int(times.end[place]), default=None)
            if last is not None and int(times.host[sync.end]) == int(times.end[last]) + WAKE_NS:
                return last
        return None

    def before(self, step: int, rank: int, op: int, now: int) -> tuple[int, int]:
        """The operation that an operation had to wait for, and its step."""
        times = self.played[step][rank]
        for other in self.ops[op].waits:
            if int(times.end[other]) + WAIT_NS == now:
                return step, other
        stream = [place for place, each in enumerate(self.ops) if each.stream == self.ops[op].stream]
        earlier = [place for place in stream if place < op]
        return (step, earlier[-1]) if earlier else (step - 1, stream[-1])


@pytest.mark.parametrize("options", [
    {"ranks": 4, "steps": 4, "straggler": 1},
    {"ranks": 4, "steps": 6, "jitter": 0.1},
    {"ranks": 4, "steps": 6, "collectives": "fsdp"},
    {"ranks": 8, "steps": 4, "collectives": "fsdp", "jitter": 0.15},
    {"ranks": 4, "steps": 6, "work": 0.02, "jitter": 0.2},
    {"ranks": 4, "steps": 6, "work": 0.1, "jitter": 0.2, "collectives": "fsdp"},
    {"ranks": 4, "steps": 4, "gpu": "T4", "jitter": 0.1, "collectives": "fsdp"},
])  # fmt: skip
def test_the_path_is_the_true_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]) -> None:
    clocks: list[Recorded] = []
    monkeypatch.setattr(job, "Clock", lambda *arguments: clocks.append(Recorded(*arguments)) or clocks[-1])
    paths = [path for path, _ in simulate(JobOptions(**options), tmp_path)]
    path = answered(paths).path
    assert isinstance(path, JobPath)
    true = [(rank, start + BASE_TIME_NS, end + BASE_TIME_NS) for rank, start, end in Truth(clocks[0]).walk()]
    assert max(end for *_, end in true) == path.end[-1]
    alike = sum(
        max(0, min(end, until) - max(start, since))
        for member, start, end in zip(path.member.tolist(), path.start.tolist(), path.end.tolist(), strict=True)
        for rank, since, until in true
        if rank == member
    )
    assert alike > 0.95 * (path.end[-1] - path.start[0])
