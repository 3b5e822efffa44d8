"""Operators that launch a kernel for the first time and take long: by hand, simulated, changed, in real traces."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from statistics import median

import pytest
from simulated_jobs import changed
from test_rules_by_hand import problem_of

from augment import Trace, read
from augment.diagnosis import host_causes
from augment.diagnosis.first_calls import FAR_LONGER, LEAST_NS, LEAST_USUAL, cold_operators
from augment.diagnosis.judging import measure
from augment.diagnosis.rule import NotApplicable
from augment.diagnosis.rules import host_gaps, launch_bound
from metamorphic import Document, load, real_trace, save
from simulator import simulate
from tables import Event, call, kernel, launched_kernel, op, trace_of

US = 1_000
LATE = 3_000.0  #: µs that an operator takes longer in the changed job, in six parts
WARM = changed(ranks=1, steps=3, layers=4, collectives="none", work=0.05, run_ahead=None)


def launches(*calls: tuple[str, str, int]) -> Trace:
    """Operators one after the other: the name, the kernel that it launches at its end, how long it takes in µs."""
    events, at = list[Event](), 1_000 * US
    for number, (name, label, took) in enumerate(calls, 1):
        end = at + took * US
        events += [op(name, at, end), call("cudaLaunchKernel", at + US, end - US, correlation=number)]
        events.append(kernel(label, end, end + 3 * US, correlation=number))
        at = end + 2 * US
    return trace_of(*events)


USUAL = [("aten::conv2d", "conv_a", 40)] * 3


@pytest.mark.parametrize(("calls", "expected"), [
    ([("aten::conv2d", "conv_a", 900), *USUAL, ("aten::conv2d", "conv_b", 700), *USUAL], [900, 700]),
    ([*USUAL, ("aten::conv2d", "conv_a", 900)], []),  # slow, but nothing is launched for the first time
    ([("aten::conv2d", "conv_a", 150), *USUAL], []),  # not far longer
    ([("aten::mm", "gemm", 900), *USUAL], []),  # what is usual is not known
    ([("aten::conv2d", "conv_a", 900), ("aten::conv2d", "conv_a", 40)], []),
])  # fmt: skip
def test_a_first_launch_that_takes_far_longer(calls: list[tuple[str, str, int]], expected: list[int]) -> None:
    trace = launches(*calls)
    assert (trace.events.dur[cold_operators(trace)] // US).tolist() == expected


def test_waiting_for_the_device_is_not_cold() -> None:
    """Metamorphic: the same operators; in one the host waits for the device instead of loading a kernel."""
    calls = [("aten::nonzero", "count", 2_000), *[("aten::nonzero", "count", 40)] * 20]
    assert len(cold_operators(launches(*calls))) == 1
    begin = 1_000 * US
    first = [*launched_kernel("count", (begin, begin + 5 * US), (begin + 8 * US, begin + 1_900 * US), correlation=98)]
    first += [call("cudaStreamSynchronize", begin + 6 * US, begin + 1_902 * US)]
    events = [op("aten::nonzero", begin, begin + 1_910 * US), *first]
    for number in range(20):
        at = begin + (2_000 + 50 * number) * US
        events += [op("aten::nonzero", at, at + 40 * US)]
        events += [call("cudaLaunchKernel", at, at + 5 * US, correlation=number + 1)]
        events.append(kernel("count", at + 8 * US, at + 20 * US, correlation=number + 1))
    assert not len(cold_operators(trace_of(*events)))


def warm_and_cold(folder: Path) -> tuple[Document, Document, float]:
    """A job without steps, as it is and as in its first run; and by how many µs the operators take longer."""
    document = load(simulate(WARM, folder)[0][0])
    rows = [each for each in document["traceEvents"] if not str(each["name"]).startswith(("ProfilerStep", "enumerate"))]
    warm = document | {"traceEvents": rows}
    firsts = sorted(set(_first_launches(warm).values()))
    calls = [each for each in rows if str(each.get("cat")).startswith("cuda_")]
    launched = {each["args"]["correlation"]: float(each["ts"]) for each in calls}
    return warm, warm | {"traceEvents": [delayed(each, firsts, launched) for each in rows]}, LATE * len(firsts)


def _first_launches(document: Document) -> dict[str, float]:
    """The begin of the operator in which each kernel is launched first, if that operator is called more often."""
    rows = document["traceEvents"]
    operators = [(each["name"], float(each["ts"]), float(each["dur"])) for each in rows if each.get("cat") == "cpu_op"]
    work = {each["args"]["correlation"]: each["name"] for each in rows if each.get("cat") == "kernel"}
    calls = [(float(each["ts"]), work.get(each["args"].get("correlation"))) for each in rows
             if str(each.get("cat")).startswith("cuda_")]  # fmt: skip
    begins, times = dict[str, tuple[str, float]](), Counter[str]()
    for moment, label in sorted(each for each in calls if each[1]):
        inner = max((ts, name) for name, ts, dur in operators if ts <= moment <= ts + dur)
        times[inner[1]] += 1
        begins.setdefault(str(label), (inner[1], inner[0]))
    return {label: begin for label, (name, begin) in begins.items() if times[name] > 5}


def delayed(event: Document, moments: list[float], launched: dict[int, float]) -> Document:
    """The event, with a delay of the host after each of some moments: on the host it begins later, or takes longer; on
    the device it comes later by the delays before its launch, the time of which ``launched`` has by correlation."""
    if "ts" not in event:
        return event
    begin = float(event["ts"])
    if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
        launch = launched[event["args"]["correlation"]]
        return event | {"ts": begin + LATE * sum(moment < launch for moment in moments)}
    end = begin + float(event.get("dur", 0))
    before, after = (sum(moment < each for moment in moments) for each in (begin, end))
    times = {"ts": begin + LATE * before} | ({"dur": end - begin + LATE * (after - before)} if "dur" in event else {})
    return event | times


def test_a_cold_job_is_as_launch_bound_as_a_warm_one(tmp_path: Path) -> None:
    """Graphs save of the cold job what they save of the warm one; the rest is the time of first launches."""
    warm, cold, late = warm_and_cold(tmp_path)
    before, after = (read(str(save(each, tmp_path / f"{n}.json"))) for n, each in enumerate((warm, cold)))
    assert late > 10 * LATE
    assert not len(cold_operators(before))
    assert len(cold_operators(after)) * LATE == pytest.approx(late)
    graphs = [problem_of(launch_bound.check(each)).saved_ns or 0 for each in (before, after)]
    length = measure(before).length_ns
    assert graphs[1] == pytest.approx(graphs[0], abs=0.1 * length)  # delays also empty the queue
    loading = host_causes.loading(after)
    assert loading.saved_ns == pytest.approx(late * US, rel=0.05, abs=0.02 * length)
    assert isinstance(host_gaps.check(after), NotApplicable)


def plainly(document: Document) -> list[float]:
    """The begins of the cold operators, by plain loops over the events, in µs."""
    rows = [each for each in document["traceEvents"] if each.get("ph") == "X"]
    number = {id(each): each.get("args", {}).get("correlation") for each in rows}
    work = {number[id(each)]: each["name"] for each in rows if each.get("cat") == "kernel"}
    calls = [each for each in rows if each.get("cat") == "cuda_runtime" and number[id(each)] in work]
    operators = defaultdict(list)
    for each in rows:
        if each.get("cat") == "cpu_op":
            begin = float(each["ts"])
            operators[each["pid"], each["tid"]].append((begin, -float(each["dur"]), each["name"]))
    seen, new, launching = set(), set(), set()
    for each in sorted(calls, key=lambda each: float(each["ts"])):
        begin, name = float(each["ts"]), work[number[id(each)]]
        around = [other for other in operators[each["pid"], each["tid"]] if other[0] <= begin < other[0] - other[1]]
        launching.update(around and [max(around)])
        if name not in seen:
            new.update(around and [max(around)])
        seen.add(name)
    begins = []
    for begin, minus, name in new:
        usual = [-other[1] for other in launching - new if other[2] == name]
        long = len(usual) >= LEAST_USUAL and -minus > FAR_LONGER * median(usual)
        if long and -minus - median(usual) >= LEAST_NS / US:
            begins.append(begin)
    return sorted(begins)


@pytest.mark.parametrize("name", ["hta_cuda_sync/simple_add.json.gz", "mi300_tracelens/normalization_layers.json.gz"])
def test_cold_operators_of_real_traces(name: str) -> None:
    path = real_trace(name)
    trace, expected = read(str(path)), plainly(load(path))
    rows = cold_operators(trace)
    assert 0 < len(rows) == len(expected)
    begins = (trace.events.ts[rows] - trace.events.ts[rows[0]]) / US
    assert begins.tolist() == pytest.approx([each - expected[0] for each in expected], abs=0.002)
