from __future__ import annotations

import gzip
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from augment.analyses import operator_breakdown
from augment.core.trace import Category, Track
from augment.facts.gpu.gpu_work import gpu_work
from augment.readers import read
from simulator import JobOptions, simulate
from tables import Event, call, kernel, op, rows_of, trace_of

COLUMNS = ("operator", "input_shapes", "count", "cpu_ns", "self_cpu_ns", "gpu_ns", "self_gpu_ns", "kernel_count")


def shaped(name: str, ts: int, end: int, dims: Any) -> Event:
    return Event(Category.CPU_OP, name, ts, end, Track(0, 100, 1), args={"Input Dims": dims})


def operators_of(*events: Event) -> list[tuple[Any, ...]]:
    return rows_of(operator_breakdown.analyze(trace_of(*events)), *COLUMNS)


def test_times_of_an_operator_and_of_those_in_it() -> None:
    assert operators_of(
        op("linear", 0, 100), op("addmm", 10, 50), op("addmm", 60, 80), op("other", 5, 95, thread=2),
        call("l", 20, 25, correlation=1), kernel("a", 200, 210, correlation=1),
        call("l", 85, 86, correlation=2), kernel("b", 210, 215, correlation=2),
        call("l", 300, 301, correlation=3), kernel("c", 310, 312, correlation=3), kernel("unknown", 400, 401),
    ) == [
        ("addmm", None, 2, 60, 60, 10, 10, 1),
        ("linear", None, 1, 100, 40, 15, 5, 1),
        ("other", None, 1, 90, 90, 0, 0, 0),
        (None, None, 0, 0, 0, 3, 3, 2),
    ]  # fmt: skip


def test_shapes_tell_operators_apart() -> None:
    assert operators_of(
        shaped("mm", 0, 10, [[2, 3], [3, 4]]), shaped("mm", 10, 25, [[2, 3], [3, 4]]), shaped("mm", 30, 31, [[], []]),
        op("mm", 50, 52), kernel("k", 0, 1),
    ) == [
        ("mm", "[[2, 3], [3, 4]]", 2, 25, 25, 0, 0, 0),
        ("mm", None, 1, 2, 2, 0, 0, 0),
        ("mm", "[[], []]", 1, 1, 1, 0, 0, 0),
        (None, None, 0, 0, 0, 1, 1, 1),
    ]  # fmt: skip


def test_without_a_gpu_nothing_is_said_of_it() -> None:
    assert operators_of(op("mm", 0, 10)) == [("mm", None, 1, 10, 10, None, None, None)]


def test_a_simulated_job_by_a_plain_loop(tmp_path: Path) -> None:
    ((path, _),) = simulate(JobOptions(ranks=1, steps=2, layers=2, stacks=True), tmp_path)
    timed = [event for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"] if event["ph"] == "X"]
    ops = [each for each in timed if each["cat"] == "cpu_op"]
    calls = {each["args"]["correlation"]: each for each in timed if each["cat"] in ("cuda_runtime", "cuda_driver")}

    def around(inner: dict[str, Any]) -> list[dict[str, Any]]:
        """From outer to inner."""
        rows = [each for each in ops if each["tid"] == inner["tid"] and each is not inner
                 and each["ts"] <= inner["ts"] < each["ts"] + each["dur"]]  # fmt: skip
        return sorted(rows, key=lambda item: item["ts"])

    def key(value: dict[str, Any]) -> tuple[str, str | None]:
        dims = value["args"].get("Input Dims")
        return value["name"], None if dims is None else json.dumps(dims)

    known: dict[Any, list[int]] = defaultdict(lambda: [0] * 6)
    for each in ops:
        ns = round(each["dur"] * 1000)
        known[key(each)] = [a + b for a, b in zip(known[key(each)], (1, ns, ns, 0, 0, 0), strict=True)]
        for outer in around(each)[-1:]:
            known[key(outer)][2] -= ns
    for work in (each for each in timed if each["cat"] in ("kernel", "gpu_memcpy", "gpu_memset")):
        ns, outers = round(work["dur"] * 1000), around(calls[work["args"]["correlation"]])
        for outer in outers:
            known[key(outer)][3] += ns
        known[key(outers[-1])][4] += ns
        known[key(outers[-1])][5] += 1
    trace = read(str(path))
    outcome = operator_breakdown.analyze(trace)
    assert {row[:2]: list(row[2:]) for row in rows_of(outcome, *COLUMNS)} == known
    work_ns = int((gpu_work(trace).end - gpu_work(trace).ts).sum())
    assert sum(row.self_gpu_ns for row in outcome.rows) == work_ns
