"""What process groups do, and which dimension that fits: for groups whose descriptions name none.

Facts: data parallelism averages gradients, so it communicates in the backward pass. FSDP and ZeRO-3 gather parameters
in the forward and the backward pass. Tensor parallelism sums activations in both passes, with sequence parallelism by
reduce-scatters and gathers (Megatron-LM, arXiv 2104.04473 and 2205.05198; ZeRO, arXiv 1910.02054). Stages of a pipeline
send and receive.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct, field

from augment.arrays import NO_VALUE, combinations, sums
from augment.core import text
from augment.facts.collectives.collective_kernels import Origin
from augment.facts.names import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, POINT_TO_POINT, RECV, REDUCE_SCATTER, SEND
from augment.job.ranks import DP, DP_SHARD, EP, PP, TP, Phase, RankSummary
from augment.job.ranks import UNKNOWN as NO_DIMENSION

ALMOST_ALL, ALMOST_NONE = 0.9, 0.05  #: shares of bytes that count as all and none
SEQUENCE_PARALLEL, FULLY_SHARDED = "sequence parallel", "fully sharded"
SHARDED_GRADIENTS, SHARDED_OPTIMIZER = "sharded gradients", "sharded optimizer"
FEW_SIZES = 4  #: activations of a model have few sizes; gradients have many


class RoleTally(Struct):
    """What one kind of collective of one group amounts to in the steps of all ranks (or in all, without steps).

    ``bytes`` are of those of known size; ``unsized`` counts the others.

    ``forward``, ``backward`` and ``optimizer`` are weights (bytes, or durations where a size is unknown) by phase, of
    those whose phase is known. ``peers`` counts sends and receives that name the other rank,
    ``experts`` kernels of libraries of expert parallelism.
    """

    count: int = 0
    time_ns: int = 0
    exposed_ns: int = 0
    bytes: int = 0
    forward: int = 0
    backward: int = 0
    optimizer: int = 0
    unsized: int = 0
    peers: int = 0
    experts: int = 0
    sizes: set[int] = field(default_factory=set)

    def is_in(self, phase: str) -> bool:
        """Whether more than a little of it belongs to ``phase``."""
        return bool(getattr(self, phase) > ALMOST_NONE * self.placed)

    @property
    def placed(self) -> int:
        """The weight of those whose phase is known."""
        return self.forward + self.backward + self.optimizer


class Use(Struct, frozen=True):
    """The dimension that collectives serve, how sure that is (``user``, ``high``, ``medium``, ``low``, ``none``), and
    why: what was ``seen``, and the ``doubt`` in it. ``origin`` says how their group is known."""

    dimension: str
    confidence: str
    seen: str
    origin: Origin = "recorded"
    doubt: str = ""

    @property
    def evidence(self) -> str:
        """Why, as text."""
        return "; ".join(filter(None, (self.seen, self.doubt)))


def tallies(summaries: Sequence[RankSummary], identities: Mapping[str, int]) -> dict[int, dict[str, RoleTally]]:
    """The tallies by group and kind; ``identities`` gives each group's number."""
    tallies_: dict[int, dict[str, RoleTally]] = defaultdict(lambda: defaultdict(RoleTally))
    for summary in summaries:
        group, kind, size = (summary.column(name) for name in ("group", "kind", "bytes"))
        step = summary.column("step")
        inside = step >= 0 if (step >= 0).any() else np.ones(len(step), np.bool_)
        if not len(step):
            continue
        phase = summary.table_column("collectives", "phase")
        phase = np.full(len(group), NO_VALUE, np.int64) if phase is None else phase
        dur = summary.column("end") - summary.column("ts")
        expert = summary.table_column("collectives", "expert")
        expert = np.zeros(len(group), np.int64) if expert is None else expert
        columns = (group, kind, size, phase, dur, summary.column("exposed_ns"), summary.column("peer"), expert)
        group, kind, size, phase, dur, exposed, peer, expert = (values[inside] for values in columns)
        (groups, kinds), which = combinations(group, kind)
        count = len(groups)
        weight = np.where(np.bincount(which, size < 0, count)[which] > 0, dur, size)
        values = (
            np.ones(len(which), np.int64),
            dur,
            exposed,
            np.maximum(size, 0),
            *(np.where(phase == each, weight, 0) for each in Phase),
            (size < 0).astype(np.int64),
            (peer >= 0).astype(np.int64),
            expert,
        )
        totals = np.array([sums(which, each, count) for each in values]).T.tolist()
        for place, of in enumerate(totals):
            number = identities[summary.group(int(groups[place])).identity]
            tally = tallies_[number][summary.kinds[int(kinds[place])]]
            for name, value in zip(_SUMMED, of, strict=True):
                setattr(tally, name, getattr(tally, name) + value)
            tally.sizes.update(np.unique(size[which == place])[: FEW_SIZES + 1].tolist())
    return {number: dict(of) for number, of in tallies_.items()}


_SUMMED = ("count", "time_ns", "exposed_ns", "bytes", "forward", "backward", "optimizer", "unsized", "peers", "experts")


_TELL_NOTHING = ("Broadcast", "Barrier", "Reduce", "Gather", "Scatter")  #: used beside others by every dimension


def judge(of: Mapping[str, RoleTally]) -> dict[str, Use]:
    """The use of each kind of a group's collectives."""
    uses: dict[str, Use] = {}
    for kind, tally in of.items():
        if kind in POINT_TO_POINT and tally.peers:
            uses[kind] = Use(PP, "medium", "sends and receives")
        elif kind in POINT_TO_POINT:
            uses[kind] = _unknown("sends and receives that do not name the other rank, of stages or of all-to-alls")
        elif kind == ALL_TO_ALL and tally.experts == tally.count:
            uses[kind] = Use(EP, "medium", "kernels of a library of expert parallelism")
        elif kind == ALL_TO_ALL:
            uses[kind] = _unknown("all-to-alls: of expert, context or embedding parallelism; they do not show which")
    if ALL_GATHER in of and REDUCE_SCATTER in of:
        uses[ALL_GATHER] = uses[REDUCE_SCATTER] = _of_shards(of)
    if ALL_REDUCE in of:
        uses[ALL_REDUCE] = _of_sums(of[ALL_REDUCE])
    sure = {use.dimension: use for use in uses.values() if use.dimension != NO_DIMENSION}
    for kind in of:
        if kind not in uses and kind in _TELL_NOTHING and len(sure) == 1:
            uses[kind] = next(iter(sure.values()))
        elif kind not in uses:
            uses[kind] = _unknown(f"what {kind} serves is not recorded")
    return uses


def style(of: Mapping[str, RoleTally]) -> str:
    """How a group's collectives are used together, in a few words; empty if nothing is known."""
    if ALL_GATHER not in of or REDUCE_SCATTER not in of:
        return "all-reduce" if ALL_REDUCE in of else ""
    gather, scatter = of[ALL_GATHER], of[REDUCE_SCATTER]
    if not gather.placed or not scatter.placed:
        return ""
    both = [each.is_in("forward") and each.is_in("backward") for each in (gather, scatter)]
    if all(both) and max(len(gather.sizes), len(scatter.sizes)) <= FEW_SIZES:
        return SEQUENCE_PARALLEL
    if scatter.is_in("forward"):
        return ""
    if gather.is_in("optimizer"):
        return "" if gather.is_in("forward") or gather.is_in("backward") else SHARDED_OPTIMIZER
    return FULLY_SHARDED if gather.is_in("backward") else SHARDED_GRADIENTS


_SHARDS = {
    SEQUENCE_PARALLEL: (TP, "reduce-scatters and gathers of few sizes in forward and backward"),
    FULLY_SHARDED: (DP_SHARD, "gathers before and in backward, reduce-scatters in backward"),
    SHARDED_GRADIENTS: (DP_SHARD, "gathers in forward, reduce-scatters in backward"),
    SHARDED_OPTIMIZER: (DP, "reduce-scatters in or after backward, gathers after it"),
}


def _of_shards(of: Mapping[str, RoleTally]) -> Use:
    known = _SHARDS.get(style(of))
    if known:
        return Use(known[0], "medium", known[1])
    if not of[ALL_GATHER].placed:
        return _unknown("gathers and reduce-scatters; whether of forward or backward is not recorded")
    return _unknown("gathers and reduce-scatters in an order of no known dimension")


def _of_sums(tally: RoleTally) -> Use:
    if not tally.placed:
        return _unknown("all-reduces; whether of forward or backward is not recorded")
    share = tally.backward / tally.placed
    if share >= ALMOST_ALL:
        return Use(DP, "medium", "all-reduces in backward")
    if tally.is_in("backward") and tally.is_in("forward") and len(tally.sizes - {-1}) in range(1, FEW_SIZES + 1):
        return Use(TP, "medium", f"all-reduces of {len(tally.sizes)} sizes in forward and backward")
    return _unknown(f"all-reduces, {text.percent(share)} of them in backward")


def _unknown(why: str) -> Use:
    return Use(NO_DIMENSION, "none", why)


# The order of pipeline stages, from who sends to whom.


def chains(summaries: Sequence[RankSummary]) -> list[list[int]]:
    """The pipelines of ranks whose sends and receives name the other rank, each in the order of stages.

    Ranks that send to each other form chains. A chain begins at the end whose first operation is a send: all other
    stages receive first. Rings and branches are left out.
    """
    neighbours: dict[int, set[int]] = defaultdict(set)
    sends_first: dict[int, bool] = {}
    for summary in summaries:
        if summary.rank is None:
            continue
        codes = [code for code, kind in enumerate(summary.kinds) if kind in (SEND, RECV)]
        kind, peer = summary.column("kind"), summary.column("peer")
        rows = np.flatnonzero(np.isin(kind, codes) & (peer != NO_VALUE) & (peer != summary.rank))
        if not len(rows):
            continue
        in_steps = rows[summary.column("step")[rows] >= 0]
        rows = in_steps if len(in_steps) else rows
        launched = summary.table_column("collectives", "launched")
        ts = summary.column("ts")
        known = ts if launched is None else np.where(launched == NO_VALUE, ts, launched)
        first = rows[np.argmin(known[rows])]  # the device may begin a receive before an earlier send
        sends_first[summary.rank] = summary.kinds[int(kind[first])] == SEND
        for other in np.unique(peer[rows]).tolist():
            neighbours[summary.rank].add(other)
            neighbours[other].add(summary.rank)
    # The chains, from their first ranks
    out = []
    for start in sorted(neighbours):
        if len(neighbours[start]) != 1 or not sends_first.get(start):
            continue
        chain = [start]
        while following := neighbours[chain[-1]] - set(chain[-2:]):
            if len(following) > 1 or len(chain) > len(neighbours):
                break
            chain.append(following.pop())
        straight = not following and not sends_first.get(chain[-1])
        if straight and len(set(chain)) == len(chain):
            out.append(chain)
    return out
