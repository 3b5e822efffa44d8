"""Every figure of the ranks' own analyses over all ranks: least, mean, most, deviation, and whose they are."""

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
    of: str = column("What tells the row from others of a rank, such as a stream and a category.")
    figure: str = column("The column.")
    unit: str = column("Its unit; empty of a number without one.")
    rank_count: int = column("Ranks that have it.", "count")
    min: float = column("The least.")
    mean: float = column("The mean over those ranks.")
    max: float = column("The most.")
    std: float = column("The sample deviation; 0 of one rank.")
    min_rank: int | None = column("A rank that has the least.")
    max_rank: int | None = column("A rank that has the most.")


def aggregates(summaries: Sequence[RankSummary]) -> Findings | Skipped:
    """The rows, in the order of the analyses and of their rows as they first come; at most :data:`MOST_ROWS`."""
    rows = list(_rows(summaries))
    if not rows:
        return Skipped("no rank was analysed")
    cut = sum(one.rows_left_out for one in summaries)
    diagnostics = []
    if cut:
        diagnostics.append(Diagnostic("rows_not_aggregated", cut, "rows of ranks beyond what their summaries hold"))
    if len(rows) > MOST_ROWS:
        beyond = len(rows) - MOST_ROWS
        diagnostics.append(Diagnostic("aggregates_beyond_limit", beyond, "figures over all ranks that were left out"))
    return Findings(rows[:MOST_ROWS], diagnostics=diagnostics)


def _rows(summaries: Sequence[RankSummary]) -> Iterator[Row]:
    names = list(dict.fromkeys(name for one in summaries for name in one.figures))
    for name in names:
        own = [(member, one.figures[name]) for member, one in enumerate(summaries) if name in one.figures]
        columns, units = own[0][1].columns, own[0][1].units
        of: dict[str, int] = {}
        tables = [(member, _places(figures.keys, of), figures.table()) for member, figures in own]
        values = np.full((len(summaries), len(of), len(columns)), np.nan)
        for member, places, table in tables:
            values[member, places] = table
        for key, place in of.items():
            for number, (figure, unit) in enumerate(zip(columns, units, strict=True)):
                found = _row(values[:, place, number], summaries, name, key, figure, unit)
                if found is not None:
                    yield found


def _places(keys: Sequence[Sequence[str]], known: dict[str, int]) -> list[int]:
    """Where each row goes; rows of a rank that nothing tells apart (two devices) are counted."""
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
    own = values[present]
    return Row(
        analysis=analysis,
        of=of,
        figure=figure,
        unit=unit,
        rank_count=len(present),
        min=float(own.min()),
        mean=float(own.mean()),
        max=float(own.max()),
        std=float(own.std(ddof=1)) if len(own) > 1 else 0.0,
        min_rank=summaries[present[own.argmin()]].rank,
        max_rank=summaries[present[own.argmax()]].rank,
    )
