"""Process groups that traces do not name, from when their collectives end.

The ranks of a group end each of its collectives together. So the time from the end of one to the end of the next is the
same on all of them, whatever their clocks show, and differs for ranks of other groups. Ranks whose times agree form a
group. Groups of balanced work may end at about the same time: if that cannot be excluded, no group is inferred.

It cannot be excluded either where ranks of another group, as of tensor parallelism, are together with others: they wait
for each other shortly before, and so end together whatever groups they are in.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from augment.arrays import NO_VALUE, Bools, Int64s, MemberIndexes, each
from augment.facts.collectives.collective_kernels import Group

FEWEST_ENDS = 6  #: with fewer collectives, ranks can agree by chance
APART_NS = 100_000  #: ends of one collective differ by less, or by less than a tenth of its duration
NOISE_NS = 4  #: distances below the resolution of recorded times are equal
CLEARLY = 5.0  #: the ratio of two distances that parts groups
Floats = np.ndarray[tuple[int], np.dtype[np.float64]]
ABOUT = "inferred: its ranks end together"  #: the description of such a group, and the evidence for its use


def inferred_groups(
    rows: Int64s,
    instance: Int64s,
    member: MemberIndexes,
    ts: Int64s,
    end: Int64s,
    labels: dict[int, str],
    size: int,
    others: Sequence[MemberIndexes] | None = (),
) -> list[tuple[Group, Int64s]] | None:
    """The groups among collectives of one kind without a named group, each with its rows.

    Args:
        rows: the rows of these collectives in the columns ``instance`` to ``end``.
        instance: the number of each collective if all ranks were one group.
        member: the index of the rank.
        ts: the start, ns.
        end: the end, ns.
        labels: each member's rank as text.
        size: the number of ranks of each group, -1 unknown.
        others: the members of the job's other groups; None if it has some of unknown members.

    Returns:
        None if there are too few collectives to tell. No groups if they would have different sizes, or not ``size``.
    """
    members = np.unique(member[rows])
    order = rows[np.lexsort((member[rows], instance[rows]))]
    number, counts = np.unique(instance[order], return_counts=True)
    whole = np.isin(instance[order], number[counts == len(members)])
    ends = end[order[whole]].reshape(-1, len(members))
    if len(ends) < FEWEST_ENDS or len(members) < 2:
        return None
    starts = ts[order[whole]].reshape(-1, len(members))
    between = np.diff(ends[np.argsort(ends[:, 0], kind="stable")], axis=0)
    apart = max(APART_NS, int(np.median(end[rows] - ts[rows])) // 10)
    cluster = _equal_clusters(between, apart, size)
    if cluster is not None and size == NO_VALUE and not cluster.any():
        cluster = _not_merged(cluster, between, starts, ends)
    if cluster is None or (size == NO_VALUE and _has_siblings(cluster, members, others, between)):
        return []
    result = []
    for _, places in each(cluster, int(cluster.max()) + 1):
        if len(places) == size or (size == NO_VALUE and len(places) > 1):
            chosen = members[places]
            ranks = "[" + ", ".join(labels[int(index)] for index in chosen) + "]"
            inside: Bools = np.isin(member[rows], chosen)
            result.append((Group("", ABOUT, ranks, "", len(chosen), "inferred"), rows[inside]))
    return result


def _equal_clusters(between: Int64s, apart: int, size: int) -> Int64s | None:
    """The cluster of each column, all of one size (of ``size``, if known); None if there are no such clusters.

    Ends of one collective differ, too, so that ranks are parted only as far as necessary: where far apart, else at
    the widest step in the distances, else at the first clear one.
    """
    for choose in (lambda _: -1, _widest_step, _first_step):
        # The cluster of each column: with the first free column, those at most as far from it as the chosen step
        cluster = np.full(between.shape[1], -1, np.int64)
        count = 0
        while (left := np.flatnonzero(cluster < 0)).size:
            distance = np.median(np.abs(between[:, left] - between[:, left[:1]]), axis=0)
            ordered = np.sort(distance)
            ordered = ordered[: np.count_nonzero(ordered <= apart) + 1]
            step = choose(ordered[1:] / np.maximum(ordered[:-1], NOISE_NS))
            cluster[left[distance <= min(ordered[step], apart)]] = count
            count += 1
        counts = set(np.bincount(cluster).tolist())
        if len(counts) == 1 and (counts == {size} or (size == NO_VALUE and counts != {1})):
            return cluster
    return None


def _not_merged(cluster: Int64s, between: Int64s, starts: Int64s, ends: Int64s) -> Int64s | None:
    """The one ``cluster`` of all ranks, unless they may be groups that merely end at about the same time.

    They may be if the distances between their ends have a clear step that parts them into equal groups. They are if a
    rank of one ends before a rank of another begins; else nothing tells, and there is no cluster.
    """
    parted = _parted(between)
    if parted is None:
        return cluster
    ahead = np.median(ends - ends[:, :1], axis=0).astype(np.int64)
    first_end, last_start = (ends - ahead).min(axis=1), (starts - ahead).max(axis=1)
    return parted if (first_end + NOISE_NS < last_start).any() else None


def _has_siblings(
    cluster: Int64s, members: MemberIndexes, others: Sequence[MemberIndexes] | None, between: Int64s
) -> bool:
    """Whether a cluster may have several ranks of another group beside ranks that are not in that, while the ends of
    its ranks differ by more than the resolution of times."""
    distance = np.median(np.abs(between - between[:, np.unique(cluster, return_index=True)[1][cluster]]), axis=0)
    if distance.max(initial=0) <= CLEARLY * NOISE_NS:
        return False
    sizes = np.bincount(cluster)
    if others is None:
        return bool((sizes > 1).any())
    for other in others:
        inside = np.bincount(cluster[np.isin(members, other)], minlength=len(sizes))
        if ((inside > 1) & (inside < sizes)).any():
            return True
    return False


def _parted(between: Int64s) -> Int64s | None:
    """The cluster of each column if the distances from the first one have a clear step that parts all columns into
    clusters of one size, more than one each; else None."""
    distance = np.maximum(np.median(np.abs(between - between[:, :1]), axis=0), NOISE_NS)
    ordered = np.sort(distance)
    ratios = ordered[2:] / ordered[1:-1]
    if not len(ratios) or ratios.max() < CLEARLY:
        return None
    step = int(ratios.argmax()) + 1
    threshold = float(np.sqrt(ordered[step] * ordered[step + 1]))
    cluster = np.full(between.shape[1], -1, np.int64)
    while (left := np.flatnonzero(cluster < 0)).size:
        distance = np.median(np.abs(between[:, left] - between[:, left[:1]]), axis=0)
        cluster[left[distance <= threshold]] = cluster.max() + 1
    sizes = np.bincount(cluster)
    return cluster if len(set(sizes.tolist())) == 1 and len(sizes) > 1 else None


def _first_step(ratios: Floats) -> int:
    clear = np.flatnonzero(ratios >= CLEARLY)
    return int(clear[0]) if len(clear) else -1


def _widest_step(ratios: Floats) -> int:
    return int(ratios.argmax()) if len(ratios) and ratios.max() >= CLEARLY else -1
