"""When everything of a step happens: a host clock a rank, streams that run in order, collectives that end together."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from simulator.options import JobOptions
from simulator.program import GpuOp, Int64s, Program

LAUNCH_LATENCY_NS = 3200  #: from the start of a launch call to the earliest start on the GPU
NEXT_KERNEL_NS = 900  #: between two operations of a busy stream
WAIT_NS = 1500  #: from an operation's end to the start of one that waited for it on another stream
WAKE_NS = 2500  #: from an operation's end to the end of the host's wait for it
BETWEEN_STEPS_NS = 40_000
STALL_CHANCE, STALL_FACTOR = 0.0004, 25.0  #: the host is interrupted now and then


@dataclass(frozen=True, slots=True)
class StepTimes:
    """A rank's step: the time of each host point, start and end of each GPU operation; ns on the shared clock."""

    host: Int64s
    start: Int64s
    end: Int64s


class Clock:
    """All ranks' clocks and streams, from step to step."""

    def __init__(self, options: JobOptions, program: Program, start_ns: int) -> None:
        self.options, self.program = options, program
        self.now = [start_ns + 5000 * rank for rank in range(options.ranks)]
        self._free: list[dict[int, int]] = [{} for _ in range(options.ranks)]
        self._random = [np.random.default_rng([options.seed, rank]) for rank in range(options.ranks)]
        self._launches = np.array([op.launch for op in program.ops], np.int64)
        self._base = np.array([self._slowed(op) for op in program.ops])

    def _slowed(self, op: GpuOp) -> float:
        slow = self.options.slow_kernel
        return op.base_ns * (1 + self.options.slow_percent / 100) if slow and slow in op.name else op.base_ns

    def _draw(self, rank: int, base: npt.NDArray[np.float64], tail: float = 1.0) -> Int64s:
        """Durations around ``base``, at least 1 ns; a few are ``tail`` times as long."""
        if not self.options.jitter:
            return np.maximum(np.rint(base), 1).astype(np.int64)
        factor = np.exp(self._random[rank].normal(0.0, self.options.jitter, len(base)))
        factor[self._random[rank].random(len(base)) < STALL_CHANCE] *= tail
        return np.maximum(np.rint(base * factor), 1).astype(np.int64)

    def step(self, number: int) -> list[StepTimes]:
        """Play one step on every rank."""
        ranks = range(self.options.ranks)
        costs = [self._draw(rank, self.program.costs, STALL_FACTOR) for rank in ranks]
        durs = [self._draw(rank, self._base) for rank in ranks]
        for rank in ranks:
            costs[rank][0] += BETWEEN_STEPS_NS
            if self.options.host_stall_step in (None, number):
                costs[rank][self.program.stall_point] += round(self.options.host_stall_us * 1000)
            if rank == self.options.straggler:
                own = np.array([op.category == "kernel" and not op.collective for op in self.program.ops])
                durs[rank][own] = np.rint(durs[rank][own] * self.options.straggler_factor).astype(np.int64)
        host = [np.empty(len(self.program.costs), np.int64) for _ in ranks]
        starts: list[list[int]] = [[] for _ in ranks]
        ends: list[list[int]] = [[] for _ in ranks]
        first = 0
        for sync in self.program.syncs:
            for rank in ranks:
                host[rank][first : sync.end] = self.now[rank] + np.cumsum(costs[rank][first : sync.end])
            self._run(len(starts[0]), sync.ops, host, durs, starts, ends)
            for rank in ranks:
                self.now[rank] = self._wake(rank, sync.end, sync.stream, host[rank], costs[rank])
            first = sync.end + 1
        for rank in ranks:
            host[rank][first:] = self.now[rank] + np.cumsum(costs[rank][first:])
            self.now[rank] = int(host[rank][-1])
        return [StepTimes(host[rank], np.array(starts[rank]), np.array(ends[rank])) for rank in ranks]

    def _wake(self, rank: int, end: int, stream: int | None, host: Int64s, costs: Int64s) -> int:
        """Set the host point at which a wait is over."""
        waited = self._free[rank].values() if stream is None else [self._free[rank].get(stream, 0)]
        host[end] = max(int(host[end - 1] + costs[end]), max(waited, default=0) + WAKE_NS)
        return int(host[end])

    def _run(
        self,
        first: int,
        last: int,
        host: list[Int64s],
        durs: list[Int64s],
        starts: list[list[int]],
        ends: list[list[int]],
    ) -> None:
        """Operations ``first`` to ``last`` of every rank, each after its stream's last and what it waits for."""
        ranks = range(self.options.ranks)
        arrivals = [(host[rank][self._launches[first:last]] + LAUNCH_LATENCY_NS).tolist() for rank in ranks]
        lengths = [durs[rank][first:last].tolist() for rank in ranks]
        pauses = [self._draw(rank, np.full(last - first, float(NEXT_KERNEL_NS))).tolist() for rank in ranks]
        for index in range(first, last):
            op = self.program.ops[index]
            for rank in ranks:
                ready = max(
                    arrivals[rank][index - first], self._free[rank].get(op.stream, 0) + pauses[rank][index - first]
                )
                for other in op.waits:
                    ready = max(ready, ends[rank][other] + WAIT_NS)
                starts[rank].append(ready)
            together = max(starts[rank][index] for rank in ranks) + lengths[0][index - first] if op.collective else 0
            for rank in ranks:
                end = together or starts[rank][index] + lengths[rank][index - first]
                if together and self.options.end_spread_ns:
                    end += round(self._random[rank].normal(0.0, self.options.end_spread_ns))
                ends[rank].append(end)
                self._free[rank][op.stream] = end
