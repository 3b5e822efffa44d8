"""Copies of HIP that wait for themselves, and for all before them: simulated, by clocks that differ, recorded."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from simulated_jobs import changed

from augment.diagnosis.judging import measure
from augment.diagnosis.rule import Found
from augment.diagnosis.rules import synchronizing_calls
from augment.facts.waits.sync_dependencies import synchronizations
from augment.readers import read
from metamorphic import GPU_WORK, Document, load, real_trace, save
from simulator import simulate

WAITING, RETURNING = "hipMemcpyWithStream", "hipMemcpyAsync"
JOB = changed(ranks=1, steps=4, layers=3, collectives="none", work=0.15, faults=("items",))


def of_hip(document: Document, name: str, ahead_us: int = 0) -> Document:
    """The same on ROCm: each copy and the call that waits for it are one call ``name``; the device's clock is ahead."""
    rows = sorted((each for each in document["traceEvents"] if "ts" in each), key=lambda each: each["ts"])
    calls = [each for each in rows if each.get("cat") == "cuda_runtime"]
    waits = [each for each in calls if each["name"] == "cudaStreamSynchronize"]
    joined: dict[int, Decimal] = {}
    for wait in waits:
        copying = max((each for each in calls if each["name"] == "cudaMemcpyAsync" and each["ts"] < wait["ts"]),
                      key=lambda each: each["ts"])  # fmt: skip
        joined[id(copying)] = wait["ts"] + wait["dur"]
    out: list[dict[str, Any]] = []
    for each in document["traceEvents"]:
        if id(each) in joined:
            out.append(each | {"name": name, "dur": joined[id(each)] - each["ts"], "cat": "hip_runtime"})
        elif each.get("cat") in GPU_WORK:
            out.append(each | {"ts": each["ts"] + ahead_us})
        elif not any(each is wait for wait in waits):
            out.append(each)
    return document | {"traceEvents": out}


def test_a_copy_that_waits_costs_as_much_as_a_call_that_waits_for_it(tmp_path: Path) -> None:
    """Metamorphic: the simulated job, by two calls or by one, by one clock or by two. One that says that it does not
    wait is no wait if it returned before the copy was done."""
    document = load(simulate(JOB, tmp_path / "job")[0][0])
    waiting = {"cuda": document} | {f"hip{us}": of_hip(document, WAITING, us) for us in (0, 4, 9)}
    saved = {}
    for name, each in waiting.items():
        trace = read(str(save(each, tmp_path / f"{name}.json")))
        answer = synchronizing_calls.check(trace)
        assert isinstance(answer, Found), name
        saved[name] = measure(trace).ratio(answer.saved_ns or 0)
    assert all(each == pytest.approx(saved["cuda"], abs=0.02) for each in saved.values()), saved
    returning = synchronizing_calls.check(read(str(save(of_hip(document, RETURNING, 30), tmp_path / "r.json"))))
    assert not isinstance(returning, Found)


@pytest.mark.parametrize("name", [
    "mi300_tracelens/ddp_resnet18_no_pool.json.gz",
    "pairs_h100_vs_mi300_tracelens/bert_small_mi300.json.gz",
    "pairs_h100_vs_mi300_tracelens/qwen1.5_0.5b_mi300.json.gz",
])  # fmt: skip
def test_recorded_copies_that_wait(name: str) -> None:
    """Plainly: each call by that name, whose copy ends by 20 µs after it, waited."""
    path = real_trace(name)
    rows = [each for each in load(path)["traceEvents"] if each.get("ph") == "X"]
    copies = {each["args"].get("correlation"): each for each in rows if each.get("cat") == "gpu_memcpy"}
    expected, base = set(), min(int(each["ts"] * 1000) for each in load(path)["traceEvents"] if "ts" in each)
    for each in rows:
        copied = copies.get(each["args"].get("correlation")) if each["name"] == WAITING else None
        if copied is not None and each["ts"] <= copied["ts"]:
            if copied["ts"] + copied["dur"] <= each["ts"] + each["dur"] + 20:
                expected.add(int(each["ts"] * 1000) - base)
    trace = read(str(path))
    told_waits = {int(ts) - int(trace.events.ts[0]) for ts in synchronizations(trace).start.tolist()}
    assert expected
    assert expected <= told_waits
