"""A host that fetches a batch in many short operators is slow in loading, not in launching: times in µs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import truth
from msgspec.structs import replace
from simulated_jobs import changed

from augment.core.trace import Category, Trace, Track
from augment.diagnosis import rule
from augment.diagnosis.host_causes import _long_handovers
from augment.diagnosis.judging import delay_ns, measure
from augment.diagnosis.ranking import diagnose
from augment.diagnosis.rule import Found
from augment.diagnosis.rules import data_loading, exposed_communication, host_gaps, launch_bound, starved_host
from augment.diagnosis.verdict import verdict
from augment.readers import read
from metamorphic import CALLS, GPU_WORK, REAL, Document, load, real_trace, save
from said import advice_of, evidence_of, problem_of, title_of
from simulator import simulate
from tables import Event, annotation, call, kernel, launched_kernel, op, python, trace_of

STEP = 40_000


def step(number: int, fetch: str) -> list[Event]:
    """20 ms of short operators, then 20 kernels of 900 µs, launched within 400 µs."""
    begin = number * STEP
    events = [annotation(f"ProfilerStep#{number}", begin, begin + STEP), annotation(fetch, begin, begin + 20_000)]
    events += [op("aten::stack", begin + at, begin + at + 90) for at in range(0, 20_000, 100)]
    for place in range(20):
        at, correlation = begin + 20_000 + 20 * place, 1 + 20 * number + place
        start = begin + 20_030 + 900 * place
        events += launched_kernel("gemm", (at, at + 10), (start, start + 899), correlation=correlation)
    return events


def in_us(events: Iterable[Event]) -> Trace:
    return trace_of(*(replace(event, ts=event.ts * 1000, end=event.end * 1000) for event in events))


def run(fetch: str) -> Trace:
    return in_us(event for number in range(4) for event in step(number, fetch))


def test_fetching_is_not_launching() -> None:
    loading = run("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__")
    assert isinstance(data_loading.check(loading), Found)
    assert not isinstance(launch_bound.check(loading), Found)
    for around, first in (
        ("forward", "Launch many kernels"),
        ("Optimizer.zero_grad#SGD.zero_grad", "Call zero_grad(set_to"),
    ):
        assert advice_of(problem_of(launch_bound.check(run(around)))).startswith(first)


def graphed(kernels: int, alone: int, around: str) -> Trace:
    """Steps of a graph of some short kernels, and of some more with a launch each, all with a slow host."""
    events, at = list[Event](), 0
    for step_number in range(4):
        begin = at
        for place in range(1 + alone):
            correlation, runs = 1 + 100 * step_number + place, range(kernels if place == 0 else 1)
            name = "cudaGraphLaunch" if len(runs) > 1 else "cudaLaunchKernel"
            events += [op(around, at, at + 95), call(name, at + 80, at + 90, correlation=correlation)]
            events += [kernel("gemm", at + 95 + 6 * n, at + 100 + 6 * n, correlation=correlation) for n in runs]
            at += 100 + 6 * len(runs)
        events.append(annotation(f"ProfilerStep#{step_number}", begin, at))
    return in_us(events)


@pytest.mark.parametrize(
    ("kernels", "alone", "around", "advice"),
    [
        (24, 12, "aten::mm", "The kernels are launched by graphs already"),
        (8, 12, "aten::mm", "Launch many kernels"),
        (1, 12, "Torch-Compiled Region: 0/0", "Launch many kernels at once with CUDA graphs"),
    ],
)  # fmt: skip
def test_what_most_kernels_are_launched_by_is_not_advised(kernels: int, alone: int, around: str, advice: str) -> None:
    said = advice_of(problem_of(launch_bound.check(graphed(kernels, alone, around))))
    assert said.startswith(advice)
    assert ("fuse small kernels with torch.compile" in said) == (kernels == 8)


@pytest.mark.parametrize(("waits", "breaks"), [(5, True), (11, False), (12, False)])
def test_no_graph_holds_calls_that_wait(waits: int, breaks: bool) -> None:
    """In each of four steps of 12 launches one call waits: after the sixth, after the last, or none."""
    events, at = list[Event](), 0
    for number in range(4):
        begin = at
        for place in range(12):
            events += launched_kernel(
                "gemm", (at + 80, at + 90), (at + 95, at + 100), correlation=1 + 100 * number + place
            )
            events.append(op("aten::mm", at, at + 91))
            if place == waits:
                events += [op("aten::item", at + 92, at + 104), call("cudaStreamSynchronize", at + 93, at + 103)]
            at += 110
        events.append(annotation(f"ProfilerStep#{number}", begin, at))
    said = advice_of(problem_of(launch_bound.check(in_us(events))))
    taken = "; a graph cannot hold calls that wait for the GPU: move these out first (1 call per step, in aten::item)"
    assert said.endswith(f"use a larger batch{taken * breaks}")


def between_launches(rows: list[Any], steps: list[str]) -> list[int]:
    """Plainly, in each of these steps: the calls between its first launch of a recorded kernel and its last one that
    synchronize, or copy and return when that is done."""
    work = {name: [each for each in rows if each.get("cat") == name] for name in ("kernel", "gpu_memcpy")}
    done = {each["args"]["correlation"]: each["ts"] + each["dur"] for each in work["gpu_memcpy"]}
    kernels = {each["args"]["correlation"] for each in work["kernel"]}
    calls = [(each, each["args"].get("correlation")) for each in rows if each.get("cat") in CALLS]
    waits = [(each["ts"], number) for each, number in calls
             if "Synchronize" in each["name"] or each["ts"] + each["dur"] >= done.get(number, 1e18)]  # fmt: skip
    launches, of_step = [each["ts"] for each, number in calls if number in kernels], list[list[int]]()
    for step in (each for each in rows if each["name"] in steps and each["cat"] in ("user_annotation", "cpu_op")):
        inside = [ts for ts in launches if step["ts"] <= ts < step["ts"] + step["dur"]]
        of_step.append([number for ts, number in waits if min(inside) < ts < max(inside)])
    return of_step


@pytest.mark.parametrize(("name", "count", "is_told"), [
    ("dlrm_8rank_v100_param/kineto/worker0_step_12.pt.trace.json.gz", 12, True),
    ("hta_trace_diff_pair/control.json.gz", 20, True),
    ("hta_sampled_2_of_128/sampled_rank-0.json.gz", 3.5, True),
    ("hta_nccl/nccl_data.json.gz", 1 / 3, False),  # less than one per step
])  # fmt: skip
def test_recorded_calls_that_break_a_capture_are_counted(
    name: str, count: float, is_told: bool, tmp_path: Path
) -> None:
    """By raw rows. Metamorphic: without these calls, and what they copy, no hint is left, but the rest is."""
    document, trace = load(real_trace(name)), read(str(real_trace(name)))
    rows = [each for each in document["traceEvents"] if each.get("ph") == "X"]
    waits = between_launches(rows, [f"ProfilerStep#{each}" for each in measure(trace).windows.number.tolist()])
    said = problem_of(launch_bound.check(trace))
    assert said.seen.figures["wait_count"] == pytest.approx(sum(map(len, waits)) / len(waits)) == pytest.approx(count)
    assert ("calls that wait for the GPU: move" in advice_of(said)) == is_told
    gone = {number for of_step in waits for number in of_step}
    kept = [each for each in document["traceEvents"] if (each.get("args") or {}).get("correlation") not in gone]
    path = save(document | {"traceEvents": kept}, tmp_path / "without.json")
    assert advice_of(said).startswith(advice_of(problem_of(launch_bound.check(read(str(path))))))


@pytest.mark.parametrize(("loader", "saves"), [("_SingleProcess", True), ("_MultiProcessing", False)])
def test_what_workers_pace_no_other_cure_makes_shorter(loader: str, saves: bool) -> None:
    """In each step of 40 ms a fetch of 20 and a wait for 18 ms of kernels. A fetch by the main process could begin when
    they are launched; a batch of workers comes when it comes."""
    fetch = f"enumerate(DataLoader)#{loader}DataLoaderIter.__next__"
    events = [event for number in range(4) for event in step(number, fetch)]
    events += [call("cudaDeviceSynchronize", n * STEP + 20_500, n * STEP + 38_200) for n in range(4)]
    first, *rest = diagnose(in_us(events)).findings
    assert first.rule == "data_loading"
    assert [each.limit for each in rest if each.rule == "synchronizing_calls"] == [None if saves else "batches"]
    assert any(each.found.saved_ns for each in rest) == saves


def bursts(pause: int, name: str) -> Iterable[Event]:
    """Ten times 20 kernels, then a wait for them and a ``pause`` of which nothing is recorded."""
    at = 0
    for number in range(200):
        yield op(name, at, at + 90)
        yield from launched_kernel("gemm", (at, at + 10), (at + 20, at + 100), correlation=1 + number)
        at += 100
        if number % 20 == 19:
            yield call("cudaStreamSynchronize", at - 50, at + 5)
            at += pause


@pytest.mark.parametrize(("name", "confidence"), [("aten::mm", "low"), ("autograd::engine::execute", "medium")])
def test_a_host_of_which_nothing_is_recorded_may_have_no_requests(name: str, confidence: str) -> None:
    stalls = problem_of(host_gaps.check(in_us(bursts(20_000, name))))
    assert stalls.confidence == confidence


def test_a_thread_that_waits_for_another_does_not_stall_for_so_long(tmp_path: Path) -> None:
    """All is launched by another thread, which stands still for 15 ms of each step."""
    if not truth.GENERATOR.exists():
        pytest.skip(f"no generator at {truth.GENERATOR}")
    (rank,) = truth.drawn("single", 5, {"reads_loss": True}).world({"host_gap_end": 15_000}, None).ranks
    for event in rank.ev:
        if isinstance(event, dict) and not event["name"].startswith("ProfilerStep"):
            event["tid"] = 4_500
    rank.write(str(tmp_path / "rank0.json"))
    stalls = problem_of(host_gaps.check(read(tmp_path / "rank0.json")))
    assert isinstance(stalls.seen, host_gaps.HostGaps)
    assert stalls.seen.longest_ns == pytest.approx(15_000_000, rel=0.05)


def going_on(steps: int, waits: bool) -> Trace:
    """Steps whose host takes 5 ms for ten short kernels and a long one, of 15 ms; it ``waits`` for that, or goes on."""
    events, at, free = list[Event](), 0, 0
    for number in range(steps):
        begin = at
        for place, dur in enumerate([50] * 10 + [15_000]):
            start = max(at + 20, free)
            times = (at, at + 10), (start, start + dur)
            events += launched_kernel("gemm", *times, correlation=1 + 20 * number + place)
            events.append(op("aten::mm", at, at + 450))
            at, free = at + 450, start + dur
        if waits:
            events.append(call("cudaDeviceSynchronize", at, free))
        at = free + 20 if waits else at
        events.append(annotation(f"ProfilerStep#{number}", begin, at))
    return in_us(events)


@pytest.mark.parametrize(("waits", "of_single"), [(False, "low"), (True, "medium")])
def test_a_single_step_does_not_prove_that_the_host_is_late(waits: bool, of_single: str) -> None:
    """Truth: the same steps one after the other. The device waits again only where the host has waited for it."""
    single = problem_of(launch_bound.check(going_on(1, waits)))
    assert single.confidence == of_single
    several = problem_of(launch_bound.check(going_on(4, waits)))
    assert several.in_step == (None if waits else 0)


@pytest.mark.parametrize("other", ["stall after the optimizer", "batch on the stream", "malloc in steps", "slow host"])
def test_late_batches_limit_what_other_cures_promise(other: str) -> None:
    """Two faults at once: what is promised of the second, beside a re-simulation without it."""
    if not truth.GENERATOR.exists():
        pytest.skip(f"no generator at {truth.GENERATOR}")
    kind, chance = truth.KINDS[other], np.random.default_rng(7)
    work = truth.drawn("single", 7, kind.work)
    step = truth.length(work.world({}, None))
    fault, slow = kind.draw(chance, step), {"loader": ("multi", 2.5 * step)}
    world = work.world({**slow, **fault}, None)
    run = truth.judged(world)
    true = 1 - truth.length(work.world(slow, None), run) / truth.length(world, run)
    (promised,) = (each.saved for each in run.findings if each.rule in kind.rules)
    assert "data_loading" in run.of_verdict
    assert promised == pytest.approx(true, abs=0.03)


@pytest.mark.parametrize(("stall_us", "long"), [(0, False), (600, True)])
def test_a_stall_below_a_millisecond_is_told_from_launching(stall_us: int, long: bool, tmp_path: Path) -> None:
    if not truth.GENERATOR.exists():
        pytest.skip(f"no generator at {truth.GENERATOR}")
    work = truth.drawn("single", 7, {"scale": 0.1, "reads_loss": True})
    (rank,) = work.world({"host_gap_end": stall_us} if stall_us else {}, None).ranks
    rank.write(str(tmp_path / "rank0.json"))
    answer = launch_bound.check(read(tmp_path / "rank0.json"))
    assert isinstance(answer, Found | rule.Fine)
    assert isinstance(answer.seen, launch_bound.LaunchBound)
    assert (2 * answer.seen.long_ns > answer.seen.wait_ns) == long


@pytest.mark.parametrize(
    ("around", "where"), [("forward", "outside operators"), ("## Call CompiledFxGraph f ##", "in compiled regions")]
)
def test_where_the_time_of_the_host_goes_is_told(around: str, where: str) -> None:
    """Before the first kernel of three of four steps, 200 operators take 90 µs each, with 10 µs between."""
    answer = problem_of(launch_bound.check(run(around)))
    assert title_of(answer) == "The GPU idles 15 ms per step while the host launches 20 kernels"
    first, *_, last = evidence_of(answer)
    assert first == "the GPU idles longest while the host is in aten::stack (14 ms)"
    assert last.startswith(f"where the host is in that idle time: 14 ms in operators and 1.5 ms {where}")


def test_steps_that_were_recorded_as_operators_are_steps() -> None:
    """As profilers of 2021 did."""
    events = [event for number in range(4) for event in step(number, "forward")]
    steps = [each for each in events if each.name.startswith("ProfilerStep")]
    old = [replace(each, category=Category.CPU_OP) if each in steps else each for each in events]
    now, then = (launch_bound.check(in_us(each)) for each in (events, old))
    assert isinstance(now, Found)
    assert isinstance(then, Found)
    assert (title_of(then), evidence_of(then)) == (title_of(now), evidence_of(now))


def test_a_long_kernel_that_ends_before_its_call_tells_no_waits() -> None:
    events, at = list[Event](), 0
    for number in range(1, 81):
        ran = launched_kernel("add", (at + 5, at + 12), (at + 20, at + 23), correlation=number)
        events += [op("aten::add", at, at + 30), *ran]
        at += 40
    events += launched_kernel("long", (at, at + 100), (at + 10, at + 90), correlation=99)
    answer = problem_of(launch_bound.check(in_us([annotation("ProfilerStep#0", 0, at + 100), *events])))
    assert "waits for each" not in title_of(answer)


def test_room_in_a_full_queue_is_no_limit_of_the_host() -> None:
    """The host launches 400 kernels a step in 2 ms, up to 1023 ahead; each 400th communicates for 8 ms."""
    events, begins, at, ends = list[Event](), list[int](), 0, [0]
    for number in range(1, 4_000):
        called, at = at, max(at + 5, (ends[number - 1023] if number > 1023 else 0) + 4)
        name, takes = ("gemm", 20) if number % 400 else ("ncclDevKernel_AllReduce", 8_000)
        start = max(ends[-1] + 1, at + 3)
        ends.append(start + takes)
        events += launched_kernel(name, (called, at), (start, ends[-1]), correlation=number)[number < 1_600 :]
        begins += [called] * (number >= 1_600 and number % 400 == 0)
    steps = [annotation(f"ProfilerStep#{place}", *each) for place, each in enumerate(pairwise([*begins, at]))]
    trace = in_us([*steps, *events])
    saved = problem_of(exposed_communication.check(trace)).saved_ns or 0
    assert measure(trace).ratio(saved) == pytest.approx(8_000 / (8_000 + 400 * 21), abs=0.05)


@pytest.mark.parametrize(("stall", "bound"), [(3_000, True), (500, False)])
def test_a_faster_host_that_hides_a_stall_saves_at_least_its_own_waits(stall: int, bound: bool) -> None:
    """For 530 µs the host launches a kernel of 3 ms, then works for 2 ms, stalls, and launches one of 1 ms. A host that
    launches in no time saves the 530 µs, and begins its stall 2 ms earlier, while the device works."""
    events, length = [], 4_600 + max(stall, 1_000)
    for number in range(8):
        begin = number * length
        late = begin + 2_530 + stall
        second = max(late, begin + 3_540)
        events += [annotation(f"ProfilerStep#{number}", begin, begin + length)]
        events += [
            op("aten::stack", begin + at, begin + at + 90) for at in (*range(0, 500, 100), *range(520, 2520, 100))
        ]
        events += [
            call("cudaLaunchKernel", begin + 500, begin + 510, correlation=2 * number + 1),
            kernel("gemm", begin + 520, begin + 3_520, correlation=2 * number + 1),
            *launched_kernel("gemm", (late - 10, late), (second, second + 1_000), correlation=2 * number + 2),
            call("cudaDeviceSynchronize", late + 5, second + 1_005),
        ]
    answer = problem_of(launch_bound.check(in_us(events)))
    assert answer.saved_ns == pytest.approx(7 / 8 * 530_000, rel=0.05), "before the first kernel of all is no wait"
    assert answer.seen.at_least == bound


MS = 1_000_000


def backward_then_optimizer(stall: int, before: int = 0, spread: int = 0) -> Trace:
    """Three steps of a forward kernel, a backward one on another thread, and the optimizer's, which is launched
    ``stall`` after the backward pass ended; that begins ``before`` later than the main thread went into it. ``spread``:
    operators of this thread fill the stall."""
    events, at = [], 0
    for step in range(3):
        begin, thread = at, 1
        for place, name in enumerate(("aten::mm", "autograd::engine::evaluate_function: MmBackward0", "aten::adam")):
            at += (0, before, stall)[place] + 20_000
            thread = 2 if place == 1 else 1
            number = 3 * step + place + 1
            events += [op(name, at, at + 40_000, thread=thread)]
            events += [call("cudaLaunchKernel", at + 10_000, at + 20_000, thread=thread, correlation=number)]
            events += [kernel(name, at + 30_000, at + 130_000, correlation=number)]
            at += 150_000
        if spread:
            starts = range(at - stall - 100_000, at - 100_000, 10_000)
            events += [op("aten::stack", start, start + 8_000, thread=spread) for start in starts]
        events += [annotation(f"ProfilerStep#{step}", begin, at)]
    return trace_of(*events)


@pytest.mark.parametrize(("stall", "before"), [(2, 0), (4, 0), (8, 0), (16, 0), (0, 8)])
def test_a_stall_between_threads_is_a_stall_of_the_host(stall: int, before: int) -> None:
    """Nothing is recorded between the backward pass and the optimizer, or before. Metamorphic: longer saves more."""
    answer = problem_of(host_gaps.check(backward_then_optimizer(stall * MS, before * MS)))
    assert answer.saved_ns == pytest.approx(max(stall, before) * MS, rel=0.1)
    assert answer.confidence == "medium"


@pytest.mark.parametrize("busy", [False, True])
def test_only_stalls_in_which_the_device_idles_are_shown(busy: bool) -> None:
    """The device works through the first stall of each step, if ``busy``, and idles in the second."""
    events, at = [], 0
    for step in range(3):
        begin = at
        for place, stall in enumerate((6 * MS, 4 * MS)):
            number, length = 2 * step + place + 1, (5_990_000, 100_000)[place] if busy else 100_000
            events += [op("aten::mm", at, at + 40_000)]
            ran = at + 30_000, at + 30_000 + length
            events += launched_kernel("gemm", (at + 10_000, at + 20_000), ran, correlation=number)
            at += 40_000 + stall
        events += [annotation(f"ProfilerStep#{step}", begin, at)]
    answer = problem_of(host_gaps.check(trace_of(*events)))
    assert isinstance(answer.seen, host_gaps.HostGaps)
    assert answer.seen.longest_ns == pytest.approx(4 * MS if busy else 6 * MS, rel=0.05)
    assert len(answer.spans) == (3 if busy else 6)


def test_a_thread_that_waits_for_the_work_of_another_does_not_stall() -> None:
    """But for one that launches nothing, whether main waits for it or not: it keeps the device no less idle."""
    answer = problem_of(host_gaps.check(backward_then_optimizer(8 * MS, spread=3)))
    assert answer.saved_ns == pytest.approx(8 * MS, rel=0.1)
    assert not isinstance(host_gaps.check(backward_then_optimizer(8 * MS, spread=2)), Found)
    assert not isinstance(host_gaps.check(backward_then_optimizer(0)), Found)


@pytest.mark.parametrize("name", ["hta_tiny/backward_thread.json", "hta_sampled_2_of_128/sampled_rank-0.json.gz"])
def test_no_operator_begins_in_recorded_stalls_between_threads(name: str) -> None:
    """Plainly: between the end of the last operator before each, and the next operator, are as many ns."""
    path = real_trace(name)
    operators = [each for each in load(path)["traceEvents"] if each.get("ph") == "X" and each.get("cat") == "cpu_op"]
    begun = np.array([int(each["ts"] * 1000) for each in operators])
    ended = begun + [int(each["dur"] * 1000) for each in operators]
    stalls, _ = _long_handovers(read(str(path)))
    assert len(stalls)
    for start, end in zip(stalls.start, stalls.end, strict=True):
        assert not ((begun > start) & (begun < end)).any()
        assert not ((ended > start) & (ended < end)).any()


@pytest.mark.parametrize(("queued", "delay"), [(0, 1_000), (64, 1_500)])
def test_between_kernels_a_delay_remains(queued: int, delay: int) -> None:
    """200 kernels of 5 µs come every 8 µs, as the host launches them; where others were queued, 1.5 µs lie between."""
    events = [annotation("ProfilerStep#0", 0, 2_400_000)]
    for place in range(200):
        at = 8_000 * place
        events += launched_kernel("gemm", (at, at + 7_000), (at + 9_000, at + 14_000), correlation=place + 1)
    for place in range(queued):
        start = 1_700_000 + 6_500 * place
        events += [
            call("cudaLaunchKernel", 1_601_000 + 100 * place, 1_601_090 + 100 * place, correlation=1_000 + place),
            kernel("gemm", start, start + 5_000, correlation=1_000 + place),
        ]
    trace = trace_of(*events)
    answer = problem_of(launch_bound.check(trace))
    assert delay_ns(trace) == delay
    assert queued or answer.saved_ns == pytest.approx(199 * (3_000 - delay), abs=20_000)


# A host that stands still in whatever it happens to do gets no CPU; one that stands still in one thing does
# that.
STALL = 8 * MS
HOST = (*CALLS, "cpu_op", "user_annotation", "python_function")
JOB = changed(ranks=1, work=0.01, collectives="none", run_ahead=None)


def run_standing(
    stalls: dict[int, str], names: tuple[str, ...], kernel_ns: int = 10_000, system_call: str = "", threads: int = 1
) -> Trace:
    """Four steps of 400 operators of 10 µs each, in turn of ``names``; every second one launches a kernel. ``stalls``:
    the operators, by number, that last 8 ms longer, and whether ``in`` them, in their ``call`` or ``after`` them;
    meanwhile the thread is in ``system_call``. Of two ``threads``, the second has half of each step."""
    events: list[Event] = []
    at = free = 0
    for step in range(4):
        begin = at
        for number in range(400 * step, 400 * step + 400):
            where, name = stalls.get(number, ""), names[number % len(names)]
            took, in_call = (STALL if where in ("in", "call") else 0), (STALL if where == "call" else 0)
            thread = 1 + number % 400 // 200 * (threads - 1)
            events.append(op(name, at, at + 10_000 + took, thread=thread))
            if number % 2 == 0:
                events.append(
                    call("cudaLaunchKernel", at + 2_000, at + 6_000 + in_call, thread=thread, correlation=number + 1)
                )
                start = max(at + 9_000 + in_call, free)
                events.append(kernel("k", start, start + kernel_ns, correlation=number + 1))
                free = start + kernel_ns
            if system_call and where:
                events.append(Event(Category.OS_RUNTIME, system_call, at + 4_000, at + STALL, Track(0, 100, 1)))
            at += 12_000 + took + (STALL if where == "after" else 0)
        events.append(annotation(f"ProfilerStep#{step}", begin, at))
    return trace_of(*events)


NAMES = ("aten::add", "aten::view", "aten::mm", "aten::transpose", "aten::mul", "aten::as_strided")
PLACES = ("in", "call", "after")
#: two in each step, in operators that launch, in views, in launches, and between
STARVED = {205 * i + 50: PLACES[i % 3] if i % 2 == 0 else "in" for i in range(8)}


@pytest.mark.parametrize("threads", [1, 2])
def test_standstills_anywhere_are_a_host_without_cpu(threads: int) -> None:
    trace = run_standing(STARVED, NAMES, threads=threads)
    answer = problem_of(starved_host.check(trace))
    assert answer.confidence == "medium"
    assert threads == 2 or answer.saved_ns == pytest.approx(2 * STALL, rel=0.02)
    assert "its thread probably gets no CPU" in title_of(answer)
    assert "long_calls" not in {each.rule for each in diagnose(trace).findings}  # told once
    assert isinstance(host_gaps.check(trace), rule.NotApplicable)


def test_a_thread_that_waits_in_the_operating_system_does_not_lack_a_cpu() -> None:
    assert not isinstance(starved_host.check(run_standing(STARVED, NAMES, system_call="futex")), Found)


@pytest.mark.parametrize(("stalls", "names", "kernel_ns"), [
    ({}, NAMES, 10_000),
    (dict.fromkeys(STARVED, "after"), NAMES, 10_000),  # garbage collection, or a lock, between operators
    (STARVED, ("aten::copy_",), 10_000),  # one name: it does something
    ({number: "in" for number in STARVED if number % 2}, ("aten::mm", "aten::stack"), 10_000),  # work on the CPU
    ({number // 8: where for number, where in STARVED.items()}, NAMES, 10_000),  # the start
    (STARVED, NAMES, 2 * MS),  # the device has work all the time
], ids=["healthy", "between_operators", "one_name", "work_on_the_cpu", "start", "busy_device"])  # fmt: skip
def test_other_standstills_have_other_causes(stalls: dict[int, str], names: tuple[str, ...], kernel_ns: int) -> None:
    assert not isinstance(starved_host.check(run_standing(stalls, names, kernel_ns)), Found)


@pytest.mark.parametrize("loads", [True, False])
def test_first_launches_of_kernels_do_not_lack_a_cpu(loads: bool) -> None:
    """Operators that are called once, throughout a recording, whose launches take 8 ms."""
    events: list[Event] = []
    for number in range(400):
        slow, at = number % 80 == 40, 20_000 * number + (number + 39) // 80 * STALL
        until = at + 6_000 + slow * STALL
        label = f"first_{number}" if slow and loads else "k"
        events.append(op(f"aten::op_{number if slow else 0}", at, until + 4_000))
        events += launched_kernel(label, (at + 2_000, until), (until + 1_000, until + 9_000), correlation=number + 1)
    assert isinstance(starved_host.check(trace_of(*events)), Found) != loads


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
        begin, last = float(each.get("ts", 0)), float(each.get("ts", 0)) + float(each.get("dur", 0))
        later = {"ts": begin + 8_000 * sum(moment < begin for moment in moments)} if "ts" in each else {}
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


# Recordings without a device: where the host's time goes, also outside of operators.
LONG_STEP = annotation("ProfilerStep#0", 0, 100 * MS)


def test_time_outside_of_operators_counts() -> None:
    few = op("aten::mm", 0, 14 * MS)
    (named,) = verdict(trace_of(LONG_STEP, few, python("<built-in function collect>", 15 * MS, 97 * MS)))[:1]
    assert "For 86 % of a step of 100 ms, no recorded thread runs an operator" in named
    assert "95 % in <built-in function collect>" in named
    assert named.index("collect") < named.index("aten::mm")
    (unknown,) = verdict(trace_of(LONG_STEP, few))[:1]
    assert "For 86 %" in unknown
    assert "waits for, was not recorded" in unknown
    (elsewhere,) = verdict(trace_of(LONG_STEP, few, op("aten::mul", 10 * MS, 98 * MS, thread=2)))[:1]
    assert "no recorded thread runs an operator" not in elsewhere
    (healthy,) = verdict(trace_of(LONG_STEP, op("aten::mm", 0, 95 * MS)))[:1]
    assert "All operators of the recording take 95 ms: 100 % in aten::mm." in healthy


@pytest.mark.parametrize("region", [60, 95])
def test_loops_of_compiled_regions_on_a_host_are_told(region: int) -> None:
    """As PyTorch 2.13 records them without and with ``cpp.enable_kernel_profile``."""
    events = [op("Torch-Compiled Region: 0/0", 0, 98 * MS), annotation("## Call CompiledFxGraph f5d ##", MS, 97 * MS)]
    events += [op("aten::mm", 2 * MS, 42 * MS), op("graph_0_cpp_fused_mul_0", 42 * MS, (region + 2) * MS)]
    said = verdict(trace_of(LONG_STEP, *events))[0]
    assert ("loops that torch.compile made (torch._inductor.config.cpp.enable_kernel_profile=True" in said) == (
        region < 90
    )
    assert "no recorded thread runs an operator" not in said


def test_steps_of_an_engine_on_a_host_are_told_by_what_they_compute() -> None:
    events, now = [], 0
    for count in (4, 8, 4, 4):
        name = f"execute_context_{count}({1024 * count})_generation_0(0)"
        events += [annotation(name, now * MS, (now + 10 * count) * MS)]
        events += [op("aten::mm", now * MS, (now + 9 * count) * MS)]
        now += 10 * count
    (said,) = verdict(trace_of(*events))[:1]
    assert (
        "vLLM prefills 4 sequences (4,096 new tokens) in 40 ms (3 of 4 steps) and prefills 8 sequences (8,192" in said
    )
    assert "new tokens) in 80 ms (1 of 4 steps)" in said


@pytest.mark.parametrize("longer", [0, 80])
def test_collectives_of_the_host_are_waits_for_others(longer: int) -> None:
    """Metamorphic: a collective that takes longer in a step makes that step an outlier by just that time."""
    events, now = [], 0
    for step in range(6):
        waits = 70 + (longer if step == 3 else 0)
        events.append(annotation(f"ProfilerStep#{step}", now * MS, (now + 30 + waits) * MS))
        events.append(op("aten::mm", (now + 5) * MS, (now + 25) * MS))
        events.append(annotation("gloo:all_reduce", (now + 25) * MS, (now + 25 + waits) * MS, thread=9))
        now += 30 + waits
    text = " ".join(verdict(trace_of(*events)))
    assert f"For {'70' if not longer else '74'} % of a mean step" in text
    assert "gloo:all_reduce waits for other ranks or the network (all ranks' traces show which). Mean" in text
    assert (
        "Step 3 takes 1.8 times the median of 100 ms; 100 % of the excess is time in collectives of the host" in text
    ) == bool(longer)
    assert ("save 13 ms per step (12 %)" in text) == bool(longer)


def standing(usual: int, others: list[Event]) -> str:
    """The verdict of a step of 100 ms. The main thread calls a function 24 times, which takes ``usual``, but 8 times
    10 ms."""
    events, at = [LONG_STEP, op("aten::mm", 0, MS)], MS
    for number in range(24):
        length = 10 * MS if number % 3 == 2 else usual
        events.append(python("data.py(7): parse", at, at + length))
        at += length + 1_000
    return verdict(trace_of(*sorted([*events, *others], key=lambda each: (each.ts, -each.end))))[0]


def test_threads_that_contend_for_the_interpreter_are_told_or_that_it_cannot_be_told() -> None:
    busy = [python("tok.py(3): split", 20_000 + at, 1_010_000 + at, thread=2) for at in range(0, 98 * MS, MS)]
    contended = standing(2_000, busy)
    assert "For 80 % of a step it stands still in Python code that usually takes microseconds, while other" in contended
    assert "threads run Python (tok.py(3): split): the GIL lets one run at a time" in contended
    elsewhere = [Event(each.category, each.name, each.ts, each.end, Track(0, 200, 2)) for each in busy]
    blocked = [python("queue.py(1): get", 0, 99 * MS, thread=2), python("<built-in acquire>", 1_000, 98 * MS, thread=2)]
    for others in ([], elsewhere, blocked):
        unknown = standing(2_000, others)
        assert "while no other thread runs Python: whether it gets no CPU, or waits for a lock" in unknown
        assert "GIL" not in unknown
    assert "stands still" not in standing(2 * MS, busy), "a function that usually takes long may do its own work"


@pytest.mark.parametrize(
    "name", ["hta_cpu_only/rank-34_of_300_cpu_only.pt.trace.json.gz", "hta_rank_missing/rank_non_gpu.json.gz"]
)
def test_recorded_time_outside_of_operators(name: str) -> None:
    """Plainly: the part of the steps in which no event of the category cpu_op lasts, or collectives beside none do."""
    path = real_trace(name)
    rows = [each for each in load(path)["traceEvents"] if each.get("ph") == "X"]
    steps = [each for each in rows if each["name"].startswith("ProfilerStep#")]
    whole = sum(float(step["dur"]) for step in steps)

    def covered(*chosen: dict[str, Any]) -> float:
        inside = 0.0
        spans = sorted((each["ts"], each["ts"] + each["dur"]) for each in chosen)
        for step in steps:
            reached, end = float(step["ts"]), float(step["ts"] + step["dur"])
            for start, stop in spans:
                if min(stop, end) > max(start, reached):
                    inside += min(float(stop), end) - max(float(start), reached)
                    reached = min(float(stop), end)
        return inside / whole

    operators = [each for each in rows if each.get("cat") == "cpu_op"]
    ran, collectives = covered(*operators), [each for each in rows if each["name"].startswith("gloo:")]
    waited = covered(*operators, *collectives) - ran
    said = re.search(r"For (\d+) % of a (?:mean )?step", verdict(read(str(path)))[0])
    assert said
    assert int(said[1]) == round(100 * (waited or 1 - ran))


@pytest.mark.parametrize("awaited", [True, False])
def test_a_stretch_that_ends_with_gpu_work_is_a_wait(awaited: bool) -> None:
    """In each of four steps an operator takes 9 ms without a call, until 50 µs after the kernel before it is done, or
    as long after a short one."""
    events: list[Event] = []
    for number in range(4):
        begin, length = 20 * MS * number, 9 * MS if awaited else MS
        events += [
            annotation(f"ProfilerStep#{number}", begin, begin + 20 * MS),
            call("cudaLaunchKernel", begin + 10_000, begin + 20_000, correlation=2 * number + 1),
            kernel("gemm", begin + 30_000, begin + length + 30_000, correlation=2 * number + 1),
            op("aten::cat", begin + 100_000, begin + 9 * MS + 80_000),
            call("cudaLaunchKernel", begin + 10 * MS, begin + 10 * MS + 10_000, correlation=2 * number + 2),
            kernel("gemm", begin + 10 * MS + 20_000, begin + 19 * MS, correlation=2 * number + 2),
            call("cudaDeviceSynchronize", begin + 10 * MS + 15_000, begin + 19 * MS + 50_000),
        ]
    assert isinstance(host_gaps.check(trace_of(*events)), Found) is not awaited


def test_no_recorded_stall_ends_with_the_work_that_it_waits_for() -> None:
    """Plainly: PyTorch's allocator waits inside ``aten::cat`` for the kernel of a collective, in no recorded call."""
    path = real_trace("v100_4rank_pair_torchrec/sst_sleep_pl_dense_after_backward_2/pid19488.pt.trace.json.gz")
    rows = [each for each in load(path)["traceEvents"] if each.get("cat") in GPU_WORK]
    work = [(int(each["ts"] * 1000), int((each["ts"] + each["dur"]) * 1000)) for each in rows]
    answer = host_gaps.check(read(str(path)))
    spans = answer.spans if isinstance(answer, Found) else rule.NOWHERE
    for start, end in zip(spans.start.tolist(), spans.end.tolist(), strict=True):
        assert not any(ts <= start and end - 100_000 <= done <= end for ts, done in work)
