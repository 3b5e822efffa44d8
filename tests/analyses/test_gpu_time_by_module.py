from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

from augment.analyses import gpu_time_by_module
from augment.core.findings import Skipped
from augment.readers import read
from simulator import JobOptions, simulate
from tables import Event, call, fwdbwd, kernel, op, python, rows_of, trace_of

COLUMNS = ("module", "call_count", "kernel_count", "gpu_ns", "backward_gpu_ns", "self_gpu_ns")


def launched(ts: int, length: int, *, thread: int = 1) -> list[Event]:
    calls = call("cudaLaunchKernel", ts, ts + 1, thread=thread, correlation=ts)
    return [calls, kernel("k", ts + 1000, ts + 1000 + length, stream=length, correlation=ts)]


def modules_of(*events: Event) -> list[tuple[Any, ...]]:
    return rows_of(gpu_time_by_module.analyze(trace_of(*events)), *COLUMNS)


def test_modules_within_modules() -> None:
    assert modules_of(
        python("main", 0, 500),
        python("nn.Module: Net_0", 0, 100), *launched(1, 1),
        python("nn.Module: Linear_0", 10, 20), *launched(12, 2),
        python("nn.Module: Linear_0", 30, 40), python("linear.py(1): forward", 31, 39), *launched(32, 4),
        python("nn.Module: Linear_0", 200, 220), *launched(202, 8),
        *launched(300, 16),
    ) == [
        ("Linear_0", 1, 1, 8, 0, 8),
        ("Net_0", 1, 3, 7, 0, 1),
        ("Net_0/Linear_0", 2, 2, 6, 0, 6),
        (None, 0, 1, 16, 0, 16),
    ]  # fmt: skip


def test_the_backward_pass_belongs_to_the_module_of_the_forward_pass() -> None:
    events = [
        python("nn.Module: Net_0", 0, 100), python("nn.Module: Linear_0", 10, 50),
        op("aten::addmm", 20, 40), fwdbwd("s", 1, 20), *launched(22, 1),
        op("AddmmBackward0", 200, 300, thread=2), fwdbwd("f", 1, 200, thread=2), *launched(210, 2, thread=2),
    ]  # fmt: skip
    assert modules_of(*events) == [("Net_0", 1, 2, 3, 2, 0), ("Net_0/Linear_0", 1, 2, 3, 2, 3)]
    again = [
        python("nn.Module: Again_0", 220, 290, thread=2),
        *launched(230, 4, thread=2),
    ]  # recomputed in the backward
    assert modules_of(*events, *again)[0] == ("Again_0", 1, 1, 4, 0, 4)
    around = [python("nn.Module: Trainer_0", 150, 400, thread=2)]  # calls backward itself
    assert modules_of(*events, *around) == modules_of(*events)


def test_without_modules_or_work_in_them_it_is_skipped() -> None:
    assert isinstance(gpu_time_by_module.analyze(trace_of(*launched(1, 1))), Skipped)
    empty = trace_of(python("nn.Module: Net_0", 100, 110), *launched(1, 1))
    assert isinstance(gpu_time_by_module.analyze(empty), Skipped)


def test_a_simulated_job_by_a_plain_loop(tmp_path: Path) -> None:
    ((path, _),) = simulate(JobOptions(ranks=1, steps=2, layers=2, stacks=True), tmp_path)
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    timed = [event for event in events if event["ph"] == "X"]
    frames = [each for each in timed if each["name"].startswith("nn.Module: ")]
    calls = {each["args"]["correlation"]: each for each in timed if each["cat"] in ("cuda_runtime", "cuda_driver")}
    flows = [event for event in events if event.get("cat") == "fwdbwd"]
    starts = {flow["id"]: flow for flow in flows if flow["ph"] == "s"}
    targets = [(flow, starts[flow["id"]]) for flow in flows if flow["ph"] == "f"]
    ops = {(each["tid"], each["ts"]): each for each in timed if each["cat"] == "cpu_op"}

    def around(first: dict[str, Any], other: dict[str, Any]) -> bool:
        return bool(first["tid"] == other["tid"] and first["ts"] <= other["ts"] < first["ts"] + first["dur"])

    inclusive: Counter[str | None] = Counter()
    exclusive: Counter[str | None] = Counter()
    for work in (each for each in timed if each["cat"] in ("kernel", "gpu_memcpy", "gpu_memset")):
        at = calls[work["args"]["correlation"]]
        at = next((start for end, start in targets if around(ops[end["tid"], end["ts"]], at)), at)
        outer_first = sorted((frame for frame in frames if around(frame, at)), key=lambda item: item["ts"])
        names = [each["name"].removeprefix("nn.Module: ") for each in outer_first]
        paths = ["/".join(names[: count + 1]) for count in range(len(names))]
        ns = round(work["dur"] * 1000)
        exclusive[paths[-1] if paths else None] += ns
        inclusive.update(dict.fromkeys(paths or [None], ns))
    outcome = gpu_time_by_module.analyze(read(str(path)))
    assert {row.module: row.gpu_ns for row in outcome.rows} == inclusive
    assert {row.module: row.self_gpu_ns for row in outcome.rows if row.self_gpu_ns} == exclusive
    assert sum(row.backward_gpu_ns for row in outcome.rows) > 0
    assert any("/" in (row.module or "") for row in outcome.rows)
