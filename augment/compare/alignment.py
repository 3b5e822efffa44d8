"""Aligns the calls and the GPU work of control and test."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from augment import facts
from augment.arrays import NO_INDEX, Bools, Int32s, Int64s, expand, sums
from augment.compare.calls import Calls, Side, levels
from augment.core import Category


class Alignment(Struct, frozen=True):
    """Partners, int64; :data:`~augment.arrays.columns.NO_INDEX` where there is none.

    ``call_of_control[i]`` is the index in the test's calls of the partner of the control's call ``i``; ``call_of_test``
    is the reverse. ``work_of_control`` and ``work_of_test`` are the same for GPU work. Partners have equal names,
    except where ``renamed`` (of the test's work) is set: those are other kernels of the same operator, or of the same
    family in the same annotation.
    """

    call_of_control: Int64s
    call_of_test: Int64s
    work_of_control: Int64s
    work_of_test: Int64s
    renamed: Bools


def align_sides(control: Side, test: Side) -> Alignment:
    """Align the chosen steps of both sides.

    Calls are aligned level by level, from the outside in: first the outermost calls of a thread and step, as a sequence
    of names; then, within each aligned pair, the calls in it. GPU work is aligned among the work of an aligned pair.
    """
    calls = _align_calls(control, test)
    back = _reverse(calls, len(test.calls))
    # work among the work of an aligned pair of calls
    places, twins = _launched_order(control), _launched_order(test)
    home_mine, home_yours = homes(control.calls, calls)[control.work.call], homes(test.calls, back)[test.work.call]
    group_mine = _groups(control, home_mine)[places]
    group_yours = _groups(test, np.append(back, NO_INDEX)[home_yours], len(control.calls))[twins]
    matches = align(group_mine, control.work.name[places], group_yours, test.work.name[twins])
    work = np.full(len(control.work), NO_INDEX, np.int64)
    met = matches != NO_INDEX
    work[places[met]] = twins[matches[met]]
    renamed = np.zeros(len(test.work), np.bool_)
    # in order, the work of the pair that is left: the same under another name; first that of one family, then what
    # remains of an operator, whatever its family
    taken = np.zeros(len(test.work), np.bool_)
    taken[work[work != NO_INDEX]] = True
    places, twins = places[work[places] == NO_INDEX], twins[~taken[twins]]
    home_mine, home_yours = home_mine[places], home_yours[twins]
    parent_mine, parent_yours = home_mine.astype(np.int64), np.append(back, NO_INDEX)[home_yours]
    of_mine, of_yours = _of_operators(control, home_mine), _of_operators(test, home_yours)
    kind_mine, kind_yours = (  # the family, -1 of unknown ones
        np.where(facts.operators.work_families(side.trace).known[rows], side.work.family[rows], -1).astype(np.int64)
        for side, rows in ((control, places), (test, twins))
    )
    by_family = _paired(parent_mine, kind_mine, parent_yours, kind_yours)
    left_mine = (by_family == NO_INDEX) & of_mine
    of_yours[by_family[by_family != NO_INDEX]] = False
    by_type = np.full(len(places), NO_INDEX, np.int64)
    rest = np.flatnonzero(of_yours)
    types_mine, types_yours = control.work.type[places[left_mine]], test.work.type[twins[rest]]
    matches = _paired(
        parent_mine[left_mine], types_mine.astype(np.int64), parent_yours[rest], types_yours.astype(np.int64)
    )
    by_type[left_mine] = np.where(matches == NO_INDEX, NO_INDEX, np.append(rest, NO_INDEX)[matches])
    for matches in (by_family, by_type):
        met = matches != NO_INDEX
        work[places[met]] = twins[matches[met]]
        renamed[twins[matches[met]]] = True
    return Alignment(calls, back, work, _reverse(work, len(test.work)), renamed)


def _align_calls(control: Side, test: Side) -> Int64s:
    calls, other = control.calls, test.calls
    # the control's thread that each track of the test is compared with: the threads of the steps belong together, the
    # others are paired by similarity of their calls
    thread_of = np.full(len(test.trace.tracks), NO_INDEX, np.int64)
    profiles, profiles_of_test = _profiles(control), _profiles(test)
    alike = [
        (_likeness(profile, other), -a, -b, thread, twin)
        for a, (thread, profile) in enumerate(profiles.items())
        for b, (twin, other) in enumerate(profiles_of_test.items())
    ]
    mains = main_thread(control), main_thread(test)
    taken: tuple[set[int], set[int]] = (set(), set())
    if NO_INDEX not in mains:
        alike.append((2.0, 0, 0, *mains))
    for likeness, _, _, thread, twin in sorted(alike, reverse=True):
        if likeness > 0 and thread not in taken[0] and twin not in taken[1]:
            thread_of[twin] = thread
            taken[0].add(thread)
            taken[1].add(twin)
    partner = np.full(len(calls), NO_INDEX, np.int64)
    back = np.full(len(other), NO_INDEX, np.int64)
    count = len(control.steps)
    for depth, (places, twins) in enumerate(zip(levels(calls.depth), levels(other.depth), strict=False)):
        places, twins = places[calls.step[places] >= 0], twins[other.step[twins] >= 0]
        if depth:
            places = places[partner[calls.parent[places]] != NO_INDEX]
            twins = twins[back[other.parent[twins]] != NO_INDEX]
            group_mine, group_yours = calls.parent[places].astype(np.int64), back[other.parent[twins]]
        else:
            twins = twins[thread_of[other.thread[twins]] >= 0]
            group_mine = calls.thread[places].astype(np.int64) * count + calls.step[places]
            group_yours = thread_of[other.thread[twins]] * count + other.step[twins]
        matches = align(group_mine, calls.name[places], group_yours, other.name[twins])
        met = matches != NO_INDEX
        partner[places[met]] = twins[matches[met]]
        back[twins[matches[met]]] = places[met]
    return partner


def _profiles(side: Side) -> dict[int, dict[int, int]]:
    """The number of occurrences of each name on each thread, in the chosen steps."""
    calls = side.calls
    inside = calls.step >= 0
    key = calls.thread[inside].astype(np.int64) << 32 | calls.name[inside]
    distinct, count = np.unique(key, return_counts=True)
    profiles: dict[int, dict[int, int]] = {}
    for pair, times in zip(distinct.tolist(), count.tolist(), strict=True):
        profiles.setdefault(pair >> 32, {})[pair & 0xFFFFFFFF] = times
    return profiles


def _likeness(profile: dict[int, int], other: dict[int, int]) -> float:
    """The share of calls that occur in both profiles, 0 to 1."""
    both = sum(min(times, other.get(name, 0)) for name, times in profile.items())
    return 2 * both / (sum(profile.values()) + sum(other.values()))


def main_thread(side: Side) -> int:
    """The thread of the steps; without steps, the thread with most time in calls."""
    row = facts.steps.recorded(side.trace).row
    if len(row):
        return int(side.trace.events.track[row[0]])
    outermost = side.calls.parent == NO_INDEX
    if not outermost.any():
        return NO_INDEX
    time = sums(side.calls.thread[outermost], side.calls.cpu_ns[outermost], len(side.trace.tracks))
    return int(time.argmax())


def homes(calls: Calls, partner: Int64s) -> Int32s:
    """The innermost call at or above each call that has a partner, or :data:`NO_INDEX`; an extra element serves the
    latter."""
    home = np.concatenate((np.arange(len(calls), dtype=np.int32), [NO_INDEX])).astype(np.int32)
    matched = np.concatenate((partner != NO_INDEX, [True]))
    climbing = np.flatnonzero(~matched[home])
    while len(climbing):
        home[climbing] = calls.parent[home[climbing]]
        climbing = climbing[~matched[home[climbing]]]
    return home


def _launched_order(side: Side) -> Int64s:
    """The chosen steps' work, and work launched before the recording, in order of launch, then of start."""
    gpu = facts.gpu.work(side.trace)
    launched = np.where(gpu.launch >= 0, side.trace.events.ts[gpu.launch], gpu.ts) if len(gpu) else gpu.ts
    order = np.lexsort((gpu.ts, launched))
    chosen = (side.work.step >= 0) | facts.gpu.before_recording(side.trace)
    return order[chosen[order]].astype(np.int64)


def _groups(side: Side, home: Int64s | Int32s, calls: int | None = None) -> Int64s:
    """The control's call that a piece of work belongs to; for work without a call, its step and stream.

    Work launched before the recording forms groups of its own: only its order on its stream is known.
    """
    work = facts.gpu.work(side.trace)
    stream = np.repeat(np.arange(len(work.streams)), [stream.stop - stream.start for stream in work.streams])
    first = len(side.calls) if calls is None else calls
    step = np.where(facts.gpu.before_recording(side.trace), len(side.steps), side.work.step).astype(np.int64)
    alone = first + step * 4096 + stream
    return np.where(home >= 0, home, alone)


def _paired(parent_a: Int64s, kind_a: Int64s, parent_b: Int64s, kind_b: Int64s) -> Int64s:
    """The partners of equal parent and kind, in order; what has no parent, or a negative kind, has no partner."""
    known_a, known_b = (
        np.flatnonzero((parent >= 0) & (kind >= 0)) for parent, kind in ((parent_a, kind_a), (parent_b, kind_b))
    )
    item = np.zeros(max(len(known_a), len(known_b)), np.int64)
    matches = align(
        parent_a[known_a] << 32 | kind_a[known_a],
        item[: len(known_a)],
        parent_b[known_b] << 32 | kind_b[known_b],
        item[: len(known_b)],
    )
    partner = np.full(len(parent_a), NO_INDEX, np.int64)
    partner[known_a] = np.append(known_b, NO_INDEX)[matches]
    return partner


def _of_operators(side: Side, home: Int32s) -> Bools:
    """Whether the home of some work is an operator. Other kernels in an annotation need not do the same work."""
    category = side.trace.events.category[np.append(side.calls.row, 0)[home]]
    is_operator: Bools = (home >= 0) & (category == Category.CPU_OP)
    return is_operator


def _reverse(partner: Int64s, count: int) -> Int64s:
    back = np.full(count, NO_INDEX, np.int64)
    met = np.flatnonzero(partner != NO_INDEX)
    back[partner[met]] = met
    return back


# Alignment of sequences: finds equal elements in order, so that an inserted element does not shift the others.


BLOCK = 8192  #: elements that are aligned at once

Integers = npt.NDArray[np.signedinteger]
Pairs = list[tuple[int, int]]


def align(group_a: Integers, item_a: Integers, group_b: Integers, item_b: Integers) -> Int64s:
    """The partner in ``b`` of each element of ``a``, int64; :data:`NO_INDEX` if it has none.

    Elements are aligned in order within their group, and only with equal items. Groups that are equal on both sides,
    the usual case, cost no loop.

    Args:
        group_a: integers; elements of a group that ``b`` lacks have no partner.
        item_a: integers.
        group_b: as ``group_a``.
        item_b: as ``item_a``.
    """
    partner = np.full(len(group_a), NO_INDEX, np.int64)
    order_a, groups_a, first_a, stop_a = _grouped(group_a)
    order_b, groups_b, first_b, stop_b = _grouped(group_b)
    _, in_a, in_b = np.intersect1d(groups_a, groups_b, assume_unique=True, return_indices=True)
    first_a, stop_a, first_b, stop_b = first_a[in_a], stop_a[in_a], first_b[in_b], stop_b[in_b]
    as_long = stop_a - first_a == stop_b - first_b
    whose, places_a = expand(first_a[as_long], stop_a[as_long])
    _, places_b = expand(first_b[as_long], stop_b[as_long])
    same = item_a[order_a[places_a]] == item_b[order_b[places_b]]
    differs = np.zeros(int(as_long.sum()), np.bool_)
    differs[whose[~same]] = True
    equal = ~differs[whose]
    partner[order_a[places_a[equal]]] = order_b[places_b[equal]]
    remaining = np.flatnonzero(~as_long)
    remaining = np.concatenate((remaining, np.flatnonzero(as_long)[differs]))
    known: dict[
        tuple[tuple[int, ...], tuple[int, ...]], Pairs
    ] = {}  # calls of equal name tend to differ in the same way
    for group in remaining.tolist():
        own_a = order_a[first_a[group] : stop_a[group]]
        own_b = order_b[first_b[group] : stop_b[group]]
        key = tuple(item_a[own_a].tolist()), tuple(item_b[own_b].tolist())
        if key not in known:
            known[key] = common(*key)
        if known[key]:
            left, right = np.array(known[key]).T
            partner[own_a[left]] = own_b[right]
    return partner


def common(xs: Sequence[int], ys: Sequence[int]) -> Pairs:
    """The index pairs of a longest common subsequence, ascending.

    Sequences longer than :data:`BLOCK` are aligned block by block. That is linear in their length, and the result still
    is the longest unless the sequences drift apart by a quarter of a block.
    """
    head = 0
    shorter = min(len(xs), len(ys))
    while head < shorter and xs[head] == ys[head]:
        head += 1
    tail = 0
    while tail < shorter - head and xs[-1 - tail] == ys[-1 - tail]:
        tail += 1
    pairs_found = [(place, place) for place in range(head)]
    x, y, stop_x, stop_y = head, head, len(xs) - tail, len(ys) - tail
    while x < stop_x and y < stop_y:
        last = max(stop_x - x, stop_y - y) <= BLOCK
        pairs = _longest_common(xs[x : min(x + BLOCK, stop_x)], ys[y : min(y + BLOCK, stop_y)])
        if not last:  # elements near a block's end may have their partner beyond it
            pairs = [pair for pair in pairs if max(pair) < BLOCK * 3 // 4]
        pairs_found += [(x + left, y + right) for left, right in pairs]
        if last:
            break
        left, right = pairs[-1] if pairs else (BLOCK // 2, BLOCK // 2)
        x, y = x + left + 1, y + right + 1
    pairs_found += [(len(xs) - left, len(ys) - left) for left in range(tail, 0, -1)]
    return pairs_found


def _longest_common(xs: Sequence[int], ys: Sequence[int]) -> Pairs:
    """A longest common subsequence, by Hyyrö's bit-parallel table (2004).

    Row ``i`` is an integer whose bit ``j`` is 0 where ``ys[j]`` extends the longest common subsequence of
    ``xs[:i + 1]``. So a row of the table costs a few operations on one long integer.
    """
    if not xs or not ys:
        return []
    where: dict[int, int] = {}
    for place, item in enumerate(ys):
        where[item] = where.get(item, 0) | 1 << place
    full = (1 << len(ys)) - 1
    row, rows = full, []
    for item in xs:
        met = row & where.get(item, 0)
        row = ((row + met) | (row - met)) & full
        rows.append(row)
    pairs: Pairs = []
    x, y = len(xs), len(ys)
    while x and y:
        if rows[x - 1] >> (y - 1) & 1:  # no shorter without ys[y - 1]
            y -= 1
            continue
        x -= 1
        if x and not rows[x - 1] >> (y - 1) & 1:  # no shorter without xs[x]
            continue
        y -= 1
        pairs.append((x, y))
    return pairs[::-1]


def _grouped(group: Integers) -> tuple[npt.NDArray[np.intp], Integers, npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """The order by group, the distinct groups, and where each starts and stops in that order."""
    order = np.argsort(group, kind="stable")
    groups, first = np.unique(group[order], return_index=True)
    return order, groups, first, np.concatenate((first[1:], [len(group)]))
