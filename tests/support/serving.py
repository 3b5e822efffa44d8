"""Simulated serving with known truth: an engine that prefills and decodes, with graphs, a scheduler, and noise.

A step: the scheduler (Python frames), the annotation, copies of inputs, a graph (or, eager, a launch for each kernel),
sampling, the wait for the tokens, the answer. Lengths vary by chance, as those of a server do.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import traces
from augment import Trace, augment, read
from augment.core import Category
from augment.diagnosis.ranking import Finding, diagnose
from augment.job.answer import answer
from augment.job.ranks import summarize
from tables import Event, annotation, call, copy, kernel, op, python, trace_of

US, MS = 1_000, 1_000_000
LAYERS = 12


@dataclass(frozen=True)
class Serving:
    """A server; times in ns."""

    seed: int = 0
    steps: int = 40
    requests: int = 32
    layer_ns: int = 400 * US  #: of a layer of a decode
    schedule_ns: int = 60 * US
    answer_ns: int = 50 * US
    is_async: bool = False  #: whether the host schedules while the device works
    prefill_every: int = 0  #: a step that prefills alone, so often
    prefill_times: float = 1.0  #: as long as a decode
    eager: Callable[[int], bool] = field(default=lambda _: False)
    eager_launch_ns: int = 150 * US  #: of the host for a kernel of an eager step, in Python
    graph_requests: int = 0  #: batch of the graph, told by ATOM's names; 0: vLLM's names
    all_reduce_ns: int = 0  #: after each layer
    noise: float = 0.05
    pauses: tuple[int, ...] = ()  #: steps before which the server has no request
    pause_ns: int = 2_000 * MS
    hiccups: tuple[int, ...] = ()  #: steps in which the host does something else for ten milliseconds
    compiles: tuple[int, ...] = ()  #: steps that compile code for thirty milliseconds
    captures: tuple[int, ...] = ()  #: steps that capture a graph for thirty milliseconds
    has_stacks: bool = True
    drafts: int = 0  #: tokens that a draft proposes for each sequence; all steps are decodes with sums in their names
    kept_chance: float = 0.8  #: of each drafted token, if those before it are kept
    is_mixed: bool = False  #: whether prompts are computed beside decodes, in steps of both


def serve(how: Serving) -> Trace:
    """The trace of a rank."""
    chance = random.Random(how.seed)
    events: list[Event] = []
    host, device, before, correlation = 0, 0, 0, 0
    context = how.requests * 1_000

    def lasting(ns: float) -> int:
        return max(1_000, int(ns * chance.lognormvariate(0, how.noise)))

    def launched(name: str, begin: int, length: int, launch: str = "cudaLaunchKernel") -> int:
        nonlocal correlation, device
        correlation += 1
        events.append(call(launch, begin, begin + 4 * US, correlation=correlation))
        start = max(device + 1 * US, begin + 6 * US)
        device = start + length
        events.append(kernel(name, start, device, correlation=correlation))
        return begin + 5 * US

    events.append(python("engine/core.py(300): run_busy_loop", 0, 1))
    loop = len(events) - 1
    for number in range(how.steps):
        prefills = bool(how.prefill_every) and number % how.prefill_every == how.prefill_every - 1
        eager = how.eager(number) or prefills
        if number in how.pauses:
            host = max(host, device) + how.pause_ns
            events.append(python("engine/core.py(310): _process_input_queue", host - how.pause_ns, host))
        scheduled = lasting(how.schedule_ns) + 10 * MS * (number in how.hiccups)
        events.append(python("sched/scheduler.py(210): schedule", host, host + scheduled))
        host += scheduled + 2 * US
        begin = host
        if number in how.captures:
            events.append(call("cudaStreamBeginCapture", host, host + 5 * US, correlation=-1 - number))
            host += 30 * MS
            events.append(call("cudaStreamEndCapture", host, host + 5 * US, correlation=-10_000 - number))
            host += 6 * US
        if number in how.compiles:
            events.append(op("backend_compile (dynamo_timed)", host, host + 30 * MS))
            host += 30 * MS + 6 * US
        context += how.requests * (not how.drafts)
        requests = how.requests - chance.randrange(3) if how.graph_requests == 0 else how.requests
        if how.graph_requests:
            name = f"decode[bs={requests}/{how.graph_requests} tok={requests} d={requests}]"
        elif how.drafts:
            requests, tokens = how.requests, how.requests * (how.drafts + 1)
            name = (
                f"execute_{tokens}_context_0(sq0sk0sqsq0sqsk0)_generation_{requests}"
                f"(sq{tokens}sk{context + tokens}sqsq{tokens * (how.drafts + 1)}sqsk{(how.drafts + 1) * context})"
            )
            for _ in range(requests):
                context += 1
                for _ in range(how.drafts):
                    if chance.random() > how.kept_chance:
                        break
                    context += 1
        elif prefills and how.is_mixed:
            name = f"execute_context_1(512)_generation_{requests}({requests})"
        elif prefills:
            name = "execute_context_1(4096)_generation_0(0)"
        else:
            name = f"execute_context_0(0)_generation_{requests}({requests})"
        at = host + 10 * US
        correlation += 1
        events.append(op("aten::copy_", at, at + 12 * US))
        events.append(call("cudaMemcpyAsync", at + 2 * US, at + 8 * US, correlation=correlation))
        device = max(device + 1 * US, at + 9 * US) + 3 * US
        events.append(copy("Memcpy HtoD (Pinned -> Device)", device - 3 * US, device, 4_096, correlation=correlation))
        at += 20 * US
        times = how.prefill_times if prefills else 1.0
        if not eager:
            correlation += 1
            events.append(call("cudaGraphLaunch", at, at + 60 * US, correlation=correlation))
        for _ in range(LAYERS):
            for what, share in (("attention_kernel", 0.2), ("nvjet_gemm", 0.5), ("nvjet_gemm", 0.3)):
                length = lasting(share * how.layer_ns * times)
                if eager:
                    spent = lasting(how.eager_launch_ns if not prefills else 15 * US)
                    events.append(op("aten::mm", at, at + spent))
                    at = launched(what, at + spent - 6 * US, length) + 2 * US
                else:
                    start = max(device + 1 * US, at + 30 * US)
                    device = start + length
                    events.append(kernel(what, start, device, correlation=correlation))
            if how.all_reduce_ns:
                length, start = lasting(how.all_reduce_ns), device + 1 * US
                device = start + length
                if eager:
                    correlation += 1
                    events.append(call("cudaLaunchKernel", at, at + 4 * US, correlation=correlation))
                events.append(
                    kernel("vllm::cross_device_reduce_1stage<bf16, 8>", start, device, correlation=correlation)
                )
        at += 70 * US
        host = at
        events.append(annotation(name, begin, host))
        host += 5 * US
        events.append(python("v1/sample/sampler.py(90): forward", host, host + 30 * US))
        launched("argmax_kernel", host + 10 * US, 20 * US)
        host += 32 * US
        correlation += 1
        ready, before = (before if how.is_async else device), device  # of the step before, where it schedules ahead
        end = max(host + 2 * US, ready + 3 * US)
        events.append(call("cudaEventSynchronize", host, end, correlation=correlation))
        host = end + 2 * US
        answered = lasting(how.answer_ns)
        events.append(python("engine/output_processor.py(400): process_outputs", host, host + answered))
        host += answered + 2 * US
    events[loop] = python("engine/core.py(300): run_busy_loop", 0, host)
    kept = [each for each in events if how.has_stacks or each.category != Category.PYTHON_FUNCTION]
    return trace_of(*kept)


# Servers with known truth: healthy ones, and each fault alone, by chance within what servers are like.

RULES = (
    "prefill_stalls", "eager_decodes", "graph_padding", "step_gaps", "exposed_communication", "rejected_drafts",
)  # fmt: skip


def healthy(seed: int) -> Serving:
    """A server that schedules ahead, prefills little and in chunks, and whose graphs fit. It may have no requests for
    a while, or stop once for something else."""
    chance = random.Random(seed)
    layer = chance.randrange(250, 900) * US
    drafts = chance.choice((0, 0, 0, 1, 3))
    return Serving(
        seed=seed,
        steps=chance.randrange(24, 60),
        requests=chance.randrange(4, 200),
        layer_ns=layer,
        schedule_ns=chance.randrange(10, 60) * US,
        answer_ns=chance.randrange(10, 60) * US,
        is_async=True,
        prefill_every=0 if drafts else chance.choice((12, 20, 0)),
        prefill_times=chance.uniform(1.1, 2.0),
        noise=chance.uniform(0.01, 0.15),
        all_reduce_ns=chance.choice((0, 0, layer // 30)),
        pauses=tuple(chance.sample(range(5, 20), chance.choice((0, 0, 1, 2)))),
        hiccups=tuple(chance.sample(range(2, 20), chance.choice((0, 0, 1)))),
        has_stacks=chance.random() < 0.5,
        is_mixed=chance.random() < 0.5,
        drafts=drafts,
        kept_chance=chance.uniform(0.5, 0.9),
    )


def with_fault(rule: str, seed: int) -> Serving:
    """The same with the fault that ``rule`` is about."""
    server, chance = healthy(seed), random.Random(-seed - 1)
    if rule == "prefill_stalls":
        return replace(server, prefill_every=chance.randrange(4, 9), prefill_times=chance.uniform(4.5, 12), drafts=0)
    if rule == "eager_decodes":
        every = chance.randrange(2, 6)
        return replace(
            server,
            prefill_every=0,
            drafts=0,
            layer_ns=chance.randrange(60, 150) * US,
            eager=lambda number: number % every == 0,
            eager_launch_ns=chance.randrange(120, 300) * US,
        )
    if rule == "graph_padding":
        padded = int(server.requests * chance.uniform(1.45, 3)) + 1
        return replace(server, prefill_every=0, drafts=0, graph_requests=padded)
    if rule == "exposed_communication":
        return replace(server, all_reduce_ns=int(server.layer_ns * chance.uniform(0.15, 0.6)))
    if rule == "rejected_drafts":
        drafts = chance.randrange(2, 6)
        return replace(server, prefill_every=0, drafts=drafts, kept_chance=chance.uniform(0.02, 0.25))
    return replace(server, is_async=False, schedule_ns=int(server.layer_ns * LAYERS * chance.uniform(0.08, 0.5)))


def is_found(how: Serving) -> dict[str, str]:
    """The rules of serving that fire, and how certain they are."""
    return {each.rule: each.found.confidence for each in diagnose(serve(how)).findings if counts(each)}


def counts(finding: Finding) -> bool:
    """Whether a finding is one of a rule of serving. Engines of several devices communicate: only much of it counts."""
    if finding.rule == "exposed_communication":
        return finding.is_grave
    return finding.rule in RULES and finding.found.confidence != "low"


# Ranks that share experts: each layer dispatches tokens, computes the experts of its tokens, and combines.


def serve_experts(folder: Path, seed: int, hot: int | None, *, ranks: int = 4, device: bool = False) -> list[Path]:
    """The traces of the ranks. The experts of rank ``hot`` have more tokens than those of the others; with ``device``
    all its kernels take longer instead."""
    chance = random.Random(seed)
    more = chance.uniform(1.3, 2.2)
    layers, steps = chance.randrange(3, 7), chance.randrange(6, 10)
    attention, experts, moving = (chance.uniform(low, high) for low, high in ((60, 150), (150, 400), (15, 40)))
    events: list[list[traces.Event]] = [[] for _ in range(ranks)]
    now, number, sequence = 1_000.0, 0, 0
    group = {"Process Group Name": "7", "Process Group Description": "EP", "Process Group Ranks": str([*range(ranks)])}

    def run(rank: int, name: str, at: float, length: float, **args: object) -> None:
        nonlocal number
        number += 1
        events[rank].append(traces.launch("cudaLaunchKernel", at - 40, 3, correlation=number))
        made = traces.kernel(name, at, length, correlation=number)
        made["args"] |= args
        events[rank].append(made)

    for _ in range(steps):
        begun = now
        ends = [now] * ranks
        for _ in range(layers):
            arrived = []
            for rank in range(ranks):
                slow = more if device and rank == hot else 1.0
                length = attention * slow * chance.lognormvariate(0, 0.03)
                run(rank, "flash_fwd_splitkv_kernel", ends[rank], length)
                arrived.append(ends[rank] + length + 1)
            for half in ("dispatch", "combine"):
                sequence += 1
                done = max(arrived) + moving
                for rank in range(ranks):
                    args = {"Collective name": "all_to_allv", "In msg nelems": 4096, "Out msg nelems": 4096,
                            "Group size": ranks, "dtype": "BFloat16", "Seq": sequence, **group}  # fmt: skip
                    run(rank, "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", arrived[rank],
                        done - arrived[rank], **args)  # fmt: skip
                    if half == "dispatch":
                        longer = more if rank == hot else 1.0
                        length = experts * longer * chance.lognormvariate(0, 0.03)
                        run(rank, "fused_moe_kernel", done + 1, length)
                        arrived[rank] = done + 2 + length
                    else:
                        ends[rank] = done + 1
        now = max(ends) + 20
        for rank in range(ranks):
            name = f"step[DECODE bs={chance.randrange(60, 65)}]"
            events[rank].append(
                traces.event("user_annotation", name, begun - 60, now - begun - 1, traces.HOST, traces.THREAD)
            )
    paths = [folder / f"TP-{rank}.trace.json.gz" for rank in range(ranks)]
    for rank, path in enumerate(paths):
        about = {"rank": rank, "world_size": ranks}
        traces.write_trace(path, *events[rank], distributedInfo=about)
    return paths


def told_of_experts(paths: Sequence[Path]) -> list[tuple[int | None, bool]]:
    """The ranks that hold the others up, and whether their experts alone are said to."""
    contents = [summarize(augment(read(str(path)), only=["kernel_breakdown", "diagnosis"])) for path in paths]
    rows = answer(contents, [path.name for path in paths]).verdict.rows
    return [(row.rank, bool(row.figures.get("hot_experts"))) for row in rows]
