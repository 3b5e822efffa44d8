"""What the flight recorder, NCCL's log and its Inspector say of the collectives of a trace, or say without one;
and how NCCL joins the ranks.

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
from augment.core.records import Communicator, FlightDumps, InspectorLogs, NcclLog, NcclLogs
from augment.facts import names
from augment.facts.collectives.collective_kernels import Group, collectives
from augment.facts.collectives.rank_progress import host_collectives
from augment.facts.gpu.gpu_work import gpu_work

Recorder = Literal["flight_recorder", "nccl_log", "nccl_inspector"]
Key = tuple[int, str, int]  #: the size of the group, the kind, the bytes as nccl-tests count them
_ALL_RANKS = ("AllGather", "ReduceScatter")  #: kinds whose bytes NCCL counts for one rank


class LibraryRecord(Struct, frozen=True):
    """One collective as a recorder wrote it. What it does not tell is None, or empty."""

    recorder: Recorder
    group: str
    key: Key
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
        for operation in dump.operations if pids is None or trace.rank in (None, dump.rank) else ():
            group, kind = dump.groups[operation.group], names.kind_of(operation.kind)
            elements = names.size_elements(kind, operation.sent, operation.received, len(group.ranks))
            width = names.element_bytes(operation.dtypes[0]) if operation.dtypes else None
            size = _bytes(elements * width if width is not None and elements >= 0 else -1)
            name, key = group.description or group.name, (len(group.ranks), kind, size)
            records.append(LibraryRecord("flight_recorder", name, key))
    for log in logs.logs:  # one of a single process without a pid is taken as it is
        known = {communicator.pid for communicator in log.communicators}
        ways = [" and ".join(sorted({each.via.partition("/")[0] for each in of.edges})) for of in log.communicators]
        for collective in log.collectives:
            communicator = log.communicators[collective.communicator] if collective.communicator >= 0 else None
            pid = communicator.pid if communicator else None
            if pids is not None and pid not in pids and known != {None}:
                continue
            kind = names.kind_of(collective.kind)
            size = _bytes(collective.bytes * (communicator.size if communicator and kind in _ALL_RANKS else 1))
            records.append(
                LibraryRecord(
                    "nccl_log",
                    (communicator.identity or communicator.pointer) if communicator else "",
                    (2 if kind in (names.SEND, names.RECV) else communicator.size if communicator else -1, kind, size),
                    algorithm=collective.algorithm,
                    protocol=collective.protocol,
                    channels=collective.channels or (communicator.channels if communicator else None),
                    transport=ways[collective.communicator] if communicator else "",
                )
            )
    for each in inspector.logs:
        for record in each.records:
            if pids is None or (record.rank == trace.rank if each.pid is None else each.pid in pids):
                size = _bytes(record.bytes * (record.ranks if record.kind in _ALL_RANKS else 1))
                records.append(
                    LibraryRecord(
                        "nccl_inspector", record.communicator, (record.ranks, names.kind_of(record.kind), size),
                        record.exec_ns, record.algorithm, record.protocol, len(record.channel_ends) or None, "",
                        record.timing_source, record.skew_ns,
                    )
                )  # fmt: skip
    return tuple(records)


def _bytes(size: int) -> int:
    """A size as other columns hold it; -1 for what no memory has."""
    return size if size < 1 << 63 else -1


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
        (2 if name in (names.SEND, names.RECV) else size, name, count)
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


class DifferingRanks(Struct, frozen=True):
    """Ranks of one communicator enqueue another collective than its other ranks at the same place of their order."""

    communicator: str  #: its identity
    ranks: tuple[int, ...]  #: who differ from the most; all that were compared where no majority agrees
    has_majority: bool  #: whether most of the ranks agree on another collective
    place: int  #: how many collectives of the communicator came before
    collectives: tuple[tuple[str, int], ...]  #: kind and bytes, as NCCL counts them, the commonest first


class UnfinishedCommunicator(Struct, frozen=True):
    """Ranks that begin to make a communicator, and of which nothing later is logged."""

    communicator: str  #: its identity; empty where it has none
    size: int  #: its ranks
    ranks: tuple[int, ...]  #: that begin
    silent: tuple[int, ...]  #: of which the log has no line about it; none where it has no identity


class RingsOfLittle(Struct, frozen=True):
    """All-reduces of little data among many ranks for which NCCL chose rings."""

    ranks: int  #: in the group
    most_bytes: int  #: of the largest
    count: int  #: how many


class ReachedBandwidth(Struct, frozen=True):
    """The fastest of the large collectives inside a node, and what NCCL's topology has."""

    ranks: int  #: in the group
    count: int  #: how many large collectives
    best_gbps: float  #: bus bandwidth of the fastest, GB/s
    max_gbps: float  #: of the fastest path between its devices, GB/s


class NetworkOfLog(Struct, frozen=True):
    """What NCCL's logs, and its Inspector's records, say of the communicators of the trace's process."""

    communicator_count: int  #: those that the process takes part in, each once, however many of its ranks logged it
    collective_count: int  #: those that it enqueued in them, in the same way
    paths: dict[str, int]  #: how many pairs of ranks are joined by ``P2P``, ``SHM`` (the memory of their node), ``NET``
    node_count: int  #: of the largest communicator, 1 where no log says
    network: str  #: ``IB``, ``Socket``, ``AWS Libfabric``; empty where not logged
    path: str  #: the slowest type of path inside a node: ``NVL``, ``PIX``, ``PHB``, ``SYS``; empty where not logged
    joins_directly: bool  #: whether NVLink joins some devices
    channel_count: int  #: the fewest of a communicator inside a node, 0 where not logged
    failures: tuple[str, ...]  #: who warned that something failed, and of what, in the order of the log
    unfinished: UnfinishedCommunicator | None  #: which ranks begin to make, and do not end
    warnings: tuple[str, ...]  #: the others
    settings: dict[str, str]  #: of the environment, of those that choose a path, algorithm or channels
    differing: DifferingRanks | None  #: ranks that do not enqueue what the others do
    rings: RingsOfLittle | None  #: rings for little data among many ranks
    reached: tuple[ReachedBandwidth, ...]  #: inside a node, by size of the group


def transport_of_two(trace: Trace, group: Group) -> str:
    """By what NCCL joins the trace's rank with the other of a group of two; empty where no log says, or it does so in
    different ways in its communicators of two ranks, because a log does not say which group each is."""
    attached = trace.context.attached(NcclLogs)
    if group.size != 2 or attached is None:
        return ""
    pids = {*(track.pid for track in trace.tracks), None}
    ways = {
        edge.via
        for log in attached.logs
        for each in log.communicators
        if each.size == 2 and each.pid in pids
        for edge in each.edges
    }
    if len(ways) > 1:
        ways = {way.partition("/")[0] for way in ways}
    return ways.pop() if len(ways) == 1 else ""


_MOST_HOSTS = 2048  #: whose names are compared
_WAYS = {"direct shared memory": "SHM"}  #: as NCCL before 2.5 writes it
_SLOWEST = ("SYS", "PHB", "NODE", "PXB", "PXN", "PIX", "C2C", "NVB", "NVL", "LOC")
_SETTINGS = ("IB_", "NET", "P2P", "SHM", "ALGO", "PROTO", "CHANNELS", "CTAS", "_IFNAME", "TOPO_FILE", "GRAPH_FILE")


@derived(until="diagnosis")
def network_of_log(trace: Trace) -> NetworkOfLog | None:
    """How NCCL joins the ranks, as its log beside the trace says; None without one."""
    attached = trace.context.attached(NcclLogs)
    pids = {track.pid for track in trace.tracks} if len(trace.events) else None
    logs = [
        log
        for log in (attached.logs if attached else ())
        if pids is None or {each.pid for each in log.communicators} & {*pids, None} or not log.communicators
    ]
    rings = _rings_of_little(trace)
    if not logs and rings is None:
        return None
    communicators = [each for log in logs for each in log.communicators if pids is None or each.pid in {*pids, None}]
    unnamed = [each for log in logs for each in log.unnamed if pids is None or each.pid in {*pids, None}]
    sides = {each.identity for each in communicators} - {""}
    sides_of = [each for log in logs for each in log.communicators if each.identity in sides]
    pairs = set[tuple[str, int, int, int, str]]()
    for side in (*communicators, *sides_of, *unnamed):
        for edge in side.edges:
            first, last = sorted((edge.rank_from, edge.rank_to))
            way = edge.via.partition("/")[0]
            pairs.add((side.identity, side.size, first, last, _WAYS.get(way, way)))
    # a communicator that is not complete may have got lines of the next one
    inside = [each for each in communicators if each.is_complete and each.nodes == 1 and each.size > 1]
    types = {kind for log in logs for kind, _ in log.patterns}
    networks = Counter[str]()
    for log in logs:
        networks.update(log.networks)
    # how many nodes the largest of these communicators joins: as logged (NCCL ≥ 2.20), else by the hosts of those of
    # one identity (≥ 2.16). Alone, where neither is logged, the hosts of the log.
    every = [each for log in logs for each in log.communicators]
    called = {each.host for each in every if each.host}
    if len(called) <= _MOST_HOSTS:  # without those to whose name something was glued
        called -= {name for name in called for other in called if name != other and name.endswith(other)}
    hosts = defaultdict[str, set[str]](set)
    for each in every:
        if each.host in called:
            hosts[each.identity].add(each.host)
    known = [each.nodes or min(len(hosts[each.identity]) if each.identity else 0, each.size) for each in communicators]
    if (pids is None) and not any(known):
        known = [len(of_identity) for of_identity in hosts.values()]
    enqueued = Counter((place, each.communicator) for place, log in enumerate(logs) for each in log.collectives)
    weights = [
        (each, enqueued[place, index])
        for place, log in enumerate(logs)
        for index, each in enumerate(log.communicators)
        if pids is None or each.pid in {*pids, None}
    ]
    return NetworkOfLog(
        counted_once([(each, 1) for each in communicators]),
        counted_once(weights) + sum(count for (_, index), count in enqueued.items() if index < 0),
        dict(Counter(sorted(way for *_, way in pairs)).most_common()),
        max([*known, 1]),
        networks.most_common(1)[0][0] if networks else "",
        next((kind for kind in _SLOWEST if kind in types), ""),
        any(kind in types for kind in ("NVL", "NVB")),
        min((each.channels or 0 for each in inside if each.channels), default=0),
        tuple(warning for log in logs for warning, is_failure in log.warnings.items() if is_failure),
        _unfinished(logs, {(each.identity, each.size) for each in communicators}),
        tuple(warning for log in logs for warning, is_failure in log.warnings.items() if not is_failure),
        {
            name: value
            for log in logs
            for name, value in log.environment.items()
            if any(part in name for part in _SETTINGS)
        },
        _differing(attached.logs if attached else (), {each.identity for each in communicators}),
        rings,
        tuple(_reached(trace, communicators)),
    )


def counted_once(weights: Sequence[tuple[Communicator, int]]) -> int:
    """The sum of weights of ranks' sides, of which each communicator counts once. Without identities (before NCCL 2.16)
    those of one size are as many as the most that one rank, or one device, has sides of."""
    of: dict[tuple[str, int], Counter[object]] = defaultdict(Counter)
    for side, weight in weights:
        of[side.identity, side.size].update({("rank", side.rank): weight, (side.host, side.pid, side.device): weight})
    return sum(max(each.values()) for each in of.values())


_MOST_RANKS = 1 << 16  #: of a communicator of which those are told that log nothing


def _unfinished(logs: Sequence[NcclLog], known: set[tuple[str, int]]) -> UnfinishedCommunicator | None:
    """Of the ``known`` communicators, by identity and size, the first that is the last one of devices of a process, was
    begun there, and neither used nor ended on any rank: of one rank the line may be lost."""
    last: dict[tuple[str, int | None, int], Communicator] = {}
    whole = set[tuple[str, int]]()
    logged = defaultdict[str, set[int]](set)
    for log in logs:
        used = {each.communicator for each in log.collectives}
        for index, each in enumerate(log.communicators):
            last[each.host, each.pid, each.device] = each
            logged[each.identity].add(each.rank)
            whole |= {(each.identity, each.size)} if each.is_complete or index in used else set()
    is_whole = not any(log.left_out for log in logs)  # what is left out may be the end, or a rank's only line
    begun = [each for each in last.values() if is_whole and each.is_begun and each.size > 1]
    for identity, size in dict.fromkeys((each.identity, each.size) for each in begun):
        if (identity, size) in known - whole:
            ranks = {each.rank for each in begun if (each.identity, each.size) == (identity, size)}
            silent = set(range(size if identity and size <= _MOST_RANKS else 0)) - logged[identity]
            return UnfinishedCommunicator(identity, size, tuple(sorted(ranks)), tuple(sorted(silent)))
    return None


_AGREEING = 3  #: collectives after those that differ, which must be equal again


def _differing(logs: Sequence[NcclLog], identities: set[str]) -> DifferingRanks | None:
    """The first communicator whose ranks differ, so that no lost lines can be the reason: what few ranks enqueue at the
    place, the others never enqueue, and what follows is equal again. Without a majority, this holds for both sides."""
    orders: dict[str, dict[int, dict[tuple[str, int | None, str], list[tuple[str, int]]]]] = defaultdict(
        lambda: defaultdict(dict)
    )
    for log in logs:
        if log.glued_lines or log.long_lines or log.unreadable_lines or log.left_out:
            continue
        enqueued = defaultdict[int, list[tuple[str, int]]](list)
        for each in log.collectives:
            if each.kind not in names.POINT_TO_POINT:
                enqueued[each.communicator].append((each.kind, each.bytes))
        for index, order in enqueued.items():
            of = log.communicators[index] if index >= 0 else None
            if of and of.is_complete and of.identity in identities - {""}:
                orders[of.identity][of.rank].setdefault((of.host, of.pid, of.pointer), order)
    for identity, of_ranks in orders.items():
        if any(len(sides) > 1 for sides in of_ranks.values()):  # communicators that were split off with equal ids
            continue
        order_of = {rank: order for rank, sides in of_ranks.items() for order in sides.values()}
        shortest = min(map(len, order_of.values()))
        place = next((at for at in range(shortest) if len({order[at] for order in order_of.values()}) > 1), None)
        if place is None:
            continue
        counted = sorted(
            Counter(order[place] for order in order_of.values()).items(), key=lambda each: (-each[1], each[0])
        )
        has_majority = 2 * counted[0][1] > len(order_of)
        rare = [each for each, _ in counted[has_majority:]]
        if any(each in order for each in rare for order in order_of.values() if order[place] != each):
            continue
        after = range(place + 1, min(shortest, place + 1 + _AGREEING))
        if any(len({order[at] for order in order_of.values()}) > 1 for at in after):
            continue
        ranks = sorted(rank for rank, order in order_of.items() if not has_majority or order[place] != counted[0][0])
        return DifferingRanks(identity, tuple(ranks), has_majority, place, tuple(each for each, _ in counted))
    return None


_MANY_RANKS, _LITTLE, _LARGE = 16, 1 << 16, 1 << 25  #: ranks; bytes of collectives
_SOME = 8  #: collectives from which on something is said of them


def _rings_of_little(trace: Trace) -> RingsOfLittle | None:
    """A ring of n ranks takes 2(n-1) steps, whatever the size; a tree some 2 log n."""
    sizes = defaultdict[int, list[tuple[int, bool]]](list)
    for record in library_records(trace):
        ranks, kind, moved = record.key
        if kind == names.ALL_REDUCE and record.algorithm and ranks >= _MANY_RANKS and 0 <= moved <= _LITTLE:
            sizes[ranks].append((moved, record.algorithm.upper() == "RING"))
    for ranks, of_size in sorted(sizes.items(), reverse=True):
        rings = [moved for moved, is_ring in of_size if is_ring]
        if len(rings) >= _SOME and 2 * len(rings) > len(of_size):
            return RingsOfLittle(ranks, max(rings), len(rings))
    return None


def _reached(trace: Trace, communicators: Sequence[Communicator]) -> Iterator[ReachedBandwidth]:
    """Of sizes of groups all of whose communicators lie inside a node and have the same fastest path."""
    rates = defaultdict[int, list[float]](list)
    traced = traced_collectives(trace)
    durations = (traced.end - traced.ts).tolist()
    timed = [*zip(traced.keys, durations, strict=True)]
    by_kernels = (each for each in library_records(trace) if each.timing_source.startswith("kernel"))
    timed += [(each.key, each.exec_ns) for each in by_kernels if each.exec_ns]
    for (ranks, kind, moved), dur in timed:
        factor = names.bus_factor(kind, ranks)
        if (
            kind in (names.ALL_REDUCE, names.ALL_GATHER, names.REDUCE_SCATTER)
            and moved >= _LARGE
            and dur > 0
            and factor is not None
        ):
            rates[ranks].append(moved * factor / dur)
    for ranks, of_size in sorted(rates.items()):
        known = {(each.nodes, each.max_bandwidth) for each in communicators if each.size == ranks}
        nodes, most = known.pop() if len(known) == 1 else (None, None)
        if nodes == 1 and most and len(of_size) >= _SOME:
            yield ReachedBandwidth(ranks, len(of_size), max(of_size), most)
