"""Which process groups are which parallel dimension, and each rank's coordinates.

In this order: what the user stated (sizes of dimensions, fitted to the ranks of the groups), what the program calls its
groups, what the groups do. A group may serve several dimensions, by kind of collective. What none of the three shows is
``unknown``, with the reason. A rank's coordinate in a dimension is its place in its group's list of ranks.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise, permutations
from math import prod
from typing import Annotated

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from augment.arrays import NO_VALUE, Int64s, combinations
from augment.core import Diagnostic, column
from augment.facts.collectives import Group
from augment.facts.names import POINT_TO_POINT, SEND_RECV
from augment.job.matching import ABOUT, Matched
from augment.job.parallel.group_roles import RoleTally, Use, chains, judge, style, tallies
from augment.job.ranks import DP, EP, LISTED, PP, STATED, UNKNOWN, WORLD, RankSummary, as_text, dimension_told

_ORDER = {"none": 0, "low": 1, "medium": 2, "high": 3, "user": 4}


class Row(Struct, frozen=True):
    """One parallel dimension."""

    dimension: Annotated[
        str,
        column(
            "dp, dp_shard, dp_replicate, dp_cp, tp, pp, cp, sp, ep, expert_dp, expert_tp, embedding, mixed, "
            "world, unknown."
        ),
    ]
    style: Annotated[
        str, column("How its collectives work together, such as all-reduce or fully sharded; empty if unknown.")
    ]
    group_count: Annotated[int, column("Process groups of the dimension.", "count")]
    group_size: Annotated[int | None, column("Ranks of the largest of them; null if unknown.", "count")]
    stride: Annotated[
        int | None, column("The distance between neighbouring ranks in a group; null if unknown or uneven.")
    ]
    confidence: Annotated[
        str, column("user (stated), high (named), medium (by behaviour), low (contradictory) or none.")
    ]
    evidence: Annotated[str, column("What shows that these groups are the dimension.")]
    count: Annotated[int, column("Collectives, summed over ranks.", "count")]
    time_ns: Annotated[int, column("Their durations, summed over ranks.", "ns")]


class RankRow(Struct, frozen=True):
    """The place of one rank."""

    rank: Annotated[int | None, column("The rank.")]
    trace: Annotated[str, column("The name of its trace.")]
    node: Annotated[str, column("Its host, or its node as counted from device numbers; empty if unknown.")]
    node_known_by: Annotated[str, column("recorded, or counted from device numbers; empty if the node is unknown.")]
    tp: Annotated[
        int | None, column("Its place in its tensor-parallel group; null if unknown or none, as in the next columns.")
    ]
    pp: Annotated[int | None, column("Its pipeline stage.")]
    dp: Annotated[int | None, column("Its place among the data-parallel ranks.")]
    dp_shard: Annotated[int | None, column("Its place among the ranks that share parameters by FSDP.")]
    dp_replicate: Annotated[int | None, column("Its place among the replicas of such sets of ranks.")]
    cp: Annotated[int | None, column("Its place in its context-parallel group.")]
    ep: Annotated[int | None, column("Its place in its expert-parallel group.")]


class Dimensions(Struct, frozen=True):
    """The dimensions of a job. ``uses`` is by number of a group (of the matched collectives) and kind.

    ``ranks`` of each group, empty if unknown; ``coordinates`` of ranks by dimension; ``node`` of each member.
    """

    uses: Mapping[tuple[int, str], Use]
    tallies: Mapping[int, Mapping[str, RoleTally]]
    ranks: Sequence[tuple[int, ...]]
    sizes: Sequence[int]
    coordinates: Mapping[str, Mapping[int, int]]
    node: Sequence[str]
    node_known_by: str
    pipelines: Sequence[Sequence[int]]  #: the ranks of each, in the order of stages
    diagnostics: Sequence[Diagnostic] = field(default_factory=list)

    def of(self, group: int, kind: str) -> str:
        """The dimension of a kind of collective of a group."""
        use = self.uses.get((group, kind))
        return use.dimension if use else UNKNOWN

    def groups_of(self, dimension: str) -> dict[int, Use]:
        """The groups of a dimension; where groups were inferred, not the unnamed collectives as a whole."""
        groups = {group: use for (group, _), use in self.uses.items() if use.dimension == dimension}
        named = {group: use for group, use in groups.items() if use.origin == "inferred"}
        return {group: use for group, use in groups.items() if use.confidence != "low"} | named if named else groups

    def style_of(self, dimension: str) -> str:
        """How the collectives of a dimension work together; empty if unknown, or if its groups differ."""
        styles = {style(self.tallies.get(group, {})) for group in self.groups_of(dimension)} - {""}
        return styles.pop() if len(styles) == 1 and dimension != UNKNOWN else ""


def dimensions(summaries: Sequence[RankSummary], matched: Matched, stated: Mapping[str, int]) -> Dimensions:
    """Recognise the dimensions; ``stated`` are the sizes that the user gives."""
    identities = {group.identity: number for number, group in enumerate(matched.groups)}
    tallies_ = tallies(summaries, identities)
    ranks = _ranks(summaries, matched, identities)
    sizes = [
        group.size if group.size > 0 else len(ranks[number]) if group.identity else 0
        for number, group in enumerate(matched.groups)
    ]
    layout, diagnostics = _layout(stated, ranks, summaries)
    uses: dict[tuple[int, str], Use] = {}
    for number, of in tallies_.items():
        use = layout.use_of(ranks[number]) if layout else None
        use = use or _named(matched.groups[number])
        by_kind = dict.fromkeys(of, use) if use else judge(of)
        if not use and not matched.groups[number].identity:
            doubt = "groups were not recorded: all ranks count as one"
            by_kind = {
                kind: each if each.dimension == UNKNOWN else replace(each, confidence="low", doubt=doubt)
                for kind, each in by_kind.items()
            }
        uses |= {(number, kind): each for kind, each in by_kind.items() if each}
        if any(kind in POINT_TO_POINT for kind in by_kind):
            uses[number, SEND_RECV] = next(use for kind, use in by_kind.items() if use and kind in POINT_TO_POINT)
    uses |= _inferred(uses, matched)
    known = {summary.rank for summary in summaries if summary.rank is not None}
    chained = chains(summaries)
    coordinates = _coordinates(uses, ranks, chained) | (layout.coordinates(known) if layout else {})
    # the ranks of each pipeline: of the groups that are named or stated, else by who sends to whom
    stages = {ranks[group]: use for (group, _), use in uses.items() if use.dimension == PP}
    by_sends = any(use.confidence == "medium" for use in stages.values())
    pipelines: list[Sequence[int]] = list(chained) if by_sends else [group for group in stages if group]
    pipelines = pipelines or (layout.pipelines(known) if layout else [])
    return Dimensions(uses, tallies_, ranks, sizes, coordinates, *nodes(summaries), pipelines, diagnostics)


def rows(dims: Dimensions) -> list[Row]:
    """A row for each dimension, the one that communicates longest first."""
    out = []
    for dimension in dict.fromkeys(use.dimension for use in dims.uses.values()):
        groups = dims.groups_of(dimension)
        named = [
            tally
            for group, of in dims.tallies.items()
            for kind, tally in of.items()
            if dims.of(group, kind) == dimension
        ]
        least = min(groups.values(), key=lambda use: _ORDER[use.confidence])
        overlap = dimension not in (UNKNOWN, WORLD) and dimension not in dims.coordinates
        shared = any(dims.ranks[group] for group in groups) and overlap and len(groups) > 1
        uses = [use for (group, _), use in dims.uses.items() if group in groups and use.dimension == dimension]
        steps = ({after - before for before, after in pairwise(dims.ranks[group])} for group in groups)
        strides = {each.pop() if len(each) == 1 else None for each in steps}
        out.append(
            Row(
                dimension=dimension,
                style=dims.style_of(dimension),
                group_count=len(groups),
                group_size=max((dims.sizes[group] for group in groups), default=0) or None,
                stride=strides.pop() if len(strides) == 1 else None,
                confidence="low" if shared and least.confidence != "user" else least.confidence,
                evidence="; ".join(dict.fromkeys(use.evidence for use in uses))[:500]
                + ("; but the groups overlap" if shared else ""),
                count=sum(tally.count for tally in named),
                time_ns=sum(tally.time_ns for tally in named),
            )
        )
    return sorted(out, key=lambda row: -row.time_ns)


def rank_rows(dims: Dimensions, summaries: Sequence[RankSummary]) -> Iterator[RankRow]:
    """A row for each rank, in their order."""

    def place(name: str, rank: int | None) -> int | None:
        return None if rank is None else dims.coordinates.get(name, {}).get(rank)

    for summary, node in zip(summaries, dims.node, strict=True):
        data = next((name for name in ("dp_cp", "dp") if name in dims.coordinates), "dp")
        yield RankRow(
            rank=summary.rank,
            trace=summary.name,
            node=node,
            node_known_by=dims.node_known_by,
            dp=place(data, summary.rank),
            **{name: place(name, summary.rank) for name in ("tp", "pp", "dp_shard", "dp_replicate", "cp", "ep")},
        )


class _Layout(Struct, frozen=True):
    """How ranks are counted: the sizes of the dimensions, the fastest varying first."""

    sizes: Mapping[str, int]

    def places(self, rank: int) -> dict[str, int]:
        rest, out = rank, {}
        for name, size in self.sizes.items():
            rest, out[name] = divmod(rest, size)
        return out

    def use_of(self, ranks: Sequence[int]) -> Use | None:
        """The use of a group of these ranks; None if it is no product of dimensions."""
        if len(ranks) < 2:
            return None
        places = [self.places(rank) for rank in ranks]
        varying = [name for name in self.sizes if len({each[name] for each in places}) > 1]
        if prod(self.sizes[name] for name in varying) != len(ranks):
            return None
        names = set(varying)
        if _OUTER in names:
            names = (names - {_OUTER, EP}) | {DP} if EP in names or EP not in self.sizes else names
        names = {"expert_dp" if name == _OUTER else name for name in names}
        whole = names >= {DP if name in (_OUTER, EP) else name for name, size in self.sizes.items() if size > 1}
        label = WORLD if whole and len(names) > 1 else "_".join(name for name in _LABELS if name in names)
        return Use(label if label in _LABELS or label in ("dp_cp", WORLD) else "mixed", "user", "stated")

    def pipelines(self, ranks: set[int]) -> list[Sequence[int]]:
        """The ranks that differ in their stage alone, in the order of stages."""
        if self.sizes.get(PP, 1) < 2:
            return []
        out: dict[tuple[int, ...], list[int]] = {}
        for rank in sorted(ranks):
            out.setdefault(tuple(place for name, place in self.places(rank).items() if name != PP), []).append(rank)
        return list(out.values())

    def coordinates(self, ranks: set[int]) -> dict[str, dict[int, int]]:
        out: dict[str, dict[int, int]] = {name: {} for name in self.sizes if name != _OUTER}
        for rank in sorted(ranks):
            places = self.places(rank)
            if _OUTER in places:
                out.setdefault(DP, {})[rank] = places[_OUTER] * self.sizes.get(EP, 1) + places.get(EP, 0)
                places.pop(_OUTER)
            for name, place in places.items():
                out[name][rank] = place
        return {name: of for name, of in out.items() if self.sizes.get(name, 2) > 1}


CONTRADICTED = "parallelism_contradicted"  #: the code of the diagnostic that stated sizes are not used
_OUTER = "dp outside ep"
_LABELS = ("dp", "tp", "pp", "ep", "expert_dp", "cp")


def _layout(
    stated: Mapping[str, int], ranks: Sequence[tuple[int, ...]], summaries: Sequence[RankSummary]
) -> tuple[_Layout | None, list[Diagnostic]]:
    """The order of the stated dimensions that explains most groups: Megatron's (tp, cp, dp, pp), if equal."""
    if not stated:
        return None, []
    sizes = {name: stated[name] for name in STATED if name in stated and name not in (DP, EP)}
    data = stated.get(DP, stated.get(EP, 1))
    inner = stated.get(EP, 1)
    world = prod(sizes.values()) * data
    highest = max(
        [rank for summary in summaries if (rank := summary.rank) is not None] + [0, *map(max, filter(None, ranks))]
    )
    if highest >= world:
        why = f"the stated sizes {as_text(stated)} make {world} ranks, but rank {highest} exists: they are not used"
        return None, [Diagnostic(CONTRADICTED, 1, why)]
    recorded = {summary.world for summary in summaries} - {-1}  # unknown
    if len(recorded) == 1 and world not in recorded:
        sizes_text = f"the stated sizes {as_text(stated)} make {world} ranks"
        why = f"{sizes_text}, but the traces tell of {recorded.pop()}: they are not used"
        return None, [Diagnostic(CONTRADICTED, 1, why)]
    blocks = {**{name: {name: size} for name, size in sizes.items()}, DP: {EP: inner, _OUTER: data // inner}}
    if inner == 1:
        blocks[DP] = {DP: data}
    usual = [name for name in ("tp", "cp", "dp", "pp") if name in blocks]
    groups = {group for group in ranks if 1 < len(group) < world}
    layouts = [
        _Layout({name: size for block in order for name, size in blocks[block].items()})
        for order in permutations(usual)
    ]
    explained = [sum(layout.use_of(group) is not None for group in groups) for layout in layouts]
    best = layouts[max(range(len(layouts)), key=lambda place: explained[place])]
    odd = len(groups) - max(explained)
    why = "process groups that are no product of the stated dimensions; judged by their descriptions and behaviour"
    return best, [Diagnostic("groups_beside_parallelism", odd, why)] if odd else []


def _inferred(uses: Mapping[tuple[int, str], Use], matched: Matched) -> dict[tuple[int, str], Use]:
    """The uses of groups that were inferred: those of the unnamed collectives of their kind."""
    numbers = [number for number, group in enumerate(matched.groups) if group.origin == "inferred"]
    unnamed = {
        kind: use
        for (group, kind), use in uses.items()
        if not matched.groups[group].identity and use.dimension != UNKNOWN
    }
    kinds = np.array([number in numbers for number in range(len(matched.groups))], np.bool_)[matched.group]
    of = set(
        zip(matched.group[kinds].tolist(), [matched.kinds[code] for code in matched.kind[kinds].tolist()], strict=True)
    )
    return {
        (number, kind): Use(unnamed[kind].dimension, "medium", unnamed[kind].seen, "inferred", ABOUT)
        for number, kind in of
        if kind in unnamed
    }


def _named(group: Group) -> Use | None:
    if group.origin == "listed":
        return Use(EP, "medium", "kernels of a library of expert parallelism", "listed", LISTED)
    dimension = dimension_told(group.description)
    common = group.description.rstrip("0123456789:")
    return Use(dimension, "high", f"described as {common}") if dimension else None


def _ranks(summaries: Sequence[RankSummary], matched: Matched, identities: Mapping[str, int]) -> list[tuple[int, ...]]:
    """The ranks of each group: as recorded, else those that were seen in it, if these are all."""
    seen: list[set[int]] = [set() for _ in matched.groups]
    for summary in summaries:
        if summary.rank is not None:
            for number in set(summary.column("group").tolist()):
                seen[identities[summary.group(number).identity]].add(summary.rank)
    out = []
    for group, present in zip(matched.groups, seen, strict=True):
        recorded = _ranks_in(group.ranks)
        whole = group.size == len(present) or (group.size < 0 and not group.identity)
        out.append(recorded or (tuple(sorted(present)) if whole else ()))
    return out


@lru_cache(maxsize=65536)
def _ranks_in(text: str) -> tuple[int, ...]:
    """The ranks in ``[0, 2]``; empty if the list is cut or is none."""
    try:
        values = json.loads(text) if text.startswith("[") else []
    except ValueError:
        return ()
    return tuple(value for value in values if isinstance(value, int))


def _coordinates(
    uses: Mapping[tuple[int, str], Use], ranks: Sequence[tuple[int, ...]], chained: Sequence[Sequence[int]]
) -> dict[str, dict[int, int]]:
    """The coordinates of the dimensions whose groups do not overlap.

    Stages that only their sends and receives show are ordered by those (``chained``): such a group may have all ranks.
    """
    out: dict[str, dict[int, int]] = {}
    overlapping: set[str] = set()
    done: set[tuple[str, tuple[int, ...]]] = set()
    inferred = {use.dimension for use in uses.values() if use.origin == "inferred"}
    for (group, _), use in uses.items():
        if use.dimension in inferred and use.confidence == "low":
            continue
        if use.dimension in (UNKNOWN, WORLD, "mixed") or (use.dimension, ranks[group]) in done:
            continue
        done.add((use.dimension, ranks[group]))
        if use.dimension == PP and use.confidence == "medium":
            out[PP] = {rank: place for chain in chained for place, rank in enumerate(chain)}
            continue
        of = out.setdefault(use.dimension, {})
        if of.keys() & set(ranks[group]):
            overlapping.add(use.dimension)
        of.update({rank: place for place, rank in enumerate(ranks[group])})
    return {name: of for name, of in out.items() if name not in overlapping and of}


# The collectives of a job by dimension.


def dimension_codes(dims: Dimensions, matched: Matched) -> tuple[list[str], Int64s]:
    """The names of dimensions, and for each matched collective the index of its dimension."""
    (groups, kinds), which = combinations(matched.group, matched.kind)
    names: dict[str, int] = {}
    pairs = zip(groups.tolist(), kinds.tolist(), strict=True)
    codes = [names.setdefault(dims.of(group, matched.kinds[kind]), len(names)) for group, kind in pairs]
    return list(names), np.array(codes, np.int64)[which]


# The node of each rank: its host, if recorded, else counted from the devices that its node lists.


RECORDED, COUNTED = "recorded", "counted from device numbers"


def nodes(summaries: Sequence[RankSummary]) -> tuple[list[str], str]:
    """The name of each rank's node (empty: unknown), and how it is known (empty: it is not).

    Without recorded hosts, rank r on device d of a node of L devices is on node (r - d) / L. That must hold on all
    ranks, and L must exceed 1: a process that is shown one device alone says nothing of its node.
    """
    if all(summary.host for summary in summaries):
        return [summary.host for summary in summaries], RECORDED
    numbers: list[int] = []
    for summary in summaries:
        index, count = (_first(summary, name) for name in ("index", "count"))
        if summary.rank is None or count < 2 or not 0 <= index < count or (summary.rank - index) % count:
            return [""] * len(summaries), ""
        numbers.append((summary.rank - index) // count)
    return [f"node {number}" for number in numbers], COUNTED


def _first(summary: RankSummary, name: str) -> int:
    column = summary.table_column("device", name)
    return NO_VALUE if column is None or not len(column) else int(column[0])
