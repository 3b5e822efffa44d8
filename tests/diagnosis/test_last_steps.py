"""A last step in which the profiler stops is judged as far as it was recorded: by hand, simulated, recorded."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest
from simulated_jobs import changed

from augment import Trace, read
from augment.diagnosis.judging import measure
from augment.diagnosis.ranking import diagnose
from augment.diagnosis.rules import synchronizing_calls
from augment.diagnosis.verdict import verdict
from metamorphic import Document, load, real_trace, save
from simulator import simulate
from tables import Event, annotation, call, kernel, launched, op, trace_of

MS = 1_000_000


def run(*ends_ms: int, after: bool = False, named: bool = False) -> Trace:
    """Steps of ten kernels that the host waits for, then of so many ms with nothing recorded; ``named``: but a range;
    ``after``: an operator follows the last."""
    events, at = list[Event](), 0
    for number, end_ms in enumerate(ends_ms):
        begin = at
        for place in range(10):
            key = 1 + 10 * number + place
            events += [op("aten::mm", at, at + 20_000), call("cudaLaunchKernel", at, at + 9_000, correlation=key)]
            events.append(kernel("gemm", at + 10_000, at + MS, correlation=key))
            at += MS
        events.append(call("cudaDeviceSynchronize", at - MS + 20_000, at + 5_000))
        at += 10_000
        if named:
            events.append(annotation("save", at, at + end_ms * MS))
        at += end_ms * MS + 1_000
        events.append(annotation(f"ProfilerStep#{number}", begin, at))
        at += 2_000
    last = [op("aten::mm", at, at + 9_000)] if after else [call("cudaDeviceSynchronize", at, at + 9_000)]
    return trace_of(*sorted([*events, *last], key=lambda each: each.ts))


@pytest.mark.parametrize("length", [10_000, 120_000, 900_000])
def test_a_step_that_only_ends_the_recording_is_none(length: int) -> None:
    """The last ``step()`` begins it, and the recording ends, sooner or later."""
    events: list[Event] = []
    for begin in (0, MS):
        events += [annotation(f"ProfilerStep#{begin // MS}", begin, begin + MS), op("aten::mm", begin, begin + 9_000)]
        events += launched("gemm", begin + 2_000, begin + 10_000, begin + 990_000, 7, begin + 1)
    last = annotation("ProfilerStep#2", 2 * MS, 2 * MS + length)
    assert measure(trace_of(*events, last)).count == 2 + (length > 500_000)


@pytest.mark.parametrize(("trace", "tail_ms", "stalls"), [
    (run(0, 0, 0, 0, 0, 40), 40, False),
    (run(4, 4, 4, 4, 4, 40), 36, True),  # as long as the others' ends, it counts
    (run(40, 40, 40, 40), 0, True),
    (run(0, 40, 0, 0, 0, 40), 0, True),
    (run(0, 0, 0, 0, 0, 40, after=True), 0, True),  # the recording goes on
    (run(0, 0, 0, 0, 0, 40, named=True), 0, True),  # it is known what that is
    (run(40), 40, False),
    (run(0, 0, 0), 0, False),
])  # fmt: skip
def test_time_at_the_end_of_which_nothing_was_recorded(trace: Trace, tail_ms: int, stalls: bool) -> None:
    whole = measure(trace)
    assert whole.tail_ns == pytest.approx(tail_ms * MS, abs=20_000)
    named = {each.rule for each in diagnose(trace).findings if each.found.saved_ns}
    assert bool(named & {"host_gaps", "step_outliers"}) == stalls
    said = any("the last step goes on for" in sentence for sentence in verdict(trace))
    assert said == (tail_ms > 0)


def test_a_profiler_that_stops_late_changes_no_promise() -> None:
    first, second = (synchronizing_calls.check(run(0, 0, 0, 0, 0, ms)) for ms in (0, 40))
    assert getattr(second, "saved_ns", None) == pytest.approx(getattr(first, "saved_ns", -1), rel=0.02)


def held(document: Document, ms: int) -> Document:
    """The same, but its last step ends so much later."""
    rows = [each for each in document["traceEvents"] if str(each["name"]).startswith("ProfilerStep")]
    last = max((each for each in rows if each["cat"] == "user_annotation"), key=lambda each: each["ts"])
    changed_rows = [each | {"dur": each["dur"] + Decimal(1000 * ms)} if each is last else each
                    for each in document["traceEvents"]]  # fmt: skip
    return document | {"traceEvents": changed_rows}


@pytest.mark.parametrize("faults", [(), ("mallocs",)])
def test_a_job_whose_profiler_stops_late_saves_what_it_would(faults: tuple[str, ...], tmp_path: Path) -> None:
    """Metamorphic: the simulated job, and the same with 30 ms and 300 ms more until its last step is over."""
    job = changed(ranks=1, steps=5, layers=3, collectives="none", work=0.2, faults=faults)
    document = load(simulate(job, tmp_path)[0][0])
    traces = [read(str(save(held(document, ms), tmp_path / f"{ms}.json"))) for ms in (0, 30, 300)]
    lengths = [measure(trace).length_ns for trace in traces]
    assert max(lengths) - min(lengths) < 0.001 * lengths[0]
    grave = [{each.rule for each in diagnose(trace).findings if each.is_grave} for trace in traces]
    assert grave[0] == grave[1] == grave[2]
    assert ("allocator_calls" in grave[0]) == bool(faults)
    assert measure(traces[0]).tail_ns == 0 < measure(traces[1]).tail_ns < measure(traces[2]).tail_ns


@pytest.mark.parametrize("name", [
    "hta_tiny/backward_thread.json",
    "hta_triton/triton_example.json.gz",
    "hta_trace_diff_pair/control.json.gz",
    "v100_2021_kineto_tb/resnet50_num_workers_4.1623212756351.pt.trace.json.gz",
    "hta_ns_resolution/rank-0.ns_resolution.pt.trace.json.gz",
])  # fmt: skip
def test_ends_of_recorded_steps(name: str) -> None:
    """Plainly: from the last begin or end of anything to the end of the last step, less the longest of the others."""
    path = real_trace(name)
    rows = [each for each in load(path)["traceEvents"] if each.get("ph") == "X" and each.get("cat") != "Trace"]
    of_step = [str(each["name"]).startswith("ProfilerStep") for each in rows]
    steps = sorted((each["ts"], each["ts"] + each["dur"]) for each, step in zip(rows, of_step, strict=True)
                   if step and "gpu" not in str(each["cat"]))  # fmt: skip
    moments = [moment for each, step in zip(rows, of_step, strict=True) if not step
               for moment in (each["ts"], each["ts"] + each["dur"])]  # fmt: skip
    ends = [end - max((at for at in moments if begin <= at < end), default=begin) for begin, end in steps]
    more = float(ends[-1] - max(ends[:-1], default=Decimal(0))) * 1000
    goes_on = any(at >= steps[-1][1] for at in moments)
    least = max(MS, 0.02 * float(steps[-1][1] - steps[-1][0]) * 1000)
    expected = 0 if goes_on or more < least else more
    assert measure(read(str(path))).tail_ns == pytest.approx(expected, abs=2_000)
