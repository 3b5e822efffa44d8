"""Statistics over ranks, added rank after rank: equal to those of a whole table, in memory that ranks do not grow."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from augment.core.findings import Findings
from augment.job import aggregates as module
from augment.job.aggregates import Aggregation, aggregates
from augment.job.ranks.summary import Figures, RankSummary
from job_summaries import summary_of


def with_figures(rank: int, tables: dict[str, tuple[list[list[str]], np.ndarray]]) -> RankSummary:
    summary = summary_of(rank, [])
    summary.figures = {
        name: Figures(keys=keys, columns=["time_ns", "ratio"], units=["ns", ""], values=values.tobytes())
        for name, (keys, values) in tables.items()
    }
    return summary


def findings_of(summaries: list[RankSummary]) -> Findings:
    return aggregates(summaries)


def test_they_are_those_of_a_whole_table() -> None:
    random = np.random.default_rng(1)
    values = random.normal(1e9, 1e7, (40, 3, 2))
    values[5, 1, 0] = np.nan
    keys = [["name=a"], ["name=b"], ["name=b"]]
    rows = findings_of([with_figures(rank, {"kernels": (keys, values[rank])}) for rank in range(40)]).rows
    assert [(row.of, row.figure) for row in rows] == [
        (key, figure) for key in ("name=a", "name=b", "name=b #2") for figure in ("time_ns", "ratio")
    ]
    for row, column in zip(rows, values.reshape(40, 6).T, strict=True):
        known = column[np.isfinite(column)]
        assert row.rank_count == len(known)
        assert (row.min, row.max) == (known.min(), known.max())
        assert (row.min_rank, row.max_rank) == (np.nanargmin(column), np.nanargmax(column))
        assert row.mean == pytest.approx(known.mean(), rel=1e-12)
        assert row.std == pytest.approx(known.std(ddof=1), rel=1e-9)


def test_keys_of_few_ranks_are_left_out_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_KEYS", 100)
    summaries = []
    for rank in range(60):
        single = [[f"ts_ns={1000 * rank + number}"] for number in range(50)]
        tables = {"outliers": (single, np.ones((50, 2))), "kernels": ([["name=a"]], np.full((1, 2), float(rank)))}
        summaries.append(with_figures(rank, tables))
    outcome = findings_of(summaries)
    assert {row.analysis for row in outcome.rows} == {"kernels"}
    assert [(note.code, note.count) for note in outcome.diagnostics] == [("keys_of_few_ranks", 60 * 50)]
    assert len(findings_of(summaries[:3]).rows) == 2 + 3 * 50 * 2


def test_no_analysis_is_cut_off_by_a_long_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_ROWS", 60)
    tables = {
        name: ([[f"name={number}"] for number in range(count)], np.ones((count, 2)))
        for name, count in (("long", 100), ("short", 5), ("last", 20))
    }
    outcome = findings_of([with_figures(rank, tables) for rank in range(4)])
    counts = {name: sum(row.analysis == name for row in outcome.rows) for name in tables}
    assert counts == {"long": 25, "short": 10, "last": 25}
    assert outcome.diagnostics[-1].count == 250 - 60


def test_an_analysis_without_figures_has_no_rows() -> None:
    summaries = [summary_of(rank, []) for rank in range(3)]
    for summary in summaries:
        summary.figures = {"names": Figures(keys=[["name=a"], ["name=b"]], columns=[], units=[], values=b"")}
    assert not findings_of(summaries).rows


def test_portions_are_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_KEYS", 150)
    random = np.random.default_rng(2)
    summaries = []
    for rank in range(60):
        values = random.normal(1e6, 1e3, (3, 2))
        values[1] = np.nan if rank % 7 else values[1]
        keys = [["name=a"], ["name=b"], [f"name=c{rank % 4}"]]
        single = [[f"ts_ns={1000 * rank + number}"] for number in range(20)]
        summaries.append(with_figures(rank, {"outliers": (single, np.ones((20, 2))), "kernels": (keys, values)}))
    joined = Aggregation()
    for first in range(0, 60, 13):
        portion = Aggregation()
        for member, summary in enumerate(summaries[first : first + 13], first):
            portion.add(member, summary)
        joined.join(portion)
    outcome, whole = joined.outcome(summaries), findings_of(summaries)
    assert outcome.diagnostics == whole.diagnostics
    for row, other in zip(outcome.rows, whole.rows, strict=True):
        rounded = {name: pytest.approx(getattr(other, name), rel=1e-9) for name in ("mean", "std")}
        assert replace(row, **rounded) == replace(other, **rounded)
        assert (row.mean, row.std) == (rounded["mean"], rounded["std"])
