"""Process groups, or pairs of ranks with messages, that move equal data for longer than others of their dimension."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np
from msgspec import Struct

from augment.arrays import Int64s, combinations, each
from augment.facts.collectives.collective_kernels import Group
from augment.job.parallel import nodes
from augment.job.path import Replay
from augment.job.ranks import RankSummary, dimension_told

FEWEST = 3  #: collectives of a group to compare
_NO_DIMENSIONS = {"default_pg", "undefined"}  #: what PyTorch calls groups without a description
SLOW, SLOW_OF_TWO = 1.5, 2.0  #: times that of the other groups; of the only other one


class SlowGroup(Struct, frozen=True):
    """What is slow: ``moving`` is for how long each collective would move data if it were as in the other groups.

    ``member``: the only rank that all slow groups have in common, if there are several. ``links``: of groups of two
    ranks these, and the group. ``messages``: whether pairs of ranks send them.
    """

    dimension: str
    member: int | None
    charged_ns: int
    moving: Int64s
    groups: list[str]  #: what they are called
    times: float  #: as long as the others, in the median
    links: list[tuple[int, int, Group]]
    messages: bool

    @property
    def evidence(self) -> str:
        """What shows it."""
        if len(self.groups) == len(self.links) == 1 and self.member is None:
            return f"it moves data {self.times:.1f} times as long as the other links of its dimension"
        more = f" and {len(self.groups) - 3} more" if len(self.groups) > 3 else ""
        names = f"group {', '.join(self.groups[:3])}{more}"
        return f"{names}: moves data {self.times:.1f} times as long as the other groups of its dimension"


def slow_groups(replay: Replay, summaries: Sequence[RankSummary]) -> Iterator[SlowGroup]:
    """The slow groups of all dimensions as one, if they share one rank; else each dimension's. Where a group has
    messages, each pair of ranks is one: of those within nodes, or across them; none is if nodes are unknown."""
    matched, node = replay.progress.matched, nodes(summaries)[0]
    ends = (np.where(matched.is_pair(), matched.member[matched.first + at], -1) for at in (0, 1))
    (group_of, first, second), unit = combinations(matched.group, *ends)
    named = [matched.groups[group] for group in group_of.tolist()]
    labels = [(dimension_told(group.description) or group.description) for group in named]
    pairs = list(zip(first.tolist(), second.tolist(), strict=True))
    alike = [(label, node[low] == node[high]) for label, (low, high) in zip(labels, pairs, strict=True)]
    codes = {key: code for code, key in enumerate(dict.fromkeys(alike))}
    of_unit = np.array([codes[key] for key in alike], np.int64)
    _, which = combinations(of_unit[unit], matched.kind, matched.bytes, matched.members)
    usual, are_nodes_known = replay.moving.copy(), all(node)
    slow: dict[int, list[float]] = defaultdict(list)
    for _, chosen in each(which, int(which.max(initial=-1)) + 1):
        if matched.bytes[chosen[0]] < 0 and first[unit[chosen[0]]] >= 0:
            continue  # stages send each other different sizes
        medians = {
            group: float(np.median(replay.moving[chosen[places]]))
            for group, places in each(unit[chosen], len(named))
            if len(places) >= FEWEST
            and (are_nodes_known or first[group] < 0 or np.sum(group_of == group_of[group]) == 1)
        }
        for group, median in medians.items():
            others = [value for other, value in medians.items() if other != group]
            middle = float(np.median(others)) if others else 0.0
            if middle > 0 and median > (SLOW if len(others) > 1 else SLOW_OF_TWO) * middle:
                inside = chosen[unit[chosen] == group]
                usual[inside] = np.minimum(usual[inside], int(middle))
                slow[group].append(median / middle)
    if slow:
        in_group = {group: set(matched.member[unit[matched.instance] == group].tolist()) for group in slow}
        common = set.intersection(*in_group.values())
        whole = len(slow) > 1 and len(common) == 1
        parts = (
            [list(slow)]
            if whole
            else [
                [group for group in slow if labels[group] == label]
                for label in dict.fromkeys(labels[group] for group in slow)
            ]
        )
        for groups in parts:
            inside = np.isin(unit, groups)
            moving = np.where(inside, usual, replay.moving)
            links = [(*sorted(in_group[group]), named[group]) for group in groups if len(in_group[group]) == 2]
            of_pair = {group: [summaries[end].rank for end in pairs[group]] for group in groups if first[group] >= 0}
            called = {labels[group] for group in groups}
            ratio = float(np.median([value for group in groups for value in slow[group]]))
            yield SlowGroup(
                dimension=called.pop() if len(called) == 1 and not called & _NO_DIMENSIONS else "",
                member=common.copy().pop() if whole else None,
                charged_ns=int((replay.moving - moving).sum()),
                moving=moving,
                groups=[f"{named[group].name} {of_pair.get(group, named[group].ranks)}".strip() for group in groups],
                times=ratio,
                links=links,
                messages=bool(of_pair),
            )
