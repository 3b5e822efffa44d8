"""Statistics over ranks of every figure in the ranks' own analyses.

Ranks are added one after the other, so that memory grows with the number of keys and not of ranks. Keys that few ranks
have, such as those of single events, are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from augment.findings import Findings, Skipped, column
from augment.job.summary import Figures, RankSummary
from augment.records import dataclass
from augment.trace import Diagnostic

MOST_ROWS = 20_000
MOST_KEYS = 4000  #: of an analysis, while ranks are added; those of one rank go first
FEWEST_TO_COMPARE = 4  #: with fewer ranks, keys of a single rank stay
LEAST_SHARE = 0.02  #: of the ranks that must have a key
Table = npt.NDArray[np.float64]


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


class Aggregation:
    """The statistics of the ranks added so far."""

    def __init__(self) -> None:
        self._tallies: dict[str, _Tally] = {}

    def add(self, member: int, summary: RankSummary) -> None:
        """Add the figures of a rank."""
        for name, figures in summary.figures.items():
            self._tallies.setdefault(name, _Tally(figures.columns, figures.units)).add(member, figures)

    def outcome(self, summaries: Sequence[RankSummary]) -> Findings | Skipped:
        """The rows in the order of analyses, then of first appearance; at most :data:`MOST_ROWS`."""
        return _outcome(self._tallies, summaries)


def aggregates(summaries: Sequence[RankSummary]) -> Findings | Skipped:
    """The statistics of all ranks."""
    aggregation = Aggregation()
    for member, summary in enumerate(summaries):
        aggregation.add(member, summary)
    return aggregation.outcome(summaries)


def _outcome(tallies: Mapping[str, _Tally], summaries: Sequence[RankSummary]) -> Findings | Skipped:
    if not tallies:
        return Skipped("no rank was analysed")
    least = max(2, int(np.ceil(LEAST_SHARE * len(summaries)))) if len(summaries) >= FEWEST_TO_COMPARE else 1
    few = sum(tally.left_out(least) for tally in tallies.values())
    quotas = _quotas({name: tally.row_count(least) for name, tally in tallies.items()})
    rows = [row for name, tally in tallies.items() for row in tally.rows(name, summaries, least, quotas[name])]
    beyond = sum(tally.row_count(least) for tally in tallies.values()) - len(rows)
    counts = (
        (
            "rows_not_aggregated",
            sum(summary.rows_left_out for summary in summaries),
            "per-rank rows dropped because the summary is full",
        ),
        ("keys_of_few_ranks", few, f"rows of the ranks' analyses that fewer than {least} ranks have; left out"),
        ("aggregates_beyond_limit", beyond, "statistics over ranks beyond the limit; left out"),
    )
    return Findings(rows, diagnostics=[Diagnostic(code, count, text) for code, count, text in counts if count])


def _quotas(counts: dict[str, int]) -> dict[str, int]:
    """How many rows each analysis gets of :data:`MOST_ROWS`: all that it has, or an equal share of what is left."""
    quotas, left = {}, MOST_ROWS
    for number, (name, count) in enumerate(sorted(counts.items(), key=lambda item: item[1])):
        quotas[name] = min(count, left // (len(counts) - number))
        left -= quotas[name]
    return quotas


class _Tally:
    """The statistics of one analysis: a line a key, a column a figure."""

    def __init__(self, columns: Sequence[str], units: Sequence[str]) -> None:
        self._columns, self._units = columns, units
        self._keys: dict[str, int] = {}
        self._pruned = 0
        self._count, self._mean, self._square = (self._new(0, 0.0) for _ in range(3))
        self._least, self._most = self._new(0, np.inf), self._new(0, -np.inf)
        self._least_at, self._most_at = self._new(0, -1.0), self._new(0, -1.0)

    def _new(self, keys: int, fill: float) -> Table:
        return np.full((keys, len(self._columns)), fill)

    def add(self, member: int, figures: Figures) -> None:
        """Add the figures of a rank; Welford's formulas keep mean and squared deviations."""
        if list(figures.columns) != list(self._columns):
            return
        if len(self._keys) > MOST_KEYS:
            self._prune()
        place = np.array(_places(figures.keys, self._keys), np.int64)
        self._grow(len(self._keys))
        values = figures.table()
        known = np.isfinite(values)
        count = self._count[place] + known
        delta = np.where(known, values - self._mean[place], 0.0)
        mean = self._mean[place] + delta / np.maximum(count, 1)
        self._square[place] += np.where(known, delta * (values - mean), 0.0)
        self._count[place], self._mean[place] = count, mean
        low, high = known & (values < self._least[place]), known & (values > self._most[place])
        self._least[place] = np.where(low, values, self._least[place])
        self._most[place] = np.where(high, values, self._most[place])
        self._least_at[place] = np.where(low, member, self._least_at[place])
        self._most_at[place] = np.where(high, member, self._most_at[place])

    def _tables(self) -> dict[str, Table]:
        return {name: value for name, value in vars(self).items() if isinstance(value, np.ndarray)}

    def _grow(self, keys: int) -> None:
        missing = keys - len(self._count)
        if missing > 0:
            fills = {"_least": np.inf, "_most": -np.inf, "_least_at": -1.0, "_most_at": -1.0}
            for name, table in self._tables().items():
                setattr(self, name, np.concatenate((table, self._new(missing, fills.get(name, 0.0)))))

    def _prune(self) -> None:
        """Leave out the keys of single ranks."""
        kept = np.flatnonzero(self._count.max(axis=1, initial=0) > 1)
        if len(kept) > MOST_KEYS:
            kept = np.sort(np.argsort(-self._count.max(axis=1, initial=0), kind="stable")[:MOST_KEYS])
        self._pruned += len(self._keys) - len(kept)
        names = list(self._keys)
        self._keys = {names[old]: new for new, old in enumerate(kept.tolist())}
        for name, table in self._tables().items():
            setattr(self, name, table[kept])

    def _enough(self, least: int) -> npt.NDArray[np.bool_]:
        enough: npt.NDArray[np.bool_] = self._count >= max(least, 1)
        return enough

    def left_out(self, least: int) -> int:
        """The number of keys that fewer ranks have."""
        return self._pruned + int((~self._enough(least).any(axis=1)).sum())

    def row_count(self, least: int) -> int:
        """The number of figures that at least so many ranks have."""
        return int(self._enough(least).sum())

    def rows(self, name: str, summaries: Sequence[RankSummary], least: int, most: int) -> Iterator[Row]:
        """The first ``most`` of these figures."""
        names = list(self._keys)
        places = np.argwhere(self._enough(least))[:most]
        for key, figure in places.tolist():
            count = int(self._count[key, figure])
            yield Row(
                analysis=name,
                of=names[key],
                figure=self._columns[figure],
                unit=self._units[figure],
                rank_count=count,
                min=float(self._least[key, figure]),
                mean=float(self._mean[key, figure]),
                max=float(self._most[key, figure]),
                std=float(np.sqrt(self._square[key, figure] / (count - 1))) if count > 1 else 0.0,
                min_rank=summaries[int(self._least_at[key, figure])].rank,
                max_rank=summaries[int(self._most_at[key, figure])].rank,
            )


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
