"""Process groups that move equal data for much longer than the other groups of their dimension."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np
from msgspec import Struct

from augment.arrays import Int64s, combinations, each
from augment.facts.collectives.collective_kernels import Group
from augment.job.path import Replay
from augment.job.ranks import dimension_told

FEWEST = 3  #: collectives of a group to compare
SLOW, SLOW_OF_TWO = 1.5, 2.0  #: times that of the other groups; of the only other one


class SlowGroup(Struct, frozen=True):
    """What is slow: ``moving`` is for how long each collective would move data if it were as in the other groups.

    ``member``: the only rank that all slow groups have in common, if there are several. ``links``: of groups of two
    ranks these, and the group.
    """

    dimension: str
    member: int | None
    charged_ns: int
    moving: Int64s
    groups: list[str]  #: what they are called
    times: float  #: as long as the others, in the median
    links: list[tuple[int, int, Group]]

    @property
    def evidence(self) -> str:
        """What shows it."""
        if len(self.groups) == len(self.links) == 1 and self.member is None:
            return f"it moves data {self.times:.1f} times as long as the other links of its dimension"
        more = f" and {len(self.groups) - 3} more" if len(self.groups) > 3 else ""
        names = f"group {', '.join(self.groups[:3])}{more}"
        return f"{names}: moves data {self.times:.1f} times as long as the other groups of its dimension"


def slow_groups(replay: Replay) -> Iterator[SlowGroup]:
    """The slow groups of all dimensions as one, if they share one rank; else each dimension's."""
    matched = replay.progress.matched
    labels = [(dimension_told(group.description) or group.description) for group in matched.groups]
    codes = {label: code for code, label in enumerate(dict.fromkeys(labels))}
    of_group = np.array([codes[label] for label in labels], np.int64)
    _, which = combinations(of_group[matched.group], matched.kind, matched.bytes, matched.members)
    usual = replay.moving.copy()
    slow: dict[int, list[float]] = defaultdict(list)
    for _, chosen in each(which, int(which.max(initial=-1)) + 1):
        medians = {
            group: float(np.median(replay.moving[chosen[places]]))
            for group, places in each(matched.group[chosen], len(matched.groups))
            if len(places) >= FEWEST
        }
        for group, median in medians.items():
            others = [value for other, value in medians.items() if other != group]
            middle = float(np.median(others)) if others else 0.0
            if middle > 0 and median > (SLOW if len(others) > 1 else SLOW_OF_TWO) * middle:
                inside = chosen[matched.group[chosen] == group]
                usual[inside] = np.minimum(usual[inside], int(middle))
                slow[group].append(median / middle)
    if slow:
        in_group = {
            group: set(matched.member[np.isin(matched.group[matched.instance], [group])].tolist()) for group in slow
        }
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
            inside = np.isin(matched.group, groups)
            moving = np.where(inside, usual, replay.moving)
            pairs = [(in_group[group], matched.groups[group]) for group in groups if len(in_group[group]) == 2]
            ratio = float(np.median([value for group in groups for value in slow[group]]))
            yield SlowGroup(
                dimension="" if len({labels[group] for group in groups}) > 1 else labels[groups[0]],
                member=common.copy().pop() if whole else None,
                charged_ns=int((replay.moving - moving).sum()),
                moving=moving,
                groups=[f"{group.name} {group.ranks}".strip() for group in map(matched.groups.__getitem__, groups)],
                times=ratio,
                links=[(min(both), max(both), group) for both, group in pairs],
            )
