"""Which first step is no steady one, and what a host gains that no longer waits if the steps go on."""

from __future__ import annotations

import pytest

from augment.core.trace import Trace
from augment.diagnosis.judging import measure
from augment.diagnosis.ranking import diagnose
from augment.diagnosis.rule import Fine, Found
from augment.diagnosis.rules import exposed_communication, step_outliers, synchronizing_calls
from tables import Event, annotation, call, launched_kernel, op, trace_of

MS, UPDATE = 1_000_000, "Optimizer.step#Adam.step"


def run(*pauses: int, work: int = 10 * MS, updates: int = 0, name: str = UPDATE, apart: int = 1_000) -> Trace:
    """Steps in which the host pauses for so long, launches a kernel, and waits for it; each of the last of so many
    ``updates`` parameters, and works half as long again."""
    events, at = list[Event](), 0
    for number, pause in enumerate(pauses):
        begin, launch = at, at + pause
        start, is_update = launch + 10_000, updates > 0 and number % updates == updates - 1
        at = start + work + is_update * work // 2
        events += [
            annotation(f"ProfilerStep#{number}", begin, at + 5_000),
            op("aten::mm", launch - 5_000, launch + 8_000),
            *launched_kernel("gemm", (launch, launch + 5_000), (start, at), correlation=number + 1),
            call("cudaDeviceSynchronize", launch + 9_000, at + 1_000, correlation=100 + number),
        ]
        events += [annotation(name, launch, at)] * is_update
        at += 5_000 + apart
    return trace_of(*events)


@pytest.mark.parametrize(
    ("pauses", "is_warm_up"),
    [((20, 1, 1, 1, 1), True), ((20, 18, 1, 1, 1), True), ((20, 1, 20, 1, 20, 1, 1), False), ((30, 1, 1, 14), True)],
)
def test_what_comes_again_is_no_warm_up(pauses: tuple[int, ...], is_warm_up: bool) -> None:
    assert measure(run(*(pause * MS for pause in pauses))).warm_up == is_warm_up


@pytest.mark.parametrize(("pause", "work"), [(5, 10), (9, 10), (20, 10)])
def test_a_host_that_never_waits_is_ahead_from_step_to_step(pause: int, work: int) -> None:
    """Truth: a step then takes what takes longer, the pause or the work; the first step's pause is hidden, too."""
    trace = run(*[pause * MS] * 5, work=work * MS)
    answer = synchronizing_calls.check(trace)
    assert isinstance(answer, Found)
    saved = min(pause, work) / (pause + work)
    assert measure(trace).ratio(answer.saved_ns or 0) == pytest.approx(saved, abs=0.01)


@pytest.mark.parametrize(("pauses_us", "confidence"), [
    ((100, 100, 100, 100, 800, 100), "low"),  # 0.7 ms once: a host that hiccups
    ((100, 800, 100, 100, 100, 800, 100, 100), "medium"),  # it comes again
    ((400, 400, 400, 400, 3_200, 400), "medium"),  # all times four times as long
    ((100, 110, 90, 100, 105, 100), None),
])  # fmt: skip
def test_a_single_step_that_is_hardly_later_may_be_chance(pauses_us: tuple[int, ...], confidence: str | None) -> None:
    scale = pauses_us[0]
    answer = step_outliers.check(run(*(pause * 1_000 for pause in pauses_us), work=10_000 * scale))
    assert (answer.confidence if isinstance(answer, Found) else None) == confidence


@pytest.mark.parametrize(("pauses", "said"), [
    ((20, 1, 20, 1, 20, 1, 20), "no usual length: 3 of 7 steps take less than half the median"),
    ((20, 20, 20, 1, 20, 20, 20), "steps take 5.0 ms to 24 ms"),  # a single short one makes no other kind
    ((20, 20, 20, 20, 20, 20, 20), "all steps take 24 ms"),
])  # fmt: skip
def test_steps_without_a_usual_length_are_not_called_fine(pauses: tuple[int, ...], said: str) -> None:
    answer = step_outliers.check(run(*(pause * MS for pause in pauses), work=4 * MS))
    assert (answer.seen if isinstance(answer, Fine) else getattr(answer, "why", "")) == said


@pytest.mark.parametrize("late", [0, 6])
@pytest.mark.parametrize("name", [UPDATE, "aten::_foreach_addcdiv_", "f"])
def test_steps_that_update_parameters_are_another_kind(name: str, late: int) -> None:
    """Gradients are accumulated over three steps. Metamorphic: without names of an optimizer nothing tells that."""
    named = sorted([2, 5, 8, 11, 14] * (name == "f") + [late] * (late > 0))
    answer = step_outliers.check(run(*(MS + 9 * MS * (step == late > 0) for step in range(16)), updates=3, name=name))
    seen = answer.seen if isinstance(answer, Found) else None
    steps, equal = (seen.steps, seen.equal) if isinstance(seen, step_outliers.StepOutliers) else ([], "")
    assert (steps, equal) == (named, "names" if name == "f" else "")  # the same kernel takes longer


@pytest.mark.parametrize("host", [5 * MS, MS])
def test_a_step_is_named_by_what_the_device_does_in_it(host: int) -> None:
    """Metamorphic: however far the host is ahead of the device, whose collective takes long in one of five steps."""
    events, free = list[Event](), 0
    for number in range(5):
        events.append(annotation(f"ProfilerStep#{number}", host * number, host * (number + 1)))
        long = 9 * MS if number == 1 else 50_000
        for place, (name, took) in enumerate((("gemm", 5 * MS), ("ncclDevKernel_AllReduce", long))):
            at = host * number + 100_000 * (1 + place)
            start = max(free, at + 10_000)
            events += launched_kernel(name, (at, at + 5_000), (start, start + took), correlation=2 * number + place + 1)
            free = start + took
    assert getattr(exposed_communication.check(trace_of(*events)), "in_step", None) == 1


@pytest.mark.parametrize("apart", [1_000, 0, -1, -900])
def test_steps_are_no_more_apart_than_times_are_rounded(apart: int) -> None:
    assert measure(run(*[MS] * 6, apart=apart)).count == 6


@pytest.mark.parametrize(("pauses", "effect"), [((5, 5), "synchronizing_calls"), ((1, 1, 1, 9), "step_outliers")])
def test_a_reason_comes_before_what_it_makes_cost_time(pauses: tuple[int, ...], effect: str) -> None:
    """The pause alone would save as much as not waiting for it, or as a step like the others."""
    findings = [each.rule for each in diagnose(run(*[pause * MS for pause in 3 * pauses])).findings]
    assert findings.index("host_gaps") < findings.index(effect)
