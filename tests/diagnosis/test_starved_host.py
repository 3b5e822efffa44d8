"""A host that stands still in whatever it happens to do gets no CPU; one that stands still in one thing does that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from simulated_jobs import changed

from augment.core.trace import Trace
from augment.diagnosis.judging import measure
from augment.diagnosis.ranking import diagnose
from augment.diagnosis.rule import Found
from augment.diagnosis.rules import starved_host
from augment.readers import read
from metamorphic import CALLS, GPU_WORK, REAL, Document, load, real_trace, save
from said import title_of
from simulator import simulate
from tables import Event, annotation, call, kernel, op, trace_of

MS = 1_000_000
STALL = 8 * MS
HOST = (*CALLS, "cpu_op", "user_annotation", "python_function")
JOB = changed(ranks=1, work=0.01, collectives="none", run_ahead=None)


def run(stalls: dict[int, str], names: tuple[str, ...], kernel_ns: int = 10_000) -> Trace:
    """Four steps of 400 operators of 10 µs each, in turn of ``names``; every second one launches a kernel. ``stalls``:
    the operators, by number, that last 8 ms longer, and whether ``in`` them, in their ``call`` or ``after`` them."""
    events: list[Event] = []
    at = free = 0
    for step in range(4):
        begin = at
        for number in range(400 * step, 400 * step + 400):
            where, name = stalls.get(number, ""), names[number % len(names)]
            took, in_call = (STALL if where in ("in", "call") else 0), (STALL if where == "call" else 0)
            events.append(op(name, at, at + 10_000 + took))
            if number % 2 == 0:
                events.append(call("cudaLaunchKernel", at + 2_000, at + 6_000 + in_call, correlation=number + 1))
                start = max(at + 9_000 + in_call, free)
                events.append(kernel("k", start, start + kernel_ns, correlation=number + 1))
                free = start + kernel_ns
            at += 12_000 + took + (STALL if where == "after" else 0)
        events.append(annotation(f"ProfilerStep#{step}", begin, at))
    return trace_of(*events)


NAMES = ("aten::add", "aten::view", "aten::mm", "aten::transpose", "aten::mul", "aten::as_strided")
PLACES = ("in", "call", "after")
#: two in each step, in operators that launch, in views, in launches, and between
STARVED = {205 * i + 50: PLACES[i % 3] if i % 2 == 0 else "in" for i in range(8)}


def test_standstills_anywhere_are_a_host_without_cpu() -> None:
    trace = run(STARVED, NAMES)
    answer = starved_host.check(trace)
    assert isinstance(answer, Found)
    assert answer.confidence == "medium"
    assert answer.saved_ns == pytest.approx(2 * STALL, rel=0.02)
    assert "its thread probably gets no CPU" in title_of(answer)
    assert not {"host_gaps", "long_calls"} & {each.rule for each in diagnose(trace).findings}  # told once


@pytest.mark.parametrize(
    ("stalls", "names", "kernel_ns"),
    [
        ({}, NAMES, 10_000),
        (dict.fromkeys(STARVED, "after"), NAMES, 10_000),  # garbage collection, or a lock, between operators
        (STARVED, ("aten::copy_",), 10_000),  # one name: it does something
        ({number: "in" for number in STARVED if number % 2}, ("aten::mm", "aten::stack"), 10_000),  # work on the CPU
        ({number // 8: where for number, where in STARVED.items()}, NAMES, 10_000),  # the start
        (STARVED, NAMES, 2 * MS),  # the device has work all the time
    ],
    ids=["healthy", "between_operators", "one_name", "work_on_the_cpu", "start", "busy_device"],
)
def test_other_standstills_have_other_causes(stalls: dict[int, str], names: tuple[str, ...], kernel_ns: int) -> None:
    assert not isinstance(starved_host.check(run(stalls, names, kernel_ns)), Found)


def stood_still(document: Document, every: int) -> tuple[Document, int]:
    """The job whose host stands still for 8 ms in every so many launches into an idle device, and how often: slices of
    the host around the moment last longer, and all that begins later comes later."""
    rows: list[dict[str, Any]] = [each for each in document["traceEvents"] if each.get("ph") == "X"]
    work = sorted((each for each in rows if each.get("cat") in GPU_WORK), key=lambda each: float(each["ts"]))
    calls = {each["args"].get("correlation"): each for each in rows if each.get("cat") in CALLS}
    moments, end = [], 0.0
    for each in work:
        launch = calls.get(each["args"].get("correlation"))
        if launch is not None and float(launch["ts"]) > end:
            middle = (float(launch["ts"]) + min(float(launch["ts"]) + float(launch["dur"]), float(each["ts"]))) / 2
            moments.append(middle - (6 if len(moments) // every % 2 else 0))  # or before the call
        end = max(end, float(each["ts"]) + float(each["dur"]))
    moments = moments[every::every]
    changed_rows = []
    for each in document["traceEvents"]:
        if "ts" not in each:
            changed_rows.append(each)
            continue
        begin, last = float(each["ts"]), float(each["ts"]) + float(each.get("dur", 0))
        later = {"ts": begin + 8_000 * sum(moment < begin for moment in moments)}
        if each.get("cat") in HOST and "dur" in each:
            later["dur"] = last - begin + 8_000 * sum(begin <= moment < last for moment in moments)
        changed_rows.append(each | later)
    return document | {"traceEvents": changed_rows}, len(moments)


@pytest.mark.parametrize("every", [20, 13])
def test_a_job_that_stands_still_would_save_that_time(tmp_path: Path, every: int) -> None:
    """Metamorphic: the simulated job itself is the truth."""
    healthy = load(simulate(JOB, tmp_path / "job")[0][0])
    document, times = stood_still(healthy, every)
    trace, cured = (read(str(save(each, tmp_path / f"{i}.json"))) for i, each in enumerate((document, healthy)))
    assert not isinstance(starved_host.check(cured), Found)
    answer = starved_host.check(trace)
    assert times > 8
    assert isinstance(answer, Found)
    true = 1 - measure(cured).length_ns / measure(trace).length_ns
    assert measure(trace).ratio(answer.saved_ns or 0) == pytest.approx(true, abs=0.05)


@pytest.mark.parametrize("name", REAL)
def test_recorded_hosts_run(name: str) -> None:
    assert not isinstance(starved_host.check(read(str(real_trace(name)))), Found)
