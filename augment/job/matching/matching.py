"""Matches collectives across ranks.

The collectives of a process group are matched by sequence number (``Seq``) where it was recorded. Otherwise they are
counted within each step and kind: the k-th all-reduce of a group in a step is the same collective on all its ranks.
Where the ranks' counts differ, they are aligned (``realignment.py``). Where that fails, or where ranks contradict each
other about a collective, the collectives are left out and counted. So are those of groups whose ranks are not named, if
more ranks have such collectives than the group has.

A send and its receive are one collective of the kind :data:`SEND_RECV`: the k-th from one rank to another in a group
and step. Their sequence numbers are of no use, because each rank counts all its sends and receives in the group. In a
group of two ranks the peer is the other rank, also where it is not named.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from typing import cast

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from augment.arrays import NO_VALUE, Bools, Int64s, MemberIndex, MemberIndexes, Places, combinations, each, run_starts
from augment.core import Diagnostic
from augment.facts.collectives.collective_kernels import Group
from augment.facts.names import (
    ALL_GATHER,
    ALL_REDUCE,
    POINT_TO_POINT,
    RECV,
    REDUCE_SCATTER,
    SEND,
    SEND_RECV,
    SYNCHRONOUS,
)
from augment.job.matching.inferred_groups import inferred_groups
from augment.job.ranks import RankSummary

_EQUAL_BYTES = (ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, SEND_RECV)  #: kinds with equal size on all ranks
Floats = npt.NDArray[np.float64]


class Matched(Struct, frozen=True, dict=True):
    """Collectives on at least two ranks: equal-length int64 columns, a row per rank's part, by collective, then member.

    ``instance`` numbers the collectives from 0; ``member`` is an index into the summaries, ``place`` an index into that
    summary's columns. ``first`` is the first row of each collective. Per collective there are ``group`` (an index into
    ``groups``), ``kind`` (into ``kinds``), ``step``, and ``bytes`` (the most that a rank states; -1 unknown). ``world``
    is the number of ranks of the job, -1 unknown.
    """

    instance: Int64s
    member: MemberIndexes
    place: Int64s
    ts: Int64s
    end: Int64s
    exposed_ns: Int64s
    first: Places
    group: Int64s
    kind: Int64s
    step: Int64s
    bytes: Int64s
    groups: tuple[Group, ...]
    world: int
    kinds: tuple[str, ...]
    diagnostics: tuple[Diagnostic, ...]

    def __len__(self) -> int:
        """The number of collectives."""
        return len(self.first)

    @property
    def members(self) -> Int64s:
        """The number of parts of each collective."""
        return np.diff(np.append(self.first, len(self.instance)))

    @cached_property
    def by_member(self) -> tuple[Places, Places]:
        """The rows sorted by member, and the bounds of each member's rows."""
        order = np.argsort(self.member, kind="stable")
        count = int(self.member.max(initial=-1)) + 1
        return order, np.searchsorted(self.member[order], np.arange(count + 1))

    def rows_of(self, member: int) -> Places:
        """The rows of a member, ascending; empty if it has none."""
        order, bounds = self.by_member
        return order[bounds[member] : bounds[member + 1]] if member + 1 < len(bounds) else order[:0]

    def size(self) -> Int64s:
        """The number of ranks of each collective: 2 for send and receive, else as recorded, else that of its parts.

        A collective without a named group may be one of all ranks of the job.
        """
        recorded = [group.size if group.identity or group.size > 0 else self.world for group in self.groups]
        known = np.array(recorded, np.int64)[self.group]
        return np.where(self.is_pair(), 2, np.where(known > 0, known, self.members))

    def is_pair(self) -> Bools:
        """Whether each collective is a send and its receive."""
        return self._is_of((SEND_RECV,))

    def is_unnamed(self) -> Bools:
        """Whether the traces do not say which ranks are in the group of each collective."""
        unnamed = [not group.identity or group.origin != "recorded" for group in self.groups]
        of_collective: Bools = np.array(unnamed, np.bool_)[self.group]
        return of_collective

    def is_synchronous(self) -> Bools:
        """Whether no part of each collective can end before all parts have begun."""
        return self._is_of(SYNCHRONOUS)

    def _is_of(self, kinds: Sequence[str]) -> Bools:
        of: Bools = np.isin(self.kind, [code for code, kind in enumerate(self.kinds) if kind in kinds])
        return of

    def take(self, chosen: Bools) -> Matched:
        """The chosen collectives."""
        rows = np.flatnonzero(chosen[self.instance])
        first = run_starts(self.instance[rows])
        parts = ("member", "place", "ts", "end", "exposed_ns")
        return replace(
            self,
            instance=np.repeat(np.arange(len(first)), np.diff(np.append(first, len(rows)))),
            first=first,
            **{name: getattr(self, name)[rows] for name in parts},
            **{name: getattr(self, name)[chosen] for name in ("group", "kind", "step", "bytes")},
        )


def match(summaries: Sequence[RankSummary]) -> Matched:
    """Match the collectives of the ranks."""
    table = _Table(summaries)
    unpaired = table.unpaired
    unnamed = _name_groups(table, summaries)
    key, counted = _key(table)
    uneven = _uneven(key, table.member) & counted & ~unpaired & ~unnamed
    ordinal = _ordinals(key, table.member)
    lag = _lags(combinations(key, ordinal)[1], table, ~uneven & ~unpaired & ~unnamed)
    ordinal, uneven = aligned_ordinals(key, table.member, table.bytes, table.end, uneven, ordinal, lag)
    _, instance = combinations(key, ordinal)
    kept = np.flatnonzero(~unpaired & ~uneven & ~unnamed)
    kept = kept[np.lexsort((table.member[kept], instance[kept]))]
    first = run_starts(instance[kept])
    lengths = np.diff(np.append(first, len(kept)))
    alone = lengths < 2
    differing = np.zeros(len(first), np.bool_)  # whose ranks state different sizes although these must be equal
    if len(first):
        fixed = np.array([kind in _EQUAL_BYTES for kind in table.kinds], np.bool_)[table.kind[kept[first]]]
        size = table.bytes[kept]
        least = np.minimum.reduceat(np.where(size == NO_VALUE, np.iinfo(np.int64).max, size), first)
        differing = fixed & (least < np.maximum.reduceat(size, first)) & ~alone
    good = np.repeat(~alone & ~differing, lengths)
    diagnostics = _diagnostics(
        point_to_point=int(unpaired.sum()),
        unnamed=int(unnamed.sum()),
        uneven=int(uneven.sum()),
        alone=int(alone.sum()),
        differing=int(differing.sum()),
        left_out=sum(summary.left_out for summary in summaries),
    )
    return table.matched(kept[good], instance[kept[good]], diagnostics)


class _Table:
    """The collectives of all summaries, concatenated.

    Sends and receives with known ranks, from ``source`` to ``target``, have the kind :data:`SEND_RECV` and no sequence
    number; ``unpaired`` marks the others.
    """

    def __init__(self, summaries: Sequence[RankSummary]) -> None:
        groups: dict[str, int] = {}
        self.groups: list[Group] = []
        kinds: dict[str, int] = {}
        group, kind = [], []
        for summary in summaries:
            codes = []
            for number in range(len(summary.groups)):
                group_info = summary.group(number)
                identity = group_info.identity or str(group_info.size)
                if identity not in groups:
                    groups[identity] = len(groups)
                    self.groups.append(group_info)
                codes.append(groups[identity])
            group.append(np.array(codes, np.int64)[summary.column("group")])
            kind_codes = np.array([kinds.setdefault(each, len(kinds)) for each in summary.kinds], np.int64)
            kind.append(kind_codes[summary.column("kind")])
        self.group, self.kind = _joined(group), _joined(kind)
        self.world = max((summary.world for summary in summaries), default=NO_VALUE)
        lengths = [len(summary.column("ts")) for summary in summaries]
        self.member = np.repeat(np.arange(len(summaries), dtype=MemberIndex), lengths)
        self.place = _joined([np.arange(length) for length in lengths])
        names = ("ts", "end", "seq", "step", "bytes", "exposed_ns")
        self.ts, self.end, self.seq, self.step, self.bytes, self.exposed_ns = (
            _joined([summary.column(name) for summary in summaries]) for name in names
        )
        ranks = np.repeat(
            [NO_VALUE if summary.rank is None else summary.rank for summary in summaries], lengths
        ).astype(np.int64)
        self._pair(kinds, ranks, _joined([summary.column("peer") for summary in summaries]))
        self.kinds = tuple(kinds)

    def _pair(self, kinds: dict[str, int], ranks: Int64s, peer: Int64s) -> None:
        sends, receives, several = (self.kind == kinds.get(kind, NO_VALUE) for kind in (SEND, RECV, SEND_RECV))
        # The other rank of a group of two, for wanted rows; -1 where the group has more or is not named
        wanted = sends | receives | several
        others = np.full(len(ranks), NO_VALUE, np.int64)
        for group, places in each(self.group[wanted], len(self.groups)):
            pair = re.fullmatch(r"\[(\d{1,9}), *(\d{1,9})\]", self.groups[group].ranks)  # PyTorch's text
            if pair is not None:
                rows = np.flatnonzero(wanted)[places]
                first, second = map(int, pair.groups())
                others[rows[ranks[rows] == first]], others[rows[ranks[rows] == second]] = second, first
        peer = np.where((peer == NO_VALUE) | several, others, peer)
        paired = (sends | receives | several) & (ranks != NO_VALUE) & (peer != NO_VALUE) & (ranks != peer)
        low, high = np.minimum(ranks, peer), np.maximum(ranks, peer)
        self.source = np.where(paired, np.where(sends, ranks, np.where(receives, peer, low)), NO_VALUE)
        self.target = np.where(paired, np.where(sends, peer, np.where(receives, ranks, high)), NO_VALUE)
        self.unpaired = np.isin(self.kind, [kinds[kind] for kind in POINT_TO_POINT if kind in kinds]) & ~paired
        if paired.any():
            self.kind = np.where(paired, kinds.setdefault(SEND_RECV, len(kinds)), self.kind)
            self.seq = np.where(paired, NO_VALUE, self.seq)

    def matched(self, rows: Places, instance: Int64s, diagnostics: tuple[Diagnostic, ...]) -> Matched:
        first = run_starts(instance)
        lengths = np.diff(np.append(first, len(rows)))
        return Matched(
            instance=np.repeat(np.arange(len(first)), lengths),
            member=self.member[rows],
            place=self.place[rows],
            ts=self.ts[rows],
            end=self.end[rows],
            exposed_ns=self.exposed_ns[rows],
            first=first,
            group=self.group[rows[first]],
            kind=self.kind[rows[first]],
            step=self.step[rows[first]],
            bytes=np.maximum.reduceat(self.bytes[rows], first) if len(first) else np.empty(0, np.int64),
            groups=tuple(self.groups),
            world=self.world,
            kinds=self.kinds,
            diagnostics=diagnostics,
        )


def _joined(parts: Sequence[Int64s]) -> Int64s:
    return np.concatenate(parts).astype(np.int64) if len(parts) else np.empty(0, np.int64)


def _key(table: _Table) -> tuple[Int64s, Bools]:
    """A key of rows that are told apart by number or order, and whether by order."""
    counted = table.seq == NO_VALUE
    of = table.group, table.kind, table.source, table.target, counted.astype(np.int64)
    number = np.where(counted, table.step, table.seq)
    _, key = combinations(*of, number)
    _, whole = combinations(*of)
    # a late host may launch the last ones after the step: equally many in all, but not in each step
    uneven = counted & _uneven(key, table.member)
    across = np.isin(whole, whole[uneven]) & ~_uneven(whole, table.member)
    return combinations(*of, np.where(across, NO_VALUE, number))[1], counted


def _name_groups(table: _Table, summaries: Sequence[RankSummary]) -> Bools:
    """Infer the groups that are not named; rows of groups that remain smaller than the number of ranks with them."""
    unnamed = np.array([not group.identity for group in table.groups], np.bool_)[table.group]
    if not unnamed.any():
        return unnamed
    key, _ = _key(table)
    _, instance = combinations(key, _ordinals(key, table.member))
    labels = {
        place: summary.name if summary.rank is None else str(summary.rank) for place, summary in enumerate(summaries)
    }
    left = np.zeros(len(unnamed), np.bool_)
    rows = np.flatnonzero(unnamed & ~table.unpaired)
    (groups, _), which = combinations(table.group[rows], table.kind[rows])
    (group_of, member), _ = combinations(table.group[~unnamed], table.member[~unnamed])
    of_groups = (cast("MemberIndexes", each) for each in np.split(member, run_starts(group_of)[1:]))
    known: list[MemberIndexes] | None = [each for each in of_groups if len(each) > 1]
    stated = np.array([group.size != NO_VALUE for group in table.groups], np.bool_)[groups]
    parts = dict(each(which, len(groups)))
    for number in sorted(parts, key=lambda number: not stated[number]):  # siblings by groups of known size come first
        chosen, size = rows[parts[number]], table.groups[int(groups[number])].size
        if len(np.unique(table.member[chosen])) <= max(size, 2):
            continue
        inferred = inferred_groups(chosen, instance, table.member, table.ts, table.end, labels, size, known)
        if size > 1 and known is not None:
            found_groups = [np.unique(table.member[members]) for _, members in inferred or ()]
            known = known + found_groups if found_groups else None
        left[chosen] = inferred is not None or size != NO_VALUE
        for group, members in inferred or ():
            left[members] = False
            table.group[members] = len(table.groups)
            table.groups.append(group)
    return left


def _lags(instance: Int64s, table: _Table, chosen: Bools) -> Int64s:
    """How far the clock of each row's rank is ahead of the others', roughly, by the ``chosen`` collectives; -1 unknown.

    Only differences between ranks of one collective are of use.
    """
    rows = np.flatnonzero(
        chosen & np.isin(table.kind, [code for code, kind in enumerate(table.kinds) if kind in SYNCHRONOUS])
    )
    count = int(table.member.max(initial=-1)) + 1
    lag = np.full(count, NO_LAG)
    order = rows[np.argsort(instance[rows], kind="stable")]
    first = run_starts(instance[order])
    lengths = np.diff(np.append(first, len(order)))
    ahead = table.end[order] - np.repeat(table.end[order[first]], lengths)
    shared = np.repeat(lengths > 1, lengths)
    order, ahead = order[shared], ahead[shared]
    for member, places in each(table.member[order], count):
        lag[member] = int(np.median(ahead[places]))
    return lag[table.member]


def _ordinals(key: Int64s, member: MemberIndexes) -> Int64s:
    """The index of each row among the rows of its member and key; rows of a member ascend in time."""
    order = np.lexsort((key, member))
    starts = np.ones(len(order), np.bool_)
    starts[1:] = (np.diff(key[order]) != 0) | (np.diff(member[order]) != 0)
    place = np.arange(len(order))
    ordinal = np.empty(len(order), np.int64)
    ordinal[order] = place - np.maximum.accumulate(np.where(starts, place, 0))
    return ordinal


def _uneven(key: Int64s, member: MemberIndexes) -> Bools:
    """Rows of keys for which members have different numbers of rows."""
    (keys, _), which = combinations(key, member)
    count = np.bincount(which, minlength=len(keys))
    size = int(key.max(initial=-1)) + 1
    most, least = np.zeros(size, np.int64), np.full(size, np.iinfo(np.int64).max)
    np.maximum.at(most, keys, count)
    np.minimum.at(least, keys, count)
    uneven: Bools = (most != least)[key]
    return uneven


def _diagnostics(**counts: int) -> tuple[Diagnostic, ...]:
    texts = {
        "point_to_point": (
            "point_to_point_left_out",
            "sends and receives whose other rank is unknown, as of several in one kernel; left out",
        ),
        "unnamed": (
            "group_members_not_told",
            "collectives of a group whose ranks are not named, on more ranks than the group has; left out",
        ),
        "uneven": (
            "collectives_counted_differently",
            "collectives without sequence number whose count in a step differs too much between ranks; left out",
        ),
        "alone": ("collectives_of_one_rank", "collectives found on one rank only; left out"),
        "differing": ("collectives_told_differently", "collectives whose size differs between ranks; left out"),
        "left_out": ("collectives_beyond_limit", "collectives beyond the limit of a rank's summary; left out"),
    }
    return tuple(Diagnostic(texts[name][0], count, texts[name][1]) for name, count in counts.items() if count)


# Aligns the collectives of ranks that recorded different numbers of them, so that one lost kernel costs only itself.
#
# Without sequence numbers the k-th collective of a kind, group and step is the same on all its ranks. Where a rank
# lacks some, its collectives are aligned to those of the rank with the most: in order, with equal sizes, and such that
# the ends differ least. Collectives end together, so that a wrong alignment is off by whole collectives. A rank that
# lacks more than :data:`MOST_LOST`, or than a quarter of them (half, where other collectives tell its clock, as of a
# recording that begins later), is left out.


MOST_LOST = 32
_Costs = np.ndarray[tuple[int], np.dtype[np.float64]]
NO_LAG = np.iinfo(np.int64).min
_NEAR_NS = 1000  #: alignments that differ by less in each collective are equally good
_UNEQUAL = 1e18  #: the cost of a pair of different sizes


def aligned_ordinals(
    key: Int64s, member: MemberIndexes, size: Int64s, end: Int64s, uneven: Bools, ordinal: Int64s, lag: Int64s
) -> tuple[Int64s, Bools]:
    """The ordinals of the ``uneven`` rows within their keys after alignment, and the rows that remain uneven.

    Args:
        key: the group, kind and step of each collective.
        member: its rank.
        size: its bytes, -1 unknown.
        end: ns, ascending within a member and key.
        uneven: rows of keys for which the ranks have different numbers of rows.
        ordinal: the index of each row among the rows of its member and key.
        lag: how far each row's clock is ahead, ns, :data:`NO_LAG` where it is unknown.
    """
    aligned, left = ordinal.copy(), uneven.copy()
    rows = np.flatnonzero(uneven)
    for _, places in each(key[rows], int(key.max(initial=-1)) + 1):
        whole = rows[places]
        parts = [whole[part] for _, part in each(member[whole], int(member.max()) + 1)]
        reference = max(parts, key=len)
        kept = [reference]
        for part in parts:
            known = lag[part[0]] != NO_LAG and lag[reference[0]] != NO_LAG
            if part is not reference and len(part) == len(reference):
                kept.append(part)
            elif 0 < len(reference) - len(part) <= min(MOST_LOST, max(1, len(reference) // (2 if known else 4))):
                offset = int(lag[part[0]] - lag[reference[0]]) if known else None
                partners = _partners(size[part], end[part], size[reference], end[reference], offset)
                if partners is not None:
                    aligned[part] = ordinal[reference[partners]]
                    kept.append(part)
        if len(kept) > 1:
            left[np.concatenate(kept)] = False
    return aligned, left


def _partners(size: Int64s, end: Int64s, of_size: Int64s, of_end: Int64s, offset: int | None) -> Places | None:
    """For each collective its place in a longer list; None if no order fits the sizes, or if several do about as well.

    Without a known ``offset`` of the clocks, the one with the best alignment is taken.
    """
    offsets = [offset] if offset is not None else []
    if offset is None:  # the median differences of the ends, for each number of skipped ones
        skips = range(len(of_end) - len(end) + 1)
        offsets = [int(np.median(end - of_end[skipped : skipped + len(end)])) for skipped in skips]
    alignments = [_alignment(size, end - candidate, of_size, of_end) for candidate in offsets]
    total, best = min(alignments, key=lambda each: each[0])
    others = [cost for cost, partners in alignments if not np.array_equal(partners, best)]
    clear = total < _UNEQUAL and all(cost > 2 * total + _NEAR_NS * len(end) for cost in others)
    return best if clear else None


def _alignment(size: Int64s, end: Int64s, of_size: Int64s, of_end: Int64s) -> tuple[float, Places]:
    """The cheapest alignment that keeps the order: its cost (the sum of distances, ns), and the places.

    After ``k`` skipped collectives the n-th of the shorter list is the (n + k)-th of the longer. ``least[k, n]`` is the
    cost of the first n with at most k skipped.
    """
    count, lost = len(end), len(of_end) - len(end)
    costs: list[_Costs] = []
    for skipped in range(lost + 1):
        window = slice(skipped, skipped + count)
        unequal = (size != of_size[window]) & (size >= 0) & (of_size[window] >= 0)
        cost = np.abs(end - of_end[window]).astype(np.float64) + np.where(unequal, _UNEQUAL, 0.0)
        costs.append(np.concatenate(([0.0], np.cumsum(cost))))
    least = costs[0]
    began = []  # until which place the row before is followed, for each place
    for cost in costs[1:]:
        saving = least - cost
        lowest = np.minimum.accumulate(saving)
        began.append(np.maximum.accumulate(np.where(saving == lowest, np.arange(count + 1), 0)))
        least = cost + lowest
    skips, place = np.zeros(count, np.int64), count
    for skipped in range(lost, 0, -1):
        begin = int(began[skipped - 1][place])
        skips[begin:place] = skipped
        place = begin
    return float(least[count]), np.arange(count) + skips
