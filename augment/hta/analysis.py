"""HTA's main class."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from augment import stragglers
from augment.errors import UsageError
from augment.hta import breakdowns, counters, critical_path, launches
from augment.hta import frames as plots
from augment.hta.counters import TimeSeriesTypes
from augment.hta.critical_path import Instance
from augment.hta.frames import pandas
from augment.hta.traces import DEFAULT_TRACE_DIR, PathName, Trace, TraceFiles

if TYPE_CHECKING:
    import pandas as pd

    from augment.hta.cp_graph import CPGraph

Ranks = Sequence[int] | None
FULL_QUEUE = 1024


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
        return breakdowns.comm_comp_overlap(self.t, visualize)

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
            frames = pandas().concat(self.t.get_all_traces(), names=["rank", "idx"]).reset_index()
            frames = frames[frames["iteration"].isin(chosen)]
            counts = straggler_identification_impl(frames, self.t.symbol_table, count, visualize)
            named: list[int] = counts.sort_values(ascending=False)[:count].index.tolist()
            return named
        if visualize:
            rows = stragglers.stragglers(self.t.events)
            scores = pandas().DataFrame({"rank": [row.rank for row in rows], "score": [row.score for row in rows]})
            plots.show(lambda px: px.bar(scores, x="rank", y="score", title="Potential Stragglers"))
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
        return breakdowns.gpu_kernel_breakdown(
            self.t, visualize, duration_ratio, num_kernels, include_memory_kernels, image_renderer
        )

    def get_gpu_kernels_with_user_annotations(
        self,
        rank: int,
        expand_names: bool = True,
        shorten_names: bool = True,
        shortern_names: bool | None = None,
    ) -> pd.DataFrame | None:
        """The GPU work of ``rank`` in order of time, each with its innermost ``user_annotation``.

        ``shortern_names`` is the name of ``shorten_names`` before HTA 0.6.0; if given, it takes precedence.
        """
        short = shorten_names if shortern_names is None else shortern_names
        return breakdowns.gpu_kernels_with_user_annotations(self.t, rank, expand_names, short)

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
        return breakdowns.user_annotation_breakdown(
            self.t, use_gpu_annotation, visualize, duration_ratio, num_kernels, allowlist_patterns, image_renderer
        )

    def get_temporal_breakdown(self, visualize: bool = True) -> pd.DataFrame:
        """How long each rank's device computes, does other work, and is idle."""
        return breakdowns.temporal_breakdown(self.t, visualize)

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
        return breakdowns.idle_time_breakdown(
            self.t, ranks, streams, visualize, visualize_pctg, show_idle_interval_stats, consecutive_kernel_delay
        )

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
        return launches.frequent_cuda_kernel_sequences(
            self.t, operator_name, output_dir, min_pattern_len, rank, top_k, visualize
        )

    get_frequent_cuda_kernel_patterns = get_frequent_cuda_kernel_sequences  #: its old name

    def get_aten_op_kernels_and_delay(
        self, ranks: Ranks = None, sort_by: Sequence[str] | None = None
    ) -> dict[int, pd.DataFrame]:
        """The kernels that each ATen operator launches, and their launch delays; by rank."""
        return launches.aten_op_kernels_and_delay(self.t, ranks, sort_by)

    def get_cuda_kernel_launch_stats(
        self,
        ranks: Ranks = None,
        runtime_cutoff: float = 50,
        launch_delay_cutoff: float = 100,
        include_memory_events: bool = True,
        visualize: bool = True,
    ) -> dict[int, pd.DataFrame]:
        """The duration of each launch, the duration of its GPU work, and the delay between them; by rank."""
        return launches.cuda_kernel_launch_stats(
            self.t, ranks, runtime_cutoff, launch_delay_cutoff, include_memory_events, visualize
        )

    def generate_trace_with_counters(
        self,
        time_series: TimeSeriesTypes | None = None,
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
        return launches.cupti_counter_data_with_operators(self.t, ranks)

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
        return critical_path.critical_path_analysis(self.t, rank, annotation, instance_id)

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
        return critical_path.overlay_critical_path_analysis(self.t, rank, critical_path_graph, output_dir)
