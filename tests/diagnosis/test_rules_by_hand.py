"""Rules on tiny traces made by hand: what the simulator does not write."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import traces
from augment import Skipped, Trace, facts, read
from augment.analyses import kernel_occupancy
from augment.core import Category, SliceTrack
from augment.core.attachments import Tables
from augment.core.source_code import shown_frame
from augment.core.text import words_of
from augment.diagnosis import rules
from augment.diagnosis.drawing import COLOURS, drawn
from augment.diagnosis.judging import measure
from augment.diagnosis.ranking import diagnose
from augment.diagnosis.rule import NOWHERE, Answer, Finding, Fine, Found, NoData, NotApplicable
from augment.diagnosis.verdict import verdict
from augment.diagnosis.wording import title, words
from said import advice_of, evidence_of, problem_of, title_of
from tables import Event, Track, annotation, call, copy, kernel, launched_kernel, op, python, shaped, sync, trace_of

STEP = annotation("ProfilerStep#0", 0, 1_000_000)
SHORT = annotation("ProfilerStep#0", 0, 45_000)  #: on the host; the device works longer
MS = 1_000_000
THREAD = call("x", 0, 1).track
H100 = {"deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3", "computeMajor": 9, "computeMinor": 0,
                              "numSms": 132, "totalGlobalMem": 80_000_000_000}]}  # fmt: skip


def on_device(trace: Trace) -> Trace:
    """The trace as recorded on an H100."""
    return replace(trace, source=replace(trace.source, metadata=H100))


def stepped(count: int, ns: int) -> list[Event]:
    return [annotation(f"ProfilerStep#{at}", at * ns, (at + 1) * ns) for at in range(count)]


def launched(name: str, start: int, end: int, correlation: int, at: int | None = None) -> list[Event]:
    """A kernel and its launch, just before or ``at`` a moment."""
    at = start - 10_000 if at is None else at
    return [*launched_kernel(name, (at, at + 5_000), (start, end), correlation=correlation)]


def renumbered(event: Event) -> Event:
    """On a thread, or a stream, of another number; a product of another name."""
    track = replace(
        event.track, tid=90 - int(event.track.tid), stream=event.track.stream and 90 - int(event.track.stream)
    )
    return replace(event, track=track, name=event.name.replace("gemm", "ampere_bf16_s16816gemm_bf16_64x64_nn"))


#: metamorphic: what changes no finding but its times, and how many times as long these are
CHANGES: list[tuple[int, Callable[[Iterable[Event]], list[Event]]]] = [
    (1, list),
    (2, lambda events: [replace(each, ts=2 * each.ts, end=2 * each.end) for each in events]),
    (1, lambda events: [replace(each, ts=each.ts + 10**10, end=each.end + 10**10) for each in events]),
    (1, lambda events: [*map(renumbered, events), replace(op("aten::empty", 1_000, 3_000), track=Track(0, 9, 9))]),
]
in_other_words = pytest.mark.parametrize(("times", "change"), CHANGES, ids=["as it is", "longer", "later", "renamed"])


def test_the_profilers_own_work_of_an_unknown_thread_counts_once() -> None:
    """CUDA 13 records it on thread 0. While it lasts the host begins and ends nothing, and the device idles."""
    rest = [STEP, *launched("gemm", 20_000, 30_000, 1), *launched("gemm", 700_000, 900_000, 2)]
    overhead = Event(Category.OVERHEAD, "Activity Buffer Request", 40_000, 640_000, Track(0, 100, 0))
    answer = problem_of(rules.profiler_overhead.check(trace_of(*rest, overhead)))
    assert title_of(answer).startswith("The profiler itself takes 600 µs")
    for begun in (op("aten::mm", 300_000, 310_000), kernel("other", 100_000, 600_000, correlation=9)):
        assert isinstance(rules.profiler_overhead.check(trace_of(*rest, overhead, begun)), Fine)


def test_a_process_may_have_any_number() -> None:
    events = [STEP, *launched("gemm", 50_000, 90_000, 1), *launched("gemm", 700_000, 900_000, 2)]
    beyond = [replace(each, track=replace(each.track, pid=1 << 64)) for each in events]
    assert verdict(trace_of(*beyond)) == verdict(trace_of(*events))


def test_a_stall_of_the_profiler_is_told_once() -> None:
    rest = [annotation("ProfilerStep#0", 0, 9_000_000), *launched("gemm", 20_000, 30_000, 1)]
    rest += launched("gemm", 8_000_000, 8_900_000, 2)
    overhead = Event(Category.OVERHEAD, "Activity Buffer Request", 100_000, 7_900_000, Track(0, 100, 0))
    assert isinstance(rules.host_gaps.check(trace_of(*rest)), Found)
    assert not isinstance(rules.host_gaps.check(trace_of(*rest, overhead)), Found)
    assert isinstance(rules.profiler_overhead.check(trace_of(*rest, overhead)), Found)


def test_the_profilers_own_work_comes_first() -> None:
    rest = [STEP, *launched("gemm", 300_000, 900_000, 1)]
    overhead = Event(Category.OVERHEAD, "Activity Buffer Request", 20_000, 220_000, THREAD)
    trace = trace_of(*rest, overhead)
    answer = problem_of(rules.profiler_overhead.check(trace))
    said = "The profiler itself takes 200 µs, 20 % of a step, on the threads that launch work"
    assert title_of(answer, trace) == said
    assert answer.first
    assert answer.severity == "warning"
    assert isinstance(rules.profiler_overhead.check(trace_of(*rest, replace(overhead, end=30_000))), Fine)
    assert isinstance(rules.profiler_overhead.check(trace_of(*rest, replace(overhead, track=Track(None, 1, 99)))), Fine)
    assert isinstance(rules.profiler_overhead.check(trace_of(*rest)), NotApplicable)


def enough(start: int = 300_000, lost: int = 0) -> list[Event]:
    """As many kernels with launches as a run that can be judged; the first ``lost`` kernels are missing."""
    events = [launched("gemm", start + 2_000 * at, start + 2_000 * at + 1_900, start // 1_000 + at) for at in range(40)]
    return [each for at, pair in enumerate(events) for each in pair if at >= lost or each.category != Category.KERNEL]


def test_lost_kernels_and_excerpts_are_told_and_doubted() -> None:
    """A device whose kernels were not recorded seems to wait: no cause is more than possible then."""
    gap = op("work", 400_000, 900_000)
    assert isinstance(rules.partial_recording.check(trace_of(STEP, *enough(lost=2), gap)), Fine)
    assert isinstance(rules.partial_recording.check(trace_of(STEP)), NotApplicable), "what is whole of nothing?"
    lost = trace_of(STEP, *enough(lost=20), gap)
    answer = problem_of(rules.partial_recording.check(lost))
    assert (answer.first, answer.severity) == (True, "warning")
    assert title_of(answer).startswith("50 % of the kernels that were launched are missing from the recording")
    kernels = {place for place, each in enumerate(enough()) if each.category == Category.KERNEL and place >= 60}
    early = trace_of(STEP, *(each for place, each in enumerate(enough()) if place not in kernels))
    answer = problem_of(rules.partial_recording.check(early))
    assert title_of(answer).startswith("The recording ends before the GPU ran the last 25 % of the kernels")
    assert "synchronize() before the recording ends" in advice_of(answer)
    few = trace_of(STEP, *launched("gemm", 300_000, 900_000, 1))
    answer = problem_of(rules.partial_recording.check(few))
    assert title_of(answer) == "Only 1 piece of GPU work: too few to tell what is typical"
    for trace in (lost, few):
        doubted = [each for each in diagnose(trace).findings if not each.found.first and not each.found.of_recording]
        assert {each.found.confidence for each in doubted} <= {"low"}
    captured = [call("cudaStreamBeginCapture", 1_000, 2_000), call("cudaStreamEndCapture", 290_000, 291_000)]
    written = [call("cudaLaunchKernel", 3_000 * at, 3_000 * at + 1_000, correlation=500 + at) for at in range(1, 90)]
    assert isinstance(rules.partial_recording.check(trace_of(STEP, *captured, *written, *enough())), Fine)
    last = launched("gemm", 300_000, 900_000, 1)
    assert isinstance(rules.partial_recording.check(trace_of(STEP, *captured, *written, *last)), Fine), "it captures"
    calls = [call("cudaStreamIsCapturing", 3_000 * at, 3_000 * at + 1_000) for at in range(1, 90)]
    assert title_of(problem_of(rules.partial_recording.check(trace_of(STEP, *calls, *last)))).startswith("Only 1 piece")


def test_an_excerpt_has_a_cause_and_says_from_how_many_pieces() -> None:
    """The likeliest cause comes first, and is merely possible; without any, that the work is too little."""
    step = annotation("ProfilerStep#1", 0, 8_000_000)
    late = trace_of(step, op("work", 10_000, 6_000_000), *launched("gemm", 6_100_000, 7_900_000, 1, at=6_050_000))
    assert [each.rule for each in diagnose(late).findings] == ["host_gaps", "partial_recording"]
    assert verdict(late)[1].startswith("Only 1 piece of GPU work, so this is merely possible: The host stalls")
    busy = trace_of(STEP, *launched("gemm", 12_000, 990_000, 1))
    assert verdict(busy)[0] == "Only 1 piece of GPU work: too few to tell what is typical."
    assert len([text for text in verdict(busy) if text.startswith("Only 1 piece")]) == 1


def test_a_device_that_starts_launched_work_late_is_no_healthy_one() -> None:
    """Each kernel had been launched when the one before ended, and yet begins 100 µs later: no rule knows why."""
    events: list[Event] = [annotation("ProfilerStep#1", 0, 8_200_000)]
    for at in range(40):
        events += launched("gemm", 200_000 * at + 150_000, 200_000 * at + 250_000, at + 1, at=200_000 * at + 20_000)
    text = verdict(trace_of(*events))
    assert "Idle: 48 % for reasons not recorded" in text[0]
    assert rules.launch_bound.check(trace_of(*events)).saved_ns == 0, "what had been launched did not wait for the host"
    assert text[1].startswith(
        "The GPU idles 48 % of a step for an unknown reason: its next work had been launched, but "
    )
    assert text[1].endswith("waited for; augment open TRACE --at 0.250-0.350 shows the longest gap.")
    (track,) = (each for each in drawn(trace_of(*events), "diagnosis") if isinstance(each, SliceTrack))
    assert track.colour is not None
    assert track.colour[0] == COLOURS["warning"], "not that of a healthy one"
    held = [
        annotation("train", 0, 8_200_000),
        annotation("update", 2_000_000, 8_200_000),
    ]  # the shorter of those that do
    held.append(annotation("metrics", 4_000_000, 8_200_000))  # not most of it
    meanwhile = "Meanwhile the host is in update for 77 % of that time; augment open"
    assert meanwhile in verdict(trace_of(*events, *held))[1]
    some = [each for at, each in enumerate(events) if (at % 6 != 1 or not at) and not 4e5 < each.ts < 1e6]
    text = verdict(trace_of(*some, *held[1:2], op("copy", 6_000_000, 8_200_000)))
    assert text[1].endswith(
        "in update for 82 % of that time; augment open TRACE --at 2.050-2.150 shows the longest gap."
    )
    later = [replace(each, ts=each.ts + 1_500_000, end=each.end + 1_500_000) for each in events[1:]]
    fetch = annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 1_000, 1_490_000)
    whole, some = trace_of(annotation("ProfilerStep#1", 0, 9_700_000), fetch, *later), "of a step for an unknown reason"
    both = verdict(whole)
    names = next(each.names for each in drawn(whole, "diagnosis") if isinstance(each, SliceTrack))
    said = names.values[names.codes[0]]  # each title goes with its own sentence
    assert said.startswith(f"Idle time: The GPU idles 40 % {some}")
    assert "gap. Waiting for batches (a fix saves " in said
    assert " %): The host fetches batches" in said
    assert both[1].startswith(f"The GPU idles 40 % {some}"), "a cause that explains less is not all, nor first"
    assert both[2].startswith("The host fetches batches")
    longer = [replace(each, ts=each.ts + 8_000_000, end=each.end + 8_000_000) for each in later]
    fetch = replace(fetch, end=9_490_000)
    both = verdict(trace_of(annotation("ProfilerStep#1", 0, 17_700_000), fetch, *longer))
    assert both[1].startswith("The host fetches batches"), "what saves more is first"
    assert both[2].startswith(f"The GPU idles 22 % {some}")


def test_work_without_launches_waits_most_likely_for_a_host_that_launched_nothing_after_it() -> None:
    """Copies whose launches are not recorded, each followed by a kernel: as of MTIA."""
    ms = 1_000_000
    copies = [launched("dma", (2 * at + 1) * ms, (2 * at + 1) * ms + ms // 4, 100 + at)[1] for at in range(20)]
    ends = [each.end for each in copies]
    kernels = [
        each for at, end in enumerate(ends) for each in launched("gemm", end, end + 750_000, at, at=end - 20_000)
    ]
    step, late = annotation("ProfilerStep#1", 0, 41 * ms), ", most likely waiting for the host: no work was"
    unknown = " for an unknown reason: the launch of its next work was not recorded"
    said = verdict(trace_of(step, *copies, *kernels))[1]
    assert late in said
    moved = [replace(each, ts=each.ts + 7 * ms, end=each.end + 7 * ms) for each in (step, *copies, *kernels)]
    assert verdict(trace_of(*moved))[1].split("(")[0] == said.split("(")[0], "when the recording began is nothing to it"
    early = [replace(each, ts=each.ts - 2 * ms, end=each.end - 2 * ms) for each in kernels[2::2]]
    assert unknown in verdict(trace_of(step, *copies, *kernels[:2], *early, *kernels[3::2]))[1], "kernels wait, too"
    wait = [call("cudaStreamSynchronize", end - ms, end - 30_000) for end in ends[1:]]
    assert unknown in verdict(trace_of(step, *copies, *kernels, *wait))[1], "the host waits itself"


def test_work_without_launches_and_broken_files_are_told() -> None:
    kernels = [each for each in enough() if each.category == Category.KERNEL]
    answer = problem_of(rules.partial_recording.check(trace_of(STEP, *kernels)))
    assert title_of(answer).startswith("100 % of the GPU's work has no launch in the recording")
    trace = trace_of(STEP, *enough())
    assert isinstance(rules.partial_recording.check(trace), Fine)
    answer = problem_of(rules.partial_recording.check(trace.changed(partial="the text ends at byte 7")))
    assert answer.first
    assert "the text ends at byte 7" in title_of(answer)


def test_what_follows_the_last_work_belongs_to_nobody() -> None:
    """The profiler waits for the device as it stops, and a process gives memory back as it ends: nobody waits then."""
    last = max(each.end for each in enough(100_000))
    host = [op("aten::mm", 0, last), *enough(100_000)]
    stopped = call("cudaDeviceSynchronize", last + 900_000_000, last + 900_020_000)
    freed = [call("cudaFree", last + at, last + at + 90_000) for at in (700_000_000, 950_000_000)]
    short, long = trace_of(*host), trace_of(*host, stopped, *freed)
    assert measure(long).length_ns == measure(short).length_ns
    assert "after its last work" in verdict(long)[0]
    assert verdict(long)[1:] == verdict(short)[1:]
    asking = trace_of(*host, call("cudaLaunchKernel", last + 900_000_000, last + 900_020_000), *freed)
    assert measure(asking).length_ns > 800_000_000, "a launch asks for work"
    assert "from the first GPU work to the last call for more" in verdict(asking)[0]


def test_what_many_short_frames_do_is_named_by_the_frame_around_them() -> None:
    """As NumPy's frames of the preprocessing of images: without stacks, the same stretch saves as much."""
    step, train = annotation("ProfilerStep#0", 0, 300 * MS), python("train.py(3): main", 0, 300 * MS)
    work = [each for at in range(20) for each in launched("gemm", (202 + 4 * at) * MS, (205 + 4 * at) * MS, at)]
    outer = python("pipelines/video.py(129): preprocess", MS, 201 * MS)
    inner = [python("images.py(390): normalize", at * MS // 2, (at + 1) * MS // 2) for at in range(4, 400, 2)]
    problem = problem_of(rules.host_gaps.check(trace_of(step, train, *work, outer, *inner)))
    assert title_of(problem).startswith("The host stalls for up to 198 ms")
    assert title_of(problem).endswith("without launching work, in pipelines/video.py(129): preprocess")
    plain = problem_of(rules.host_gaps.check(trace_of(step, *work)))
    beside = annotation(
        "Optimizer.step#A.step", 202 * MS - 40_000, 203 * MS
    )  # takes part of the same stretch, but little
    assert title_of(problem_of(rules.host_gaps.check(trace_of(step, *work, beside)))) == title_of(plain)
    assert problem.saved_ns == plain.saved_ns > 190 * MS
    assert isinstance(rules.launch_bound.check(trace_of(step, train, *work, outer, *inner)), Fine)


def test_a_name_of_any_length_is_shown_at_once() -> None:
    """Of a frame that fits no sentence the file is shown with a single folder. A search from each letter of the other
    name would take hours."""
    trace = trace_of(python(f"{'folder/' * 20}video.py(129): preprocess", 0, 9), call("cudaDeviceSynchronize", 2, 4))
    assert facts.host.python_lines(trace, trace.events.slices_of(Category.CUDA_RUNTIME)) == [
        "folder/video.py(129): preprocess"
    ]
    assert shown_frame("x" * 4_000_000) == "x" * 59 + "…"


def test_waiting_for_the_last_work_of_a_recording_costs_nothing() -> None:
    """A benchmark ends with a call that waits: nothing comes after it, however late the call returns."""
    work = enough(100_000)
    last = max(each.end for each in work)
    waits = call("cudaDeviceSynchronize", last - 20_000, last + 60_000)
    trace = trace_of(op("aten::mm", 0, last - 30_000), *work, waits)
    assert measure(trace).windows.end.tolist() == [last]
    assert not isinstance(rules.synchronizing_calls.check(trace), Found)


def test_an_operator_of_many_views_that_launches_is_no_stall() -> None:
    step = annotation("ProfilerStep#0", 0, 100 * MS)
    work = [each for at in range(20) for each in launched("gemm", (52 + 2 * at) * MS, (53 + 2 * at) * MS, at)]
    split = op("aten::split_with_sizes", 2 * MS, 42 * MS)
    views = [op("aten::narrow", at * MS // 10, (at + 1) * MS // 10 - 5_000) for at in range(20, 420)]
    assert "in aten::split" in title_of(problem_of(rules.host_gaps.check(trace_of(step, *work, split, *views))))
    answer = rules.host_gaps.check(trace_of(step, *work, split, *views, *launched("fill", 21 * MS, 22 * MS, 99)))
    assert not isinstance(answer, Found) or "split" not in title_of(answer)


@pytest.mark.parametrize(("name", "waits"), [("hipMemcpyWithStream", True), ("hipMemcpyAsync", False)])
def test_a_copy_that_waits_may_end_after_its_call_by_the_clocks(name: str, waits: bool) -> None:
    """The device's clock is a few microseconds ahead of the host's on ROCm: the call waits for all work before it."""
    work = [
        each for at in range(5) for each in launched("gemm", (11 + 10 * at) * MS, (20 + 10 * at) * MS, at, at * 20_000)
    ]
    copied = copy("Memcpy HtoD (Host -> Device)", 60 * MS, 60 * MS + 12_000, correlation=99)
    reading = call(name, 2 * MS, 60 * MS + 9_000, correlation=99)
    later = [each for at in range(5) for each in launched("gemm", (91 + at) * MS, (92 + at) * MS, 200 + at)]
    trace = trace_of(annotation("ProfilerStep#0", 0, 100 * MS), *work, reading, copied, *later)
    answer = rules.synchronizing_calls.check(trace)
    assert isinstance(answer, Found) is waits, answer


def test_a_backward_pass_whose_thread_was_not_recorded_is_said() -> None:
    forward = [*enough(), op("aten::mm", 100_000, 300_000), annotation("## backward ##", 400_000, 900_000)]
    engine = op("MmBackward0", 410_000, 890_000, thread=2)
    answer = problem_of(rules.partial_recording.check(trace_of(STEP, *forward)))
    assert "a thread that was not recorded: what it computes in 50 % of a step is unknown" in title_of(answer)
    by_itself = call("cudaGraphLaunch", 500_000, 501_000)
    node = op("autograd::engine::evaluate_function: MmBackward0", 410_000, 430_000)
    for each in (engine, by_itself, node):
        assert isinstance(rules.partial_recording.check(trace_of(STEP, *forward, each)), Fine)
    waits = annotation("gloo:all_reduce", 420_000, 890_000, thread=2)
    assert isinstance(rules.partial_recording.check(trace_of(STEP, *forward[-2:])), Found)
    assert isinstance(rules.partial_recording.check(trace_of(STEP, *forward[-2:], waits)), Fine)


def test_the_call_to_look_at_is_the_one_that_costs_most() -> None:
    """The longest only waits: the work after it had been launched before, as on another stream."""
    work = [annotation("ProfilerStep#0", 0, 90 * MS), *launched("gemm", MS, 50 * MS, 1, 0)]
    work += [*launched("gemm", 50 * MS, 60 * MS, 2, 20_000), *launched("gemm", 72 * MS, 90 * MS, 3, 71 * MS)]
    calls = [call("cudaDeviceSynchronize", MS, 50 * MS), call("cudaDeviceSynchronize", 51 * MS, 60 * MS + 10_000)]
    answer = problem_of(rules.synchronizing_calls.check(trace_of(*work, *calls)))
    assert answer.spans.start[answer.worst] == 51 * MS


@pytest.mark.parametrize(("name", "saves"), [("gemm_2", True), ("ncclDevKernel_AllGather_RING_LL", False)])
def test_collectives_that_begin_earlier_end_no_earlier(name: str, saves: bool) -> None:
    """The host waits, then launches on another stream: without the wait both run at once, but a gather waits for the
    other ranks. The devices are hardly idle."""
    events = stepped(5, 10_000_000)
    for at in range(0, 50 * MS, 10 * MS):
        second = at + 6 * MS + 20_000
        events += launched("gemm", at + 20_000, at + 6 * MS, at + 1)
        events += [call("cudaDeviceSynchronize", at + 30_000, second - 15_000)]
        events += [call("cudaLaunchKernel", second - 10_000, second - 5_000, correlation=at + 2)]
        events += [kernel(name, second, at + 10 * MS - 20_000, stream=20, correlation=at + 2)]
        events += [call("cudaDeviceSynchronize", second + 10_000, at + 10 * MS - 10_000)]
    assert isinstance(rules.synchronizing_calls.check(trace_of(*events)), Found) is saves


@in_other_words
@pytest.mark.parametrize(("blocks", "steps", "saved"), [(2.0, 4, 197_000), (2.0, 12, 197_000), (0.25, 4, 580_000)])
def test_kernels_that_fill_the_device_do_not_run_at_once(
    blocks: float, steps: int, saved: int, times: int, change: Any
) -> None:
    """Two streams take turns as the host waits for each: small grids fit beside each other, full ones one by one."""
    events = stepped(steps, 1_000_000)
    for at in [each.ts for each in events]:
        for stream, start in ((7, at + 100_000), (20, at + 550_000)):
            launch, work = launched("gemm", start, start + 400_000, start)
            work = replace(work, track=Track(0, 0, stream, 0, stream), args={"blocks per SM": blocks})
            events += [launch, work, call("cudaDeviceSynchronize", start - 4_000, start + 401_000)]
    answer = problem_of(rules.synchronizing_calls.check(trace_of(*change(events))))
    assert answer.saved_ns == pytest.approx(times * saved, rel=0.05)


@pytest.mark.parametrize("ns", [200_000, 50_000])
def test_exposed_communication_that_the_host_outlasts_is_not_passed_over(ns: int) -> None:
    """A fifth of a step: the verdict says why no finding speaks of it. A twentieth needs no sentence."""
    events = stepped(9, 1_000_000)
    for at in [each.ts for each in events]:
        events += launched("gemm", at + 20_000, at + 200_000, at + 1, at=at)
        events += [call("cudaLaunchKernel", at + 5_000, at + 9_000, correlation=at + 2)]
        events += [kernel("ncclDevKernel_AllReduce", at + 200_000, at + 200_000 + ns, stream=20, correlation=at + 2)]
        events += launched("gemm", at + 720_000, at + 960_000, at + 3, at=at + 700_000)
    text = verdict(trace_of(*events))[-1]
    said = "200 µs of communication per step is exposed; hiding it would save next to nothing, as the host or copies "
    assert text.startswith(said) == (ns == 200_000), text


def test_operators_tell_where_they_ran() -> None:
    """Of a recording without work of a device: cuDNN's are of a GPU that was not recorded, oneDNN's of the CPU."""
    said = {}
    for name in ("aten::cudnn_convolution", "aten::mkldnn_convolution", "aten::mm", "aten::_local_scalar_dense"):
        trace = trace_of(*(op(name, at, at + 900_000) for at in (0, 1_000_000, 2_000_000)))
        said[name] = verdict(replace(trace, source=replace(trace.source, devices=((0, "Tesla T4"),))))[0]
    assert said["aten::cudnn_convolution"].startswith("Operators ran on the GPU, but none of its work was recorded")
    assert said["aten::mkldnn_convolution"].startswith("There is no GPU work in this recording, and operators ran on")
    trace = trace_of(op("aten::mkldnn_convolution", 0, 900_000))
    assert "torch.autocast('cpu') and torch.compile speed them up." in verdict(trace)[0]
    assert "autocast" not in said["aten::mkldnn_convolution"], "it has a better device"
    assert said["aten::mm"].startswith("There is no GPU work in this recording: only the host can be judged")
    assert said["aten::mm"].endswith(" show which lines call them, and with which sizes.")
    assert said["aten::_local_scalar_dense"].startswith("A device is waited for (aten::_local_scalar_dense, which only")
    brief = [op("aten::_local_scalar_dense", at, at + 900) for at in range(0, 900_000, 1_000)]
    for more in ([], [op("aten::_local_scalar_dense", 900_000, 1_900_000)]):  # a thread that had no CPU once
        assert verdict(trace_of(*brief, *more))[0].startswith("There is no GPU work in this recording")


def test_an_annotation_of_everything_names_nothing() -> None:
    work = [op("aten::mm", at * 100_000, at * 100_000 + 50_000) for at in range(10)]
    whole, part = annotation("inference", 0, 1_000_000), annotation("tokenize", 350_000, 800_000)
    assert "was not recorded" in verdict(trace_of(whole, *work))[0]
    assert "in tokenize" in verdict(trace_of(whole, part, *work))[0]


@pytest.mark.parametrize(("start", "bounded"), [(1_000_000, True), (15_000, False)])
def test_tokens_a_second_without_the_idle_time_before_are_a_bound(start: int, bounded: bool) -> None:
    """An engine's only step begins with an idle device: whether every step does is not known."""
    step = annotation("execute_context_0(0)_generation_4(4)", 0, start + 1_000_000)
    begun = [start + 50_000 * at for at in range(20)]
    work = [launched("gemm", ts, ts + 50_000, at, at=10_000 + at) for at, ts in enumerate(begun)]
    said = verdict(trace_of(step, *(each for pair in work for each in pair)))
    assert (" in at least 1.0 ms a step, at most 4,000 tokens/s" in said[0]) == bounded
    assert ("begins 985 µs after its launch; record several steps to see whether each begins so" in said[1]) == bounded
    assert (" computes for 100 % of a step of 1.0 ms. Not counted: 1.0 ms before" in said[1]) == bounded


def test_work_that_the_file_lacks_is_told() -> None:
    host, late = op("aten::mm", 0, 40_000), launched("gemm", 600_000, 1_000_000, 1, at=20_000)
    other = Event(Category.KERNEL, "fill", 30_000, 34_000, Track(0, 9, "", "", 0, 9), correlation=2)
    elsewhere = [call("cudaLaunchKernel", 10_000, 14_000, correlation=2), other]
    trace = trace_of(host, *late, *elsewhere)
    answer = problem_of(rules.partial_recording.check(trace))
    assert (answer.first, answer.severity) == (True, "warning")
    assert "while the file shows an idle GPU" in verdict(trace)[0]
    assert "before the first work of a stream" in verdict(trace)[1]
    before = "(not counted: 600 µs before its first GPU work, which begins 575 µs after its launch)"
    assert before in verdict(trace_of(host, *late, *enough(1_100_000)))[0]
    at_once = [python("main.py(1): main", 0, 640_000), *launched("gemm", 600_000, 1_000_000, 1, at=595_000)]
    assert "(not counted: 600 µs before its first GPU work)" in verdict(trace_of(*at_once, *enough(1_100_000)))[0]
    for longest in ("cudaStreamSynchronize", "enumerate(DataLoader)#_X.__next__"):
        waits = (annotation if "#" in longest else call)(longest, 20_000, 580_000)
        before = f"before its first GPU work, for 93 % of which the host is in {longest})"
        assert before in verdict(trace_of(*at_once, waits, *enough(1_100_000)))[0]
    soon = launched("gemm", 600_000, 1_000_000, 1)
    assert isinstance(rules.partial_recording.check(trace_of(host, *soon, *elsewhere, *enough(1_100_000))), Fine)
    later = [*launched("gemm", 40_000, 60_000, 1), *launched("gemm", 600_000, 1_000_000, 3, at=30_000)]
    assert isinstance(rules.partial_recording.check(trace_of(host, *later, *enough(1_100_000))), Fine)


def test_compilation_in_steady_steps_is_found() -> None:
    steps = stepped(4, 1_000_000)
    work = [each for step in steps for each in launched("gemm", step.ts + 600_000, step.end, step.ts)]
    compiling = op("entire_frame_compile (dynamo_timed)", 2_050_000, 2_500_000)
    answer = problem_of(rules.recompilation.check(trace_of(*steps, *work, compiling)))
    assert answer.saved_ns > 50_000
    assert isinstance(rules.recompilation.check(trace_of(*steps, *work)), NotApplicable)
    running = op("Torch-Compiled Region: 0/0", 2_050_000, 2_500_000)
    assert isinstance(rules.recompilation.check(trace_of(*steps, *work, running)), NotApplicable)


@pytest.mark.parametrize("usual", [30_000, 4_000_000])
def test_an_operator_that_usually_takes_microseconds_stands_still(usual: int) -> None:
    """In one of four steps an operator takes 5 ms while the device idles; the others of its name take ``usual``."""
    events = stepped(4, 10_000_000)
    for number in range(4):
        begin, took = number * 10_000_000, 5_000_000 if number == 2 else usual
        events += [op("aten::mm", begin + 100_000, begin + 100_000 + took)]
        events += launched("gemm", begin + took + 130_000, begin + 9_990_000, number + 1)
    answer = problem_of(rules.host_gaps.check(trace_of(*events)))
    assert ("usually take microseconds" in advice_of(answer)) == (usual == 30_000)
    assert answer.confidence == ("medium" if usual == 30_000 else "high")
    assert answer.in_step == (2 if usual == 30_000 else None)
    assert ("(12 %), nearly all of it in step 2" in str(verdict(trace_of(*events)))) == (usual == 30_000)


@pytest.mark.parametrize(("name", "is_warming"), [("Warm-up Step 1", True), ("warmup", True), ("Swarm update", False)])
def test_what_a_program_calls_its_warm_up_is_no_sure_cause(name: str, is_warming: bool) -> None:
    events: list[Event] = list(launched("gemm", 100_000, 1_000_000, 1))
    events += [annotation(name, 1_000_000, 31_000_000), *launched("gemm", 30_900_000, 40_000_000, 2)]
    answer = problem_of(rules.host_gaps.check(trace_of(*events)))
    assert (answer.confidence == "low") == is_warming
    assert ("judge what comes after it" in advice_of(answer)) == is_warming


@pytest.mark.parametrize("nested", [True, False])
def test_operators_that_a_dispatch_mode_runs(nested: bool) -> None:
    """A split is 30 ms of views, each nested in itself, or in a slice of its own."""
    events = stepped(2, 40_000_000)
    for begin in (0, 40_000_000):
        events += [op("aten::split", begin + 100_000, begin + 30_200_000)]
        for view in range(100):
            at = begin + 150_000 + 300_000 * view
            events += [op("aten::view" if nested else "aten::slice", at, at + 290_000)]
            events += [op("aten::view", at + 10_000, at + 280_000)]
        events += launched("gemm", begin + 30_230_000, begin + 39_990_000, begin + 1)
    assert ("a dispatch mode" in advice_of(problem_of(rules.host_gaps.check(trace_of(*events))))) == nested


def product(length: int, columns: int, rows: int = 4096, layout: str = "TNN") -> list[Event]:
    """A BF16 product that takes most of a step."""
    args: dict[str, Any] = shaped([rows, length], [length, columns])
    gemm = launched(f"nvjet_tst_128x256_64x4_2x1_v_bz_{layout}", 50_000, 950_000, 1, at=20_000)
    return [SHORT, op("aten::mm", 10_000, 40_000, args=args), *gemm]


def test_sizes_that_fit_no_tile_are_found() -> None:
    answer = problem_of(rules.unaligned_shapes.check(trace_of(*product(768, 50257))))
    assert "aten::mm 4096x768 × 768x50257" in title_of(answer)
    assert (answer.severity, answer.saved_ns) == ("info", None)
    assert isinstance(rules.unaligned_shapes.check(trace_of(*product(768, 50304))), Fine)
    bare = [replace(each, args={}) for each in product(768, 50257)]
    assert isinstance(rules.unaligned_shapes.check(trace_of(*bare)), NoData)


@pytest.mark.parametrize(("sizes", "layout", "matters"), [
    ((768, 768, 788), "TNN", False), ((768, 768, 788), "nn", False), ((768, 768, 788), "nt_align8", True),
    ((788, 768, 768), "nt_align8", False), ((788, 768, 768), "nn", True), ((768, 768, 788), "unknown", True),
])  # fmt: skip
def test_only_sizes_along_which_numbers_lie_together_matter(sizes: Any, layout: str, matters: bool) -> None:
    """A batch of 788 rows is one where the first factor is transposed, as that of a weight's gradient."""
    assert isinstance(rules.unaligned_shapes.check(trace_of(*product(*sizes, layout=layout))), Found) == matters


def test_products_far_below_their_roof_are_found_with_low_confidence() -> None:
    answer = problem_of(rules.low_roofline.check(on_device(trace_of(*product(512, 4096)))))
    assert answer.confidence == "low"
    assert "aten::mm 4096x512 × 512x4096" in title_of(answer)
    fast = [*product(2048, 32768)[:3], kernel("nvjet_tst_128x256_64x4_2x1_v_bz_TNN", 50_000, 900_000, correlation=1)]
    assert isinstance(rules.low_roofline.check(on_device(trace_of(*fast))), Fine)
    assert isinstance(rules.low_roofline.check(trace_of(*product(512, 4096))), NoData)


def test_sizes_of_few_products_do_not_stand_for_all() -> None:
    for end, kind in ((1_200_000, Fine), (3_000_000, NoData)):  # of another product, which has no operator
        other = launched("nvjet_tst_128x256_64x4_2x1_v_bz_TNN", 1_000_000, end, 2, at=42_000)
        answers = diagnose(on_device(trace_of(*product(8192, 32768), *other))).answers
        assert {type(answers[name]) for name in ("unaligned_shapes", "low_roofline")} == {kind}
    few = answers["unaligned_shapes"]
    assert isinstance(few, NoData)
    assert "known for only 31 %" in few.why
    assert "--graph-capture FILE" in few.why


def test_norms_in_fp32_between_products_of_16_bits_are_told() -> None:
    gemm = launched("nvjet_hsh_128x256_64x4", 50_000, 500_000, 1, at=10_000)
    norm = "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float, false>"
    wide = launched(norm, 510_000, 900_000, 2, at=20_000)
    assert problem_of(rules.wide_norms.check(trace_of(SHORT, *gemm, *wide))).confidence == "low"
    narrow = launched(norm.replace("<float", "<c10::BFloat16"), 510_000, 900_000, 2, at=20_000)
    assert isinstance(rules.wide_norms.check(trace_of(SHORT, *gemm, *narrow)), Fine)
    assert isinstance(rules.wide_norms.check(trace_of(SHORT, *wide)), NotApplicable)


def memory(allocated: int, reserved: int, *events: Event) -> Trace:
    args = {"Device Type": 1, "Device Id": 0, "Bytes": allocated, "Addr": 7, "Total Allocated": allocated,
            "Total Reserved": reserved}  # fmt: skip
    instant = Event(Category.CPU_INSTANT_EVENT, "[memory]", 10_000, 10_000, THREAD, args=args, phase=ord("i"))
    return on_device(trace_of(*(events or (STEP, *launched("gemm", 300_000, 900_000, 1))), instant))


def test_memory_that_is_full_or_fragmented_is_found() -> None:
    assert "no room left" in title_of(problem_of(rules.memory_capacity.check(memory(70 * 10**9, 77 * 10**9))))
    assert "fragmented" in title_of(problem_of(rules.memory_capacity.check(memory(40 * 10**9, 60 * 10**9))))
    assert isinstance(rules.memory_capacity.check(memory(40 * 10**9, 50 * 10**9)), Fine)
    assert isinstance(rules.memory_capacity.check(trace_of(STEP, *launched("gemm", 300_000, 900_000, 1))), NoData)


def test_what_a_trace_cannot_tell_says_what_would() -> None:
    collective = launched("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 300_000, 900_000, 1)
    answer = rules.straggling_rank.check(trace_of(STEP, *collective))
    assert isinstance(answer, NoData)
    assert "FOLDER" in answer.remedy
    late = kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 800_000, 900_000, device=1)
    answer = rules.straggling_rank.check(trace_of(*collective, late))
    assert isinstance(answer, NoData)
    assert answer.why.endswith("others wait 500 µs for {gpu} 1"), "all ranks are in the file"
    hidden = rules.exposed_communication.check(trace_of(*collective, late))
    assert (hidden.saved_ns or 0) <= hidden.seen.figures["exposed_ns"]
    unlaunched = kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 300_000, 900_000)
    assert isinstance(rules.launch_bound.check(trace_of(STEP, unlaunched)), NoData)
    copies = copy("Memcpy HtoD (Pageable -> Device)", 1_000, 2_000, correlation=1)
    assert isinstance(rules.launch_bound.check(trace_of(STEP, copies)), NotApplicable), "no launch of a kernel lacks"
    for more in ([], [STEP], *([STEP, *launched("gemm", 100_000, end, 1)] for end in (200_000, 990_000))):
        assert isinstance(rules.exposed_communication.check(trace_of(unlaunched, *more)), NoData)
    unrecorded = trace_of(call("cudaMalloc", 0, 900_000), call("cudaFree", 900_000, 1_900_000))
    assert isinstance(rules.allocator_calls.check(unrecorded), NotApplicable), "what would wait for them is unknown"


@pytest.mark.parametrize("computing", [600_000, 100_000])
def test_computing_hides_no_more_than_it_takes(computing: int) -> None:
    end = 20_000 + computing
    nccl = launched("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", end, end + 500_000, 2, at=30_000)
    answer = problem_of(rules.exposed_communication.check(trace_of(SHORT, *launched("gemm", 20_000, end, 1), *nccl)))
    assert answer.saved_ns == 500_000
    assert ("can save no more than 100 µs per step" in "".join(evidence_of(answer))) == (computing < 500_000)
    nccl += launched("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", end + 500_000, end + 900_000, 4, at=50_000)
    nccl += [call("cudaLaunchKernel", 40_000, 42_000, correlation=3)]
    nccl += [kernel("gemm", end, end + 500_000, stream=9, correlation=3)]  # beside it: it hides what it can
    trace = trace_of(annotation("ProfilerStep#0", 0, end + 950_000), *launched("gemm", 20_000, end, 1), *nccl)
    answer = rules.exposed_communication.check(trace)
    assert isinstance(answer, Fine | Found)
    assert answer.seen.figures["computing_ns"] == computing


@pytest.mark.parametrize(("idle", "bound"), [(40_000, "would save at least"), (80_000, "would save up to")])
def test_work_without_launches_on_an_idle_device_may_not_be_what_decides(idle: int, bound: str) -> None:
    """The host may be: then faster kernels save nothing."""
    kernels = [kernel("ampere_sgemm_128x64_nn", at, at + 30_000) for at in range(0, 450_000, 30_000)]
    kernels += [
        kernel("ampere_sgemm_128x64_nn", at + idle, at + idle + 30_000) for at in range(450_000, 600_000, 30_000)
    ]
    text = verdict(on_device(trace_of(*kernels)))
    assert any(bound in each for each in text), text
    (finding,) = (each for each in diagnose(on_device(trace_of(*kernels))).findings if each.rule == "matrix_units")
    assert finding.found.confidence == ("low" if "up to" in bound else "medium")


def test_fusing_kernels_far_apart_saves_no_more_than_kernels() -> None:
    """Nothing tells why the device idles for 270 µs between them: no delay of a kernel is as long."""
    apart = trace_of(*(kernel("vectorized_elementwise_kernel", at, at + 30_000) for at in range(0, 900_000, 300_000)))
    assert problem_of(rules.elementwise_chains.check(apart)).saved_ns == 60_000


@pytest.mark.parametrize("ratio", [0.5, 1.5])
def test_a_recording_without_steps_is_never_certain(ratio: float) -> None:
    end = int(1_000_000 * ratio)
    events = [op("aten::x", 0, end), *launched("gemm", end + 20_000, end + 120_000, 1)]
    answer = rules.launch_bound.check(trace_of(*events))
    assert not isinstance(answer, Found) or answer.confidence != "high"


#: a recording without steps counts from its first GPU work on
FIRST = launched("first", -20_000, -10_000, 99_999, at=-30_000)


def start(name: str, end: int) -> Trace:
    """A recording without steps that begins with a call; the second kernel overlaps with a long launch."""
    calls = [call(name, 0, end), *launched("gemm", end + 1_000_000, end + 90_000_000, 1, at=end + 500_000)]
    blocked = call("cudaLaunchKernel", end + 2_000_000, end + 80_000_000, correlation=2)
    return trace_of(*FIRST, *calls, blocked, kernel("gemm", end + 90_000_000, end + 91_000_000, correlation=2))


@pytest.mark.parametrize("name", ["cudaDeviceGetStreamPriorityRange", "cudaFree"])
def test_a_call_that_creates_the_context_is_named(name: str) -> None:
    """What its name asks for is not why it takes long; a launch that waits for room in the queue is none."""
    trace = start(name, 2_000_000_000)
    answer = problem_of(rules.long_calls.check(trace))
    said = f"{name} (2.0 s)" if name == "cudaFree" else f"for 2.0 s in {name}"
    assert said in title_of(answer)
    assert (answer.confidence, "warmup" in advice_of(answer)) == ("medium", True)
    assert isinstance(rules.allocator_calls.check(trace), Fine)


@pytest.mark.parametrize(("busy_ms", "expected"), [(55, 45), (90, 10), (0, 100), (100, None)])
def test_a_long_call_counts_for_as_long_as_the_device_idles(busy_ms: int, expected: int | None) -> None:
    """Of a call of 100 ms the device works through the first part: the rest is what the call costs."""
    begin = 1_000_000
    first = launched("gemm", begin + 20_000, begin + 20_000 + busy_ms * MS, 1, at=begin) if busy_ms else FIRST
    blocked = call("cudaGetDevice", begin + 20_000, begin + 20_000 + 100 * MS)
    after = launched("gemm", begin + 101 * MS, begin + 131 * MS, 2, at=begin + 101 * MS - 20_000)
    answer = rules.long_calls.check(trace_of(call("cudaEventQuery", 0, 1000), *first, blocked, *after))
    if expected is None:
        assert not isinstance(answer, Found)
        return
    problem = problem_of(answer)
    assert f"while the GPU idles, for {expected} ms in cudaGetDevice" in title_of(problem)
    assert problem.saved_ns == pytest.approx(expected * MS, abs=1.1 * MS)


def test_launches_that_take_long_are_judged_once() -> None:
    """As on MTIA: each launch takes 0.3 ms. Their cure is fewer of them, and the other rule says who judges them."""
    events: list[Event] = [annotation("ProfilerStep#1", 0, 20_000_000)]
    for at in range(40):
        ts = 500_000 * at
        events += launched_kernel("k", (ts, ts + 300_000), (ts + 310_000, ts + 320_000), correlation=at + 1)
    trace = trace_of(*events)
    long = problem_of(rules.long_calls.check(trace))
    blocked = launched_kernel("last", (20_000_000, 20_900_000), (20_200_000, 20_890_000), correlation=99)
    worst = problem_of(rules.long_calls.check(trace_of(replace(events[0], end=21_000_000), *events[1:], *blocked)))
    assert worst.worst is not None
    assert worst.spans.start[worst.worst] < 20_000_000  # not in the longest, in which the device works for longest
    assert advice_of(long, trace).endswith("torch.cuda.graph): each of these calls launches a kernel")
    answer = rules.launch_bound.check(trace)
    assert isinstance(answer, Fine | Found)
    assert isinstance(answer.seen, rules.launch_bound.LaunchBound)
    assert answer.seen.fine(words(trace), 0).startswith("a launch takes 300 µs, see long_calls; apart from that, ")


@pytest.mark.parametrize(("has_stacks", "first"), [
    (True, "the GPU idles longest while the host is in a/core.py(16): run (1.9 ms) and aten::x"),
    (False, "among operators, the GPU idles longest while the host is in aten::x"),
])  # fmt: skip
def test_what_is_outside_operators_is_named_or_left_out(has_stacks: bool, first: str) -> None:
    events: list[Event] = [annotation("ProfilerStep#1", 0, 4_000_000)]
    for at in range(40):
        ts = 100_000 * at
        events += [
            op("aten::x", ts, ts + 20_000),
            *[python("a/core.py(16): run", ts + 20_000, ts + 70_000)] * has_stacks,
        ]
        events += launched_kernel("k", (ts + 70_000, ts + 75_000), (ts + 80_000, ts + 90_000), correlation=at + 1)
    said, pace, *_ = evidence_of(problem_of(rules.launch_bound.check(trace_of(*events))))
    assert said.startswith(first)
    assert pace.endswith("take 10 µs at most, but the host launches one every 100 µs (the call itself takes 5.0 µs)")


def test_code_that_is_compiled_is_not_to_be_compiled() -> None:
    """The device idles while Python of a compiled region runs: that is named, and its cure is no compiler."""
    events: list[Event] = [annotation("ProfilerStep#1", 0, 4_000_000)]
    for at in range(40):
        ts = 100_000 * at
        events += [op("Torch-Compiled Region: 0/0", ts, ts + 80_000)]
        events += launched_kernel("k", (ts + 70_000, ts + 75_000), (ts + 80_000, ts + 90_000), correlation=at + 1)
    trace = trace_of(*events)
    answer = problem_of(rules.launch_bound.check(trace))
    assert "fuse" not in advice_of(answer, trace)
    assert "skip the guards" in advice_of(answer, trace)
    assert evidence_of(answer, trace)[0].startswith("the GPU idles longest while the host is in Torch-Compiled Region:")


def test_large_graphs_take_long_whenever_they_are_launched_and_waits_are_no_long_calls() -> None:
    assert "prepare the next step" in advice_of(
        problem_of(rules.long_calls.check(start("cudaGraphLaunch", 600_000_000)))
    )
    assert isinstance(rules.long_calls.check(start("cudaDeviceSynchronize", 2_000_000_000)), NotApplicable)
    assert isinstance(rules.long_calls.check(start("cudaStreamIsCapturing", 90_000)), NotApplicable)


def test_long_calls_of_every_step_are_certain() -> None:
    events = stepped(4, 10_000_000)
    for at in range(0, 40_000_000, 10_000_000):
        events += [call("cudaFuncSetAttribute", at + 1_000_000, at + 5_000_000)]
        events += launched("gemm", at + 6_000_000, at + 9_900_000, at + 1)
    answer = problem_of(rules.long_calls.check(trace_of(*events)))
    assert (answer.confidence, advice_of(answer)[:35]) == ("high", "Find out what calls it in every ste")
    assert 3_000_000 <= answer.saved_ns <= 4_000_000


CALLED = {"F": "cudaFree", "M": "cudaMalloc", "H": "cudaHostAlloc"}


def asked(*operators: str) -> list[Event]:
    """Operators that give back (F) and ask for (M) memory, or for pinned memory (H), and a kernel afterwards."""
    events, at = [], 10_000_000
    for place, letters in enumerate(operators):
        begin = at
        for letter in letters:
            events.append(call(CALLED[letter], at + 10_000, at + 2_010_000))
            at += 3_000_000
        events.append(op(f"aten::x{place}", begin, at))
        at += 100_000
    return [annotation("ProfilerStep#0", 0, at + 10_000_000), *launched("gemm", at, at + 9_000_000, 1), *events]


@pytest.mark.parametrize(("operators", "advice"), [
    (["FFM"], "scarce or fragmented"),
    (["F"], "empty_cache"),
    (["MF"], "frees its own workspace"),
    (["M"], "Sizes still change"),
    (["H"], "Pinned memory"),
    (["MF"] * 60, "NO_CUDA_MEMORY_CACHING"),
    (["MFFFFM"], "scarce or fragmented"),
    (["MFFM", "M", "M", "M", "M", "M", "M"], "scarce or fragmented"),  # what was given back is asked for again
    (["M", "M", "M", "M", "M", "M", "MFFM"], "Sizes still change"),  # the retry is the least of it
    (["MFFMFM"], "scarce or fragmented"),
    (["MFFFFFMMM"], "frees its own workspace"),  # a library sets itself up, as cuBLAS does
    (["FFFFFMMM", "M"], "frees its own workspace"),
])  # fmt: skip
def test_why_the_driver_is_asked_for_memory(operators: list[str], advice: str) -> None:
    """The order of the calls in an operator tells; requests after a retry are its own."""
    assert advice in advice_of(problem_of(rules.allocator_calls.check(trace_of(*asked(*operators)))))


@pytest.mark.parametrize(("held", "advice"), [(70, "scarce or fragmented"), (4, "frees its own workspace")])
def test_memory_that_is_mostly_free_is_not_short(held: int, advice: str) -> None:
    trace = memory(held * 10**9, held * 10**9, *asked("MFFFM"))
    assert advice in advice_of(problem_of(rules.allocator_calls.check(trace)))


@pytest.mark.parametrize("compute", [10_000, 800_000])
@pytest.mark.parametrize(
    "name", ["Memcpy HtoD (Pinned -> Device)", "CopyHostToDevice", "Memcpy M2D (MEMORY -> DEVICE)"]
)
def test_copies_are_hidden_only_behind_something(compute: int, name: str) -> None:
    """A step cannot get shorter than its copies."""
    end = 60_000 + 400_000 + compute
    events = [
        annotation("ProfilerStep#0", 0, end),
        call("cudaMemcpyAsync", 10_000, 20_000, correlation=1),
        copy(name, 50_000, 450_000, 10_000_000, correlation=1),
        *launched("gemm", 460_000, 460_000 + compute, 2, at=30_000),
        call("cudaDeviceSynchronize", 40_000, end),
    ]
    answer = problem_of(rules.exposed_copies.check(trace_of(*events)))
    assert ("Copies dominate: 1 copy" in title_of(answer)) == (compute == 10_000)
    assert (answer.saved_ns, title_of(answer).startswith("The GPU waits for")) == (400_000, compute == 800_000)


@in_other_words
def test_copies_before_the_first_kernel_of_a_recording_are_no_loss_nor_passed_over(times: int, change: Any) -> None:
    batch = copy("Memcpy HtoD (Pageable -> Device)", 900_000, 990_000, 10**7, correlation=2)
    rest = [call("cudaMemcpyAsync", 895_000, 991_000, correlation=2), batch, *launched("gemm", 995_000, 1_500_000, 3)]
    weights = copy("Memcpy HtoD (Pageable -> Device)", 15_000, 700_000, 10**8, correlation=1)
    events = [call("cudaMemcpyAsync", 10_000, 710_000, correlation=1), weights, *enough(730_000)]
    trace = trace_of(*change(events))
    assert isinstance(rules.exposed_copies.check(trace), NoData)
    assert "and may only set the program up" in str(verdict(trace))
    assert not isinstance(rules.pageable_copies.check(trace_of(*change(events))), Found)
    assert problem_of(rules.exposed_copies.check(trace_of(*change([*events, *rest])))).saved_ns == times * 90_000
    result = copy("Memcpy DtoH (Device -> Pageable)", 1_510_000, 2_200_000, 10**8, correlation=9)
    last = [call("cudaMemcpy", 995_100, 2_201_000, correlation=9), result, *launched("gemm", 995_000, 1_500_000, 3)]
    trace = trace_of(*change([*enough(730_000), *last]))
    assert isinstance(rules.exposed_copies.check(trace), NoData)
    assert "copies after the last kernel take" in str(verdict(trace))
    fetch = annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 1_000, 9_000)
    copied = problem_of(rules.exposed_copies.check(trace_of(*change([fetch, *events]))))
    assert copied.saved_ns > times * 600_000, "it is the batch that was fetched before"


@pytest.mark.parametrize(("ns", "slow"), [(2_000_000, True), (300_000, False)])
def test_copies_that_overlap_count_once_and_say_how_slow_they_are(ns: int, slow: bool) -> None:
    events = [SHORT, call("cudaDeviceSynchronize", 40_000, 60_000 + ns)]
    for number, name in ((1, "Memcpy HtoD (Pinned -> Device)"), (2, "Memcpy DtoH (Device -> Pinned)")):
        events.append(call("cudaMemcpyAsync", 10_000 * number, 10_000 * number + 5_000, correlation=number))
        events.append(copy(name, 50_000, 50_000 + ns, 10_000_000, correlation=number, stream=number))
    answer = problem_of(rules.exposed_copies.check(on_device(trace_of(*events))))
    together = f"(20 MB, {'2.0 ms' if slow else '300 µs'}, overlapping each other), and the GPU does nothing else"
    assert together in title_of(answer)
    assert ("move 5.0 GB/s to the device and 5.0 GB/s from it, where about 50 are" in advice_of(answer)) == slow


def copies_within(around: Callable[[str, int, int], Event], name: str) -> list[Event]:
    """Three copies, each within such a slice, delay the second kernel by 300 µs, and so the end of the step."""
    events = [annotation("ProfilerStep#0", 0, 1_400_000), *launched("gemm", 50_000, 550_000, 1, at=10_000)]
    for number in range(3):
        events.append(around(name, 40_000 + 20_000 * number, 59_000 + 20_000 * number))
        events.append(op("aten::copy_", 41_000 + 20_000 * number, 58_000 + 20_000 * number))
        at = 45_000 + 20_000 * number
        events.append(call("cudaMemcpyAsync", at, at + 5_000, correlation=7 + number))
        ran = 550_000 + 100_000 * number
        events.append(copy("Memcpy DtoD (Device -> Device)", ran, ran + 100_000, 10**7, correlation=7 + number))
    return [
        *events,
        *launched("gemm", 850_000, 1_350_000, 2, at=120_000),
        call("cudaDeviceSynchronize", 130_000, 1_390_000),
    ]


@pytest.mark.parametrize(("around", "name", "cure"), [
    (op, "torch.distributed.ddp.reducer::copy_bucket_to_grad", "gradient_as_bucket_view=True"),
    (python, "torch/nn/parallel/distributed.py(2155): _sync_buffers", "broadcast_buffers=False"),
    (op, "aten::contiguous", "Keep one layout"),
])  # fmt: skip
def test_copies_of_ddp_have_cures_of_their_own(around: Any, name: str, cure: str) -> None:
    assert cure in advice_of(problem_of(rules.exposed_copies.check(trace_of(*copies_within(around, name)))))


@in_other_words
def test_copies_within_the_device_save_what_they_take(times: int, change: Any) -> None:
    answer = problem_of(rules.exposed_copies.check(trace_of(*change(copies_within(op, "aten::clone")))))
    assert (answer.saved_ns, answer.at_most) == (times * 300_000, True)
    assert ", most in aten::clone" in title_of(answer)


@pytest.mark.parametrize(("name", "copied", "fetch", "ms", "is_needed"), [
    ("cudaStreamSynchronize", False, False, 3, True),
    ("cudaDeviceSynchronize", False, False, 3, False),  # gives the host nothing
    ("cudaDeviceSynchronize", True, False, 3, True),
    ("cudaStreamSynchronize", True, True, 3, False),  # a batch needs no result
    ("cudaStreamSynchronize", True, False, 0.9, False),
    ("cudaStreamSynchronize", True, None, 3, True),  # a short kernel is launched before
])  # fmt: skip
def test_what_the_host_does_for_long_after_a_call_may_need_its_result(
    name: str, copied: bool, fetch: bool | None, ms: float, is_needed: bool
) -> None:
    after = 4_020_000 + int(ms * 1_000_000)
    events = [annotation("ProfilerStep#0", 0, after + 6_000_000), call(name, 40_000, 4_010_000)]
    events += [*launched("gemm", 50_000, 4_000_000, 1, at=10_000)]
    events += [*launched("Memcpy DtoH", 4_000_000, 4_005_000, 3, at=20_000)] * copied
    events += [annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 4_012_000, after)] * bool(
        fetch
    )
    events += launched("short", 4_030_000, 4_060_000, 5, at=4_020_000) * (fetch is None)
    events += [*launched("gemm", after + 20_000, after + 5_900_000, 2, at=after)]
    answer = problem_of(rules.synchronizing_calls.check(trace_of(*events)))
    assert (answer.confidence, answer.at_most) == ("low" if is_needed else "medium", is_needed)
    assert answer.saved_ns == pytest.approx(ms * 1_000_000, abs=150_000)
    assert answer.beyond.startswith("or less if the host's long work after them") == is_needed


@in_other_words
def test_the_certain_part_of_what_calls_save_decides_and_is_painted(times: int, change: Any) -> None:
    """Twenty calls before gaps of 60 µs, and one before 20 ms of the host, which may need its result. Painted is the
    idle time, not the calls: while the host waits in them the device is busy."""
    at, ms = 0, 1_000_000
    events = [annotation("ProfilerStep#0", 0, 48 * ms)]
    for number in range(21):
        events += launched("gemm", at + 20_000, at + ms, number, at=at)
        events += [call("cudaStreamSynchronize", at + 10_000, at + ms + 5_000)]
        at += ms + (40_000 if number < 20 else 20 * ms)
    events += launched("gemm", at + 20_000, at + 5 * ms, 99, at=at)
    answer = problem_of(rules.synchronizing_calls.check(trace_of(*change(events))))
    assert answer.saved_ns == pytest.approx(times * 20 * 60_000, rel=0.05)
    assert (answer.at_most, answer.at_least, answer.beyond) == (False, True, "")
    assert answer.drawn is not None
    assert [*(answer.drawn.end - answer.drawn.start)] == [times * 60_000] * 20


@pytest.mark.parametrize("longer", [0, 100_000, 300_000])
def test_a_hidden_copy_takes_no_time_of_the_host(longer: int) -> None:
    """From pageable memory the host copies, too: its call lasts as long as the copy."""
    copied = 410_000 + longer
    events = [
        annotation("ProfilerStep#0", 0, copied + 900_000),
        call("cudaMemcpyAsync", 10_000, copied, correlation=1),
        copy("Memcpy HtoD (Pageable -> Device)", 10_000, copied, 10_000_000, correlation=1),
        *launched("gemm", copied + 20_000, copied + 820_000, 2, at=copied + 5_000),
        call("cudaDeviceSynchronize", copied + 20_000, copied + 900_000),
    ]
    assert problem_of(rules.exposed_copies.check(trace_of(*events))).saved_ns == 400_000 + longer


def test_a_verdict_explains_its_step_and_its_sums() -> None:
    """The first step is slow, and the device works until long after the host has left a step."""
    events, end = [], 0
    for number in range(4):
        begin, host = end, 5_000_000 if number == 0 else 600_000
        end = begin + max(host, 1_000_000)
        events += [annotation(f"ProfilerStep#{number}", begin, begin + host)]
        events += launched("gemm", begin + host - 100_000, end - 1_000, number + 1, at=begin + host - 120_000)
    text = verdict(trace_of(*events))[0]
    assert text.startswith("The GPU computes for 50 % of a mean step of 999 µs. Idle: ")
    assert text.endswith(" (3 steps, without the slow first).")


@pytest.mark.parametrize(("waits", "said"), [(False, "; the host takes 900 µs)."), (True, ").")])
def test_a_host_that_waits_takes_no_time(waits: bool, said: str) -> None:
    """The window of the step begins when earlier work is done; the host is busy all the time, or waits from 200 µs."""
    late = [call("cudaDeviceSynchronize", 200_000, 900_000)] if waits else []
    early = kernel("gemm", 0, 400_000, correlation=1)
    events = [annotation("ProfilerStep#0", 0, 900_000), early, op("aten::mm", 0, 890_000), *late]
    trace = trace_of(*events, *launched("gemm", 400_000, 880_000, 2, at=100_000))
    expected = "The GPU computes for 96 % of a step of 500 µs. Idle: 4.0 % waiting for the host"
    assert (
        verdict(trace)[1]
        == f"{expected} (not counted: 400 µs at the start of the step, until earlier work is done{said}"
    )


def test_a_capture_is_not_called_slow_launching() -> None:
    """While a graph is captured, launches run nothing."""
    calls = [call("cudaStreamBeginCapture", 1_000_000, 1_010_000), call("cudaStreamEndCapture", 9_000_000, 9_100_000)]
    calls += [call("cudaLaunchKernel", at, at + 5_000) for at in range(1_020_000, 8_990_000, 20_000)]
    around = [*launched("gemm", 500_000, 900_000, 1), *launched("gemm", 9_500_000, 9_900_000, 2)]
    step, longer = annotation("ProfilerStep#0", 0, 19_000_000), launched("gemm", 9_900_000, 18_900_000, 3, at=9_200_000)
    trace = trace_of(step, *around, *longer, *calls)
    answer = problem_of(rules.graph_capture.check(trace))
    assert "Graphs are captured once per step (8.1 ms), while" in title_of(answer)
    assert (answer.confidence, "warmup" in advice_of(answer)) == ("medium", True)
    assert (problem_of(rules.launch_bound.check(trace)).saved_ns or 0) < 600_000, "what is around the capture"
    plain = trace_of(step, *around, *longer, *calls[2:])
    assert isinstance(rules.graph_capture.check(plain), NotApplicable)
    assert (problem_of(rules.launch_bound.check(plain)).saved_ns or 0) > 6_000_000, "without the capture, it is"
    of_step, runs = annotation("ProfilerStep#0", 0, 10_000_000), call("cudaGraphLaunch", 9_200_000, 9_210_000)
    for more in ((), (of_step,), (runs,)):  # nothing but the capture
        only = trace_of(*around, *calls, *more)
        said = verdict(only)
        assert (len(said), said[0][:34]) == (2, "This recording captures graphs, it")
        assert problem_of(rules.graph_capture.check(only)).saved_ns is None
        assert all(each.found.first or each.found.of_recording for each in diagnose(only).findings)


@pytest.mark.parametrize(("around", "usual", "belongs"), [
    (op("CompiledFunction", 100_000, 8_000_000), 100_000, True),
    (op("CompiledFunction", 100_000, 8_000_000), 2_500_000, False),  # without a capture, it takes nearly as long
    (op("Torch-Compiled Region: 0/0", 100_000, 8_000_000), 2_500_000, True),  # no other one is there to compare
    (op("aten::linear", 100_000, 8_000_000), 2_500_000, False),
    (python("torch/_inductor/cudagraph_trees.py(2205): record_function", 100_000, 8_000_000), 100_000, True),
    (python("train.py(9): log", 100_000, 8_000_000), 100_000, False),
])  # fmt: skip
@in_other_words
def test_stalls_of_captures_are_no_others(around: Event, usual: int, belongs: bool, times: int, change: Any) -> None:
    made = [call("cudaStreamBeginCapture", 6_000_000, 6_010_000), call("cudaStreamEndCapture", 6_400_000, 6_410_000)]
    work = [*launched("gemm", 150_000, 200_000, 1, at=120_000), *launched("gemm", 11_000_000, 19_000_000, 2, 8_150_000)]
    others = annotation("ProfilerStep#0", 0, 20_000_000), op("CompiledFunction", 8_100_000, 8_100_000 + usual)
    trace = trace_of(*change([*others, around, *made, *work]))
    captured = problem_of(rules.graph_capture.check(trace))
    assert belongs == (not isinstance(rules.host_gaps.check(trace), Found))
    assert captured.seen.figures["around_ns"] == belongs * times * 7_465_000
    assert belongs == ("; in the same calls the host stalls for " in title_of(captured))


@pytest.mark.parametrize("rows", [8, 16])
def test_captures_of_equal_sizes_are_not_made_for_new_sizes(rows: int) -> None:
    """Every other of five steps captures; the last of them an operator of other sizes, or of the same."""
    events: list[Event] = []
    for step in range(5):
        at, captures = step * 20_000_000, step % 2 == 0
        product = op("aten::mm", at + 9_020_000, at + 9_030_000, args=shaped([rows if step == 4 else 8, 64], [64, 64]))
        begin = call("cudaStreamBeginCapture", at + 9_000_000, at + 9_010_000)
        capture = [begin, product, call("cudaStreamEndCapture", at + 9_100_000, at + 9_110_000)]
        long = op("Compiled", at, at + (10_000_000 if captures else 500_000))
        work = launched("gemm", at + 10_500_000, at + 10_600_000, step + 1)
        events += [annotation(f"ProfilerStep#{step}", at, at + 11_000_000), long, *capture[: 3 * captures], *work]
    answer = problem_of(rules.graph_capture.check(trace_of(*events)))
    assert answer.seen.figures["capture_count"] == 0.6
    assert "Compiled: 3 calls of 10 ms with a capture, 2 calls of 500 µs without, alternating" in evidence_of(answer)
    assert ("the sizes are not the reason" in advice_of(answer)) == (rows == 8)


def convolutions(*lengths: int, stepped: bool = False) -> Trace:
    """Operators that take so long (ms) before they launch their kernel."""
    events, at = [], 0
    for place, ms in enumerate(lengths):
        end = at + ms * 1_000_000
        events += [op("aten::convolution", at, end + 60_000), *launched("conv", end + 20_000, end + 50_000, place + 1)]
        at = end + 100_000
    return trace_of(*([annotation("ProfilerStep#0", 0, at)] if stepped else FIRST), *events)


@pytest.mark.parametrize(("trace", "is_first"), [
    (convolutions(20, 0, 0, 0), True),
    (convolutions(20, 20, 20, 20), False),
    (convolutions(0, 0, 20, 0), False),
    (convolutions(20), False),  # nobody knows how long a second one would take
    (convolutions(20, 0, 0, 0, stepped=True), False),
])  # fmt: skip
def test_an_operator_that_is_long_once_sets_a_library_up(trace: Trace, is_first: bool) -> None:
    assert ("at their first call" in advice_of(problem_of(rules.host_gaps.check(trace)))) == is_first


GEMV = "cublasGemvTensorStridedBatched<{0} const>, cublasGemvTensorStridedBatched<{0}> >(cublasGemmSmallNParams<{0}>)"


@pytest.mark.parametrize(("name", "is_plain"), [
    ("ampere_sgemm_128x64_tn", True),
    ("void implicit_convolve_sgemm<float, float, 1024, 6, 7, 3, 3, 5, 1>(float const*, float*)", True),
    ("volta_scudnn_128x64_relu_interior_nn_v1", True),
    ("cutlass_80_simt_sgemm_128x128_8x4_nn_align1", True),
    ("void precomputed_convolve_sgemm<__nv_bfloat16, 1024, 5, 5, 4, 3, 3, 1, false>(__nv_bfloat16 const*)", False),
    ("ampere_fp16_sgemm_fp16_128x64_tn", False),
    ("_5x_cudnn_ampere_fp16_scudnn_fp16_128x32_relu_small_nn_v1", False),
    ("void gemmSN_TN_kernel<float, 128, 16, 2, 4, 4, 4, true, " + GEMV.format("__nv_bfloat16"), False),
    ("void gemmSN_TN_kernel<float, 128, 16, 2, 4, 8, 9, false, " + GEMV.format("float"), False),
])  # fmt: skip
def test_only_products_of_fp32_are_said_to_be_such(name: str, is_plain: bool) -> None:
    """TF32 and autocast help no product of 16-bit numbers, whatever units do it; ``cublasGemm`` is no ``sgemm``."""
    launch = call("cudaLaunchKernel", 20_000, 30_000, correlation=1)
    product = kernel(name, 50_000, 950_000, correlation=1)
    answer = rules.matrix_units.check(on_device(trace_of(SHORT, op("aten::x", 10_000, 40_000), launch, product)))
    assert isinstance(answer, Found) == is_plain


@pytest.mark.parametrize(("name", "about", "advice", "is_far"), [
    ("NVIDIA GeForce RTX 3060", {"totalGlobalMem": 12_487_294_976}, "Use torch.autocast with BF16", False),
    ("NVIDIA GeForce RTX 4090", {"totalGlobalMem": 25_756_696_576}, "Use torch.autocast with BF16", False),
    ("NVIDIA GeForce RTX 2080 Ti", {"totalGlobalMem": 11_546_394_624}, "Use torch.autocast with FP16", True),
    ("NVIDIA A100-SXM4-40GB", {"totalGlobalMem": 42_314_694_656}, "Call torch.set_float32_matmul_precision", True),
    ("NVIDIA GeForce RTX 3070 Ti", (8, 6), "Use torch.autocast with BF16", False),  # by its capability
    ("NVIDIA RTX A5000", (8, 6), "Call torch.set_float32_matmul_precision", False),
    ("a card of 2027", (10, 0), "Call torch.set_float32_matmul_precision", True),
    ("NVIDIA GeForce GTX 1660", (7, 5), None, False),  # its sisters of that capability have tensor cores
    ("AMD card of 2027", (9, 0), None, False),  # an architecture, no capability of CUDA
])  # fmt: skip
def test_a_type_of_number_that_is_no_faster_is_not_advised(
    name: str, about: dict[str, int] | tuple[int, int], advice: str | None, is_far: bool
) -> None:
    """On GeForce cards TF32 is as fast as FP32; and twice the speed is all that their peaks promise."""
    launch = call("hipLaunchKernel" if name.startswith("AMD") else "cudaLaunchKernel", 20_000, 30_000, correlation=1)
    product = kernel("ampere_sgemm_128x64_tn", 50_000, 950_000, correlation=1)
    trace = trace_of(SHORT, op("aten::x", 10_000, 40_000), launch, product)
    about = about if isinstance(about, dict) else dict(zip(("computeMajor", "computeMinor"), about, strict=True))
    metadata = {"deviceProperties": [{"id": 0, "name": name, **about}]}
    answer = rules.matrix_units.check(replace(trace, source=replace(trace.source, metadata=metadata)))
    if advice is None:
        assert not isinstance(answer, Found)
    else:
        assert advice_of(problem_of(answer)).startswith(advice)
        assert (problem_of(answer).seen.at_least, problem_of(answer).at_most) == (is_far, not is_far)


ENGINES = (
    "void cudnn::detail::dgrad_engine<{}, 512, 6, 5, 3, 3, 3, false>(int, int, int, {} const*)",
    "void cudnn::cnn::wgrad_alg0_engine<{}, 128, 6, 7, 3, 3, 5, false, 512>(int, int, int, {} const*)",
)


@pytest.mark.parametrize("number", ["float", "__half"])
@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("device", ["Tesla V100-SXM2-32GB", "NVIDIA H100 80GB HBM3"])
@pytest.mark.parametrize("groups", [1, 64])
def test_convolutions_backward_are_counted_but_for_narrow_groups(
    number: str, name: str, device: str, groups: int
) -> None:
    """Where TF32 is allowed, cuDNN takes these kernels for some shapes all the same: then no cure is known."""
    tensors = [32, 64, 56, 56], [32, 64, 56, 56], [64, 64 // groups, 3, 3]
    values = {4: "[1, 1]", 5: "[1, 1]", 6: "[1, 1]", 7: "False", 8: "[0, 0]", 9: str(groups), 10: "[True, True, False]"}
    args = shaped(*tensors, *([] for _ in range(8)), types="float", values=values)
    launch = call("cudaLaunchKernel", 20_000, 30_000, correlation=1)
    backward = kernel(name.format(number, number), 50_000, 950_000, correlation=1)
    trace = trace_of(SHORT, op("aten::convolution_backward", 10_000, 40_000, args=args), launch, backward)
    metadata = {"deviceProperties": [{"id": 0, "name": device}]}
    answer = rules.matrix_units.check(replace(trace, source=replace(trace.source, metadata=metadata)))
    assert isinstance(answer, Found) == (number == "float" and "V100" in device and groups == 1)


def backlogged(until: int, busy: int) -> Trace:
    """Four steps of 10 ms. At first the device still works on what was launched before, ``until`` then (ms); each step
    launches at once a kernel that takes ``busy`` ms."""
    free = until
    events = [kernel("old", 0, until * MS, correlation=1)] if until else []
    for step in range(4):
        at = 10 * step
        events += [annotation(f"ProfilerStep#{step}", at * MS, (at + 10) * MS), op("aten::mm", at * MS, (at + 10) * MS)]
        begin = max(at + 1, free)
        free = begin + busy
        events += launched("gemm", begin * MS, free * MS, step + 2, at=at * MS + 50_000)
    return trace_of(*events)


@pytest.mark.parametrize(("until", "busy", "is_hidden", "length"), [
    (0, 2, False, 10.0),
    (7, 2, True, 10.0),  # 3 ms of the first step would lie in its window
    (30, 10, False, 10.0),  # the device is busy all the time: it lags behind as much in each step
    (1, 2, False, 10.0),
])  # fmt: skip
def test_a_first_step_that_began_in_earlier_work_is_left_out(
    until: int, busy: int, is_hidden: bool, length: float
) -> None:
    trace = backlogged(until, busy)
    whole = measure(trace)
    assert (whole.hidden, whole.count) == (is_hidden, 3 if is_hidden else 4)
    assert whole.length_ns / 1e6 == pytest.approx(length, abs=0.3)
    assert ("3 steps, without the first, which overlaps earlier work" in verdict(trace)[0]) == is_hidden


@pytest.mark.parametrize(("columns", "fits"), [(4096, "for 100 % of the time"), (50257, "for 0 % of the time")])
def test_plain_products_say_whether_their_sizes_fit(columns: int, fits: str) -> None:
    args = shaped([4096, 768], [768, columns], types="float")
    launch = call("cudaLaunchKernel", 20_000, 30_000, correlation=1)
    gemm = kernel("ampere_sgemm_128x64_tn", 50_000, 950_000, correlation=1)
    events = [SHORT, op("aten::mm", 10_000, 40_000, args=args), launch, gemm]
    evidence = evidence_of(problem_of(rules.matrix_units.check(on_device(trace_of(*events)))))
    assert evidence[0] == "ampere_sgemm_128x64_tn"
    assert evidence[1] == "plain FP32 kernels on this device mean that TF32 is off for these products"
    assert fits in evidence[2]
    assert evidence[2].endswith("pad those that are not multiples of 8") == (columns == 50257)
    unknown = launched("ampere_sgemm_128x64_nn", 1_000_000, 30_000_000, 2, at=36_000)  # whose sizes are not known
    assert len(evidence_of(problem_of(rules.matrix_units.check(on_device(trace_of(*events, *unknown)))))) == 2
    bare = [replace(event, args={}) for event in events]
    assert "record_shapes=True" in evidence_of(problem_of(rules.matrix_units.check(on_device(trace_of(*bare)))))[2]


@pytest.mark.parametrize("types", ["float", "c10::BFloat16"])
@pytest.mark.parametrize("waits", [False, True])
def test_products_of_kernels_whose_names_say_nothing_are_no_all_clear(types: str, waits: bool) -> None:
    args = shaped([4096, 768], [768, 4096], types=types)
    launch = call("cudaLaunchKernel", 20_000, 960_000 if waits else 30_000, correlation=1)
    events = [op("aten::mm", 10_000, 970_000, args=args), launch, kernel("gemm_x", 50_000, 950_000, correlation=1)]
    answers = diagnose(on_device(trace_of(STEP, *events))).answers
    units, roof = answers["matrix_units"], answers["low_roofline"]
    lacking = NoData(*facts.operators.UNTOLD_UNITS)
    blocked = "launches return only when their kernels are done: what faster ones would save is not known"
    if types == "float":
        assert (units, roof) == (lacking, lacking)
    elif waits:
        assert (units, roof) == (NoData(blocked), NoData(blocked))
    else:
        assert isinstance(units, Fine)
        assert isinstance(roof, Fine)
    tables = Tables({"matrix_units": [{"pattern": "^gemm_x", "used": "no"}]})
    answer = rules.matrix_units.check(on_device(trace_of(STEP, *events, beside=[tables])))
    assert isinstance(answer, Found) == (types == "float")


@pytest.mark.parametrize(("beside", "is_chosen"), [
    ("sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize128x128x32_stage3", True),
    ("sm80_xmma_gemm_f32tf32_f32tf32_f32_tn_n_tilesize64x64x16", False),  # products have a switch of their own
])  # fmt: skip
def test_plain_convolutions_beside_some_in_tf32_are_a_choice_of_cudnn(beside: str, is_chosen: bool) -> None:
    plain = launched("_5x_cudnn_ampere_scudnn_128x32_relu_small_nn_v1", 50_000, 900_000, 1)
    answer = problem_of(
        rules.matrix_units.check(on_device(trace_of(STEP, *plain, *launched(beside, 910_000, 950_000, 2))))
    )
    assert ("TF32 is on, but cuDNN took kernels of FP32" in advice_of(answer)) == is_chosen
    assert (
        "plain FP32 kernels on this device mean that TF32 is off for these products" in evidence_of(answer)
    ) != is_chosen


def test_what_kernels_of_unknown_kind_would_gain_is_not_known() -> None:
    def answer(name: str) -> Answer:
        events = [each for at in range(4) for each in launched(name, 100_000 * at + 50_000, 100_000 * at + 90_000, at)]
        trace = on_device(trace_of(STEP, *events, *launched("ampere_bf16_s16816gemm", 500_000, 501_000, 9)))
        return diagnose(trace).answers["matrix_units"]

    assert isinstance(answer("triton_poi_fused_add_0"), Fine)
    assert isinstance(answer("triton_"), NoData)


@pytest.mark.parametrize(("name", "is_found"), [
    ("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>", True),
    ("void cudnn::bn_fw_inf_1C11_kernel_NCHW<float, float, true, 1>", True),
    ("void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, int, 128, true, 1, true>", False),
    ("triton_poi_fused_add_mul_3", False), ("triton_", False), ("loop_add_fusion_2", False),
])  # fmt: skip
def test_kernels_of_a_compiler_are_no_chains(name: str, is_found: bool) -> None:
    """A compiler fuses what it can: that it did not join these has a reason."""
    events = [
        each
        for at in range(50)
        for each in launched(name, 20_000 * (at + 1), 20_000 * (at + 1) + 19_000, at, at=6_000 * at)
    ]
    answer = rules.elementwise_chains.check(trace_of(annotation("ProfilerStep#0", 0, 320_000), *events))
    assert isinstance(answer, Found if is_found else (Fine, NotApplicable))


@pytest.mark.parametrize(("name", "device", "advice"), [
    ("void cudnn::ops::nchwToNhwcKernel<__half, __half, float, true, false, 1>", "NVIDIA A100", "channels_last"),
    ("void cudnn::engines_precompiled::nhwcToNchwKernel<float, float>", "NVIDIA A100", "channels_last"),
    ("batched_transpose_32x16_half", "AMD Instinct MI210", "PYTORCH_MIOPEN_SUGGEST_NHWC=1"),
    ("void cudnn::ops::nhwcToFoldedNhwcKernel<__half>", "NVIDIA A100", ""),
])  # fmt: skip
def test_conversions_of_layout_save_at_most_what_they_take(name: str, device: str, advice: str) -> None:
    """Each convolution converts what it reads and what it writes; a kernel that pads is no conversion."""
    events = [call("cudaDeviceSynchronize", 200_000, 1_000_000)]
    for at in range(10):
        for number, each in enumerate((name, "implicit_gemm_nhwc", name)):
            start = 50_000 + 90_000 * at + 30_000 * number
            events += launched(each, start, start + (25_000 if number == 1 else 10_000), 3 * at + number, at=4_000 * at)
    trace = trace_of(STEP, *events)
    trace = trace.changed(source=replace(trace.source, devices=((0, device),)))
    answer = rules.layout_conversions.check(trace)
    assert isinstance(answer, Found if advice else NotApplicable)
    if isinstance(answer, Found):
        assert (answer.saved_ns, answer.at_most, answer.confidence) == (200_000, True, "medium")
        assert advice in advice_of(answer, trace)


@pytest.mark.parametrize(("name", "confidence", "advice"), [
    ("<built-in method poll of select.epoll object at 0x7f>", "low", "The host waits here for something"),
    ("zmq/sugar/socket.py(1): recv_multipart", "low", "The host waits here for something"),
    ("tokenizer.py(12): encode", "medium", "The host does more here than launch work"),
    ("aten::nonzero", "medium", "The host does more here than launch work"),
])  # fmt: skip
def test_a_server_without_requests_is_no_fault(name: str, confidence: str, advice: str) -> None:
    """Without steps, a host that waits in a function for waiting may do so rightly."""
    wait = op(name, 1_000_000, 60_000_000)
    answer = problem_of(rules.host_gaps.check(trace_of(*enough(), wait, *enough(61_000_000))))
    assert (answer.confidence, advice_of(answer)[: len(advice)]) == (confidence, advice)
    steps = [annotation("ProfilerStep#0", 0, 60_900_000), annotation("ProfilerStep#1", 60_900_000, 62_000_000)]
    answer = problem_of(rules.host_gaps.check(trace_of(*steps, *enough(), wait, *enough(61_000_000))))
    assert answer.confidence == ("medium" if confidence == "low" else "high")


def test_a_single_step_may_be_the_first() -> None:
    """It has to compile, and to ask for memory."""
    compiled = op("compile_fx.<locals>.fw_compiler_base (dynamo_timed)", 1_000_000, 30_000_000)
    for count, confidence in ((1, "low"), (2, "high")):
        trace = trace_of(*stepped(count, 62_000_000 // count), *enough(), compiled, *enough(31_500_000))
        assert problem_of(rules.recompilation.check(trace)).confidence == confidence


def test_time_that_no_rule_explains_is_said() -> None:
    """Before its first work the device waits for a host in stretches that are no gaps, and not about launching."""
    before = [op("prepare", at, at + 900_000) for at in (0, 900_000, 1_800_000)]
    start = 2_900_000
    places = [start + 200_000 * at for at in range(40)]
    work = [
        each
        for at, ts in enumerate(places)
        for each in launched("gemm", ts, ts + 200_000, at, start - 180_000 + 4_000 * at)
    ]
    trace = trace_of(annotation("ProfilerStep#0", 0, start), *before, *work)
    assert not any(each.severity != "info" for each in diagnose(trace).findings)
    text = verdict(trace)[1]
    assert text.startswith("No rule explains most of the 25 % in which the GPU waits for the host; augment open TR")
    assert text.endswith("shows the longest gap, with_stack=True adds lines.")


@pytest.mark.parametrize(("beside", "compiles"), [
    (call("cuModuleLoadData", 4_000_000, 4_050_000), True),
    (op("TorchDynamo Cache Lookup", 150_000, 160_000), True),
    (python("torch/_inductor/compile_fx.py(9): compile_fx", 170_000, 3_990_000), True),
    (python("torch/_inductor/compile_fx.py(1767): run", 170_000, 3_990_000), False),
])  # fmt: skip
@in_other_words
def test_a_stall_in_which_code_is_compiled_says_so(beside: Event, compiles: bool, times: int, change: Any) -> None:
    work = [*launched("gemm", 120_000, 170_000, 1), *launched("triton_poi_fused_0", 4_100_000, 5_000_000, 2)]
    answer = problem_of(rules.host_gaps.check(trace_of(*change([op("aten::mm", 100_000, 160_000), beside, *work]))))
    assert answer.saved_ns == pytest.approx(times * 3_920_000, rel=0.03)
    assert ("while code is compiled" in title_of(answer), "warmup" in advice_of(answer)) == (compiles, compiles)


def test_a_step_is_no_name_for_what_the_host_does() -> None:
    """Early profilers record steps as operators."""
    steps = [op(f"ProfilerStep#{place}", place * 40_000_000, (place + 1) * 40_000_000) for place in range(3)]
    work = [
        event
        for place in range(3)
        for start in (1_000_000, 30_000_000)
        for event in launched("a", place * 40_000_000 + start, place * 40_000_000 + start + 2_000_000, place + start)
    ]
    answer = problem_of(rules.host_gaps.check(trace_of(*steps, *work)))
    assert "outside recorded operators" in title_of(answer)
    assert answer.confidence == "medium"


@pytest.mark.parametrize("launched_at", [25_000_000, 12_000_000])
def test_the_host_is_blamed_for_no_more_than_the_device_waited_for_it(launched_at: int) -> None:
    """Work that starts long after its launch returned: the cause of that delay is not recorded."""
    step = annotation("ProfilerStep#0", 0, 40_000_000)
    long_operator = op("aten::unique", 2_000_000, 11_000_000)
    later = launched("b", 25_010_000, 39_000_000, 2, launched_at)
    trace = trace_of(step, *launched("a", 1_000_000, 2_000_000, 1), long_operator, *later)
    saved_ns = problem_of(rules.host_gaps.check(trace)).saved_ns
    if launched_at == 25_000_000:
        assert saved_ns > 8_000_000
    else:  # for most of the gap the work was launched already: what is left is before the first work
        assert saved_ns == 1_000_000


@pytest.mark.parametrize("launched_at", [150_000, 450_000])
def test_a_script_that_drains_earlier_work_is_no_call_of_the_step(launched_at: int) -> None:
    """The synchronization returns before anything recorded was launched: it waits for work of before the recording."""
    drained = call("cudaDeviceSynchronize", 100_000, 400_000, correlation=9)
    early = kernel("early", 0, 399_000, correlation=8)
    later = launched("gemm", 500_000, 900_000, 1, launched_at)
    answer = rules.synchronizing_calls.check(trace_of(STEP, early, drained, *later))
    assert isinstance(answer, NotApplicable) == (launched_at == 450_000), answer


def test_what_follows_the_last_work_of_a_recording_saves_nothing() -> None:
    """A program waits for its only kernel, reads what it made in managed memory, and ends."""
    waits = call("cudaDeviceSynchronize", 60_000, 301_000, correlation=2)
    ends = call("cudaFree", 910_000, 950_000, correlation=3)
    page = replace(kernel("Memcpy Unified DtoH", 900_000, 905_000, correlation=9), category=Category.GPU_MEMCPY)
    trace = trace_of(*launched("gemm", 100_000, 300_000, 1, 20_000), waits, page, ends)
    assert isinstance(rules.synchronizing_calls.check(trace), Fine)


def test_kernels_whose_grids_leave_most_sms_idle(tmp_path: Path) -> None:
    """Half of a step by grids of an eighth of the SMs; collectives are not meant, and nothing is said without args."""

    def judged(name: str, args: dict[str, float]) -> tuple[Trace, Answer]:
        first, second = traces.kernel(name, ts=20, dur=400), traces.kernel("gemm", ts=500, dur=300, correlation=2)
        work = [traces.launch(ts=10), first, traces.launch(ts=50, correlation=2), second]
        first["args"] |= args
        second["args"] |= large
        trace = read(str(traces.write_trace(tmp_path / "a.json", traces.step(0, 0, 900), *work)))
        return trace, rules.small_grids.check(trace)

    large = {"est. achieved occupancy %": 50, "blocks per SM": 4.5}
    small = {"est. achieved occupancy %": 0, "blocks per SM": 0.125}
    trace, answer = judged("decode", small)
    assert title_of(problem_of(answer), trace) == "Kernels such as decode fill 12 % of the SMs for 44 % of a step"
    assert problem_of(answer).severity == "info"
    rows = {(row.step, row.family): row for row in kernel_occupancy.analyze(trace).rows}
    whole = rows[0, None]
    assert (whole.count, whole.sum_ns, whole.small_grid_ns) == (2, 700_000, 400_000)
    assert whole.filled_sm_ratio == pytest.approx((0.125 * 400 + 300) / 700)
    assert whole.occupancy_ratio == 0.5  # a 0 says nothing
    assert isinstance(judged("ncclDevKernel_AllReduce_Sum_f32_RING_LL", small)[1], Fine)
    assert isinstance(judged("decode", large)[1], Fine)
    large.clear()
    trace, answer = judged("decode", {})
    assert isinstance(answer, NotApplicable)
    assert isinstance(kernel_occupancy.analyze(trace), Skipped)


def test_what_the_driver_loads_is_not_the_profilers() -> None:
    """CUPTI lists it with the profiler's overhead, but it is done without a profiler, too."""
    load = [call("cudaLaunchKernel", 20_000, 620_000, correlation=2), kernel("first", 700_000, 900_000, correlation=2)]
    loads = [Event(Category.OVERHEAD, "Lazy Function Loading", 30_000, 610_000, THREAD)]
    loads.append(Event(Category.OVERHEAD, "Runtime Triggered Module Loading", 31_000, 400_000, THREAD))
    again = launched("first", 950_000, 990_000, 3)
    trace = trace_of(STEP, *launched("gemm", 12_000, 15_000, 1), *load, *again, *loads)
    assert isinstance(rules.profiler_overhead.check(trace), NotApplicable)
    slow = problem_of(rules.long_calls.check(trace))
    assert title_of(slow, trace).startswith("The first launch of a kernel, which loads it, holds up the host")
    assert advice_of(slow, trace).endswith("; CUDA_MODULE_LOADING=EAGER loads all at the start instead")
    flush = Event(Category.OVERHEAD, "Buffer Flush", 622_000, 690_000, THREAD)
    overhead = problem_of(
        rules.profiler_overhead.check(trace_of(STEP, *launched("gemm", 12_000, 15_000, 1), *load, *loads, flush))
    )
    assert overhead.seen.slices == ["Buffer Flush"]
    assert isinstance(rules.profiler_overhead.check(trace_of(STEP, flush)), NotApplicable), "nothing is launched"


@pytest.mark.parametrize(
    ("kernel_name", "is_torch"),
    [
        ("void axpy(float*)", False),
        ("void cutlass::Kernel<MmaTensorOpMultiplicand>(Params)", False),
        ("void at::native::vectorized_elementwise_kernel", True),
    ],
)
def test_a_program_that_is_not_of_pytorch_is_advised_in_its_own_words(kernel_name: str, is_torch: bool) -> None:
    """Recorded by Nsight Systems: copies of pageable memory, by a program with or without a kernel of PyTorch."""
    events: list[Event] = []
    for begin in range(0, 4_000_000, 1_000_000):
        events += launched(kernel_name, begin + 10_000, begin + 100_000, begin + 1)
        events += [call("cudaMemcpyAsync", begin + 110_000, begin + 900_000, correlation=begin + 2)]
        way, moved = "Memcpy HtoD (Pageable -> Device)", (begin + 120_000, begin + 890_000)
        events += [copy(way, *moved, 10_000_000, correlation=begin + 2)]
        events += [call("cudaMalloc", begin + 910_000, begin + 990_000)]
    trace = trace_of(*events)
    trace = replace(trace, source=replace(trace.source, metadata={"recorder": {"name": "Nsight Systems"}}))
    findings = [each for each in diagnose(trace).answers.values() if isinstance(each, Found)]
    assert findings
    said = " ".join(each.seen.advice(words(trace)) for each in findings)
    assert ("DataLoader" in said or "torch" in said) == is_torch
    assert ("cudaMallocHost" in said) == ("cudaMallocAsync" in said) == (not is_torch)


def test_what_only_asks_waits_for_nothing() -> None:
    """A watchdog that asks whether work is done, in each step."""
    events: list[Event] = []
    for number in range(4):
        begin = number * 1_000_000
        events += launched("gemm", begin + 10_000, begin + 500_000, number + 1)
        events += [call("cudaEventQuery", begin + 400_000, begin + 510_000, thread=2, correlation=100 + number)]
        events += [sync("Event Sync", begin + 400_000, begin + 510_000, correlation=100 + number)]
    assert not isinstance(rules.synchronizing_calls.check(trace_of(*events)), Found)


@pytest.mark.parametrize(("around", "waits"), [("cudaProfilerStop", False), ("cudaStreamSynchronize", True)])
def test_a_call_that_stops_the_profiler_is_no_wait_of_the_program(around: str, waits: bool) -> None:
    events = [annotation("ProfilerStep#0", 0, 4_000_000), *launched("gemm", 100_000, 1_000_000, 1, at=10_000)]
    events += [call(around, 50_000, 1_600_000), call("cudaDeviceSynchronize", 60_000, 1_010_000)]
    events += launched("gemm", 1_700_000, 3_900_000, 2, at=1_650_000)
    answer = rules.synchronizing_calls.check(trace_of(*events))
    assert isinstance(answer, NotApplicable) != waits


def test_a_cure_that_saves_nothing_says_only_that() -> None:
    seen = problem_of(rules.launch_bound.check(trace_of(*[each for at in range(9) for each in launched(
        "gemm", 100_000 * at + 50_000, 100_000 * at + 90_000, 1 + at, at=100_000 * at + 40_000)]))).seen  # fmt: skip
    nothing = Found(seen, NOWHERE, "high", 0, at_most=True, in_step=2, beyond="as the job waits for rank 1")
    said = title(words_of("nvidia", "step", 1_000_000), Finding("launch_bound", "info", nothing, 0.0, limit="host"))
    assert said.endswith(". Removing that idle time would save nothing, as the job waits for rank 1")
