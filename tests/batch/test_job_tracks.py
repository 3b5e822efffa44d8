"""What a job's ranks waited for, in each rank's own outputs: drawn once, again when the job changes, killed or not."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
import signal
import zipfile
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from running import contents
from test_merging import JOBS

from augment import AugmentedTrace, OutputError, read
from augment.batch import execution
from augment.batch.conversion import Result, RunPlan
from augment.batch.execution import Run
from augment.batch.inputs import choose_inputs
from augment.job.answer import Answer, answer
from augment.job.ranks import summarize
from augment.pipeline.request import Request
from perfetto_engine import PerfettoEngine
from simulator import JobOptions, simulate
from traces import kernel, write_trace
from writer_traces import stripped

pytestmark = pytest.mark.slow

FORMATS = ("chrome", "perfetto", "bundle")
LATE = 2
OFFSETS = (0, 7_000_000, -3_000_000_123, 11)
DRAWN = """
    select name, count(*), sum(dur) from slice where category = 'augment.job_collectives'
    and name in ('wait', 'transfer') group by 1 order by 1
"""


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("traces")
    options = JobOptions(ranks=4, steps=2, layers=2, collectives="fsdp", straggler=LATE, clock_offset_ns=OFFSETS)
    simulate(options, folder)
    for path in folder.glob("*.truth.json"):
        path.unlink()
    return folder


def some(traces: Path, folder: Path, *ranks: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for rank in ranks:
        shutil.copy2(traces / f"rank{rank}.pt.trace.json.gz", folder)
    return folder


def batch(
    source: Path,
    out: Path | str,
    *,
    draw: bool = True,
    formats: Sequence[str] = FORMATS,
    sizes: dict[str, int] | None = None,
    only: Sequence[str] = ("temporal_breakdown", "diagnosis"),
    **how: Any,
) -> tuple[list[Result], list[Result]]:
    """As ``augment run source -o out``: the results of converting, and of drawing."""
    request = Request(formats=tuple(formats), only=tuple(only), parallelism=sizes or {})
    run = Run(choose_inputs([str(source)], str(out)).inputs, RunPlan(request, compares=True, **how))
    return list(run.convert()), [result for job in run.conclude() for result in (run.draw(job) if draw else ())]


def states(results: list[Result]) -> Counter[str]:
    return Counter(result.status for result in results)


def lines(folder: Path) -> list[dict[str, Any]]:
    recorded = map(json.loads, (folder / "augment-manifest.jsonl").read_text().splitlines())
    return [line for line in recorded if line["status"] != "concluded"]


def manifest_is_right(folder: Path) -> None:
    """The last that is told of each input is what is there."""
    for line in {line["input"]: line for line in lines(folder)}.values():
        for summary in (*line["outputs"], *line["summaries"]):
            content = (folder / summary["path"]).read_bytes()
            assert (summary["size"], summary["sha256"]) == (len(content), hashlib.sha256(content).hexdigest())


def truth(traces: Path) -> dict[int, list[tuple[int, int, int]]]:
    """Start, wait and transfer of each rank's collectives, ns: from the files, by the true clocks, one by one."""
    parts: dict[int, dict[int, tuple[int, int]]] = defaultdict(dict)
    base = 0
    for rank, offset in enumerate(OFFSETS):
        content = json.loads(gzip.decompress((traces / f"rank{rank}.pt.trace.json.gz").read_bytes()))
        base = content.get("baseTimeNanoseconds", 0)
        for event in content["traceEvents"]:
            if event.get("cat") == "kernel" and event["name"].startswith("nccl"):
                start = round(event["ts"] * 1000) + base - offset
                parts[event["args"]["Seq"]][rank] = start, start + round(event["dur"] * 1000)
    result: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for part in parts.values():
        arrival = max(start for start, _ in part.values())
        for rank, (start, end) in part.items():
            wait = min(arrival - start, end - start)
            result[rank].append((start + OFFSETS[rank], wait, end - start - wait))
    return {rank: sorted(each) for rank, each in result.items()}


def test_the_true_waits_are_in_every_ranks_outputs(traces: Path, tmp_path: Path, perfetto: PerfettoEngine) -> None:
    results, drawn = batch(traces, tmp_path)
    assert (states(results), states(drawn)) == (Counter(augmented=4), Counter(augmented=4))
    manifest_is_right(tmp_path)
    late = "extract_arg(arg_set_id, 'debug.last_to_arrive')"
    for rank, parts in truth(traces).items():
        waits = [(start, wait) for start, wait, _ in parts if wait]
        moves = [(start + wait, transfer) for start, wait, transfer in parts if transfer]
        sql = "select ts, dur from slice where category = 'augment.job_collectives' and name = '{}' order by ts"
        perfetto.load_clean(tmp_path / f"rank{rank}.augmented.pftrace")
        assert perfetto.rows(sql.format("wait")) == waits
        assert perfetto.rows(sql.format("transfer")) == moves
        output = perfetto.rows(f"select distinct {late} from slice where name = 'wait' and dur > 100000")
        assert output == ([(f"rank {LATE}",)] if rank != LATE else [])
        below = "select count(*) from slice below join slice wait on below.parent_id = wait.id where wait.name = 'wait'"
        assert perfetto.rows(f"{below} and below.name glob 'for rank [0-3]'") == [(len(waits),)]
        sums = [("transfer", len(moves), sum(dur for _, dur in moves)), ("wait", len(waits), sum(d for _, d in waits))]
        for suffix in (".augmented.json.gz", ".augmented.zip"):
            perfetto.load_clean(tmp_path / f"rank{rank}{suffix}")
            for output, wanted in zip(perfetto.rows(DRAWN), [each for each in sums if each[1]], strict=True):
                assert output[:2] == wanted[:2]
                assert int(str(output[2])) == pytest.approx(wanted[2], abs=512 * wanted[1])  # Chrome's grain


def test_nothing_of_the_source_is_lost(traces: Path, tmp_path: Path) -> None:
    batch(traces, tmp_path)
    for path in traces.iterdir():
        stem = path.name.partition(".")[0]
        text = gzip.decompress(path.read_bytes())
        augmented = gzip.decompress((tmp_path / f"{stem}.augmented.json.gz").read_bytes())
        assert augmented.count(b'"augment.job_collectives"') > 10
        assert stripped(augmented) == text
        with zipfile.ZipFile(tmp_path / f"{stem}.augmented.zip") as bundle:
            assert bundle.read(path.name) == path.read_bytes()
            assert bundle.testzip() is None
        of_source, again = (read(str(each)) for each in (path, tmp_path / f"{stem}.augmented.pftrace"))
        assert len(again.events) == len(of_source.events)


def test_they_are_those_of_the_answer(traces: Path, tmp_path: Path) -> None:
    batch(traces, tmp_path, formats=("chrome",))
    paths = sorted(traces.iterdir())
    content: Answer = answer([summarize(AugmentedTrace(read(str(path)), {})) for path in paths], ["a", "b", "c", "d"])
    for member, path in enumerate(paths):
        *path_track, slices, counter = content.annotations(member)
        waits = slices.args["wait_ns"]
        assert isinstance(waits, np.ndarray)
        text = gzip.decompress((tmp_path / f"{path.name.partition('.')[0]}.augmented.json.gz").read_bytes())
        added = json.loads(text)["traceEvents"]
        on_path = [row for row in added if row.get("cat") == "augment.cross_rank_critical_path" and row["ph"] == "X"]
        assert len(on_path) == sum(len(each.ts) for each in path_track)
        events = [each for each in added if each.get("cat") == "augment.job_collectives"]
        part = [event for event in events if event["ph"] == "X" and event["name"] in ("wait", "transfer")]
        assert [each["args"]["wait_ns"] for each in part] == waits.tolist()
        points = [event["args"]["GB/s"] for event in events if event["ph"] == "C"]
        assert points == pytest.approx(counter.values.tolist())


def test_sidecars_and_timelines_say_what_the_job_tells(traces: Path, tmp_path: Path, perfetto: PerfettoEngine) -> None:
    batch(traces, tmp_path / "told")
    batch(traces, tmp_path / "alone", draw=False)
    schema = msgspec.json.decode(Path(__file__).parents[2].joinpath("docs/metrics.schema.json").read_bytes())
    said = schema["properties"]["told_by_job"]["required"]
    for rank in range(len(OFFSETS)):
        name = f"rank{rank}.metrics.json"
        with_job, alone = (json.loads((tmp_path / folder / name).read_bytes()) for folder in ("told", "alone"))
        of_job = with_job.pop("told_by_job")
        own_verdict, verdict = with_job.pop("verdict_alone"), with_job["verdict"]
        changed = {row["rule"]: row for row in of_job["rows"]}
        own_rows = {row["rule"]: row for row in of_job["rows_alone"]}
        rows = with_job["analyses"]["diagnosis"]["rows"]
        assert changed
        assert own_rows.keys() == changed.keys()
        assert all(row == changed.get(row["rule"], row) for row in rows), "a rank has one answer, whoever reads it"
        rows[:] = [own_rows.get(row["rule"], row) for row in rows]
        assert {**with_job, "verdict": own_verdict} == alone
        assert verdict["text"] == of_job["verdict"]
        assert all(row["status"] == "found" and row == changed.get(row["rule"], row) for row in verdict["rows"])
        assert list(of_job) == said
        assert of_job["job"].startswith(f"Rank {LATE} delays the other three")
        assert of_job["waits_for"] == (None if rank == LATE else f"rank {LATE}")
        for suffix in (".augmented.pftrace", ".augmented.json.gz", ".augmented.zip"):
            perfetto.load(tmp_path / "told" / f"rank{rank}{suffix}")
            rows = perfetto.rows(
                "select slice.name, coalesce(extract_arg(arg_set_id, 'debug.wait_per_step_ns'), "
                "extract_arg(arg_set_id, 'args.wait_per_step_ns')) from slice where category = 'augment.told_by_job'"
            )
            ((sentence, wait),) = rows
            assert str(sentence) == f"Rank {LATE} is late (a fix saves 26 %): {of_job['job']}"
            assert int(str(wait)) == of_job["wait_per_step_ns"]


def test_what_the_user_states_of_the_job_is_drawn(traces: Path, tmp_path: Path) -> None:
    batch(traces, tmp_path / "out")
    sizes = {"tp": 2, "dp": 2}
    results, drawn = batch(traces, tmp_path / "out", sizes=sizes)
    assert (states(results), states(drawn)) == (Counter(done_before=4), Counter(augmented=4))
    batch(traces, tmp_path / "at once", sizes=sizes)
    assert contents(tmp_path / "out") == contents(tmp_path / "at once")
    assert batch(traces, tmp_path / "out", sizes=sizes)[1] == []


def test_a_rank_that_joins_is_in_all(traces: Path, tmp_path: Path) -> None:
    source = some(traces, tmp_path / "in", 0, 1, LATE)
    batch(source, tmp_path / "out")
    of_three = contents(tmp_path / "out")
    results, drawn = batch(some(traces, source, 3), tmp_path / "out")
    assert (states(results), states(drawn)) == (Counter(done_before=3, augmented=1), Counter(augmented=4))
    batch(source, tmp_path / "at once")
    assert contents(tmp_path / "out") == contents(tmp_path / "at once")
    assert of_three["rank0.augmented.json.gz"] != contents(tmp_path / "out")["rank0.augmented.json.gz"]
    manifest_is_right(tmp_path / "out")
    (source / "rank3.pt.trace.json.gz").unlink()
    results, drawn = batch(source, tmp_path / "out")
    assert (states(results), states(drawn)) == (Counter(done_before=3), Counter(augmented=3))
    assert {name: contents(tmp_path / "out")[name] for name in of_three} == of_three


def test_a_rank_that_changes_is_in_all(traces: Path, tmp_path: Path) -> None:
    source = some(traces, tmp_path / "in", 0, 1)
    batch(source, tmp_path / "out")
    shutil.copy(traces / "rank3.pt.trace.json.gz", source / "rank1.pt.trace.json.gz")
    results, drawn = batch(source, tmp_path / "out")
    assert (states(results), states(drawn)) == (Counter(done_before=1, augmented=1), Counter(augmented=2))
    batch(source, tmp_path / "at once")
    assert contents(tmp_path / "out") == contents(tmp_path / "at once")


def test_without_collectives_in_common_outputs_stay_as_written(traces: Path, tmp_path: Path) -> None:
    for rank in range(2):
        write_trace(tmp_path / "none" / f"rank{rank}.json", kernel(dur=10 + rank))
    results, drawn = batch(tmp_path / "none", tmp_path / "out")
    assert (states(results), drawn) == (Counter(augmented=2), [])
    assert [line["drawn"] for line in lines(tmp_path / "out")] == ["", ""]
    source = some(traces, tmp_path / "in", 0, 1)
    batch(source, tmp_path / "two")
    other = json.loads(gzip.decompress((source / "rank1.pt.trace.json.gz").read_bytes()))
    other["traceEvents"] = [event for event in other["traceEvents"] if not str(event.get("name")).startswith("nccl")]
    (source / "rank1.pt.trace.json.gz").write_bytes(gzip.compress(json.dumps(other).encode()))
    _, drawn = batch(source, tmp_path / "two")
    assert states(drawn) == Counter(augmented=1)  # what had been drawn is taken out again
    batch(source, tmp_path / "undrawn", draw=False)
    assert contents(tmp_path / "two") == contents(tmp_path / "undrawn")
    assert batch(source, tmp_path / "two")[1] == []


def test_processes_change_nothing(traces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batch(traces, tmp_path / "one")
    monkeypatch.setattr(execution, "WORKERS_FROM", 0)
    batch(traces, tmp_path / "two", jobs=2)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    manifest_is_right(tmp_path / "two")


def test_shares_leave_it_to_the_run_after_them(traces: Path, tmp_path: Path) -> None:
    batch(traces, tmp_path, shard="0-of-1", draw=False)
    results, drawn = batch(traces, tmp_path)
    assert (states(results), states(drawn)) == (Counter(done_before=4), Counter(augmented=4))
    results, drawn = batch(traces, tmp_path, shard="0-of-1", draw=False)
    assert states(results) == Counter(done_before=4)


def test_in_the_cloud(traces: Path, tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    fs, url = fsspec.filesystem("memory"), "memory://drawn/out"
    source = some(traces, tmp_path / "in", 0, 1, LATE)
    batch(source, url)
    results, drawn = batch(some(traces, source, 3), url)
    assert (states(results), states(drawn)) == (Counter(done_before=3, augmented=1), Counter(augmented=4))
    batch(source, tmp_path / "out")
    assert {name: fs.cat_file(f"/drawn/out/{name}") for name in contents(tmp_path / "out")} == contents(
        tmp_path / "out"
    )
    # the store has an output that the manifest does not know of yet: the run was killed before its upload
    manifest = "/drawn/out/augment-manifest.jsonl"
    undone = [line for line in fs.cat_file(manifest).splitlines() if b'"drawn": ""' in line]
    fs.pipe_file(manifest, b"\n".join(undone) + b"\n")
    results, drawn = batch(source, url)
    assert (states(results), states(drawn)) == (Counter(done_before=4), Counter(augmented=4))
    assert fs.cat_file("/drawn/out/rank1.augmented.zip") == (tmp_path / "out" / "rank1.augmented.zip").read_bytes()
    fs.rm("/drawn", recursive=True)


def test_what_cannot_be_drawn_is_told_and_tried_again(
    traces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from augment.writers import seams

    def full(path: Path, *_: object) -> None:
        if path.name.startswith("rank1"):
            raise OutputError(f"{path}: cannot be written: no space left on device")
        real(path, *_)  # type: ignore[arg-type]

    real = seams.add_tracks
    monkeypatch.setattr(seams, "add_tracks", full)
    _, drawn = batch(traces, tmp_path / "out")
    assert states(drawn) == Counter(augmented=3, failed=1)
    (failed,) = [each for each in drawn if each.status == "failed"]
    assert failed.message.endswith("no space left on device")
    manifest_is_right(tmp_path / "out")
    monkeypatch.setattr(seams, "add_tracks", real)
    results, drawn = batch(traces, tmp_path / "out")
    assert (states(results), states(drawn)) == (Counter(done_before=4), Counter(augmented=1))
    batch(traces, tmp_path / "at once")
    assert contents(tmp_path / "out") == contents(tmp_path / "at once")


@pytest.mark.parametrize("damage", [b"", b"not what was written" * 20_000])
def test_an_output_that_somebody_changed_is_made_again(traces: Path, tmp_path: Path, damage: bytes) -> None:
    batch(traces, tmp_path)
    before = contents(tmp_path)
    (tmp_path / "rank1.augmented.json.gz").write_bytes(damage)
    results, drawn = batch(traces, tmp_path)
    assert (states(results), states(drawn)) == (Counter(done_before=3, augmented=1), Counter(augmented=1))
    assert contents(tmp_path) == before


def killed(at: int, work: Callable[[], object]) -> bool:
    """Do ``work`` in a process that is killed before or after it makes a file appear or a line safe, the ``at``-th
    such moment; False if there are not so many."""
    pid = os.fork()
    if pid:
        _, status = os.waitpid(pid, 0)
        assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
        return os.WIFSIGNALED(status)
    try:
        moments = [0]

        def mortal(function: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any) -> Any:
                for do in (lambda: None, lambda: function(*args)):
                    do()
                    if moments[0] == at:
                        os.kill(os.getpid(), signal.SIGKILL)
                    moments[0] += 1

            return call

        os.replace, os.fsync = mortal(os.replace), mortal(os.fsync)
        work()
        os._exit(0)
    finally:
        os._exit(1)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("joined", [False, True], ids=["first drawn", "drawn anew"])
def test_killed_at_any_moment_of_drawing(traces: Path, tmp_path: Path, *, joined: bool) -> None:
    source, formats = some(traces, tmp_path / "in", 0, 1), ("chrome", "perfetto")
    before = tmp_path / "before"
    if joined:
        batch(source, before, formats=formats)
        some(traces, source, LATE)
    batch(source, before, formats=formats, draw=False)
    batch(source, tmp_path / "expected", formats=formats)
    count = 3 if joined else 2
    at = 0
    while True:
        out = tmp_path / f"out{at}"
        shutil.copytree(before, out)
        died = killed(at, lambda out=out: batch(source, out, formats=formats))  # type: ignore[misc]
        results, _ = batch(source, out, formats=formats)
        assert states(results) == Counter(done_before=count), at
        assert contents(out) == contents(tmp_path / "expected"), at
        manifest_is_right(out)
        assert batch(source, out, formats=formats)[1] == []
        if not died:
            break
        at += 1
    assert at == 2 * (count * 4 + 1)  # of each rank two outputs, the sidecar and a line; a line of the job


# Recorded jobs: each rank's own outputs have its waits and transfers, as Perfetto's engine reads them.
#: what is drawn and does not lie within a collective of a stream, by times exactly as recorded
OUTSIDE = """
    select count(*) from slice drawn where drawn.category = 'augment.job_collectives' and not exists (
        select 1 from slice k where k.category = 'kernel' and k.name glob '*nccl*'
        and k.ts <= drawn.ts and drawn.ts + drawn.dur <= k.ts + k.dur)
"""
BANDWIDTHS = "select count(*) from counter_track where name glob 'Bus bandwidth without waits *'"


@pytest.mark.parametrize("job", JOBS)
def test_a_recorded_job(job: str, perfetto: PerfettoEngine, shared_traces: Path, tmp_path: Path) -> None:
    results, drawn = batch(shared_traces / job, tmp_path, only=("temporal_breakdown",))
    results = [result for result in results if result.status == "augmented"]
    assert len(drawn) == len(results) == JOBS[job]
    traces = sorted((read(result.path) for result in results), key=lambda trace: trace.rank or 0)
    rows = answer([summarize(AugmentedTrace(trace, {})) for trace in traces], [trace.source.name for trace in traces])
    of_path = {each.path: each for each in drawn}
    for member, trace in enumerate(traces[:3]):  # all are made alike, and each is loaded for seconds
        part = rows.matched.rows_of(member)
        time = int((rows.matched.end[part] - rows.matched.ts[part]).sum())
        chrome, native, bundle, _ = of_path[trace.source.path].outputs
        perfetto.load_clean(Path(native))
        drawn_ns = {name: dur for name, _, dur in perfetto.rows(DRAWN)}
        counts = [row[:2] for row in perfetto.rows(DRAWN)]
        assert set(drawn_ns) == {"wait", "transfer"}
        assert 0.9 * time < sum(drawn_ns.values()) <= time  # collectives that overlap on a stream are drawn once
        assert perfetto.rows(OUTSIDE) == [(0,)]
        sized = bool((rows.matched.bytes[rows.matched.instance[part]] > 0).any())
        assert (perfetto.rows(BANDWIDTHS) != [(0,)]) == sized
        if member:
            continue
        perfetto.load(Path(trace.source.path))
        of_source = perfetto.problems()
        for path in (chrome, bundle):
            perfetto.load(Path(path))
            assert [row[:2] for row in perfetto.rows(DRAWN)] == counts
            assert perfetto.problems() == of_source
