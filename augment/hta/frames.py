"""Frames: the one place where columns of nanoseconds become pandas and microseconds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from augment.comparison.names import short_name
from augment.derived.gpu_work import gpu_work
from augment.derived.launches import NO_ROW, launches
from augment.derived.steps import steps, steps_of_gpu_work
from augment.errors import UsageError
from augment.trace import COMPLETE, ON_DEVICE, Category, Int64s, Trace

if TYPE_CHECKING:
    import pandas as pd

NO_STREAM = -1  #: of what is on the host, as in HTA


class SymbolTable(dict[str, str]):
    """HTA's names by number, where our frames have the names themselves: each name stands for itself."""

    def get_sym_table(self) -> SymbolTable:
        """Names by what the column ``name`` has."""
        return self

    def get_sym_id_map(self) -> SymbolTable:
        """What the column ``name`` has, by names."""
        return self

    @property
    def sym_index(self) -> SymbolTable:
        """As :meth:`get_sym_id_map`."""
        return self


def pandas() -> Any:
    """The module.

    Raises:
        UsageError: it is not installed.
    """
    try:
        import pandas as pd
    except ImportError as error:
        raise UsageError("augment.hta needs pandas: pip install 'kineto-augment[hta]'") from error
    return pd


def microseconds(ns: Any) -> Any:
    """``ns`` in us, float64; what is None stays so."""
    return None if ns is None else ns / 1000


def table(records: Iterable[Sequence[Any]], columns: Sequence[str]) -> pd.DataFrame:
    """The frame of ``records``. A column ``device`` stays only if a rank has several, as HTA's frames have none."""
    return without_single_device(pandas().DataFrame.from_records(list(records), columns=list(columns)))


def without_single_device(frame: pd.DataFrame) -> pd.DataFrame:
    """``frame`` without its column ``device``, unless a rank (or the frame, if it has no ranks) has several."""
    if "device" not in frame:
        return frame
    counts = frame.groupby("rank")["device"].nunique() if "rank" in frame else frame[["device"]].nunique()
    return frame if (counts > 1).any() else frame.drop(columns="device")


def events_frame(trace: Trace, origin_ns: int) -> pd.DataFrame:
    """The slices of ``trace``, ``index`` the row of the event table.

    ``ts``, ``dur`` and ``end`` in us (float64, ``ts`` from ``origin_ns``); ``name`` and ``cat`` as text, and once more
    as ``s_name`` (short) and ``s_cat``; ``pid``, ``tid``; ``stream``, -1 on the host; ``correlation``, and
    ``index_correlation``: of GPU work its launch, of a launch its first work, else -1; ``iteration``: the number of
    the step that it, or its launch, began in, else -1: also of GPU work without a known launch, unless all of it is.
    """
    events = trace.events
    row = np.flatnonzero((events.phase == COMPLETE) & (events.category != Category.TRACE))
    strings = np.array([*trace.strings, ""], object)
    short = np.array([short_name(name) for name in trace.strings] + [""], object)
    track = events.track[row]
    on_device = np.isin(events.category[row], ON_DEVICE)
    tracks = trace.tracks
    return pandas().DataFrame(
        {
            "index": row,
            "cat": strings[events.category_name[row]],
            "name": strings[events.name[row]],
            "pid": identities([one.pid for one in tracks])[track],
            "tid": identities([one.tid for one in tracks])[track],
            "ts": (events.ts[row] - origin_ns) / 1000,
            "dur": events.dur[row] / 1000,
            "stream": identities([NO_STREAM, *(NO_STREAM if one.stream is None else one.stream for one in tracks)])[
                np.where(on_device, track + 1, 0)
            ],
            "correlation": events.correlation[row],
            "index_correlation": _partners(trace)[row],
            "iteration": _iterations(trace)[row],
            "end": (events.ts[row] + events.dur[row] - origin_ns) / 1000,
            "s_name": short[events.name[row]],
            "s_cat": strings[events.category_name[row]],
        },
        index=row,
    )


def identities(values: Sequence[Any]) -> npt.NDArray[Any]:
    """A column of pids, tids or streams: int64 if all are integers, else objects."""
    whole = all(isinstance(value, int) for value in values)
    column = np.empty(len(values), np.int64 if whole else np.object_)
    column[:] = values
    return column


def _partners(trace: Trace) -> Int64s:
    """The partner of each row of the event table."""
    work = gpu_work(trace)
    partner = np.full(len(trace.events), NO_ROW, np.int64)
    linked = np.flatnonzero(work.launch != NO_ROW)[::-1]  # of several, the last assigned stays
    linked = linked[np.argsort(-work.ts[linked], kind="stable")]
    partner[work.launch[linked]] = work.row[linked]
    partner[work.row] = work.launch
    return partner


def _iterations(trace: Trace) -> Int64s:
    """The number of the step of each row of the event table, or -1."""
    found, events, work = steps(trace), trace.events, gpu_work(trace)
    number = np.append(found.number, -1)
    moment = events.ts.copy()
    synced = events.slices_of(Category.CUDA_SYNC)
    call = launches(trace).of(events.correlation[synced])
    moment[synced] = np.where(call == NO_ROW, moment[synced], events.ts[call])
    place = found.at(moment)
    launched = work.launch != NO_ROW
    place[work.row] = np.where(launched | ~launched.any(), steps_of_gpu_work(trace), -1)
    iteration: Int64s = number[place]
    return iteration
