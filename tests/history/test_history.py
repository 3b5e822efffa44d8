"""The store of runs, its commands, and the gate against it."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from running import Augment, Ended

import augment
from augment.compare.gate import GateLimits, limit_of
from augment.compare.totals import FIGURES
from augment.errors import InputError, UsageError
from augment.history import Run, RunFigure, Store
from augment.history.changes import baselines, check
from augment.writers.metrics import document, encode
from traces import SIMULATED

needs_pyarrow = pytest.mark.skipif(find_spec("pyarrow") is None, reason="pyarrow is not installed")
DAY_NS = 86_400 * 10**9


def run(number: int, wall_ns: float, **more: float) -> Run:
    """The run of a day."""
    figures = {name: RunFigure(value, value, 0.0, 5) for name, value in {"wall_ns": wall_ns, **more}.items()}
    labels = {"branch": "main", "commit": f"c{number}"}
    return Run(f"c{number}", number * DAY_NS, labels, 1, figures, f"digest{number}")


def usual(count: int, *, shift: float = 1.0, since: int = 99, **more: float) -> list[Run]:
    noise = np.random.default_rng(7).normal(0, 0.01, count)
    return [run(at, 80e6 * float(np.exp(row)) * (shift if at >= since else 1), **more) for at, row in enumerate(noise)]


def judged(runs: list[Run], test: Run, limits: GateLimits | None = None) -> dict[str, tuple[str, str]]:
    lines = check(baselines(runs), test, limits or GateLimits())
    return {line.figure.name: (line.status, line.reason) for line in lines}


def test_a_run_like_those_before_passes() -> None:
    assert judged(usual(12), run(99, 80.4e6))["wall_ns"] == ("pass", "as the runs before")


def test_a_run_that_is_slower_than_the_limit_fails() -> None:
    assert judged(usual(12), run(99, 92e6))["wall_ns"][0] == "fail"
    assert judged(usual(12), run(99, 70e6))["wall_ns"] == ("pass", "better than the runs before")


def test_slower_by_less_than_the_limit_passes() -> None:
    status, reason = judged(usual(12), run(99, 84e6), GateLimits(max_regress=limit_of("20%")))["wall_ns"]
    assert (status, reason) == ("pass", "worse than the runs before, but by less than the limit")


def test_runs_that_differ_more_than_the_limit_cannot_tell() -> None:
    noise = np.random.default_rng(3).normal(0, 0.1, 12)
    runs = [run(at, 80e6 * float(np.exp(each))) for at, each in enumerate(noise)]
    status, reason = judged(runs, run(99, 88e6))["wall_ns"]
    assert status == "uncertain"
    assert reason.startswith("cannot tell 5 %: runs differ by ±")


def test_the_baseline_begins_where_the_figure_last_changed() -> None:
    runs = usual(20, shift=1.2, since=10)
    assert [run.name for run in baselines(runs)[FIGURES[0]].runs] == [f"c{at}" for at in range(10, 20)]
    assert judged(runs, run(99, 96e6))["wall_ns"][0] == "pass"
    expected = ("uncertain", "3 runs since c10, where it changed; 5 make a baseline")
    assert judged(runs[:13], run(99, 96e6))["wall_ns"] == expected


def test_few_runs_are_no_baseline_but_a_bound_is() -> None:
    assert judged(usual(4), run(99, 92e6))["wall_ns"] == ("uncertain", "4 runs; 5 make a baseline")
    assert judged([], run(99, 92e6))["wall_ns"] == ("uncertain", "0 runs; 5 make a baseline")
    limits = GateLimits(figures={"wall_ns": limit_of("90ms")})
    assert judged([], run(99, 92e6), limits)["wall_ns"] == ("fail", "beyond its bound")


def test_other_figures_that_are_not_as_usual_explain() -> None:
    ended = judged(usual(12, idle_ns=5e6, work_count=100), run(99, 92e6, idle_ns=17e6, work_count=100))
    assert ended["idle_ns"] == ("info", "unlike the runs before; not gated")
    assert "work_count" not in ended


@needs_pyarrow
@pytest.mark.parametrize("place", ["folder", "memory"])
def test_the_store_keeps_runs_in_order_of_time(place: str, tmp_path: Path) -> None:
    store = Store(tmp_path / "runs" if place == "folder" else "memory://augment-history/runs")
    runs = usual(5, memory_peak_bytes=1e9)
    for each in reversed(runs):
        store.add(each)
    store.add(runs[2])  # once more
    other = replace(run(9, 80e6), labels={"branch": "other"})
    store.add(other)
    assert store.runs() == [*runs, other]
    assert store.runs({"branch": "main", "commit": "c3"}) == [runs[3]]


@needs_pyarrow
def test_what_is_no_store_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such folder; augment history add makes it"):
        Store(tmp_path / "nothing").runs()
    (tmp_path / "x.run.parquet").write_bytes(b"not parquet")
    with pytest.raises(InputError, match=r"x.run.parquet: no run of augment history"):
        Store(tmp_path).runs()
    with pytest.raises(UsageError, match="nothing://"):
        Store("nothing://x")


def test_without_pyarrow_the_store_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UsageError, match=r"kineto-augment\[history\]"):
        Store(tmp_path).add(run(1, 80e6))


@pytest.fixture(scope="module")
def sidecars(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Sidecars of a trace, and of traces whose times are longer; the last ones by a tenth."""
    made = document(augment.augment(augment.read(SIMULATED[0]), only=["steps"]))
    original: dict[str, Any] = json.loads(encode(made))
    folder = tmp_path_factory.mktemp("metrics")
    noise = np.random.default_rng(5).normal(0, 0.004, 16)
    paths = []
    for number, each in enumerate(noise):
        sidecar = json.loads(json.dumps(original))
        sidecar["source"]["sha256"] = f"{number:064x}"
        factor = float(np.exp(each)) * (1.1 if number >= 8 else 1.0)
        for row in sidecar["analyses"]["steps"]["rows"]:
            row["wall_ns"] = int(row["wall_ns"] * factor)
        paths.append(folder / f"run{number}.metrics.json")
        paths[-1].write_text(json.dumps(sidecar))
    return paths


@needs_pyarrow
def test_runs_are_added_listed_shown_and_a_run_is_checked(
    sidecars: list[Path], tmp_path: Path, augment: Augment
) -> None:
    store = ("--store", tmp_path / "runs")
    for number, path in enumerate(sidecars[:15]):
        labels = ("--label=branch=main", "--label", f"commit=c{number}", "--time", f"2026-11-{number + 1:02}T12:00:00Z")
        assert augment("history", "add", path, *store, *labels) == Ended(0, f"c{number}\n", "")
    ended = augment("history", "list", *store, "--json")
    listed = [json.loads(line) for line in ended.out.splitlines()]
    assert [each["name"] for each in listed] == [f"c{number}" for number in range(15)]
    device = json.loads(sidecars[0].read_text())["source"]["devices"][0]["name"]
    assert listed[0]["labels"] == {"branch": "main", "commit": "c0", "device": device}

    ended = augment("history", "show", "wall_ns", *store, "--label=branch=main")
    assert ended.out.splitlines()[-1].partition("wall time changed from")[2].endswith("at c8")
    ended = augment("history", "show", *store, "--json")
    assert [json.loads(line)["run"] for line in ended.out.splitlines() if json.loads(line)["changed"]] == ["c8"]

    against = ("--against-history", tmp_path / "runs", "--label=branch=main")
    ended = augment("check", sidecars[15], *against)
    assert ended.code == 0, ended.out
    assert "confidence interval, 7 runs" in ended.out
    assert "at c8; compared with the runs since" in ended.err
    ended = augment("check", sidecars[0], *against)  # 10 % faster
    assert ended.code == 0
    assert "better than the runs before" in ended.out
    ended = augment("check", sidecars[14], *against)  # which is in the history, and not its own baseline
    assert "confidence interval, 6 runs" in ended.out
    ended = augment("check", sidecars[15], *against, "--max-regress", "1%", "--metric", "wall_ns=1ns")
    assert ended.code == 1


@needs_pyarrow
def test_a_history_without_such_runs_cannot_tell(sidecars: list[Path], tmp_path: Path, augment: Augment) -> None:
    augment("history", "add", sidecars[0], "--store", tmp_path, "--label=branch=main")
    ended = augment("check", sidecars[1], "--against-history", tmp_path, "--label", "branch=other")
    assert ended.code == 4
    assert "0 runs; 5 make a baseline" in ended.out
    assert "holds no other run of 1 rank with" in ended.err
    assert augment("check", sidecars[1], "--against-history", tmp_path, "--uncertain", "pass").code == 0


@pytest.mark.parametrize(("arguments", "why"), [
    (["check", "x"], "name one of --baseline and --against-history"),
    (["check", "x", "--baseline", "y", "--against-history", "z"], "name one of"),
    (["check", "x", "--baseline", "y", "--label=branch=main"], "chooses runs of --against-history"),
    (["history", "list", "--store", "x", "--label", "main"], "must be KEY=VALUE"),
    (["history", "add", "x", "--store", "y", "--time", "soon"], "must be a time such as"),
])  # fmt: skip
def test_wrong_arguments_are_told(arguments: list[str], why: str, augment: Augment) -> None:
    ended = augment(*arguments)
    assert ended.code == 2
    assert why in ended.err
