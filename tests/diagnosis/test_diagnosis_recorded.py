"""Grave findings on recorded traces, held against figures that are computed here from the JSON, without augment's code.

Of each finding of severity ``high`` a bound is known that no cure can exceed: data loading saves no more than the time
spent in fetches, hidden communication no more than the time in which communication runs, faster launches no more than
the time in which the device idles. Where one cause alone is known to rule (from the names of the traces), it is found.
"""

from __future__ import annotations

import gzip
import json
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from augment import read, with_tables
from augment.core import GraphCapture
from augment.diagnosis import host_causes
from augment.diagnosis.judging import measure
from augment.diagnosis.ranking import diagnose
from augment.diagnosis.rule import Fine, Found
from augment.diagnosis.rules import allocator_calls, cold_start, host_gaps, slow_start
from augment.diagnosis.verdict import verdict
from augment.diagnosis.wording import answer_text, words
from said import advice_of, evidence_of, problem_of, title_of

TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces"
TORCHREC = "v100_4rank_pair_torchrec"
#: traces, and the gravest cause where it is known
KNOWN = {
    "v100_2021_kineto_tb/resnet50_num_workers_0.1623143566756.pt.trace.json.gz": "data_loading",
    "old_2020_21_kineto/resnet50_num_workers_0_jan2021.pt.trace.json.gz": "data_loading",
    "mi300_tracelens/resnet_act_checkpoint_rank0of8.json.gz": "exposed_communication",
    "h100_8rank_modded_nanogpt/rank6.json.gz": "exposed_communication",
    f"{TORCHREC}/sst_long_a2a_optimizer/pid21149.pt.trace.json.gz": "host_gaps",
    f"{TORCHREC}/sst_long_a2a_optimizer/pid21147.pt.trace.json.gz": "exposed_communication",
    f"{TORCHREC}/sst_sleep_pl_dense_after_backward_2/pid19490.pt.trace.json.gz": "host_gaps",
    "torchbench/trace3.json": "exposed_copies",
    "dlrm_8rank_v100_param/kineto/worker7_step_12.pt.trace.json.gz": "launch_bound",
    "a100_sam_fast/amg_example_trace.json.gz": "host_gaps",  # the host may need what it waited for
    "hta_memory_v100/df_index_resolver.json.gz": "launch_bound",
    "a100_torch_compile_ao/quantize_vit_bfloat16.json.gz": "graph_capture",
}
GPU = {"kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset"}
Span = tuple[float, float]

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not TRACES.is_dir(), reason="the recorded traces are not here")]


@cache
def events(name: str) -> list[dict[str, Any]]:
    path = TRACES / name
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    document = json.loads(text)
    every = document if isinstance(document, list) else document["traceEvents"]
    return [each for each in every if each.get("ph") == "X" and isinstance(each.get("ts"), (int, float, str))]


def spans(name: str, wanted: Any) -> Iterator[Span]:
    for event in events(name):
        if wanted(str(event.get("cat", "")).lower(), str(event.get("name", ""))):
            yield float(event["ts"]), float(event["ts"]) + float(event.get("dur") or 0)


def covered(parts: Iterator[Span]) -> float:
    """The length of the union, ms."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(parts):
        total += max(end - max(start, reached), 0)
        reached = max(reached, end)
    return total / 1000


def is_work(category: str, _name: str) -> bool:
    return category in GPU


def idle(name: str) -> float:
    """The time in which no work of the device runs, from the first event to the last, ms."""
    every = list(spans(name, lambda *_: True))
    span = (max(end for _, end in every) - min(start for start, _ in every)) / 1000
    return span - covered(spans(name, is_work))


def most(rule: str, name: str) -> float | None:
    """What the cure of a rule can save at most in the whole recording, ms; None where no bound is known."""
    if rule == "data_loading":
        return covered(spans(name, lambda _, event: event.startswith("enumerate(DataLoader)")))
    if rule == "exposed_communication":
        return covered(spans(name, lambda category, kernel: category == "kernel" and "ccl" in kernel.lower()))
    if rule == "exposed_copies":
        return covered(spans(name, lambda category, _: category in ("gpu_memcpy", "memcpy")))
    if rule == "graph_capture":
        return covered(spans(name, lambda _, operator: operator == "CompiledFunction"))
    if rule in ("launch_bound", "host_gaps", "synchronizing_calls", "pageable_copies", "allocator_calls"):
        return idle(name) if rule in ("launch_bound",) else None
    return None


@pytest.mark.parametrize("name", KNOWN)
def test_the_known_cause_is_found_and_no_grave_finding_saves_more_than_there_is(name: str) -> None:
    trace = read(str(TRACES / name))
    findings = diagnose(trace).findings
    assert KNOWN[name] in [each.rule for each in findings if each.severity == "high"][:2]
    for each in findings:
        bound = most(each.rule, name)
        if each.severity == "high" and each.found.saved_ns is not None:
            saved = each.found.saved_ns * measure(trace).count / 1e6
            assert saved <= measure(trace).length_ns * measure(trace).count / 1e6
            assert bound is None or saved <= bound * 1.01 + 0.1, title_of(each.found)


def test_copies_that_are_all_that_is_done_save_all_of_it() -> None:
    """Of pageable memory, which the host copies itself: nearly nothing else runs."""
    name = "torchbench/trace3.json"
    copied = covered(spans(name, lambda category, _: category == "gpu_memcpy"))
    assert copied > 0.95 * covered(spans(name, is_work))
    trace = read(str(TRACES / name))
    answer = problem_of(diagnose(trace).answers["exposed_copies"])
    assert 0.9 * copied <= answer.saved_ns * measure(trace).count / 1e6 <= copied


def held_back(name: str) -> float:
    """The time in which the device idles while a call of 1 ms or more runs that launches its next work, ms; after its
    first work."""
    calls = {
        event["args"].get("correlation"): event
        for event in events(name)
        if str(event.get("cat", "")).lower() in ("cuda_runtime", "runtime") and "LaunchKernel" in event["name"]
    }
    total, reached = 0.0, float("inf")
    for work in sorted((each for each in events(name) if is_work(str(each.get("cat", "")).lower(), "")), key=begin):
        call = calls.get(work["args"].get("correlation"))
        if call and call["dur"] >= 1000:
            total += max(min(call["ts"] + call["dur"], work["ts"]) - max(call["ts"], reached), 0)
        reached = max(reached if reached < float("inf") else 0.0, work["ts"] + work["dur"])
    return total / 1000


def begin(event: dict[str, Any]) -> float:
    return float(event["ts"])


@pytest.mark.parametrize("name", [
    "hta_cuda_sync/simple_add.json.gz",
    "mi300_tracelens/normalization_layers.json.gz",
    "old_2020_21_kineto/resnet50_autograd_api_early2021.pt.trace.json.gz",
])  # fmt: skip
def test_launches_that_hold_their_work_back_are_worth_their_time(name: str) -> None:
    """These recordings are cold starts; what loads kernels has other calls, too, so more may be saved."""
    cause = host_causes.loading(read(str(TRACES / name)))
    assert 0.95 * held_back(name) <= cause.saved_ns / 1e6
    assert held_back(name) > 900


@pytest.mark.parametrize(("name", "is_short"), [
    (f"{TORCHREC}/sst_long_a2a_optimizer/pid21149.pt.trace.json.gz", True),
    (f"{TORCHREC}/sst_sleep_pl_dense_after_backward_2/pid19490.pt.trace.json.gz", True),
    ("old_2020_21_kineto/resnet50_autograd_api_early2021.pt.trace.json.gz", False),  # cuDNN and cuBLAS set up
])  # fmt: skip
def test_memory_is_said_to_be_short_where_what_was_given_back_made_room(name: str, is_short: bool) -> None:
    """Plainly: before a retry PyTorch gives all back that it can, and so calls ``cudaFree`` many times on end."""
    calls = (each for each in events(name) if str(each.get("cat")).lower() in ("cuda_runtime", "runtime"))
    named = {"cudaFree": "F", "cudaMalloc": "M"}
    assert ("F" * 8 in "".join(named.get(each["name"], "-") for each in sorted(calls, key=begin))) == is_short
    answer = allocator_calls.check(read(str(TRACES / name)))
    assert (isinstance(answer, Found) and "scarce or fragmented" in advice_of(answer)) == is_short


@pytest.mark.parametrize("name", [
    "old_2020_21_kineto/resnet50_num_workers_0_dec2020_array.pt.trace.json.gz",
    "old_2020_21_kineto/resnet50_num_workers_0_jan2021.pt.trace.json.gz",
])  # fmt: skip
def test_steps_that_wait_for_the_device_are_as_long_as_on_the_host(name: str) -> None:
    """These loops wait in every step, but the recording begins in a backlog, which hid a part of the first one."""
    steps = [end - start for start, end in spans(name, lambda _, event: event.startswith("ProfilerStep"))]
    whole = measure(read(str(TRACES / name)))
    assert whole.hidden
    assert whole.length_ns / 1000 == pytest.approx(sum(steps[1:]) / len(steps[1:]), rel=0.02)


def test_without_the_earlier_work_a_step_is_as_long(tmp_path: Path) -> None:
    """Metamorphic: the first step is whole without the backlog, and no longer left out; the others did not change."""
    name = "old_2020_21_kineto/resnet50_num_workers_0_jan2021.pt.trace.json.gz"
    document = json.loads(gzip.decompress((TRACES / name).read_bytes()))
    rows = document["traceEvents"]
    launched = {row["args"].get("correlation") for row in rows if row.get("cat") == "Runtime"}
    work = ("Kernel", "Memcpy", "Memset")
    kept = [row for row in rows if row.get("cat") not in work or row["args"].get("correlation") in launched]
    assert len(kept) < len(rows)
    path = tmp_path / "whole.json"
    path.write_text(json.dumps(document | {"traceEvents": kept}))
    before, after = measure(read(str(TRACES / name))), measure(read(str(path)))
    assert (before.hidden, after.hidden) == (True, False)
    assert after.count == before.count + 1
    assert after.length_ns == pytest.approx(before.length_ns, rel=0.03)


def test_a_convolution_that_is_long_once_is_said_to_set_a_library_up() -> None:
    """Plainly: the first call takes hundreds of times as long as any other."""
    name = "hta_cuda_sync/simple_add.json.gz"
    calls = [each for each in events(name) if each["name"] == "aten::cudnn_convolution"]
    first, *others = (float(each["dur"]) for each in sorted(calls, key=begin))
    assert first > 500 * max(others)
    answer = problem_of(cold_start.check(read(str(TRACES / name))))
    assert "libraries takes 97 % of 16 s, in aten::cudnn_convolution" in title_of(answer)
    others = problem_of(host_gaps.check(read(str(TRACES / "b200_tracelens/b200_eager_rank0of8.json.gz"))))
    assert "at their first call" in advice_of(others)
    assert (others.saved_ns, others.severity) == (None, "warning"), "no run is faster by recording later"


def test_savings_come_before_what_saves_nothing() -> None:
    name = "sglang_qwen3_30b_b300_vs_mi300/qwen3_30b_a3b_decode_B300_TP0.trace.json.gz"
    trace = read(str(TRACES / name))
    first, *_, last = (each.found for each in diagnose(trace).findings)
    assert (first.saved_ns is None, last.saved_ns) == (False, None)
    likeliest, also = verdict(trace)[2:4]
    assert likeliest.startswith(
        "No cause is certain. The likeliest: The GPU idles 1.1 ms per step while the host launc"
    )
    assert also.startswith("Also possible: Single runtime calls hold up the host while the GPU idles, for")


def test_a_possible_saving_is_named_and_a_first_region_begins_with_its_work() -> None:
    folder = TRACES / "vllm_mi300_tracelens"
    capture = GraphCapture(read(str(folder / "decode_full_capture.pt.trace.json.gz")))
    text = verdict(read(str(folder / "decode_full_graph_execution.json.gz")).changed(capture))
    assert text[2].startswith("No cause is certain. The likeliest: Matrix products reach 32 % of")
    trace = read(str(TRACES / "a100_torch_compile_ao/quantize_vit_quant.json.gz"))
    assert verdict(trace)[1].startswith("No serious problem in the time counted. The largest minor one")
    answer = slow_start.check(with_tables(trace, region="timed region"))
    assert isinstance(answer, Fine)
    assert "1.2 times as long as the others, so it is no" in answer_text(words(trace), answer)


def waited_in_calls(name: str) -> tuple[float, float]:
    """The time in which the device idles before work that a thread launches, ms, and the part of it in calls of the
    runtime of that thread that are shorter than 0.1 ms."""
    runtime = [each for each in events(name) if str(each.get("cat", "")).lower() in ("cuda_runtime", "runtime")]
    calls = {each["args"].get("correlation"): each for each in runtime}
    idle, inside = 0.0, 0.0
    reached = min(start for start, _ in spans(name, lambda _, event: event.startswith("ProfilerStep")))
    for work in sorted((each for each in events(name) if is_work(str(each.get("cat", "")).lower(), "")), key=begin):
        start = begin(work)
        if (call := calls.get(work["args"].get("correlation"))) and start > reached:
            idle += start - reached
            inside += sum(
                max(min(begin(each) + each["dur"], start) - max(begin(each), reached), 0)
                for each in runtime
                if each["tid"] == call["tid"] and each["dur"] < 100
            )
        reached = max(reached, start + float(work["dur"]))
    return idle / 1000, inside / 1000


def test_launching_is_parted_as_the_calls_say() -> None:
    """One step of a worker of DLRM: most of its host's time is in operators and Python, not in launches."""
    name = "dlrm_8rank_v100_param/kineto/worker7_step_12.pt.trace.json.gz"
    (finding,) = (each.found for each in diagnose(read(str(TRACES / name))).findings if each.rule == "launch_bound")
    (said,) = (each for each in evidence_of(finding) if each.startswith("where the host is in that idle time"))
    (waited,) = (float(part) for part in re.findall(r"([\d.]+) ms per step", title_of(finding)))
    parts = [float(part) for part in re.findall(r"([\d.]+) ms (?:in|outside)", said)]
    assert sum(parts) == pytest.approx(waited, abs=0.2)
    assert parts == sorted(parts, reverse=True)
    idle, in_calls = waited_in_calls(name)
    assert waited <= idle
    (of_calls,) = re.findall(r"([\d.]+) ms in runtime calls", said)
    assert float(of_calls) == pytest.approx(in_calls, rel=0.1)


def test_idle_time_that_no_cure_touches_is_named_beside_a_grave_finding() -> None:
    """The host's stalls are grave in this trace, and have no part in the longest idle time: that is said, too."""
    trace = read(str(TRACES / "hta_sampled_2_of_128/sampled_rank-0.json.gz"))
    sentences = verdict(trace)
    assert "Idle: 32 % for reasons not recorded" in sentences[0]
    assert any("would save 147 ms per step (24 %" in each for each in sentences)
    assert any(each.startswith("The GPU idles 32 % of a step for an unknown reason") for each in sentences)


@pytest.mark.parametrize(("name", "rule", "way"), [
    ("pairs_h100_vs_mi300_tracelens/qwen1.5_0.5b_h100", "low_roofline", "Try another backend of attention"),
    ("mi300_tracelens/resnet_act_checkpoint_rank0of8", "low_roofline", "Try larger or aligned sizes of convolutions"),
    ("b200_tracelens/b200_eager_rank0of8", "launch_bound", "Let the engine launch graphs"),
])  # fmt: skip
def test_advice_fits_the_kernels_and_the_steps(name: str, rule: str, way: str) -> None:
    trace = read(str(TRACES / f"{name}.json.gz"))
    (advice,) = (advice_of(each.found, trace) for each in diagnose(trace).findings if each.rule == rule)
    assert advice.startswith(way)
    assert "max-num-seqs" not in advice, "bounds a batch that decodes: this step is a prefill of 888 tokens"
    assert ("at least the tokens of a step, here 888" in advice) == (rule == "launch_bound")


def test_two_cures_that_save_the_same_are_told_once() -> None:
    """On MTIA either of long calls and stalls of the host may go: both save no more, and neither explains most."""
    trace = read(str(TRACES / "hta_mtia/mtia_rank_0.json.gz"))
    assert [each.rule for each in diagnose(trace).findings] == ["unfused_optimizer", "long_calls"]
    assert " step, most likely waiting for the host: no work was queued" in verdict(trace)[1]
    assert ": The MTIA device idles 3.5 s per step (26 %) during the optimizer" in (said := verdict(trace)[2])
    assert "Fusing it would save at least 377 ms" in said, "what is proven is less, and decides the severity"


@pytest.mark.parametrize(("name", "is_unusual"), [
    ("hta_trace_diff_pair/control.json.gz", True),
    (f"{TORCHREC}/sst_long_a2a_optimizer/pid21149.pt.trace.json.gz", False),
    (f"{TORCHREC}/sst_sleep_pl_dense_after_backward_2/pid19490.pt.trace.json.gz", False),
])  # fmt: skip
def test_operators_that_stand_still_usually_take_a_tenth(name: str, is_unusual: bool) -> None:
    """Plainly: of the innermost operators that take 1 ms or more, most of the time is in calls of names that usually
    take less than a tenth as long."""
    every = [each for each in events(name) if each.get("cat") == "cpu_op"]
    of_name: dict[str, list[float]] = {}
    for each in every:
        of_name.setdefault(each["name"], []).append(float(each.get("dur") or 0))
    starts: dict[Any, list[float]] = {}
    for each in sorted(every, key=begin):
        starts.setdefault(each["tid"], []).append(each["ts"])
    long = unusual = 0.0
    for each in every:
        at = starts[each["tid"]]
        inside = bisect_left(at, each["ts"] + each["dur"]) - bisect_right(at, each["ts"])
        if each["dur"] >= 1000 and not inside:
            times = sorted(of_name[each["name"]])
            long += each["dur"]
            unusual += each["dur"] if len(times) >= 3 and each["dur"] > 10 * times[len(times) // 2] else 0
    answer = problem_of(diagnose(read(str(TRACES / name))).answers["host_gaps"])
    assert ("usually take microseconds" in advice_of(answer)) == is_unusual
    assert not is_unusual or 2 * unusual > long > 0
