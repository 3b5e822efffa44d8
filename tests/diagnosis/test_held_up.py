"""Devices that begin launched work late: at first, as earlier work is missing, or again and again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
from simulated_jobs import changed
from test_rules_by_hand import problem_of

from augment import Trace, read
from augment.core import Category, InstantTrack, Track
from augment.diagnosis.drawing import drawn
from augment.diagnosis.judging import measure
from augment.diagnosis.ranking import diagnose
from augment.diagnosis.recording_completeness import held_up, idle_in_graphs, idle_ratio_in_graphs, late_device
from augment.diagnosis.rule import Fine, Found
from augment.diagnosis.rules import partial_recording
from augment.diagnosis.verdict import verdict
from augment.facts.gpu.gpu_work import gpu_work
from augment.facts.steps.step_windows import recorded_windows
from metamorphic import CALLS, REAL, Document, load, real_trace, save
from said import title_of
from simulator import simulate
from tables import Event, annotation, call, kernel, launched
from tables import trace_of as made

LATE = 400.0  #: µs that another process keeps a shared device
JOB = changed(ranks=1, steps=2, layers=3, collectives="none", work=0.02, run_ahead=None)
GPU = ("kernel", "gpu_memcpy", "gpu_memset")


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Document:
    """A job without steps on a single stream."""
    document = load(simulate(JOB, tmp_path_factory.mktemp("job"))[0][0])
    rows = [each for each in document["traceEvents"] if not str(each["name"]).startswith("ProfilerStep")]
    return document | {"traceEvents": [each | {"tid": 7} if each.get("cat") in GPU else each for each in rows]}


def delayed(document: Document, most: int) -> tuple[Document, int]:
    """The job whose device, when it was idle, begins late: the first ``most`` times. And how often it does."""
    rows = document["traceEvents"]
    calls = [each for each in rows if str(each.get("cat")).startswith("cuda_")]
    launched = {each["args"]["correlation"]: float(each["ts"] + each["dur"]) for each in calls}
    end, times, later = 0.0, 0, dict[int, Document]()
    for each in sorted((each for each in rows if each.get("cat") in GPU), key=lambda each: float(each["ts"])):
        begin = max(float(each["ts"]), end)
        if launched[each["args"]["correlation"]] > end and times < most:
            begin, times = begin + LATE, times + 1
        later[id(each)] = each | {"ts": begin}
        end = begin + float(each["dur"])
    return document | {"traceEvents": [later.get(id(each), each) for each in rows]}, times


def trace_of(document: Document, folder: Path) -> Trace:
    return read(str(save(document, folder / "job.json")))


def test_what_comes_before_the_first_work_counts_for_nothing(job: Document, tmp_path: Path) -> None:
    trace, whole = trace_of(delayed(job, 1)[0], tmp_path), trace_of(job, tmp_path)
    assert late_device(trace) is None
    assert measure(trace).lead_in_ns == pytest.approx(measure(whole).lead_in_ns + LATE * 1_000, abs=10)
    assert "before its first GPU work" in verdict(trace)[0]


def test_a_device_that_is_late_again_and_again_is_held_up(job: Document, tmp_path: Path) -> None:
    document, times = delayed(job, 1_000)
    trace = trace_of(document, tmp_path)
    held = held_up(trace)
    times -= 1  # the first time nothing is known of what came before
    assert len(held.start) == times > 3
    assert (held.end - held.start).tolist() == pytest.approx([LATE * 1_000] * times, rel=0.05)
    answer = problem_of(partial_recording.check(trace))
    assert f"{times} times: something outside the file holds it up" in title_of(answer)
    assert all(each.found.confidence == "low" for each in diagnose(trace).findings if each.found.saved_ns)


def test_a_healthy_device_is_not_late(job: Document, tmp_path: Path) -> None:
    trace = trace_of(job, tmp_path)
    assert late_device(trace) is None
    assert held_up(trace) is None
    assert isinstance(partial_recording.check(trace), Fine)


@pytest.mark.parametrize("name", ["sglang_mi300_tracelens/qwen3_8b_decode.json.gz"])
def test_recorded_devices_are_late_once(name: str) -> None:
    """Plainly: the idle time before each piece of work beyond the end of its launch, in the order of time."""
    path = real_trace(name)
    rows = [each for each in load(path)["traceEvents"] if each.get("ph") == "X"]
    calls = {each["args"].get("correlation"): float(each["ts"]) + float(each["dur"]) for each in rows
             if each.get("cat") == "cuda_runtime"}  # fmt: skip
    end, lags = None, []
    for each in sorted((each for each in rows if each.get("cat") in GPU), key=lambda each: float(each["ts"])):
        begin, launch = float(each["ts"]), calls.get(each["args"].get("correlation"))
        if launch is not None:
            lags.append(begin - max(launch, launch if end is None else end))
        end = max(end or 0, begin + float(each["dur"]))
    late = np.sort(lags)
    assert late[-1] > late[:-1][late[:-1] > 100].sum()
    trace = read(str(path))
    assert late_device(trace) is None  # the engine's one step begins when the device is free
    assert recorded_windows(trace).start[0] - measure(trace).windows.begin[0] >= 1000 * late[-1]
    assert held_up(trace) is None


@pytest.mark.parametrize("early", [0, 1, 2, 3])
def test_what_a_first_decode_leaves_out_is_said_as_it_was(early: int) -> None:
    """Metamorphic: pieces of 4 us of another stream run before the first work of one begins 40 ms after its launch; or
    a single one runs until then."""
    events = [annotation("step[DECODE bs=8]", 0, 56 * MS)]
    if early == 3:
        events += launched("reduce_scatter", -20_000, -10_000, 40 * MS, 2, 1)
    for at in range(early % 3):
        events += launched("arange", 20_000 * at, 20_000 * at + 10_000, 20_000 * at + 14_000, 2, 1 + at)
    for at in range(40):
        ts = 40 * MS + 400_000 * at
        events += launched("gemm" if at % 2 else f"k{at}", 50_000 + 10 * at, ts, ts + 390_000, 3, 9 + at)
    text = " ".join(verdict(made(*events)))
    begin = "40 ms before the step's first GPU work, which begins"
    if early:
        begin = f"40 ms at the step's start, in which the GPU runs {4 * early}.0 µs of recorded work; its next work "
        begin += "begins 40 ms after its launch, for an unknown reason"
    if early == 3:
        begin = "40 ms at the step's start, in which the GPU runs 40 ms of recorded work; its next work begins 40 ms "
        begin += "after its launch, behind that work"
    assert f"Not counted: {begin}" in text
    assert "No rule found a cause that would save as much as 2 % of a step in the time counted. The largest" in text


def test_a_recording_that_ends_early_is_told_from_lost_kernels(job: Document, tmp_path: Path) -> None:
    """Metamorphic: the same number of kernels is missing, the last ones or every fifth."""
    rows = job["traceEvents"]
    kernels = sorted((each for each in rows if each.get("cat") == "kernel"), key=lambda each: float(each["ts"]))
    count = len(kernels) // 5
    for gone, words in (
        (kernels[-count:], "ends before the GPU ran the last"),
        (kernels[::5], "missing from the recording"),
    ):
        lost = {id(each) for each in gone}
        trace = trace_of(job | {"traceEvents": [each for each in rows if id(each) not in lost]}, tmp_path)
        assert words in title_of(problem_of(partial_recording.check(trace)))
        marks = [each for each in drawn(trace, "diagnosis") if isinstance(each, InstantTrack)]
        assert [each.name for each in marks] == (["End of GPU events"] if "ends before" in words else [])
        if marks:
            work = gpu_work(trace)
            assert marks[0].ts.tolist() == [work.end.max()]
            assert marks[0].names.values[0] == "GPU events end here: the recording ended before the work did"


MS = 1_000_000


def shared_device(
    before: str = "", launch: str = "cudaLaunchKernel", clock_ns: int = 0, turns: int = 7, load_ns: int = 0
) -> list[Event]:
    """Three steps of eight turns; in each nine launches, a call of ``before`` ahead of them, and a wait for the device.
    In ``turns`` of them the idle device begins 2.3 ms after the launch. ``clock_ns``: how far its clock is ahead;
    ``load_ns``: what the driver takes to load something in the first launch of a turn."""
    events, at, correlation = [], 0, 1
    for step in range(3):
        begin = at
        for turn in range(8):
            events += [call(before, at, at + 1_000)] if before else []
            loaded = Event(Category.OVERHEAD, "Lazy Function Loading", at + 11_000, at + load_ns, Track(0, -1, 0))
            events += [loaded] if load_ns else []
            idle_until = at + load_ns + 2_300_000 if turn < turns else at + load_ns
            for place in range(9):
                at += 10_000
                start = max(idle_until + 20_000, at + 8_000) + 4_000 * place + clock_ns
                events += [call(launch, at, at + 5_000 + (0 if place else load_ns), correlation=correlation)]
                at += 0 if place else load_ns
                events += [kernel("add", start, start + 4_000, correlation=correlation)]
                correlation += 1
            end = events[-1].end - clock_ns + 5_000
            events += [call("cudaDeviceSynchronize", at + 6_000, end)]
            at = end
        events += [annotation(f"ProfilerStep#{step}", begin, at)]
    return events


def test_a_device_that_another_process_uses_is_no_slow_host() -> None:
    """Only later work is late: the queue was empty when each of it was launched, and it was launched 2.3 ms before."""
    trace = made(*shared_device())
    assert len(held_up(trace).start) == 3 * 7
    result = diagnose(trace)
    assert not {"launch_bound", "host_gaps"} & {each.rule for each in result.findings}
    assert not any(each.is_grave and each.found.saved_ns for each in result.findings)
    assert "holds it up" in verdict(trace)[0]
    assert "held up although work was queued" in verdict(trace)[1]


@pytest.mark.parametrize("events", [
    shared_device(before="cudaStreamWaitEvent"),  # queued behind a dependency
    shared_device(before="cudaLaunchHostFunc"),
    shared_device(launch="cudaGraphLaunch"),  # nodes of a graph may wait for each other
    shared_device(clock_ns=3 * MS, turns=0),  # all work seems late: clocks
    shared_device(turns=8),
    shared_device(turns=0),
    shared_device(load_ns=MS),
], ids=["event", "host_function", "graph", "clocks", "none_at_once", "healthy", "loading"])  # fmt: skip
def test_other_late_work_has_no_such_cause(events: list[Event]) -> None:
    assert held_up(made(*events)) is None


@pytest.mark.parametrize("turns", [2, 4, 7])
def test_the_more_it_is_held_up_the_more_is_told(turns: int) -> None:
    """Metamorphic: each turn of another process adds its 2.3 ms, and nothing else."""
    held = held_up(made(*shared_device(turns=turns)))
    assert int((held.end - held.start).sum()) == pytest.approx(3 * turns * 2.3 * MS, rel=0.02)


def shared_queue(late_ns: int, streams: int = 1, graph: int = -1, **calls: int) -> list[Event]:
    """Three steps of 60 kernels of 0.1 ms, launched within 0.6 ms; the sixth of ten begins ``late_ns`` after the one
    before has ended. ``calls``: before the launch at which place of ten. That at ``graph`` is of a graph."""
    events = list[Event]()
    for row in range(180):
        at, place = row // 60 * 100 * MS + row % 60 * 10_000, row % 10
        start = max(events[-1].end if events else 0, at + 9_000) + late_ns * (place == 5)
        events += [call(name, at - 4_000, at - 2_000, correlation=900 + at) for name in calls if calls[name] == place]
        events += [call("cudaGraphLaunch" if place == graph else "cudaLaunchKernel", at, at + 9, correlation=1 + row)]
        events += [kernel("add", start, start + 100_000, correlation=1 + row, stream=7 + 9 * (place % streams))]
    return [*events, *(annotation(f"ProfilerStep#{at}", 100 * MS * at, 100 * MS * at + 9 * MS) for at in range(3))]


@pytest.mark.parametrize(("late_ns", "options", "is_told"), [
    (700_000, {}, True),
    (500_000, {"cudaStreamWaitEvent": 4}, True),
    (500_000, {"cudaStreamWaitEvent": 5}, False),
    (500_000, {"cudaLaunchKernel": 5}, False),  # its kernel is lost
    (500_000, {"cudaMemcpyAsync": 5}, False),  # its copy is lost
    (500_000, {"graph": 4}, False),  # not all of its nodes are recorded
    (500_000, {"streams": 2}, False),  # what one waits for of the other was not recorded
    (100_000, {}, False),
])  # fmt: skip
def test_queued_work_that_begins_late_is_held_up(late_ns: int, options: dict[str, int], is_told: bool) -> None:
    """Metamorphic: as another process takes a busy device for so long again and again."""
    held = held_up(made(*shared_queue(late_ns, **options)))
    assert ([] if held is None else (held.end - held.start).tolist()) == [late_ns] * 18 * is_told


@pytest.mark.parametrize(("late_ns", "is_one_graph", "share"), [
    (2 * MS, True, 0.1), (4 * MS, True, 0.2), (2 * MS, False, 0), (18_000, True, 0),
])  # fmt: skip
def test_within_a_graph_work_waits_for_nothing_else(late_ns: int, is_one_graph: bool, share: float) -> None:
    """Metamorphic: the hole of kernels that are missing, twice as long, between two graphs, and a short one."""
    events = list[Event]()
    for number in range(40):
        at, later = 20 * MS * number, number if is_one_graph else 100 + number
        events += [call("cudaGraphLaunch", at, at + 9_000, correlation=number)]
        events += [call("cudaGraphLaunch", at + 10_000, at + 19_000, correlation=100 + number)]
        runs = (at + 30_000, number), (at + 40_000 + late_ns, later), (at + 50_000 + late_ns, 100 + number)
        events += [kernel("gemm", begin, begin + 9_000, correlation=launch) for begin, launch in runs]
        events += [annotation(f"ProfilerStep#{number}", at, at + 20 * MS)]
    trace = made(*events)
    assert idle_ratio_in_graphs(trace) == pytest.approx(share, rel=0.02)
    answer = partial_recording.check(trace)
    assert (
        isinstance(answer, Found) and "while CUDA graphs that were launched should run" in title_of(answer)
    ) == bool(share)


@pytest.mark.parametrize(("gpu", "work"), [("H100", 1.0), ("T4", 0.1), ("A100", 0.1)])  # up to 400, 500 and 90 µs each
@pytest.mark.parametrize("lost", [0.0, 0.3, 0.6])
def test_graphs_that_lose_kernels_are_told_from_launches_that_do(
    gpu: str, work: float, lost: float, tmp_path: Path
) -> None:
    """Truth: a simulated job with a graph for each layer, whole, or without some of the kernels, at random."""
    document = load(simulate(replace(JOB, gpu=gpu, work=work, graphs=True), tmp_path)[0][0])
    rows = document["traceEvents"]
    graphs = {each["args"]["correlation"] for each in rows if each["name"] == "cudaGraphLaunch"}
    kernels = [each for each in rows if each.get("cat") == "kernel"]
    for of_graphs in (True, False):
        some = [each for each in kernels if (each["args"]["correlation"] in graphs) == of_graphs]
        gone = {id(each) for each in Random(7).sample(some, int(lost * len(some)))}
        trace = trace_of(document | {"traceEvents": [each for each in rows if id(each) not in gone]}, tmp_path)
        answer, findings = partial_recording.check(trace), diagnose(trace).findings
        problem = answer.seen.problem if isinstance(answer, Found) else None
        assert problem == (None if not lost else "idle_in_graphs" if of_graphs else "lost_kernels")
        assert problem is None or all(each.found.confidence == "low" for each in findings if each.found.saved_ns)


def test_recorded_graphs_have_the_holes_of_plain_sums() -> None:
    """In µs, of raw rows: 20 and more before work of a graph of which other work has begun, or 1000 where it was
    launched when the device became idle."""
    path = real_trace("hta_a100_rank0_of_16/negative_queue_length_rank0.json.gz")
    rows = [each for each in load(path)["traceEvents"] if each.get("ph") == "X"]
    launches = [each for each in rows if each["name"] == "cudaGraphLaunch"]
    graphs = {each["args"].get("correlation"): float(each["ts"]) + float(each["dur"]) for each in launches}
    holes, begun, end = list[float](), set[int](), float("inf")
    for each in sorted((each for each in rows if each.get("cat") in GPU), key=lambda each: float(each["ts"])):
        graph, start = each["args"]["correlation"], float(each["ts"])
        least = 20 if graph in begun else 1000 if graphs.get(graph, end) < end else float("inf")
        holes += [start - end] * (start - end >= least and graph in graphs)
        end = max(start + float(each["dur"]), end if begun else 0)
        begun.add(graph)
    gaps = idle_in_graphs(read(path))
    assert [*(gaps.end - gaps.start)] == [1000 * hole for hole in holes]
    assert len(holes) == 188


@pytest.mark.parametrize("name", [*REAL[:-1], "hta_sampled_2_of_128/sampled_rank-0.json.gz"])
def test_recorded_devices_begin_what_alone_is_queued(name: str) -> None:
    """Plainly, in µs: how late work begins that was launched when all earlier work had ended; graphs apart,
    and not of a file whose categories have former names."""
    path = real_trace(name)
    rows = [each for each in load(path)["traceEvents"] if each.get("ph") == "X"]
    calls = {each["args"].get("correlation"): each for each in rows if each.get("cat") in CALLS}
    work = sorted((each for each in rows if each.get("cat") in GPU), key=lambda each: float(each["ts"]))
    late, end = 0.0, float("inf")
    for each in work:
        launch = calls.get(each["args"].get("correlation"), {"name": "Graph", "ts": 0, "dur": 0})
        returned = float(launch["ts"]) + float(launch["dur"])
        if "Graph" not in launch["name"] and returned >= end:
            late += max(float(each["ts"]) - returned - 200.0, 0.0)
        end = max(0.0 if end == float("inf") else end, float(each["ts"]) + float(each["dur"]))
    assert late < 0.1 * (end - float(work[0]["ts"]))
    assert held_up(read(str(path))) is None
