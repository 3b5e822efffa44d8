"""The metrics of many runs, in Python and as Parquet."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

import augment
from augment.cli import main
from augment.errors import InputError, UnknownFormat
from augment.results.sidecars import Sidecar, frames_of
from augment.writers.metrics import document, encode
from traces import SIMULATED

ONLY = ["temporal_breakdown", "kernel_breakdown", "diagnosis"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs, the first of two ranks, and files that are none of it."""
    root = tmp_path_factory.mktemp("runs")
    job = [path for path in SIMULATED if path.parent.name == "job"]
    for run, paths in (("first", job), ("nested/second", job[:1])):
        (root / run).mkdir(parents=True)
        for path in paths:
            made = augment.augment(augment.read(path), only=ONLY)
            (root / run / f"{path.name.partition('.')[0]}.metrics.json").write_bytes(encode(document(made)))
    (root / "first" / ".hidden.metrics.json").write_text("")
    (root / "notes.json").write_text("{}")
    return root


def rows(run: str, path: Path) -> list[dict[str, Any]]:
    analysis = json.loads(path.read_text())["analyses"]["kernel_breakdown"]
    return [{"run": run, "trace": path.name.partition(".")[0], **row} for row in analysis["rows"]]


def test_a_folder_of_runs_becomes_one_table_for_each_analysis(runs: Path) -> None:
    tables = augment.frames(runs)
    assert sorted(tables) == sorted([*ONLY, "sources", "verdict"])
    content = json.loads((runs / "first/rank1.metrics.json").read_text())
    times = {(row["run"], row["rank"]): row["start_ns"] for row in tables["sources"]}
    assert times["first", 1] == content["source"]["start_ns"]
    verdict = [row["text"] for row in tables["verdict"] if (row["run"], row["rank"]) == ("first", 1)]
    assert verdict == content["verdict"]["text"]
    content["diagnostics"] = [{"code": "x", "count": 2, "message": "y"}]
    (row,) = frames_of([Sidecar.of("rank1", content)])["diagnostics"]
    assert (row["code"], row["count"], row["rank"]) == ("x", 2, 1)
    expected = [*rows("first", runs / "first/rank0.metrics.json"), *rows("first", runs / "first/rank1.metrics.json")]
    expected += [*rows("nested/second", runs / "nested/second/rank0.metrics.json")]
    assert [*tables["kernel_breakdown"]] == expected
    frame = tables["kernel_breakdown"].frame()
    assert list(frame.columns[:4]) == ["run", "trace", "rank", "device"]
    assert frame["sum_ns"].dtype == "int64"
    assert frame.groupby(["run", "rank"]).size().index.tolist() == [("first", 0), ("first", 1), ("nested/second", 0)]


def test_a_file_is_a_run_of_its_own_and_a_row_without_rank_gets_that_of_its_trace(runs: Path) -> None:
    table = augment.frames(runs / "first/rank1.metrics.json", runs / "nested")["diagnosis"]
    expected = {("rank1", "rank1", 1): None, ("second", "rank0", 0): None}
    assert dict.fromkeys(zip(table["run"], table["trace"], table["rank"], strict=True)) == expected


def test_what_holds_no_metrics_is_told(runs: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        augment.frames(tmp_path / "nothing")
    with pytest.raises(InputError, match="holds no metrics"):
        augment.frames(tmp_path)
    with pytest.raises(UnknownFormat, match="not a metrics file"):
        augment.frames(runs / "notes.json")


@pytest.mark.parametrize(
    ("name", "trace"), [("a/rank0.diff.metrics.json", "rank0"), ("job.metrics.json", "job"), ("x.json", "x")]
)
def test_names_of_traces(name: str, trace: str) -> None:
    assert Sidecar.of(name, {}).trace == trace


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    with patch("sys.argv", ["augment", "show", *arguments]):
        assert main() == 0
    return capsys.readouterr().out.splitlines()


def test_show_writes_parquet(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    out = shown(capsys, str(runs), "kernel_breakdown", "--parquet", str(tmp_path / "all"))
    assert out == [str(tmp_path / "all" / "kernel_breakdown.parquet")]
    written = parquet.read_table(tmp_path / "all" / "kernel_breakdown.parquet")
    assert written.to_pylist() == [*augment.frames(runs)["kernel_breakdown"]]
    shown(capsys, str(SIMULATED[0]), "steps", "--parquet", str(tmp_path / "one"))
    assert parquet.read_table(tmp_path / "one" / "steps.parquet")["run"].to_pylist()[0] == "rank0"


def test_without_pyarrow_show_says_what_to_install(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    from augment.errors import UsageError
    from augment.writers.table_files import write_parquet

    with pytest.raises(UsageError, match=r"kineto-augment\[history\]"):
        write_parquet(augment.frames(runs)["diagnosis"], tmp_path / "x.parquet")
