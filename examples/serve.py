"""Write the Kineto trace of a simulated server of a language model, with the step names of vLLM.

    python examples/serve.py -o FILE.json.gz [--async-scheduling] [--steps 40] [--requests 32] [--seed 0]

A step schedules, launches one graph (12 layers of attention and products), samples, waits for the tokens, and answers.
With ``--async-scheduling`` the host prepares the next step while the device works. The same options give the same
bytes.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
from pathlib import Path
from typing import Any

PID, THREAD, STREAM, LAYERS = 4200, 4200, 7, 12
KERNELS = (("unified_attention_kernel", 80.0), ("nvjet_qkv_gemm", 120.0), ("nvjet_mlp_gemm", 200.0))  # µs
H100 = {"id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85_899_345_920, "computeMajor": 9,
        "computeMinor": 0, "numSms": 132}  # fmt: skip


def serve(steps: int, requests: int, *, ahead: bool, seed: int) -> list[dict[str, Any]]:
    """The events, times in µs."""
    chance = random.Random(seed)
    events: list[dict[str, Any]] = []
    host = device = before = 0.0
    correlation = 0

    def add(category: str, name: str, ts: float, dur: float, tid: int = THREAD, **args: object) -> None:
        pid = 0 if tid == STREAM else PID
        times = {"ts": round(ts, 3), "dur": round(dur, 3)}
        events.append({"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, **times, "args": args})

    def run(name: str, start: float, dur: float) -> float:
        add("kernel", name, start, dur, STREAM, device=0, stream=STREAM, correlation=correlation)
        return start + dur

    def lasting(length: float) -> float:
        return length * chance.lognormvariate(0, 0.05)

    for _ in range(steps):
        scheduled = lasting(900)
        add("python_function", "sched/scheduler.py(210): schedule", host, scheduled)
        begin = host = host + scheduled + 2
        correlation += 1
        add("cuda_runtime", "cudaGraphLaunch", host + 20, 60, correlation=correlation)
        for name, length in KERNELS * LAYERS:
            device = run(name, max(device + 1, host + 50), lasting(length))
        host += 90
        add("user_annotation", f"execute_context_0(0)_generation_{requests}({requests})", begin, host - begin)
        add("python_function", "v1/sample/sampler.py(90): forward", host + 5, 30)
        correlation += 1
        add("cuda_runtime", "cudaLaunchKernel", host + 15, 5, correlation=correlation)
        device = run("argmax_kernel", max(device + 1, host + 22), 20)
        host += 37
        ready, before = (before if ahead else device), device  # tokens of the step before, where it schedules ahead
        answered, tokens = lasting(600), max(host + 2, ready + 3)
        correlation += 1
        add("cuda_runtime", "cudaEventSynchronize", host, tokens - host, correlation=correlation)
        add("python_function", "engine/output_processor.py(400): process_outputs", tokens + 2, answered)
        host = tokens + answered + 4
    add("python_function", "engine/core.py(300): run_busy_loop", 0, host + 1)
    return sorted(events, key=lambda event: (event["ts"], -event["dur"]))


def main() -> None:
    """Write the file that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", required=True, type=Path, metavar="FILE")
    parser.add_argument("--async-scheduling", action="store_true")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    events = serve(given.steps, given.requests, ahead=given.async_scheduling, seed=given.seed)
    text = json.dumps({"schemaVersion": 1, "deviceProperties": [H100], "traceEvents": events})
    given.output.write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    main()
