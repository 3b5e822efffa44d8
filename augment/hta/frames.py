"""Frames: the only module that converts columns in nanoseconds to pandas frames in microseconds."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from augment import facts
from augment.arrays import NO_INDEX, EventRows, Int64s
from augment.compare.calls import short_name
from augment.core import COMPLETE, ON_DEVICE, Category, SparseColumn, Trace, jsontext
from augment.core.args import Arg
from augment.errors import UsageError
from augment.facts.source.event_args import ArgColumns, arg_columns, args_of_frames, args_of_rows
from augment.hta.parser_config import AttributeSpec

if TYPE_CHECKING:
    import pandas as pd


NO_STREAM = -1  #: value for events on the host, as in HTA
NO_ARG = -1  #: value of an arg that the event lacks; an arg that is no number keeps its text
_INTEGERS = ("rank", "device", "stream", "occurrence_count")
_TEXTS = ("idle_category", "kernel_type", "name", "aten_op_name", "kernel_sequence")


class SymbolTable(dict[str, str]):
    """HTA's symbol table. These frames hold names instead of numbers, so each name maps to itself."""

    def get_sym_table(self) -> SymbolTable:
        """Maps values of the column ``name`` to names."""
        return self

    def get_sym_id_map(self) -> SymbolTable:
        """Maps names to values of the column ``name``."""
        return self

    get_sym_index = get_sym_id_map  #: the same

    @property
    def sym_index(self) -> SymbolTable:
        """As :meth:`get_sym_id_map`."""
        return self

    @property
    def sym_table(self) -> SymbolTable:
        """As :meth:`get_sym_table`."""
        return self

    def is_empty(self) -> bool:
        """Whether there are no names."""
        return not self

    def find_matched_symbols(self, patterns: Sequence[str]) -> list[str]:
        """The names in which any of the regular expressions ``patterns`` matches."""
        pattern = re.compile("|".join(patterns))
        return [name for name in self if pattern.search(name)]

    find_matches = find_matched_symbols  #: the values of the column ``name`` for these names: the names themselves

    def add_symbols_to_trace_df(self, trace_df: pd.DataFrame, col: str) -> None:
        """Replace the values of the column ``col`` by names, in place; values that are no name (-1) become empty."""
        trace_df[col] = trace_df[col].where(trace_df[col].isin(list(self)), "")


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
    """``ns`` in us, float64; None stays None."""
    return None if ns is None else ns / 1000


def frame_of(records: Iterable[Sequence[Any]], columns: Sequence[str]) -> pd.DataFrame:
    """The frame of ``records``; an empty frame has the same column types."""
    frame = pandas().DataFrame.from_records(list(records), columns=list(columns))
    if len(frame):
        return frame
    return frame.astype(
        {name: "int64" if name in _INTEGERS else object if name in _TEXTS else "float64" for name in columns}
    )


def table(records: Iterable[Sequence[Any]], columns: Sequence[str]) -> pd.DataFrame:
    """The frame of ``records``, with a column ``device`` only if a rank has several devices; HTA has no such column."""
    return without_single_device(frame_of(records, columns))


def without_single_device(frame: pd.DataFrame) -> pd.DataFrame:
    """``frame`` without its column ``device``, unless a rank (or the frame, if it has no ranks) has several."""
    if "device" not in frame:
        return frame
    counts = frame.groupby("rank")["device"].nunique() if "rank" in frame else frame[["device"]].nunique()
    return frame if (counts > 1).any() else frame.drop(columns="device")


def framed(trace: Trace) -> EventRows:
    """The rows of the event table that :func:`events_frame` has: slices, except the profiler's own."""
    events = trace.events
    return events.where((events.phase == COMPLETE) & (events.category != Category.TRACE))


def events_frame(trace: Trace, origin_ns: int, added: Sequence[AttributeSpec] = ()) -> pd.DataFrame:
    """The slices of ``trace``, ``index`` the row of the event table.

    ``ts``, ``dur`` and ``end`` in us (float64, ``ts`` from ``origin_ns``); ``name`` and ``cat`` as text, and once more
    as ``s_name`` (short) and ``s_cat``; ``pid``, ``tid``; ``stream``, -1 on the host; ``correlation``, and
    ``index_correlation``: for GPU work its launch, for a launch its first work, else -1; ``iteration``: the number of
    the step in which the event or its launch began, else -1. GPU work without a known launch has -1, unless the trace
    has no known launch at all. The columns between are the args that HTA has by default; missing args have HTA's
    defaults: -1, "-1", and for collectives also 0, "" and "[]". ``memory_bw_gbps`` is ``bytes`` over ``dur``, else 0.
    ``added``: further args, in columns behind; numbers where all are.
    """
    events, row = trace.events, framed(trace)
    strings = np.array([*trace.strings, ""], object)
    short = np.array([short_name(name) for name in trace.strings] + [""], object)
    track = events.track[row]
    on_device = np.isin(events.category[row], ON_DEVICE)
    tracks = trace.tracks
    # The partner of each row of the event table
    work = facts.gpu.work(trace)
    partner = np.full(len(trace.events), NO_INDEX, np.int64)
    linked = np.flatnonzero(work.launch != NO_INDEX)[::-1]  # of several partners, the last assignment wins
    linked = linked[np.argsort(-work.ts[linked], kind="stable")]
    partner[work.launch[linked]] = work.row[linked]
    partner[work.row] = work.launch
    # The number of the step of each row of the event table, or -1
    all_steps = facts.steps.recorded(trace)
    number = np.append(all_steps.number, -1)
    moment = events.ts.copy()
    synced = events.slices_of(Category.CUDA_SYNC)
    call = facts.gpu.calls(trace).of(events.correlation[synced])
    moment[synced] = np.where(call == NO_INDEX, moment[synced], events.ts[call])
    place = all_steps.at(moment)
    launched = work.launch != NO_INDEX
    place[work.row] = np.where(launched | ~launched.any(), facts.steps.of_work(trace), -1)
    iteration: Int64s = number[place]
    # the columns of args, as HTA names them
    size, dur = trace.events.bytes.at(row, NO_ARG), trace.events.dur[row]
    known = (size >= 0) & (dur > 0)
    rate = np.zeros(len(row))
    rate[known] = size[known] / dur[known]
    args, collective = args_of_frames(trace), arg_columns(trace)
    return pandas().DataFrame(
        {
            "index": row,
            "cat": strings[events.category_name[row]],
            "name": strings[events.name[row]],
            "pid": identities([track.pid for track in tracks])[track],
            "tid": identities([track.tid for track in tracks])[track],
            "ts": (events.ts[row] - origin_ns) / 1000,
            "dur": events.dur[row] / 1000,
            "stream": identities(
                [NO_STREAM, *(NO_STREAM if track.stream is None else track.stream for track in tracks)]
            )[np.where(on_device, track + 1, 0)],
            "correlation": events.correlation[row],
            "bytes": size,
            "memory_bw_gbps": rate,
            "wait_on_stream": args.ints("wait_on_stream").at(row, NO_ARG),
            "wait_on_cuda_event_record_corr_id": args.ints("wait_on_cuda_event_record_corr_id").at(row, NO_ARG),
            "input_dims": _texts(args, "Input Dims", row, decode=True),
            "input_type": _texts(args, "Input type", row, decode=True),
            "input_strides": _texts(args, "Input Strides", row, decode=True),
            "external_id": args.ints("External id").at(row, NO_ARG),
            "python_id": args.ints("Python id").at(row, NO_ARG),
            "python_parent_id": args.ints("Python parent id").at(row, NO_ARG),
            "collective_name": _texts(collective, "Collective name", row, ""),
            "in_msg_nelems": collective.ints("In msg nelems").at(row, 0),
            "out_msg_nelems": collective.ints("Out msg nelems").at(row, 0),
            "msg_dtype": _texts(collective, "dtype", row, ""),
            "group_size": collective.ints("Group size").at(row, 0),
            "process_rank": args.ints("Rank").at(row, NO_ARG),
            "in_split_size": _texts(args, "In split size", row, "[]", decode=True),
            "out_split_size": _texts(args, "Out split size", row, "[]", decode=True),
            "index_correlation": partner[row],
            "iteration": iteration[row],
            "end": (events.ts[row] + events.dur[row] - origin_ns) / 1000,
            "s_name": short[events.name[row]],
            "s_cat": strings[events.category_name[row]],
            **_added(trace, row, added),
        },
        index=row,
    )


def _added(trace: Trace, row: EventRows, specs: Sequence[AttributeSpec]) -> dict[str, Any]:
    """A column for each of ``specs``."""
    wanted = [Arg(spec.raw_name, tuple(Category), is_text=True) for spec in specs]
    args = ArgColumns(args_of_rows(trace, row, wanted) if wanted else {})
    columns = {}
    for spec in specs:
        texts = _texts(args, spec.raw_name, row, str(NO_ARG), decode=True)
        texts[texts == str(NO_ARG)] = spec.default_value
        columns[spec.name] = pandas().Series(texts, index=row).infer_objects()
    return columns


def _texts(
    args: ArgColumns, name: str, row: EventRows, default: str = str(NO_ARG), *, decode: bool = False
) -> npt.NDArray[np.object_]:
    """An arg of each row as text, or decoded from JSON; ``default`` is never decoded."""
    rows, texts = args.texts(name)
    values = np.full(len(texts.values) + 1, default, object)
    for place, text in enumerate(texts.values):
        values[place] = text
        if decode and text != default:
            with contextlib.suppress(ValueError):
                values[place] = jsontext.lenient_json(text.encode())
    code = SparseColumn(rows, texts.codes.astype(np.int64)).at(row, -1)
    column: npt.NDArray[np.object_] = values[code]
    return column


def identities(values: Sequence[Any]) -> npt.NDArray[Any]:
    """A column of pids, tids or streams: int64 if all fit into 64 bits, else objects."""
    whole = all(isinstance(value, int) and -(1 << 63) <= value < 1 << 63 for value in values)
    column = np.empty(len(values), np.int64 if whole else np.object_)
    column[:] = values
    return column


# Plots with plotly, if it is installed: shown in the notebook; a browser opens only on request.


Figure = Any
_TOLD: set[str] = set()


def installed() -> bool:
    """Whether plotly is installed; warns once if it is not."""
    if importlib.util.find_spec("plotly") is not None:
        return True
    if not _TOLD:
        _TOLD.add("plotly")
        message = "nothing is drawn: plotly is not installed (pip install 'kineto-augment[plots]', or visualize=False)"
        warnings.warn(message, stacklevel=4)
    return False


def show(draw: Callable[[Any], Figure | Iterable[Figure]], renderer: str | None = None) -> None:
    """Show the figures that ``draw`` makes, given ``plotly.express``.

    plotly shows a figure in the notebook in which it runs, else in a browser. The browser opens only if the environment
    variable ``PLOTLY_RENDERER`` or HTA's argument ``image_renderer`` names a renderer. If a renderer fails, a warning
    replaces the plots, and the computed figures are still returned.
    """
    if not installed():
        return
    chosen = renderer or os.environ.get("PLOTLY_RENDERER")
    if not chosen:  # the renderer that plotly chose, unless it would open a browser
        chosen = importlib.import_module("plotly.io").renderers.default
        if chosen in (None, "", "browser"):
            return
    drawn = draw(importlib.import_module("plotly.express"))
    try:
        for figure in [drawn] if hasattr(drawn, "show") else drawn:
            figure.show(renderer=chosen)
    except (ValueError, ImportError, RuntimeError) as error:  # a package is missing, or the renderer is unknown
        warnings.warn(f"nothing is drawn: plotly's renderer {chosen}: {str(error).strip()}", stacklevel=3)


# HTA's utilities that notebooks use: names, and the counters of floating-point instructions.


shorten_name = short_name  #: HTA's term

#: operations per instruction that a CUPTI counter counts, as the analysis ``cupti_counters`` weighs them for ``flop``
CUDA_SASS_INSTRUCTION_COUNTER_FLOPS: dict[str, float] = {
    f"smsp__sass_thread_inst_executed_op_{precision}{operation}_pred_on.sum": count
    for precision in "fhd"
    for operation, count in (("fma", 2), ("mul", 1), ("add", 1))
}


def flatten_column_names(df: pd.DataFrame) -> None:
    """Join the levels of the columns of ``df`` with ``_``, in place; single-level columns stay unchanged."""
    if df.columns.nlevels > 1:
        df.columns = ["_".join(map(str, levels)).rstrip("_") for levels in df.columns]
