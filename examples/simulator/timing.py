"""When everything of a step happens: a host clock a rank, streams that run in order, collectives that end together."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from simulator.options import JobOptions, among
from simulator.program import GpuOp, Int64s, Program, Sync

LAUNCH_LATENCY_NS = 3200  #: from the start of a launch call to the earliest start on the GPU
NEXT_KERNEL_NS = 900  #: between two operations of a busy stream
WAIT_NS = 1500  #: from an operation's end to the start of one that waited for it on another stream
WAKE_NS = 2500  #: from an operation's end to the end of the host's wait for it
BETWEEN_STEPS_NS = 40_000
STALL_CHANCE, STALL_FACTOR = 0.0004, 25.0  #: the host is interrupted now and then
TAIL_CHANCE = 0.15  #: that a step is one of the long ones of ``step_tail``
LAUNCH, STREAM, EVENT = 0, 1, 2  #: what an operation began after: its launch, its stream's last, another stream's


class Wake(NamedTuple):
    """The host went on at ``time`` because operation ``by`` had ended; -1: it need not have waited."""

    time: int
    by: int


@dataclass(frozen=True, slots=True)
class StepTimes:
    """A rank's step: the time of each host point, start and end of each GPU operation; ns on the shared clock.

    Operations that others refer to are counted from the first step of the rank.
    """

    host: Int64s
    start: Int64s
    end: Int64s
    why: Int64s  #: LAUNCH, STREAM or EVENT: the last that each operation had to wait for
    by: Int64s  #: the operation that it waited for, or -1
    last_rank: Int64s  #: of a collective the rank that came last; -1 for others
    last_op: Int64s  #: and what the collective is there
    wakes: tuple[Wake, ...]  #: the ends of the host's waits
    first_op: int
    program: Program


class _Meeting(NamedTuple):
    """A rank is at a collective: answered with the end, the rank that came last and its operation."""

    key: tuple[object, ...]
    members: tuple[int, ...]
    start: int
    length: int
    op: int
    buffered: bool = False


_Answer = tuple[int, int, int]
_Played = Generator[_Meeting, _Answer, StepTimes]


@dataclass
class _Rank:
    """What a rank carries from step to step."""

    now: int
    random: np.random.Generator
    free: dict[int, int] = field(default_factory=dict)  #: when each stream's last operation ends
    newest: dict[int, int] = field(default_factory=dict)  #: and which that is
    step_ends: list[tuple[int, int]] = field(
        default_factory=list
    )  #: end of each step's last operation, and which it is
    ops: int = 0


class Clock:
    """All ranks' clocks and streams, from step to step."""

    def __init__(self, options: JobOptions, programs: Sequence[dict[bool, Program]], start_ns: int) -> None:
        """``programs`` are each rank's step, by whether the host waits at its end for the device."""
        self.options, self.programs = options, programs
        self.sent: dict[tuple[object, ...], tuple[int, int, int]] = {}  #: start, rank and operation of buffered sends
        self.ranks = [
            _Rank(start_ns + 5000 * rank, np.random.default_rng([options.seed, rank])) for rank in range(options.ranks)
        ]

    def step(self, number: int) -> list[StepTimes]:
        """Play one step on every rank."""
        waits = self.options.waits_in(number)
        self.sent.clear()
        plays = {rank: self._play(rank, number, self.programs[rank][waits]) for rank in range(len(self.ranks))}
        at = {rank: self._go_on(play, None) for rank, play in plays.items()}
        while met := {rank: moment for rank, moment in at.items() if isinstance(moment, _Meeting)}:
            answers = self._answers(met)
            if not answers:
                raise RuntimeError("the ranks wait for each other for ever")
            for rank, answer in answers.items():
                at[rank] = self._go_on(plays[rank], answer)
        return [times for times in at.values() if isinstance(times, StepTimes)]

    def _answers(self, met: dict[int, _Meeting]) -> dict[int, _Answer]:
        """The ends of those collectives at which all their ranks are."""
        out: dict[int, _Answer] = {}
        for rank, meeting in met.items():
            if meeting.buffered:
                if meeting.key in self.sent:
                    out[rank] = self._received(rank, meeting)
                continue
            there = {other: met[other] for other in meeting.members if other in met and met[other].key == meeting.key}
            if len(there) == len(meeting.members):
                last = max(there, key=lambda other: there[other].start)
                length = self._length(there[min(there)].length, meeting.members)
                out[rank] = there[last].start + length, last, there[last].op
        return out

    def _received(self, rank: int, meeting: _Meeting) -> _Answer:
        """The end of a message that was sent already, and who came last."""
        start, sender, op = self.sent[meeting.key]
        length = self._length(meeting.length, meeting.members)
        last = (sender, op) if start >= meeting.start else (rank, meeting.op)
        return max(start, meeting.start) + length, *last

    def _length(self, length: int, members: tuple[int, ...]) -> int:
        return round(length * self.options.slow_link_factor) if self.options.slow_link in members else length

    @staticmethod
    def _go_on(play: _Played, answer: _Answer | None) -> _Meeting | StepTimes:
        """The rank's next collective, or its whole step."""
        try:
            return next(play) if answer is None else play.send(answer)
        except StopIteration as stop:
            times: StepTimes = stop.value
            return times

    def factor_of(self, number: int) -> float:
        """How much longer everything of this step takes, on all ranks and in every run of this ``step_seed``."""
        options, place = self.options, number - self.options.first_step
        seed = options.seed if options.step_seed is None else options.step_seed
        random = np.random.default_rng([seed, 424242, place])
        factor = float(np.exp(random.normal(0.0, options.step_jitter))) * (1 + options.step_drift) ** place
        if random.random() < TAIL_CHANCE:
            factor *= 1 + options.step_tail * float(random.pareto(2.5))
        return factor * (options.warmup if place == options.first_recorded else 1.0)

    def _draw(self, rank: _Rank, base: npt.NDArray[np.float64], tail: float = 1.0, extra: float = 1.0) -> Int64s:
        """Durations around ``base``, at least 1 ns; a few are ``tail`` times as long."""
        if not self.options.jitter:
            return np.maximum(np.rint(base * extra), 1).astype(np.int64)
        factor = np.exp(rank.random.normal(0.0, self.options.jitter, len(base)))
        factor[rank.random.random(len(base)) < STALL_CHANCE] *= tail
        return np.maximum(np.rint(base * factor * extra), 1).astype(np.int64)

    def _durations(self, number: int, place: int, program: Program) -> tuple[Int64s, Int64s]:
        """What each host point costs and how long each operation runs."""
        options, rank, factor = self.options, self.ranks[place], self.factor_of(number)
        costs = self._draw(rank, program.costs, STALL_FACTOR, factor)
        base = np.array([self._slowed(op) for op in program.ops])
        durs = self._draw(rank, base, extra=factor)
        costs[0] += BETWEEN_STEPS_NS
        stalls = options.host_stall_step in (None, number) and number % options.host_stall_every == 0
        if stalls and (options.host_stall_rank is None or place in among(options.host_stall_rank)):
            costs[program.stall_point] += round(options.host_stall_us * 1000)
        if place in among(options.straggler):
            computes = np.array([op.category == "kernel" and not op.collective for op in program.ops])
            durs[computes] = np.rint(durs[computes] * options.straggler_factor).astype(np.int64)
        return costs, durs

    def _slowed(self, op: GpuOp) -> float:
        slow = self.options.slow_kernel
        return op.base_ns * (1 + self.options.slow_percent / 100) if slow and slow in op.name else op.base_ns

    def _play(self, place: int, number: int, program: Program) -> _Played:
        """One rank's step; it yields at each collective."""
        rank = self.ranks[place]
        costs, durs = self._durations(number, place, program)
        out = StepTimes(
            np.empty(len(costs), np.int64),
            *(np.full(len(durs), fill, np.int64) for fill in (0, 0, LAUNCH, -1, -1, -1)),
            (),
            rank.ops,
            program,
        )
        rank.ops += len(durs)
        wakes: list[Wake] = []
        first = played = 0
        for sync in program.syncs:
            out.host[first : sync.end] = rank.now + np.cumsum(costs[first : sync.end])
            yield from self._run(rank, played, sync.ops, out, durs)
            wakes.append(self._wake(rank, sync, out.host, costs))
            first, played = sync.end + 1, sync.ops
        out.host[first:] = rank.now + np.cumsum(costs[first:])
        yield from self._run(rank, played, len(durs), out, durs)
        rank.now = int(out.host[-1])
        rank.step_ends.append((int(out.end[-1]), rank.ops - 1))
        return StepTimes(
            out.host,
            out.start,
            out.end,
            out.why,
            out.by,
            out.last_rank,
            out.last_op,
            tuple(wakes),
            out.first_op,
            program,
        )

    def _wake(self, rank: _Rank, sync: Sync, host: Int64s, costs: Int64s) -> Wake:
        """Set the host point at which a wait is over."""
        returns = int(host[sync.end - 1] + costs[sync.end])
        if sync.back:
            awaited = rank.step_ends[-sync.back :][:1] if len(rank.step_ends) >= sync.back else []
        else:
            streams = rank.free if sync.stream is None else {sync.stream} & rank.free.keys()
            awaited = [(rank.free[stream], rank.newest[stream]) for stream in streams]
        ended, by = max(awaited, default=(0, -1))
        rank.now = max(returns, ended + WAKE_NS)
        host[sync.end] = rank.now
        return Wake(rank.now, by if ended + WAKE_NS > returns else -1)

    def _run(
        self, rank: _Rank, first: int, last: int, out: StepTimes, durs: Int64s
    ) -> Generator[_Meeting, _Answer, None]:
        """Operations ``first`` to ``last``, each after its stream's last and what it waits for."""
        ops = out.program.ops
        queued = [op.launch_end if op.loads else op.launch for op in ops[first:last]]
        arrivals = (out.host[queued] + LAUNCH_LATENCY_NS).tolist()
        pauses = self._draw(rank, np.full(last - first, float(NEXT_KERNEL_NS))).tolist()
        for index, arrival, pause in zip(range(first, last), arrivals, pauses, strict=True):
            op, ready, why, by = ops[index], arrival, LAUNCH, -1
            free = rank.free.get(op.stream, 0) + pause
            if free >= ready:
                ready, why, by = free, STREAM, rank.newest.get(op.stream, -1)
            for other in op.waits:
                if int(out.end[other]) + WAIT_NS >= ready:
                    ready, why, by = int(out.end[other]) + WAIT_NS, EVENT, out.first_op + other
            end = ready + int(durs[index])
            if op.buffered and self.ranks[op.members[0]] is rank:  # it sends
                end = ready + self._length(int(durs[index]), op.members)
                self.sent[op.meeting] = ready, op.members[0], out.first_op + index
                out.last_rank[index], out.last_op[index] = op.members[0], out.first_op + index
            elif op.collective:
                key, members = op.meeting or (index,), op.members or tuple(range(len(self.ranks)))
                meeting = _Meeting(key, members, ready, int(durs[index]), out.first_op + index, op.buffered)
                end, out.last_rank[index], out.last_op[index] = yield meeting
                if self.options.end_spread_ns:
                    end += round(rank.random.normal(0.0, self.options.end_spread_ns))
            out.start[index], out.end[index], out.why[index], out.by[index] = ready, end, why, by
            rank.free[op.stream], rank.newest[op.stream] = end, out.first_op + index
