"""HTA's questions about launches: statistics, operators and their delays, frequent sequences, CUPTI counters."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from augment.core.trace import Category
from augment.facts.gpu.counter_ranges import counter_ranges
from augment.facts.gpu.gpu_work import gpu_work
from augment.facts.gpu.launched_work import launch_delays
from augment.hta import frames as plots
from augment.hta.frames import frame_of, microseconds, pandas
from augment.hta.traces import Trace, overlaid
from augment.pipeline import augment
from augment.writers import chrome

if TYPE_CHECKING:
    import pandas as pd

_ALL = 1 << 30  #: of patterns


def cuda_kernel_launch_stats(
    t: Trace,
    ranks: Sequence[int] | None,
    runtime_cutoff: float,
    launch_delay_cutoff: float,
    include_memory_events: bool,
    visualize: bool,
) -> dict[int, pd.DataFrame]:
    """A frame for each rank: a row for each piece of GPU work with a known launch, in order of the launches."""
    return {
        rank: _launch_stats(t, rank, runtime_cutoff, launch_delay_cutoff, include_memory_events, visualize)
        for rank in t.chosen(ranks)
    }


def _launch_stats(
    t: Trace, rank: int, runtime_cutoff: float, launch_delay_cutoff: float, memory: bool, visualize: bool
) -> pd.DataFrame:
    trace = t.of_rank(rank)
    work, delays = gpu_work(trace), launch_delays(trace)
    if not memory:
        delays = delays.take(trace.events.category[work.row[delays.place]] == Category.KERNEL)
    delays = delays.take(np.argsort(delays.row, kind="stable"))
    frame = pandas().DataFrame(
        {
            "correlation": trace.events.correlation[delays.row],
            "cpu_duration": microseconds(delays.cpu_ns),
            "gpu_duration": microseconds(delays.gpu_ns),
            "launch_delay": microseconds(delays.delay_ns),
        }
    )
    if not len(frame):
        t.tell_why_not(rank, "launch_statistics")
    elif visualize:
        short = frame[(frame["cpu_duration"] <= runtime_cutoff) & (frame["gpu_duration"] < frame["cpu_duration"])]
        late = frame[frame["launch_delay"] > launch_delay_cutoff]
        outliers = frame[frame["cpu_duration"] > runtime_cutoff]
        lists = (
            (short, "cpu_duration", "Short GPU kernels (gpu op duration < cpu op duration)"),
            (outliers, "cpu_duration", f"Runtime event duration outliers (> {runtime_cutoff} us)"),
            (late, "launch_delay", f"Launch delay outliers (> {launch_delay_cutoff} us)"),
        )
        plots.show(lambda px: [px.histogram(frame, x=x, title=f"{title} on rank {rank}") for frame, x, title in lists])
    return frame


def aten_op_kernels_and_delay(
    t: Trace, ranks: Sequence[int] | None, sort_by: Sequence[str] | None
) -> dict[int, pd.DataFrame]:
    """A frame for each rank: a row for each ATen operator and sequence of kernels that the operator itself launches."""
    columns = ["aten_op_name", "kernel_sequence", "occurrence_count", "avg_aten_op_launch_delay", "avg_runtime_delay"]
    frames = {}
    for rank in t.chosen(ranks):
        records = [
            (
                row.operator,
                " -> ".join(row.kernel_sequence),
                row.count,
                round(row.mean_op_to_launch_ns / 1000, 3),
                round(row.mean_launch_to_kernel_ns / 1000, 3),
            )
            for row in t.rows(rank, "operator_launch_delay", operator_prefix="aten::")
        ]
        frame = frame_of(records, columns)
        frames[rank] = frame.sort_values(list(sort_by or ["occurrence_count"]), ascending=False, kind="stable")
    return frames


def frequent_cuda_kernel_sequences(
    t: Trace,
    operator_name: str,
    output_dir: str,
    min_pattern_len: int,
    rank: int,
    top_k: int,
    visualize: bool,
) -> pd.DataFrame:
    """All patterns of an operator; the ``top_k`` of them are drawn in a copy of the trace."""
    if not operator_name:
        warnings.warn("operator_name is empty: name an operator", stacklevel=3)
        return pandas().DataFrame()
    rank = t.chosen([rank] if rank else None)[0]  # HTA's default is 0
    asked = {"operator": operator_name, "min_kernel_count": min_pattern_len, "at_minimum_depth": True}
    rows = t.rows(rank, "frequent_kernel_patterns", top_pattern_count=_ALL, **asked)
    if not rows:
        return pandas().DataFrame()
    records = [
        ("|".join([row.operator, *row.pattern]), row.count, row.kernel_ns / 1000, row.cpu_ns / 1000) for row in rows
    ]
    columns = ["pattern", "count", "GPU kernel duration (us)", "CPU op duration (us)"]
    frame = pandas().DataFrame.from_records(records, columns=columns)
    frame = frame.sort_values(["count", "pattern"], ascending=[False, True], ignore_index=True)
    name = "frequent_kernel_patterns"
    options = {name: {**asked, "top_pattern_count": top_k}}
    drawn = augment(t.of_rank(rank), only=[name], options=options)
    chrome.write(drawn, Path(overlaid(output_dir, "overlaid_", t.trace_files[rank])))
    if visualize:
        shown = frame[:top_k].assign(pattern=frame["pattern"].str.replace("|", "<br>", regex=False))
        title = f"Top {len(shown)} frequent patterns for rank {rank}"
        plots.show(lambda px: px.bar(shown, x=shown.index, y="count", hover_data=["pattern"], title=title))
    return frame


def cupti_counter_data_with_operators(t: Trace, ranks: Sequence[int] | None) -> list[pd.DataFrame]:
    """A frame for each rank with ranges of known launches: a row for each range, a column for each counter."""
    frames = []
    for rank in t.chosen(ranks):
        ranges = counter_ranges(t.of_rank(rank))
        if not len(ranges.row):
            t.tell_why_not(rank, "cupti_counters")
            continue
        if ranges.operators is None:
            warnings.warn(f"rank {rank}: no operators: {ranges.problem}", stacklevel=3)
        stacks: Sequence[Sequence[str]] = ranges.operators or [()] * len(ranges.row)
        frame = t.get_trace(rank).loc[ranges.row].reset_index(drop=True).drop(columns=["s_name", "s_cat"])
        added: dict[str, list[Any]] = {
            "op_stack": [list(stack) for stack in stacks],
            "top_level_op": [stack[0] if stack else "" for stack in stacks],
            "bottom_level_op": [stack[-1] if stack else "" for stack in stacks],
        }
        counters = pandas().DataFrame(ranges.counters).drop(columns="flop", errors="ignore")
        frames.append(pandas().concat([frame, pandas().DataFrame(added), counters], axis=1))
    return frames
