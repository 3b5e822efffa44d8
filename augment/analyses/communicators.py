"""Which communicators did NCCL make, how long did that take, and by what does it join which ranks?

From logs of ``NCCL_DEBUG=INFO`` beside the trace, or alone (``--nccl-log``): the communicators that the trace's process
takes part in, with what all logged ranks tell of them. A row is about a ``communicator``, about a ``pair`` of its ranks
and the transport between them, about a ``ring`` or about a rank's place in a ``tree``; channels with equal rings or
trees share a row. Ranks of one communicator are known by NCCL's id of it (NCCL ≥ 2.16); of older logs each rank's side
is a row of its own. NCCL 2.22 on connects ranks when they first need it: where the log does not say for which of
several communicators, the line is left out, and counted in the diagnostics.

**What to do**: look at pairs of one node by ``SHM`` or ``NET`` where others have ``P2P``, and at ``NET/Socket``: see
[network_setup](diagnosis.md#network_setup). Ranks that come early wait for the last one: where ``init_ns`` is long and
``least_init_ns`` short, one rank came late; where both are long, making the communicator itself takes long.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from augment import facts
from augment.core import Diagnostic, Findings, OfRank, Skipped, Trace, column, text
from augment.core.records import Communicator, NcclLogs

NAME = "communicators"
NEEDS = ()
MOST = 1000  #: rows about pairs, rings and trees each


class Row(OfRank, frozen=True):
    """A communicator, or a pair of its ranks, a ring or a rank's place in a tree."""

    communicator: Annotated[str, column("NCCL's id of it, the same on all ranks; else host, process and pointer.")]
    by: Annotated[str, column("What the row is about: communicator, pair, ring or tree.")]
    name: Annotated[str, column("The ranks: of a pair, in the order of a ring, or a rank's neighbours in a tree.")]
    group_size: Annotated[int | None, column("Number of ranks in the communicator.", "count")]
    node_count: Annotated[int | None, column("Number of its nodes, if logged (NCCL ≥ 2.20).", "count")]
    logged_count: Annotated[int | None, column("Number of its ranks that logged it.", "count")]
    transport: Annotated[str | None, column("By what ranks are joined: P2P/CUMEM, SHM, NET/IB/0/GDRDMA.")]
    channel_count: Annotated[int | None, column("Number of channels.", "count")]
    init_ns: Annotated[int | None, column("The longest that a rank took to make it (NCCL ≥ 2.22).", "ns")]
    least_init_ns: Annotated[int | None, column("The shortest that a rank took.", "ns")]
    max_gbps: Annotated[float | None, column("The fastest path of NCCL's topology, its maxBw.", "GB/s")]
    reached_gbps: Annotated[
        float | None, column("Bus bandwidth of the fastest large collective inside a node, if any is timed.", "GB/s")
    ]


By = Literal["communicator", "pair", "ring", "tree"]


def analyze(trace: Trace) -> Findings | Skipped:
    """List the communicators of the trace's process."""
    given = trace.context.attached(NcclLogs)
    if given is None:
        return Skipped("no log of NCCL is given beside the trace; name one with --nccl-log")
    pids = {track.pid for track in trace.tracks} | {None} if len(trace.events) else None
    every = [each for log in given.logs for each in (*log.communicators, *log.unnamed)]
    known = {_name(each) for each in every if pids is None or each.pid in pids}
    sides: dict[str, list[Communicator]] = defaultdict(list)
    for each in every:
        if _name(each) in known:
            sides[_name(each)].append(each)
    if not sides:
        why = "it is of other processes" if every else "its beginning was not logged"
        return Skipped(f"the given log has no communicator of this process: {why}")
    network = facts.collectives.network(trace)
    reached = {each.ranks: each.best_gbps for each in network.reached} if network else {}
    rows = []
    for name, of in sides.items():
        first = of[0]
        timed = [round(1e9 * each.init_seconds) for each in of if each.init_seconds is not None]
        ways = Counter(edge.via for each in of for edge in each.edges)
        widths = {each.max_bandwidth for each in of}
        rows.append(
            _made(
                trace,
                name,
                "communicator",
                text.ranges_text(sorted({each.rank for each in of if each.rank >= 0})),
                group_size=first.size if first.size >= 0 else None,
                node_count=max((each.nodes for each in of if each.nodes), default=None),
                logged_count=len({each.rank for each in of}),
                transport=text.listed([way for way, _ in ways.most_common()]) if ways else None,
                channel_count=min((each.channels for each in of if each.channels), default=None),
                init_ns=max(timed, default=None),
                least_init_ns=min(timed, default=None),
                max_gbps=widths.pop() if len(widths) == 1 else None,
                reached_gbps=reached.get(first.size),
            )
        )
    parts = [row for name, of in sides.items() for row in _parts(trace, name, of)]
    left_out = []
    for by in ("pair", "ring", "tree"):
        of_kind = [row for row in parts if row.by == by]
        rows += of_kind[:MOST]
        if len(of_kind) > MOST:
            left_out.append(f"{len(of_kind) - MOST:,} of {len(of_kind):,} rows about a {by}")
    unplaced, cut = (sum(getattr(log, name) for log in given.logs) for name in ("unplaced", "cut_lines"))
    message = "lines about a connection that may be of one of several communicators: left out"
    diagnostics = [Diagnostic("nccl_log_unplaced", unplaced, message)] if unplaced else []
    message = "lines about a communicator whose beginning is cut off, so that they may be of any process: left out"
    diagnostics += [Diagnostic("nccl_log_cut", cut, message)] if cut else []
    return Findings(rows, [], diagnostics, f"left out: {text.listed(left_out)}" if left_out else None)


def _name(each: Communicator) -> str:
    return each.identity or f"{each.host}:{'' if each.pid is None else each.pid} {each.pointer}"


def _made(trace: Trace, communicator: str, by: By, name: str, **more: Any) -> Row:
    values: dict[str, Any] = dict.fromkeys(Row.__struct_fields__)
    return Row(**values | {"rank": trace.rank, "communicator": communicator, "by": by, "name": name} | more)


def _parts(trace: Trace, name: str, sides: Sequence[Communicator]) -> Iterator[Row]:
    pairs = Counter[tuple[int, int, str]]()
    for each in sides:
        for edge, channels in each.edges.items():
            pair = edge.rank_from, edge.rank_to, edge.via
            pairs[pair] = max(pairs[pair], channels)  # both ranks log it
    for (start, stop, via), channels in sorted(pairs.items()):
        yield _made(trace, name, "pair", f"{start} → {stop}", transport=via, channel_count=channels)
    rings = {channel: ring for each in sides for channel, ring in each.rings.items()}
    for ring, channels in Counter(rings.values()).most_common():
        yield _made(trace, name, "ring", " ".join(map(str, ring)), channel_count=channels)
    for each in sorted(sides, key=lambda each: each.rank):
        for tree, channels in Counter(each.trees.values()).most_common():
            up = "root" if tree.up is None else f"under {tree.up}"
            down = f", above {', '.join(map(str, tree.down))}" if tree.down else ""
            yield _made(trace, name, "tree", f"{tree.rank}: {up}{down}", channel_count=channels)
