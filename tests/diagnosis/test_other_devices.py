"""Recordings of other devices than NVIDIA's, of the host alone, and of other programs: words and advice fit them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from augment import Skipped, Trace, augment, read
from augment.core import Category
from augment.core.text import devices_text
from augment.diagnosis.ranking import diagnose
from augment.diagnosis.verdict import verdict
from augment.diagnosis.wording import vendor
from augment.results.report.of_trace import over_time
from augment.results.sidecars import with_device_names
from augment.writers import write_all
from perfetto_engine import PerfettoEngine
from said import advice_of, title_of
from tables import Event, annotation, call, kernel, op, trace_of

STEPS = [annotation(f"ProfilerStep#{number}", 1_000_000 * number, 1_000_000 * (number + 1)) for number in range(3)]


def launching(launch: str, device: str = "", operator: str = "aten::add") -> Trace:
    """A host that is too slow for its device: short kernels, 50 µs apart."""
    events = []
    for at in range(50):
        start = 50_000 * at + 20_000
        events += [op(operator, start - 20_000, start), call(launch, start - 8_000, start - 4_000, correlation=at)]
        events.append(kernel("add", start, start + 3_000, correlation=at))
    trace = trace_of(*STEPS, *events)
    return replace(trace, source=replace(trace.source, devices=((0, device),) if device else ()))


@pytest.mark.parametrize(
    ("launch", "device", "name", "noun", "advice"),
    [
        ("cudaLaunchKernel", "", "nvidia", "GPU", "CUDA graphs"),
        ("cudaLaunchKernel", "NVIDIA H100", "nvidia", "GPU", "CUDA graphs"),
        ("hipLaunchKernel", "", "amd", "GPU", "HIP graphs"),
        ("hipLaunchKernel", "AMD Instinct MI300X", "amd", "GPU", "HIP graphs"),
        ("urEnqueueKernelLaunch", "", "intel", "GPU", "fewer and larger operators"),
        ("urEnqueueKernelLaunch", "Intel(R) Data Center GPU Max 1550", "intel", "GPU", "fewer and larger operators"),
        ("AscendCL@aclopCompileAndExecute", "", "ascend", "NPU", "graph mode (torchair)"),
    ],
)  # fmt: skip
def test_words_and_advice_fit_the_device(launch: str, device: str, name: str, noun: str, advice: str) -> None:
    trace = launching(launch, device)
    assert vendor(trace) == name
    (finding,) = (each for each in diagnose(trace).findings if each.rule == "launch_bound")
    assert title_of(finding.found, trace).startswith(f"The {noun} idles ")
    assert advice in advice_of(finding.found, trace)
    text = " ".join(verdict(trace))
    assert f"The {noun} computes" in text
    others = {"GPU", "NPU"} - {noun}
    assert not any(other in text for other in others)


def compiling(call_ns: int) -> tuple[Trace, int]:
    """A step in which each operator is compiled before it runs, for so long; and its length."""
    events, at = [], 0
    for number in range(40):
        events.append(call("AscendCL@aclopCompileAndExecute", at, at + call_ns, correlation=number))
        events.append(kernel(f"k{number}", at + call_ns + 5_000, at + call_ns + 105_000, correlation=number))
        at += call_ns + 110_000
    return trace_of(annotation("ProfilerStep#1", 0, at), *events), at


def test_compiling_calls_of_a_single_step_are_told_with_what_they_cost() -> None:
    trace, slow = compiling(800_000)
    finding = diagnose(trace).findings[0]
    assert (finding.rule, finding.severity, finding.found.confidence) == ("long_calls", "high", "medium")
    assert title_of(finding.found, trace).startswith(
        "AscendCL@aclopCompileAndExecute (32 ms), which compiles operators"
    )
    assert finding.found.saved_ns == pytest.approx(slow - compiling(5_000)[1], rel=0.1)
    assert not any(each.rule == "long_calls" for each in diagnose(compiling(5_000)[0]).findings)


@pytest.mark.parametrize("name", ["copy to GPU", "CUDA graphs {gpu}", "torch.cuda.synchronize"])
def test_names_of_the_program_are_quoted_as_recorded(name: str) -> None:
    augmented = augment(launching("AscendCL@aclopCompileAndExecute", operator=name), only=["diagnosis"])
    (row,) = (each for each in augmented.outcomes["diagnosis"].rows if each.rule == "launch_bound")
    assert any(name in line for line in row.evidence)
    assert row.title.startswith("The NPU idles ")
    assert [operator for operator, _ in row.figures["operators"]] == [name]


def test_the_host_alone_has_its_operators_and_its_loader() -> None:
    fetch = annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 10_000, 400_000)
    fetches = [replace(fetch, ts=fetch.ts + ts, end=fetch.end + ts) for ts in range(0, 3_000_000, 1_000_000)]
    work = [op("aten::mm", ts + 500_000, ts + 900_000) for ts in range(0, 3_000_000, 1_000_000)]
    inner = [op("aten::copy_", ts + 500_000, ts + 600_000) for ts in range(0, 3_000_000, 1_000_000)]
    trace = trace_of(*STEPS, *fetches, *work, *inner, op("aten::load", -9_000_000, -10))  # before the steps: no part
    text = verdict(trace)
    assert text[0] == (
        "There is no GPU work in this recording: only the host can be judged. For 21 % of a mean step of 1.0 ms, no "
        "recorded thread runs an operator; what the main thread does then, or waits for, was not recorded "
        "(with_stack=True shows it). Operators take 400 µs per step (1.2 ms in 3 steps): 75 % in aten::mm and 25 % in "
        "aten::copy_."
    )
    assert text[1].startswith("The host fetches batches for 390 µs per step and computes nothing meanwhile. ")
    (finding,) = diagnose(trace).findings
    assert (finding.severity, finding.found.confidence, finding.found.saved_ns) == ("high", "medium", 390_000)


@pytest.mark.parametrize(
    ("lasts", "said"), [(1_050_000, ""), (90_000_000, " in the 1.0 ms between the first and the ")]
)
def test_a_recording_far_longer_than_its_operators_says_so(lasts: int, said: str) -> None:
    work = op("aten::mm", 0, 1_000_000)
    profiler = replace(work, category=Category.TRACE, name="PyTorch Profiler (0)", end=lasts)
    mark = replace(profiler, name="Record Window End", ts=2 * lasts, end=2 * lasts, phase=ord("i"))
    (text,) = verdict(trace_of(work, profiler, mark))
    assert f"All operators of the recording take 1.0 ms{said}" in text
    assert ("last operator or call (of 90 ms recorded): 100 % in aten::mm" in text) == bool(said)


def test_launches_without_kernels_are_said() -> None:
    calls = [call("cudaLaunchKernel", 1_000 * at, 1_000 * at + 500, correlation=at) for at in range(20)]
    waits = [call("cudaDeviceSynchronize", ts + 100_000, ts + 900_000) for ts in range(0, 3_000_000, 1_000_000)]
    trace = trace_of(*STEPS, *calls, *waits)
    (text,) = verdict(trace)
    (lost,) = diagnose(trace).findings
    assert (lost.rule, lost.severity) == ("partial_recording", "warning")
    assert text.startswith("20 kernels were launched, but none was recorded (record with ProfilerActivity.CUDA")
    assert ". No operator runs in a mean step of 1.0 ms; of these 1.0 ms the main thread spends 80 % in cudaDev" in text


def test_what_no_rule_knows_says_what_it_is_and_what_to_do() -> None:
    empty = augment(trace_of(), only=["diagnosis"])
    assert empty.verdict.text[0] == "The file has no events."
    assert "Let the profiler's schedule reach" in empty.verdict.text[1]
    assert empty.annotations == []
    other = Event(Category.OTHER, "x", 0, 10, op("x", 0, 1).track)
    tpu = replace(other, track=replace(other.track, process_name="/device:TPU:0"))
    graph = replace(other, track=replace(other.track, process_name="/device:GPU:0/stream:all Compute"))
    former = replace(other, track=replace(other.track, pid="CPU functions"))
    for event, said in (
        (former, "an export of PyTorch's former profiler"),
        (other, "these events are not from PyTorch's profiler"),
        (graph, "these events are not from PyTorch's profiler"),
        (tpu, "recording of JAX or XLA, not of PyTorch"),
    ):
        augmented = augment(trace_of(event), only=["diagnosis"])
        assert said in augmented.verdict.text[0]
        assert "augment query" in augmented.verdict.text[1]


def test_the_times_of_torch_compile_alone_are_named(tmp_path: Path) -> None:
    """As tlparse writes them."""
    begin = {"ph": "B", "cat": "dynamo_timed", "name": "bytecode_tracing", "pid": 0, "tid": 0, "ts": 1.0}
    (tmp_path / "t.json").write_text(json.dumps([begin, begin | {"ph": "E", "ts": 5001.0}]), "utf-8")
    said = augment(read(str(tmp_path / "t.json")), only=["diagnosis"]).verdict.text
    assert "torch.compile alone, as tlparse writes them; the longest are bytecode_tracing (5.0 ms)" in said[0]
    assert "--torch-trace" in said[1]


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ([op("aten::mm", 5, 5), op("aten::add", 5, 5)], "no time passes in the 2 events"),
        ([annotation("ProfilerStep#3", 5, 5), op("aten::mm", 5, 500)], "no time passes in the 1 step"),
        ([kernel("gemm", 50, 50)], "no time passes in the 1 event"),
    ],
)  # fmt: skip
def test_recordings_in_which_no_time_passes_say_so(events: list[Event], said: str) -> None:
    augmented = augment(trace_of(*events))
    assert isinstance(augmented.outcomes["diagnosis"], Skipped)
    assert said in augmented.verdict.text[0]
    assert "schedule reach an active step" in augmented.verdict.text[1]
    assert augmented.annotations[0].name == "Diagnosis"


def test_annotations_alone_say_what_to_record() -> None:
    (text,) = verdict(trace_of(annotation("train", 5, 500)))
    assert text.startswith("Neither GPU work nor operators were recorded, so only the annotations can be judged")
    assert "ProfilerActivity.CPU" in text
    assert "so nothing can be judged: record with" in verdict(trace_of(call("cudaDeviceSynchronize", 5, 500)))[0]


def test_what_no_rule_knows_says_so_on_the_timeline(perfetto: PerfettoEngine, tmp_path: Path) -> None:
    """Around all of the recording, in the process with the most slices."""
    track = op("x", 0, 1).track
    quiet = replace(track, pid=1, process_name="/host:CPU")
    events = [Event(Category.OTHER, "x", start, start + 10, quiet if start == 5 else track) for start in (5, 20, 40)]
    augmented = augment(trace_of(*events))
    assert isinstance(augmented.outcomes["diagnosis"], Skipped)
    (drawn,) = augmented.annotations
    assert drawn.name == "Diagnosis"
    assert augmented.trace.tracks[drawn.under] == track
    assert (drawn.ts.tolist(), drawn.dur.tolist()) == ([5], [45])
    perfetto.load(write_all(augmented, tmp_path, ("perfetto",))[0])
    slices = (
        "select slice.name from slice join track on track.id = track_id where track.name = 'Diagnosis' order by depth"
    )
    assert [name for (name,) in perfetto.rows(slices)] == list(augmented.verdict.text)


def test_devices_are_called_as_their_vendor_does(perfetto: PerfettoEngine, tmp_path: Path) -> None:
    """And the device is the same when the timeline is read again."""
    out, metrics = write_all(augment(launching("AscendCL@aclopCompileAndExecute")), tmp_path)
    perfetto.load_clean(out)
    assert perfetto.rows("select name from track where name glob '?PU 0'") == [("NPU 0",)]
    assert 0 in {track.device for track in read(str(out)).tracks}
    sidecar = json.loads(metrics.read_text())
    assert sidecar["source"]["accelerator"] == "NPU"
    for word, source in (("NPU", sidecar["source"]), ("GPU", {**sidecar["source"], "accelerator": None})):
        (curve, *_) = over_time({**sidecar, "source": source}).charts
        assert {point["kind"] for point in curve.spec["data"]["values"]} == {f"rank 0 {word} 0"}
    tables = {"steps": {"rows": [{"device": 800}, {"device": None}]}}
    assert [
        row["device"] for row in with_device_names({**sidecar, "analyses": tables})["analyses"]["steps"]["rows"]
    ] == ["NPU", None]
    several = [{"name": "A", "works": place == 1} for place in range(8)] + [
        {"name": "B", "works": True},
        {"name": "C", "works": False},
    ]
    assert devices_text(several) == "1 of 8 × A, B, C (no GPU work recorded)"
