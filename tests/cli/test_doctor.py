"""``augment doctor``: what it finds in a trace, and what Perfetto would drop of it."""

from __future__ import annotations

import gzip
import json
import re
import shlex
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from running import Augment

from augment.batch.inputs import choose_inputs
from augment.batch.merged_timeline import only_job
from augment.cli.inspection import partly_overlapping
from augment.cli.terminal import wrapped
from augment.results.recordings import of_ranks
from simulator import JobOptions, simulate
from tables import kernel as kernel_row
from tables import trace_of
from traces import event, kernel, launch, op, some_work, write_trace

EVIDENCE = Path(__file__).resolve().parents[3] / "shared" / "evidence"


def codes(report: dict[str, Any], part: str) -> dict[str, int]:
    return {each["code"]: each["count"] for each in report[part]}


def test_what_is_in_a_file(tmp_path: Path, augment: Augment) -> None:
    trace = write_trace(
        tmp_path / "a.json.gz",
        *some_work(),
        op("aten::add", 20, 1, **{"Input Dims": [[2, 3]]}),
        schemaVersion=1,
        distributedInfo={"rank": 5, "world_size": 8, "backend": "nccl"},
        deviceProperties=[{"id": 0, "name": "H200"}],
    )
    ended = augment("doctor", trace, "--json")
    report = json.loads(ended.out)
    assert ended.code == 0
    assert report["file"]["compression"] == ["gzip"]
    assert (report["file"]["layout"], report["file"]["schema_version"], report["file"]["events"]) == ("object", 1, 7)
    assert report["file"]["vendor"] == "NVIDIA (CUDA)"
    assert report["recording"]["ranks"] == [5]
    assert (report["recording"]["rank_from"], report["recording"]["world_size"]) == ("distributedInfo", 8)
    assert (report["has"]["shapes"], report["has"]["python_stacks"]) == (True, False)
    assert report["launches"] == {
        "gpu_work_count": 2, "linked_ratio": 1.0, "launch_count": 2, "unmatched_launch_count": 0
    }  # fmt: skip
    assert {"category": "kernel", "phase": "X", "read_as": "kernel", "count": 1} in report["categories"]
    assert list(tmp_path.iterdir()) == [trace]
    (tmp_path / "nccl.log").write_text("n0:7:9 [0] NCCL INFO Bootstrap\n")
    shown = augment("doctor", trace).out
    assert f"give --nccl-log {tmp_path / 'nccl.log'}" in shown
    assert "rank       5 of 8 (from distributedInfo)" in shown
    assert "device 0   H200, 1 stream" in shown


@pytest.mark.parametrize(("name", "dims"), [("Input Dims", [[2, 3]]), ("Input dims", [[1]])])  # the latter until 2021
def test_shapes_are_there_under_either_name(tmp_path: Path, augment: Augment, name: str, dims: Any) -> None:
    trace = write_trace(tmp_path / "a.json", *some_work(), op("aten::add", 20, 1, **{name: dims}))
    assert json.loads(augment("doctor", trace, "--json").out)["has"]["shapes"]


def test_what_is_odd(tmp_path: Path, augment: Augment) -> None:
    trace = write_trace(
        tmp_path / "a.json",
        launch(correlation=9),
        kernel(ts=30, dur=10, correlation=1),
        kernel(ts=35, dur=10, correlation=2),
        kernel(ts=20, dur=0, correlation=3),
        op(ts=50, dur=-1),
        event("Trace", "PyTorch Profiler (0)", 0, 100, "Spans", "PyTorch Profiler"),
        {"ph": "X", "name": "no time"},
    )
    report = json.loads(augment("doctor", trace, "--json").out)
    assert codes(report, "odd").items() >= {
        "negative_durations": 1, "zero_durations": 1, "out_of_order": 2, "text_ids": 1, "event_without_time": 1
    }.items()  # fmt: skip
    assert codes(report, "perfetto") == {"partly_overlapping": 1, "text_pids": 1}
    assert "events     7, 1 of them metadata" in augment("doctor", trace).out  # as augment show counts them
    assert report["launches"]["unmatched_launch_count"] == 1
    assert "memory_bandwidth" in report["skipped"]


def test_a_native_file_has_none_of_the_limits_of_json(tmp_path: Path, augment: Augment) -> None:
    """Kernels that overlap, a text as pid, times that count from 1970."""
    ts = 1712195495406752.797
    odd = event("Trace", "PyTorch Profiler (0)", ts, 100, "Spans", "PyTorch Profiler")
    trace = write_trace(tmp_path / "a.json", kernel(ts=ts, dur=10), kernel(ts=ts + 5, dur=10, correlation=2), odd)
    assert codes(json.loads(augment("doctor", trace, "--json").out), "perfetto").keys() == {
        "partly_overlapping", "text_pids", "epoch_times"
    }  # fmt: skip
    assert augment("run", trace, "--to", "perfetto").code == 0
    native = tmp_path / "a.augmented.pftrace"
    report = json.loads(augment("doctor", native, "--json").out)
    assert codes(report, "perfetto") == {}
    assert (report["file"]["format"], report["file"]["layout"]) == ("perfetto", "packets")


def test_times_that_perfetto_rounds(tmp_path: Path, augment: Augment) -> None:
    whole = write_trace(tmp_path / "whole.json", op(ts=1712195495406752))
    assert json.loads(augment("doctor", whole, "--json").out)["perfetto"] == []
    (tmp_path / "fraction.json").write_text(whole.read_text().replace("1712195495406752,", "1712195495406752.797,"))
    report = json.loads(augment("doctor", tmp_path / "fraction.json", "--json").out)
    assert codes(report, "perfetto") == {"epoch_times": 1}
    assert "rounded to 250 ns" in report["perfetto"][0]["message"]
    assert report["recording"]["start_ns"] == 1712195495406752797


def test_files_that_cannot_be_read(tmp_path: Path, augment: Augment) -> None:
    (tmp_path / "b.json").write_bytes(b"nothing")
    trace = write_trace(tmp_path / "a.json", launch())
    assert augment("doctor", tmp_path / "b.json").code == 3
    both = augment("doctor", tmp_path / "b.json", trace)
    assert (both.code, len(both.err.splitlines())) == (1, 1)
    assert both.out.startswith(str(trace))


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=12))
def test_slices_that_perfetto_drops(slices: list[tuple[int, int]]) -> None:
    trace = trace_of(*(kernel_row("k", ts, ts + dur) for ts, dur in slices))
    kept: list[tuple[int, int]] = []
    dropped = 0
    for ts, dur in sorted(slices, key=lambda item: (item[0], -item[1])):
        around = [end for start, end in kept if start <= ts < end]
        if dur and around and ts + dur > min(around):
            dropped += 1
        else:
            kept.append((ts, ts + dur))
    assert partly_overlapping(trace) == dropped


# augment diagnose: the quick health check.


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace with a slow loader, and one in good health."""
    top = tmp_path_factory.mktemp("traces")
    simulate(JobOptions(ranks=1, steps=3, layers=2, collectives="none"), top / "well")
    ((path, _),) = simulate(JobOptions(ranks=1, steps=3, layers=2, collectives="none", host_stall_us=9000.0), top)
    assert path.name == "rank0.pt.trace.json.gz"
    return top


def test_it_says_what_is_wrong_and_writes_nothing(folder: Path, augment: Augment) -> None:
    before = sorted(folder.rglob("*"))
    ended = augment("diagnose", folder / "rank0.pt.trace.json.gz")
    assert ended.code == 0
    assert sorted(folder.rglob("*")) == before
    text = ended.out
    assert "The GPU is" in text
    assert "\n  The host fetches batches" in text  # the verdict says it; below it, the rule is named
    assert "! high: Waiting for batches (a fix saves " in text
    assert text.count("The host fetches batches") == 1
    assert "→ The main process loads the data itself" in text
    assert "✓ pageable_copies: no step copies much from or to pageable memory" in text
    assert "– memory_capacity: no memory of the GPU was recorded; record with profile_memory=True" in text
    lines = [line.strip() for line in ended.lines]
    starts = [next(at for at, line in enumerate(lines) if line.startswith(sign)) for sign in "!✓–"]
    assert [lines[at - 1] for at in starts[1:]] == ["Checked, and little to save:", "Cannot be told from this trace:"]
    assert starts == sorted(starts)


def test_neither_a_page_nor_a_timeline_is_offered_of_traces_that_are_no_job(folder: Path, augment: Augment) -> None:
    ended = augment("diagnose", folder)
    assert "augment open" not in ended.err
    assert "augment report" not in ended.err


def test_what_rules_lack_alike_is_said_once(folder: Path, tmp_path: Path, augment: Augment) -> None:
    cut = tmp_path / "cut.json"
    cut.write_bytes(gzip.decompress((folder / "rank0.pt.trace.json.gz").read_bytes())[:20_000])
    whole, marked = (augment("diagnose", cut, *options).out for options in ((), ("--markdown",)))
    lack = "and 36 more: no step is known to be whole in the file, which is cut off; record again"
    assert "\n  – cold_start, profiler_overhead, data_loading, " in whole
    assert "\n- – `cold_start`, `profiler_overhead`, `data_loading`, " in marked
    assert whole.count(lack) == marked.count(lack) == 1


def test_the_exit_code_says_whether_anything_is_grave(folder: Path, augment: Augment) -> None:
    slow, well = folder / "rank0.pt.trace.json.gz", folder / "well"
    assert augment("diagnose", slow, "--fail-on", "high").code == 1
    assert augment("diagnose", well, "--fail-on", "high").code == 0
    assert augment("diagnose", folder, "--fail-on", "warning").code == 1
    assert augment("diagnose", folder / "no.json").code == 3


def test_json_and_markdown(folder: Path, augment: Augment) -> None:
    report = json.loads(augment("diagnose", folder / "rank0.pt.trace.json.gz", "--json").out)
    assert report["rows"][0]["rule"] == "data_loading"
    assert len(report["verdict"]) >= 2
    text = augment("diagnose", folder / "rank0.pt.trace.json.gz", "--markdown").out
    assert text.startswith("## ")
    assert re.search(
        r"- \*\*high\*\*: Waiting for batches \(a fix saves \d+ %\). The main process loads the data itself", text
    )
    assert "- ✓ `pageable_copies`: no step copies" in text


def test_metrics_are_read_as_they_are(folder: Path, tmp_path: Path, augment: Augment) -> None:
    slow = folder / "rank0.pt.trace.json.gz"
    assert "The host fetches batches" in augment("run", slow, "-o", tmp_path).err
    (sidecar,) = tmp_path.glob("*.metrics.json")
    from_metrics = json.loads(augment("diagnose", sidecar, "--json").out)
    assert from_metrics["rows"] == json.loads(augment("diagnose", slow, "--json").out)["rows"]
    assert "The host fetches batches" in augment("show", sidecar, "steps").out


def test_a_trace_that_augment_wrote_is_judged_by_the_metrics_beside_it(
    folder: Path, tmp_path: Path, augment: Augment
) -> None:
    assert augment("run", *sorted(folder.glob("*.json*"))[:1], "-o", tmp_path / "out").code == 0
    (trace,) = (tmp_path / "out").glob("*.pftrace")
    (metrics,) = (tmp_path / "out").glob("*.metrics.json")
    assert augment("diagnose", trace).out == augment("diagnose", metrics).out
    metrics.unlink()
    assert augment("diagnose", trace).code == 3


def test_a_file_alone_is_diagnosed_and_what_comes_next_is_said(tmp_path: Path, augment: Augment) -> None:
    trace = write_trace(tmp_path / "a b.json", launch(), kernel())
    ended = augment(trace)
    assert (ended.code, ended.out) == (0, augment("diagnose", trace).out)
    assert [line.partition(": ")[2].strip() for line in ended.err.splitlines() if line] == [
        f"augment open '{trace}'", f"augment report '{trace}'",
    ]  # fmt: skip
    assert augment("diagnose", trace, "--json").err == ""
    (tmp_path / "dump_0").write_text('{"version": "2.1", "entries": []}')
    assert augment("diagnose", tmp_path / "dump_0").err == "", "no command draws dumps of the flight recorder"
    assert augment("run", trace, "--quiet").code == 0
    assert f"augment open '{tmp_path}/a b.augmented.pftrace'" in augment(tmp_path / "a b.metrics.json").err
    spans = [
        event("user_annotation", name, at, 9, 1, 1) for at in (0, 20) for name in ("part", "Optimizer.step#SGD.step")
    ]
    steps = write_trace(tmp_path / "steps.json", *spans, launch(), kernel())
    assert augment(steps).err.endswith(
        f"\nAnnotations that recur can be the steps: augment diagnose {steps} --region 'part' (2 times)\n"
    )
    assert augment(steps, "--region", "part").err.endswith(f"augment report {steps} --region part\n")
    text, cut = steps.read_text(), tmp_path / "cut.json"
    for end, is_offered in ((text.index("cudaLaunch"), False), (len(text) - 2, True)):  # before any work, and after it
        cut.write_text(text[:end])
        for options in ((), ("--region", "part")):
            ended = augment(cut, *options)
            assert ("that recur" in ended.err, "is cut off" in ended.out) == (is_offered and not options, True)
    tables = tmp_path / "ours.toml"
    tables.write_text("[[peak]]\ndevice = ''\nbf16 = 400\nmemory_gbps = 2000\n")
    assert "--peak memory_gbps=" in augment(trace).out
    ended = augment("diagnose", trace, "--tables", tables)
    assert "--peak memory_gbps=" not in ended.out
    assert ended.err.endswith(f"augment run '{trace}' --tables {tables} -o . && augment report 'a b.metrics.json'\n")
    tables.write_text("[[peek]]\n")
    assert "no table is called 'peek'" in augment("diagnose", trace, "--tables", tables).err
    assert augment(tmp_path / "none.json").code == 3
    assert "No such command 'digest'" in augment("digest").err
    assert augment("diagnose", "--step", 9).err == "augment: No such option '--step'. (see augment diagnose --help)\n"


def test_every_command_that_is_named_works(tmp_path: Path, augment: Augment, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a folder of two jobs, and of a glob."""
    job = JobOptions(ranks=3, steps=3, layers=2, host_stall_us=20_000.0, host_stall_rank=1)
    for name in ("jobs/a b", "jobs/c/traces"):
        simulate(job, tmp_path / name)
    monkeypatch.setattr("augment.cli.open._serve", lambda *_: 0)
    monkeypatch.setattr("augment.viewer.server.TraceServer", MagicMock())
    for source, count in (("jobs", 6), ("jobs/a b/*", 2)):
        ended = augment("diagnose", tmp_path / source)
        hints = re.findall(
            r"augment ((?:open|report) (?:'[^']*'|[^\s`])+(?: --rank 1)?(?: --at [\d.-]+)?)", ended.out + ended.err
        )
        assert ("FOLDER" in ended.out, "of the first of 2 jobs" in ended.err) == (False, source == "jobs")
        assert ("job a b, 3 traces" in ended.out, "job c, 3 traces" in ended.out) == (True, source == "jobs")
        assert len(hints) >= count
        for hint in map(shlex.split, hints):
            assert augment(*hint, *(["-o", tmp_path / "page.html"] if hint[0] == "report" else [])).code == 0, hint


def test_lines_fit_the_terminal_and_commands_stay_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    line = "  → Rank 2: it would save about 13 ms (9.0 %); see it: `augment open FOLDER --rank 2 --at 1-2`"
    assert wrapped(line) == line
    monkeypatch.setenv("COLUMNS", "36")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert wrapped(line).splitlines() == [
        "  → Rank 2: it would save about", "    13 ms (9.0 %); see it:", "    `augment open FOLDER --rank 2 --at 1-2`",
    ]  # fmt: skip


def test_list_names_the_rules(augment: Augment) -> None:
    rules = json.loads(augment("list", "--json").out)["rules"]
    assert {"data_loading", "launch_bound"} <= {rule["name"] for rule in rules}


def test_of_several_ranks_the_job_comes_first(tmp_path: Path, augment: Augment) -> None:
    simulate(JobOptions(ranks=3, steps=3, layers=2, straggler=1, straggler_factor=1.6), tmp_path)
    lines = augment("diagnose", tmp_path).lines
    assert lines[0].startswith("job ")
    assert "Rank 1 delays the other two" in "\n".join(lines[:5])
    assert sum("rank0.pt.trace.json.gz" in line for line in lines) == 1
    assert not any("✓" in line for line in lines)


def test_metrics_of_some_of_the_traces_do_not_stand_for_the_folder(tmp_path: Path, augment: Augment) -> None:
    traces = [path for path, _ in simulate(JobOptions(ranks=3, steps=3, layers=2), tmp_path)]
    (tmp_path / "settings.json").write_text('{"lr": 1}')
    whole = augment("diagnose", tmp_path).out
    augment("run", traces[0])
    ended = augment("diagnose", tmp_path)
    assert (ended.out, "2 traces without metrics: all are analysed" in ended.err) == (whole, True)
    assert "all ranks together" in augment("report", tmp_path, "--markdown").out
    assert f"augment report {tmp_path}" in ended.err
    augment("run", tmp_path)
    assert "without metrics" not in augment("diagnose", tmp_path).err


def test_metrics_of_ranks_are_those_of_no_job_and_no_comparison() -> None:
    names = ("a/job", "job.w1", "roles.job", "b.diff", "a/bigjob", "b.17.job", "b.job-2")
    assert of_ranks(f"{name}.metrics.json" for name in names) == ["a/bigjob.metrics.json"]


@pytest.mark.skipif(not EVIDENCE.is_dir(), reason="the recorded files are not here")
def test_what_comes_next_works_of_logs_and_of_dumps(tmp_path: Path, augment: Augment) -> None:
    """Logs of a compiler beside the traces of a job are no other job; dumps of a job that hangs have a page."""
    folder, page = EVIDENCE / "joint_gloo_2rank", tmp_path / "page.html"
    assert "a page to send: augment report" in augment(folder).err
    assert augment("report", folder, "-o", page).code == 0
    assert [member.rank for member in only_job(choose_inputs([str(folder)], None).inputs).members] == [0, 1]
    assert augment("run", folder, "-o", tmp_path, "--quiet").code == 0
    assert [path.name for path in tmp_path.glob("*job*")] == ["job.metrics.json"]
    dumps = EVIDENCE / "flight_recorder"
    assert augment("report", dumps / "lock_gil_2nd", "-o", page).code == 0
    assert "Ranks 10 and 15 stopped on the host" in page.read_text("utf-8")
    assert "name the folder of one" in augment("report", dumps).err
    shown = augment("show", EVIDENCE / "nccl" / "nccl_2.20.5_slingshot_resnet50.log.gz")
    assert ("log.gz: no trace\n" in shown.out, "Skipped" in shown.lines, "log_cut" in shown.out) == (True, False, True)
    for name in ("nccl/nccl_2.27.7_2xa100_all_subsys.log.gz", "torch_trace/cache_hit_miss.log.gz"):
        log = EVIDENCE / name
        said = augment(log)
        assert (f"the tables:     augment show {log}" in said.err, "augment show" in said.out) == (True, False)
        assert "augment show" not in augment("show", log).out, "it would lead to itself"
    (empty := tmp_path / "empty.json").write_text('{"traceEvents":[]}')
    assert "augment show" not in augment(empty).err, "it has no tables"
