"""``augment cut``: what is kept, and that nothing else changes."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from running import Augment

from augment.batch import cutting as cut_writer
from augment.core.trace import Category, Trace
from augment.diagnosis.ranking import diagnose
from augment.diagnosis.verdict import verdict
from augment.facts.steps.step_figures import step_idle
from augment.facts.steps.step_windows import step_windows, steps
from augment.readers import read
from perfetto_engine import PerfettoEngine
from simulator import JobOptions, simulate
from traces import HOST, SIMULATED, THREAD, Event, event, kernel, launch, step, trace_text, write_trace

CALLS = ("cuda_runtime", "cuda_driver")
WORK = ("kernel", "gpu_memcpy", "gpu_memset")


def events_of(path: Path) -> list[dict[str, Any]]:
    text = path.read_bytes()
    text = gzip.decompress(text) if path.suffix == ".gz" else text
    events: list[dict[str, Any]] = json.loads(text)["traceEvents"]
    return events


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    ((path, _),) = simulate(JobOptions(ranks=1, steps=4, layers=2, stacks=True), tmp_path_factory.mktemp("traces"))
    return path


def names_of(trace: Trace, prefix: str) -> list[str]:
    return sorted({name for name in trace.strings if name.startswith(prefix)})


def test_steps_keep_what_they_launch(raw: Path, tmp_path: Path, augment: Augment, perfetto: PerfettoEngine) -> None:
    out = tmp_path / "out.json.gz"
    ended = augment("cut", raw, "--steps", "1-2", "-o", out)
    assert (ended.code, ended.lines) == (0, [str(out)])
    assert " events are in " in ended.err
    perfetto.load(raw)
    problems = perfetto.problems()
    perfetto.load(out)
    assert perfetto.problems() == problems
    assert perfetto.rows(
        "select name from slice where name like 'ProfilerStep#%' and category = 'user_annotation'"
    ) == [("ProfilerStep#1",), ("ProfilerStep#2",)]
    kernels = [each for each in events_of(out) if each.get("cat") == "kernel"]
    launches = {each["args"]["correlation"] for each in events_of(out) if each.get("cat") in CALLS}
    earlier = [kernel for kernel in kernels if kernel["args"]["correlation"] not in launches]
    begin = min(each["ts"] for each in events_of(out) if each["name"] == "ProfilerStep#1")
    assert all(each["ts"] + each["dur"] > begin for each in earlier), "what the device still did then"
    kernels = [kernel for kernel in kernels if kernel not in earlier]
    assert 0 < len(kernels) < len([each for each in events_of(raw) if each.get("cat") == "kernel"])
    assert {kernel["args"]["correlation"] for kernel in kernels} <= launches
    correlations = sorted(
        each["args"]["correlation"]
        for each in events_of(out)
        if each.get("cat") in WORK and each["args"]["correlation"] in launches
    )
    for phase in "sf":
        assert (
            sorted(row["id"] for row in events_of(out) if row["ph"] == phase and row["cat"] == "ac2g") == correlations
        )


def test_what_is_kept_keeps_its_bytes(raw: Path, tmp_path: Path, augment: Augment) -> None:
    out = tmp_path / "out.json"
    assert augment("cut", raw, "--drop", "python_function", "-o", out, "--quiet").code == 0
    before, after = events_of(raw), events_of(out)
    assert [each for each in before if each.get("cat") != "python_function"] == after
    assert len(after) < len(before)
    mark = b'"augmentCut":{"dropped": ["python_function"]},'
    assert out.read_bytes().count(mark) == 1
    lines = set(gzip.decompress(raw.read_bytes()).replace(b"},\n", b"}\n").splitlines())
    assert set(out.read_bytes().replace(mark, b"").replace(b"},\n", b"}\n").splitlines()) <= lines


@pytest.mark.parametrize("path", SIMULATED, ids=lambda path: path.parent.name)
def test_the_first_half_is_valid_in_both_formats(
    path: Path, tmp_path: Path, augment: Augment, perfetto: PerfettoEngine
) -> None:
    trace = read(str(path))
    perfetto.load(path)
    problems = perfetto.problems()
    half = (int(trace.events.ts[-1]) - int(trace.events.ts[0])) / 2e6
    seen = []
    for name in ("out.json.gz", "out.pftrace"):
        assert augment("cut", path, "--time", f"0-{half}", "-o", tmp_path / name).code == 0
        perfetto.load(tmp_path / name)
        assert perfetto.problems().items() <= (problems if name.endswith("gz") else {}).items()
        again = read(str(tmp_path / name))
        seen.append((len(again.events.slices_of(*Category)), perfetto.rows("select count(*) > 0 from flow")))
    assert seen[0] == seen[1]
    assert json.loads(gzip.decompress((tmp_path / "out.json.gz").read_bytes()))


@pytest.mark.parametrize("layout", [b",\n", b" , ", b","])
@pytest.mark.parametrize("drop", ["kernel", "cuda_runtime", "user_annotation", "kernel,cuda_runtime,user_annotation"])
def test_commas_are_right(
    tmp_path: Path, augment: Augment, monkeypatch: pytest.MonkeyPatch, layout: bytes, drop: str
) -> None:
    """Also where nothing is left before, after or between."""
    text = trace_text(step(), launch(), launch("x"), kernel(), kernel("b", 40), step(1, 100)).replace(b",\n", layout)
    path = tmp_path / "a.json"
    path.write_bytes(text)
    ended = augment("cut", path, "--drop", drop, "-o", tmp_path / "b.json")
    if "," in drop:
        assert (ended.code, "no event would be left" in ended.err) == (2, True)
        return
    assert [each for each in events_of(path) if each["cat"] != drop] == events_of(tmp_path / "b.json")


def test_small_pieces_give_the_same(raw: Path, tmp_path: Path) -> None:
    """Wherever the text is cut into pieces: in an event, behind it, behind its comma."""
    trace = read(str(raw))
    keep = trace.events.ts % 3 > 0

    class Pieces:
        gzip_tail = None

        def __init__(self, size: int) -> None:
            self.size = size

        def chunks(self) -> Any:
            text = b"".join(bytes(chunk) for chunk in trace.source.text.chunks())
            return (memoryview(text[at : at + self.size]) for at in range(0, len(text), self.size))

    import msgspec

    result = set()
    for size in (997, 4099, 1 << 30):
        source = msgspec.structs.replace(trace.source, text=Pieces(size))  # type: ignore[arg-type]
        cut_writer.write_cut(
            msgspec.structs.replace(trace, source=source), keep, tmp_path / "out.json", {"steps": [0, 1]}
        )
        result.add((tmp_path / "out.json").read_bytes())
    assert len(result) == 1
    assert len(json.loads(result.pop())["traceEvents"]) == len(events_of(raw)) - int((~keep).sum())


def test_a_truncated_trace_is_closed(raw: Path, tmp_path: Path, augment: Augment) -> None:
    (tmp_path / "a.json").write_bytes(gzip.decompress(raw.read_bytes())[:-5000])
    assert augment("cut", tmp_path / "a.json", "--drop", "python_function", "-o", tmp_path / "b.json").code == 0
    assert len(events_of(tmp_path / "b.json")) > 10


def findings_of(trace: Trace) -> dict[str, str]:
    return {each.rule: each.severity for each in diagnose(trace).findings}


def confidences_of(trace: Trace) -> dict[str, str]:
    return {each.rule: each.found.confidence for each in diagnose(trace).findings}


@pytest.mark.parametrize("suffix", ["json.gz", "pftrace"])
def test_a_cut_says_that_it_is_one_and_keeps_the_backlog(tmp_path: Path, augment: Augment, suffix: str) -> None:
    """The device still works on earlier steps: without that it would seem to wait for the host."""
    ((path, _),) = simulate(JobOptions(ranks=2, steps=5, layers=4, write_ranks=(0,), run_ahead=2), tmp_path / "in")
    whole, out = read(str(path)), tmp_path / f"out.{suffix}"
    assert augment("cut", path, "--steps", "3", "-o", out).code == 0
    part = read(str(out))
    assert [(diagnostic.code, diagnostic.count) for diagnostic in part.diagnostics] == [("cut", 1)]
    assert "by augment cut: step 3" in part.diagnostics[0].message
    windows, kept = step_windows(whole), step_windows(part)
    assert windows.backlog[3] > 1_000_000
    assert (kept.number.tolist(), kept.backlog.tolist()) == ([3], windows.backlog[3:4].tolist())
    idle = step_idle(part, 0, kept)
    before = step_idle(whole, 0, windows.take(np.array([3])))
    assert (idle.end - idle.start).sum() == (before.end - before.start).sum()
    result = confidences_of(part)
    assert (result.pop("partial_recording"), "high" in result.values()) == ("high", False)
    assert verdict(part)[0].startswith("The file is a part of a recording (step 3), made by augment cut")


@pytest.mark.parametrize("suffix", ["json.gz", "pftrace"])
def test_nothing_beyond_a_period_is_judged(tmp_path: Path, augment: Augment, suffix: str) -> None:
    """Slices around the period are whole, but what the host did in them later is not in the file: no host gap."""
    rows: list[Event] = [event("user_annotation", "loop", 0, 90_000, HOST, THREAD)]
    for number in range(80):
        at = 1000 * number
        rows += [launch(ts=at, dur=20, correlation=number), kernel(ts=at + 30, dur=1000, correlation=number)]
    path, out = write_trace(tmp_path / "a.json", *rows), tmp_path / f"out.{suffix}"
    assert augment("cut", path, "--time", "10.5-20.5", "-o", tmp_path / "first.json").code == 0
    assert augment("cut", tmp_path / "first.json", "--time", "12.5-50", "-o", out).code == 0
    part = read(str(out))
    windows, first = step_windows(part), read(str(path)).events.ts[0]
    assert ((windows.start - first) / 1e6, (windows.end - first) / 1e6) == ([12.5], [20.5])
    assert set(findings_of(part)) == {"partial_recording"}
    spans = [each.found.spans for each in diagnose(part).findings]
    assert all(((each.start - first >= 12.5e6) & (each.end - first <= 20.5e6)).all() for each in spans)


def test_only_whole_steps_of_a_period_are_judged(raw: Path, tmp_path: Path, augment: Augment) -> None:
    whole = read(str(raw))
    first, known = int(whole.events.ts[0]), steps(whole)
    start, end = ((int(known.ts[at]) + int(known.end[at])) / 2 - first for at in (0, 2))
    assert augment("cut", raw, "--time", f"{start / 1e6}-{end / 1e6}", "-o", tmp_path / "a.json").code == 0
    part = read(str(tmp_path / "a.json"))
    assert (steps(part).number.tolist(), step_windows(part).number.tolist()) == (
        known.number[:3].tolist(),
        known.number[1:2].tolist(),
    )


def test_what_lacks_launches_has_no_sure_cause(tmp_path: Path, augment: Augment) -> None:
    ((path, _),) = simulate(JobOptions(ranks=1, steps=3, layers=2, host_stall_us=5000.0), tmp_path / "in")
    assert findings_of(read(str(path)))["data_loading"] == "high"
    assert augment("cut", path, "--drop", "cpu_op", "-o", tmp_path / "a.json").code == 0
    assert augment("cut", tmp_path / "a.json", "--steps", "1-2", "-o", tmp_path / "b.json").code == 0
    part = read(str(tmp_path / "b.json"))
    assert findings_of(part)["partial_recording"] == "warning"
    content = confidences_of(part)
    del content["partial_recording"]
    assert set(content.values()) <= {"low"}
    assert not any("fetches batches" in sentence for sentence in verdict(part))
    text = (tmp_path / "b.json").read_text()
    assert '"augmentCut":{"steps": [1, 2], "dropped": ["cpu_op"]},"augmentCutEarlier":{' in text


def test_an_array_becomes_an_object(tmp_path: Path, augment: Augment) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps([step(), launch(), kernel()]))
    assert augment("cut", path, "--time", "0-0.5", "-o", tmp_path / "b.json").code == 0
    assert list(json.loads((tmp_path / "b.json").read_text())) == ["augmentCut", "traceEvents"]
    assert [diagnostic.code for diagnostic in read(str(tmp_path / "b.json")).diagnostics] == ["cut"]


def test_ranks_of_folders_and_timelines(tmp_path: Path, augment: Augment, perfetto: PerfettoEngine) -> None:
    simulate(JobOptions(ranks=3, steps=3, layers=2), tmp_path / "job")
    ended = augment("cut", tmp_path / "job", "--ranks", "0,2", "--steps", "1", "-o", tmp_path / "some")
    assert ended.code == 0, ended.err
    assert sorted(path.name for path in (tmp_path / "some").iterdir()) == [
        f"rank{rank}.pt.trace.json.gz" for rank in (0, 2)
    ]
    assert len(steps(read(str(tmp_path / "some" / "rank2.pt.trace.json.gz")))) == 1
    timeline, out = tmp_path / "job.pftrace", tmp_path / "two.pftrace"
    assert augment("merge", tmp_path / "job", "-o", timeline).code == 0
    assert augment("cut", timeline, "--ranks", "1-2", "-o", out).lines == [str(out)]
    perfetto.load(timeline)
    under = """with recursive tree(id, root) as (
        select id, name from track where parent_id is null
        union all select track.id, root from track join tree on track.parent_id = tree.id)
        select root, name, ts, dur from slice join tree on track_id = tree.id
        where root like 'rank %' order by 1, 3, 2"""
    slices = perfetto.rows(under)
    perfetto.load_clean(out)
    assert perfetto.rows(under) == [slice_ for slice_ in slices if slice_[0] in ("rank 1", "rank 2")]
    assert augment("cut", out, "--ranks", "2", "-o", tmp_path / "one.pftrace").code == 0
    for args, because in (
        ((timeline, "--ranks", "7"), "has none of these, only rank 0, rank 1, rank 2"),
        ((timeline, "--steps", "1"), "only --ranks can cut it"),
        ((tmp_path / "job" / "rank0.pt.trace.json.gz", "--ranks", "0"), "is the trace of one process"),
        ((tmp_path / "job", "--ranks", "8"), "no trace of these ranks among"),
    ):
        ended = augment("cut", *args, "-o", tmp_path / "no.pftrace")
        assert (ended.code > 0, because in ended.err) == (True, True), ended.err


def test_what_cannot_be_cut(tmp_path: Path, augment: Augment) -> None:
    path = write_trace(tmp_path / "a.json", step(), launch(), kernel())
    for args, because in (
        ((), "nothing to cut"),
        (("--steps", "7"), "no step 7; it has step 0"),
        (("--time", "5"), "such as 120-180.5"),
        (("--drop", "cpu_op"), "has no event of it, only of cuda_runtime, kernel, user_annotation"),
    ):
        ended = augment("cut", path, *args, "-o", tmp_path / "b.json")
        assert (ended.code, because in ended.err) == (2, True), ended.err
    ended = augment("cut", path, "--time", "0-1", "-o", tmp_path / "b.txt")
    assert (ended.code, "must end in .json.gz, .json or .pftrace" in ended.err) == (2, True)


def merged(paths: list[Path], out: Path, style: str) -> Path:
    """The traces in one file, as TraceFusion merges them (``args``), or SGLang (``pids``)."""
    events = []
    for rank, path in enumerate(paths):
        for each in events_of(path):
            pid = each.get("pid")
            if style == "args":
                each["args"] = {**each.get("args", {}), "rank": rank}
                each["pid"] = pid + 10**6 * rank if isinstance(pid, int) else pid
                if "correlation" in each["args"]:
                    each["args"]["correlation"] += 10**7 * rank
            else:
                each["pid"] = f"[TP{rank:02}] {pid}"
            if "id" in each:
                each["id"] += 10**8 * rank
            events.append(each)
    info = {"distributedInfo": {"rank": 0, "world_size": len(paths)}} if style == "pids" else {}
    out.write_text(json.dumps({**info, "traceEvents": events}))
    return out


@pytest.mark.parametrize("style", ["args", "pids"])
def test_ranks_that_another_tool_merged(style: str, tmp_path: Path, augment: Augment) -> None:
    paths = [path for path, _ in simulate(JobOptions(ranks=3, steps=2, layers=1), tmp_path / "job")]
    whole = merged(paths, tmp_path / "whole.json", style)
    ended = augment("cut", whole, "-o", tmp_path / "parts", "--part")
    assert ended.lines == [str(tmp_path / "parts" / f"rank{rank}.json.gz") for rank in range(3)]
    for rank, path in enumerate(paths):
        part, alone = read(str(tmp_path / "parts" / f"rank{rank}.json.gz")), read(str(path))
        assert part.rank == rank
        assert not any(note.code == "cut" for note in part.diagnostics)
        for category in (Category.KERNEL, Category.CUDA_RUNTIME, Category.CPU_OP):
            rows, chosen = part.events.slices_of(category), alone.events.slices_of(category)
            assert part.names_of(rows) == alone.names_of(chosen)
            assert (part.events.dur[rows] == alone.events.dur[chosen]).all()
        assert len(steps(part)) == len(steps(alone)) == 2
    warned = augment("run", whole, "-o", tmp_path / "out", "--only", "steps")
    assert "holds 3 ranks, taken as one; augment cut whole.json -o DIR --part" in warned.err
    (only,) = augment("cut", whole, "-o", tmp_path / "some", "--part", "--ranks", "1").lines
    assert read(only).rank == 1
    output = augment("cut", whole, "-o", tmp_path / "none", "--part", "--ranks", "7")
    assert (output.code, output.err.strip().endswith("has none of these, only 0, 1, 2")) == (2, True)


def test_one_rank_has_no_parts(raw: Path, tmp_path: Path, augment: Augment) -> None:
    output = augment("cut", raw, "-o", tmp_path / "parts", "--part")
    assert output.code == 2
    assert "does not tell of several ranks" in output.err
    for rank in range(2):
        write_trace(tmp_path / "job" / f"rank{rank}.json", step(), kernel())
    augment("merge", tmp_path / "job", "-o", tmp_path / "job.pftrace")
    output = augment("cut", tmp_path / "job.pftrace", "-o", tmp_path / "parts", "--part")
    assert output.code == 2
    assert "is a timeline of 2 ranks that augment merged: " in output.err
    assert not (tmp_path / "parts").exists()
