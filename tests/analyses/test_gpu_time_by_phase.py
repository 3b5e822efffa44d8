from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from augment.analyses import gpu_time_by_phase
from augment.core.findings import Skipped
from augment.facts.gpu.gpu_work import gpu_work
from augment.readers import read
from simulator import JobOptions, simulate
from tables import Event, annotation, call, fwdbwd, kernel, op, python, rows_of, trace_of


def phases_of(*events: Event) -> dict[Any, Any]:
    """The phase of each kernel, told apart by lengths that are powers of two."""
    rows = rows_of(gpu_time_by_phase.analyze(trace_of(*events)), "phase", "gpu_ns")
    return {length: phase for phase, ns in rows for length in (1 << bit for bit in range(20)) if ns & length}


def launched(ts: int, length: int, *, thread: int = 1) -> list[Event]:
    calls = call("cudaLaunchKernel", ts, ts + 1, thread=thread, correlation=ts)
    return [calls, kernel("k", ts + 1000, ts + 1000 + length, stream=length, correlation=ts)]


def test_the_parts_of_a_step() -> None:
    assert phases_of(
        *launched(1, 1),  # the batch
        op("aten::mm", 10, 20), fwdbwd("s", 1, 10), *launched(11, 2),
        *launched(21, 4),  # no arrow leads from here, but it is between two that have one
        op("aten::relu", 30, 40), fwdbwd("s", 2, 30), *launched(31, 8),
        *launched(45, 16),  # the loss is printed
        op("autograd::engine::evaluate_function: ReluBackward0", 100, 120, thread=2), fwdbwd("f", 2, 100, thread=2),
        *launched(105, 32, thread=2),
        op("autograd::engine::evaluate_function: MmBackward0", 122, 125, thread=2), fwdbwd("f", 1, 122, thread=2),
        *launched(130, 64, thread=2),  # a hook of the engine's thread
        annotation("Optimizer.step#SGD.step", 200, 300), op("aten::mm", 210, 230), *launched(211, 128),
        kernel("unknown", 5000, 5256),
    ) == {
        1: "other", 2: "forward", 4: "forward", 8: "forward", 16: "other",
        32: "backward", 64: "backward", 128: "optimizer", 256: "unknown",
    }  # fmt: skip


def test_a_backward_pass_ends_a_forward_pass() -> None:
    events = []
    for at in (0, 1000):
        events += [op("aten::mm", at + 10, at + 20), fwdbwd("s", at, at + 10),
                   op("MmBackward0", at + 100, at + 120), fwdbwd("f", at, at + 100)]  # fmt: skip
    assert phases_of(*events, *launched(105, 1), *launched(500, 2)) == {1: "backward", 2: "other"}


@pytest.mark.parametrize(("events", "phase"), [
    ([python("nn.Module: Linear_0", 0, 50)], "forward"),
    ([annotation("DistributedDataParallel.forward", 0, 50)], "forward"),
    ([annotation("## backward ##", 0, 50)], "backward"),
    ([op("AddmmBackward0", 0, 50), python("nn.Module: Linear_0", 5, 45)], "backward"),
    ([op("Optimizer.step#SGD.step", 0, 50)], "optimizer"),
])  # fmt: skip
def test_what_tells_a_phase(events: list[Event], phase: str) -> None:
    assert phases_of(*events, *launched(10, 1), *launched(60, 2)) == {1: phase, 2: "other"}


def test_where_nothing_tells_it_is_skipped() -> None:
    assert isinstance(gpu_time_by_phase.analyze(trace_of(op("aten::mm", 0, 50), *launched(10, 1))), Skipped)


@pytest.mark.parametrize("stacks", [False, True])
def test_a_simulated_job_by_a_plain_loop(tmp_path: Path, stacks: bool) -> None:
    options = JobOptions(ranks=1, steps=3, layers=2, stacks=stacks)
    ((path, _),) = simulate(options, tmp_path)
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    timed = [event for event in events if event["ph"] == "X"]
    known: Counter[str] = Counter()
    calls = {each["args"]["correlation"]: each for each in timed if each["cat"] in ("cuda_runtime", "cuda_driver")}
    arrows = [event["ts"] for event in events if event["ph"] == "s" and event["cat"] == "fwdbwd"]
    steps = [each for each in timed if each["name"].startswith("ProfilerStep") and each["cat"] == "user_annotation"]
    optimizer = [row for row in timed if row["name"].startswith("Optimizer.step") and row["cat"] == "user_annotation"]
    for work in (each for each in timed if each["cat"] in ("kernel", "gpu_memcpy", "gpu_memset")):
        launch = calls[work["args"]["correlation"]]
        (part,) = [step for step in steps if step["ts"] <= launch["ts"] < step["ts"] + step["dur"]]
        first = min(ts for ts in arrows if ts >= part["ts"])
        if launch["tid"] != part["tid"]:
            phase = "backward"
        elif any(each["ts"] <= launch["ts"] < each["ts"] + each["dur"] for each in optimizer):
            phase = "optimizer"
        elif launch["ts"] < first or "Memcpy DtoH" in work["name"]:
            phase = "other"
        else:
            phase = "forward"
        known[phase] += round(work["dur"] * 1000)
    trace = read(str(path))
    outcome = gpu_time_by_phase.analyze(trace)
    assert dict(rows_of(outcome, "phase", "gpu_ns")) == known
    work_ns = int((gpu_work(trace).end - gpu_work(trace).ts).sum())
    assert sum(known.values()) == work_ns
    assert sum(ratio for (ratio,) in rows_of(outcome, "gpu_ratio")) == pytest.approx(1)
