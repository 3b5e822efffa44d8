"""The critical path of recorded and simulated traces, and the thread that drives it."""

from __future__ import annotations

import dataclasses
import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from augment.analyses import critical_path, critical_path_operators
from augment.core.trace import Trace
from augment.facts.critical.critical_graph import CriticalGraph, critical_graph
from augment.facts.critical.handovers import main_track
from augment.facts.critical.longest_path import BoundBy
from augment.facts.critical.longest_path import critical_path as path_of
from augment.facts.gpu.gpu_work import gpu_work, launches
from augment.facts.steps.step_windows import steps
from augment.facts.waits.dependencies import DependencyKind
from augment.readers import read
from metamorphic import load, real_trace, save
from simulator import JobOptions, simulate
from tables import annotation, call, kernel, op, rows_of, trace_of

Edge = tuple[str, int, int]


def node_of(trace: Trace, correlation: int) -> int:
    """The node of the GPU work with a correlation."""
    work = gpu_work(trace)
    (place,) = np.flatnonzero(trace.events.correlation[work.row] == correlation)
    return critical_graph(trace).first_work + int(place)


def edges_to(trace: Trace, correlation: int) -> set[Edge]:
    """What leads to GPU work: the kind, the correlation of what it comes from, and the delay, ns."""
    graph = critical_graph(trace)
    return edges(trace, graph, np.flatnonzero(graph.target == node_of(trace, correlation)))


def edges_to_call(trace: Trace, name: str) -> set[Edge]:
    """What leads from GPU work to the returns of the calls of that name."""
    graph = critical_graph(trace)
    calls = [row >= 0 and trace.strings[trace.events.name[row]] == name for row in graph.to_row.tolist()]
    return edges(trace, graph, np.flatnonzero(calls))


def edges(trace: Trace, graph: CriticalGraph, chosen: np.ndarray[tuple[int], np.dtype[np.intp]]) -> set[Edge]:
    """Kind, correlation of the source, and delay of edges."""
    took = graph.ts[graph.target[chosen]] - graph.ts[graph.source[chosen]] - graph.self_ns[chosen]
    source = trace.events.correlation[graph.from_row[chosen]]
    kinds = [DependencyKind(kind).name for kind in graph.kind[chosen].tolist()]
    return set(zip(kinds, source.tolist(), took.tolist(), strict=True))


def test_a_launch_and_the_next_kernel_are_as_late_as_hta_says(shared_traces: Path) -> None:
    trace = read(str(shared_traces / "hta_cuda_sync" / "simple_add.json.gz"))
    assert ("LAUNCH", 5597, 27_000) in edges_to(trace, 5597)
    assert ("STREAM", 5597, 7_000) in edges_to(trace, 5604)
    assert any(kind == "LAUNCH" and source == 5604 for kind, source, _ in edges_to(trace, 5604))


def test_a_device_sync_waits_for_the_last_kernel_as_in_hta(shared_traces: Path) -> None:
    trace = read(str(shared_traces / "hta_cuda_sync" / "simple_add.json.gz"))
    work = gpu_work(trace)
    waited = edges_to_call(trace, "cudaDeviceSynchronize")
    assert waited
    for _, correlation, _ in waited:
        (row,) = work.row[np.flatnonzero(trace.events.correlation[work.row] == correlation)]
        (call,) = launches(trace).of(np.array([correlation])).tolist()
        assert call >= 0
        assert (
            work.end[np.flatnonzero(trace.events.ts[work.launch] <= trace.events.ts[call])]
            <= work.end[np.flatnonzero(work.row == row)]
        ).all()


def test_streams_wait_for_events_as_in_hta(shared_traces: Path) -> None:
    alexnet = read(str(shared_traces / "hta_cuda_sync" / "alexnet.json.gz"))
    assert ("WAIT_EVENT", 5606) in {(kind, source) for kind, source, _ in edges_to(alexnet, 5629)}
    several = read(str(shared_traces / "hta_cuda_sync" / "cuda_event_sync_multi_stream.json.gz"))
    graph = critical_graph(several)
    waits = edges(several, graph, np.flatnonzero(graph.kind == DependencyKind.WAIT_EVENT))
    assert {source for _, source, _ in waits} == {27}  # of stream 20, not the later one of stream 28
    (target,) = np.unique(graph.to_row[graph.kind == DependencyKind.WAIT_EVENT])
    assert several.names_of(np.array([target])) == ["Memset (Device)"]


def test_calls_wait_for_events_as_in_hta(shared_traces: Path) -> None:
    trace = read(str(shared_traces / "hta_cuda_sync" / "cuda_event_sync.json.gz"))
    work = gpu_work(trace)
    for name in ("cudaEventSynchronize", "cudaDeviceSynchronize"):
        ((kind, correlation, _),) = edges_to_call(trace, name)
        (row,) = work.row[np.flatnonzero(trace.events.correlation[work.row] == correlation)]
        assert kind == "SYNC"
        assert "spin_kernel" in trace.names_of(np.array([row]))[0]


@pytest.mark.parametrize(
    "name",
    ["hta_ns_resolution/rank-0.ns_resolution.pt.trace.json.gz", "hta_amd_mi250/mi250_minitoy_train_ROCm6_2.json.gz",
     "h100_8rank_modded_nanogpt/rank0.json.gz", "dlrm_8rank_v100_param/kineto/worker0_step_12.pt.trace.json.gz",
     "v100_4rank_pair_torchrec/control/pid44237.pt.trace.json.gz", "hta_trace_diff_pair/test.json.gz"],
)  # fmt: skip
def test_each_step_is_accounted_for_to_the_nanosecond(shared_traces: Path, name: str) -> None:
    trace = read(str(shared_traces / name))
    findings = critical_path.analyze(trace)
    number = steps(trace)
    sums = {int(each): 0 for each in number.number.tolist()} or {None: 0}
    for step, ns in rows_of(findings, "step", "time_ns"):
        sums[step] += ns
    assert len(number)
    assert sums == dict(zip(number.number.tolist(), (number.end - number.ts).tolist(), strict=True))


JOB = JobOptions(ranks=1, steps=3, layers=2, jitter=0.0)


def simulated(folder: Path, **changes: object) -> Trace:
    """A simulated job."""
    ((path, _),) = simulate(dataclasses.replace(JOB, **changes), folder)  # type: ignore[arg-type]
    return read(str(path))


def of_step(trace: Trace, step: int, *kinds: BoundBy) -> int:
    """The time of these kinds in a step; of all without any."""
    names = {kind.name.lower() for kind in kinds or BoundBy}
    rows = rows_of(critical_path.analyze(trace), "step", "bound_by", "time_ns")
    return sum(ns for number, kind, ns in rows if number == step and kind in names)


@pytest.mark.parametrize("ms", [1, 20])
def test_a_stall_of_the_data_loader_lengthens_the_path_by_itself(tmp_path: Path, ms: int) -> None:
    before, after = simulated(tmp_path / "a"), simulated(tmp_path / "b", host_stall_us=1000 * ms, host_stall_step=1)
    grown = of_step(after, 1, BoundBy.DATA_LOADING) - of_step(before, 1, BoundBy.DATA_LOADING)
    assert grown == ms * 1_000_000
    assert of_step(after, 1) - of_step(before, 1) == ms * 1_000_000


def test_a_slow_kernel_lengthens_the_path_by_itself(tmp_path: Path) -> None:
    before = simulated(tmp_path / "a")
    name = "flash_fwd_kernel"
    after = simulated(tmp_path / "b", slow_kernel=name, slow_percent=50)
    more = total_of(after, name) - total_of(before, name)
    assert more > 0
    longer = of_step(after, 1, BoundBy.KERNEL_COMPUTATION) - of_step(before, 1, BoundBy.KERNEL_COMPUTATION)
    assert longer == more
    assert of_step(after, 1) - of_step(before, 1) == more


def test_what_is_saved_without_a_kernel_is_what_the_simulator_saves(tmp_path: Path) -> None:
    before = simulated(tmp_path / "a")
    name = "flash_fwd_kernel"
    after = simulated(tmp_path / "b", slow_kernel=name, slow_percent=100)
    output = [saved for step, full, saved in rows_of(critical_path_operators.analyze(after), "step", "name", "saved_ns")
            if step == 1 and name in full]  # fmt: skip
    assert output == [total_of(after, name)]
    assert of_step(after, 1) - of_step(before, 1) == total_of(before, name)  # twice as long: half of it is gained back


def total_of(trace: Trace, name: str) -> int:
    """The time of the kernels whose name contains ``name`` in step 1."""
    number, work = steps(trace), gpu_work(trace)
    (place,) = np.flatnonzero(number.number == 1)
    named = np.array([name in each for each in trace.names_of(work.row)])
    inside = (work.ts >= number.ts[place]) & (work.end <= number.end[place])
    return int((work.end - work.ts)[named & inside].sum())


MAIN, BACKWARD, WATCHDOG = 1, 2, 3
STEPPED = (
    "v100_4rank_pair_torchrec/control/pid44237.pt.trace.json.gz",
    "v100_4rank_pair_torchrec/test/pid45921.pt.trace.json.gz",
    "hta_trace_diff_pair/control.json.gz",
    "h100_8rank_modded_nanogpt/rank0.json.gz",
    "hta_a100_rank0_of_16/negative_queue_length_rank0.json.gz",
)
BACKWARDS = "autograd::engine::evaluate_function: "


def thread_of(trace: Trace) -> object:
    return trace.tracks[main_track(trace)].tid


def test_a_thread_with_steps_drives_although_it_executes_some_of_backward() -> None:
    """Autograd executes what is on the CPU on the thread that called it. Another thread asks every so often whether
    collectives are done."""
    trace = trace_of(
        annotation("ProfilerStep#1", 0, 900, thread=MAIN),
        op("aten::mm", 10, 60, thread=MAIN),
        call("cudaLaunchKernel", 20, 30, thread=MAIN, correlation=1),
        kernel("gemm", 40, 90, correlation=1),
        op(f"{BACKWARDS}torch::autograd::AccumulateGrad", 500, 510, thread=MAIN),
        op(f"{BACKWARDS}MmBackward0", 200, 400, thread=BACKWARD),
        call("cudaLaunchKernel", 220, 230, thread=BACKWARD, correlation=2),
        kernel("gemm", 240, 290, correlation=2),
        *(call("cudaEventQuery", at, at + 2, thread=WATCHDOG) for at in range(300, 800, 100)),
    )
    assert thread_of(trace) == MAIN


@pytest.mark.parametrize("name", STEPPED)
def test_the_thread_with_the_steps_drives(shared_traces: Path, name: str) -> None:
    rows = json.loads(gzip.decompress((shared_traces / name).read_bytes()))["traceEvents"]
    steps = {
        row["tid"]
        for row in rows
        if str(row.get("name")).startswith("ProfilerStep") and row.get("cat") in ("user_annotation", "cpu_op")
    }
    assert {thread_of(read(str(shared_traces / name)))} == steps


def test_a_thread_that_only_asks_changes_no_path(tmp_path: Path) -> None:
    """Metamorphic: without the watchdog's calls the critical path is the same."""
    document = load(real_trace(STEPPED[0]))
    rows = document["traceEvents"]
    names: dict[object, set[str]] = {}
    for row in rows:
        if row.get("cat") in ("cpu_op", "cuda_runtime", "cuda_driver", "user_annotation"):
            names.setdefault(row["tid"], set()).add(row["name"])
    (watchdog,) = (thread for thread, called in names.items() if called == {"cudaEventQuery"})
    without = document | {"traceEvents": [row for row in rows if row.get("tid") != watchdog]}
    paths = [path_of(read(str(save(each, tmp_path / "t.json")))) for each in (document, without)]
    assert paths[0].time.tolist() == paths[1].time.tolist()
