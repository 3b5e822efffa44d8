"""Events of Chrome JSON as HTA makes them, for users who append them to a raw trace."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

RawEvent = dict[str, Any]


def counter_events(series: pd.DataFrame, origin_ns: int, counter_name: str, counter_col: str) -> list[RawEvent]:
    """An event of a counter for each row; none, with a warning, where the frame lacks a column.

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
    """The start of an arrow, or its end in the slice around ``ts``."""
    event: RawEvent = {"ph": "s" if is_start else "f", "id": id, "pid": pid, "tid": tid, "ts": ts}
    event |= {"cat": cat, "name": name}
    if args is not None:
        event["args"] = args
    return event if is_start else event | {"bp": "e"}


def _us(ns: int) -> int | float:
    """Whole microseconds as an integer, which no float rounds."""
    return ns / 1000 if ns % 1000 else ns // 1000
