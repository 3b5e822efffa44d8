"""HTA's breakdowns: temporal, idle time, overlap, kernels, annotations."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct

from augment.arrays import NO_INDEX
from augment.core.trace import Category
from augment.facts.gpu.gpu_time import annotations_of_work
from augment.facts.gpu.gpu_work import gpu_work
from augment.hta import frames
from augment.hta.frames import NO_ARG, microseconds, pandas, table
from augment.hta.traces import Trace

if TYPE_CHECKING:
    import pandas as pd

OTHERS = "others"
_TYPES = ("COMPUTATION", "COMMUNICATION", "MEMORY")  #: in the order in which HTA joins them
_STATISTICS = ("count", "mean", "std", "min", "25%", "50%", "75%", "max")


def temporal_breakdown(t: Trace, visualize: bool) -> pd.DataFrame:
    """A row for each rank (and device, if a rank has several)."""
    records = []
    for rank in t.get_ranks():
        for row in t.rows(rank, "temporal_breakdown"):
            times = (row.idle_ns, row.compute_ns, row.non_compute_ns)
            shares = (round(100 * time / row.span_ns, 2) if row.span_ns else math.nan for time in times)
            records.append((rank, row.device, *map(microseconds, (*times, row.span_ns)), *shares))
    parts = ("idle_time", "compute_time", "non_compute_time")
    columns = [*(f"{part}(us)" for part in parts), "kernel_time(us)", *(f"{part}_pctg" for part in parts)]
    frame = table(records, ["rank", "device", *columns])
    if visualize and len(frame):
        title = "Temporal breakdown across ranks"
        frames.show(lambda px: px.bar(frame, x="rank", y=[f"{part}_pctg" for part in parts], title=title))
    return frame


def comm_comp_overlap(t: Trace, visualize: bool) -> pd.DataFrame:
    """A row for each rank; NaN without communication."""
    records = [
        (rank, row.device, math.nan if row.overlap_ratio is None else round(100 * row.overlap_ratio, 2))
        for rank in t.get_ranks()
        for row in t.rows(rank, "communication_computation_overlap")
    ]
    frame = table(records, ["rank", "device", "comp_comm_overlap_pctg"])
    if visualize and len(frame):
        title = "Computation-Communication Overlap"
        frames.show(lambda px: px.bar(frame, x="rank", y="comp_comm_overlap_pctg", title=title))
    return frame


def idle_time_breakdown(
    t: Trace,
    ranks: Sequence[int] | None,
    streams: Sequence[int] | None,
    visualize: bool,
    visualize_pctg: bool,
    show_idle_interval_stats: bool,
    consecutive_kernel_delay: float,
) -> tuple[pd.DataFrame, pd.DataFrame | None]:
    """The idle time by category, and the statistics of the gaps if they are asked for."""
    gaps = [
        (rank, row)
        for rank in t.chosen(ranks)
        for row in t.rows(
            rank, "idle_time_breakdown", consecutive_kernel_delay_ns=round(consecutive_kernel_delay * 1000)
        )
        if (not streams or row.stream in streams) and (row.gap_count or row.category == "other")
    ]
    records = [
        (
            rank,
            row.device,
            row.stream,
            row.category,
            microseconds(row.idle_ns),
            math.nan if row.idle_ratio is None else round(row.idle_ratio, 2),
        )
        for rank, row in gaps
    ]
    frame = table(records, ["rank", "device", "stream", "idle_category", "idle_time", "idle_time_ratio"])
    if visualize and len(frame):
        y = "idle_time_ratio" if visualize_pctg else "idle_time"
        shown = frame.assign(stream=frame["stream"].astype(str))
        title = "Idle time breakdown per stream"
        frames.show(lambda px: px.bar(shown, x="stream", y=y, color="idle_category", facet_row="rank", title=title))
    if not show_idle_interval_stats:
        return frame, None
    # HTA's second frame, its index the category; the deviation of one gap is NaN, as pandas has it
    statistics = []
    for rank, row in gaps:
        std = row.std_ns if row.gap_count > 1 else None
        figures = (row.mean_ns, std, row.min_ns, row.p25_ns, row.p50_ns, row.p75_ns, row.max_ns)
        us = (math.nan if ns is None else round(ns / 1000, 2) for ns in figures)
        statistics.append((row.category, rank, row.device, row.stream, float(row.gap_count), *us))
    columns = ["idle_category", "rank", "device", "stream", *_STATISTICS]
    return frame, table(statistics, columns).set_index("idle_category")


class _Named(Struct, frozen=True):
    """Statistics of the durations of one name, ns."""

    name: str
    count: int
    sum: float
    mean: float
    min: float
    max: float
    std: float

    @classmethod
    def of(cls, row: Any) -> _Named:
        """From a row of `kernel_breakdown` or `user_annotation_breakdown`."""
        return cls(row.name, row.count, row.sum_ns, row.mean_ns, row.min_ns, row.max_ns, row.std_ns)


def gpu_kernel_breakdown(
    t: Trace, visualize: bool, duration_ratio: float, num_kernels: int, include_memory_kernels: bool, renderer: str
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The share of each combination of kernel types over all ranks, and each rank's kernels by type."""
    types = _TYPES if include_memory_kernels else _TYPES[:2]
    times: dict[str, int] = {}
    records: list[tuple[Any, ...]] = []
    for rank in t.get_ranks():
        for row in t.rows(rank, "kernel_type_breakdown"):
            if name := " overlapping ".join(each for each in types if each in row.kernel_types.split(" overlapping ")):
                times[name] = times.get(name, 0) + row.time_ns
        rows = t.rows(rank, "kernel_breakdown")
        for kernel_type in types:
            named = [_Named.of(row) for row in rows if row.kernel_type == kernel_type]
            chosen = _largest(named, num_kernels, duration_ratio, lambda _: False)
            records += [(*_figures(row), kernel_type, rank) for row in chosen]
    shares = sorted(times.items(), key=lambda item: -item[1])
    total = sum(times.values())
    by_type = table(
        [(name, microseconds(ns), round(100 * ns / total, 1) if total else math.nan) for name, ns in shares],
        ["kernel_type", "sum", "percentage"],
    )
    records.sort(key=lambda record: (record[6], record[0], record[7]))
    kernels = table(records, [*_COLUMNS, "kernel_type", "rank"])
    if visualize and len(kernels):
        title = "Kernel Type Percentage Across All Ranks"
        frames.show(lambda px: px.pie(by_type, values="percentage", names="kernel_type", title=title), renderer)
        for kernel_type, of_type in kernels.groupby("kernel_type"):
            _show_shares(of_type, f'Kernel type "{kernel_type}" - kernel distribution on each rank', renderer)
    return by_type, kernels


def user_annotation_breakdown(
    t: Trace,
    use_gpu_annotation: bool,
    visualize: bool,
    duration_ratio: float,
    num_kernels: int,
    allowlist_patterns: Sequence[str] | None,
    renderer: str | None,
) -> pd.DataFrame | None:
    """The durations of each rank's annotations by name; None if there are none on that side."""
    patterns = [re.compile(pattern) for pattern in allowlist_patterns or ()]
    side = "gpu" if use_gpu_annotation else "cpu"
    records = []
    for rank in t.get_ranks():
        named = [_Named.of(row) for row in t.rows(rank, "user_annotation_breakdown") if row.side == side]
        kept = _largest(named, num_kernels, duration_ratio, lambda name: any(wish.search(name) for wish in patterns))
        records += [(*_figures(row), rank) for row in sorted(kept, key=lambda row: row.name)]
    if not records:
        warnings.warn(f"no annotation on the {side.upper()} in any trace", stacklevel=3)
        return None
    frame = table(records, [*_COLUMNS, "rank"])
    if visualize:
        _show_shares(frame, "User annotation distribution on each rank", renderer)
    return frame


_COLUMNS = ("name", "sum (us)", "max (us)", "min (us)", "stddev", "mean (us)")


def _figures(row: _Named) -> tuple[Any, ...]:
    return row.name, *map(microseconds, (row.sum, row.max, row.min, row.std, row.mean))


def _largest(rows: Iterable[_Named], most: int, ratio: float, keep: Callable[[str], bool]) -> list[_Named]:
    """Group the names that HTA does not show as "others".

    If there are more than ``most`` names, "others" are the names beyond ``most`` and those whose cumulative sum is
    above the ``ratio`` quantile of all cumulative sums. Names for which ``keep`` is true are never grouped.
    """
    by_name: dict[str, list[_Named]] = {}
    for row in rows:
        by_name.setdefault(row.name, []).append(row)
    named = sorted((_pooled(name, same) for name, same in by_name.items()), key=lambda row: -row.sum)
    if len(named) <= most:
        return named
    until = np.cumsum([row.sum for row in named])
    is_other = (until > np.quantile(until, ratio)) | (np.arange(len(named)) >= most)
    others = [row for row, other in zip(named, is_other, strict=True) if other and not keep(row.name)]
    chosen = [row for row in named if row not in others]
    return [*chosen, _pooled(OTHERS, others)] if others else chosen


def _pooled(name: str, rows: Sequence[_Named]) -> _Named:
    """The combined statistics of all ``rows``."""
    if len(rows) == 1:
        first = rows[0]
        return _Named(name, first.count, first.sum, first.mean, first.min, first.max, first.std)
    count, total = sum(row.count for row in rows), sum(row.sum for row in rows)
    mean = total / count
    squares = sum((row.count - 1) * row.std**2 + row.count * (row.mean - mean) ** 2 for row in rows)
    std = math.sqrt(squares / (count - 1))
    return _Named(name, count, total, mean, min(row.min for row in rows), max(row.max for row in rows), std)


def _show_shares(frame: pd.DataFrame, title: str, renderer: str | None) -> None:
    """A pie for each rank."""
    frames.show(lambda px: px.pie(frame, values="sum (us)", names="name", facet_col="rank", title=title), renderer)


def gpu_kernels_with_user_annotations(
    t: Trace, rank: int, expand_names: bool, shorten_names: bool
) -> pd.DataFrame | None:
    """The frame of a rank's GPU work with the leaf annotation of each; None if the trace has no annotation."""
    trace = t.of_rank(rank)
    work = gpu_work(trace)
    annotated = len(trace.events.slices_of(Category.USER_ANNOTATION, Category.GPU_USER_ANNOTATION)) > 0
    if not annotated or not len(work):
        t.tell_why_not(rank, "gpu_time_by_annotation")
    if not annotated:
        return None
    leaf = annotations_of_work(trace, include_steps=True)
    names = [NO_ARG if row == NO_INDEX else trace.strings[trace.events.name[row]] for row in leaf.tolist()]
    frame = t.get_trace(rank).loc[work.row].copy()
    full, category = frame.pop("s_name"), frame.pop("s_cat")
    frame["user_annotation"] = pandas().Series(names, index=frame.index, dtype=object)
    if expand_names:
        frame["s_name"] = full if shorten_names else frame["name"]
        frame["s_cat"] = category
        frame["s_user_annotation"] = frame["user_annotation"].replace(NO_ARG, "")
    return frame.sort_values("ts", kind="stable").reset_index(drop=True)
