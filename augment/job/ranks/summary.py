"""The summary of a rank for its job: a small file with collectives as columns, step figures, and metric rows."""

from __future__ import annotations

import re
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import msgspec
import numpy as np
import numpy.typing as npt

from augment import facts
from augment.arrays import NO_INDEX, NO_VALUE, Bools, CollectiveIndexes, EventRows, Int64s, MemberIndexes, WorkIndexes
from augment.core import AugmentedTrace, Findings, Texts, Trace, Verdict, Window, columns_of
from augment.core.findings import Column
from augment.core.text import runs
from augment.diagnosis import host_alone, verdict
from augment.diagnosis.drawing import DrawnDiagnosis
from augment.diagnosis.judging import measure
from augment.diagnosis.ranking import earlier
from augment.diagnosis.rules import SEEN_OF_JOB, straggling_rank
from augment.diagnosis.verdict import PART_COLUMNS
from augment.diagnosis.wording import vendor
from augment.errors import InputError
from augment.facts.collectives import rank_progress
from augment.facts.collectives.recorded_by_library import transport_of_two
from augment.facts.critical.handovers import main_track
from augment.facts.steps import batches, recorded_windows, step_figures
from augment.job.ranks.dimension_names import with_listed_groups
from augment.job.ranks.rank_tables import Tables, tables_of
from augment.job.ranks.states import StateTable, state_table
from augment.writers.compression import fastest

VERSION = 19
MOST_COLLECTIVES = 100_000  #: limit for a summary: the first are kept
MOST_ROWS = 200  #: limit per analysis: the first are kept
MOST_STEPS = 10_000
RULES_OF_JOB = (*SEEN_OF_JOB, straggling_rank.NAME)  #: whose answers the traces of other ranks change
_OF_MOMENTS = ("launch_outliers", "activity_over_time")  #: rows of moments of one recording, which no other rank shares
_FOUND = ("rule", "title", "advice", "severity", "confidence", "saved_ns", "start_ns", "dur_ns")
_COLUMNS = (
    "row",
    "ts",
    "end",
    "group",
    "kind",
    "seq",
    "bytes",
    "step",
    "peer",
    "exposed_ns",
    "held",
    "follows",
    "stream",
)
_UNCHANGED = ("ts", "end", "group", "seq", "bytes", "step", "peer")  #: columns copied unchanged
_STEPS = ("number", "start", "end", "steady", "requests", *PART_COLUMNS)
#: the columns of :class:`Spent` at a moment of collectives or steps
SPENT = {
    moment: tuple(f"{name} before {moment}" for name in rank_progress.Spent._fields)
    for moment in ("ts", "start", "end")
}
EARLIER = ("begins", "ready", "stopped")  #: by how much earlier, with a finding fixed: see ``rank_tables.py``
_HOST_IN_NAME = re.compile(r"(.+)_\d+\.\d{10,19}\b")  #: HOST_PID.TIME, the names of ``tensorboard_trace_handler``


class Figures(msgspec.Struct):
    """The figures of one analysis: texts that identify each row, and float64 values, row after row."""

    keys: list[list[str]]
    columns: list[str]
    units: list[str]
    values: bytes

    def table(self) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
        """The values as a table, one line per row; NaN where there is none."""
        return np.frombuffer(self.values, np.float64).reshape(len(self.keys), len(self.columns))


class RankStream(msgspec.Struct, frozen=True):
    """A stream with collectives: its ``name``, its track in the source, and the track of its device."""

    name: str
    track: int
    device_track: int


class OwnDiagnosis(msgspec.Struct, frozen=True):
    """What a rank says without its job: the ``vendor`` of its devices, the sentences of its verdict, each with its
    rules, the ``rows`` of :data:`RULES_OF_JOB`, and the rules whose findings are ``grave``; what is ``drawn`` of it
    (None: nothing), and of what ``others`` found the columns :data:`_FOUND`. ``busy``: which of the sentences says what
    its ``device_count`` devices did, ``nothing``: which one that no rule found anything; -1 for none.
    """

    vendor: str
    sentences: list[tuple[str, list[str]]]
    rows: list[dict[str, Any]]
    grave: list[str] = []
    drawn: DrawnDiagnosis | None = None
    others: list[dict[str, Any]] = []
    busy: int = -1
    nothing: int = -1
    device_count: int = 0
    outside: list[str] = []  #: what its main thread is in while a host without devices runs no operator


class RankSummary(msgspec.Struct):
    """The summary of one rank. ``columns`` and ``steps`` are int64 columns by name: see :meth:`column`.

    Columns of each collective: ``row`` in the event table; ``ts`` and ``end`` in ns; ``group``, ``kind`` and
    ``stream``, indexes into these lists; ``seq``, ``bytes`` and ``step``; ``peer``, the other rank of a Send or Recv
    (-1 unknown); ``exposed_ns``; ``held``, 1 if the rank had to wait for the collective; ``follows``, the index of the
    previous collective on the stream if the collective had to wait for that, else -1.

    Columns of each step: its ``number`` (a recording without steps is one step, -1), its window from ``start`` to
    ``end``, whether it is ``steady``: one that rules judge, the ``requests`` in the batch of an engine's step (-1
    unknown), and ``compute_ns`` and the other :data:`PART_COLUMNS`, of all devices.

    Both have the columns of :class:`Spent` at their starts and ends, such as ``compute_ns before ts``.
    """

    version: int
    name: str
    sha256: str
    rank: int | None
    host: str
    groups: list[list[str | int]]
    kinds: list[str]
    streams: list[RankStream]
    columns: dict[str, bytes]
    steps: dict[str, bytes]
    states: StateTable
    figures: dict[str, Figures]
    link_gbps: float
    left_out: int
    rows_left_out: int
    partial: str | None = None  #: why the trace is incomplete; None if it is whole
    tables: dict[str, dict[str, bytes]] = {}  #: see :mod:`augment.job.ranks.rank_tables`
    texts: dict[str, list[str]] = {}
    world: int = NO_VALUE  #: the number of ranks of the job, -1 unknown
    text_bytes: int = 0  #: of the source
    first_ns: int | None = None  #: when its first event begins; None without events
    last_ns: int | None = None  #: when its last event ends
    main_track: int = NO_INDEX  #: of the thread that drives the rank, -1 unknown
    diagnosis: bytes = b""  #: an :class:`OwnDiagnosis`, compressed, if the rules were asked
    transports: dict[str, str] = {}  #: by what NCCL joins the two ranks of a group, by its identity, where its log says

    @property
    def own_diagnosis(self) -> OwnDiagnosis | None:
        """What the rank says of itself; None if no rule was asked."""
        return msgspec.msgpack.decode(zlib.decompress(self.diagnosis), type=OwnDiagnosis) if self.diagnosis else None

    @property
    def computing_ns(self) -> Int64s:
        """The computing in each step: of all devices, or of the host where it is alone."""
        after, before = (self.step_column(SPENT[moment][0]) for moment in ("end", "start"))
        return after - before if self.is_host_alone else self.step_column("compute_ns")

    @property
    def is_host_alone(self) -> bool:
        """Whether its collectives are those that its host does itself, without a device."""
        return bool(self.streams) and not any(stream.name for stream in self.streams)

    def column(self, name: str) -> Int64s:
        """A column of the collectives."""
        return np.frombuffer(self.columns[name], np.int64)

    def step_column(self, name: str) -> Int64s:
        """A column of the steps."""
        return np.frombuffer(self.steps[name], np.int64)

    def table_column(self, table: str, name: str) -> Int64s | None:
        """A column of :mod:`augment.job.ranks.rank_tables`; None if the summary lacks it."""
        content = self.tables.get(table, {}).get(name)
        return None if content is None else np.frombuffer(content, np.int64)

    def moments(self) -> list[Int64s]:
        """The moments at which figures ask for states: of collectives, steps and passes."""
        of_collectives = [self.column(side) for side in ("ts", "end")]
        of_steps = [self.step_column(side) for side in ("start", "end")]
        passes = [self.table_column("actions", side) for side in ("start", "end")]
        return [*of_collectives, *of_steps, *(column for column in passes if column is not None)]

    def group(self, number: int) -> facts.collectives.Group:
        """A process group."""
        name, description, ranks, comms_id, size, origin = self.groups[number]
        known = facts.collectives.Group(str(name), str(description), str(ranks), str(comms_id), int(size))
        return msgspec.structs.replace(known, origin="listed") if origin == "listed" else known


def summarize(augmented: AugmentedTrace) -> bytes:
    """The summary of a rank as a file; equal for equal traces and figures."""
    _, deflate = fastest(zlib.MAX_WBITS, level=1)
    return bytes(deflate.compress(msgspec.msgpack.encode(summary_of(augmented))) + deflate.flush())


def summary_of(augmented: AugmentedTrace, most: int | None = MOST_COLLECTIVES) -> RankSummary:
    """The summary of a rank with its first ``most`` collectives; None means all."""
    trace, window = augmented.trace, augmented.window
    records = (
        rank_progress.host_collectives(trace) if not len(facts.gpu.work(trace)) else facts.collectives.kernels(trace)
    )
    inside = np.ones(len(records), np.bool_) if window is None else _within(records.step, window)
    chosen = cast("CollectiveIndexes", np.flatnonzero(inside))
    left_out = 0 if most is None else max(len(chosen) - most, 0)
    chosen = chosen[:most]
    steps = _steps(trace, window)
    tables, texts = tables_of(trace, chosen, window)
    results = {name: outcome for name, outcome in augmented.outcomes.items() if isinstance(outcome, Findings)}
    groups: Sequence[facts.collectives.Group]
    if isinstance(records, rank_progress.HostCollectives):
        streams, columns = _threads(trace, records.row[chosen]), _host_columns(trace, chosen)
        groups = [records.group]
    else:
        streams, stream = _streams(trace, records.place[chosen])
        columns = _columns(trace, chosen) | {"stream": stream}
        groups, columns["group"] = with_listed_groups(
            trace, records.groups, columns["group"], tables["collectives"]["expert"]
        )
        if "diagnosis" in results:
            tables |= _earlier(trace, columns, tables["collectives"], chosen, steps)
    passes = tables["actions"]["start"], tables["actions"]["end"]
    moments = columns["ts"], columns["end"], steps["start"], steps["end"], *passes
    hosts = (trace.source.metadata.get(key) for key in ("hostname", "host_name", "hostName"))
    in_name = _HOST_IN_NAME.match(trace.source.label)
    host = next((name for name in hosts if isinstance(name, str) and name), in_name[1] if in_name else "")
    # The option ``link_gbps`` of the analysis of collectives, which each of its rows contains
    outcome = augmented.outcomes.get("collectives")
    rows = outcome.rows if isinstance(outcome, Findings) else ()
    link = next((row.link_gbps for row in rows if row.link_gbps), 0.0)
    return RankSummary(
        version=VERSION,
        name=trace.source.label,
        partial=trace.partial,
        world=trace.source.world_size or NO_VALUE,
        text_bytes=trace.source.text_bytes,
        first_ns=int(trace.events.ts[0]) if len(trace.events) else None,
        last_ns=int(trace.events.end.max()) if len(trace.events) else None,
        main_track=main_track(trace),
        sha256=trace.source.sha256,
        rank=trace.rank,
        host=host,
        groups=[[each.name, each.description, each.ranks, each.comms_id, each.size, each.origin] for each in groups],
        kinds=list(records.kind.values),
        streams=streams,
        columns=_bytes({name: columns[name] for name in (*_COLUMNS, *SPENT["ts"], *SPENT["end"])}),
        steps=_bytes(steps),
        states=state_table(
            rank_progress.device_states(trace), rank_progress.host_gaps(trace, main_track(trace)), moments
        ),
        figures={
            name: _figures(findings) for name, findings in results.items() if findings.rows and name not in _OF_MOMENTS
        },
        link_gbps=link,
        tables={name: _bytes(table) for name, table in tables.items()},
        texts=texts,
        diagnosis=_diagnosis(trace, results["diagnosis"]) if "diagnosis" in results else b"",
        transports={each.identity: way for each in groups if (way := transport_of_two(trace, each))},
        left_out=left_out,
        rows_left_out=sum(max(len(findings.rows) - MOST_ROWS, 0) for findings in results.values()),
    )


def _diagnosis(trace: Trace, findings: Findings) -> bytes:
    said = findings.verdict or Verdict()
    rows = [msgspec.to_builtins(row) for row in findings.rows if row.rule in RULES_OF_JOB]
    found_by_others = [row for row in findings.rows if row.status == "found" and row.rule not in RULES_OF_JOB]
    others = [{name: getattr(row, name) for name in _FOUND} for row in found_by_others]
    sentences = [(text, list(rules)) for text, rules in zip(said.text, said.about, strict=True)]
    grave = [row.rule for row in findings.rows if row.severity not in (None, "info") and row.confidence != "low"]
    drawn, devices = DrawnDiagnosis.of(findings.annotations, trace), len(facts.gpu.work(trace).devices)
    alone = not devices and len(rank_progress.host_collectives(trace).ts)
    outside = host_alone.main_thread_outside(trace)[2] if alone else []
    busy, nothing = -1, -1
    for place, each in enumerate(verdict.sentences(trace)):
        busy, nothing = place if each.is_state and devices else busy, place if each.is_nothing else nothing
    diagnosis = OwnDiagnosis(vendor(trace), sentences, rows, grave, drawn, others, busy, nothing, devices, outside)
    return zlib.compress(msgspec.msgpack.encode(diagnosis))


def _columns(trace: Trace, chosen: CollectiveIndexes) -> dict[str, Int64s]:
    """The columns of the ``chosen`` collectives, but for their streams."""
    records, work = facts.collectives.kernels(trace), facts.gpu.work(trace)
    columns: dict[str, Int64s] = {name: getattr(records, name)[chosen] for name in _UNCHANGED}
    # The index among the ``chosen`` of each of ``count``; an extra last element serves :data:`NO_INDEX`
    places = np.full(len(records) + 1, NO_INDEX, np.int64)
    places[chosen] = np.arange(len(chosen))
    columns |= {
        "end": np.maximum(columns["end"], columns["ts"]),  # a negative duration counts as 0
        "row": work.row[records.place[chosen]],
        "kind": records.kind.codes[chosen].astype(np.int64),
        "exposed_ns": records.exposed_ns[chosen],
        "held": rank_progress.held_up(trace)[chosen].astype(np.int64),
        "follows": places[rank_progress.follows(trace)[chosen]],
    }
    return columns | _spent(trace, ts=columns["ts"], end=columns["end"])


def _earlier(
    trace: Trace,
    columns: Mapping[str, Int64s],
    of_collectives: Mapping[str, Int64s],
    chosen: CollectiveIndexes,
    steps: Mapping[str, Int64s],
) -> Tables:
    """The tables of what findings cost the rank, of its ``chosen`` collectives, which have these columns."""
    of: Tables = {"earlier": {}, "steps earlier": {}}
    ready = np.maximum(of_collectives["ready"], of_collectives["launched"])
    stopped = np.clip(columns["end"] - columns["exposed_ns"], columns["ts"], columns["end"])
    for rule, each in earlier(trace).items():
        values = each.begins[chosen], each.at(ready), each.at(stopped)
        of["earlier"] |= {f"{rule} {name}": column for name, column in zip(EARLIER, values, strict=True)}
        of["steps earlier"] |= {f"{rule} {side}": each.at(steps[side]) for side in ("start", "end")}
    return of


def _host_columns(trace: Trace, chosen: CollectiveIndexes) -> dict[str, Int64s]:
    """The columns of the ``chosen`` collectives of a host. The rank waits for those at whose end it runs no operator;
    all are on one stream, as ranks do them in one order, whatever threads the backend takes."""
    every = rank_progress.host_collectives(trace)
    nothing, none = np.zeros(len(chosen), np.int64), np.full(len(chosen), NO_INDEX, np.int64)
    columns = {name: getattr(every, name)[chosen] for name in ("row", "ts", "end", "bytes", "step", "exposed_ns")}
    columns |= {"group": nothing, "stream": nothing, "seq": none, "peer": none, "follows": none}
    columns["kind"] = every.kind.codes[chosen].astype(np.int64)
    ts, end = columns["ts"], columns["end"]
    computing = (
        rank_progress.spent_before(trace, end).compute_ns
        - rank_progress.spent_before(trace, np.maximum(end - 1, ts)).compute_ns
    )
    columns["held"] = (computing == 0).astype(np.int64)
    return columns | _spent(trace, ts=ts, end=end)


def _threads(trace: Trace, row: EventRows) -> list[RankStream]:
    """The thread of the backend under which the job's tracks are drawn; none without collectives."""
    return [RankStream("", int(track), int(track)) for track in trace.events.track[row[:1]]]


def _bytes(columns: Mapping[str, npt.NDArray[Any]]) -> dict[str, bytes]:
    """The bytes of each column, as int64."""
    return {name: values.astype(np.int64, copy=False).tobytes() for name, values in columns.items()}


def read_summary(content: bytes, name: str) -> RankSummary:
    """Decode a summary that :func:`summarize` wrote; errors mention ``name``.

    Raises:
        InputError: the summary is damaged or has another version.
    """
    try:
        summary = msgspec.msgpack.decode(zlib.decompress(content), type=RankSummary)
    except (zlib.error, msgspec.MsgspecError) as error:
        raise InputError(name, f"not a summary of a rank: {error}") from error
    if summary.version != VERSION:
        raise InputError(name, "the summary has another version; convert the rank again with --force")
    return summary


def drawn_under(augmented: AugmentedTrace) -> list[int]:
    """The tracks of the source under which the job's tracks are drawn on the rank's timeline, and its diagnosis, whose
    arrows lead to others."""
    trace = augmented.trace
    drawn = DrawnDiagnosis.of(augmented.annotations, trace)
    of_diagnosis = {drawn.under, *(arrow[-1] for arrow in drawn.arrows)} if drawn else set()
    streams = (
        _threads(trace, rank_progress.host_collectives(trace).row)
        or _streams(trace, facts.collectives.kernels(trace).place)[0]
    )
    tracks = {track for stream in streams for track in (stream.track, stream.device_track)}
    main = main_track(trace)
    return sorted(tracks | of_diagnosis | ({main} - {NO_INDEX})) if tracks else []


def _streams(trace: Trace, place: WorkIndexes) -> tuple[list[RankStream], Int64s]:
    """The streams of the given GPU work, and the index of each piece's stream."""
    work = facts.gpu.work(trace)
    number = work.stream_of(place)
    distinct, which = np.unique(number, return_inverse=True)
    starts = [stream.start for stream in work.devices]
    streams_found = []
    for stream in (work.streams[at] for at in distinct.tolist()):
        device = work.devices[bisect_right(starts, stream.start) - 1]
        streams_found.append(RankStream(str(stream.stream), stream.track, device.track))
    return streams_found, which.astype(np.int64)


def _within(step: Int64s, window: Window) -> Bools:
    inside: Bools = (step >= window.first_step) & (step <= window.last_step)
    return inside


def _spent(trace: Trace, **moments: Int64s) -> dict[str, Int64s]:
    """The columns of the time spent before given moments, by name."""
    return {
        name: values
        for moment, ts in moments.items()
        for name, values in zip(SPENT[moment], rank_progress.spent_before(trace, ts), strict=True)
    }


def _steps(trace: Trace, window: Window | None) -> dict[str, Int64s]:
    windows = recorded_windows(trace)
    chosen = np.ones(len(windows), np.bool_) if window is None else _within(windows.number, window)
    windows = windows.take(np.flatnonzero(chosen)[:MOST_STEPS])
    devices = step_figures(trace, windows) if len(windows) else []
    none = np.zeros(len(windows), np.int64)
    parts = [sum((of.of_device[name] for of in devices if of.of_device), none) for name in PART_COLUMNS]
    steady = np.isin(windows.number, measure(trace).windows.number).astype(np.int64)
    of_step = batches(trace)
    requests = np.array(
        [of_step[number].requests if of_step else NO_VALUE for number in windows.number.tolist()], np.int64
    )
    columns: tuple[Int64s, ...] = (windows.number, windows.start, windows.end, steady, requests, *parts)
    return dict(zip(_STEPS, columns, strict=True)) | _spent(trace, start=windows.start, end=windows.end)


def _figures(outcome: Findings) -> Figures:
    rows: Sequence[msgspec.Struct] = outcome.rows[:MOST_ROWS]
    columns = columns_of(type(rows[0]))
    figures = [column for column in columns if _is_figure(column)]
    telling = [column for column in columns if column.is_key and not _is_figure(column)]
    keys = [column.name for column in telling if column.name not in ("rank", "device")]
    values = np.array([[_number(getattr(row, column.name)) for column in figures] for row in rows], np.float64)
    return Figures(
        keys=[[f"{key}={getattr(row, key)}" for key in keys if getattr(row, key) is not None] for row in rows],
        columns=[column.name for column in figures],
        units=[column.unit for column in figures],
        values=values.tobytes(),
    )


def _is_figure(column: Column) -> bool:
    return bool(column.unit) or "float" in str(column.type)


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float, np.number)) else float("nan")


# Lists of ranks as text.


MOST = 6  #: ranges written out


def ranks_text(ranks: Iterable[int | None]) -> str:
    """Ranks as ranges: ``rank 3``, ``ranks 0 to 3 and 8``; ranks that are unknown are counted."""
    given = list(ranks)
    known = sorted({rank for rank in given if rank is not None})
    unknown = given.count(None)
    spans = [
        part for low, high in runs(known) for part in ([[low, high]] if high != low + 1 else [[low, low], [high, high]])
    ]
    texts = [str(low) if low == high else f"{low} to {high}" for low, high in spans]
    if len(texts) > MOST:
        beyond = sum(high - low + 1 for low, high in spans[MOST:])
        texts = [*texts[:MOST], f"{beyond} more"]
    listed = texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}" if texts else ""
    parts = [f"rank{'s' if len(known) > 1 else ''} {listed}"] if known else []
    if unknown:
        parts.append(f"{unknown} rank{'s' if unknown > 1 else ''} of unknown number")
    return " and ".join(parts) or "no rank"


def rank_texts(members: MemberIndexes, summaries: Sequence[RankSummary]) -> Texts:
    """The names of ``members`` (-1: none) as a column that holds only names which occur: of thousands of ranks, the
    track of each names few."""
    occurring, which = np.unique(members, return_inverse=True)
    absent = int(len(occurring) > 0 and occurring[0] < 0)
    names = rank_names([summaries[member] for member in occurring[absent:].tolist()])
    return Texts((which - absent).astype(np.int32), names)


def rank_names(summaries: Sequence[RankSummary]) -> tuple[str, ...]:
    """How each rank is called: ``rank 3``, or by its trace."""
    return tuple(f"rank {each.rank}" if each.rank is not None else each.name for each in summaries)
