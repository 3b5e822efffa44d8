"""More than two runs: which rank and which collective changed, and since which run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from augment.compare.run_series import STEP, RunFigures, SeriesKey, compare, figures_of
from augment.readers import read
from simulator import JobOptions, simulate


def runs(folder: Path, *options: JobOptions) -> list[RunFigures]:
    made = []
    for number, each in enumerate(options):
        simulate(each, folder / f"run{number}")
        made.append(
            figures_of(f"run{number}", (read(str(path)) for path in sorted((folder / f"run{number}").glob("rank*.gz"))))
        )
    return made


def job(seed: int, **more: object) -> JobOptions:
    return JobOptions(ranks=3, steps=7, layers=2, seed=seed, **more)  # type: ignore[arg-type]


def test_the_slow_rank_is_told_since_its_run(tmp_path: Path) -> None:
    slow = {"straggler": 1, "straggler_factor": 1.3}
    made = compare(runs(tmp_path, job(0), job(1), job(2, **slow), job(3, **slow)))
    expected = [("step", None, "run2", "regression"), ("compute", 1, "run2", "regression")]
    assert [(row.figure, row.rank, row.since, row.verdict) for row in made.rows] == expected
    step, compute = made.rows
    assert compute.delta_ns == pytest.approx(step.delta_ns, rel=0.2)
    assert made.verdict[0].startswith("Since run2 the mean step takes")
    assert made.verdict[1].startswith("Since then, per step: rank 1")


def test_a_slower_link_is_the_transfer_and_no_rank(tmp_path: Path) -> None:
    slow = {"slow_link": 2, "slow_link_factor": 2.0}
    made = compare(runs(tmp_path, job(0), job(1, **slow), job(2, **slow)))
    expected = {("step", None, "run1"), ("transfer", None, "run1")}
    assert {(row.figure, row.rank, row.since) for row in made.rows} == expected
    assert "AllReduce of default_pg" in made.verdict[1]


def test_runs_alike_and_runs_that_vary(tmp_path: Path) -> None:
    first, second, third = runs(tmp_path, job(0), job(1), job(2))
    assert not compare([first, second, third]).rows
    assert "changes by no more than noise" in compare([first, second, third]).verdict[0]
    other = RunFigures("other", 3, {key: 1.3 * values for key, values in second.series.items()})
    made = compare([first, other, third])
    assert {row.verdict for row in made.rows} == {"varies"}
    assert {row.since for row in made.rows} == {""}
    assert "no run since which" in made.verdict[0]


def of_steps(label: str, level: float, count: int = 8, spread: float = 1e5) -> RunFigures:
    return RunFigures(
        label, 1, {SeriesKey(STEP): level + spread * np.random.default_rng(len(label)).normal(size=count)}
    )


def test_changes_there_and_back_and_twice() -> None:
    up = [of_steps(name, level) for name, level in (("a", 1e7), ("bb", 1.01e7), ("ccc", 1.3e7), ("dddd", 1.6e7))]
    assert [(row.since, row.verdict) for row in compare(up).rows] == [("ccc", "regression"), ("dddd", "regression")]
    assert [row.verdict for row in compare([*up, of_steps("eeeee", 1e7)]).rows] == ["varies"]
    expected = [("ccc", "improvement"), ("a", "improvement")]
    assert [(row.since, row.verdict) for row in compare(up[:1:-1] + up[:1]).rows] == expected


def test_few_steps_cannot_tell() -> None:
    made = compare([of_steps(name, level, count=1) for name, level in (("a", 1e7), ("bb", 1e7), ("ccc", 2e7))])
    assert not made.rows
    assert "cannot tell" in made.verdict[0]


def test_noise_alone_is_no_change() -> None:
    """In 300 sets of five runs alike, at most 1 % tell of a change."""
    random, count = np.random.default_rng(5), 0
    for _ in range(300):
        alike = [
            RunFigures(
                str(number),
                2,
                {
                    SeriesKey(STEP): random.lognormal(0.0, 0.05, 8) * 1e7,
                    SeriesKey("compute", 0): random.lognormal(0.0, 0.05, 8) * 1e7,
                },
            )
            for number in range(5)
        ]
        count += bool(compare(alike).rows)
    assert count <= 6
