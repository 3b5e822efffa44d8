"""Statistics over ranks of every figure in the ranks' own analyses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from augment.findings import Findings, Skipped, column
from augment.job.matching import Floats
from augment.job.summary import RankSummary
from augment.trace import Diagnostic

MOST_ROWS = 20_000


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of one analysis."""

    analysis: str = column("The analysis.")
    of: str = column("Identifies the row within its analysis, for example by stream and category.")
    figure: str = column("The name of the column.")
    unit: str = column("The unit of the figure; empty for a number without unit.")
    rank_count: int = column("Ranks that have the figure.", "count")
    min: float = column("The minimum over those ranks.")
    mean: float = column("The mean over those ranks.")
    max: float = column("The maximum over those ranks.")
    std: float = column("The sample standard deviation; 0 for a single rank.")
    min_rank: int | None = column("A rank with the minimum.")
    max_rank: int | None = column("A rank with the maximum.")


def aggregates(summaries: Sequence[RankSummary]) -> Findings | Skipped:
    """The rows in the order of analyses, then of first appearance; at most :data:`MOST_ROWS`."""
    rows = list(_rows(summaries))
    if not rows:
        return Skipped("no rank was analysed")
    cut = sum(summary.rows_left_out for summary in summaries)
    diagnostics = []
    if cut:
        diagnostics.append(Diagnostic("rows_not_aggregated", cut, "per-rank rows dropped because the summary is full"))
    if len(rows) > MOST_ROWS:
        beyond = len(rows) - MOST_ROWS
        diagnostics.append(
            Diagnostic("aggregates_beyond_limit", beyond, "statistics over ranks beyond the limit; left out")
        )
    return Findings(rows[:MOST_ROWS], diagnostics=diagnostics)


def _rows(summaries: Sequence[RankSummary]) -> Iterator[Row]:
    names = list(dict.fromkeys(name for summary in summaries for name in summary.figures))
    for name in names:
        figures_of = [
            (member, summary.figures[name]) for member, summary in enumerate(summaries) if name in summary.figures
        ]
        columns, units = figures_of[0][1].columns, figures_of[0][1].units
        of: dict[str, int] = {}
        tables = [(member, _places(figures.keys, of), figures.table()) for member, figures in figures_of]
        values = np.full((len(summaries), len(of), len(columns)), np.nan)
        for member, places, table in tables:
            values[member, places] = table
        for key, place in of.items():
            for number, (figure, unit) in enumerate(zip(columns, units, strict=True)):
                row = _row(values[:, place, number], summaries, name, key, figure, unit)
                if row is not None:
                    yield row


def _places(keys: Sequence[Sequence[str]], known: dict[str, int]) -> list[int]:
    """The index of each row's key; equal keys of one rank (two devices, for example) are numbered."""
    taken: dict[str, int] = {}
    places = []
    for key in keys:
        text = ", ".join(key)
        taken[text] = taken.get(text, 0) + 1
        if taken[text] > 1:
            text = f"{text} #{taken[text]}"
        places.append(known.setdefault(text, len(known)))
    return places


def _row(
    values: Floats, summaries: Sequence[RankSummary], analysis: str, of: str, figure: str, unit: str
) -> Row | None:
    present = np.flatnonzero(np.isfinite(values))
    if not len(present):
        return None
    finite = values[present]
    return Row(
        analysis=analysis,
        of=of,
        figure=figure,
        unit=unit,
        rank_count=len(present),
        min=float(finite.min()),
        mean=float(finite.mean()),
        max=float(finite.max()),
        std=float(finite.std(ddof=1)) if len(finite) > 1 else 0.0,
        min_rank=summaries[present[finite.argmin()]].rank,
        max_rank=summaries[present[finite.argmax()]].rank,
    )
