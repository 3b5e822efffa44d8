"""What is called a cold start: by hand, simulated, the same run recorded later, real traces by plain counting."""

from __future__ import annotations

import random
from decimal import Decimal
from pathlib import Path

import pytest
from simulated_jobs import changed
from test_cold_operators import LATE, US, delayed, launches, plainly, warm_and_cold
from test_rules_by_hand import problem_of

from augment import Trace, read
from augment.diagnosis.ranking import diagnose
from augment.diagnosis.rule import Found, NotApplicable
from augment.diagnosis.rules import cold_start, long_calls
from augment.diagnosis.verdict import verdict
from metamorphic import Document, load, real_trace, save
from said import title_of
from simulator import simulate
from tables import Event, call, kernel, launched_kernel, op, trace_of

FIRST_USES = [(name, f"{name}_{n}", 900) for n in range(4) for name in ("aten::conv2d", "aten::mm")]
USUAL = [(name, label, 40) for name, label, _ in FIRST_USES] * 3


def test_first_launches_that_are_slow_are_a_cold_start() -> None:
    answer = problem_of(cold_start.check(launches(*FIRST_USES, *USUAL)))
    assert (answer.first, answer.severity, answer.saved_ns) == (True, "info", None)
    assert "takes 86 % of 7.3 ms" in title_of(answer)  # all but the first: judged from its kernel on


def test_slow_operators_that_load_nothing_are_none() -> None:
    """Metamorphic: as many operators are as slow, but only every second launches something for the first time."""
    again = [(name, label, 900) for name, label, _ in FIRST_USES]
    quick = [(name, label, 40) for name, label, _ in FIRST_USES]
    mixed = [*FIRST_USES[:4], *quick[4:], *again[:4], *USUAL, *USUAL]
    assert isinstance(cold_start.check(launches(*FIRST_USES, *again, *USUAL, *USUAL)), NotApplicable)
    assert isinstance(cold_start.check(launches(*mixed)), NotApplicable)


@pytest.mark.parametrize(("label", "is_cold"), [("once_{}", True), ("conv2d", False)])
def test_first_launches_in_operators_that_never_come_again_load_too(label: str, is_cold: bool) -> None:
    """Metamorphic: as slow are launches of what is launched before, as by a host that gets no CPU."""
    alone = [(f"aten::once_{n}", label.format(n), 3_000) for n in range(4)]
    busy = [("aten::conv2d", "conv2d", 40)] * 200
    assert isinstance(cold_start.check(launches(*busy[:1], *FIRST_USES, *alone, *busy)), Found) == is_cold
    assert isinstance(cold_start.check(launches(*busy[:1], *FIRST_USES, *busy)), NotApplicable)


def test_slow_first_launches_beside_much_else_are_none() -> None:
    many = [(name, label, 400) for name, label, _ in FIRST_USES] * 6  # 19 ms that nothing slows
    assert isinstance(cold_start.check(launches(*FIRST_USES, *many)), NotApplicable)


@pytest.mark.parametrize(("name", "took_ms", "work", "is_cold"), [
    ("cudaDeviceGetStreamPriorityRange", 2_000, 4, True),
    ("cudaFree", 2_000, 4, True),
    ("cudaFree", 300, 4, False),  # a process that gives memory back takes that long, too
    ("cudaDeviceGetStreamPriorityRange", 50, 4, False),
    ("cudaDeviceSynchronize", 2_000, 4, False),
    ("cudaDeviceGetStreamPriorityRange", 2_000, 40, False),  # enough follows to judge it
])  # fmt: skip
def test_a_context_that_is_created(name: str, took_ms: int, work: int, is_cold: bool) -> None:
    """Where hardly anything follows it, nothing can be usual."""
    events: list[Event] = [call(name, 0, took_ms * 1_000 * US)]
    for number in range(work):
        at = (took_ms + 10 + number) * 1_000 * US
        events += [op("aten::mm", at, at + 30 * US), call("cudaLaunchKernel", at, at + 9 * US, correlation=number + 1)]
        events.append(kernel("gemm", at + 20 * US, at + 90 * US, correlation=number + 1))
    assert isinstance(cold_start.check(trace_of(*events)), Found) == is_cold


def with_slow_launch(took_ms: int, work_ms: int, *, again_ms: int = 0, place: int = 20) -> Trace:
    """Twenty launches of a kernel, whose last takes ``again_ms``, and amid them one of another that takes long."""
    events, at, ms = list[Event](), 0, 1_000 * US
    for number in range(21):
        name = "offsets" if number == place else "gemm"
        took = took_ms * ms if number == place else again_ms * ms if number == 19 else 9 * US
        events += [call("cudaLaunchKernel", at, at + took, correlation=number + 1)]
        events.append(kernel(name, at + took, at + took + work_ms * ms, correlation=number + 1))
        at += took + work_ms * ms + 20 * US
    return trace_of(*events)


@pytest.mark.parametrize(("took_ms", "work_ms", "known_ms", "place", "is_cold", "confidence"), [
    (400, 1, 0, 20, True, None),
    (400, 1, 0, 0, False, None),  # judged from its kernel on
    (400, 40, 0, 20, False, "medium"),  # much else follows, but it is loaded once
    (400, 1, 100, 20, False, "medium"),  # known kernels are held up, too: a shared device
    (60, 1, 0, 20, False, "low"),
])  # fmt: skip
def test_a_first_launch_that_loads_a_module(
    took_ms: int, work_ms: int, known_ms: int, place: int, is_cold: bool, confidence: str | None
) -> None:
    trace = with_slow_launch(took_ms, work_ms, again_ms=known_ms, place=place)
    assert isinstance(cold_start.check(trace), Found) == is_cold
    answer = long_calls.check(trace)
    assert (answer.confidence if isinstance(answer, Found) else None) == confidence
    if isinstance(answer, Found):
        assert (answer.saved_ns is None) == answer.seen.figures["is_loading"] == (known_ms == 0), "steady steps lack it"


def test_a_context_of_before_the_recording_is_not_created_in_it() -> None:
    """A call that takes as long, but after work of the device."""
    events: list[Event] = [*launched_kernel("gemm", (0, 9 * US), (20 * US, 50 * US), correlation=1)]
    events.append(call("cudaDeviceGetStreamPriorityRange", 100 * US, 2_000_000 * US))
    assert isinstance(cold_start.check(trace_of(*events)), NotApplicable)


def later(document: Document, moment: float) -> Document:
    """As if the recording began later: only events that begin after ``moment``, µs."""
    rows = document["traceEvents"]
    return document | {"traceEvents": [each for each in rows if "ts" not in each or each["ts"] >= moment]}


def test_a_job_is_cold_in_its_first_run_alone(tmp_path: Path) -> None:
    """The simulated job without steps: warm, cold, and cold but recorded after its first launches."""
    warm, cold, _ = warm_and_cold(tmp_path)
    cold_trace = read(str(save(cold, tmp_path / "cold.json")))
    last = max(plainly(cold)) + LATE
    others = (warm, later(cold, last))
    warm_trace, later_trace = (read(str(save(each, tmp_path / f"{n}.json"))) for n, each in enumerate(others))
    assert verdict(cold_trace)[0].startswith("This is a cold start")
    for trace in (warm_trace, later_trace):
        assert cold_start.NAME not in {each.rule for each in diagnose(trace).findings}
        assert len(trace.events) > len(cold_trace.events) / 4


def cold_share(document: Document) -> tuple[float, int]:
    """By plain loops: the share of the time from the first to the end of the last GPU work that is in cold operators,
    and the longest call of the runtime before the first work, in whole ms."""
    rows = [each for each in document["traceEvents"] if each.get("ph") == "X"]
    gpu = [each for each in rows if each.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy")]
    start, end = min(each["ts"] for each in gpu), max(each["ts"] + each["dur"] for each in gpu)
    begins = [round(each, 3) for each in plainly(document)]
    spent, until = Decimal(0), start
    operators = [each for each in rows if each.get("cat") == "cpu_op" and round(float(each["ts"]), 3) in begins]
    for each in sorted(operators, key=lambda each: each["ts"]):
        finish = min(each["ts"] + each["dur"], end)
        spent += max(finish - max(each["ts"], until), Decimal(0))
        until = max(until, finish)
    calls = [each["dur"] for each in rows if each.get("cat") == "cuda_runtime" and each["ts"] + each["dur"] <= start]
    return float(spent / (end - start)), int(max(calls, default=Decimal(0)) / 1000)


@pytest.mark.parametrize(("name", "is_cold"), [
    ("hta_cuda_sync/simple_add.json.gz", True),
    ("hta_cuda_sync/alexnet.json.gz", True),
    ("hta_et_pair/simple_add_trace.json.gz", True),
    ("mi300_tracelens/normalization_layers.json.gz", True),
    ("mi300_tracelens/torch_compile_triton.json.gz", False),
    ("b200_tracelens/b200_eager_rank0of8.json.gz", False),
    ("hta_amd_mi250/mi250_minitoy_train_ROCm6_2.json.gz", False),  # one slow launch: nobody knows why
])  # fmt: skip
def test_cold_starts_of_real_traces(name: str, is_cold: bool) -> None:
    path = real_trace(name)
    document, trace = load(path), read(str(path))
    share, longest_ms = cold_share(document)
    gpu = sum(each.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset") for each in document["traceEvents"])
    assert (share > 0.5 or (longest_ms >= 100 and gpu < 16)) == is_cold
    assert isinstance(cold_start.check(trace), Found) == is_cold
    if is_cold:
        assert not [each for each in diagnose(trace).findings if each.is_grave and each.rule != cold_start.NAME]


@pytest.mark.parametrize("name", ["hta_cuda_sync/alexnet.json.gz", "mi300_tracelens/normalization_layers.json.gz"])
def test_what_follows_in_a_real_trace_is_no_cold_start(name: str, tmp_path: Path) -> None:
    document = load(real_trace(name))
    begins = plainly(document)
    ends = [float(each["ts"] + each["dur"]) for each in document["traceEvents"] if each.get("cat") == "cpu_op"
            and round(float(each["ts"]), 3) in [round(begin, 3) for begin in begins]]  # fmt: skip
    trace = read(str(save(later(document, max(ends)), tmp_path / "later.json")))
    assert isinstance(cold_start.check(trace), NotApplicable)


def test_a_single_long_call_in_a_single_step_may_not_come_back() -> None:
    """The trace of mi250: one launch of 6.5 ms in the only step."""
    trace = read(str(real_trace("hta_amd_mi250/mi250_minitoy_train_ROCm6_2.json.gz")))
    answer = problem_of(long_calls.check(trace))
    assert (answer.confidence, answer.seen.figures["is_once"]) == ("low", True)
    assert verdict(trace)[0].startswith("Possible: The first launch of a kernel, which loads it, holds up")


@pytest.mark.parametrize("seed", range(6))
def test_stalls_that_strike_any_operator_are_no_cold_start(seed: int, tmp_path: Path) -> None:
    """Unkind: a short job without steps and with faults, and eight delays of 3 ms in operators by chance."""
    faults = (("items",), ("mallocs",), ("loads",), ("pauses",), ("frees",), ("pageable",))[seed]
    options = changed(ranks=1, steps=1 + seed % 3, layers=4, collectives="none", work=0.1, run_ahead=None,
                      faults=faults, seed=seed)  # fmt: skip
    document = load(simulate(options, tmp_path)[0][0])
    rows = [each for each in document["traceEvents"] if not str(each["name"]).startswith(("ProfilerStep", "enumerate"))]
    begins = [float(each["ts"]) for each in rows if each.get("cat") == "cpu_op"]
    struck = sorted(random.Random(seed).sample(begins, 8))
    calls = [each for each in rows if str(each.get("cat")).startswith("cuda_")]
    launched = {each["args"]["correlation"]: float(each["ts"]) for each in calls}
    late = document | {"traceEvents": [delayed(each, struck, launched) for each in rows]}
    for each in (document | {"traceEvents": rows}, late):
        assert isinstance(cold_start.check(read(str(save(each, tmp_path / "x.json")))), NotApplicable)
