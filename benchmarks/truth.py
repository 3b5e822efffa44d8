"""What the diagnosis says of faults that an independent generator injects, beside a simulation without them.

    python benchmarks/truth.py [--seeds 4] [--first 0] [--healthy 100] [--kinds NAME…] [--quick] [--verbose]

The generator (``../shared/repro/strangers/causes_sim.py``) shares no code with this project. Workloads (layers, length
of kernels, speed of the host, steps, ranks) and the strength of faults are drawn anew for each seed. For each kind of
fault it prints in how many runs the fault is named, if it costs at least 6 % of a step; in how many it comes first; and
by how many points of the step each promise misses the truth. The truth of a promise is a simulation with the same seed
without what is blamed: a host that never waits (``synchronizing_calls``), one that takes no time (``launch_bound``),
communication that takes none, else the run without the fault. Of runs without a fault, it prints each grave finding
that such a simulation does not confirm.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal
from unittest.mock import patch

import numpy as np
from msgspec import Struct, field

ROOT = Path(__file__).resolve().parents[1]
SHARED = Path(os.environ.get("SHARED", ROOT.parent / "shared"))
GENERATOR = SHARED / "repro" / "strangers" / "causes_sim.py"
sys.path.insert(0, str(ROOT))

from augment.diagnosis.judging import measure  # noqa: E402
from augment.diagnosis.ranking import diagnose  # noqa: E402
from augment.diagnosis.verdict import named as rules_of_verdict  # noqa: E402
from augment.job.answer import Answer, answer  # noqa: E402
from augment.job.rank_answers import rank_in_job  # noqa: E402
from augment.job.ranks.summary import summarize  # noqa: E402
from augment.job.verdict import Judgement  # noqa: E402
from augment.pipeline import augment  # noqa: E402
from augment.readers import read  # noqa: E402
from augment.results.report.health import job_findings  # noqa: E402

MATTERS = 0.06  #: share of a step; a warning begins at 5 %
APART = 0.03  #: a promise that exceeds the truth by more is false in a run without fault
#: what a promise of these rules leaves out, as a setting of the generator's world
ALONE: dict[str, dict[str, Any]] = {
    "synchronizing_calls": {"nosync": True},
    "launch_bound": {"hz": 0.02},
    "exposed_communication": {"cf": 1e-6},
}
#: and of these in runs without a fault
ALONE_IN_HEALTHY: dict[str, dict[str, Any]] = {
    "long_calls": {"launches_at_once": True},
    "late_gathers": {"gathers_early": True},
}
GATHERS = 21  #: the generator's stream of FSDP's gathers
GRAPH_LAUNCH_US = 250  #: of the generator's host; nothing else takes it as long
OF_RANK = ("synchronizing_calls", "launch_bound", "long_calls")  #: in a job they are about the host of one rank
Fault = dict[str, Any]
Bound = Literal["", "up to", "at least"]  #: of a promise; only what breaks it is an error


def generator() -> Any:
    """The generator's module."""
    if "causes_sim" not in sys.modules:
        spec = importlib.util.spec_from_file_location("causes_sim", GENERATOR)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["causes_sim"] = module
        spec.loader.exec_module(module)
        fast = SimpleNamespace(dump=lambda what, file: file.write(json.dumps(what)), dumps=json.dumps)
        vars(module)["json"] = fast  # json.dump itself encodes in Python, for longer than the simulation takes
    return sys.modules["causes_sim"]


class Workload(Struct, frozen=True):
    """What runs: ``family`` is a program of the generator."""

    family: str
    seed: int
    ranks: int
    steps: int
    layers: int
    scale: float
    host: float
    reads_loss: bool
    noise: float

    def world(self, fault: Fault, ranks: Sequence[int] | None, of: int | None = None, **settings: Any) -> Any:
        """The simulated world with a fault on some ranks (None: all), and settings of all ranks or of rank ``of``."""
        sim = generator()
        world = sim.World(self.ranks, seed=self.seed, kn=self.noise)
        if of is not None:  # a rank reads its settings from the world
            world.ranks[of].W = world_of_rank = sim.World(0, seed=self.seed, kn=self.noise)
            world_of_rank.n, world_of_rank.colls = world.n, world.colls
        for name, value in settings.items():
            setattr(world if of is None else world.ranks[of].W, name, value)
        if settings.get("gathers_early"):
            for rank in world.ranks:
                rank.waitev = _without_waits(rank, GATHERS)
        return world.run(_PROGRAMS[self.family](self, fault, ranks))

    def config(self) -> Any:
        """The generator's model."""
        return generator().Cfg(L=self.layers, scale=self.scale, hostf=self.host, lossitem=self.reads_loss)


def _without_waits(rank: Any, of: int) -> Callable[[int, int], None]:
    """A rank's calls that let a stream wait for another: stream ``of`` does not."""
    waits = rank.waitev

    def wait(stream: int, on: int) -> None:
        waits(stream, on)
        if stream == of:
            rank.pend.pop(stream, None)

    return wait


def _train(mode: str) -> Callable[[Workload, Fault, Sequence[int] | None], Any]:
    return lambda work, fault, ranks: generator().train(work.steps, 10, work.config(), fault, mode, F_rank=ranks)


def _pipeline(work: Workload, fault: Fault, _: Sequence[int] | None) -> Any:
    settings = {"M": 2 * work.ranks, **fault}
    microbatches, layers = settings.pop("M"), max(work.layers // 2, 1)
    return generator().pipeline(
        work.steps, 10, work.ranks, microbatches, layers, work.scale, work.host, label=work.seed % 2 == 0, **settings
    )


def _moe(work: Workload, fault: Fault, _: Sequence[int] | None) -> Any:
    return generator().moe(work.steps, 10, work.ranks, L=work.layers, scale=work.scale, hostf=work.host, **fault)


def _tpdp(work: Workload, fault: Fault, ranks: Sequence[int] | None) -> Any:
    of_rank = dict.fromkeys(ranks or (), fault) if "stall" in fault or "loader" in fault else None
    settings = {} if of_rank else fault
    return generator().tpdp(
        work.steps, 10, 2, work.ranks // 2, L=work.layers, scale=work.scale, hostf=work.host, faults=of_rank, **settings
    )


def _decode(work: Workload, fault: Fault, _: Sequence[int] | None) -> Any:
    settings = {"graph": True, **fault}
    program = generator().decode(work.steps, 10, L=4 * work.layers, kus=10 * work.scale, hostf=work.host, **settings)

    def at_once(rank: Any) -> Any:
        """The program; its graphs are launched in no time if the world says so."""
        takes, is_at_once = rank.h, getattr(rank.W, "launches_at_once", False)

        def host(us: float, of_fault: bool = False) -> None:
            before = rank.t
            takes(us, of_fault)
            rank.t = before if is_at_once and us == GRAPH_LAUNCH_US else rank.t

        rank.h = host
        return program(rank)

    return at_once


def _contended(work: Workload, fault: Fault, _: Sequence[int] | None) -> Any:
    """Training whose layers, half of them, run beside a kernel of another stream and are ``fault["slower"]`` times as
    long there."""
    sim, config, slower = generator(), work.config(), fault.get("slower")

    def layer(rank: Any, run: Callable[..., Any], place: int) -> Any:
        beside = slower is not None and place % 2 == work.seed % 2
        before = len(rank.ops)
        if beside:
            rank.waitev(13, 7)
            rank.kf = slower
        yield from run(rank, config, {}, place)
        rank.kf = 1.0
        if beside:
            us = sum(kernel.dur for kernel in rank.ops[before:])
            yield from rank.launch(sim.EL.replace("vectorized", "unrolled") % ("prep", "prep"), dur=us, stream=13)

    def program(rank: Any) -> Any:
        rank.hf = work.host
        for step in range(-2, work.steps):
            rank.newstep(step)
            if step == 0:
                rank.recording, rank.rec0 = True, rank.t
            rank.anns = [f"ProfilerStep#{10 + step}"] if step >= 0 else []
            begin = rank.t
            sim.loader(rank, {}, step)
            yield from sim.h2d(rank, {}, config.T * 16)
            for place in range(work.layers):
                yield from layer(rank, sim.layer_fwd, place)
            rank.tid = rank.bwd
            for place in reversed(range(work.layers)):
                yield from layer(rank, sim.layer_bwd, place)
            rank.tid = rank.main
            yield from sim.optimizer(rank, config, {}, 0)
            if work.reads_loss:
                yield from sim.item(rank)
            if step >= 0:
                rank.sl(f"ProfilerStep#{10 + step}", "user_annotation", begin, rank.t, {})
            rank.stepmarks.append((step, rank.last.get(7)))
        rank.final = True
        yield from rank.sync("cudaDeviceSynchronize")
        rank.recording = False

    return program


def _disturbed(work: Workload, fault: Fault, ranks: Sequence[int] | None) -> Any:
    """Training of which a ``fault["share"]`` of bursts of one to four kernels takes ``fault["times"]`` as long."""
    program = _train("single")(work, {}, ranks)

    def disturbed(rank: Any) -> Any:
        runs, chance, left = rank.gpu, np.random.default_rng([work.seed, 7]), 0

        def gpu(name: str, cat: str, dur: float, *rest: Any, **more: Any) -> Any:
            nonlocal left
            if not left and chance.random() < fault.get("share", 0.0):
                left = int(chance.integers(1, 5))
            hit, left = left > 0, max(left - 1, 0)
            return runs(name, cat, dur * (fault["times"] * chance.uniform(0.5, 1.5) if hit else 1.0), *rest, **more)

        rank.gpu = gpu
        return program(rank)

    return disturbed


def _loading(work: Workload, fault: Fault, ranks: Sequence[int] | None) -> Any:
    """Training that launches a new kernel from its second or third step on, which takes ``fault["us"]`` at first."""
    program, begins = _train("single")(work, {}, ranks), 1 + work.seed % 2

    def loading(rank: Any) -> Any:
        launches, steps = rank.launch, set[int]()

        def launch(name: str, *rest: Any, **more: Any) -> Any:
            if rank.recording and rank.step >= begins and rank.step not in steps and "cat" not in more:
                more |= {"callus": fault["us"]} if fault and not steps else {}
                name += "_tuned"
                steps.add(rank.step)
            return launches(name, *rest, **more)

        rank.launch = launch
        return program(rank)

    return loading


_PROGRAMS: dict[str, Callable[[Workload, Fault, Sequence[int] | None], Any]] = {
    "single": _train("single"),
    "ddp": _train("ddp"),
    "fsdp": _train("fsdp"),
    "pipeline": _pipeline,
    "moe": _moe,
    "tpdp": _tpdp,
    "decode": _decode,
    "contended": _contended,
    "disturbed": _disturbed,
    "loading": _loading,
}


class Kind(Struct, frozen=True):
    """A kind of fault. ``draw`` makes the generator's settings from a source of chance and the length of a step, us;
    ``rules`` name it, and promise what its cure saves; ``named_by`` name it, but promise something else; what ``also``
    says is right, too. In a job ``causes`` of the verdict's row name it; ``on_rank``: it is on one."""

    family: str
    draw: Callable[[np.random.Generator, float], Fault]
    rules: tuple[str, ...] = ()
    causes: tuple[str, ...] = ()
    on_rank: bool = False
    named_by: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    cure: Callable[[Workload], Fault] = lambda _: {}  #: what remains without the fault
    shorter: float = 1.0  #: a step without the fault does so many times the work
    work: dict[str, Any] = field(default_factory=dict)  #: settings of the workload
    ranks_at_fault: Callable[[Fault], Sequence[int]] | None = None
    is_minor: bool = False  #: whether a finding of any severity names it
    is_once: bool = False  #: what names it may promise nothing: later steps lack it


def _of(name: str, low: float, high: float) -> Callable[[np.random.Generator, float], Fault]:
    """A setting, uniform between two bounds."""
    return lambda chance, _: {name: float(chance.uniform(low, high))}


def _stalls(
    name: str, *more: Any, low: float = 0.15, high: float = 1.2
) -> Callable[[np.random.Generator, float], Fault]:
    """A setting in us, of so many steps; with ``more``, a pair."""

    def draw(chance: np.random.Generator, step: float) -> Fault:
        us = float(chance.uniform(low, high)) * step
        return {name: (us, *more) if more else us}

    return draw


def _every(name: str, low: float, high: float, *more: Any) -> Callable[[np.random.Generator, float], Fault]:
    """What comes back in each second or third step, for so many steps."""
    return lambda chance, step: {name: (int(chance.integers(2, 4)), float(chance.uniform(low, high)) * step, *more)}


def _loader(how: str, low: float, high: float) -> Callable[[np.random.Generator, float], Fault]:
    return lambda chance, step: {"loader": (how, float(chance.uniform(low, high)) * step)}


def _count(name: str, low: int, high: int) -> Callable[[np.random.Generator, float], Fault]:
    return lambda chance, _: {name: int(chance.integers(low, high))}


def _pageable(chance: np.random.Generator, step: float) -> Fault:
    return {"pageable": 6.0, "pageable_bytes": int(chance.uniform(0.1, 0.4) * step * 6e3)}


_HOST = ("host",)
_COMPUTE = ("compute",)
_READS = {"reads_loss": True}
_SMALL = {"reads_loss": True, "scale": 0.25}
#: what a rank at fault says of itself
_OWN = ("data_loading", "host_gaps", "allocator_calls", "step_outliers", "starved_host")
KINDS: dict[str, Kind] = {
    "loader on the main thread": Kind("single", _loader("single", 0.2, 0.8), ("data_loading",)),
    "slow loader workers": Kind("single", _loader("multi", 1.15, 1.9), ("data_loading",)),
    "item in layers": Kind("single", _count("item", 1, 3), ("synchronizing_calls",), work={"scale": 0.12}),
    "item in the step": Kind("single", lambda *_: {"midsync": 1}, ("synchronizing_calls",), work={"scale": 0.1}),
    "pageable batch": Kind("single", _pageable, ("exposed_copies",), named_by=("pageable_copies",), work=_READS),
    "batch on the stream": Kind(
        "single", lambda chance, step: {"exposed_copy": (int(chance.uniform(0.1, 0.4) * step * 24e3), 24.0)},
        ("exposed_copies",), work=_READS,
    ),
    "malloc in steps": Kind("single", _of("malloc", 1500, 4000), ("allocator_calls",)),
    "many small kernels": Kind("single", _count("smallk", 120, 300), ("launch_bound",), work=_READS),
    "slow host": Kind("single", _of("slowhost", 2.5, 5), ("launch_bound",), work=_SMALL),
    "slow Python": Kind("single", _of("pyhost", 100, 350), ("launch_bound",), work=_SMALL),
    "host gets no CPU": Kind(
        "single", lambda chance, _: {"contention": (0.25, float(chance.uniform(4000, 9000)))},
        ("starved_host", "host_gaps"), work=_READS,
    ),
    "garbage, not named": Kind(
        "single", _every("gc", 0.5, 1.5, False), ("host_gaps",), named_by=("starved_host",), also=("step_outliers",),
        work=_READS,
    ),
    "garbage, named": Kind(
        "single", _every("gc", 0.5, 1.5, True), ("garbage_collection",), also=("step_outliers",), work=_READS
    ),
    "stall after backward": Kind("single", _stalls("host_gap", False), ("host_gaps",), work=_READS),
    "stall behind a wait": Kind("single", _stalls("host_gap", True), ("host_gaps",), named_by=("synchronizing_calls",)),
    "stall on the main thread": Kind("single", _stalls("host_gap_main"), ("host_gaps",), work=_READS),
    "stall after the optimizer": Kind("single", _stalls("host_gap_end"), ("host_gaps",), work=_READS),
    "first launch takes long": Kind(
        "single", _stalls("cold", low=1.0, high=4.0), named_by=("long_calls", "slow_start"), is_minor=True
    ),
    "kernel loaded in a step": Kind(
        "loading", _stalls("us", low=1.0, high=4.0), named_by=("long_calls",), also=("step_outliers",), work=_READS,
        is_minor=True, is_once=True,
    ),
    "recompilation": Kind(
        "single", _every("recompile", 0.8, 2.0), ("recompilation",), also=("step_outliers",), work=_READS
    ),
    "checkpoint": Kind(
        "single", _every("ckpt", 0.8, 2.0), ("step_outliers",), work={"steps": 8},
        named_by=("host_gaps", "exposed_copies", "pageable_copies"),
    ),
    "evaluation": Kind(
        "single", lambda chance, _: {"eval": (4, int(chance.integers(3, 7)))}, ("step_outliers",), work={"steps": 8}
    ),
    "plain products": Kind("single", lambda *_: {"matrix": 1}, ("matrix_units",), also=("low_roofline",)),
    "elementwise chains": Kind("single", _count("elchain", 8, 24), ("elementwise_chains",)),
    "unfused optimizer": Kind("single", _of("unfused", 10, 30), ("unfused_optimizer",), also=("elementwise_chains",)),
    "clock drops": Kind("single", _of("power", 0.25, 0.5), ("clock_drop",), work={"steps": 8}),
    "decode without graphs": Kind(
        "decode", lambda *_: {"graph": False}, ("launch_bound",), cure=lambda _: {"graph": True}
    ),
    "streams contend": Kind("contended", _of("slower", 1.3, 1.8), ("stream_contention",)),
    "device disturbed": Kind(
        "disturbed",
        lambda chance, _: {"share": float(chance.uniform(0.003, 0.02)), "times": float(chance.uniform(10, 30))},
        ("disturbed_device",), also=("step_outliers",), work={"steps": 8},
    ),
    "ddp: loader of a rank": Kind("ddp", _loader("multi", 1.2, 1.7), causes=_HOST, on_rank=True, also=_OWN),
    "ddp: slow device": Kind("ddp", _of("throttle", 1.15, 1.5), causes=_COMPUTE, on_rank=True),
    "ddp: slow host": Kind("ddp", _of("slowhost", 3, 5), causes=_HOST, on_rank=True, work=_SMALL),
    "ddp: garbage on a rank": Kind(
        "ddp", _every("gc", 0.5, 1.2, False), causes=_HOST, on_rank=True, also=_OWN, work=_READS
    ),
    "ddp: malloc on a rank": Kind("ddp", _of("malloc", 2000, 4000), causes=_HOST, on_rank=True, also=_OWN),
    "ddp: stall of a rank": Kind(
        "ddp", _stalls("host_gap", False), causes=_HOST, on_rank=True, also=_OWN, work=_READS
    ),
    "ddp: slow links": Kind("ddp", _of("slowlink", 3, 8), ("exposed_communication",)),
    "ddp: not overlapped": Kind("ddp", lambda *_: {"exposed_ar": 1}, ("exposed_communication",)),
    "ddp: small collectives": Kind(
        "ddp", _count("smallcoll", 24, 60), ("small_collectives",), named_by=("exposed_communication",),
        cure=lambda work: {"smallcoll": 1, "smallcoll_us": 28 / work.layers},
    ),
    "ddp: all loaders": Kind("ddp", _loader("multi", 1.2, 1.7), ("data_loading",), causes=("shared",)),
    "ddp: chains": Kind("ddp", _count("elchain", 8, 40), ("elementwise_chains",)),
    "fsdp: chains": Kind("fsdp", _count("elchain", 8, 40), ("elementwise_chains",)),
    "fsdp: no prefetch": Kind(
        "fsdp", lambda *_: {"noprefetch": True}, ("late_gathers",), named_by=("exposed_communication",)
    ),
    "fsdp: slow device": Kind("fsdp", _of("throttle", 1.15, 1.5), causes=_COMPUTE, on_rank=True),
    "fsdp: loader of a rank": Kind("fsdp", _loader("multi", 1.2, 1.7), causes=_HOST, on_rank=True, also=_OWN),
    "pipeline: bubble": Kind(
        "pipeline", lambda *_: {}, ("pipeline_bubble",), cure=lambda work: {"M": 8 * work.ranks}, shorter=4.0
    ),
    "pipeline: slow stage": Kind(
        "pipeline", lambda chance, _: {"stage_scale": {int(chance.integers(0, 2)): float(chance.uniform(1.25, 1.7))}},
        ("stage_imbalance",), also=("pipeline_bubble",),
    ),
    "experts: slow device": Kind(
        "moe", lambda chance, _: {"slow": (int(chance.integers(0, 2)), float(chance.uniform(1.2, 1.5)))},
        causes=_COMPUTE, on_rank=True, ranks_at_fault=lambda fault: [fault["slow"][0]],
    ),
    "experts: hot expert": Kind(
        "moe", lambda chance, _: {"hot": int(chance.integers(0, 2)), "hotf": float(chance.uniform(1.5, 1.9))},
        causes=_COMPUTE, on_rank=True, ranks_at_fault=lambda fault: [fault["hot"]],
    ),
    "tp × dp: slow device": Kind(
        "tpdp", lambda chance, _: {"slowrank": int(chance.integers(0, 4)), "slowf": float(chance.uniform(1.2, 1.5))},
        causes=_COMPUTE, on_rank=True, ranks_at_fault=lambda fault: [fault["slowrank"]],
    ),
    "tp × dp: stall of a rank": Kind("tpdp", _stalls("stall"), causes=_HOST, on_rank=True, also=_OWN, work=_READS),
    "tp × dp: slow group": Kind(
        "tpdp", lambda chance, _: {"slowdp": (int(chance.integers(0, 2)), float(chance.uniform(5, 12)))},
        causes=("communication",),
    ),
}  # fmt: skip
HEALTHY = ("single", "ddp", "single", "fsdp", "single", "decode", "moe", "single", "tpdp", "contended")
_QUICK = ("slow loader workers", "item in layers", "many small kernels", "stall after backward", "ddp: slow device")


def drawn(family: str, seed: int, settings: dict[str, Any]) -> Workload:
    """The workload of a seed."""
    chance = np.random.default_rng([seed, 20261123])
    alone = family in ("single", "decode", "contended", "disturbed", "loading")
    values: dict[str, Any] = {
        "family": family,
        "seed": seed,
        "ranks": 1 if alone else 4 if family in ("pipeline", "tpdp") else int(chance.choice([2, 4, 8])),
        "steps": int(chance.integers(4, 8)),
        "layers": int(chance.integers(3, 8)),
        "scale": float(chance.uniform(0.4, 1.0)),
        "host": float(chance.uniform(0.5, 0.9)),
        "reads_loss": bool(chance.random() < 0.5),
        "noise": float(chance.choice([0.005, 0.015, 0.03])),
    }
    return Workload(**{**values, **settings})


class Outcome(Struct, frozen=True):
    """What was said of a run. ``errors``: rule or rank, what was promised, and what is true, as shares of a step."""

    kind: str
    seed: int
    cost: float
    is_named: bool
    is_first: bool
    errors: list[tuple[str, float, float]]
    stray: list[str]  #: grave findings that speak of something else
    text: str


def outcome(kind: str, seed: int) -> Outcome:
    """Simulate a kind of fault, and judge what is said of it."""
    of, chance = KINDS[kind], np.random.default_rng([seed, *kind.encode()])
    work = drawn(of.family, seed, of.work)
    cured = length(work.world(of.cure(work), None)) / of.shorter
    fault = of.draw(chance, cured)
    ranks = [int(chance.integers(0, work.ranks))] if of.on_rank else None
    if of.ranks_at_fault is not None:
        ranks = list(of.ranks_at_fault(fault))
    world = work.world(fault, ranks)
    run = judged(world)
    recorded = length(world, run)
    cured = length(work.world(of.cure(work), None), run) / of.shorter
    grave = [each.rule for each in run.findings if each.is_grave]
    naming = {*of.rules, *of.named_by}
    said = {each.rule for each in run.findings} if of.is_minor else {*grave, *run.of_verdict}
    known = {*ALONE, *of.rules, *(("straggling_rank",) if of.on_rank else ())}

    @cache
    def truth(rule: str, rank: int | None = None) -> float:
        if rule not in ALONE:
            return 1 - cured / recorded
        return 1 - length(work.world(fault, ranks, rank if rule in OF_RANK else None, **ALONE[rule]), run) / recorded

    errors = [
        (each.rule, each.saved, kept(each.saved, truth(each.rule, each.rank), each.bound))
        for each in run.findings
        if each.saved is not None and each.confidence != "low" and each.rule in known
    ]
    cost = max((truth(rule) for rule in of.rules), default=1 - cured / recorded)
    is_named, is_first = bool(said & naming), bool(grave) and grave[0] in naming
    # What a simulation confirms is another loss of the run, and no false word about the fault
    confirmed = {
        each.rule
        for each in run.findings
        if each.rule in ALONE_IN_HEALTHY
        and each.saved is not None
        and each.saved
        <= APART
        + 1
        - length(
            work.world(fault, ranks, each.rank if each.rule in OF_RANK else None, **ALONE_IN_HEALTHY[each.rule]), run
        )
        / recorded
    }
    stray = sorted({*grave} - {*naming, *of.also, *ALONE, *confirmed, "straggling_rank"})
    stray += [f"{each.rule} promises" for each in run.findings if of.is_once and each.rule in naming and each.saved]
    if of.causes:
        right = [row for row in run.rows if row[0] in (ranks or [None])]
        is_named = any(cause in of.causes for _, cause, *_ in right)
        is_first = is_named and run.rows[0] in right
        errors += [
            (f"rank {rank}", gain, kept(gain, cost, bound)) for rank, _, gain, bound in right if gain is not None
        ]
    if of.causes or of.family not in ("pipeline", "moe"):
        stray += [f"rank {rank}: {cause}" for rank, cause, *_ in run.rows if rank not in (ranks or [None])]
    return Outcome(kind, seed, cost, is_named, is_first, errors, stray, run.text)


def healthy(family: str, seed: int) -> Outcome:
    """Simulate a run without a fault, and judge what is said of it: ``stray`` is what no simulation confirms."""
    work = drawn(family, seed, {})
    world = work.world({}, None)
    run = judged(world)
    recorded = length(world, run)
    stray, errors = [f"rank {rank}: {cause}" for rank, cause, *_ in run.rows], []
    for each in run.findings:
        true = 0.0
        settings = (ALONE | ALONE_IN_HEALTHY).get(each.rule)
        if settings and each.saved is not None:
            rank = each.rank if each.rule in OF_RANK else None
            true = kept(each.saved, 1 - length(work.world({}, None, rank, **settings), run) / recorded, each.bound)
            errors.append((each.rule, each.saved, true))
        if each.is_grave and (each.saved is None or each.saved > true + APART):
            stray.append(f"{each.rule} {100 * (each.saved or 0):.0f} %, true {100 * true:.0f}")
    return Outcome(
        f"healthy {family}", seed, 0.0, is_named=False, is_first=False, errors=errors, stray=stray, text=run.text
    )


def kept(promised: float, true: float, bound: Bound) -> float:
    """The truth of a promise; one that is kept by its bound is true."""
    if bound == "up to":
        return max(promised, true)
    return min(promised, true) if bound == "at least" else true


class Said(Struct, frozen=True):
    """A finding: of which rank (None: there is one), its rule, and what it promises, as a share of a step."""

    rank: int | None
    rule: str
    saved: float | None
    bound: Bound
    confidence: str
    is_grave: bool


class Judged(Struct, frozen=True):
    """What is said of a run: findings of rank 0, and of the rank that the job names, rows of the job's verdict (rank,
    cause, gain as a share, its bound), the rules that verdicts name, and the text."""

    findings: list[Said]
    rows: list[tuple[int | None, str, float | None, Bound]]
    of_verdict: list[str]
    text: str
    first: int  #: the first step that is judged: a slow one may be left out


def judged(world: Any) -> Judged:
    """Diagnose the run as ``augment diagnose`` does."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [f"{folder}/rank{rank.r}.json" for rank in world.ranks]
        for rank, path in zip(world.ranks, paths, strict=True):
            rank.write(path)
        if len(paths) == 1:
            trace = read(paths[0])
            first = int(measure(trace).warm_up or measure(trace).hidden)
            return Judged(list(_findings(trace)), [], sorted(rules_of_verdict(trace)), "", first)
        traces = [read(path) for path in paths]
        contents = [summarize(augment(trace, only=["diagnosis"])) for trace in traces]
        with patch.object(Judgement, "hides_loaders", {}):  # here they keep up, which excuses no promise
            result = answer(contents, [Path(path).name for path in paths])
        findings: list[Said] = []
        for member in {0, *(row.rank for row in result.verdict.rows if row.rank is not None)}:
            in_job = rank_in_job(result, member)
            trace = read(paths[member]).changed(in_job) if in_job is not None else traces[member]
            findings += _findings(trace, member)
        return Judged(findings, _rows(result), _of_job(result), " ".join(result.verdict.text), 0)


def _findings(trace: Any, rank: int | None = None) -> Iterator[Said]:
    for each in diagnose(trace).findings:
        bound: Bound = "up to" if each.found.at_most else "at least" if each.found.seen.at_least else ""
        yield Said(rank, each.rule, each.saved_ratio, bound, each.found.confidence, each.is_grave)


def _of_job(result: Answer) -> list[str]:
    return [row["rule"] for row in job_findings(result)]


def _rows(result: Answer) -> list[tuple[int | None, str, float | None, Bound]]:
    whole = next((row.time_ns for row in getattr(result.outcomes["job_what_if"], "rows", ())), 1)
    gains = [None if row.gain_ns is None else row.gain_ns / whole for row in result.verdict.rows]
    return [
        (row.rank, row.cause, gain, "at least" if row.figures.get("more_work") else "")
        for row, gain in zip(result.verdict.rows, gains, strict=True)
    ]


def length(world: Any, run: Judged | None = None) -> float:
    """The mean length of a step, us, of those that were judged in a run: from the last rank's begin to the last one's
    finish. A step begins with its annotation, but not before earlier work is done; and ends likewise."""
    first = run.first if run is not None else 0

    def edge(rank: Any, moment: float) -> float:
        return max(moment, *(op.end for op in rank.ops if op.ready < moment), 0.0)

    begins, ends, count = [], [], 0
    for rank in world.ranks:
        of_step = {
            (event["ts"], event["ts"] + event["dur"])
            for event in rank.ev
            if isinstance(event, dict) and event["name"].startswith("ProfilerStep#")
        }
        windows = sorted(of_step)[first:]
        begins.append(edge(rank, windows[0][0]))
        ends.append(edge(rank, windows[-1][1]))
        count = len(windows)
    return float(max(ends) - max(begins)) / count


def _safely(task: tuple[str, str, int]) -> Outcome | str:
    what, name, seed = task
    try:
        return outcome(name, seed) if what == "fault" else healthy(name, seed)
    except Exception as error:  # a crash on one run must not hide the others
        return f"{what} {name}, seed {seed}: {type(error).__name__}: {error}"


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=4, help="runs of each kind of fault")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--healthy", type=int, default=100, help="runs without a fault")
    parser.add_argument("--kinds", nargs="*", help="kinds that contain one of these texts")
    parser.add_argument("--quick", action="store_true", help="five kinds, one seed, ten healthy runs")
    parser.add_argument("--verbose", action="store_true", help="each run on a line")
    options = parser.parse_args()
    if not GENERATOR.exists():
        print(f"Not run: {GENERATOR} is absent; it is no part of this repository.")
        return 0
    kinds = [name for name in KINDS if not options.kinds or any(text in name for text in options.kinds)]
    if options.quick:
        kinds, options.seeds, options.healthy = list(_QUICK), 1, 10
    seeds = range(options.first, options.first + options.seeds)
    tasks = [("fault", name, seed) for name in kinds for seed in seeds]
    tasks += [("healthy", HEALTHY[number % len(HEALTHY)], options.first + number) for number in range(options.healthy)]
    with ProcessPoolExecutor(2) as pool:
        made = list(pool.map(_safely, tasks))
    crashes = [each for each in made if isinstance(each, str)]
    outcomes = [each for each in made if isinstance(each, Outcome)]
    if options.verbose:
        for each in outcomes:
            print(_line(each))
    report([each for each in outcomes if each.kind in KINDS], [each for each in outcomes if each.kind not in KINDS])
    print("\n".join(crashes))
    return 1 if crashes else 0


def _line(run: Outcome) -> str:
    promised = ", ".join(f"{name} {100 * saved:.1f}/{100 * true:.1f}" for name, saved, true in run.errors)
    more = f"; also {', '.join(run.stray)}" if run.stray else ""
    sign = "named" if run.is_named else "-"
    return f"{run.kind}, seed {run.seed}: costs {100 * run.cost:.1f} %, {sign}: {promised}{more} {run.text[:200]}"


def report(faults: Sequence[Outcome], sound: Sequence[Outcome]) -> None:
    """Print a line for each kind, what all have in common, and what is said of runs without a fault."""
    of_kind: dict[str, list[Outcome]] = defaultdict(list)
    for run in faults:
        of_kind[run.kind].append(run)
    print(f"{'kind of fault':28} {'named':>7} {'first':>7} {'median':>8} {'worst':>8} points, of")
    asked = hits = 0
    every: list[float] = []
    for kind, runs in of_kind.items():
        matter = [run for run in runs if run.cost >= MATTERS]
        asked, hits = asked + len(matter), hits + sum(run.is_named for run in matter)
        misses = [(100 * (saved - true), name) for run in runs for name, saved, true in run.errors]
        every += [abs(miss) for miss, _ in misses]
        count = f"{sum(run.is_named for run in matter)}/{len(matter)}"
        first = f"{sum(run.is_first for run in matter)}/{len(matter)}"
        text = ""
        if misses:
            worst, name = max(misses, key=lambda miss: abs(miss[0]))
            text = f"{np.median([miss for miss, _ in misses]):+8.1f} {worst:+8.1f} {name}"
        print(f"{kind:28} {count:>7} {first:>7} {text}")
    if faults:
        off = f"{np.median(every or [0]):.1f} points in the median, {max(every or [0]):.1f} at worst"
        print(f"all: {hits} of {asked} named ({100 * hits / max(asked, 1):.1f} %)")
        print(f"promises: {len(every)}, off by {off}")
        stray = [f"{run.kind}, seed {run.seed}: {', '.join(run.stray)}" for run in faults if run.stray]
        print("\n".join([f"speak of something else: {len(stray)}", *stray]))
    if sound:
        wrong = [f"{run.kind}, seed {run.seed}: {', '.join(run.stray)} {run.text[:200]}" for run in sound if run.stray]
        print("\n".join([f"without a fault: {len(wrong)} of {len(sound)} runs have a false finding", *wrong]))
        misses = [(100 * abs(saved - true), name) for run in sound for name, saved, true in run.errors]
        off = f"{np.median([miss for miss, _ in misses] or [0]):.1f} points in the median, at worst"
        print(f"their promises: {len(misses)}, off by {off} {max(misses, default=(0.0, ''))}")


if __name__ == "__main__":
    raise SystemExit(main())
