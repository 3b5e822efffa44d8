"""HTA's time series of queues and copies, their summaries, and traces with counters."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from enum import Flag, auto
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from augment.arrays import Int64s, time_weighted
from augment.facts.gpu.device_activity import copy_rates, queue_lengths, rows_of_changes
from augment.hta import frames
from augment.hta.frames import frame_of, pandas, without_single_device
from augment.hta.traces import Trace
from augment.pipeline import augment
from augment.readers.attachments.recorded_files import CATEGORIES, read_memory_timeline
from augment.writers import chrome

if TYPE_CHECKING:
    import pandas as pd


STATISTICS = ("count", "mean", "std", "min", "25%", "50%", "75%", "max")


class TimeSeriesTypes(Flag):
    """What :meth:`TraceAnalysis.generate_trace_with_counters` adds."""

    QUEUE_LENGTH = auto()
    MEMCPY_BANDWIDTH = auto()


_ANALYSES = {TimeSeriesTypes.QUEUE_LENGTH: "queue_length", TimeSeriesTypes.MEMCPY_BANDWIDTH: "memory_bandwidth"}


def queue_length_time_series(t: Trace, ranks: Sequence[int] | None) -> dict[int, pd.DataFrame]:
    """A frame for each rank with queues: a row for each change of a stream's queue, ``index`` is the event's."""
    series = {}
    for rank in t.chosen(ranks):
        trace = t.of_rank(rank)
        pieces = []
        for length in queue_lengths(trace):
            track = trace.tracks[length.stream.track]
            where = {"pid": track.pid, "tid": track.tid, "stream": length.stream.stream, "device": length.stream.device}
            piece = _piece(t, length.ts, where, "queue_length", length.length)
            pieces.append(piece.set_index(pandas().Index(rows_of_changes(trace, length), name="index")))
        if pieces:
            series[rank] = _joined(pieces, ["ts", "pid", "tid", "stream", "queue_length"])
        else:
            t.tell_why_not(rank, "queue_length")
    return series


def memory_bw_time_series(t: Trace, ranks: Sequence[int] | None) -> dict[int, pd.DataFrame]:
    """A frame for each rank with copies: a row for each change of the bandwidth of a kind of copy."""
    series = {}
    for rank in t.chosen(ranks):
        trace = t.of_rank(rank)
        pieces = []
        for rate in copy_rates(trace):
            where = {"pid": trace.tracks[rate.device.track].pid, "name": rate.kind, "device": rate.device.device}
            pieces.append(_piece(t, rate.ts, where, "memory_bw_gbps", rate.rate / 1e9))
        if pieces:
            series[rank] = _joined(pieces, ["ts", "pid", "name", "memory_bw_gbps"]).reset_index(drop=True)
        if not any(map(len, pieces)):
            t.tell_why_not(rank, "memory_bandwidth", "the copies have no bytes or no duration")
    return series


def _piece(t: Trace, ts: Int64s, where: Mapping[str, Any], name: str, values: Any) -> pd.DataFrame:
    return pandas().DataFrame({"ts": (ts - t.min_ts) / 1000, **where, name: values})


def _joined(pieces: Sequence[pd.DataFrame], columns: Sequence[str]) -> pd.DataFrame:
    frame = pandas().concat(pieces)
    return without_single_device(frame[[*columns, "device"]])


def queue_length_summary(series: Mapping[int, pd.DataFrame]) -> pd.DataFrame | None:
    """A summary weighted by time; None without a series."""
    return _summary(series, "stream", "queue_length", running=False)


def memory_bw_summary(series: Mapping[int, pd.DataFrame]) -> pd.DataFrame | None:
    """A summary weighted by the time of copying; None without a series."""
    return _summary(series, "name", "memory_bw_gbps", running=True)


def _summary(series: Mapping[int, pd.DataFrame], key: str, name: str, *, running: bool) -> pd.DataFrame | None:
    index, records = [], []
    keys = ["device", key] if any("device" in frame for frame in series.values()) else [key]
    for rank, frame in series.items():
        for group, group_rows in _groups(frame, keys):
            ts, values = _ns(group_rows), group_rows[name].to_numpy()
            held = np.append(np.diff(ts), 0)
            if running:
                ts, values, held = (value[values > 0] for value in (ts, values, held))
            index.append((rank, *group))
            # the ``count`` of points, and statistics weighted by time (NaN if the total time is 0)
            weighted = time_weighted(values, held) if len(values) else None
            described = [np.nan] * 7
            if weighted is not None:
                described = [weighted.mean, weighted.std, float(values.min()), *weighted[2:], float(values.max())]
            records.append([float(len(values)), *described])
    if not index:
        return None
    pd = pandas()
    columns = pd.MultiIndex.from_product([[name], STATISTICS])
    return pd.DataFrame(records, index=pd.MultiIndex.from_tuples(index, names=["rank", *keys]), columns=columns)


def time_spent_blocked_on_full_queue(
    t: Trace, series: Mapping[int, pd.DataFrame], max_queue_length: int
) -> pd.DataFrame:
    """A row for each stream whose queue was full at least once."""
    records = []
    keys = ["device", "stream"] if any("device" in frame for frame in series.values()) else ["stream"]
    for rank, frame in series.items():
        for group, group_rows in _groups(frame, keys):
            full = group_rows["queue_length"].to_numpy() >= max_queue_length
            if full.any():
                blocked = int(np.append(np.diff(_ns(group_rows)), 0)[full].sum()) / 1000
                records.append((rank, *group, blocked, blocked / t.get_trace_duration(rank)))
    columns = ["duration_at_max_queue_length", "relative_duration_at_max_queue_length"]
    return frame_of(records, ["rank", *keys, *columns])


def _groups(frame: pd.DataFrame, keys: Sequence[str]) -> Iterator[tuple[tuple[Any, ...], pd.DataFrame]]:
    """The rows of each stream or kind, in the frame's order."""
    present = [key for key in keys if key in frame]
    for group, rows in frame.groupby(present, sort=False):
        values = iter(group)
        yield tuple(next(values) if key in present else None for key in keys), rows


def _ns(frame: pd.DataFrame) -> Int64s:
    """The times of a series, in ns: its microseconds count from the first event, so floats are exact to the ns."""
    ns: Int64s = np.rint(frame["ts"].to_numpy() * 1000).astype(np.int64)
    return ns


def generate_trace_with_counters(
    t: Trace, time_series: TimeSeriesTypes | None, ranks: Sequence[int] | None, output_suffix: str
) -> dict[int, str]:
    """Write each rank's whole trace with counter tracks next to the original; returns the files by rank."""
    chosen = time_series or TimeSeriesTypes.QUEUE_LENGTH | TimeSeriesTypes.MEMCPY_BANDWIDTH
    only = [analysis for kind, analysis in _ANALYSES.items() if kind in chosen]
    written = {}
    for rank in t.chosen(ranks):
        # ``rank0_with_counters.json.gz`` for ``rank0.json`` and ``rank0.json.gz``
        suffix = output_suffix or "_with_counters"
        folder, name = os.path.split(t.trace_files[rank])
        first, dot, _ = name.partition(".json")
        written[rank] = os.path.join(folder, f"{first if dot else name}{suffix}.json.gz")
        chrome.write(augment(t.whole[rank], only=only), Path(written[rank]))
    return written


# HTA's memory timeline, read from the raw files of ``export_memory_timeline``.


class MemoryAnalysis:
    """The memory timeline at ``path``; compressed or not."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = path

    def _process_raw_events(self) -> tuple[list[int], list[list[int]]]:
        """Times in ns, ascending, and the bytes of each category from that time on."""
        columns = read_memory_timeline(self.path)
        sizes = np.stack([columns[name] for name in CATEGORIES], axis=1)
        return columns["ts"].tolist(), sizes.tolist()

    def plot_memory_timeline(self, save_graph: bool = False) -> None:
        """Draw a stacked plot; ``save_graph`` writes ``images/memory_plot.png``, for which plotly needs kaleido."""
        if not frames.installed():
            return
        import os

        import plotly.graph_objects as go

        columns = read_memory_timeline(self.path)
        figure = go.Figure()
        ms = (columns["ts"] - columns["ts"][:1]) / 1e6
        for name in CATEGORIES:
            figure.add_scatter(x=ms, y=columns[name] / 1024**3, name=name, stackgroup="memory", line_shape="hv")
        figure.update_xaxes(title="Time (ms)")
        figure.update_yaxes(title="Memory (GiB)")
        figure.update_layout(title_text="Memory timeline", title_x=0.5, width=1200, height=800)
        if save_graph:
            os.makedirs("images", exist_ok=True)
            figure.write_image("images/memory_plot.png")
        else:
            frames.show(lambda _: figure)
