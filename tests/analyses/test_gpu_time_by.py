from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from augment import Skipped, read
from augment.analyses import gpu_time_by_annotation, gpu_time_by_module, gpu_time_by_phase
from augment.core import Category, Track
from augment.facts.gpu.gpu_work import gpu_work
from simulator import JobOptions, simulate
from tables import Event, annotation, call, fwdbwd, kernel, op, python, rows_of, trace_of


def on_gpu(name: str, ts: int, end: int, *, device: int = 0, stream: int = 7) -> Event:
    return Event(Category.GPU_USER_ANNOTATION, name, ts, end, Track(0, device, stream, device, stream))


def times_of(*events: Event, **options: Any) -> list[tuple[Any, ...]]:
    outcome = gpu_time_by_annotation.analyze(trace_of(*events), **options)
    return rows_of(outcome, "device", "annotation", "kernel_count", "gpu_ns")


def test_the_innermost_of_the_stream_at_the_start_of_the_work() -> None:
    assert times_of(
        on_gpu("outer", 0, 100), on_gpu("inner", 20, 40), on_gpu("elsewhere", 0, 100, stream=9),
        on_gpu("elsewhere", 0, 100, device=1),
        kernel("a", 0, 20), kernel("b", 20, 60), kernel("c", 90, 120), kernel("d", 100, 105),
    ) == [(0, "outer", 2, 50), (0, "inner", 1, 40), (0, None, 1, 5)]  # fmt: skip


def test_the_hosts_annotation_where_there_is_none_on_the_gpu() -> None:
    events = (
        annotation("ProfilerStep#1", 0, 100), annotation("outer", 5, 90), annotation("inner", 10, 20),
        annotation("other thread", 0, 100, thread=2),
        call("l", 12, 14, correlation=1), kernel("a", 200, 210, correlation=1),
        call("l", 30, 31, correlation=2), kernel("b", 220, 221, correlation=2),
        call("l", 95, 96, correlation=3), kernel("c", 230, 232, correlation=3),
        call("l", 13, 14, correlation=4), kernel("d", 300, 304, correlation=4), on_gpu("on the gpu", 300, 304),
    )  # fmt: skip
    expected = [(0, "inner", 1, 10), (0, "on the gpu", 1, 4), (0, None, 1, 2), (0, "outer", 1, 1)]
    assert times_of(*events) == expected
    expected[2] = (0, "ProfilerStep#1", 1, 2)
    assert times_of(*events, include_steps=True) == expected


def test_of_annotations_that_cross_the_one_that_began_last_goes_on() -> None:
    events = (on_gpu("A", 0, 10_001), on_gpu("B", 10_000, 110_000))
    kernels = [kernel("k", start, start + 5_000) for start in range(20_000, 70_000, 10_000)]
    assert times_of(*events, *kernels) == [(0, "B", 5, 25_000)]
    outcome = gpu_time_by_annotation.analyze(trace_of(*events, *kernels))
    assert [(diagnostic.code, diagnostic.count) for diagnostic in outcome.diagnostics] == [("gpu_annotations_cross", 1)]


def test_nothing_annotated_is_skipped() -> None:
    trace = trace_of(
        annotation("ProfilerStep#1", 0, 9), call("l", 2, 3, correlation=1), kernel("k", 5, 9, correlation=1)
    )
    assert isinstance(gpu_time_by_annotation.analyze(trace), Skipped)


def test_annotations_of_a_simulated_job_by_a_plain_loop(tmp_path: Path) -> None:
    ((path, _),) = simulate(JobOptions(ranks=1, steps=2, layers=2, stacks=True), tmp_path)
    trace = read(str(path))
    events, work = trace.events, gpu_work(trace)
    ts, end, track = events.ts.tolist(), events.end.tolist(), events.track.tolist()
    names = trace.names_of(events.slices_of(*Category))
    rows = dict(zip(events.slices_of(*Category).tolist(), names, strict=True))
    known: Counter[str | None] = Counter()

    def leaf(category: Category, row: int, at: int) -> str | None:
        """The shortest of a row's track around a moment."""
        around = [other for other in events.slices_of(category).tolist()
                  if track[other] == track[row] and ts[other] <= at < end[other]
                  and not rows[other].startswith("ProfilerStep")]  # fmt: skip
        return rows[min(around, key=lambda other: end[other] - ts[other])] if around else None

    for row, launch in zip(work.row.tolist(), work.launch.tolist(), strict=True):
        name = leaf(Category.GPU_USER_ANNOTATION, row, ts[row]) or leaf(Category.USER_ANNOTATION, launch, ts[launch])
        known[name] += end[row] - ts[row]
    outcome = gpu_time_by_annotation.analyze(trace)
    assert dict(rows_of(outcome, "annotation", "gpu_ns")) == known
    assert len(known) == 3
    assert sum(ratio for (ratio,) in rows_of(outcome, "gpu_ratio")) == pytest.approx(1)


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


def test_modules_of_a_simulated_job_by_a_plain_loop(tmp_path: Path) -> None:
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


def phases_of(*events: Event) -> dict[Any, Any]:
    """The phase of each kernel, told apart by lengths that are powers of two."""
    rows = rows_of(gpu_time_by_phase.analyze(trace_of(*events)), "phase", "gpu_ns")
    return {length: phase for phase, ns in rows for length in (1 << bit for bit in range(20)) if ns & length}


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
def test_phases_of_a_simulated_job_by_a_plain_loop(tmp_path: Path, stacks: bool) -> None:
    ((path, _),) = simulate(JobOptions(ranks=1, steps=3, layers=2, stacks=stacks), tmp_path)
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
