"""HTA's filters of frames: callables that return the chosen rows and never change the frame.

    first_gemms = CompositeFilter([FirstIterationFilter(), GPUKernelFilter(), NameFilter(".*gemm")])
    first_gemms(analyzer.t.get_trace(0))

A frame that lacks a needed column is returned unfiltered, with a warning. Symbol tables are accepted but ignored.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from augment.errors import UsageError
from augment.hta.frames import NO_STREAM, SymbolTable

if TYPE_CHECKING:
    import pandas as pd

NO_ITERATION = -1
_SYNC = "cuda_sync"
_NAME_COLUMNS = ("name", "s_name")


class Filter:
    """Base class: a subclass defines :meth:`chosen`, and in ``columns`` the columns that it needs."""

    columns: tuple[str, ...] = ()

    def __call__(self, df: pd.DataFrame, symbol_table: SymbolTable | None = None) -> pd.DataFrame:  # noqa: ARG002
        """The rows of ``df`` that are chosen."""
        missing = [column for column in self.columns if column not in df]
        if missing:
            warnings.warn(f"not filtered: the frame has no column {', '.join(missing)}", stacklevel=2)
            return df
        return df.loc[self.chosen(df)]

    def chosen(self, df: pd.DataFrame) -> pd.Series:
        """Whether each row is chosen."""
        raise NotImplementedError


class IterationFilter(Filter):
    """The rows of some steps, by their numbers."""

    columns = ("iteration",)

    def __init__(self, iterations: int | Iterable[int]) -> None:
        self.iterations = _as_list(iterations)

    def chosen(self, df: pd.DataFrame) -> pd.Series:
        """Those of the steps."""
        return df["iteration"].isin(self.iterations)


class IterationIndexFilter(Filter):
    """The rows of some steps, by position among the frame's steps; all rows of a frame without steps."""

    columns = ("iteration",)

    def __init__(self, iteration_index: int | Iterable[int]) -> None:
        self.iteration_index = _as_list(iteration_index)

    def chosen(self, df: pd.DataFrame) -> pd.Series:
        """Those of the steps."""
        steps = sorted(set(df["iteration"]) - {NO_ITERATION})
        if not steps:
            return df["iteration"] == df["iteration"]
        numbers = [number for place, number in enumerate(steps) if place in self.iteration_index]
        if not numbers:
            warnings.warn(f"no step {self.iteration_index}: the frame has {len(steps)}", stacklevel=3)
        return df["iteration"].isin(numbers)


class FirstIterationFilter(IterationIndexFilter):
    """The rows of the first step."""

    def __init__(self) -> None:
        super().__init__(0)


class RankFilter(Filter):
    """The rows of some ranks, of a frame with a column ``rank``."""

    columns = ("rank",)

    def __init__(self, ranks: int | Iterable[int]) -> None:
        self.ranks = _as_list(ranks)

    def chosen(self, df: pd.DataFrame) -> pd.Series:
        """Those of the ranks."""
        return df["rank"].isin(self.ranks)


class TimeRangeFilter(Filter):
    """The rows that begin and end within a time range, us, both ends included."""

    columns = ("ts", "dur")

    def __init__(self, time_range: tuple[float, float]) -> None:
        self.time_start, self.time_end = time_range
        if self.time_start > self.time_end:
            raise UsageError(f"time_range: {self.time_start} is after {self.time_end}")

    def chosen(self, df: pd.DataFrame) -> pd.Series:
        """Those within; warns if the frame begins after the range, or ends before it."""
        if len(df) and (df["ts"].min() > self.time_end or (df["ts"] + df["dur"]).max() < self.time_start):
            there = f"{df['ts'].min():,.3f} to {(df['ts'] + df['dur']).max():,.3f} us"
            asked = f"{self.time_start:,.3f} to {self.time_end:,.3f} us"
            warnings.warn(f"no event in the range of {asked}: the frame has {there}, counted from 0", stacklevel=3)
        return df["ts"].ge(self.time_start) & (df["ts"] + df["dur"]).le(self.time_end)


class NameFilter(Filter):
    """The rows whose names match a regular expression at their start.

    The names come from ``name_column``; by default from ``name`` or, if the frame lacks it, from ``s_name``.
    """

    def __init__(
        self, name_pattern: str, symbol_table: SymbolTable | None = None, name_column: str | None = None
    ) -> None:
        self.name_pattern, self.symbol_table, self.name_column = name_pattern, symbol_table, name_column

    def __call__(self, df: pd.DataFrame, symbol_table: SymbolTable | None = None) -> pd.DataFrame:
        """The rows of ``df`` that match."""
        self.columns = (self._column(df),)
        return super().__call__(df, symbol_table)

    def chosen(self, df: pd.DataFrame) -> pd.Series:
        """Those that match."""
        return df[self._column(df)].astype(str).str.match(self.name_pattern)

    def _column(self, df: pd.DataFrame) -> str:
        return self.name_column or next((name for name in _NAME_COLUMNS if name in df), _NAME_COLUMNS[0])


NameIdColumnFilter = NameStringColumnFilter = NameFilter  #: names are text in every frame


class QueryFilter(Filter):
    """The rows that a pandas query chooses."""

    def __init__(self, query_str: str) -> None:
        self.filter_query = query_str

    def __call__(self, df: pd.DataFrame, symbol_table: SymbolTable | None = None) -> pd.DataFrame:  # noqa: ARG002
        """The rows of ``df`` that the query chooses."""
        return df.query(self.filter_query)


ZeroDurationFilter = QueryFilter("dur > 0")  #: leaves out rows of zero duration


class GPUKernelFilter(Filter):
    """GPU work with a launch or a correlation, and synchronisations (``cuda_sync``)."""

    columns = ("stream", "correlation", "cat")

    def chosen(self, df: pd.DataFrame) -> pd.Series:
        """Those."""
        linked = df["correlation"].ge(0)
        if "index_correlation" in df:
            linked |= df["index_correlation"].ge(0)
        return (df["stream"].ne(NO_STREAM) & linked) | df["cat"].eq(_SYNC)


class CPUOperatorFilter(Filter):
    """The events on the host."""

    columns = ("stream", "cat")

    def chosen(self, df: pd.DataFrame) -> pd.Series:
        """That."""
        return df["stream"].eq(NO_STREAM) & df["cat"].ne(_SYNC)


class MemCopyEventFilter(Filter):
    """The copies of one kind, by their whole name, such as ``Memcpy HtoD (Pinned -> Device)``."""

    columns = ("name", "cat")

    def __init__(self, memory_copy_type: str, symbol_table: SymbolTable | None = None) -> None:
        self.memory_copy_type, self.symbol_table = memory_copy_type, symbol_table

    def chosen(self, df: pd.DataFrame) -> pd.Series:
        """Those."""
        return df["name"].eq(self.memory_copy_type) & df["cat"].str.contains("memcpy", case=False)


class CompositeFilter(Filter):
    """Filters, one after the other."""

    def __init__(self, filters: Sequence[Callable[..., pd.DataFrame]]) -> None:
        self.filters = list(filters)

    def __call__(self, df: pd.DataFrame, symbol_table: SymbolTable | None = None) -> pd.DataFrame:
        """The rows of ``df`` that all choose."""
        for each in self.filters:
            df = each(df, symbol_table)
        return df


def _as_list(numbers: int | Iterable[int]) -> list[Any]:
    return [numbers] if isinstance(numbers, int) else list(numbers)
