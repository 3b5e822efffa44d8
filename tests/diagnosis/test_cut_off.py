"""A file that is cut off at any byte is judged on steps that are whole in it, and by the same causes as the whole."""

from __future__ import annotations

import gzip
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from simulated_jobs import changed

from augment import InputError, Trace, diff, read
from augment.analyses.diagnosis import analyze
from augment.core import GPU_WORK as GPU_WORK_CATEGORIES
from augment.core import InstantTrack
from augment.diagnosis.judging import measure
from augment.diagnosis.ranking import diagnose
from augment.diagnosis.verdict import busy, named, verdict
from augment.facts.steps.step_figures import step_figures
from augment.facts.steps.step_windows import recorded_windows, step_windows
from metamorphic import CALLS, GPU_WORK, Document, load, real_trace, rewritten, save, with_busy_thread, without_first_ns
from simulator import simulate

PLACES = 12
RECORDED = (
    "h100_8rank_modded_nanogpt/rank1.json.gz",
    "hta_nccl/nccl_data.json.gz",  # each thread's calls in pieces of their own
    "v100_4rank_pair_torchrec/test/pid45922.pt.trace.json.gz",
)
NEVER_WHOLE = "hta_cuda_sync/alexnet.json.gz"  # without steps
ROUNDING_NS = 200_000


def parts(path: Path, folder: Path) -> list[Trace]:
    """The file cut off at places all over it."""
    data = path.read_bytes()
    text = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    traces = []
    for place in range(1, PLACES + 1):
        part = folder / f"{place}.json"
        part.write_bytes(text[: len(text) * place // (PLACES + 1) + place])
        traces.append(read(str(part)))
    return traces


def figures(trace: Trace) -> dict[Any, dict[str, int]]:
    """The times of each whole step of each device, ns."""
    windows = recorded_windows(trace)
    return {
        (each.device, number): {"wall_ns": int(each.wall_ns[place])}
        | {name: int(column[place]) for name, column in each.of_device.items() if name.endswith("_ns")}
        for each in step_figures(trace, windows)
        for place, number in enumerate(windows.number.tolist())
    }


@cache
def launched_in_steps(path: Path) -> dict[int, int]:
    """Plainly: how many pieces of GPU work the host launches in each step."""
    rows = [each for each in load(path)["traceEvents"] if each.get("ph") == "X"]
    begun = {each["args"]["correlation"]: each["ts"] for each in rows if each.get("cat") in CALLS}
    work = [begun.get(each["args"].get("correlation"), -1) for each in rows if each.get("cat") in GPU_WORK]
    steps = {int(each["name"].split("#")[1]): (each["ts"], each["ts"] + each["dur"]) for each in rows
             if each["name"].startswith("ProfilerStep#") and each.get("cat") != "gpu_user_annotation"}  # fmt: skip
    return {number: sum(start <= moment < end for moment in work) for number, (start, end) in steps.items()}


def held_against(path: Path, folder: Path) -> int:
    """Hold all parts of a file against the whole; how many have a whole step."""
    whole, some = read(str(path)), 0
    rules = {each.rule for each in diagnose(whole).findings} | {"partial_recording", "slow_start"}
    truth = figures(whole)
    for part in parts(path, folder):
        assert part.partial is not None
        text, known = " ".join(verdict(part)), figures(part)
        steps = recorded_windows(part).number.tolist()
        some += bool(steps)
        assert ("% of a step" in text or "busy" in text) == bool(steps), text
        assert "no step in it is known to be complete" in text or f"of {len(step_windows(part))} step" in text
        assert named(part) <= rules
        assert not any(each.is_grave and each.found.saved_ns for each in diagnose(part).findings)
        for key, values in known.items():
            assert values == pytest.approx(truth[key], abs=ROUNDING_NS)
        counts = dict.fromkeys(steps, 0)
        for each in step_figures(part, recorded_windows(part)) if steps else ():
            for number, count in zip(steps, each.of_device["work_count"].tolist(), strict=True):
                counts[number] += count
        assert counts == {number: launched_in_steps(path)[number] for number in steps}
        drawn = analyze(part)
        assert [int(each.ts[0]) for each in drawn.annotations if isinstance(each, InstantTrack)] == [
            int(max(part.events.end[part.events.slices_of(*GPU_WORK_CATEGORIES)]))
            for _ in part.events.slices_of(*GPU_WORK_CATEGORIES)[:1]
        ]
    return some


@pytest.mark.parametrize("faults", [(), ("mallocs",)])
def test_a_simulated_job_that_is_cut_off(faults: tuple[str, ...], tmp_path: Path) -> None:
    job = changed(ranks=1, steps=6, layers=3, collectives="none", faults=faults)
    assert held_against(simulate(job, tmp_path / "job")[0][0], tmp_path) > 0


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_file_that_is_cut_off(name: str, tmp_path: Path) -> None:
    assert held_against(real_trace(name), tmp_path) > 0


def test_without_steps_nothing_is_judged(tmp_path: Path) -> None:
    whole = read(str(real_trace(NEVER_WHOLE)))
    for part in parts(real_trace(NEVER_WHOLE), tmp_path):
        with pytest.raises(InputError, match="is cut off"):
            diff(whole, part)
        (text,) = verdict(part)
        assert "nothing is judged" in text
        assert measure(part).is_empty


# What is no part of the steps changes no verdict on them: other clocks, idle or busy threads, a later beginning.
OTHERWISE_RECORDED = (
    "h100_8rank_modded_nanogpt/rank1.json.gz",
    "v100_4rank_pair_torchrec/test/pid45922.pt.trace.json.gz",
    "torchbench/trace2.json",
)
POINTS = 0.02  #: how far shares of the same steps may differ


@pytest.fixture(scope="module", params=[*OTHERWISE_RECORDED, "healthy", "pauses"])
def document(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Document:
    if request.param in OTHERWISE_RECORDED:
        return load(real_trace(request.param))
    faults = () if request.param == "healthy" else (request.param,)
    job = changed(ranks=1, steps=6, layers=3, collectives="none", faults=faults)
    return load(simulate(job, tmp_path_factory.mktemp("job"))[0][0])


def with_idle_process(document: Document) -> Document:
    """Another process that does next to nothing for all the time."""
    times = [each["ts"] for each in document["traceEvents"] if each.get("ph") == "X"]
    idle = {"ph": "X", "pid": 777_777, "tid": 777_777, "ts": min(times), "args": {}}
    rows = [idle | {"cat": "user_annotation", "name": "idle", "dur": max(times) - min(times)}]
    rows.append(idle | {"cat": "cpu_op", "name": "aten::empty", "dur": Decimal(3)})
    return document | {"traceEvents": [*document["traceEvents"], *rows]}


def test_what_nobody_waits_for_changes_nothing(document: Document, tmp_path: Path) -> None:
    """Nor does how it is written down: when, in which order, under which numbers."""
    said = []
    for change in (lambda same: same, rewritten, with_busy_thread, with_idle_process):
        trace = read(str(save(change(document), tmp_path / "changed.json")))
        every = diagnose(trace).findings
        findings = [(each.rule, each.severity, each.found.confidence, each.found.saved_ns) for each in every]
        said.append((verdict(trace)[0], findings))
    assert said == said[:1] * 4


def test_a_later_beginning_changes_no_cause(document: Document, tmp_path: Path) -> None:
    """The recording begins in the middle of its first step: the steps after it are judged alike."""
    rows = [each for each in document["traceEvents"] if each.get("ph") == "X"]
    steps = [each for each in rows if each["name"].startswith("ProfilerStep#") and each["cat"] != "gpu_user_annotation"]
    first = min(steps, key=lambda each: Decimal(each["ts"]))
    until = int((first["ts"] - min(each["ts"] for each in rows) + first["dur"] / 2) * 1000)
    before = read(str(save(document, tmp_path / "before.json")))
    after = read(str(save(without_first_ns(document, until), tmp_path / "after.json")))
    old, new = ({each.rule: each for each in diagnose(trace).findings if each.is_grave} for trace in (before, after))
    assert list(old) == list(new)
    for rule, each in old.items():
        assert new[rule].saved_ratio == pytest.approx(each.saved_ratio, abs=POINTS)
    assert set(measure(after).windows.number.tolist()) <= set(measure(before).windows.number.tolist())
    ratios = [float(busy(trace).split(" % ")[0].rpartition(" ")[2]) for trace in (before, after)]
    assert ratios[1] == pytest.approx(ratios[0], abs=1)
