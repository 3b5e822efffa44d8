"""Fetches of batches that workers have ready are no waiting for workers: by hand, simulated, stretched, recorded."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from statistics import median

import pytest
from simulated_jobs import changed

from augment import Trace, read
from augment.diagnosis.host_causes import fetching
from augment.diagnosis.ranking import diagnose
from augment.diagnosis.rule import Fine, Found
from augment.diagnosis.rules import data_loading, launch_bound
from metamorphic import load, real_trace, save, stretched
from simulator import simulate
from tables import Event, annotation, call, kernel, op, trace_of

WORKERS = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
MAIN = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
US = 1_000


def loop(*fetches_us: int, launch_us: int = 5, name: str = WORKERS) -> Trace:
    """Steps that fetch a batch for so long, then launch forty kernels of 5 µs, and wait for them; all that the host
    does beside fetching takes it as many launches."""
    events: list[Event] = []
    at, number = 0, 0
    for step, took in enumerate(fetches_us):
        begin = at
        events.append(annotation(name, at, at + took * US))
        at += took * US
        for _ in range(40):
            number += 1
            events += [op("aten::mul", at, at + 4 * launch_us * US)]
            events += [call("cudaLaunchKernel", at + launch_us * US, at + 2 * launch_us * US, correlation=number)]
            events += [kernel("mul", at + 3 * launch_us * US, at + (3 * launch_us + 5) * US, correlation=number)]
            at += 5 * launch_us * US
        events.append(call("cudaDeviceSynchronize", at, at + 10 * US))
        at += 20 * US
        events.append(annotation(f"ProfilerStep#{step}", begin, at))
    return trace_of(*events)


@pytest.mark.parametrize(("fetches_us", "launch_us", "name", "confidence"), [
    ((180,) * 5, 5, WORKERS, None),
    ((180,) * 5, 5, MAIN, "high"),  # the main process loads, however short that is
    ((720,) * 5, 20, WORKERS, None),  # the same on a host that is four times as slow
    ((720,) * 5, 5, WORKERS, "high"),
    ((180, 180, 9_000, 180, 180), 5, WORKERS, "low"),  # workers once too slow, or a host that stood still
    ((180, 9_000, 180, 9_000, 180), 5, WORKERS, "high"),
])  # fmt: skip
def test_a_fetch_that_takes_no_more_than_launching_waits_for_nobody(
    fetches_us: tuple[int, ...], launch_us: int, name: str, confidence: str | None
) -> None:
    trace = loop(*fetches_us, launch_us=launch_us, name=name)
    answer = data_loading.check(trace)
    assert (answer.confidence if isinstance(answer, Found) else None) == confidence
    if confidence is None:
        assert isinstance(answer, Fine)
        named = [each.rule for each in diagnose(trace).findings if each.is_grave]
        assert named[0] == "launch_bound", "the host is slow, wherever it is"
        bound = launch_bound.check(trace)
        assert isinstance(bound, Found)
        assert "in fetches of batches" in dict(bound.seen.figures["parts"])


@pytest.mark.parametrize(
    ("stall_us", "step", "confidence"), [(0.0, None, None), (20_000.0, None, "high"), (20_000.0, 3, "low")]
)
def test_a_simulated_loader_and_the_same_on_a_slow_machine(
    stall_us: float, step: int | None, confidence: str | None, tmp_path: Path
) -> None:
    """Metamorphic: where everything takes four times as long, workers are as slow or as quick as before."""
    job = changed(ranks=1, steps=5, layers=2, work=0.2, host_stall_us=stall_us, host_stall_step=step)
    document = load(simulate(job, tmp_path / "job")[0][0])
    rows = [each | {"name": WORKERS} if each["name"] == MAIN else each for each in document["traceEvents"]]
    document = document | {"traceEvents": rows}
    for name, each in (("usual", document), ("slow", stretched(document, 4))):
        answer = data_loading.check(read(str(save(each, tmp_path / f"{name}.json"))))
        assert (answer.confidence if isinstance(answer, Found) else None) == confidence


@pytest.mark.parametrize(("name", "waiting"), [
    ("hta_trace_diff_pair/test.json.gz", 0),
    ("v100_2021_kineto_tb/resnet50_num_workers_4.1623212756351.pt.trace.json.gz", 4),
])  # fmt: skip
def test_recorded_fetches_that_wait(name: str, waiting: int) -> None:
    """Plainly: those that take longer than 64 launches, which take their median."""
    path = real_trace(name)
    rows = [each for each in load(path)["traceEvents"] if each.get("ph") == "X"]
    launch = median(each["dur"] for each in rows if each["name"] == "cudaLaunchKernel")
    took = [
        each["dur"]
        for each in rows
        if each["name"] == WORKERS and str(each.get("cat")).lower() != "gpu_user_annotation"
    ]
    assert min(took) < 20 * launch
    assert sum(each > 64 * launch for each in took) == waiting
    cause = fetching(read(str(path)))
    ends = [] if cause is None else (cause.spans.end - cause.spans.start).tolist()
    assert sorted(ends) == sorted(int(each * Decimal(1000)) for each in took if each > 64 * launch)
