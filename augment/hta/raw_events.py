"""Chrome JSON events in HTA's form, for users who append them to a raw trace."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

RawEvent = dict[str, Any]


def counter_events(series: pd.DataFrame, origin_ns: int, counter_name: str, counter_col: str) -> list[RawEvent]:
    """A counter event for each row; an empty list and a warning if the frame lacks a column.

    ``series`` has ``pid``, ``ts`` (us from ``origin_ns``) and ``counter_col``, and may have ``name`` and ``id``.
    """
    missing = [column for column in ("pid", "ts", counter_col) if column not in series]
    if missing:
        warnings.warn(f"no counter {counter_name}: the frame has no column {', '.join(missing)}", stacklevel=3)
        return []
    absolute = np.rint(series["ts"].to_numpy(np.float64) * 1000).astype(np.int64) + origin_ns
    events = [
        {"ph": "C", "name": counter_name, "pid": pid, "ts": _us(ns), "args": {counter_name: value}}
        for pid, ns, value in zip(series["pid"].tolist(), absolute.tolist(), series[counter_col].tolist(), strict=True)
    ]
    for column in ("name", "id"):
        for event, value in zip(events, series[column].tolist() if column in series else (), strict=False):
            event[column] = value
    return events


def flow_event(
    id: int,  # noqa: A002 - HTA's word
    pid: int,
    tid: int,
    ts: float,
    is_start: bool,
    name: str,
    cat: str,
    args: RawEvent | None = None,
) -> RawEvent:
    """The start of a flow, or its end in the slice around ``ts``."""
    event: RawEvent = {"ph": "s" if is_start else "f", "id": id, "pid": pid, "tid": tid, "ts": ts}
    event |= {"cat": cat, "name": name}
    if args is not None:
        event["args"] = args
    return event if is_start else event | {"bp": "e"}


def _us(ns: int) -> int | float:
    """Whole microseconds as an integer, to avoid rounding as a float."""
    return ns / 1000 if ns % 1000 else ns // 1000
