"""HTA's call graph, as columns of the frames, and its Gantt charts of frames.

Charts are shown where other plots are: in a notebook, or by the renderer that ``PLOTLY_RENDERER`` names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np

from augment import facts
from augment.arrays import NO_INDEX
from augment.core import Trace as Events
from augment.core import text
from augment.errors import UsageError
from augment.hta.frames import NO_STREAM, SymbolTable, installed, microseconds, pandas, show
from augment.hta.traces import Trace

if TYPE_CHECKING:
    import pandas as pd

ANNOTATION_STREAM = 0  #: where :func:`align_module_with_kernels` puts annotations
_BACKWARD, _STEP = "## backward ##", "ProfilerStep#"  #: annotations in which the backward pass lies


class CallGraph:
    """Adds HTA's columns of the call stacks to the frames of ``ranks`` (by default of all).

    ``parent``: the index of the innermost event around; of GPU work its launch; -1 for none. ``depth``: 0 without a
    parent. ``height``: 0 for GPU work, else at least 1. ``num_kernels``, ``kernel_dur_sum``, ``kernel_span``,
    ``first_kernel_start`` and ``last_kernel_end`` (us) are of the GPU work that an event and all below it launch;
    0, 0, 0, -1 and -1 without any (of GPU work, the second and third are its duration). Where one thread runs the
    steps and one the backward pass, what is outermost on the latter lies in ``## backward ##``, or else in the
    step, around it. ``mapping`` has a row for each thread.
    """

    def __init__(self, trace: Trace, ranks: Sequence[int] | None = None) -> None:
        self.trace_data = trace
        self.ranks = [rank for rank in trace.get_ranks() if not ranks or rank in ranks]
        if not self.ranks:
            raise UsageError(f"no rank {', '.join(map(str, ranks or ()))}: there are {trace.get_ranks()}")
        rows: list[tuple[Any, ...]] = []
        for rank in self.ranks:
            labels = _add_columns(trace.of_rank(rank), trace.get_trace(rank), trace.min_ts)
            rows += [(rank, pid, tid, label) for (pid, tid), label in labels.items()]
        self.mapping = pandas().DataFrame(rows, columns=["rank", "pid", "tid", "label"])


def _add_columns(events: Events, frame: pd.DataFrame, origin_ns: int) -> dict[tuple[Any, Any], str]:
    """Add the columns to the frame of a rank. Returns a label for each thread: main, bwd, or its first name."""
    stacks, work, table = facts.host.stacks(events), facts.gpu.work(events), events.events
    parent = np.full(len(table), NO_INDEX, np.int64)
    inner = np.flatnonzero(stacks.parent >= 0)
    parent[stacks.row[inner]] = stacks.row[stacks.parent[inner]]
    labels: dict[int, str] = {}
    names = np.array(events.strings, object)[table.name[stacks.row]]
    thread = table.track[stacks.row]
    for track in np.unique(thread).tolist():
        on_thread = names[thread == track]
        is_main, is_backward = (any(part in name for name in on_thread) for part in (_STEP, "autograd::"))
        labels[track] = "main" if is_main else "bwd" if is_backward else str(on_thread[0])
    main, backward = ([track for track, label in labels.items() if label == kind] for kind in ("main", "bwd"))
    if len(main) == len(backward) == 1:
        of_main = stacks.row[thread == main[0]]
        name = np.array(events.strings, object)[table.name[of_main]]
        around = of_main[[each.startswith(_BACKWARD) for each in name]]
        if not len(around):
            around = of_main[[each.startswith(_STEP) for each in name]]
        outermost = stacks.row[(thread == backward[0]) & (stacks.parent < 0)]
        place = np.searchsorted(table.ts[around], table.ts[outermost], side="right") - 1
        inside = (place >= 0) & (table.end[outermost] <= table.end[around[place]])
        parent[outermost[inside]] = around[place[inside]]
    launched = work.launch != NO_INDEX
    parent[work.row[launched]] = work.launch[launched]
    depth = np.zeros(len(table), np.int64)
    above = parent.copy()
    while (going := above >= 0).any():
        depth[going] += 1
        above[going] = parent[above[going]]
    known = np.zeros(len(table), np.bool_)
    known[stacks.row] = known[work.row] = True
    height, count = np.where(known, 1, NO_INDEX), np.zeros(len(table), np.int64)
    height[work.row], count[work.row] = 0, 1
    total = np.where(count > 0, np.maximum(table.dur[:], 0), 0)
    first = np.where(count > 0, table.ts[:], np.iinfo(np.int64).max)
    last = np.where(count > 0, table.ts[:] + total, np.iinfo(np.int64).min)
    for level in range(int(depth.max(initial=0)), 0, -1):
        here = np.flatnonzero((depth == level) & (parent >= 0))
        np.maximum.at(height, parent[here], height[here] + 1)
        for sums in (count, total):
            np.add.at(sums, parent[here], sums[here])
        np.minimum.at(first, parent[here], first[here])
        np.maximum.at(last, parent[here], last[here])
    span = np.where(count > 0, np.where(count > 0, last, 0) - np.where(count > 0, first, 0), 0)
    count[work.row] = 0  # of what an event launches
    has = count > 0
    row = frame["index"].to_numpy(np.int64)
    frame["parent"], frame["depth"] = parent[row], np.where(known, depth, NO_INDEX)[row]
    frame["height"], frame["num_kernels"] = height[row], count[row]
    frame["kernel_dur_sum"] = microseconds(total[row])
    for name_of, ns in (("first_kernel_start", first), ("last_kernel_end", last)):
        frame[name_of] = np.where(has, microseconds(np.where(has, ns, origin_ns) - origin_ns), -1.0)[row]
    frame["kernel_span"] = microseconds(span[row])
    tracks = events.tracks
    return {(tracks[track].pid, tracks[track].tid): label for track, label in labels.items()}


def align_module_with_kernels(
    events_df: pd.DataFrame,
    module_list: Sequence[str],
    sym_table: SymbolTable | None = None,  # noqa: ARG001 - names are text
    include_original_cpu_events: bool = False,
) -> pd.DataFrame:
    """The GPU work of a frame (and the host's events), and with it, as if on stream 0, the host's events whose names
    match any of ``module_list`` (regular expressions), over the time of the work that they launched.

    Raises:
        UsageError: the frame lacks the columns of :class:`CallGraph`.
    """
    missing = [column for column in ("num_kernels", "first_kernel_start", "kernel_span") if column not in events_df]
    if missing:
        raise UsageError(f"the frame has no column {', '.join(missing)}: run CallGraph(trace) first")
    on_host = events_df["stream"].eq(NO_STREAM)
    named = events_df["name"].astype(str).str.contains("|".join(module_list), regex=True)
    modules = events_df[on_host & named & events_df["num_kernels"].ge(1)].copy()
    modules["ts"], modules["dur"] = modules["first_kernel_start"], modules["kernel_span"]
    modules["stream"] = ANNOTATION_STREAM
    kept = events_df if include_original_cpu_events else events_df[~on_host]
    return pandas().concat([kept, modules], ignore_index=True)


class PlotFormat(Enum):
    """What :meth:`Timeline.plot` does with its figure: return it as HTML, show it, or only save it."""

    HTML = "html"
    Inline = "inline"
    File = "file"


@dataclass
class TimelinePlotSetting:
    """How to draw: short events are drawn as if they took ``short_events_display_duration`` us, to be seen."""

    amplify_short_events: bool = True
    short_events_display_duration: float = 1000
    task_height: int = 30
    plot_format: PlotFormat = PlotFormat.Inline


class Timeline:
    """A Gantt chart of the events of a frame: a row for each stream of each rank, or for each depth on the host."""

    def __init__(
        self,
        timeline_events: pd.DataFrame,
        symbol_table: SymbolTable | None = None,
        filter_func: Callable[..., pd.DataFrame] | None = None,
        setting: TimelinePlotSetting | None = None,
        hover_columns: Sequence[str] = ("rank", "iteration", "stream", "cat", "index", "dur"),
    ) -> None:
        chosen = timeline_events if filter_func is None else filter_func(timeline_events, symbol_table)
        self.symbol_table, self.setting = symbol_table, setting or TimelinePlotSetting()
        self.hover_columns = [name for name in hover_columns if name in chosen]
        # the row of the chart that each event lies in
        depths = chosen["depth"].tolist() if "depth" in chosen else [None] * len(chosen)
        ranks = chosen["rank"].tolist() if "rank" in chosen else [None] * len(chosen)
        several = len(set(ranks)) > 1
        tasks = []
        for rank, stream, depth in zip(ranks, chosen["stream"].tolist(), depths, strict=True):
            row = (
                f"gpu stream {stream:03}" if isinstance(stream, int) and stream != NO_STREAM else f"gpu stream {stream}"
            )
            if stream == NO_STREAM:
                row = "cpu events" if depth is None else f"cpu level {int(depth):03}"
            elif stream == ANNOTATION_STREAM and "num_kernels" in chosen:
                row = "gpu annotation"
            tasks.append(f"rank {rank} {row}" if several else row)
        self.timeline_events = chosen.assign(
            label=[text.short(str(name)) for name in chosen["name"]],
            task=tasks,
            start=chosen["ts"] - (chosen["ts"].min() if len(chosen) else 0),
            shown=chosen["dur"].clip(lower=self.setting.short_events_display_duration)
            if self.setting.amplify_short_events
            else chosen["dur"],
        ).sort_values(["task", "start"])

    def plot(self, title: str, save_path: str | None = None) -> str | None:
        """Show the chart, or do what the setting's ``plot_format`` says; and save it as ``save_path`` (HTML)."""
        if not installed():
            return None
        kind = self.setting.plot_format
        if kind is PlotFormat.Inline:
            show(lambda express: self._figure(express, title))
        if save_path is None and kind is not PlotFormat.HTML:
            return None
        import plotly.express as express

        page: str = self._figure(express, title).to_html(include_plotlyjs="cdn")
        if save_path is not None:
            with open(save_path, "w", encoding="utf-8") as file:
                file.write(page)
        return page if kind is PlotFormat.HTML else None

    def _figure(self, express: Any, title: str) -> Any:
        events, tasks = self.timeline_events, sorted(self.timeline_events["task"].unique())
        figure = express.bar(
            events,
            base="start",
            x="shown",
            y="task",
            color="label",
            orientation="h",
            hover_data=self.hover_columns,
            category_orders={"task": tasks},
            labels={"shown": "us", "label": "name"},
            height=250 + self.setting.task_height * len(tasks),
            title=title,
        )
        return figure.update_layout(barmode="overlay", xaxis_title="us")


def plot_timeline_gpu_kernels(
    title: str,
    df: pd.DataFrame,
    symbol_table: SymbolTable | None = None,
    ranks: Sequence[int] | None = None,
    iterations: Sequence[int] | None = None,
    streams: Sequence[int] | None = None,
    duration_threshold: float = 1000,
) -> None:
    """Draw the GPU work of a frame with a column ``rank``; of some ``ranks``, ``iterations`` (steps) and ``streams``.

    Work shorter than ``duration_threshold`` us is drawn as if it took so long."""
    chosen = df["stream"].ne(NO_STREAM)
    for column, wanted in (("rank", ranks), ("iteration", iterations), ("stream", streams)):
        chosen &= df[column].isin(list(wanted)) if wanted is not None else True
    setting = TimelinePlotSetting(short_events_display_duration=duration_threshold)
    Timeline(df[chosen], symbol_table, setting=setting).plot(title)
