"""The traces of a job by rank, in HTA's window: without the last step, if there are two or more."""

from __future__ import annotations

import gzip
import json
import math
import os
import re
import warnings
from collections.abc import Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct

from augment import facts
from augment.arrays import NO_INDEX
from augment.compare.calls import short_name
from augment.core import Skipped, output_files
from augment.core import Trace as Events
from augment.errors import InputError, UnknownFormat, UsageError
from augment.facts.host.execution_links import Node, attribute, execution_links
from augment.facts.steps.window import chosen, only, rows_in_whole
from augment.hta.frames import SymbolTable, events_frame, framed
from augment.hta.parser_config import ParserConfig
from augment.pipeline import augment
from augment.readers import read
from augment.readers.attachments.recorded_files import read_nodes, with_nodes
from augment.readers.containers import read_document

if TYPE_CHECKING:
    import pandas as pd


# Chrome JSON events in HTA's form, for users who append them to a raw trace.


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
        {
            "ph": "C",
            "name": counter_name,
            "pid": pid,
            "ts": ns / 1000 if ns % 1000 else ns // 1000,
            "args": {counter_name: value},
        }
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


PathName = str | os.PathLike[str]
TraceFiles = Mapping[int, PathName] | Sequence[PathName]
DEFAULT_TRACE_DIR = "/tmp/trace"  # noqa: S108 - as in HTA
_SUFFIXES = (".json", ".gz", ".zst", ".pftrace")
_OVERLAID = re.compile(r"overlaid_(critical_path_)?")
_COUNTERS = "_with_counters"


class Trace:
    """The traces of a job's ranks.

    ``whole[rank]`` is the whole recording; ``events[rank]`` is HTA's window of it after :meth:`load_traces`.
    ``trace_files`` maps ranks to paths. ``min_ts`` is the start of the first slice of all ranks, ns; times in frames
    are relative to it. ``is_parsed`` is always true; it exists for compatibility with HTA.
    """

    is_parsed = True

    def __init__(
        self,
        trace_files: TraceFiles | None = None,
        trace_dir: PathName = DEFAULT_TRACE_DIR,
        parser_config: ParserConfig | None = None,
    ) -> None:
        self.parser_config = parser_config or ParserConfig.get_default_cfg()
        self.trace_path = os.path.abspath(os.path.expanduser(trace_dir))
        self.trace_files: dict[int, str] = {}
        self.whole: dict[int, Events] = {}
        if isinstance(trace_files, Mapping):
            for rank, path in trace_files.items():
                self._add(int(rank), self._path(path), read(self._path(path)))
        elif trace_files is not None:
            self._number([(path, read(path)) for path in map(self._path, trace_files)])
        else:
            # the traces directly in folder, sorted by name, without outputs of augment and files that are no traces
            folder = self.trace_path
            if not os.path.isdir(folder):
                raise InputError(folder, "no such folder")
            names = sorted(name for name in os.listdir(folder) if name.endswith(_SUFFIXES) and not name.startswith("."))
            traces = []
            for name in names:
                if output_files.is_output(name) or _is_copy(name, names):
                    continue
                try:
                    traces.append((os.path.join(folder, name), read(os.path.join(folder, name))))
                except UnknownFormat as error:
                    warnings.warn(f"passed over: {error}", stacklevel=2)
            self._number(traces)
        if not self.whole:
            raise InputError(self.trace_path, "no trace to analyse")
        self.events = dict(self.whole)
        self.window: tuple[int, int] | None = None  #: of :meth:`clipped`, absolute ns
        first = [int(trace.events.ts[row]) for trace in self.whole.values() for row in framed(trace)[:1]]
        self.min_ts = min(first, default=0)
        self._frames: dict[int, pd.DataFrame] = {}

    def load_traces(
        self,
        include_last_profiler_step: bool | None = False,
        use_multiprocessing: bool = True,  # noqa: ARG002 - traces are read already
        use_memory_profiling: bool = True,  # noqa: ARG002
    ) -> None:
        """Restrict every rank to HTA's window: the host events before the last step, if there are two or more steps.

        GPU work is kept if its launch is. GPU work without a known launch is left out, unless no launch is known.
        """
        for rank, trace in self.whole.items():
            all_steps = facts.steps.recorded(trace)
            if len(all_steps) > 1:
                end = int(all_steps.end[-1]) + 1 if include_last_profiler_step else int(all_steps.ts[-1])
                known = bool((facts.gpu.work(trace).launch != NO_INDEX).any())
                self.events[rank] = only(trace, chosen(trace, int(trace.events.ts[0]), end, launched_only=known))
        self._frames.clear()

    align_and_filter_trace = load_traces  #: HTA's name for the second half of this work

    def parse_traces(
        self, max_ranks: int = -1, use_multiprocessing: bool = True, use_memory_profiling: bool = True
    ) -> None:
        """Do nothing: the constructor reads the traces. The method exists for compatibility with HTA."""

    def parse_single_rank(self, rank: int) -> None:
        """Do nothing, as :meth:`parse_traces`."""

    def parse_multiple_ranks(
        self, ranks: Sequence[int], use_multiprocessing: bool = True, use_memory_profiling: bool = True
    ) -> None:
        """Do nothing, as :meth:`parse_traces`."""

    def get_device_type(self) -> str:
        """What the first rank's file says of its device: the member ``device_type``, or ``UNKNOWN``."""
        rank = self.get_ranks()[0]
        return str(self.whole[rank].source.metadata.get("device_type", "UNKNOWN"))

    def decode_symbol_ids(self, use_shorten_name: bool = True) -> None:
        """Set the column ``s_name`` to the short names, or to the full names without ``use_shorten_name``."""
        for rank in self.get_ranks():
            frame = self.get_trace(rank)
            frame["s_name"] = [short_name(name) for name in frame["name"]] if use_shorten_name else frame["name"]

    def get_raw_trace_for_one_rank(self, rank: int = 0) -> dict[str, Any]:
        """The whole file of ``rank``, decoded from JSON."""
        self.of_rank(rank)
        document = read_document(self.trace_files[rank])
        return document if isinstance(document, dict) else {"traceEvents": document}

    def write_raw_trace(self, output_file: str, trace_contents: Mapping[str, Any]) -> None:
        """Write ``trace_contents`` as JSON, compressed."""
        with gzip.open(output_file, "wt", encoding="utf-8") as file:
            json.dump(trace_contents, file)

    def convert_time_series_to_events(
        self, series: pd.DataFrame, counter_name: str, counter_col: str
    ) -> list[dict[str, Any]]:
        """Counter events for the raw trace, from a frame with ``pid``, ``ts`` and ``counter_col``.

        Times are relative to ``baseTimeNanoseconds`` of the first rank's file; other files may have another base.
        """
        base_ns = self.whole[self.get_ranks()[0]].source.base_ns
        return counter_events(series, self.min_ts - base_ns, counter_name, counter_col)

    flow_event = staticmethod(flow_event)

    def get_trace_start_unixtime_ns(self, rank: int) -> int:
        """The time of 0 us in the frame of ``rank``, ns."""
        self.of_rank(rank)
        return self.min_ts

    def get_ranks(self) -> list[int]:
        """The ranks, ascending."""
        return sorted(self.events)

    def unrestricted(self) -> Trace:
        """The same traces without a window; nothing is read again."""
        other = copy(self)
        other.events, other._frames = self.whole, {}
        return other

    def clipped(self, rank: int, start: int, end: int) -> Trace:
        """The same traces, ``rank`` clipped to host events that begin in ``[start, end)``, ns, and their GPU work."""
        other = copy(self)
        other.events = {**self.events, rank: only(self.of_rank(rank), chosen(self.of_rank(rank), start, end))}
        other._frames, other.window = {}, (start, end)
        return other

    def get_iterations(self, rank: int | None = None) -> list[int]:
        """The numbers of a rank's steps, by default of the first rank; empty for an unknown rank."""
        rank = self.get_ranks()[0] if rank is None else rank
        numbers: list[int] = (
            sorted(facts.steps.recorded(self.events[rank]).number.tolist()) if rank in self.events else []
        )
        return numbers

    def get_trace(self, rank: int) -> pd.DataFrame:
        """The slices of a rank as a frame; see :func:`augment.hta.frames.events_frame`."""
        if rank not in self._frames:
            self._frames[rank] = events_frame(self.of_rank(rank), self.min_ts, self.parser_config.added())
        return self._frames[rank]

    def get_all_traces(self) -> dict[int, pd.DataFrame]:
        """The frame of every rank."""
        return {rank: self.get_trace(rank) for rank in self.get_ranks()}

    @property
    def traces(self) -> dict[int, pd.DataFrame]:
        """The frame of every rank."""
        return self.get_all_traces()

    def get_trace_duration(self, rank: int | None = None) -> float:
        """The time from the first to the last start of a slice in a rank's frame, us."""
        trace = self.of_rank(self.get_ranks()[0] if rank is None else rank)
        ts = trace.events.ts[framed(trace)]
        return float(ts[-1] - ts[0]) / 1000 if len(ts) else 0.0

    @property
    def meta_data(self) -> dict[int, dict[str, Any]]:
        """The metadata of each rank's file: all members except the events."""
        return {rank: dict(self.whole[rank].source.metadata) for rank in self.get_ranks()}

    @property
    def symbol_table(self) -> SymbolTable:
        """The symbol table of the traces; each name maps to itself."""
        names = {name for event in self.events.values() for name in event.strings}
        return SymbolTable((name, name) for name in sorted(names))

    def of_rank(self, rank: int) -> Events:
        """The events of ``rank``.

        Raises:
            UsageError: there is no such rank.
        """
        if rank not in self.events:
            known = ", ".join(map(str, self.get_ranks()))
            raise UsageError(f"{self.trace_path}: no rank {rank}; there are {known}")
        return self.events[rank]

    def chosen(self, ranks: Sequence[int] | None) -> list[int]:
        """The requested ``ranks``; by default rank 0 as in HTA, or the first rank if there is no rank 0."""
        if ranks:
            return [rank for rank in ranks if self.of_rank(rank)]
        return [0] if 0 in self.events else self.get_ranks()[:1]

    def rows(self, rank: int, analysis: str, **options: Any) -> list[Any]:
        """The rows of an analysis of a rank; empty, with a warning that says why, if the analysis was skipped."""
        outcome = augment(self.of_rank(rank), only=[analysis], options={analysis: options}).outcomes[analysis]
        if isinstance(outcome, Skipped):
            warnings.warn(f"rank {rank}: no {analysis}: {outcome.reason}", stacklevel=2)
            return []
        return list(outcome.rows)

    def tell_why_not(self, rank: int, analysis: str, otherwise: str = "") -> None:
        """Warn why an analysis of a rank was skipped; if it was not, warn with ``otherwise``, if given."""
        if self.rows(rank, analysis) and otherwise:
            warnings.warn(f"rank {rank}: no {analysis}: {otherwise}", stacklevel=4)

    def _path(self, path: PathName) -> str:
        return os.path.join(self.trace_path, os.path.expanduser(path))

    def _number(self, events_of: Sequence[tuple[str, Events]]) -> None:
        """Add each trace by its rank; traces without a rank get the lowest free numbers."""
        for path, trace in events_of:
            if trace.rank is not None:
                self._add(trace.rank, path, trace)
        for path, trace in events_of:
            if trace.rank is None:
                free = next(rank for rank in range(len(events_of) + 1) if rank not in self.whole)
                self._add(free, path, trace)

    def _add(self, rank: int, path: str, trace: Events) -> None:
        if rank in self.trace_files:
            warnings.warn(f"rank {rank} is in two files: {path} is used, {self.trace_files[rank]} is not", stacklevel=2)
        self.trace_files[rank], self.whole[rank] = path, trace


def _is_copy(name: str, names: Sequence[str]) -> bool:
    """Whether this API wrote the trace ``name`` from another of ``names``: with counters, or as an overlay."""
    origins = {_OVERLAID.sub("", name, count=1), name.replace(_COUNTERS, "", 1)} - {name}
    origins |= {origin.removesuffix(".gz") for origin in origins}
    return any(origin in names for origin in origins)


def overlaid(folder: str, prefix: str, path: str) -> str:
    """The path of a compressed copy of the trace at ``path``, in ``folder``."""
    name = prefix + os.path.basename(path)
    return os.path.join(folder, name if name.endswith(".gz") else name + ".gz")


# HTA's functions of execution traces, on the links of the analysis ``execution_trace``.


COLUMNS = ("op_schema", "input_shapes", "input_types", "output_shapes", "output_types", "et_node_name")


class ExecutionNode(Struct, frozen=True):
    """A node as it is in the file; None for missing members."""

    id: int
    name: str
    rf_id: int | None
    op_schema: str | None
    input_shapes: Any
    input_types: Any
    output_shapes: Any
    output_types: Any

    @classmethod
    def of(cls, node: Node) -> ExecutionNode:
        """From the JSON of a node, of any schema."""
        values = {name: attribute(node, name) for name in ("rf_id", *COLUMNS[:-1])}
        return cls(id=node["id"], name=str(node.get("name", "")), **values)


class ExecutionTrace:
    """The nodes of a file by ``id``; ``raw`` holds the nodes as they are in the file."""

    def __init__(self, raw: Sequence[Node]) -> None:
        self.raw = raw
        self.nodes = {node["id"]: ExecutionNode.of(node) for node in raw if isinstance(node.get("id"), int)}


def load_execution_trace(et_file: str | os.PathLike[str]) -> ExecutionTrace:
    """The execution trace at ``et_file``, compressed or not.

    Raises:
        InputError: the file cannot be read, or is no execution trace.
    """
    return ExecutionTrace(read_nodes(os.path.expanduser(os.fspath(et_file))))


def correlate_execution_trace(trace: Trace, rank: int, et: ExecutionTrace) -> None:
    """Add the column ``et_node`` to the frame of ``rank``: the ``id`` of each event's node, NaN without a node.

    If no event has a node, a warning is issued and the column is not added.

    Raises:
        UsageError: there is no such rank.
    """
    frame, part = trace.get_trace(rank), trace.of_rank(rank)
    links = execution_links(with_nodes(trace.whole[rank], et.raw))
    if not len(links.row):
        warnings.warn(f"rank {rank}: no et_node: no execution trace node matches an event", stacklevel=2)
        return
    ids = np.array([_number(links.nodes[node].get("id")) for node in links.node.tolist()])
    node_of = np.full(int(links.row[-1]) + 2, math.nan)  # by row of the whole trace; the last: no row
    node_of[links.row] = ids
    rows = rows_in_whole(part, frame["index"].to_numpy(np.int64))
    frame["et_node"] = node_of[np.minimum(rows, len(node_of) - 1)]


def add_et_column(trace_df: pd.DataFrame, et: ExecutionTrace, column: str) -> None:
    """Add the value of ``column`` (one of :data:`COLUMNS`) from each event's node; NaN without a node.

    Without ``et_node``, or for an unknown column, a warning is issued and nothing is added.
    """
    if "et_node" not in trace_df:
        warnings.warn("no et_node: run correlate_execution_trace() first", stacklevel=2)
        return
    if column not in COLUMNS:
        warnings.warn(f"unknown column {column!r}; known: {', '.join(COLUMNS)}", stacklevel=2)
        return
    member = "name" if column == "et_node_name" else column
    values = np.full(len(trace_df), math.nan, object)
    for place, node in enumerate(trace_df["et_node"].tolist()):
        if not math.isnan(node):
            values[place] = getattr(et.nodes[int(node)], member)
    trace_df[column] = values


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int) else math.nan
