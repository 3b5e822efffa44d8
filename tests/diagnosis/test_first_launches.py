"""First launches that load kernels promise nothing per step: simulated with the truth, changed recordings, recorded."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest
from msgspec import structs
from simulated_jobs import changed

from augment.diagnosis.first_calls import loading_calls
from augment.diagnosis.ranking import diagnose
from augment.diagnosis.rule import Found
from augment.diagnosis.rules import long_calls
from augment.readers import read
from metamorphic import CALLS, GPU_WORK, Document, Event, later_from, load, real_trace, save
from said import advice_of, problem_of, title_of
from simulator import simulate
from tables import Track, call, kernel, trace_of

MS = 1_000_000


def launches_of(document: Document) -> dict[str, list[Event]]:
    """Plainly: the calls that launched each kernel, by its name, in their order."""
    rows = [each for each in document["traceEvents"] if each.get("ph") == "X"]
    calls = {each["args"].get("correlation"): each for each in rows if each.get("cat") in CALLS}
    launches = defaultdict(list)
    for each in rows:
        if each.get("cat") == "kernel" and (launch := calls.get(each["args"].get("correlation"))) is not None:
            launches[each["name"]].append(launch)
    return {name: sorted(each, key=lambda row: row["ts"]) for name, each in launches.items()}


def longer(document: Document, call: Event, us: int) -> Document:
    """The same, but ``call`` takes so much longer, and all that begins after its first half comes later."""
    return later_from(document, call["ts"] + call["dur"] / 2, call, Decimal(us))


def chosen(document: Document, is_first: bool) -> Event:
    """Of the launches into an idle device, the last that is the first of a kernel which is launched again, or one of a
    known kernel."""
    rows = [each for each in document["traceEvents"] if each.get("ph") == "X"]
    busy = [(each["ts"], each["ts"] + each["dur"]) for each in rows if each.get("cat") in GPU_WORK]
    fitting = [each for row in launches_of(document).values() if len(row) > 1
               for each in (row[:1] if is_first else row[1:])]  # fmt: skip
    idle = [each for each in fitting if not any(begin <= each["ts"] + each["dur"] < end for begin, end in busy)
            and all(begin > each["ts"] or end < each["ts"] for begin, end in busy)]  # fmt: skip
    return (
        max(idle, key=lambda each: each["ts"])
        if is_first
        else sorted(idle, key=lambda each: each["ts"])[len(idle) // 2]
    )


JOB = changed(ranks=1, steps=2, layers=3, collectives="none", work=0.05, run_ahead=None)


@pytest.mark.parametrize("took_us", [30_000, 400_000])
def test_only_what_comes_again_is_promised(took_us: int, tmp_path: Path) -> None:
    """Metamorphic: a simulated job in which one launch takes far longer. The next steps, which are simulated, do not
    have it if it was the kernel's first; that of a known kernel may come again."""
    document = load(simulate(JOB, tmp_path / "job")[0][0])
    for is_first in (True, False):
        trace = read(str(save(longer(document, chosen(document, is_first), took_us), tmp_path / f"{is_first}.json")))
        answer = long_calls.check(trace)
        promising = [each.rule for each in diagnose(trace).findings if each.found.saved_ns]
        assert isinstance(answer, Found)
        assert (answer.saved_ns is None) == is_first == answer.seen.figures["is_loading"]
        assert ("long_calls" in promising) != is_first
        assert is_first <= (answer.confidence == ("medium" if took_us > 100_000 else "low"))


def test_the_only_step_is_mostly_loading(tmp_path: Path) -> None:
    """Then that is said first, as what the run does is hardly recorded."""
    document = load(simulate(replace(JOB, steps=1), tmp_path / "job")[0][0])
    path = save(longer(document, chosen(document, True), 30_000), tmp_path / "long.json")
    first, *_ = diagnose(read(str(path))).findings
    assert (first.rule, first.found.first, first.found.confidence) == ("long_calls", True, "low")
    assert first.found.saved_ns is None


def test_a_recorded_step_of_loading_tells_little_of_later_ones() -> None:
    """Three quarters of the idle time of its host are the loading; what is left is of a step that nobody runs twice."""
    first, other = diagnose(read(str(real_trace("hta_amd_mi250/mi250_minitoy_train_ROCm6_2.json.gz")))).findings
    assert (first.rule, first.found.first) == ("long_calls", True)
    assert (other.rule, other.severity, other.found.confidence) == ("launch_bound", "high", "low")


@pytest.mark.parametrize("name", [
    "hta_ns_resolution/rank-0.ns_resolution.pt.trace.json.gz",
    "hta_amd_mi250/mi250_minitoy_train_ROCm6_2.json.gz",
    "hta_a100_rank0_of_16/negative_queue_length_rank0.json.gz",
    "v100_4rank_pair_torchrec/control/pid44239.pt.trace.json.gz",
    "pairs_h100_vs_mi300_tracelens/bert_small_mi300.json.gz",
])  # fmt: skip
def test_recorded_first_launches(name: str) -> None:
    """Plainly: what is called loading is a first launch of its kernel, and takes ten times as long as any later one
    idles at most."""
    path = real_trace(name)
    trace, document = read(str(path)), load(path)
    firsts = {int(each[0]["ts"] * 1000) for each in launches_of(document).values()}
    begin = int(trace.events.ts[0]) - min(int(each["ts"] * 1000) for each in document["traceEvents"] if "ts" in each)
    rows = loading_calls(trace)
    assert {int(ts) - begin for ts in trace.events.ts[rows].tolist()} <= firsts
    if len(rows) and isinstance(answer := long_calls.check(trace), Found) and answer.seen.figures["is_loading"]:
        assert answer.saved_ns is None


def test_modules_that_load_without_steps_belong_to_the_start() -> None:
    """In calls of their own and in first launches, in two processes of one recording at a time: nothing is promised."""
    events = []
    for pid in (1, 2):
        for n in range(20):
            at, number = n * 30 * MS, pid * 100 + n
            loads = call("cuLibraryLoadData", at, at + 20 * MS)
            launch = call("cuLaunchKernel", at + 21 * MS, at + 26 * MS, correlation=number)
            work = kernel(f"k{n}", at + 26 * MS, at + 29 * MS, device=pid, correlation=number)
            events += [structs.replace(each, track=Track(0, pid, 1)) for each in (loads, launch)] + [work]
    answer = problem_of(long_calls.check(trace_of(*events)))
    assert (answer.saved_ns, answer.confidence) == (None, "medium")
    assert "first use holds up the host while the GPU idles" in title_of(answer)
    assert "cuLibraryLoadData (380 ms) and cuLaunchKernel (95 ms)" in title_of(answer), "what passes, not the sum"
    assert "warmup" in advice_of(answer)
