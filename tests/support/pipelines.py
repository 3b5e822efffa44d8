"""Simulated pipelines of several roles whose truth is known: rollouts, a reward, a reference, an actor that trains."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from traces import Event, event, kernel, launch, step, write_trace

MS = 1_000  #: µs, the unit of traces
BEGIN = 1_700_000_000_000_000  #: µs since 1970


@dataclass(frozen=True)
class Pipeline:
    """Lengths in ms. Of each iteration: rollouts, then the reward, then the reference, then the actor."""

    seed: int = 0
    iterations: int = 3
    engines: int = 3
    rollout: tuple[float, ...] = (600.0, 620.0, 900.0)  #: of each engine
    reward: float = 100.0
    reference: float = 150.0
    actor: float = 400.0
    sync: float = 40.0  #: between the actor and the next rollouts, when no role works
    has_batches: bool = False  #: whether engines name their steps
    noise: float = 0.0
    skew: float = 0.0  #: of the actor's clock


@dataclass(frozen=True)
class Truth:
    """What is so, in ms: of each role, how long it works; and how long only the longest rollouts go on."""

    whole: float
    at_work: dict[str, float]
    longest: float
    nobody: float


def simulate_pipeline(how: Pipeline, folder: Path) -> Truth:
    """Write the traces of all roles below ``folder``."""
    chance = random.Random(how.seed)
    traces: dict[str, list[Event]] = {}
    worked = dict.fromkeys(("rollout", "reward", "reference", "actor"), 0.0)
    longest, now, counts = 0.0, 20.0, {}

    def lasting(length: float) -> float:
        return length * chance.lognormvariate(0, how.noise)

    def work(trace: str, start: float, length: float) -> None:
        """Kernels of about a millisecond, a tenth of it idle."""
        events, at = traces.setdefault(trace, []), start
        while at < start + length:
            counts[trace] = counts.get(trace, 0) + 1
            end = min(at + 0.9, start + length)
            events.append(launch("cudaLaunchKernel", BEGIN + (at - 0.02) * MS, 5, correlation=counts[trace]))
            events.append(kernel("gemm", BEGIN + at * MS, (end - at) * MS, correlation=counts[trace]))
            at += 1.0

    for number in range(how.iterations):
        begin = now
        lengths = [lasting(length) for length in how.rollout]
        for engine, length in enumerate(lengths):
            work(f"rollout/rank{engine}", begin, length)
            if how.has_batches:
                for at, batch in ((0.0, 40), (0.6, 20), (0.8, 2)):
                    until = {0.0: 0.6, 0.6: 0.8, 0.8: 1.0}[at]
                    traces[f"rollout/rank{engine}"].append(
                        event(
                            "user_annotation",
                            f"step[DECODE bs={batch}]",
                            BEGIN + (begin + at * length) * MS,
                            (until - at) * length * MS - 1,
                            100,
                            100,
                        )
                    )
        now += max(lengths)
        ended = sorted(lengths)[(len(lengths) - 1) // 2]
        longest += max(lengths) - ended
        worked["rollout"] += max(lengths)
        for role in ("reward", "reference", "actor"):
            length = lasting(getattr(how, role))
            offset = how.skew if role == "actor" else 0.0
            work(f"{role}/rank0", now + offset, length)
            if role == "actor":
                traces["actor/rank0"].append(step(number, BEGIN + (now + offset) * MS, length * MS))
            worked[role] += length
            now += length
        now += how.sync
    for trace, events in traces.items():
        whole = event("Trace", "PyTorch Profiler (0)", BEGIN, now * MS, "Spans", "PyTorch Profiler")
        _, _, rank = trace.rpartition("rank")
        write_trace(folder / f"{trace}.json.gz", whole, *events, distributedInfo={"rank": int(rank)})
    return Truth(now, worked, longest, 20.0 + how.iterations * how.sync)
