"""What the flight recorder, NCCL's log and its Inspector say of the collectives of a trace, or say without one.

A record belongs to a collective of the trace by the size of the group, kind and bytes, of the trace's own process (pid
or rank): none of the three carries an identity that Kineto has, too. ``opCount`` of a log is no sequence number, and
only verbose records of the Inspector carry times. Where records of one key differ, the commonest is told, with its
share.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
from msgspec import Struct

from augment.arrays import Int64s
from augment.core import Trace, derived
from augment.core.library_records import FlightDumps, InspectorLogs, NcclLog, NcclLogs, RankDump
from augment.facts.collectives.collective_kernels import collectives
from augment.facts.collectives.rank_progress import host_collectives
from augment.facts.gpu.gpu_work import gpu_work
from augment.facts.names.kernel_types import RECV, SEND, element_bytes, kind_of, size_elements

Recorder = Literal["flight_recorder", "nccl_log", "nccl_inspector"]
Key = tuple[int, str, int]  #: the size of the group, the kind, the bytes as nccl-tests count them
_ALL_RANKS = ("AllGather", "ReduceScatter")  #: kinds whose bytes NCCL counts for one rank


class LibraryRecord(Struct, frozen=True):
    """One collective as a recorder wrote it. What it does not tell is None, or empty."""

    recorder: Recorder
    group: str
    key: Key
    sequence: int | None = None
    start_ns: int | None = None  #: Unix time when it was enqueued, or its kernel began
    exec_ns: int | None = None
    algorithm: str = ""
    protocol: str = ""
    channels: int | None = None
    transport: str = ""
    timing_source: str = ""
    skew_ns: int | None = None


class TracedCollectives(Struct, frozen=True):
    """The collectives of a trace, on its devices or, as of gloo, on its host: equal-length columns, ascending ``ts``,
    int64 ns; ``keys`` as those of the records; ``track``: the first of the device, or that of the thread."""

    ts: Int64s
    end: Int64s
    track: Int64s
    keys: Sequence[Key]


class JoinedRecords(Struct, frozen=True):
    """The records of one key by one recorder, and the collectives of the trace that they belong to."""

    recorder: Recorder  #: which wrote them
    group: str  #: as the recorder names it
    key: Key  #: size of the group, kind, bytes
    records: Sequence[LibraryRecord]  #: in the order of the file
    places: Int64s  #: indexes of :func:`traced_collectives`

    def commonest(self, name: str) -> tuple[Any, float]:
        """The commonest value of a field, and the share of the records with one that have it; None without any."""
        known = [value for each in self.records if (value := getattr(each, name)) not in (None, "")]
        ((value, count),) = Counter(known).most_common(1) or [(None, 0)]
        return value, count / max(len(known), 1)

    def middle_ns(self, name: str) -> int | None:
        """The median of a field, ns."""
        known = [value for each in self.records if (value := getattr(each, name)) is not None]
        return int(np.median(known)) if known else None


@derived(until="breakdowns")
def library_records(trace: Trace) -> tuple[LibraryRecord, ...]:
    """All records of the trace's process; all there are where the trace has no events."""
    pids = {track.pid for track in trace.tracks} if len(trace.events) else None
    dumps = trace.context.attached(FlightDumps) or FlightDumps(())
    logs = trace.context.attached(NcclLogs) or NcclLogs(())
    inspector = trace.context.attached(InspectorLogs) or InspectorLogs(())
    records: list[LibraryRecord] = []
    for dump in dumps.dumps:
        if pids is None or trace.rank in (None, dump.rank):
            records += _of_dump(dump)
    for log in logs.logs:
        records += _of_log(log, pids)
    for each in inspector.logs:
        for record in each.records:
            if pids is None or (record.rank == trace.rank if each.pid is None else each.pid in pids):
                size = _bytes(record.bytes * (record.ranks if record.kind in _ALL_RANKS else 1))
                begun = min((channel.start_ns for channel in record.channels if channel.start_ns), default=None)
                records.append(
                    LibraryRecord(
                        "nccl_inspector", record.communicator, (record.ranks, kind_of(record.kind), size),
                        record.sequence, begun or record.start_ns, record.exec_ns, record.algorithm, record.protocol,
                        len(record.channels) or None, "", record.timing_source, record.skew_ns,
                    )
                )  # fmt: skip
    return tuple(records)


def _bytes(size: int) -> int:
    """A size as other columns hold it; -1 for what no memory has."""
    return size if size < 1 << 63 else -1


def _of_dump(dump: RankDump) -> Iterator[LibraryRecord]:
    for operation in dump.operations:
        group = dump.groups[operation.group]
        kind = kind_of(operation.kind)
        elements = size_elements(kind, operation.sent, operation.received, len(group.ranks))
        width = element_bytes(operation.dtypes[0]) if operation.dtypes else None
        size = _bytes(elements * width if width is not None and elements >= 0 else -1)
        name = group.description or group.name
        yield LibraryRecord(
            "flight_recorder", name, (len(group.ranks), kind, size), operation.sequence, operation.created_ns
        )


def _of_log(log: NcclLog, pids: set[Any] | None) -> Iterator[LibraryRecord]:
    """The collectives of a log, of the processes of the trace; a log of one process without a pid is taken as it is."""
    known = {communicator.pid for communicator in log.communicators}
    ways = [" and ".join(sorted({each.via.partition("/")[0] for each in of.edges})) for of in log.communicators]
    for collective in log.collectives:
        communicator = log.communicators[collective.communicator] if collective.communicator >= 0 else None
        pid = communicator.pid if communicator else None
        if pids is not None and pid not in pids and known != {None}:
            continue
        kind = kind_of(collective.kind)
        size = _bytes(collective.bytes * (communicator.size if communicator and kind in _ALL_RANKS else 1))
        yield LibraryRecord(
            "nccl_log",
            (communicator.identity or communicator.pointer) if communicator else "",
            (2 if kind in (SEND, RECV) else communicator.size if communicator else -1, kind, size),
            algorithm=collective.algorithm,
            protocol=collective.protocol,
            channels=collective.channels or (communicator.channels if communicator else None),
            transport=ways[collective.communicator] if communicator else "",
        )


@derived(until="breakdowns")
def traced_collectives(trace: Trace) -> TracedCollectives:
    """The collectives of the trace, with what identifies them in records, too."""
    every, work = collectives(trace), gpu_work(trace)
    if len(work) or not len(here := host_collectives(trace)):
        sizes = np.array([group.size for group in every.groups], np.int64)
        sizes = sizes[every.group] if len(every) else sizes[:0]
        tracks, device = np.array([each.track for each in work.devices], np.int64), work.device_of(every.place)
        track = tracks[device] if len(tracks) else np.empty(0, np.int64)
        ts, end, kind, moved = every.ts, every.end, every.kind, every.bytes
    else:
        sizes, track = np.full(len(here), here.group.size), trace.events.track[here.row].astype(np.int64)
        ts, end, kind, moved = here.ts, here.end, here.kind, here.bytes
    kinds = [kind.values[code] for code in kind.codes.tolist()]
    keys = [
        (2 if name in (SEND, RECV) else size, name, count)
        for name, size, count in zip(kinds, sizes.tolist(), moved.tolist(), strict=True)
    ]
    return TracedCollectives(ts, end, track, keys)


@derived(until="breakdowns")
def joined_records(trace: Trace) -> tuple[JoinedRecords, ...]:
    """The records by recorder, group and key, with the trace's collectives of the key."""
    of_key: dict[Key, list[int]] = defaultdict(list)
    for index, key in enumerate(traced_collectives(trace).keys):
        of_key[key].append(index)
    parts: dict[tuple[Recorder, str, Key], list[LibraryRecord]] = defaultdict(list)
    for record in library_records(trace):
        parts[record.recorder, record.group, record.key].append(record)
    return tuple(
        JoinedRecords(recorder, group, key, records, np.array(of_key.get(key, ()), np.int64))
        for (recorder, group, key), records in sorted(parts.items(), key=lambda part: (part[0][0], part[0][1]))
    )
