"""HTA's main class."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct

from augment import arrays, facts, stragglers
from augment.core import COMPLETE, Category
from augment.errors import UsageError
from augment.hta import counters, frames
from augment.hta.traces import DEFAULT_TRACE_DIR, PathName, Trace, TraceFiles, overlaid
from augment.pipeline import augment
from augment.writers import chrome

if TYPE_CHECKING:
    import pandas as pd

    from augment.hta.cp_graph import CPGraph

Ranks = Sequence[int] | None
Instance = int | tuple[int, int] | None
FULL_QUEUE = 1024
OTHERS = "others"
_TYPES = ("COMPUTATION", "COMMUNICATION", "MEMORY")  #: in the order in which HTA joins them
_ALL_PATTERNS = 1 << 30
_ANNOTATIONS = (Category.USER_ANNOTATION, Category.CPU_OP, Category.PYTHON_FUNCTION)


class TraceAnalysis:
    """HTA's analyses of the traces of a job; times are in us.

    Args:
        trace_files: paths by rank, or paths whose traces contain their ranks; relative to ``trace_dir``.
        trace_dir: the folder of the traces; all of them are read if ``trace_files`` is not given.
        include_last_profiler_step: whether to keep the last step. By default it is left out if there are two or more.

    Raises:
        InputError: there is no trace, or it cannot be read.
    """

    def __init__(
        self,
        trace_files: TraceFiles | None = None,
        trace_dir: PathName = DEFAULT_TRACE_DIR,
        include_last_profiler_step: bool | None = False,
    ) -> None:
        self.t = Trace(trace_files, trace_dir)
        self.t.load_traces(include_last_profiler_step)

    def get_comm_comp_overlap(self, visualize: bool = True) -> pd.DataFrame:
        """The share of each rank's communication time that overlaps computation: ``comp_comm_overlap_pctg``."""
        records = [
            (rank, row.device, math.nan if row.overlap_ratio is None else round(100 * row.overlap_ratio, 2))
            for rank in self.t.get_ranks()
            for row in self.t.rows(rank, "communication_computation_overlap")
        ]
        frame = frames.table(records, ["rank", "device", "comp_comm_overlap_pctg"])
        if visualize and len(frame):
            title = "Computation-Communication Overlap"
            frames.show(lambda px: px.bar(frame, x="rank", y="comp_comm_overlap_pctg", title=title))
        return frame

    def get_profiler_steps(self) -> list[int]:
        """The numbers of the analysed steps."""
        return sorted({number for rank in self.t.get_ranks() for number in self.t.get_iterations(rank)})

    def get_potential_stragglers(
        self,
        profiler_steps: Sequence[int] | None = None,
        num_candidates: int = 2,
        visualize: bool = False,
        straggler_identification_impl: Callable[..., pd.Series] | None = None,
    ) -> list[int]:
        """The ranks that most often arrive last at the collectives of a step, most frequent first.

        :func:`augment.stragglers.stragglers` returns their scores and costs.

        Args:
            profiler_steps: the steps to analyse; None means all.
            num_candidates: how many ranks to name.
            visualize: draw the scores.
            straggler_identification_impl: as in HTA: called with the frames of all ranks with columns ``rank`` and
                ``idx``, the symbol table, ``num_candidates`` and ``visualize``; a Series of counts by rank.

        Raises:
            UsageError: the traces have none of ``profiler_steps``.
        """
        known, count = self.get_profiler_steps(), max(num_candidates, 1)
        chosen = known if profiler_steps is None else [step for step in profiler_steps if step in known]
        if profiler_steps is not None and not chosen:
            raise UsageError(f"no step of {list(profiler_steps)}; there are {known}")
        if straggler_identification_impl is not None:
            whole = frames.pandas().concat(self.t.get_all_traces(), names=["rank", "idx"]).reset_index()
            whole = whole[whole["iteration"].isin(chosen)]
            counts = straggler_identification_impl(whole, self.t.symbol_table, count, visualize)
            named: list[int] = counts.sort_values(ascending=False)[:count].index.tolist()
            return named
        if visualize:
            rows = stragglers.stragglers(self.t.events)
            scores = frames.pandas().DataFrame(
                {"rank": [row.rank for row in rows], "score": [row.score for row in rows]}
            )
            frames.show(lambda px: px.bar(scores, x="rank", y="score", title="Potential Stragglers"))
        late_ranks = stragglers.potential_stragglers(self.t.events, chosen or None, count)
        if not late_ranks:
            warnings.warn("no stragglers: no collective is shared by two ranks", stacklevel=2)
        return late_ranks

    def get_gpu_kernel_breakdown(
        self,
        visualize: bool = True,
        duration_ratio: float = 0.8,
        num_kernels: int = 10,
        include_memory_kernels: bool = True,
        image_renderer: str = "",
    ) -> tuple[pd.DataFrame, pd.DataFrame]:
        """The time of each combination of kernel types over all ranks, and the kernels of each rank and type.

        Args:
            visualize: draw them.
            duration_ratio: if there are more than ``num_kernels`` names, names whose cumulative sum (largest first) is
                above this quantile of all cumulative sums become "others".
            num_kernels: how many names are kept at most; the rest become "others".
            include_memory_kernels: whether copies and memsets count.
            image_renderer: plotly's.
        """
        types = _TYPES if include_memory_kernels else _TYPES[:2]
        times: dict[str, int] = {}
        records: list[tuple[Any, ...]] = []
        for rank in self.t.get_ranks():
            for row in self.t.rows(rank, "kernel_type_breakdown"):
                there = row.kernel_types.split(" overlapping ")
                if name := " overlapping ".join(each for each in types if each in there):
                    times[name] = times.get(name, 0) + row.time_ns
            rows = self.t.rows(rank, "kernel_breakdown")
            for kernel_type in types:
                named = [_Named.of(row) for row in rows if row.kernel_type == kernel_type]
                chosen = _largest(named, num_kernels, duration_ratio, lambda _: False)
                records += [(*_figures(row), kernel_type, rank) for row in chosen]
        shares = sorted(times.items(), key=lambda item: -item[1])
        total = sum(times.values())
        by_type = frames.table(
            [(name, frames.microseconds(ns), round(100 * ns / total, 1) if total else math.nan) for name, ns in shares],
            ["kernel_type", "sum", "percentage"],
        )
        records.sort(key=lambda record: (record[6], record[0], record[7]))
        kernels = frames.table(records, [*_COLUMNS, "kernel_type", "rank"])
        if visualize and len(kernels):
            title = "Kernel Type Percentage Across All Ranks"
            frames.show(
                lambda px: px.pie(by_type, values="percentage", names="kernel_type", title=title), image_renderer
            )
            for kernel_type, of_type in kernels.groupby("kernel_type"):
                _show_shares(of_type, f'Kernel type "{kernel_type}" - kernel distribution on each rank', image_renderer)
        return by_type, kernels

    def get_gpu_kernels_with_user_annotations(
        self, rank: int, expand_names: bool = True, shorten_names: bool = True, shortern_names: bool | None = None
    ) -> pd.DataFrame | None:
        """The GPU work of ``rank`` in order of time, each with its innermost ``user_annotation``.

        ``shortern_names`` is the name of ``shorten_names`` before HTA 0.6.0; if given, it takes precedence.
        """
        short = shorten_names if shortern_names is None else shortern_names
        trace = self.t.of_rank(rank)
        work = facts.gpu.work(trace)
        annotated = len(trace.events.slices_of(Category.USER_ANNOTATION, Category.GPU_USER_ANNOTATION)) > 0
        if not annotated or not len(work):
            self.t.tell_why_not(rank, "gpu_time_by_annotation")
        if not annotated:
            return None
        leaf = facts.gpu.annotations_of_work(trace, include_steps=True)
        names = [
            frames.NO_ARG if row == arrays.NO_INDEX else trace.strings[trace.events.name[row]] for row in leaf.tolist()
        ]
        frame = self.t.get_trace(rank).loc[work.row].copy()
        full, category = frame.pop("s_name"), frame.pop("s_cat")
        frame["user_annotation"] = frames.pandas().Series(names, index=frame.index, dtype=object)
        if expand_names:
            frame["s_name"] = full if short else frame["name"]
            frame["s_cat"] = category
            frame["s_user_annotation"] = frame["user_annotation"].replace(frames.NO_ARG, "")
        return frame.sort_values("ts", kind="stable").reset_index(drop=True)

    def get_gpu_user_annotation_breakdown(
        self,
        use_gpu_annotation: bool = True,
        visualize: bool = True,
        duration_ratio: float = 0.8,
        num_kernels: int = 1000,
        allowlist_patterns: Sequence[str] | None = None,
        image_renderer: str | None = None,
    ) -> pd.DataFrame | None:
        """The durations of annotations by name and rank; None without any.

        Arguments are those of :meth:`get_gpu_kernel_breakdown`. A name that matches one of ``allowlist_patterns``
        (regular expressions, anywhere in the name) never becomes one of the "others".
        """
        patterns = [re.compile(pattern) for pattern in allowlist_patterns or ()]
        side = "gpu" if use_gpu_annotation else "cpu"
        records = []
        for rank in self.t.get_ranks():
            named = [_Named.of(row) for row in self.t.rows(rank, "user_annotation_breakdown") if row.side == side]
            kept = _largest(
                named, num_kernels, duration_ratio, lambda name: any(wish.search(name) for wish in patterns)
            )
            records += [(*_figures(row), rank) for row in sorted(kept, key=lambda row: row.name)]
        if not records:
            warnings.warn(f"no annotation on the {side.upper()} in any trace", stacklevel=2)
            return None
        frame = frames.table(records, [*_COLUMNS, "rank"])
        if visualize:
            _show_shares(frame, "User annotation distribution on each rank", image_renderer)
        return frame

    def get_temporal_breakdown(self, visualize: bool = True) -> pd.DataFrame:
        """How long each rank's device computes, does other work, and is idle."""
        records = []
        for rank in self.t.get_ranks():
            for row in self.t.rows(rank, "temporal_breakdown"):
                times = (row.idle_ns, row.compute_ns, row.non_compute_ns)
                shares = (round(100 * time / row.span_ns, 2) if row.span_ns else math.nan for time in times)
                records.append((rank, row.device, *map(frames.microseconds, (*times, row.span_ns)), *shares))
        parts = ("idle_time", "compute_time", "non_compute_time")
        columns = [*(f"{part}(us)" for part in parts), "kernel_time(us)", *(f"{part}_pctg" for part in parts)]
        frame = frames.table(records, ["rank", "device", *columns])
        if visualize and len(frame):
            title = "Temporal breakdown across ranks"
            frames.show(lambda px: px.bar(frame, x="rank", y=[f"{part}_pctg" for part in parts], title=title))
        return frame

    def get_idle_time_breakdown(
        self,
        ranks: Ranks = None,
        streams: Sequence[int] | None = None,
        visualize: bool = True,
        visualize_pctg: bool = True,
        show_idle_interval_stats: bool = False,
        consecutive_kernel_delay: float = 30,
    ) -> tuple[pd.DataFrame, pd.DataFrame | None]:
        """The idle time of each stream by category and, on request, the statistics of the gaps.

        ``consecutive_kernel_delay`` is in us, as in HTA's code; HTA's documentation says ns.
        """
        gaps = [
            (rank, row)
            for rank in self.t.chosen(ranks)
            for row in self.t.rows(
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
                frames.microseconds(row.idle_ns),
                math.nan if row.idle_ratio is None else round(row.idle_ratio, 2),
            )
            for rank, row in gaps
        ]
        frame = frames.table(records, ["rank", "device", "stream", "idle_category", "idle_time", "idle_time_ratio"])
        if visualize and len(frame):
            y = "idle_time_ratio" if visualize_pctg else "idle_time"
            shown = frame.assign(stream=frame["stream"].astype(str))
            title = "Idle time breakdown per stream"
            frames.show(lambda px: px.bar(shown, x="stream", y=y, color="idle_category", facet_row="rank", title=title))
        if not show_idle_interval_stats:
            return frame, None
        # HTA's second frame, its index the category; the deviation of one gap is NaN, as frames.pandas has it
        statistics = []
        for rank, row in gaps:
            std = row.std_ns if row.gap_count > 1 else None
            figures = (row.mean_ns, std, row.min_ns, row.p25_ns, row.p50_ns, row.p75_ns, row.max_ns)
            us = (math.nan if ns is None else round(ns / 1000, 2) for ns in figures)
            statistics.append((row.category, rank, row.device, row.stream, float(row.gap_count), *us))
        columns = ["idle_category", "rank", "device", "stream", *counters.STATISTICS]
        return frame, frames.table(statistics, columns).set_index("idle_category")

    def get_frequent_cuda_kernel_sequences(
        self,
        operator_name: str,
        output_dir: str,
        min_pattern_len: int = 3,
        rank: int = 0,
        top_k: int = 5,
        visualize: bool = False,
        compress_other_kernels: bool = True,  # noqa: ARG002 - the source's events stay as they are
    ) -> pd.DataFrame:
        """The sequences of kernels that an operator launches, and a copy of the trace in which ``top_k`` are marked."""
        if not operator_name:
            warnings.warn("operator_name is empty: name an operator", stacklevel=2)
            return frames.pandas().DataFrame()
        rank = self.t.chosen([rank] if rank else None)[0]  # HTA's default is 0
        asked = {"operator": operator_name, "min_kernel_count": min_pattern_len, "at_minimum_depth": True}
        rows = self.t.rows(rank, "frequent_kernel_patterns", top_pattern_count=_ALL_PATTERNS, **asked)
        if not rows:
            return frames.pandas().DataFrame()
        records = [
            ("|".join([row.operator, *row.pattern]), row.count, row.kernel_ns / 1000, row.cpu_ns / 1000) for row in rows
        ]
        columns = ["pattern", "count", "GPU kernel duration (us)", "CPU op duration (us)"]
        frame = frames.pandas().DataFrame.from_records(records, columns=columns)
        frame = frame.sort_values(["count", "pattern"], ascending=[False, True], ignore_index=True)
        name = "frequent_kernel_patterns"
        options = {name: {**asked, "top_pattern_count": top_k}}
        drawn = augment(self.t.of_rank(rank), only=[name], options=options)
        chrome.write(drawn, Path(overlaid(output_dir, "overlaid_", self.t.trace_files[rank])))
        if visualize:
            shown = frame[:top_k].assign(pattern=frame["pattern"].str.replace("|", "<br>", regex=False))
            title = f"Top {len(shown)} frequent patterns for rank {rank}"
            frames.show(lambda px: px.bar(shown, x=shown.index, y="count", hover_data=["pattern"], title=title))
        return frame

    get_frequent_cuda_kernel_patterns = get_frequent_cuda_kernel_sequences  #: its old name

    def get_aten_op_kernels_and_delay(
        self, ranks: Ranks = None, sort_by: Sequence[str] | None = None
    ) -> dict[int, pd.DataFrame]:
        """The kernels that each ATen operator launches, and their launch delays; by rank."""
        columns = [
            "aten_op_name",
            "kernel_sequence",
            "occurrence_count",
            "avg_aten_op_launch_delay",
            "avg_runtime_delay",
        ]
        of_ranks = {}
        for rank in self.t.chosen(ranks):
            records = [
                (
                    row.operator,
                    " -> ".join(row.kernel_sequence),
                    row.count,
                    round(row.mean_op_to_launch_ns / 1000, 3),
                    round(row.mean_launch_to_kernel_ns / 1000, 3),
                )
                for row in self.t.rows(rank, "operator_launch_delay", operator_prefix="aten::")
            ]
            frame = frames.frame_of(records, columns)
            of_ranks[rank] = frame.sort_values(list(sort_by or ["occurrence_count"]), ascending=False, kind="stable")
        return of_ranks

    def get_cuda_kernel_launch_stats(
        self,
        ranks: Ranks = None,
        runtime_cutoff: float = 50,
        launch_delay_cutoff: float = 100,
        include_memory_events: bool = True,
        visualize: bool = True,
    ) -> dict[int, pd.DataFrame]:
        """The duration of each launch, the duration of its GPU work, and the delay between them; by rank."""
        of_ranks = {}
        for rank in self.t.chosen(ranks):
            trace = self.t.of_rank(rank)
            work, delays = facts.gpu.work(trace), facts.gpu.delays(trace)
            if not include_memory_events:
                delays = delays.take(trace.events.category[work.row[delays.place]] == Category.KERNEL)
            delays = delays.take(np.argsort(delays.row, kind="stable"))
            frame = frames.pandas().DataFrame(
                {
                    "correlation": trace.events.correlation[delays.row],
                    "cpu_duration": frames.microseconds(delays.cpu_ns),
                    "gpu_duration": frames.microseconds(delays.gpu_ns),
                    "launch_delay": frames.microseconds(delays.delay_ns),
                }
            )
            if not len(frame):
                self.t.tell_why_not(rank, "launch_statistics")
            elif visualize:
                short = frame[
                    (frame["cpu_duration"] <= runtime_cutoff) & (frame["gpu_duration"] < frame["cpu_duration"])
                ]
                late = frame[frame["launch_delay"] > launch_delay_cutoff]
                outliers = frame[frame["cpu_duration"] > runtime_cutoff]
                lists = (
                    (short, "cpu_duration", "Short GPU kernels (gpu op duration < cpu op duration)"),
                    (outliers, "cpu_duration", f"Runtime event duration outliers (> {runtime_cutoff} us)"),
                    (late, "launch_delay", f"Launch delay outliers (> {launch_delay_cutoff} us)"),
                )
                frames.show(partial(_histograms, lists, rank))
            of_ranks[rank] = frame
        return of_ranks

    def generate_trace_with_counters(
        self,
        time_series: counters.TimeSeriesTypes | None = None,
        ranks: Ranks = None,
        output_suffix: str = "_with_counters",
    ) -> dict[int, str]:
        """Write each rank's trace with counters next to the original; returns the files by rank."""
        return counters.generate_trace_with_counters(self.t, time_series, ranks, output_suffix)

    def get_queue_length_summary(self, ranks: Ranks = None) -> pd.DataFrame | None:
        """The length of each stream's queue, weighted by time."""
        return counters.queue_length_summary(self.get_queue_length_time_series(ranks))

    def get_queue_length_summary_from_time_series(
        self, queue_length_dict: Mapping[int, pd.DataFrame]
    ) -> pd.DataFrame | None:
        """A summary of :meth:`get_queue_length_time_series`, weighted by time."""
        return counters.queue_length_summary(queue_length_dict)

    def get_queue_length_time_series(self, ranks: Ranks = None) -> dict[int, pd.DataFrame]:
        """A row for each change of a stream's queue, by rank."""
        return counters.queue_length_time_series(self.t, ranks)

    get_queue_length_series = get_queue_length_time_series  #: its old name

    def get_time_spent_blocked_on_full_queue(
        self, queue_length_dict: Mapping[int, pd.DataFrame], max_queue_length: int = FULL_QUEUE
    ) -> pd.DataFrame | None:
        """How long the queue of each stream was full."""
        return counters.time_spent_blocked_on_full_queue(self.t, queue_length_dict, max_queue_length)

    def get_memory_bw_summary(self, ranks: Ranks = None) -> pd.DataFrame | None:
        """The bandwidth of each kind of copy in GB/s, weighted by time, while copying."""
        return counters.memory_bw_summary(self.get_memory_bw_time_series(ranks))

    def get_memory_bw_time_series(self, ranks: Ranks = None) -> dict[int, pd.DataFrame]:
        """A row for each change of the bandwidth of a kind of copy, by rank."""
        return counters.memory_bw_time_series(self.t, ranks)

    def get_cupti_counter_data_with_operators(self, ranks: Ranks = None) -> list[pd.DataFrame]:
        """The kernels' CUPTI counters with the operators around their launches; a frame for each rank with counters."""
        of_ranks = []
        for rank in self.t.chosen(ranks):
            ranges = facts.gpu.counter_ranges(self.t.of_rank(rank))
            if not len(ranges.row):
                self.t.tell_why_not(rank, "cupti_counters")
                continue
            if ranges.operators is None:
                warnings.warn(f"rank {rank}: no operators: {ranges.problem}", stacklevel=2)
            stacks: Sequence[Sequence[str]] = ranges.operators or [()] * len(ranges.row)
            frame = self.t.get_trace(rank).loc[ranges.row].reset_index(drop=True).drop(columns=["s_name", "s_cat"])
            added: dict[str, list[Any]] = {
                "op_stack": [list(stack) for stack in stacks],
                "top_level_op": [stack[0] if stack else "" for stack in stacks],
                "bottom_level_op": [stack[-1] if stack else "" for stack in stacks],
            }
            counters = frames.pandas().DataFrame(ranges.counters).drop(columns="flop", errors="ignore")
            of_ranks.append(frames.pandas().concat([frame, frames.pandas().DataFrame(added), counters], axis=1))
        return of_ranks

    def critical_path_analysis(
        self, rank: int, annotation: str, instance_id: Instance, data_load_events: Sequence[str] | None = None
    ) -> tuple[CPGraph, bool] | None:
        """The critical path within one or several instances of an annotation, and whether a path exists.

        The graph is None, with a warning, if no name on the host contains ``annotation``.

        Args:
            rank: the rank.
            annotation: a part of the annotation's name; empty for the whole trace.
            instance_id: the instance, counted from 0, or the first and the last instance; None means 0.
            data_load_events: ignored: data loaders are recognised by PyTorch's own annotation.

        Raises:
            UsageError: there is no such rank, or no such instance of the annotation.
        """
        if data_load_events:
            warnings.warn("data_load_events is ignored: enumerate(DataLoader) marks data loaders", stacklevel=2)
        from augment.hta.cp_graph import CPGraph

        part = self.t
        if annotation:
            # The rows on the host with ``annotation`` in their names
            trace = self.t.of_rank(rank)
            events = trace.events
            codes = [code for code, name in enumerate(trace.strings) if annotation in name]
            rows = np.flatnonzero(np.isin(events.name[:], codes) & (events.phase == COMPLETE))
            instances: arrays.Int64s = rows[np.isin(events.category[rows], _ANNOTATIONS)]
            if not len(instances):
                warnings.warn(
                    f"rank {rank}: no critical path: no name on the host contains {annotation!r}", stacklevel=2
                )
                return None
            first, last = instance_id if isinstance(instance_id, tuple) else (instance_id or 0, instance_id or 0)
            if not 0 <= first <= last or first >= len(instances):  # a range may end beyond the last, as in HTA
                asked = first if first == last else f"{first} to {last}"
                raise UsageError(
                    f"{trace.source.path}: no instance {asked}: {annotation!r} occurs {len(instances)} times"
                )
            chosen = instances[first : last + 1]
            end = int((events.ts[chosen] + events.dur[chosen]).max())
            part = self.t.clipped(rank, int(events.ts[chosen].min()), end)
        graph = CPGraph(part, self.t, rank)
        return graph, graph.critical_path()

    def overlay_critical_path_analysis(
        self,
        rank: int,
        critical_path_graph: CPGraph,
        output_dir: str,
        only_show_critical_events: bool = True,  # noqa: ARG002 - the source's events stay as they are
        show_all_edges: bool = False,
    ) -> str:
        """Write a copy of the trace with the critical path on a separate track; returns the file."""
        if show_all_edges:
            warnings.warn("show_all_edges: only the arrows of the path itself are drawn", stacklevel=2)
        path = overlaid(output_dir, "overlaid_critical_path_", self.t.trace_files[rank])
        chrome.write(augment(critical_path_graph.events, only=["critical_path"]), Path(path))
        return path


def _histograms(lists: Iterable[tuple[pd.DataFrame, str, str]], rank: int, px: Any) -> list[Any]:
    return [px.histogram(frame, x=x, title=f"{title} on rank {rank}") for frame, x, title in lists]


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


_COLUMNS = ("name", "sum (us)", "max (us)", "min (us)", "stddev", "mean (us)")


def _figures(row: _Named) -> tuple[Any, ...]:
    return row.name, *map(frames.microseconds, (row.sum, row.max, row.min, row.std, row.mean))


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
