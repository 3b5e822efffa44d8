"""How NCCL joins the ranks of a trace, as its logs and the records of its Inspector say."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from msgspec import Struct

from augment.core import Trace, derived
from augment.core.library_records import Communicator, NcclLog, NcclLogs
from augment.facts.collectives.collective_kernels import Group
from augment.facts.collectives.recorded_by_library import library_records, traced_collectives
from augment.facts.names.kernel_types import ALL_GATHER, ALL_REDUCE, POINT_TO_POINT, REDUCE_SCATTER, bus_factor


class DifferingRanks(Struct, frozen=True):
    """Ranks of one communicator enqueue another collective than its other ranks at the same place of their order."""

    communicator: str  #: its identity
    size: int  #: its ranks
    ranks: tuple[int, ...]  #: who differ from the most; all that were compared where no majority agrees
    has_majority: bool  #: whether most of the ranks agree on another collective
    place: int  #: how many collectives of the communicator came before
    collectives: tuple[tuple[str, int], ...]  #: kind and bytes, as NCCL counts them, the commonest first


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

    communicator_count: int  #: those that the process takes part in
    node_count: int  #: of the largest communicator, 1 where no log says
    network: str  #: ``IB``, ``Socket``, ``AWS Libfabric``; empty where not logged
    path: str  #: the slowest type of path inside a node: ``NVL``, ``PIX``, ``PHB``, ``SYS``; empty where not logged
    joins_directly: bool  #: whether NVLink joins some devices
    channel_count: int  #: the fewest of a communicator inside a node, 0 where not logged
    warnings: tuple[str, ...]  #: what NCCL warned of
    settings: tuple[str, ...]  #: of the environment, of those that choose a path, algorithm or channels
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
_SLOWEST = ("SYS", "PHB", "NODE", "PXB", "PXN", "PIX", "C2C", "NVB", "NVL", "LOC")
_SETTINGS = ("IB_DISABLE", "NET", "P2P", "SHM", "ALGO", "PROTO", "CHANNELS", "CTAS", "IB_HCA", "SOCKET_IFNAME")


@derived(until="diagnosis")
def network_of_log(trace: Trace) -> NetworkOfLog | None:
    """How NCCL joins the ranks, as it logged; None without a log of the trace's process."""
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
    # a communicator that is not complete may have got lines of the next one
    inside = [each for each in communicators if each.is_complete and each.nodes == 1 and each.size > 1]
    types = {kind for log in logs for kind, _ in log.patterns}
    networks = Counter[str]()
    for log in logs:
        networks.update(log.networks)
    # how many nodes the largest of these communicators joins: as logged (NCCL ≥ 2.20), else by the hosts of those of
    # one identity (≥ 2.16). Alone, where neither is logged, the hosts of the log.
    every = [each for log in logs for each in log.communicators]
    names = {each.host for each in every if each.host}
    if len(names) <= _MOST_HOSTS:  # without those to whose name something was glued
        names -= {name for name in names for other in names if name != other and name.endswith(other)}
    hosts = defaultdict[str, set[str]](set)
    for each in every:
        if each.host in names:
            hosts[each.identity].add(each.host)
    known = [each.nodes or min(len(hosts[each.identity]) if each.identity else 0, each.size) for each in communicators]
    if (pids is None) and not any(known):
        known = [len(of_identity) for of_identity in hosts.values()]
    return NetworkOfLog(
        len(communicators),
        max([*known, 1]),
        networks.most_common(1)[0][0] if networks else "",
        next((kind for kind in _SLOWEST if kind in types), ""),
        any(kind in types for kind in ("NVL", "NVB")),
        min((each.channels or 0 for each in inside if each.channels), default=0),
        tuple(warning for log in logs for warning, _ in log.warnings.most_common()),
        tuple(
            f"{name}={value}"
            for log in logs
            for name, value in log.environment.items()
            if any(part in name for part in _SETTINGS)
        ),
        _differing(attached.logs if attached else (), {each.identity for each in communicators}),
        rings,
        tuple(_reached(trace, communicators)),
    )


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
            if each.kind not in POINT_TO_POINT:
                enqueued[each.communicator].append((each.kind, each.bytes))
        for index, order in enqueued.items():
            of = log.communicators[index] if index >= 0 else None
            if of and of.is_complete and of.identity in identities - {""}:
                orders[of.identity][of.rank].setdefault((of.host, of.pid, of.pointer), order)
    sizes = {each.identity: each.size for log in logs for each in log.communicators}
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
        return DifferingRanks(
            identity, sizes[identity], tuple(ranks), has_majority, place, tuple(each for each, _ in counted)
        )
    return None


_MANY_RANKS, _LITTLE, _LARGE = 16, 1 << 16, 1 << 25  #: ranks; bytes of collectives
_SOME = 8  #: collectives from which on something is said of them


def _rings_of_little(trace: Trace) -> RingsOfLittle | None:
    """A ring of n ranks takes 2(n-1) steps, whatever the size; a tree some 2 log n."""
    sizes = defaultdict[int, list[tuple[int, bool]]](list)
    for record in library_records(trace):
        ranks, kind, moved = record.key
        if kind == ALL_REDUCE and record.algorithm and ranks >= _MANY_RANKS and 0 <= moved <= _LITTLE:
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
        factor = bus_factor(kind, ranks)
        if kind in (ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER) and moved >= _LARGE and dur > 0 and factor is not None:
            rates[ranks].append(moved * factor / dur)
    for ranks, of_size in sorted(rates.items()):
        known = {(each.nodes, each.max_bandwidth) for each in communicators if each.size == ranks}
        nodes, most = known.pop() if len(known) == 1 else (None, None)
        if nodes == 1 and most and len(of_size) >= _SOME:
            yield ReachedBandwidth(ranks, len(of_size), max(of_size), most)
