"""``augment report``: one file, the sidecar's numbers, and what each kind of report shows."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from augment.errors import InputError, UsageError
from augment.report import html
from augment.report.document import Document, Section, Table
from augment.report.markdown import markdown
from augment.report.of_job import document as of_job
from augment.report.of_trace import document as of_trace
from augment.report.over_time import over_time
from augment.report.subject import document_of, trend_of
from simulator import JobOptions, simulate

ROOT = Path(__file__).resolve().parents[2]
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
    for sentence in sidecar["verdict"]["text"]:
        assert sentence.replace("'", "&#x27;") in page
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


def test_curves_over_time_hold_what_the_sidecar_does(outputs: Path) -> None:
    sidecar = json.loads((outputs / "rank0.metrics.json").read_text())
    section = over_time(sidecar)
    assert [chart.name for chart in section.charts] == ["busy_over_time", "queue_over_time"]
    rows = sidecar["analyses"]["activity_over_time"]["rows"]
    queued = [point["y"] for point in section.charts[1].spec["data"]["values"]]
    assert queued == [row["queued_count"] for row in rows]
    assert not over_time({"analyses": {}})


def test_nothing_is_fetched(outputs: Path) -> None:
    page = html.page(document_of(str(outputs), no_trace))
    assert not re.search(r'(?:src|href)="(?!#)', page)
    assert "url(" not in page
    assert "@import" not in page
    assert "default-src 'none'" in page


def test_a_folder_of_a_job_and_a_job_of_raw_traces(outputs: Path) -> None:
    document = document_of(str(outputs), no_trace)
    assert document.subject == "job"
    assert {"Who comes late", "Ranks and steps", "Communication"} & {section.title for section in document.sections}


def test_a_comparison(outputs: Path, tmp_path: Path) -> None:
    first, second = sorted((outputs.parent / "traces").glob("*.json.gz"))[:2]
    run("diff", first, second, "-o", tmp_path, "--quiet")
    (sidecar,) = tmp_path.glob("*.diff.metrics.json")
    document = document_of(str(sidecar), no_trace)
    assert document.subject == "comparison"
    changes = next(chart for section in document.sections for chart in section.charts if chart.name == "waterfall")
    bars = changes.spec["data"]["values"]
    assert sum(bar["end"] - bar["start"] for bar in bars[:-1]) == pytest.approx(bars[-1]["end"])


def test_a_trend_tells_where_a_figure_changed(outputs: Path, tmp_path: Path) -> None:
    sidecar = json.loads(metrics(outputs).read_text())
    for number in range(12):
        for row in sidecar["analyses"]["step_figures"]["rows"]:
            row["step_ns"] = 40_000_000 + 10_000 * (number * 7 % 5) + (4_000_000 if number >= 6 else 0)
        folder = tmp_path / f"run{number:02}"
        folder.mkdir()
        (folder / "rank0.metrics.json").write_text(json.dumps(sidecar))
    document = trend_of(str(tmp_path))
    assert "since run06 it is 10 % higher" in document.verdict[0]
    with pytest.raises(InputError, match="fewer than two runs"):
        trend_of(str(tmp_path / "run00"))


def test_names_cannot_end_the_page() -> None:
    hostile = "</script><img src=x onerror=alert(1)>"
    table = Table("t", hostile, [{"name": hostile}], 1)
    rows = [{"title": hostile, "advice": hostile, "severity": "high", "status": "found", "evidence": [hostile]}]
    document = Document(
        hostile, "trace", [hostile], [(hostile, hostile)], [Section(hostile, hostile, (), [table])], rows,
        [{"count": 1, "message": hostile}],
    )  # fmt: skip
    page = html.page(document)
    assert hostile not in page
    assert "<img" not in page
    assert data_of(page)["tables"]["t"]["rows"] == [[hostile]]


def test_markdown(outputs: Path) -> None:
    sidecar = json.loads(metrics(outputs).read_text())
    text = markdown(of_trace(sidecar))
    assert text.startswith(f"### {sidecar['source']['name']}\n\n{sidecar['verdict']['text'][0]}")
    assert len(text) < 10_000


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
        from augment.commands.report import command

        command.callback(str(source), "other", False, False, None, False, None)  # type: ignore[misc]
    done = subprocess.run(
        [sys.executable, "-m", "augment", "report", str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
