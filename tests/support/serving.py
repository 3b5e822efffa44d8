"""Simulated serving with known truth: an engine that prefills and decodes, with graphs, a scheduler, and noise.

A step: the scheduler (Python frames), the annotation, copies of inputs, a graph (or, eager, a launch for each kernel),
sampling, the wait for the tokens, the answer. Lengths vary by chance, as those of a server do.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from augment.core.trace import Trace
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


def serve(how: Serving) -> Trace:
    """The trace of a rank."""
    chance = random.Random(how.seed)
    events: list[Event] = []
    host, device, correlation = 0, 0, 0
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
        scheduled = lasting(how.schedule_ns)
        events.append(python("sched/scheduler.py(210): schedule", host, host + scheduled))
        host += scheduled + 2 * US
        begin = host
        context += how.requests
        requests = how.requests - chance.randrange(3) if how.graph_requests == 0 else how.requests
        if how.graph_requests:
            name = f"decode[bs={requests}/{how.graph_requests} tok={requests} d={requests}]"
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
        events.append(call("cudaEventSynchronize", host, max(host + 2 * US, device + 3 * US), correlation=correlation))
        if how.is_async and number:  # it waits for the step before: the device has one more
            events.pop()
            host = max(host, device - lasting(how.layer_ns * LAYERS * 0.8))
        else:
            host = max(host + 2 * US, device + 3 * US) + 2 * US
        answered = lasting(how.answer_ns)
        events.append(python("engine/output_processor.py(400): process_outputs", host, host + answered))
        host += answered + 2 * US
    events[loop] = python("engine/core.py(300): run_busy_loop", 0, host)
    return trace_of(*events)
