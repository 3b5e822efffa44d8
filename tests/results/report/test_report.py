"""``augment report``: one file, the sidecar's numbers, and what each kind of report shows."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import itertools
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from augment.cli.registry import group
from augment.errors import InputError, UnknownFormat, UsageError
from augment.history import Run, RunFigure, Store
from augment.results.report import charts
from augment.results.report import page as html
from augment.results.report.health import lines_of, report_on
from augment.results.report.of_diff import waterfall
from augment.results.report.of_job import ON_PATH, heat, stragglers
from augment.results.report.of_job import document as of_job
from augment.results.report.of_job import path as path_of_job
from augment.results.report.of_trace import (
    EFFICIENCY_PARTS,
    STEP_PARTS,
    critical_path,
    efficiency,
    facts,
    headline,
    kernels,
    memory_snapshot,
    modules,
    over_time,
    step_parts,
    steps,
)
from augment.results.report.of_trace import document as of_trace
from augment.results.report.page import document_of, markdown, trend_of
from augment.results.report.sections import HATCHED, Document, ReportTable, Section, doubts, short_heading
from augment.results.report.trend import document_of_history as of_history
from augment.results.sidecars import in_job, readable
from simulator import JobOptions, simulate

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]
JOB = JobOptions(ranks=2, steps=4, layers=2, stacks=True, host_stall_us=4000.0, host_stall_step=2)


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What ``augment run`` writes for a small job."""
    folder = tmp_path_factory.mktemp("job")
    simulate(JOB, folder / "traces")
    run("run", folder / "traces", "-o", folder / "out", "--quiet")
    return folder / "out"


@pytest.fixture(autouse=True)
def drawn_without_vega(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages without the script of charts, which not every checkout has made; the browser's tests have it."""
    monkeypatch.setattr(html, "_charts_script", str)


def run(*arguments: object) -> str:
    command = [sys.executable, "-m", "augment", *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout


def no_trace(path: str) -> Any:
    raise AssertionError(path)


def metrics(outputs: Path) -> Path:
    return sorted(path for path in outputs.glob("*.metrics.json") if path.name != "job.metrics.json")[0]


def data_of(page: str) -> dict[str, Any]:
    text = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert text
    return dict(json.loads(text[1]))


def test_a_trace(outputs: Path) -> None:
    sidecar = json.loads(metrics(outputs).read_text())
    page = html.page(of_trace(sidecar))
    sentences = in_job(sidecar)["verdict"]["text"]  # the rank is of a job, which says what it would gain
    assert sentences[-1].startswith("Its job: The devices of both ranks wait for their hosts")
    for sentence in sentences:
        said = re.sub("`([^`]+)`", r"<code>\1</code>", sentence.replace("'", "&#x27;"))
        assert said in page.replace("\N{NO-BREAK SPACE}", " ")
    assert {"step_efficiency", "steps", "critical_path", "kernels_by_family"} <= data_of(page)["charts"].keys()
    table = data_of(page)["tables"]["kernel_breakdown"]
    sums = [row[table["columns"].index("sum_ns")] for row in table["rows"]]
    expected = [row["sum_ns"] for row in sidecar["analyses"]["kernel_breakdown"]["rows"]]
    assert sums == sorted(expected, reverse=True)[: len(sums)]


def test_bars_add_up_to_the_step(outputs: Path) -> None:
    sidecar = json.loads(metrics(outputs).read_text())
    bars = data_of(html.page(of_trace(sidecar)))["charts"]["step_efficiency"]["data"]["values"]
    rows = sidecar["analyses"]["step_efficiency"]["rows"]
    assert bars[-1]["end"] == pytest.approx(sum(row["wall_ns"] for row in rows) / len(rows) / 1e6)
    assert all(before["end"] == after["start"] for before, after in itertools.pairwise(bars))


@pytest.mark.parametrize(("partial", "why"), [(None, "without GPU work"), ("the text ends", "not known to be whole")])
def test_steps_that_are_not_judged_are_named_with_the_reason(outputs: Path, partial: str | None, why: str) -> None:
    sidecar = json.loads(metrics(outputs).read_text())
    sidecar["source"] |= {"partial": partial, "steps": [*sidecar["source"]["steps"], 98, 99]}
    assert dict(facts(sidecar))["steps"].endswith(f"; {why}: steps 98, 99")


def test_parts_of_a_step_have_colours_of_their_own() -> None:
    """Of equal meaning one colour in the bar at the top and in the chart."""
    assert len({colour for _, colour in EFFICIENCY_PARTS.values()}) == len(EFFICIENCY_PARTS)
    alike = STEP_PARTS.keys() & EFFICIENCY_PARTS.keys()
    assert {"host_wait_ns", "kernel_wait_ns", "other_wait_ns"} < alike
    assert all(STEP_PARTS[name][1] == EFFICIENCY_PARTS[name][1] for name in alike)


def test_the_bar_at_the_top_is_of_all_devices() -> None:
    """As the verdict's sentence is; a recording without steps has no chart of them."""
    rows = [
        {
            "rank": 0,
            "device": device,
            "step": None,
            "wall_ns": 100,
            "busy_ns": ns,
            "compute_ns": ns,
            "host_wait_ns": 100 - ns,
        }
        for device, ns in ((0, 20), (1, 60))
    ]
    sidecar = {"analyses": {"steps": {"status": "done", "rows": rows}}, "source": {}}
    expected = {STEP_PARTS["compute_ns"][0]: 0.4, STEP_PARTS["host_wait_ns"][0]: 0.6}
    assert {label: share for label, share, _ in step_parts(sidecar)} == expected
    late = [row | {"idle_ns": row["host_wait_ns"], "start_ns": 900, "backlog_ns": 0} for row in rows]
    sidecar["analyses"]["steps"]["rows"] = late
    parts = list(step_parts(sidecar))
    assert parts[0] == ("900 ns at the start, which are not counted", 9.0, HATCHED)
    text = html.page(Document("page", "trace", [], [], [], parts=parts))
    assert f"</i>{parts[0][0]}</li>" in text, "without a share"
    assert {label: share for label, share, _ in step_parts(sidecar | {"diagnostics": [{"code": "cut"}]})} == expected
    numbered = [row | {"step": at, "start_ns": 90 + at, "backlog_ns": 90} for at, row in enumerate(late)]
    sidecar["analyses"]["steps"]["rows"] = numbered  # each begins behind earlier work
    assert {label: share for label, share, _ in step_parts(sidecar)} == expected
    assert not steps(sidecar)


@pytest.mark.parametrize("least", [1, 5, 20])
def test_the_bar_at_the_top_fills_its_frame(least: int) -> None:
    """Parts of some thousandths stand in it, too; CSS fills a frame from a sum of 1 on."""
    row = {"rank": 0, "device": 0, "step": None, "wall_ns": 5_000, "compute_ns": 5_000 - 2 * least - 2}
    row |= {"exposed_memory_ns": least * 2, "kernel_wait_ns": 2}
    parts = list(step_parts({"analyses": {"steps": {"status": "done", "rows": [row]}}, "source": {}}))
    assert len(parts) == 1 + (least > 1)
    text = html.page(Document("page", "trace", [], [], [], parts=parts))
    assert sum(map(float, re.findall(r"flex:([0-9.]+)", text))) >= 1


@pytest.mark.parametrize(("confidence", "expected"), [("high", "warning"), ("low", "possible"), ("", "warning")])
def test_the_headline_of_a_job_is_as_sure_as_what_is_gravest(confidence: str, expected: str) -> None:
    """Which need not be the rank that is named first."""
    verdict = {
        "label": "On all ranks: x",
        "severity": "warning",
        "confidence": confidence,
        "rows": [{"rank": 2, "cause": "host", "confidence": "low"}],
    }
    job = {
        "source": {"name": "job"},
        "verdict": verdict,
        "analyses": {},
        "diagnostics": [],
        "tool": {"name": "", "version": ""},
    }
    assert of_job(job).headline == ("On all ranks: x", expected)


def test_a_note_of_something_single_has_no_number() -> None:
    notes = [{"message": "there is no roof", "count": 1}, {"message": "slices end early", "count": 3}]
    assert doubts(notes) == ["there is no roof", "slices end early: 3"]


def test_a_recording_without_steps_has_none_in_its_headings(outputs: Path) -> None:
    sidecar = json.loads(metrics(outputs).read_text())
    assert efficiency(sidecar).title == "Where a step goes"
    for row in sidecar["analyses"]["step_efficiency"]["rows"]:
        row["step"] = None
    section = efficiency(sidecar)
    assert (section.title, section.tables[0].title) == ("Where the recording goes", "Figures")
    assert "step" not in section.lead


def test_the_path_of_a_step_is_as_long_as_the_step(outputs: Path) -> None:
    analyses = json.loads(metrics(outputs).read_text())["analyses"]
    lengths = {row["step"]: row["wall_ns"] for row in analyses["steps"]["rows"]}
    assert {row["step"]: row["path_ns"] for row in analyses["critical_path"]["rows"]} == lengths


def test_findings_have_headings_in_words_and_what_is_uncertain_is_possible() -> None:
    row = {"rule": "data_loading", "title": "The host fetches", "severity": "high", "saved_ratio": 0.23,
           "confidence": "low", "in_verdict": False, "at_most": True, "advice": "Prefetch"}  # fmt: skip
    assert short_heading(row) == "Waiting for batches (a fix may save up to 23 %)"
    page = html.page(Document("x", "trace", [], [], [], findings=[row]))
    assert '<span class="badge">possible</span> Waiting for batches' in page
    assert '<article class="finding info">' in page
    assert "<p>The host fetches.</p>" in page
    traced: dict[str, Any] = {"analyses": {"diagnosis": {"rows": [row]}}}
    assert headline(traced) == ("", ""), "the verdict does not say it"
    sure = row | {"confidence": "high", "in_verdict": True}
    page = html.page(Document("x", "trace", [], [], [], findings=[sure]))
    assert '<span class="badge">high</span> Waiting for batches (a fix saves up to 23\N{NO-BREAK SPACE}%)' in page
    assert "<p>The host fetches.</p>" not in page, "the verdict says it, above"
    traced["analyses"]["diagnosis"]["rows"] = [sure]
    assert headline(traced) == ("Waiting for batches (a fix saves up to 23 %)", "high")
    page = html.page(Document("x", "trace", [], [], [], headline=headline(traced)))
    assert '<p class="headline high">Waiting for batches (a fix saves up to 23\N{NO-BREAK SPACE}%)</p>' in page
    few = row | {"title": "Only 1 piece of GPU work", "in_verdict": False, "figures": {"problem": "excerpt"}}
    traced["analyses"]["diagnosis"]["rows"] = [sure, few]
    assert headline(traced) == ("Only 1 piece of GPU work", "info"), "it puts all others in doubt"
    waits = {"wall_ns": 100, "host_collective_ns": 83, "step": 1, "device": None, "rank": None}
    alone = {"diagnosis": {"rows": [sure | {"saved_ratio": 0.16}]}, "steps": {"rows": [waits]}}
    assert headline({"analyses": alone}) == ("Waiting in collectives of the host (83 %)", "warning")
    busy = waits | {"step": None, "start_ns": 9, "idle_ns": 0, "compute_ns": 60, "host_collective_ns": 0}
    alone = {"diagnosis": {"rows": [row]}, "steps": {"rows": [busy]}}
    assert headline({"analyses": alone}) == ("No serious problem", "info")
    alone["steps"]["rows"][0]["start_ns"] = 463_000_000
    assert headline({"analyses": alone}) == (
        "463 ms at the start are not counted; no serious problem in the other 100 ns",
        "info",
    )
    busy |= {"start_ns": 9, "compute_ns": 40}
    assert headline({"analyses": alone}) == ("", ""), "little of it is computing"
    busy["compute_ns"] = 0
    calls = [{"operator": name, "self_cpu_ns": ns} for name, ns in (("aten::add", 1), ("aten::mm", 6), ("aten::mm", 3))]
    said = "Only the host was recorded: 90 % of its operators' time is aten::mm", "info"
    alone |= {"operator_breakdown": {"rows": calls}}
    assert headline({"analyses": alone}) == said
    alone = {"diagnosis": {"rows": [row]}, "operator_breakdown": {"rows": calls}}
    assert headline({"analyses": alone}) == said
    page = html.page(Document("x", "trace", [], [], [], findings=[sure | {"saved_ratio": None}]))
    assert "<p>The host fetches.</p>" in page, "without a figure the heading says too little"
    placed = sure | {"count": 28, "start_ns": 109_336_000, "dur_ns": 3_624_000, "track": "GPU 3"}
    page = html.page(Document("x", "trace", [], [], [], findings=[placed]))
    assert "the worst of 28 places: 3.624 ms long, on GPU 3, 109.336 ms after the first event" in page
    assert "longest of" not in html.page(Document("x", "trace", [], [], [], findings=[placed | {"count": 1}]))


def test_curves_over_time_hold_what_the_sidecar_does(outputs: Path) -> None:
    sidecar = json.loads((outputs / "rank0.metrics.json").read_text())
    section = over_time(sidecar)
    assert [chart.name for chart in section.charts] == ["busy_over_time", "queue_over_time"]
    rows = sidecar["analyses"]["activity_over_time"]["rows"]
    queued = [point["y"] for point in section.charts[1].spec["data"]["values"]]
    assert queued == [row["queued_count"] for row in rows]
    assert not over_time({"analyses": {}})


def test_what_tells_nothing_is_not_shown(outputs: Path) -> None:
    """Savings that are all alike, and steps that only are unlikely lengths, not much longer."""
    sidecar = json.loads(metrics(outputs).read_text())
    assert critical_path(sidecar).tables
    for row in sidecar["analyses"]["critical_path_operators"]["rows"]:
        row["saved_ns"] = 0
    section = critical_path(sidecar)
    assert not section.tables
    rows = [{"step": 1, "bound_by": "runtime_call", "time_ns": 100, "device_busy_ns": 87}]
    busy = critical_path({"analyses": {"critical_path": {"rows": rows}}})
    assert "this chain, not of the GPU's time. 100 % of the path is runtime calls. The GPU works for 87 %" in busy.lead
    outside = critical_path({"analyses": {"critical_path": {"rows": [{**rows[0], "bound_by": "outside_operators"}]}}})
    assert "of that time: the host may be waiting for it." in outside.lead
    assert section.lead.endswith("what runs beside it takes as long.")
    for row in sidecar["analyses"]["steps"]["rows"]:
        row["is_outlier"] = True
    assert "outl" not in steps(sidecar).lead
    assert steps({"analyses": {"steps": {"rows": [{"step": n, "device": None, "wall_ns": n} for n in (7, 9)]}}}).charts


@pytest.mark.parametrize(("steps", "slowest", "drawn"), [(1, 9, []), (2, 100, []), (2, 9, ["heat_idle_ns"])])
def test_maps_of_one_colour_or_step_are_left_out(steps: int, slowest: int, drawn: list[str]) -> None:
    cell = {"trace": 0, "wait_ns": 0, "compute_ns": 100}
    rows = [{**cell, "rank": r, "step": s, "idle_ns": slowest if r else 100} for r in (0, 1) for s in range(steps)]
    section = heat({"analyses": {"step_heat": {"rows": rows}}})
    assert [chart.name for chart in section.charts] == drawn
    rows = [{**row, "wall_ns": 100 * 100} for row in rows]
    assert not any("idle" in chart.name for chart in heat({"analyses": {"step_heat": {"rows": rows}}}).charts)


def test_a_slow_first_step_leaves_colours_to_the_others() -> None:
    cell = {"trace": 0, "wait_ns": 0, "compute_ns": 100}
    rows = [{**cell, "rank": r, "step": s, "idle_ns": 100 * r if s else 900} for s in (0, 1) for r in (0, 1)]
    (chart,) = heat({"analyses": {"step_heat": {"rows": rows}}}).charts
    assert chart.spec["encoding"]["color"]["scale"]["domainMax"] == 100 / 1e6
    assert chart.text.endswith("; step 0 is beyond the scale")


def test_the_longest_wait_is_in_a_step_by_which_the_job_is_judged() -> None:
    """A first step, which warms up, is on the maps only."""
    cell = {"trace": 0, "rank": 1, "compute_ns": 100, "idle_ns": 0, "wall_ns": 100}
    rows = [{**cell, "step": step, "wait_ns": 90 - step} for step in (4, 5, 6)]
    judged = {"rows": [{"rank": None, "figures": {"step_count": 2}}]}
    for verdict, step in ((judged, 5), ({"rows": []}, 4)):
        lead = heat({"verdict": verdict, "analyses": {"step_heat": {"rows": rows}}}).lead
        assert lead.startswith(f"The longest wait in a step is that of rank 1 in step {step}: {90 - step} ns")


def test_of_hosts_alone_no_idle_time_is_drawn() -> None:
    """Without devices or collectives nothing is known of it."""
    cell = {"trace": 0, "wait_ns": 0, "compute_ns": 0}
    rows = [{**cell, "rank": r, "step": s, "idle_ns": 9 + 90 * r} for r in (0, 1) for s in (0, 1)]
    section = heat({"analyses": {"step_heat": {"rows": rows}, "load_imbalance": {"rows": [{"mean_compute_ns": 0}]}}})
    assert section.lead.startswith("No work of a device was recorded")
    assert ([*section.charts], [each.name for each in section.tables]) == ([], ["step_heat"])


def test_communication_has_one_colour_in_all_charts(outputs: Path) -> None:
    (areas, *_) = kernels(json.loads(metrics(outputs).read_text())).charts
    leaves = [leaf for leaf in areas.spec["data"][0]["values"] if leaf.get("label")]
    assert {leaf["colour"] for leaf in leaves if "nccl" in leaf["label"]} == {charts.VERMILION}
    assert charts.VERMILION not in {leaf["colour"] for leaf in leaves if "nccl" not in leaf["label"]}


def test_nothing_is_fetched(outputs: Path) -> None:
    page = html.page(document_of(str(outputs / "job.metrics.json"), no_trace))
    assert not re.search(r'(?:src|href)="(?!#)', page)
    assert "url(" not in page
    assert "@import" not in page
    assert "default-src 'none'" in page


def test_a_folder_of_a_job_and_a_job_of_raw_traces(outputs: Path) -> None:
    document = document_of(str(outputs / "job.metrics.json"), no_trace)
    assert {"Who comes late", "Ranks and steps", "Communication"} & {section.title for section in document.sections}
    ways = [{"step": step, "rank": 1, "path_ns": 5, **dict.fromkeys(ON_PATH, 0)} for step in (10, None)]
    (table,) = path_of_job({"analyses": {"cross_rank_critical_path": {"rows": ways}}}).tables
    assert [each["step"] for each in table.rows] == [10]  # one step is the whole
    judged = {"rows": [{"figures": {"step_count": 2}}]}
    ways = [{**ways[0], "step": step, "rank": step, "path_ns": 9 - step} for step in (1, 2, 3)] + ways
    lead = path_of_job({"verdict": judged, "analyses": {"cross_rank_critical_path": {"rows": ways}}}).lead
    assert lead == "55 % of the path that decided when steps 3 to 10 were done is on rank 3."
    row = {"rank": 1, "figures": {"causes_ns": {"host": 33_000_000, "compute": -3_000_000}, "step_count": 3}}
    late = {"rows": [{**row, "charged_ns": 30_000_000, "gain_ns": 24_000_000}, {"rank": None, "figures": {}}]}
    section = stragglers({"verdict": late, "analyses": {}})
    assert section.lead == "Late per step: rank 1 by 10.0 ms; at the median's speed that would save 8.00 ms."
    assert [bar["value"] for bar in section.charts[0].spec["data"]["values"]] == [11.0, -1.0, 8.0]
    tables = {"stragglers": {"rows": [{"rank": 7, "after_the_others_ns": 1_300_000}]}}
    parts = {"exposed_transfer_ns": 1_000}  # too little to be drawn
    steps = [
        {"rank": rank, "step": step, "compute_ns": 1_000_000, "idle_ns": 1_000_000 * rank * step, **parts}
        for rank, step in itertools.product((1, 2), (1, 2, 3))
    ]
    alike = {"rows": [{"cause": "shared", "rank": None, "figures": {"step_count": 2}}]}
    section = stragglers({"verdict": alike, "analyses": {**tables, "job_step_efficiency": {"rows": steps}}})
    lead = "No rank alone holds the job up: all wait for their own hosts"
    assert section.lead == f"{lead}, while their devices idle."
    assert [
        chart.name
        for chart in stragglers({"verdict": late, "analyses": {"job_step_efficiency": {"rows": steps}}}).charts
    ] == ["steps_of_ranks", "causes_of_delay"]
    drawn = [(bar["label"], bar["part"], bar["value"]) for bar in section.charts[0].spec["data"]["values"]]
    whose = [(rank, part) for rank in ("rank 1", "rank 2") for part in ("computing", "idle")]
    assert drawn == [(*of, ms) for of, ms in zip(whose, (1, 2.5, 1, 5), strict=True)]
    assert [each.folded for each in section.tables] == [True]
    assert stragglers({"verdict": alike, "analyses": tables}).lead == f"{lead}."


def test_commands_name_a_trace(outputs: Path, tmp_path: Path) -> None:
    """The trace that was written with the metrics; metrics alone have none to open."""
    path = tmp_path / "rank0.metrics.json"
    path.write_bytes(metrics(outputs).read_bytes())
    report = report_on(str(path), lambda _: None)
    assert "augment open" not in "".join(lines_of([report], markdown=False, brief=False))
    (trace := tmp_path / "rank0.augmented.pftrace").touch()
    places = re.findall(r"augment open (\S+) --at", "".join(lines_of([report], markdown=False, brief=False)))
    assert set(places) == {str(trace)}
    made = document_of(str(path), no_trace, str(path))
    assert f"augment open {trace} <" in html.page(made)
    sidecar = {**json.loads(path.read_bytes()), "told_by_job": None}
    sidecar["verdict"]["text"] = ["It idles (augment open TRACE --at 1-2)."]
    assert of_trace(sidecar, str(trace)).verdict == [f"It idles (augment open {trace} --at 1-2)."]


def test_a_comparison(outputs: Path, tmp_path: Path) -> None:
    first, second = sorted((outputs.parent / "traces").glob("*.json.gz"))[:2]
    run("diff", first, second, "-o", tmp_path, "--quiet")
    (sidecar,) = tmp_path.glob("*.diff.metrics.json")
    document = document_of(str(sidecar), no_trace)
    assert (document.subject, document.title) == ("comparison", "rank1 against rank0")
    assert re.fullmatch(r"compared: steps \d.*", ": ".join(document.facts[0]))
    assert "operators" in {table.name for section in document.sections for table in section.tables}
    changes = next(chart for section in document.sections for chart in section.charts if chart.name == "waterfall")
    bars = changes.spec["data"]["values"]
    assert sum(bar["end"] - bar["start"] for bar in bars[:-1]) == pytest.approx(bars[-1]["end"])
    wall = {"figure": "wall_ns", "control": 100.0, "test": 75.0, "verdict": "improvement"}
    alike = {"kind": "host_wait", "operator": None, "test_names": []}  # one bar for the kind, as in the verdict
    parts = [
        {**alike, "control_names": [name], "control_ns": 70, "test_ns": 70 + ns, "delta_per_step_ns": ns}
        for name, ns in (("enumerate(DataLoader)", -35.0), ("aten::copy_", 10.0))
    ]
    analyses = {"diff_figures": {"rows": [wall]}, "diff_waterfall": {"rows": parts}}
    bars = waterfall({"analyses": analyses}).charts[0].spec["data"]["values"]
    assert [bar["label"] for bar in bars] == ["waiting for the host (mostly enumerate(DataLoader))", "the whole step"]
    analyses["diff_waterfall"] = {"rows": [{**part, "delta_per_step_ns": 0.0} for part in parts]}
    assert waterfall({"analyses": analyses}) == Section("What changed")


def test_a_trend_tells_where_a_figure_changed(outputs: Path, tmp_path: Path) -> None:
    sidecar = json.loads(metrics(outputs).read_text())
    for number in range(12):
        for row in sidecar["analyses"]["steps"]["rows"]:
            row["wall_ns"] = 40_000_000 + 10_000 * (number * 7 % 5) + (4_000_000 if number >= 6 else 0)
        folder = tmp_path / f"run{number:02}"
        folder.mkdir()
        (folder / "rank0.metrics.json").write_text(json.dumps(sidecar))
    assert "since run06 it is 10 % higher" in trend_of(str(tmp_path)).verdict[0]
    with pytest.raises(InputError, match="fewer than two runs"):
        trend_of(str(tmp_path / "run00"))


def history_of(
    count: int, changed_at: int, branch: str = "main", device: str = "H100", faster_ns: float = 0
) -> list[Run]:
    """Runs of a day each; from one on the host is late by 4 ms in each step."""
    runs = []
    for place in range(count):
        host = 3e6 + 1e4 * (place % 3) + (4e6 if place >= changed_at else 0.0)
        work = 70e6 - faster_ns + 1e5 * (place * 7 % 5)
        values = {"wall_ns": 10e6 + work + host, "host_wait_ns": host, "compute_ns": work, "other_wait_ns": 5.0}
        figures = {name: RunFigure(value, value, 0.0, 5) for name, value in values.items()}
        labels = {"branch": branch, "device": device, "commit": f"c{place}"}
        runs.append(Run(f"c{place}", 1_790_000_000 * 10**9 + place * 86_400 * 10**9, labels, 8, figures, f"d{place}"))
    return runs


def test_a_history_tells_where_its_figures_changed() -> None:
    document = of_history(history_of(20, changed_at=12), "runs")
    changed = "since c12 (2026-10-03) it is 4.9 % higher. Changed with it: waiting for the host (+4.0 ms)."
    assert (document.title, document.verdict) == ("runs", [f"A step took 83 ms in c0; {changed}"])
    drawn = {chart.name: chart for section in document.sections for chart in section.charts}
    assert list(drawn) == ["trend_wall_ns", "trend_compute_ns", "trend_host_wait_ns"]  # the rest takes no time
    levels, points, rule, words = drawn["trend_wall_ns"].spec["layer"]
    assert len(levels["data"]["values"]) == 4
    assert [row["text"] for row in words["data"]["values"]] == ["c12 +4.9 %"]
    assert rule["data"]["values"][0]["x"] == "c12"
    assert "color" in points["encoding"]
    (changes,) = (table for section in document.sections for table in section.tables if table.name == "changes")
    assert {(row["figure"], row["run"]) for row in changes.rows} == {("wall_ns", "c12"), ("host_wait_ns", "c12")}


def test_runs_that_cannot_be_compared_are_series_of_their_own() -> None:
    runs = [*history_of(12, 99), *history_of(8, 99, branch="fp8"), *history_of(2, 99, device="A100")]
    document = of_history(sorted(runs, key=lambda run: run.time_ns), "runs")
    names = [sentence.partition(":")[0] for sentence in document.verdict]
    assert names == ["main, H100", "fp8, H100", "main, A100"]
    x = document.sections[0].charts[0].spec["layer"][0]["encoding"]["x"]["scale"]["domain"]
    assert x == [f"c{place}" for place in range(12)]
    assert "no change of its level was found in 12 runs" in document.verdict[0]
    assert "; most in" not in document.verdict[2]  # it is the first or the last


def test_words_of_neighbours_are_in_rows_of_their_own() -> None:
    points = [{"x": str(place), "y": place, "kind": "runs", "exact": ""} for place in range(20)]
    changes = [{"x": str(place), "kind": "runs", "text": "changed"} for place in (3, 4, 15)]
    order = [str(place) for place in range(20)]
    chart = charts.trend("t", "", charts.Curves(points, [], changes), order, y="", colours={"runs": charts.BLUE})
    _, _, _, left, right = chart.spec["layer"]
    assert [row["row"] for row in left["data"]["values"]] == [1, 2]
    assert [row["row"] for row in right["data"]["values"]] == [1]


@pytest.mark.skipif(find_spec("pyarrow") is None, reason="pyarrow is not installed")
def test_a_store_is_reported_on(tmp_path: Path) -> None:
    for each in [*history_of(7, 99), *history_of(7, 99, branch="fp8")]:
        Store(tmp_path / "runs").add(replace(each, digest=f"{each.digest}{each.labels['branch']}"))
    assert len(trend_of(str(tmp_path / "runs")).verdict) == 2
    assert len(trend_of(str(tmp_path / "runs"), {"branch": "fp8"}).verdict) == 1
    assert document_of(str(tmp_path / "runs"), no_trace).subject == "trend"
    with pytest.raises(InputError, match="holds 1 such run; a trend needs two"):
        trend_of(str(tmp_path / "runs"), {"commit": "c3", "branch": "main"})


def test_labels_are_of_a_history(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="augment history add"):
        trend_of(str(tmp_path), {"branch": "main"})


def test_the_roof_of_memory_comes_from_operators_without_operations_too() -> None:
    common = {"device": 0, "count": 1, "shapes": "", "roof_ratio": 0.5, "time_ns": 2e6}
    product = {"operator": "aten::mm", "number": "bf16", "bound": "compute", "flops": 4e12, "roof_ns": 4e6,
               "intensity": 800.0, "achieved_tflops": 500.0, "size_bytes": 1e9}  # fmt: skip
    norm = {"operator": "aten::norm", "number": None, "bound": "memory", "flops": None, "roof_ns": 1e6,
            "intensity": None, "achieved_tflops": None, "size_bytes": 3e9}  # fmt: skip
    kernel = {"name": "k", "family": "gemm", "kernel_type": "COMPUTATION", "sum_ns": 1, "count": 1}
    rows = {"roofline": [common | product, common | product, common | norm], "kernel_breakdown": [kernel]}
    section = kernels({"analyses": {name: {"rows": each} for name, each in rows.items()}})
    roof, points, words = section.charts[1].spec["layer"]
    assert [(row["x"], row["y"]) for row in roof["data"]["values"]][1] == (pytest.approx(1000 / 3), 1000.0)
    assert [row["shown"] for row in words["data"]["values"]] == ["peak of bf16, 1000 TFLOP/s"]
    assert points["mark"]["type"] == "point"
    bound = common | norm | {"intensity": 2.0, "achieved_tflops": 5.0}  # of these alone, it shows memory bandwidth
    single, section = (
        kernels({"analyses": {"roofline": {"rows": [bound] * count}, "kernel_breakdown": {"rows": [kernel]}}})
        for count in (1, 2)
    )
    assert len(single.charts) == 1, "a point alone says what the table does"
    roof = section.charts[1].spec["layer"][0]["data"]["values"]
    assert [row["y"] / row["x"] for row in roof] == [pytest.approx(3.0)] * 2  # 3,000 GB/s


def test_parts_of_the_recording_are_whole_steps_where_steps_are_short() -> None:
    """A step of 3.4 parts would be a comb: its teeth are of where parts begin in steps."""
    common = {"rank": 0, "device": 0, "dur_ns": 100, "launch_count": 1, "queued_count": None,
              "allocated_bytes": 7, "reserved_bytes": None}  # fmt: skip
    rows = [common | {"part": at, "start_ns": 100 * at, "busy_ns": 20 * (at % 5)} for at in range(120)]
    steps = [{"device": 0, "start_ns": 340 * at} for at in range(35)]
    section = over_time({"analyses": {"activity_over_time": {"rows": rows}, "steps": {"rows": steps}}})
    assert section.lead.startswith(
        "From the first launch or GPU work to the last, in 17 equal parts, each about as long"
    )
    busy, held = (chart.spec["data"]["values"] for chart in section.charts)
    assert {round(row["y"], 9) for row in busy[::5]} == {round(100 * 20 * sum(at % 5 for at in range(7)) / 700, 9)}
    assert {row["y"] for row in held} == {7e-9}
    alone = over_time({"analyses": {"activity_over_time": {"rows": rows}}})  # a comb all the same
    assert [(row["low"], row["high"]) for row in alone.charts[0].spec["data"]["values"]][:2] == [(0, 60), (0, 80)]


def test_a_snapshot_shows_the_moment_of_its_verdict_and_who_held_what() -> None:
    row = {"device": 1, "at_ns": 9_000_000, "allocated_ratio": 0.5, "count": 2}
    names = [("level", "allocated", 8), ("level", "requested", 5)]
    names += [("line", "before the recording", 4), ("line", "a", 4)]
    failed = [{**row, "moment": "oom", "by": by, "name": name, "bytes": held * 10**9} for by, name, held in names]
    peak = {**row, "device": 0, "moment": "peak", "by": "level", "name": "allocated", "bytes": 9 * 10**9}
    part = {"device": 1, "start_ns": 0, "allocated_bytes": 7, "reserved_bytes": None}
    analyses = {"memory_snapshot": {"rows": [peak, *failed]}, "activity_over_time": {"rows": [part]}}
    section = memory_snapshot({"analyses": analyses})
    words = "Out of memory: 5.0 GB (4.66 GiB) requested"
    assert section.lead == f"{words} on GPU 1, with 8.0 GB allocated."
    curve, held = section.charts
    assert curve.spec["layer"][-1]["data"]["values"] == [{"x": 9.0, "words": words}]
    assert [bar["colour"] for bar in held.spec["data"]["values"]] == [charts.GREY, charts.VERMILION]


def test_modules_of_both_passes(outputs: Path) -> None:
    sidecar = json.loads(metrics(outputs).read_text())
    forward, backward = modules(sidecar).charts
    table = sidecar["analyses"]["gpu_time_by_module"]["rows"]
    rows = {row["module"]: row for row in table if row["module"] and "/" not in row["module"]}
    whole = sum(row["backward_gpu_ns"] for row in rows.values())
    widths = {box["label"]: box["x2"] - box["x"] for box in backward.spec["data"]["values"] if not box["depth"]}
    shares = {name: 100 * row["backward_gpu_ns"] / whole for name, row in rows.items() if row["backward_gpu_ns"]}
    assert widths == pytest.approx(shares)
    assert (forward.name, backward.name) == ("modules_forward", "modules_backward")


def test_one_message_is_told_once_and_code_is_code() -> None:
    diagnostics = [{"count": 2, "message": "rows left out"}, {"count": 3, "message": "rows left out"}]
    page = html.page(Document("t", "trace", ["in `a<b>` most of 38 %"], [("GPU", "H100")], [], (), diagnostics))
    assert page.count("rows left out: 5") == 1
    assert "in <code>a&lt;b&gt;</code> most of 38\N{NO-BREAK SPACE}%" in page
    assert '<p class="small">H100</p>' in page
    said = html.page(Document("t", "trace", ["-10 % (nvidia-smi topo -m, --at 469.282-533.607)"], [], [], (), []))
    assert re.findall("<span class=whole>(.*?)</span>", said) == ["nvidia-smi", "-m", "--at", "469.282-533.607"]


def test_names_cannot_end_the_page() -> None:
    hostile = "</script><img src=x onerror=alert(1)>"
    table = ReportTable("t", hostile, [{"name": hostile}], 1)
    rows = [{"title": hostile, "advice": hostile, "severity": "high", "status": "found", "evidence": [hostile]}]
    document = Document(
        hostile, "trace", [hostile], [(hostile, hostile)], [Section(hostile, hostile, (), [table])], rows,
        [{"count": 1, "message": hostile}],
    )  # fmt: skip
    page = html.page(document)
    assert hostile not in page
    assert "<img" not in page
    assert data_of(page)["tables"]["t"]["rows"] == [[hostile]]


def test_names_are_escaped_and_only_the_pages_own_scripts_run() -> None:
    hostile = '"><script>alert(1)</script>'
    page = html.page(Document("t", "trace", (), (), [Section("s", "", (), [ReportTable(hostile, "t", [{"a": 1}], 1)])]))
    assert hostile not in page
    assert 'id="table-&quot;&gt;&lt;script&gt;' in page
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]+)"', page)
    assert policy
    assert "'unsafe-inline'" not in policy[1].partition("script-src")[2]
    for script in re.findall(r'<script type="module">(.*?)</script>', page, re.DOTALL):
        assert base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() in policy[1]


@pytest.mark.parametrize("changed", [
    {"analyses": {"a b": {"status": "ok", "rows": [{"a": 1}]}}},
    {"analyses": {"": {"status": "ok", "rows": [{"a": 1}]}}},
    {"analyses": {"steps": {"status": "ok", "rows": 3}}},
    {"analyses": {"steps": []}},
    {"analyses": 1},
    {"source": {}},
    {"source": "rank0"},
    {"diagnostics": [{"count": "many", "message": []}]},
    {"verdict": {"text": [1]}},
    {"tool": None},
])  # fmt: skip
def test_metrics_that_augment_does_not_write(outputs: Path, tmp_path: Path, changed: dict[str, Any]) -> None:
    """One error about the file, whatever is wrong in it."""
    path = tmp_path / "a.metrics.json"
    path.write_text(json.dumps({**json.loads(metrics(outputs).read_text()), **changed}))
    with pytest.raises(UnknownFormat), readable(str(path)):
        html.page(document_of(str(path), no_trace))


def test_metrics_with_any_other_value(outputs: Path, tmp_path: Path) -> None:
    """Each first value of a kind is replaced: what cannot be shown is an error about the file."""

    def two_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        return {name: value[:2] if isinstance(value, list) else value for name, value in pairs}

    path, content = tmp_path / "a.metrics.json", json.loads(metrics(outputs).read_text(), object_pairs_hook=two_of)
    for place in places_in(content):
        *way, last = place
        at = content
        for step in way:
            at = at[step]
        kept, at[last] = at[last], {"other": ["text"]}
        path.write_text(json.dumps(content))
        with contextlib.suppress(InputError), readable(str(path)):
            document_of(str(path), no_trace)
        with contextlib.suppress(InputError):
            report_on(str(path), lambda _: None)
        at[last] = kept


def places_in(value: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of each value that is neither list nor object, in lists of the first alone."""
    inner = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else None
    if inner is None:
        yield before
        return
    for key, each in inner:
        yield from places_in(each, (*before, key))


def test_metrics_that_are_too_deep(tmp_path: Path) -> None:
    path = tmp_path / "a.metrics.json"
    path.write_text('{"source": ' + "[" * 100_000 + "]" * 100_000 + "}")
    with pytest.raises(UnknownFormat):
        document_of(str(path), no_trace)
    with pytest.raises(UnknownFormat):
        report_on(str(path), lambda _: None)


def test_markdown(outputs: Path) -> None:
    sidecar = json.loads(metrics(outputs).read_text())
    text = markdown(of_trace(sidecar))
    assert text.startswith(f"### {sidecar['source']['name']}\n\n{sidecar['verdict']['text'][0]}")
    assert len(text) < 10_000


def test_names_in_markdown_are_text(outputs: Path) -> None:
    """Those of a sidecar somebody sent, shown where others read it, as in an issue."""
    evil = "<img src=x onerror=alert(1)> [a](javascript:b)\n# heading `<b>"
    sidecar = json.loads(metrics(outputs).read_text())
    sidecar["source"]["name"] = evil
    sidecar["verdict"]["text"] = [evil]
    row = {"rule": evil, "title": evil, "advice": evil, "severity": "high", "confidence": "high"}
    shown = {"input": evil, "verdict": [evil], "rows": [row, {**row, "status": "fine"}]}
    for text in (markdown(of_trace(sidecar)), "\n".join(lines_of([shown], markdown=True, brief=False))):
        assert evil.split()[1] in text
        assert not re.search(r"<(?!/?details>|/?summary>)|\]\(|^# ", text, re.MULTILINE)


def test_a_job_of_512_ranks_is_small(outputs: Path) -> None:
    sidecar = json.loads((outputs / "job.metrics.json").read_text())
    for analysis in sidecar["analyses"].values():
        if analysis["rows"] and "rank" in analysis["rows"][0] and "step" in analysis["rows"][0]:
            analysis["rows"] = [{**row, "rank": rank} for rank in range(512) for row in analysis["rows"][:8]]
    assert len(html.page(of_job(sidecar))) < 3_000_000  # and 0.9 MB of script


def test_the_command(outputs: Path, tmp_path: Path) -> None:
    source = metrics(outputs)
    assert run("report", source, "--markdown").startswith("### ")
    with pytest.raises(UsageError, match="--diff"):
        group().main(["report", str(source), "other"], standalone_mode=False)
    command = [sys.executable, "-m", "augment", "report", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
