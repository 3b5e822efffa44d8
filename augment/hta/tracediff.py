"""HTA's comparison of two traces by the names of operators and kernels."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING

import numpy as np

from augment.compare.calls import short_name
from augment.core import GPU_WORK
from augment.errors import UsageError
from augment.facts.steps.step_windows import steps
from augment.hta import frames as plots
from augment.hta.frames import NO_STREAM, pandas
from augment.hta.traces import Trace

if TYPE_CHECKING:
    import pandas as pd

Some = int | list[int] | None
_LABELS = itertools.count()


class DeviceType(Enum):
    """The events to compare: those of the host, GPU work, or all slices of the trace."""

    CPU = 1
    GPU = 2
    ALL = 3


class LabeledTrace:
    """The traces of a job with all their steps, and a ``label``."""

    def __init__(self, label: str | None = None, t: Trace | None = None, trace_dir: str | None = None) -> None:
        if t is None and trace_dir is None:
            raise UsageError("LabeledTrace needs a Trace or a trace_dir")
        self.label = label or f"t{next(_LABELS)}"
        self.t = t.unrestricted() if t is not None else Trace(trace_dir=str(trace_dir))

    def ranks(self) -> list[int]:
        """The ranks, ascending."""
        return self.t.get_ranks()

    def iterations(self) -> list[int]:
        """The numbers of the steps of all ranks, ascending."""
        return sorted({number for trace in self.t.whole.values() for number in steps(trace).number.tolist()})

    def extract_ops(
        self, rank: Some = None, iteration: Some = None, device_type: DeviceType = DeviceType.ALL
    ) -> pd.DataFrame:
        """The slices of some ranks and steps; by default of the first rank and step, or all if there are no steps.

        Raises:
            UsageError: no such rank or step.
        """
        ranks = _chosen(rank, self.ranks(), "rank")
        frames = [self.t.get_trace(rank) for rank in ranks]
        if len(frames) == 1:
            frame = frames[0]
        else:
            frame = pandas().concat(frames, keys=ranks, names=["rank", "idx"]).reset_index()
        if iteration is not None or self.iterations():
            frame = frame[frame["iteration"].isin(_chosen(iteration, self.iterations(), "iteration"))]
        if device_type == DeviceType.CPU:
            return frame[frame["stream"] == NO_STREAM]
        if device_type == DeviceType.ALL:
            return frame
        on_gpu = pandas().Series(False, index=frame.index)
        for each in ranks:
            of_rank = frame["rank"] == each if len(ranks) > 1 else on_gpu | True
            on_gpu |= of_rank & frame["index"].isin(self.t.whole[each].events.slices_of(*GPU_WORK))
        return frame[on_gpu]

    def get_ops_summary(self, ops: pd.DataFrame) -> pd.DataFrame:
        """Counts and sums of durations (us) of ``ops`` by category and name."""
        summary = ops.groupby(["cat", "name"])["dur"].agg(["count", "sum"]).reset_index()
        summary.columns = ["cat", "name", "counts", "total_duration"]
        summary.insert(2, "short_name", [short_name(name) for name in summary["name"]])
        return summary.assign(cat_id=summary["cat"], name_id=summary["name"])


Side = LabeledTrace | Trace | str


class TraceDiff:
    """The comparison of a test with a control, by name."""

    @classmethod
    def compare_traces(
        cls,
        control: Side,
        test: Side,
        control_rank: Some = None,
        test_rank: Some = None,
        control_iteration: Some = None,
        test_iteration: Some = None,
        device_type: DeviceType = DeviceType.ALL,
        use_short_name: bool = False,
    ) -> pd.DataFrame:
        """Counts and sums of durations (us) by name, of both sides and their difference; 0 where a side has none.

        Args:
            control: a folder, a :class:`Trace` or a :class:`LabeledTrace`.
            test: the same.
            control_rank: one or several; the first if it is not given.
            test_rank: the same.
            control_iteration: the number of a step, or several; the first if it is not given.
            test_iteration: the same.
            device_type: what to compare.
            use_short_name: compare names without their arguments.
        """
        sides = [(_labeled(control, "Control"), control_rank, control_iteration)]
        sides += [(_labeled(test, "Test"), test_rank, test_iteration)]
        by = "short_name" if use_short_name else "name"
        summaries = {}
        for label, (side, rank, iteration) in zip(_labels(sides[0][0], sides[1][0]), sides, strict=True):
            summary = side.get_ops_summary(side.extract_ops(rank, iteration, device_type))
            summaries[label] = summary.groupby(by)[["counts", "total_duration"]].sum()
        joined = pandas().concat(summaries, axis=1).fillna(0).sort_index()
        joined.columns = ["_".join(column) for column in joined.columns]
        before, after = summaries
        for label in (before, after):
            joined[f"{label}_counts"] = joined[f"{label}_counts"].astype(int)
        joined["diff_counts"] = joined[f"{after}_counts"] - joined[f"{before}_counts"]
        joined["diff_duration"] = joined[f"{after}_total_duration"] - joined[f"{before}_total_duration"]
        joined["counts_change_categories"] = np.array(["-", "=", "+"])[np.sign(joined["diff_counts"]) + 1]
        return joined.rename_axis(by)

    @classmethod
    def ops_diff(
        cls,
        control: Side,
        test: Side,
        control_rank: Some = None,
        test_rank: Some = None,
        control_iteration: Some = None,
        test_iteration: Some = None,
        device_type: DeviceType = DeviceType.ALL,
    ) -> dict[str, list[str]]:
        """The names that are added, deleted, increased, decreased and unchanged, by their counts."""
        sides = _labeled(control, "Control"), _labeled(test, "Test")
        frame = cls.compare_traces(*sides, control_rank, test_rank, control_iteration, test_iteration, device_type)
        before, after = (frame[f"{label}_counts"] for label in _labels(*sides))
        chosen = {
            "added": (before == 0) & (after > 0),
            "deleted": (before > 0) & (after == 0),
            "increased": (before > 0) & (after > before),
            "decreased": (after > 0) & (after < before),
            "unchanged": (after > 0) & (after == before),
        }
        return {name: frame.index[which].tolist() for name, which in chosen.items()}

    @classmethod
    def visualize_counts_diff(
        cls, df: pd.DataFrame, show_image: bool = True, export_image_path: str | None = None
    ) -> None:
        """Draw the counts of a frame of :meth:`compare_traces`."""
        _bars(df, "counts", "Ops Count Comparison", show_image, export_image_path)

    @classmethod
    def visualize_duration_diff(
        cls, df: pd.DataFrame, show_image: bool = True, export_image_path: str | None = None
    ) -> None:
        """Draw the durations of a frame of :meth:`compare_traces`."""
        _bars(df, "total_duration", "Ops Duration Comparison (us)", show_image, export_image_path)


def _chosen(asked: Some, known: Sequence[int], what: str) -> list[int]:
    """``asked`` as a list; by default the first of ``known``."""
    chosen = list(known[:1]) if asked is None else [asked] if isinstance(asked, int) else list(asked)
    if unknown := [rank for rank in chosen if rank not in known]:
        raise UsageError(f"no {what} {unknown[0]}; there are {', '.join(map(str, known)) or 'none'}")
    return chosen


def _labeled(side: Side, label: str) -> LabeledTrace:
    if isinstance(side, LabeledTrace):
        return side
    if isinstance(side, Trace):
        return LabeledTrace(label, t=side)
    if isinstance(side, (str, os.PathLike)):
        return LabeledTrace(label, trace_dir=os.fspath(side))
    raise UsageError(f"neither a folder nor a trace: {side!r}")


def _labels(control: LabeledTrace, test: LabeledTrace) -> tuple[str, str]:
    """Two labels that differ."""
    if control.label != test.label:
        return control.label, test.label
    return f"{control.label}_control", f"{test.label}_test"


def _bars(df: pd.DataFrame, what: str, title: str, show_image: bool, export: str | None) -> None:
    if not plots.installed():
        return
    import plotly.express as px

    columns = [column for column in df.columns if column.endswith(f"_{what}")]
    difference = "diff_counts" if what == "counts" else "diff_duration"
    figure = px.bar(df.reset_index(), x=df.index.name, y=[*columns, difference], barmode="group", title=title)
    if show_image:
        plots.show(lambda _: figure)
    if export:
        figure.write_image(export)
