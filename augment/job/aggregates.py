"""Statistics over ranks of every figure in the ranks' own analyses.

Ranks are added one after the other, so that memory grows with the number of keys and not of ranks; the statistics of
parts of a job can be joined. Keys that few ranks have, such as those of single events, are left out, and figures that
are equal on all ranks, which each rank's own file has.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from augment.arrays import Places
from augment.core import Diagnostic, Findings, Skipped, column
from augment.job.ranks import RankSummary

MOST_ROWS = 20_000
MOST_KEYS = 4000  #: of an analysis, while ranks are added; those of one rank go first
FEWEST_TO_COMPARE = 4  #: with fewer ranks, keys of a single rank stay
LEAST_SHARE = 0.02  #: of the ranks that must have a key
_HEAD, _TAIL = 56, 32  #: characters of a long key that are written
Floats = npt.NDArray[np.float64]
_STATISTICS = ("count", "mean", "square", "least", "most", "least_at", "most_at")


class Row(Struct, frozen=True):
    """One figure of one analysis. In a job of four ranks or more, a figure that is equal on all ranks has no row."""

    analysis: Annotated[str, column("The analysis.")]
    of: Annotated[str, column("Identifies the row within its analysis; long texts are shortened.")]
    figure: Annotated[str, column("The name of the column.")]
    unit: Annotated[str, column("The unit of the figure; empty for a number without unit.")]
    rank_count: Annotated[int, column("Ranks that have the figure.", "count")]
    min: Annotated[float, column("The minimum over those ranks.")]
    mean: Annotated[float, column("The mean over those ranks, of seven digits.")]
    max: Annotated[float, column("The maximum over those ranks.")]
    std: Annotated[float, column("The sample standard deviation, of seven digits; 0 for a single rank.")]
    min_rank: Annotated[int | None, column("A rank with the minimum.")]
    max_rank: Annotated[int | None, column("A rank with the maximum.")]


class Aggregation:
    """The statistics of the ranks added so far. Those of other ranks can be joined: the parts of a large job."""

    def __init__(self) -> None:
        self._tallies: dict[str, _Tally] = {}
        self._cells = _Cells()

    def add(self, member: int, summary: RankSummary) -> None:
        """Add the figures of a rank."""
        places, values = [], []
        for name, figures in summary.figures.items():
            if name not in self._tallies:
                self._tallies[name] = _Tally(figures.columns, figures.units)
            tally = self._tallies[name]
            if list(figures.columns) == list(tally.columns):
                tally.bound(self._cells)
                places.append(tally.cells_of(figures.keys, self._cells))
                values.append(figures.values)
        if places:
            self._cells.add(np.concatenate(places), np.frombuffer(b"".join(values), np.float64), member)

    def join(self, other: Aggregation) -> None:
        """Add the ranks of ``other``, which come after these."""
        for name, theirs in other._tallies.items():
            if name not in self._tallies:
                self._tallies[name] = _Tally(theirs.columns, theirs.units)
            tally = self._tallies[name]
            if list(theirs.columns) == list(tally.columns):
                tally.bound(self._cells)
                tally.pruned += theirs.pruned
                self._cells.join(tally.cells_of_names(theirs.names, self._cells), other._cells, theirs.cells)

    def outcome(self, summaries: Sequence[RankSummary]) -> Findings | Skipped:
        """The rows in the order of analyses, then of first appearance; at most :data:`MOST_ROWS`."""
        if not self._tallies:
            return Skipped("no rank was analysed")
        least = max(2, int(np.ceil(LEAST_SHARE * len(summaries)))) if len(summaries) >= FEWEST_TO_COMPARE else 1
        enough = {name: self._cells.count[tally.cells] >= max(least, 1) for name, tally in self._tallies.items()}
        few = sum(tally.pruned + int((~enough[name].any(axis=1)).sum()) for name, tally in self._tallies.items())
        if len(summaries) >= FEWEST_TO_COMPARE:
            for name, tally in self._tallies.items():
                is_equal = self._cells.least[tally.cells] == self._cells.most[tally.cells]
                enough[name] &= ~(is_equal & (self._cells.count[tally.cells] == len(summaries)))
        # how many rows each analysis gets: all that it has, or an equal share of what is left
        row_counts = {name: int(known.sum()) for name, known in enough.items()}
        quotas, left = {}, MOST_ROWS
        for number, (name, count) in enumerate(sorted(row_counts.items(), key=lambda item: item[1])):
            quotas[name] = min(count, left // (len(row_counts) - number))
            left -= quotas[name]
        rows = [
            row
            for name, tally in self._tallies.items()
            for row in tally.rows(name, self._cells, np.argwhere(enough[name])[: quotas[name]], summaries)
        ]
        beyond = sum(row_counts.values()) - len(rows)
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


def aggregates(summaries: Sequence[RankSummary]) -> Findings | Skipped:
    """The statistics of all ranks."""
    aggregation = Aggregation()
    for member, summary in enumerate(summaries):
        aggregation.add(member, summary)
    return aggregation.outcome(summaries)


class _Cells:
    """The statistics of all figures, as columns. Those of a cell without ranks are as :meth:`_new` makes them."""

    def __init__(self) -> None:
        self.used = 0  #: cells in use; the columns may be longer
        self.count, self.mean, self.square, self.least, self.most, self.least_at, self.most_at = self._new(0)

    @staticmethod
    def _new(count: int) -> list[Floats]:
        return [np.full(count, fill) for fill in (0.0, 0.0, 0.0, np.inf, -np.inf, -1.0, -1.0)]

    def reserve(self, count: int) -> Places:
        """New cells."""
        cells = np.arange(self.used, self.used + count)
        self.used += count
        if self.used > len(self.count):
            more = self._new(max(self.used - len(self.count), len(self.count)))
            for name, column_ in zip(_STATISTICS, more, strict=True):
                setattr(self, name, np.concatenate((getattr(self, name), column_)))
        return cells

    def clear(self, cells: Places) -> None:
        """Take the ranks out of some cells."""
        for name, empty in zip(_STATISTICS, self._new(1), strict=True):
            getattr(self, name)[cells] = empty[0]

    def add(self, cells: Places, values: Floats, member: int) -> None:
        """Add a rank's ``values`` to distinct ``cells``; Welford's formulas keep mean and squared deviations."""
        known = np.isfinite(values)
        count, before = self.count[cells] + known, self.mean[cells]
        delta = np.where(known, values - before, 0.0)
        mean = before + delta / np.maximum(count, 1)
        self.square[cells] += np.where(known, delta * (values - mean), 0.0)
        self.count[cells], self.mean[cells] = count, mean
        low, high = known & (values < self.least[cells]), known & (values > self.most[cells])
        self.least[cells[low]], self.least_at[cells[low]] = values[low], member
        self.most[cells[high]], self.most_at[cells[high]] = values[high], member

    def join(self, cells: Places, other: _Cells, theirs: Places) -> None:
        """Add the ranks in the cells ``theirs`` of ``other`` to ``cells``, by the formulas of Chan, Golub and LeVeque
        (1979)."""
        count, more = self.count[cells], other.count[theirs]
        whole, shared = np.maximum(count + more, 1), (count > 0) & (more > 0)
        delta = np.where(shared, other.mean[theirs] - self.mean[cells], 0.0)
        joined = self.mean[cells] + delta * more / whole
        self.mean[cells] = np.where(count > 0, joined, other.mean[theirs])
        self.square[cells] += other.square[theirs] + delta**2 * count * more / whole
        self.count[cells] = count + more
        for value, at, is_further in (("least", "least_at", np.less), ("most", "most_at", np.greater)):
            there = getattr(other, value)[theirs]
            further = is_further(there, getattr(self, value)[cells])
            getattr(self, value)[cells[further]] = there[further]
            getattr(self, at)[cells[further]] = getattr(other, at)[theirs[further]]


class _Tally:
    """The keys of one analysis, in the order of first appearance, and the cells of each: a line a key, a column a
    figure."""

    def __init__(self, columns: Sequence[str], units: Sequence[str]) -> None:
        self.columns, self.units = columns, units
        self.pruned = 0  #: keys left out
        self._first: dict[str, int] = {}  #: the first cell of each key
        self._free: list[int] = []  #: first cells of keys left out
        self._last: tuple[Sequence[Sequence[str]], Places] | None = None

    @property
    def names(self) -> list[str]:
        """The keys as texts."""
        return list(self._first)

    @property
    def cells(self) -> Places:
        """The cells: a line for each key."""
        return self._lines(self._first.values())

    def cells_of(self, keys: Sequence[Sequence[str]], cells: _Cells) -> Places:
        """The cells of a rank's rows, row after row."""
        if self._last is None or self._last[0] != keys:  # usually all ranks have the same rows
            # equal keys of one rank (two devices, for example) are numbered
            taken: dict[str, int] = {}
            names = []
            for key in keys:
                text = ", ".join(key)
                taken[text] = taken.get(text, 0) + 1
                names.append(f"{text} #{taken[text]}" if taken[text] > 1 else text)
            self._last = keys, self.cells_of_names(names, cells).ravel()
        return self._last[1]

    def cells_of_names(self, names: Sequence[str], cells: _Cells) -> Places:
        """The cells of some keys, a line each; new ones for new keys."""
        new = [name for name in names if name not in self._first]
        missing = len(new) - len(self._free)
        if missing > 0:
            each = max(len(self.columns), 1)  # an analysis may have no figures
            self._free += cells.reserve(missing * each)[::each][::-1].tolist()
        for name in new:
            self._first[name] = self._free.pop()
        return self._lines(self._first[name] for name in names)

    def _lines(self, first: Iterable[int]) -> Places:
        return np.array(list(first), np.intp)[:, np.newaxis] + np.arange(len(self.columns))

    def bound(self, cells: _Cells) -> None:
        """Leave out the keys of single ranks if there are too many."""
        if len(self._first) <= MOST_KEYS:
            return
        count = cells.count[self.cells].max(axis=1, initial=0)
        kept = np.flatnonzero(count > 1)
        if len(kept) > MOST_KEYS:
            kept = np.sort(np.argsort(-count, kind="stable")[:MOST_KEYS])
        self.pruned += len(self._first) - len(kept)
        names, first = self.names, list(self._first.values())
        self._first = {names[place]: first[place] for place in kept.tolist()}
        free = sorted(set(first) - set(self._first.values()), reverse=True)
        cells.clear(self._lines(free).ravel())
        self._free, self._last = [*self._free, *free], None

    def rows(self, name: str, cells: _Cells, places: Places, summaries: Sequence[RankSummary]) -> Iterator[Row]:
        """The figures at ``places``: indexes of a key and of a column, a line each."""
        names, chosen = self.names, self.cells[places[:, 0], places[:, 1]]
        columns = (getattr(cells, each)[chosen].tolist() for each in _STATISTICS)
        for (key, figure), count, mean, square, *ends in zip(places.tolist(), *columns, strict=True):
            least, most, least_at, most_at = ends
            yield Row(
                analysis=name,
                of=_shortened(names[key]),
                figure=self.columns[figure],
                unit=self.units[figure],
                rank_count=int(count),
                min=least,
                mean=float(f"{mean:.7g}"),
                max=most,
                std=float(f"{np.sqrt(square / (count - 1)):.7g}") if count > 1 else 0.0,
                min_rank=summaries[int(least_at)].rank,
                max_rank=summaries[int(most_at)].rank,
            )


def _shortened(text: str) -> str:
    """A long key's beginning and end, with a checksum that tells it from others."""
    if len(text) <= _HEAD + _TAIL + 16:
        return text
    return f"{text[:_HEAD]} … {text[-_TAIL:]} ({zlib.crc32(text.encode('utf-8', 'replace')):08x})"
