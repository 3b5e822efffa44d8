"""The critical path of recorded and simulated traces, and the thread that drives it."""

from __future__ import annotations

import dataclasses
import gzip
import json
from bisect import bisect_left
from collections import defaultdict
from functools import cache
from math import ceil, floor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from augment import Trace, read
from augment.analyses import critical_path, critical_path_operators
from augment.facts.critical.critical_graph import CriticalGraph, critical_graph
from augment.facts.critical.handovers import main_track
from augment.facts.critical.longest_path import DRAWN, KINDS, BoundBy
from augment.facts.critical.longest_path import critical_path as path_of
from augment.facts.gpu.gpu_work import gpu_work, launches
from augment.facts.steps.step_windows import recorded_windows, steps
from augment.facts.waits.dependencies import DependencyKind
from metamorphic import CALLS, Document, load, real_trace, save, without_first_launches, without_first_ns
from metamorphic import GPU_WORK as WORK
from simulator import JobOptions, simulate
from tables import annotation, call, kernel, op, rows_of, slices_of, trace_of

Edge = tuple[str, int, int]


def node_of(trace: Trace, correlation: int) -> int:
    """The node of the GPU work with a correlation."""
    (place,) = np.flatnonzero(trace.events.correlation[gpu_work(trace).row] == correlation)
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
    windows = recorded_windows(trace)
    sums = dict.fromkeys(windows.number.tolist(), 0)
    for step, ns in rows_of(findings, "step", "time_ns"):
        sums[step] += ns
    assert len(windows)
    assert sums == dict(zip(windows.number.tolist(), (windows.end - windows.start).tolist(), strict=True))


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


# The critical path where the host is ahead: simulated truth, real traces read by plain Python, what a cut
# moves.
LATENCY_NS = 30_000
#: what the simulator's path consists of, in our words
RESOURCES = {
    "host": ("cpu_operator", "runtime_call", "data_loading", "outside_operators", "thread_handover"),
    "launch_latency": ("launch_delay",),
    "kernel": ("kernel_computation",),
    "collective": ("kernel_communication",),
    "copy": ("kernel_memory",),
    "pause": ("kernel_gap",),
    "wait": ("sync",),
}
JOBS: dict[str, dict[str, Any]] = {
    "waits": {},
    "runs ahead": {"run_ahead": 2},
    "never waits": {"sync_every": 0, "record_from": (1.5, 2.3)},
    "small kernels": {"sync_every": 0, "record_from": (1.5,), "work": 0.25},
    "sharded": {"run_ahead": 3, "collectives": "fsdp", "record_from": (2.4,), "step_jitter": 0.1},
    "side streams": {"run_ahead": 2, "side_streams": 2, "record_from": (2.5,)},
    "crossing slices": {"run_ahead": 2, "cross_ns": 1, "cross_every": 3, "record_from": (1.2,)},
    "host bound": {"work": 0.02, "sync_every": 0, "record_from": (1.5,)},
}
#: GPU busy for more than 95 % of its time, and no step that waits for it
BACKLOGS = (
    "h100_rank0_pair_modded_nanogpt/test_hook_rank0.json.gz",
    "h100_rank0_pair_modded_nanogpt/control_current_rank0.json.gz",
    "h100_8rank_modded_nanogpt/rank4.json.gz",
    "h100_8rank_modded_nanogpt/rank5.json.gz",
    "rtx3060_luatil/trace_04.json.gz",
    "mi300_tracelens/resnet_act_checkpoint_rank0of8.json.gz",
)
OTHERS = (
    "hta_nccl/nccl_data.json.gz",
    "hta_cuda_sync/alexnet.json.gz",
    "hta_ns_resolution/rank-0.ns_resolution.pt.trace.json.gz",
    "pairs_h100_vs_mi300_tracelens/bert_small_mi300.json.gz",
    "h100_8rank_modded_nanogpt/rank1.json.gz",
)


def slices(document: Document, *categories: str) -> list[dict[str, Any]]:
    """Its slices of these categories, with ``start`` and ``stop`` in ns, in the order of time."""
    base, result = int(document.get("baseTimeNanoseconds") or 0), []
    for event in document["traceEvents"]:
        if event.get("ph") == "X" and event.get("cat") in categories:
            start = int(event["ts"] * 1000) + base
            result.append({**event, "start": start, "stop": start + int(event["dur"] * 1000)})
    return sorted(result, key=lambda item: item["start"])


def drawn(path: Path) -> list[dict[str, Any]]:
    """The path's slices, as drawn."""
    kind_of = dict(zip(DRAWN, KINDS, strict=True))
    slices = slices_of(critical_path.analyze(read(str(path))).annotations[0])
    return [{**each, "name": kind_of[each["name"]]} for each in slices]


drawn_of_recorded = cache(drawn)  #: several tests look at each path


def covered(intervals: list[tuple[int, int]], start: int, stop: int) -> int:
    """How long ascending intervals cover of a time."""
    ns, until = 0, start
    for first, last in intervals:
        begin, end = max(first, until), min(last, stop)
        ns += max(0, end - begin)
        until = max(until, end)
    return ns


def check_launch_delays(path: Path, pieces: list[dict[str, Any]]) -> None:
    """No launch is waited for while its stream is at work."""
    document = load(path)
    streams, of_launch = defaultdict(list), defaultdict(list)
    for slice_ in slices(document, *WORK):
        args = slice_["args"]
        streams[slice_["pid"], args.get("stream", slice_["tid"])].append((slice_["start"], slice_["stop"]))
        of_launch[args.get("correlation")].append(slice_)
    begun: dict[int, int] = {}  # of a delay that steps cut
    for piece in pieces:
        if piece["name"] != "launch_delay":
            begun.clear()
            continue
        stop = piece["ts"] + piece["dur"]
        start = begun.setdefault(piece["correlation"], piece["ts"])
        for part in of_launch[piece["correlation"]]:
            if part["start"] == stop and stop - start > LATENCY_NS:
                index = streams[part["pid"], part["args"].get("stream", part["tid"])]
                assert covered(index[: bisect_left(index, (stop, 0))], start, stop) <= LATENCY_NS, piece


@pytest.mark.slow
@pytest.mark.parametrize("name", [*BACKLOGS, *OTHERS])
def test_no_launch_is_waited_for_while_its_stream_is_at_work(shared_traces: Path, name: str) -> None:
    pieces = drawn_of_recorded(shared_traces / name)
    check_launch_delays(shared_traces / name, pieces)
    assert all("source" in piece for piece in pieces if piece["name"] == "outside_operators")


@pytest.mark.slow
@pytest.mark.parametrize("name", BACKLOGS)
def test_a_busy_device_is_on_the_path_as_long_as_it_is_busy(shared_traces: Path, name: str) -> None:
    work = [(trace["start"], trace["stop"]) for trace in slices(load(shared_traces / name), *WORK)]
    start, stop = work[0][0], max(end for _, end in work)
    busy = covered(work, start, stop) / (stop - start)
    assert busy > 0.95
    ran = [
        row
        for row in drawn_of_recorded(shared_traces / name)
        if row["name"].startswith("kernel_c") or "memory" in row["name"]
    ]
    on_path = sum(each["dur"] for each in ran) / (stop - start)
    assert on_path == pytest.approx(busy, abs=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("job", JOBS)
def test_the_path_is_the_simulators(job: str, tmp_path: Path) -> None:
    """Also by clocks of whole microseconds, by which work begins before the work that it follows has ended."""
    for path, truth in simulate(JobOptions(steps=6, layers=2, causes=True, **JOBS[job]), tmp_path):
        shares = truth["causes"]["path_shares"]
        shares["wait"] = shares.pop("wake", 0) + shares.pop("event", 0)
        whole_us = save(of_whole_us(load(path)), tmp_path / "whole.json")
        for file, within in ((path, 0.01), (whole_us, 0.03)):  # pauses of less than 1 µs are lost there
            pieces = drawn(file)
            whole = sum(piece["dur"] for piece in pieces)
            for resource, kinds in RESOURCES.items():
                rows = sum(piece["dur"] for piece in pieces if piece["name"] in kinds) / whole
                assert rows == pytest.approx(shares.get(resource, 0), abs=within), resource


def of_whole_us(document: Document) -> Document:
    """Starts and durations rounded down and up, as old recordings have them."""
    events = [event | {"ts": floor(event["ts"]), "dur": ceil(event["dur"])} if "dur" in event else event
              for event in document["traceEvents"]]  # fmt: skip
    return document | {"traceEvents": events}


@pytest.mark.slow
def test_a_recording_of_which_all_launches_are_far_ahead(tmp_path: Path) -> None:
    """The copies, which alone found their stream idle, are left out; so no launch tells its latency."""
    options = JobOptions(ranks=1, steps=5, layers=2, sync_every=0, record_from=(1.5,), collectives="none")
    ((path, _),) = simulate(options, tmp_path)
    document = load(path)
    kept = [event for event in document["traceEvents"] if event.get("tid") != 20]
    pieces = drawn(save(document | {"traceEvents": kept}, tmp_path / "cut.json"))
    whole = sum(piece["dur"] for piece in pieces)
    assert sum(piece["dur"] for piece in pieces if piece["name"] == "kernel_computation") > 0.97 * whole
    assert {piece["name"] for piece in pieces} <= {"idle", "kernel_gap", "kernel_computation", "kernel_memory"}


def over_without(document: Document, cut: Document) -> int:
    """When all is over that the launches did which ``cut`` lacks: its calls and their work."""
    kept = {call["args"].get("correlation") for call in slices(cut, *CALLS)}
    calls = [call for call in slices(document, *CALLS) if call["args"].get("correlation") not in kept]
    gone = {call["args"]["correlation"] for call in calls}
    work = [slice_ for slice_ in slices(document, *WORK) if slice_["args"].get("correlation") in gone]
    over: int = max(call["stop"] for call in (*calls, *work))
    return over


def check_rest(path: Path, cut: Document, scratch: Path, kinds: str = "") -> None:
    """What begins after all that was cut is over is on the path as before, but for the slice of that moment itself."""
    over = over_without(load(path), cut)
    before, after = (
        [(row["ts"], row["dur"], row["name"], row.get("source", "")) for row in pieces if row["ts"] >= over]
        for pieces in (drawn_of_recorded(path), drawn(save(cut, scratch / "cut.json")))
    )
    edge = max(min((ts for ts, *_ in pieces), default=over) for pieces in (before, after))
    rest, rows = ([row for row in pieces if row[0] > edge and row[2].startswith(kinds)] for pieces in (before, after))
    assert rows == rest
    assert rest or len(before) < 3


def check_cut_launches(path: Path, scratch: Path) -> None:
    """Some of the first launches, and many."""
    document = load(path)
    calls = len(slices(document, *CALLS))
    for share in (200, 6):
        check_rest(path, without_first_launches(document, max(1, calls // share)), scratch)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*BACKLOGS[:2], BACKLOGS[4], *OTHERS])
def test_cutting_the_first_launches_moves_nothing_else(shared_traces: Path, tmp_path: Path, name: str) -> None:
    check_cut_launches(shared_traces / name, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", [BACKLOGS[0], BACKLOGS[4], BACKLOGS[5]])
def test_nor_does_a_recording_that_begins_later(shared_traces: Path, tmp_path: Path, name: str) -> None:
    """What the host does is in other slices then, as those that had begun are not recorded."""
    path = shared_traces / name
    check_rest(path, without_first_ns(load(path), 20_000_000), tmp_path, "kernel_")


@pytest.mark.slow
@pytest.mark.parametrize("job", ["runs ahead", "small kernels", "host bound"])
def test_so_of_simulated_jobs(job: str, tmp_path: Path) -> None:
    ((path, _),) = simulate(JobOptions(ranks=1, steps=4, layers=2, **JOBS[job]), tmp_path)
    check_cut_launches(path, tmp_path)
