"""``augment show``: the sidecar as tables."""

from __future__ import annotations

import html
import json
import re
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from running import Augment

from augment.analyses.step_efficiency import BESIDE, COMPUTING
from augment.batch.conversion import File, Result
from augment.cli.run_summary import summary, waterfall
from augment.cli.table_output import TableColumn, columns_of, print_columns, print_rows, print_whole
from simulator import JobOptions, simulate
from traces import copy, kernel, launch, op, write_trace


def test_metrics_file_and_trace_show_the_same(tmp_path: Path, augment: Augment) -> None:
    trace = write_trace(tmp_path / "rank3.json.gz")
    augment("run", trace, "-o", tmp_path / "out")
    sidecar = tmp_path / "out" / "rank3.metrics.json"
    from_file, from_trace = augment("show", sidecar), augment("show", trace)
    assert from_file.code == 0
    assert from_file.out == from_trace.out
    assert list(tmp_path.iterdir()) == [trace, sidecar.parent] or len(list(tmp_path.iterdir())) == 2  # nothing written
    content = json.loads(augment("show", sidecar, "--json").out)
    assert content == json.loads(sidecar.read_bytes())["analyses"]
    assert json.loads(augment("show", trace, "--json").out) == content


def test_tables_have_units_and_titles(tmp_path: Path, augment: Augment) -> None:
    trace = write_trace(tmp_path / "rank3.json")
    lines = augment("show", trace, "temporal_breakdown", "communication_computation_overlap").lines
    assert lines[0] == "rank3.json: 6 events, 100.000 µs, rank 3, 1 step"
    assert lines[2] == "Temporal breakdown, from the first to the last GPU work · rank 3, device 0"
    assert lines[3].split()[:4] == ["span", "busy", "idle", "compute"]
    assert set(lines[4].split()) == {"µs"}
    assert lines[5].split()[:3] == ["30.000", "20.000", "10.000"]
    assert lines[7] == "Communication computation overlap · rank 3, device 0"
    assert lines[10].split()[-1] == "–"
    assert len(lines) == 11


def test_analyses_may_be_chosen(tmp_path: Path, augment: Augment) -> None:
    augment("run", write_trace(tmp_path / "a.json"))
    sidecar = tmp_path / "a.metrics.json"
    assert list(json.loads(augment("show", sidecar, "queue_length", "--json").out)) == ["queue_length"]
    assert "queue_length" not in json.loads(augment("show", sidecar, "--skip", "queue_length", "--json").out)
    for path in (sidecar, tmp_path / "a.json"):
        wrong = augment("show", path, "queue_lenght")
        assert wrong.code == 2
        assert "did you mean queue_length?" in wrong.err


def test_skipped_analyses_say_why(tmp_path: Path, augment: Augment) -> None:
    shown = augment("show", write_trace(tmp_path / "a.json", op()), "--all")
    assert "Skipped" in shown.lines
    assert "no event of category kernel, gpu_memcpy or gpu_memset" in shown.out


def test_rows_are_limited(tmp_path: Path, augment: Augment) -> None:
    many = [kernel(f"kernel {number}", 10 + number, 1, correlation=number) for number in range(30)]
    trace = write_trace(tmp_path / "a.json", launch(), *many, copy(ts=100))
    assert "… 26 more rows (--limit 0 shows all)" in augment("show", trace, "kernel_breakdown", "--limit", 5).lines
    every = augment("show", trace, "kernel_breakdown", "--limit", 0)
    assert every.out.count("kernel ") >= 30
    assert "more rows" not in every.out


def test_what_is_no_metrics_file(tmp_path: Path, augment: Augment) -> None:
    for text in (b"{", b"[]", b'{"schema_version": "1.0"}'):
        (tmp_path / "a.metrics.json").write_bytes(text)
        ended = augment("show", tmp_path / "a.metrics.json")
        assert (ended.code, ended.out) == (3, "")
        assert len(ended.err.splitlines()) == 1
    (tmp_path / "other.json").write_bytes(b'{"schema_version": "1.0", "operators": []}')
    assert "not a trace: JSON without traceEvents (its members: schema" in augment("show", tmp_path / "other.json").err
    assert augment("show", tmp_path / "none.json").code == 3
    assert augment("show", tmp_path).code == 3


def test_a_folder_that_holds_nothing_to_show(tmp_path: Path, augment: Augment) -> None:
    ended = augment("query", tmp_path, "select 1")
    assert (ended.code, ended.err) == (3, f"augment: {tmp_path}: is a folder; name one trace in it\n")
    said = {augment(command, tmp_path).err for command in ("show", "doctor", "open", "diagnose", "report")}
    (tmp_path / "config.json").write_text('{"a": 1}')
    (tmp_path / "list.json").write_text("[1, 2]")
    for command in ("show", "doctor", "diagnose", "report", "run"):
        ended = augment(command, tmp_path, *["--quiet"] * (command == "run"))
        assert ended.code == 3
        *passed_over, last = ended.err.splitlines(keepends=True) or [""]  # diagnose says what its files are
        assert bool(passed_over) == (command == "diagnose")
        said.add(last)
    said.discard("")  # a process of its own has said why
    assert len(said) == 1
    assert said.pop().startswith(f"augment: {tmp_path}: holds no trace in a file of the kinds .json, ")


@pytest.mark.slow
def test_a_folder_shows_its_job(tmp_path: Path, augment: Augment) -> None:
    """Of traces and of metrics alike; of several that are no job, one is to be named."""
    simulate(JobOptions(ranks=2, steps=2, layers=1), tmp_path / "job")
    assert augment("run", tmp_path / "job", "-o", tmp_path / "out", "--quiet").code == 0
    of_traces, of_metrics = augment("show", tmp_path / "job"), augment("show", tmp_path / "out")
    alone = augment("show", tmp_path / "out" / "job.metrics.json").out  # does not know where its traces are
    for folder, shown in ((tmp_path / "job", of_traces), (tmp_path / "out", of_metrics)):
        assert shown.out == alone.replace("augment open FOLDER", f"augment open {folder}") != alone
    assert augment("doctor", tmp_path / "job").out.count("\n  rank ") == 2
    gated = augment("check", tmp_path / "job", "--baseline", tmp_path / "out" / "job.metrics.json")
    assert gated.err.endswith(f"name the folder of its ranks' metrics: {tmp_path / 'out'}\n")
    (tmp_path / "out" / "job.metrics.json").unlink()
    assert "holds the metrics of 2 traces that are no job; name one: " in augment("show", tmp_path / "out").err
    alone = tmp_path / "alone"
    for name in ("a.json", "b.json"):
        write_trace(alone / name, launch(), kernel())
    assert (
        f"holds 2 traces that are no job; name one; look at all: augment diagnose {alone};"
        in augment("show", alone).err
    )
    job = tmp_path / "job"
    for window in ("0", "1"):
        for rank in ("0", "1"):
            target = tmp_path / f"windows/iteration_{window}/rank{rank}.json.gz"
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(job / f"rank{rank}.pt.trace.json.gz", target)
    assert "holds 2 jobs, or recordings of one; name one;" in augment("report", tmp_path / "windows").err


def test_columns_are_for_people() -> None:
    columns = columns_of(
        {
            "stream": [7, 13],
            "name": ["[bold]gemm[/bold]" + 40 * "x", None],
            "sum_ns": [1_234_567_891, 5],
            "mean_ns": [1_500.0, None],
            "overlap_ratio": [0.5, 1.0],
            "bytes": [13_800_000, 0],
            "mean_gbps": [1.234, 2.0],
            "least_bytes": [3_400_000_000, 192],
            "launch_count": [1_000, 2],
            "p50": [1.0, 2.5],
            "self_gpu_ns": [1, 2],
            "is_steady": [True, None],
        }
    )
    assert [(" ".join(column.head).strip(), *column.cells) for column in columns] == [
        ("stream", "7", "13"),
        ("sum ms", "1,234.568", "0.000"),
        ("mean µs", "1.500", "–"),
        ("overlap %", "50.00", "100.00"),
        ("size MB", "13.800", "0.000"),
        ("mean GB/s", "1.23", "2.00"),
        ("least", "3.4 GB", "192 B"),
        ("launch count", "1,000", "2"),
        ("p50", "1.00", "2.50"),
        ("self GPU ms", "0.000", "0.000"),
        ("is steady", "yes", "–"),
        ("name", "[bold]gemm[/bold]" + 40 * "x", "–"),
    ]


def test_a_narrow_terminal_gets_several_tables(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("augment.cli.table_output._console", lambda: Console(width=40, color_system=None))
    table = {
        "rank": [0, 1],
        "trace": ["rank0.json.gz", "rank1.json.gz"],
        "reason": [60 * "a", 60 * "b"],
        **{f"{name}_count": [1_000_000, 2] for name in ("first", "second", "third")},
    }
    print_columns("Clocks", columns_of(table))
    lines = capsys.readouterr().out.splitlines()[2:]
    assert max(map(len, lines)) <= 40
    assert lines[:2] == ["rank  trace      first count  reason", f"   0  rank0.js…    1,000,000  {8 * 'a'}…"]
    assert lines[3:5] == ["rank  second count  third count", "   0     1,000,000    1,000,000"]  # what names a row
    print_whole([TableColumn(("name", ""), [60 * "a"], text=True), TableColumn(("n", ""), ["1,000,000"])])
    assert capsys.readouterr().out.splitlines()[1] == 28 * "a" + "…  1,000,000"


def test_rows_that_nothing_tells_apart_keep_all_names(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("augment.cli.table_output._console", lambda: Console(width=30, color_system=None))
    print_columns("Calls", columns_of({"kind": ["a", "a"], "name": ["b", "b"], **{n * 9: [1, 2] for n in "pqr"}}))
    expected = ["kind  name  ppppppppp", "kind  name  qqqqqqqqq", "kind  name  rrrrrrrrr"]
    assert [line for line in capsys.readouterr().out.splitlines() if "kind" in line] == expected


def test_a_column_that_tells_nothing_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"name": name, "host": "", "bytes": None, "count": count} for name, count in (("a", 1), ("b", 0))]
    print_rows("Some", rows)
    assert capsys.readouterr().out.splitlines()[2:] == ["name  count", "a         1", "b         0"]
    print_rows("One", [rows[0] | {"rank": "ranks 0 to 3"}])
    title, heads, *_ = capsys.readouterr().out.splitlines()[1:]
    assert (title, heads.split()) == ("One · ranks 0 to 3", ["name", "host", "size", "count"])


def test_without_names_come_the_verdict_and_the_main_tables(tmp_path: Path, augment: Augment) -> None:
    trace = write_trace(tmp_path / "rank3.json")
    few, every = augment("show", trace).out, augment("show", trace, "--all").out
    assert "The GPU is" in few
    titles = [
        line.partition(",")[0].partition(" ·")[0] for line in few.splitlines() if re.match("[A-Z].*[a-z]$|.*·", line)
    ]
    assert titles == ["Diagnosis", "Mean step", "Steps", "Kernel family breakdown", "Kernel breakdown"]
    assert "more tables: --all shows them" in few
    assert len(every.splitlines()) > 2 * len(few.splitlines())


def test_a_job_says_its_doubts_first_and_folds_ranks_that_are_alike(tmp_path: Path, augment: Augment) -> None:
    simulate(JobOptions(ranks=4, steps=2, layers=1), tmp_path / "traces")
    assert augment("run", tmp_path / "traces", "-o", tmp_path / "out").code == 0
    path = tmp_path / "out" / "job.metrics.json"
    content = json.loads(path.read_bytes())
    clocks = content["analyses"]["clock_alignment"]["rows"]
    for row in clocks:
        row.update(clocks[0] | {"rank": row["rank"], "trace": row["trace"]})
    clocks[3].update(status="refused", reason="the clock jumps")
    path.write_text(json.dumps(content))
    lines = augment("show", path).lines
    titles = [line.partition(" ·")[0] for line in lines if re.match("[A-Z][a-z ]+( ·.*)?$", line)]
    assert titles[:2] == ["Diagnostics", "Clock alignment"]
    assert "Aggregates" not in titles
    at = lines.index("Clock alignment")
    assert [line.split("  ")[0] for line in lines[at + 3 : at + 6]] == ["3", "ranks 0 to 2", ""]
    assert lines[-1] == "1 more table: --all shows them"
    assert "ranks 0 to 2" not in augment("show", path, "clock_alignment").out


def test_the_beginning_of_a_name_will_do(tmp_path: Path, augment: Augment) -> None:
    trace = write_trace(tmp_path / "rank3.json")
    short = augment("show", trace, "temporal")
    assert short.out == augment("show", trace, "temporal_breakdown").out
    assert "temporal: taken as temporal_breakdown" in short.err
    unclear = augment("show", trace, "memory_")
    assert unclear.code == 2
    assert "did you mean memory_bandwidth?" in unclear.err


def test_csv_and_markdown(tmp_path: Path, augment: Augment) -> None:
    trace = write_trace(tmp_path / "rank3.json")
    head, row = augment("show", trace, "temporal_breakdown", "--csv").lines
    assert dict(zip(head.split(","), row.split(","), strict=True))["busy_ns"] == "20000"
    assert augment("show", trace, "--csv").code == 2
    lines = augment("show", trace, "temporal_breakdown", "--markdown").lines
    assert lines[0] == "# rank3.json: 6 events, 100.000 µs, rank 3, 1 step"
    assert "| rank | device | span_ns" in "\n".join(lines)


def test_a_rank_is_told_by_its_job(tmp_path: Path, augment: Augment) -> None:
    simulate(JobOptions(ranks=3, steps=4, layers=4, straggler=1, straggler_factor=1.6), tmp_path / "traces")
    assert augment("run", tmp_path / "traces", "-o", tmp_path / "out", "--only", "diagnosis").code == 0
    for command in ("show", "diagnose", "report"):
        page = ("--markdown",) if command == "report" else ()
        lines = [line.strip() for line in augment(command, tmp_path / "out" / "rank0.metrics.json", *page).lines]
        text = "\n".join(lines)
        assert "Its job: Rank 1 delays the other two in data parallelism by " in text
        waits = re.search(
            r"does nothing and only waits for other ranks for .* ms per step \((\d+) %\), 100 % of it for rank 1", text
        )
        assert waits
        assert 10 < int(waits[1]) < 50
        assert command == "show" or "Fix rank 1 rather than communication on this rank: " in text
    late = augment("show", tmp_path / "out" / "rank1.metrics.json").out
    assert "Other ranks wait for this one: its own work takes " in late


# The rest of the MFU, in points, with the operators that cause it.


def step(mfu: float | None, hfu: float | None = None, lacking: str | None = None, **parts: int) -> dict[str, Any]:
    """A row of the sidecar."""
    named = {f"{name}_ns": parts.get(name, 0) for name in (*COMPUTING, *BESIDE)}
    return {"rank": 0, "device": 0, "step": 1, "wall_ns": sum(named.values()), "mfu_ratio": mfu,
            "hfu_ratio": hfu or mfu, "peak": "bf16 989.4 TFLOP/s", "lacking": lacking, **named}  # fmt: skip


def operator(name: str, bound: str, time: int, lost: int) -> dict[str, Any]:
    """A row of the roofline."""
    return {"rank": 0, "device": 0, "operator": name, "bound": bound, "time_ns": time, "lost_ns": lost}


def test_parts_are_in_points_and_largest_first() -> None:
    steps = [step(0.3, 0.35, ideal_compute=35, compute_above=20, memory_ideal=5, memory_above=5, host_wait=35)]
    steps += [step(0.5, 0.55, ideal_compute=55, compute_above=40, memory_ideal=5)]
    rows = [operator("aten::mm", "compute", 90, 30), operator("aten::bmm", "compute", 50, 40),
            operator("aten::add", "memory", 15, 5), operator("aten::mm", "compute", 30, 20)]  # fmt: skip
    assert list(waterfall({"analyses": {"step_efficiency": {"rows": steps}, "roofline": {"rows": rows}}})) == [
        "  MFU 40.0 % (2 steps of 100 ns; bf16 989.4 TFLOP/s); the rest, in points:",
        "     30.0  below peak: aten::mm, aten::bmm",
        "     17.5  host",
        "      7.5  memory-bound: aten::add",
        "      5.0  recomputed operations at the peak's rate",
    ]


def test_parts_and_mfu_make_up_the_whole() -> None:
    steps = [
        step(
            0.25, 0.25, ideal_compute=250, unmodelled=100, exposed_memory=50, exposed_communication=400, other_wait=200
        )
    ]
    lines = list(waterfall({"analyses": {"step_efficiency": {"rows": [{**steps[0], "step": None}]}}}))
    assert lines[0].startswith("  MFU 25.0 % (1.0 µs from the first work to the last; bf16 "), "there are no steps"
    assert 25 + sum(float(line.split()[0]) for line in lines[1:]) == 100


def test_without_an_mfu_the_reason_is_told() -> None:
    lines = list(
        waterfall(
            {"analyses": {"step_efficiency": {"rows": [step(None, lacking="shapes were not recorded", host_wait=1)]}}}
        )
    )
    assert lines == ["  no MFU: shapes were not recorded"]


def test_without_the_analysis_nothing_is_told() -> None:
    assert list(waterfall({"analyses": {}})) == []
    assert list(waterfall({"analyses": {"step_efficiency": {"status": "skipped"}}})) == []


# --peak: what a device can do, told on the command line.


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    options = JobOptions(ranks=1, steps=2, layers=2, collectives="none")
    return simulate(options, tmp_path_factory.mktemp("job"))[0][0]


def mfu(augment: Augment, trace: Path, *options: str) -> float:
    shown = augment("show", trace, "--only", "step_efficiency", "--json", *options)
    ratio: float = json.loads(shown.out)["step_efficiency"]["rows"][0]["mfu_ratio"]
    return ratio


def test_a_peak_of_half_is_twice_the_mfu(trace: Path, augment: Augment) -> None:
    whole = mfu(augment, trace)
    assert mfu(augment, trace, "--peak", "bf16=494.7") == pytest.approx(2 * whole)
    assert mfu(augment, trace, "--peak", "H100:bf16=494.7") == pytest.approx(2 * whole)
    assert mfu(augment, trace, "--peak", "A100:bf16=494.7") == whole


def test_a_wrong_peak_is_refused_before_anything_is_read(augment: Augment) -> None:
    result = augment("run", "nowhere.json", "--peak", "bf16=989e12")
    assert result.code == 2
    assert "10^12 operations a second" in result.err


def test_both_sides_of_a_comparison_have_it(trace: Path, tmp_path: Path, augment: Augment) -> None:
    result = augment("diff", trace, trace, "-o", tmp_path, "--peak", "bf16=400", "--json")
    rows = {row["figure"]: row for row in json.loads(result.out)["analyses"]["diff_efficiency"]["rows"]}
    assert rows["mfu_ratio"]["control"] == rows["mfu_ratio"]["test"] == pytest.approx(
        989.4 / 400 * mfu(augment, trace), rel=0.2
    )  # fmt: skip
    augment("run", trace, "-o", tmp_path)
    assert "--peak" in augment("show", tmp_path / "rank0.metrics.json", "--peak", "bf16=400").err


def test_an_excel_workbook(tmp_path: Path, augment: Augment) -> None:
    """Groups that add up, rows folded below them, numbers as numbers, and no text that Excel would run."""
    pytest.importorskip("xlsxwriter", reason="no XlsxWriter: pip install XlsxWriter")
    hostile = '=HYPERLINK("http://evil.example")'
    work = [launch(), kernel(hostile), launch(ts=40, correlation=2), kernel("gemm", ts=50, dur=30, correlation=2)]
    trace = write_trace(tmp_path / "a.json", *work)
    ended = augment("show", trace, "--xlsx", tmp_path / "a.xlsx")
    assert (ended.code, ended.lines) == (0, [str(tmp_path / "a.xlsx")])
    with zipfile.ZipFile(tmp_path / "a.xlsx") as book:
        sheets = re.findall(r'<sheet name="([^"]+)"', book.read("xl/workbook.xml").decode())
        text = book.read("xl/sharedStrings.xml").decode()
        by_kind = book.read(f"xl/worksheets/sheet{sheets.index('By kind and kernel') + 1}.xml").decode()
    assert sheets[0] == "Verdict"
    assert {"kernel_breakdown", "temporal_breakdown"} <= {*sheets}
    assert html.escape(hostile, quote=False) in text
    assert "<f>" not in by_kind
    assert by_kind.count('outlineLevel="1"') >= 2
    assert "<v>0.03</v>" in by_kind  # ms of the kernel, and of its group
    before = (tmp_path / "a.xlsx").read_bytes()
    assert augment("show", trace, "--xlsx", tmp_path / "a.xlsx").code == 0
    assert (tmp_path / "a.xlsx").read_bytes() == before


def test_names_of_a_stranger_do_not_steer_the_terminal(tmp_path: Path, augment: Augment) -> None:
    """Escapes, also of eight bits, texts that run backward, and a file's name of two lines."""
    hostile = "\x1b]0;title\x07gemm\x9b31m\u202e\r"
    trace = write_trace(tmp_path / "a\nb.json", launch(), kernel(hostile), op(hostile, 0, 9))
    for command in (["diagnose"], ["show"], ["show", "--markdown"], ["show", "--json"], ["doctor"], []):
        ended = augment(*command, trace)
        assert not {"\x1b", "\x07", "\x9b", "\u202e", "\r"} & {*ended.out, *ended.err}, command
    (row,) = json.loads(augment("show", trace, "kernel_breakdown", "--json").out)["kernel_breakdown"]["rows"]
    assert row["name"] == hostile
    assert hostile in augment("show", trace, "kernel_breakdown", "--csv").out
    assert augment("show", trace).lines[0].startswith("a\\x0ab.json: ")
    assert augment("diagnose", trace).lines[0].endswith("a\\x0ab.json:")


def test_ranks_are_told_in_the_steps_of_their_job(tmp_path: Path) -> None:
    for judged, means in (([2], ["20.000 ms", "20.000 ms"]), ([], ["20.000 ms", "15.000 ms"])):
        results = []
        for rank in (0, 1):
            parts = ("compute_ns", "exposed_communication_ns", "exposed_memory_ns", "busy_ns", "idle_ns")
            place = {"rank": rank, "device": 0, **dict.fromkeys(parts, 0)}
            steps = ({"step": step, "wall_ns": 10**7 * step, "is_steady": rank + step > 1} for step in (1, 2))
            rows = [{**place, **step} for step in steps]
            path = tmp_path / f"rank{rank}.metrics.json"
            content = {"source": {"ranks": [rank]}, "analyses": {"steps": {"rows": rows}}, "diagnostics": []}
            path.write_text(json.dumps(content | {"told_by_job": {"steps": judged if rank else []}}))
            results.append(Result(str(tmp_path / f"rank{rank}.json"), "augmented", (File(str(path), 0),)))
        _, heads, *lines, _ = summary(results)
        assert [mean in line for mean, line in zip(means, lines, strict=True)] == [True, True]
        assert ("steps" in heads) == (not judged)
