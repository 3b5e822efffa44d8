"""What a CUDA memory snapshot says: what was held when, by whom, what never came back, and in which pieces the rest is.

A snapshot holds the memory at its end, and what the allocator did before, as far as a ring buffer kept it, so levels
are counted backwards from the end. What was allocated before the buffer begins, and freed within it, has no frames.

Sizes are as ``torch.cuda.max_memory_allocated()`` counts them: requests rounded up to 512 bytes, and of what is still
there at the end the whole block. The rest of a block that was not split off is recorded of no other.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from augment.arrays import Bools, Int32s, Int64s, order_of, sums
from augment.core import Category as Events
from augment.core import Trace, derived
from augment.core.attachments import ACTIONS, STATES, MemorySnapshot
from augment.facts.names import strings_where
from augment.facts.source.recorded_times import ComparedClocks, apart, compared

#: bits of what the frames of a stack show
SIGNS = {"operator": 1, "forward": 2, "call": 4, "backward": 8, "optimizer": 16, "creation": 32, "step": 64}
_BACKWARD = re.compile(r"autograd::Engine|_engine_run_backward|autograd::PyNode|autograd::generated::\w+Backward")
_CREATION = re.compile(r"/nn/modules/module\.py$|/nn/parameter\.py$|/nn/init\.py$|safetensors|/modeling_utils\.py$")
_CREATING = frozenset(("convert", "_apply", "_load_from_state_dict", "load_state_dict", "from_pretrained", "_load"))
ROUNDED = 512  #: bytes that the allocator rounds allocations up to
_SMALL_SEGMENT = 2 << 20
_BRIEF = 16  #: actions within which what is freed again is a temporary
_MOST_CHANGES, _MOST_LOOKED = 200_000, 10_000_000  #: of segments: undone and looked at for the pieces of a moment
BEFORE, NO_PYTHON = "before the recording", "no Python frame"  #: what has no line
_PROFILER_STEP = "ProfilerStep#"
_LEAST_STEPS, _RECENT_STEPS, _SURE_STEPS, _MOST_STEPS = 2, 5, 4, 256
_MOST_OOMS = 3  #: of a device
Confidence = Literal["high", "medium", "low"]
Category = Literal["parameters", "optimizer", "gradients", "activations", "temporary", "unknown"]


def signs_of(function: str, path: str) -> int:
    """What a frame shows, as bits of :data:`SIGNS`."""
    signs = 0
    if path.endswith(".py"):
        signs |= SIGNS["forward"] if function == "forward" else 0
        signs |= SIGNS["call"] if function in ("_call_impl", "__call__") else 0
        is_optimizer = "optim" in path.lower()
        signs |= SIGNS["optimizer"] if is_optimizer else 0
        signs |= SIGNS["step"] if is_optimizer and "step" in function else 0
        signs |= SIGNS["backward"] if function == "_engine_run_backward" else 0
        is_creation = bool(_CREATION.search(path)) and function in _CREATING
        signs |= SIGNS["creation"] if is_creation or (function == "__init__" and "/nn/modules/" in path) else 0
    elif _BACKWARD.search(function):
        signs |= SIGNS["backward"]
    return signs


def trimmed(path: str) -> str:
    """A path without what tells of the machine or its user: the last folder and the file."""
    return "/".join(path.rsplit("/", 2)[-2:]) if path.count("/") > 1 else path.rpartition("/")[2]


class MemoryReplay(Struct, frozen=True):
    """The actions of one device: ``rows`` of them, and the levels before the first and after each, in bytes:
    ``allocated`` (by tensors), ``active`` (also what waits for other streams), ``reserved`` (by PyTorch).

    Spans of memory by ``start`` (the place of the action that allocated it, -1: before) and ``end`` (of that which
    asked to free it; their number: never), ``gone`` (when it was free), ``address``, ``size``, ``stack`` (-1: unknown).
    ``compiled`` as in the snapshot.
    """

    device: int
    rows: Int64s
    ts: Int64s
    kind: Int64s
    allocated: Int64s
    active: Int64s
    reserved: Int64s
    start: Int64s
    end: Int64s
    gone: Int64s
    address: Int64s
    size: Int64s
    stack: Int32s
    compiled: Int32s

    @property
    def peak(self) -> int:
        """How many actions were done when most was allocated."""
        return int(self.allocated.argmax())

    def live(self, after: int) -> Bools:
        """Which spans are allocated after so many actions."""
        mask: Bools = (self.start < after) & (self.end >= after)
        return mask


def replay(snapshot: MemorySnapshot, device: int) -> MemoryReplay:
    """What one device held, from the end backwards."""
    rows = np.flatnonzero(snapshot.action_device == device)
    kind, addr, size = (column[rows] for column in (snapshot.action_kind, snapshot.action_addr, snapshot.action_size))
    alloc, requested, completed = (kind == ACTIONS.index(name) for name in ACTIONS[:3])
    count = len(rows)
    # allocations and frees of each address in turn
    of_blocks = np.flatnonzero(alloc | requested | completed)
    order = of_blocks[order_of(addr[of_blocks])] if len(of_blocks) else of_blocks
    same = np.append(addr[order[1:]] == addr[order[:-1]], False)[: len(order)]
    following, before = np.full(count, count, np.int64), np.full(count, -1, np.int64)
    following[order[:-1][same[:-1]]] = order[1:][same[:-1]]
    before[order[1:][same[:-1]]] = order[:-1][same[:-1]]
    previous = np.where(before >= 0, kind[np.maximum(before, 0)], -1)
    # a completed free ends an allocation that nobody asked to free: requests may be left out of a snapshot
    ends = requested | (completed & (previous != 1) & ((before >= 0) | (not requested.any())))
    leaves = completed | (requested & (not completed.any()))
    size = np.where(alloc | requested | completed, (size + ROUNDED - 1) // ROUNDED * ROUNDED, size)

    of_device = snapshot.segment_device == device
    in_block = of_device[snapshot.block_segment] if len(snapshot.block_segment) else np.empty(0, np.bool_)
    is_held = in_block & (snapshot.block_state == STATES.index("active_allocated"))
    is_active = in_block & (snapshot.block_state != STATES.index("inactive"))
    # what is there at the end has the size of its block, also where it was allocated, and asked to be freed
    by_address = np.flatnonzero(is_active)[np.argsort(snapshot.block_address[is_active], kind="stable")]
    last = np.flatnonzero((alloc | requested) & (following == count))
    place = np.searchsorted(snapshot.block_address[by_address], addr[last])
    block = np.append(by_address, -1)[place]
    known = (block >= 0) & (snapshot.block_address[block] == addr[last]) if len(by_address) else block >= 0
    for rows_of in (last[known], before[last[known]]):
        kept = (rows_of >= 0) & ((rows_of == last[known]) | requested[last[known]])
        size[rows_of[kept]] = snapshot.block_size[block[known][kept]]
    # the history may have been stopped before: what it leaves, and is not there at the end, was freed since
    since = last[~known & alloc[last]]
    held, kept_active = (int(snapshot.block_size[of].sum() + size[since].sum()) for of in (is_held, is_active))
    allocated = _backwards(held, np.where(alloc, size, 0) - np.where(ends, size, 0))
    active = _backwards(kept_active, np.where(alloc, size, 0) - np.where(leaves, size, 0))
    grows = (kind == ACTIONS.index("segment_alloc")) | (kind == ACTIONS.index("segment_map"))
    shrinks = (kind == ACTIONS.index("segment_free")) | (kind == ACTIONS.index("segment_unmap"))
    change = np.where(grows, size, 0) - np.where(shrinks, size, 0)
    reserved = _backwards(int(snapshot.segment_size[of_device].sum()), change)
    reserved += max(int((active - reserved).max()), 0) * bool(len(since))

    # what was allocated within the actions; what was before, and freed within; what was before, and is still there
    begun = np.flatnonzero(alloc)
    end = following[begun]
    second = np.where(end < count, following[np.minimum(end, max(count - 1, 0))], count) if count else end
    is_request = (end < count) & requested[np.minimum(end, max(count - 1, 0))] if count else np.empty(0, np.bool_)
    gone = (
        np.where(is_request, np.where(completed[np.minimum(second, count - 1)] & (second < count), second, end), end)
        if count
        else end
    )
    freed = np.flatnonzero(ends & (before < 0))
    later = following[freed]
    freed_gone = np.where(requested[freed] & (later < count), later, freed)
    touched = np.unique(addr[of_blocks])
    kept = np.flatnonzero(is_active & ~np.isin(snapshot.block_address, touched))
    unknown = np.full(len(freed), -1, np.int32)
    never = np.full(len(kept), count, np.int64)
    return MemoryReplay(
        device=device,
        rows=rows,
        ts=np.maximum.accumulate(snapshot.action_ts[rows]),  # a clock may be set back
        kind=kind,
        allocated=allocated,
        active=active,
        reserved=reserved,
        start=np.concatenate([begun, np.full(len(freed) + len(kept), -1, np.int64)]),
        end=np.concatenate([end, freed, np.where(is_held[kept], never, -1)]),
        gone=np.concatenate([gone, freed_gone, never]),
        address=np.concatenate([addr[begun], addr[freed], snapshot.block_address[kept]]),
        size=np.concatenate([size[begun], size[freed], snapshot.block_size[kept]]),
        stack=np.concatenate([snapshot.action_stack[rows[begun]], unknown, snapshot.block_stack[kept]]).astype(
            np.int32
        ),
        compiled=np.concatenate(
            [snapshot.action_compiled[rows[begun]], unknown, np.full(len(kept), -1, np.int32)]
        ).astype(np.int32),
    )


def _backwards(at_end: int, change: Int64s) -> Int64s:
    """The levels before the first change and after each."""
    levels: Int64s = np.concatenate([[0], np.cumsum(change)])
    return at_end + levels - int(levels[-1])


class PoolPieces(Struct, frozen=True):
    """Of one pool of a device: its ``label``, what PyTorch ``reserved`` of it, what is ``free`` within, the ``largest``
    piece of that, and what is ``wasted`` within blocks (-1: unknown). Bytes."""

    label: str
    private: int  #: the number of a private pool, as of CUDA graphs: no other request gets its memory; 0: none
    reserved: int
    free: int
    largest: int
    wasted: int = -1

    @property
    def scattered(self) -> float | None:
        """1 − largest ÷ free: 0 where all that is free is one piece."""
        return 1 - self.largest / self.free if self.free > 0 else None


def pieces_at(snapshot: MemorySnapshot, played: MemoryReplay, after: int) -> list[PoolPieces] | None:
    """The pools after so many actions, the largest first. Segments are undone backwards; None if too many changed.

    Memory belongs to one pool for good: small or large allocations, a stream, a private pool (of CUDA graphs).
    """
    changes = np.flatnonzero((played.kind >= 3) & (played.kind <= 6))
    changes = changes[changes >= after][::-1]
    if len(changes) > _MOST_CHANGES:
        return None
    of_device = np.flatnonzero(snapshot.segment_device == played.device)
    columns = (
        snapshot.segment_address, snapshot.segment_size, snapshot.segment_stream, snapshot.segment_pool,
        snapshot.segment_is_large, snapshot.segment_is_expandable,
    )  # fmt: skip
    held: dict[int, list[int]] = {}  # start → end, stream, pool, whether large, whether it can grow
    for low, size, *rest in zip(*(column[of_device].tolist() for column in columns), strict=True):
        held[low] = [low + size, *rest]
    rows, looked = played.rows[changes], 0
    for kind, low, size, stream in zip(
        played.kind[changes].tolist(),
        *(column[rows].tolist() for column in (snapshot.action_addr, snapshot.action_size, snapshot.action_stream)),
        strict=True,
    ):
        grows = int(ACTIONS[kind] in ("segment_map", "segment_unmap"))
        if ACTIONS[kind] in ("segment_free", "segment_unmap"):  # it was there before
            held[low] = [low + size, stream, 0, int(size > _SMALL_SEGMENT), grows]
            continue
        looked += 0 if low in held else len(held)
        if looked > _MOST_LOOKED:
            return None
        start = low if low in held else next((at for at, each in held.items() if at < low < each[0]), None)
        if start is not None:
            known = held.pop(start)
            if start < low:  # a segment that grew
                held[start] = [low, *known[1:]]
            if known[0] > low + size:
                held[low + size] = known
    merged: list[list[int]] = []
    for low, (high, *rest) in sorted(held.items()):
        if merged and merged[-1][1:] == [low, *rest] and rest[-1]:
            merged[-1][1] = high
        else:
            merged.append([low, high, *rest])
    live = np.flatnonzero((played.start < after) & (played.gone >= after))
    live = live[np.argsort(played.address[live], kind="stable")]
    starts = played.address[live]
    stops = starts + played.size[live]
    pools: dict[tuple[str, int], list[int]] = {}
    for low, high, stream, pool, is_large, _ in merged:
        first, last = np.searchsorted(starts, (low, high)).tolist()
        edges = np.concatenate([[low], np.minimum(stops[first:last], high)])
        gaps = np.maximum(np.concatenate([starts[first:last], [high]]) - edges, 0)
        totals = pools.setdefault((_label(is_large, stream, pool), pool), [0, 0, 0])
        totals[0] += high - low
        totals[1] += int(gaps.sum())
        totals[2] = max(totals[2], int(gaps.max()))
    made = (PoolPieces(label, pool, *totals) for (label, pool), totals in pools.items())
    return sorted(made, key=lambda each: -each.reserved)


def _label(is_large: int, stream: int, pool: int) -> str:
    """``large, stream 7, private pool 1``."""
    of_stream, private = f", stream {stream}" if stream else "", f", private pool {pool}" if pool else ""
    return f"{'large' if is_large else 'small'}{of_stream}{private}"


def pieces_at_end(snapshot: MemorySnapshot, device: int) -> list[PoolPieces]:
    """The pools as the snapshot itself has them at its end."""
    of_block = snapshot.block_segment
    pools: dict[tuple[str, int], list[int]] = {}
    inactive = snapshot.block_state == STATES.index("inactive")
    count = len(snapshot.segment_size)
    free = sums(of_block[inactive], snapshot.block_size[inactive], count)
    largest = np.zeros(count, np.int64)
    np.maximum.at(largest, of_block[inactive], snapshot.block_size[inactive])
    slack = np.where(inactive, 0, snapshot.block_size - snapshot.block_requested)
    wasted = sums(of_block, np.maximum(slack, 0), count)
    for at in np.flatnonzero(snapshot.segment_device == device).tolist():
        columns = (snapshot.segment_is_large, snapshot.segment_stream, snapshot.segment_pool)
        is_large, stream, pool = (int(column[at]) for column in columns)
        totals = pools.setdefault((_label(is_large, stream, pool), pool), [0, 0, 0, 0])
        totals[0] += int(snapshot.segment_size[at])
        totals[1] += int(free[at])
        totals[2] = max(totals[2], int(largest[at]))
        totals[3] += int(wasted[at])
    made = (PoolPieces(label, pool, *totals) for (label, pool), totals in pools.items())
    return sorted(made, key=lambda each: -each.reserved)


def step_of_spans(played: MemoryReplay, begun: Int64s) -> Int64s:
    """The number of the step in which each span was allocated: the place of the last of ``begun`` (ns, ascending) at or
    before it; -1 before the first, and for what was there before the actions."""
    moments = played.ts[np.maximum(played.start, 0)] if len(played.ts) else np.zeros(len(played.start), np.int64)
    return np.where(played.start >= 0, np.searchsorted(begun, moments, "right") - 1, -1)


def categories(
    snapshot: MemorySnapshot, played: MemoryReplay, spans: Int64s
) -> tuple[list[Category], list[Confidence]]:
    """What each of the ``spans`` is likely for, by its frames and how long it lived: high where the frames say it, low
    where it is only the likeliest."""
    stack = played.stack[spans]
    signs, line = snapshot.stacks.signs, snapshot.stacks.line
    some_have_frames = bool((line >= 0).any())
    lives, kept = (played.end[spans] - played.start[spans]).tolist(), (played.end[spans] >= len(played.rows)).tolist()
    names: list[Category] = []
    confidences: list[Confidence] = []
    for number, life, is_kept, start in zip(stack.tolist(), lives, kept, played.start[spans].tolist(), strict=True):
        has_line = number >= 0 and line[number] >= 0
        sign = int(signs[number]) if has_line else 0
        lasts = life > _BRIEF or is_kept
        likely: tuple[Category, Confidence] = ("unknown", "low")
        if sign & SIGNS["step"]:
            likely = ("optimizer", "high") if lasts else ("temporary", "medium")
        elif sign & SIGNS["backward"]:
            likely = ("gradients" if lasts else "temporary", "medium")
        elif sign & SIGNS["creation"]:
            likely = ("parameters", "high")
        elif sign & (SIGNS["call"] | SIGNS["forward"]):
            likely = ("activations", "medium") if lasts else ("temporary", "low")
        elif not has_line and start >= 0 and some_have_frames:  # the threads of autograd have no Python frames
            likely = ("gradients" if lasts else "temporary", "low")
        names.append(likely[0])
        confidences.append(likely[1])
    return names, confidences


class Holder(Struct, frozen=True):
    """What one line, module, operator, compiled region or category holds at a moment: ``bytes`` in ``count``
    allocations; ``step_bytes``, what each complete step before left there, the median (None: no two steps are known).
    """

    name: str
    bytes: int
    count: int
    step_bytes: int | None = None
    confidence: Confidence | None = None


class Moment(Struct, frozen=True):
    """One device at one moment, ``after`` so many actions: the ``peak``, an out of ``memory`` or the ``end``.

    ``requested`` and ``device_free`` are of an out of memory; -1: unknown. ``holders`` are by ``line``, ``module``,
    ``operator``, ``compiled``, ``category``, the largest first.
    """

    what: Literal["oom", "peak", "end"]
    device: int
    after: int
    at_ns: int | None
    allocated: int
    active: int
    reserved: int
    requested: int
    device_free: int
    pools: Sequence[PoolPieces]
    holders: Mapping[str, Sequence[Holder]]

    @property
    def largest(self) -> int:
        """The largest request that still fits into what is reserved or free."""
        return max([self.device_free, *(pool.largest for pool in self.pools if pool.label.startswith("large"))])


class Held(Struct, frozen=True):
    """A snapshot, replayed."""

    snapshot: MemorySnapshot  #: as it was read
    devices: Sequence[MemoryReplay]  #: a replay for each device
    moments: Sequence[Moment]  #: of the devices, first of those that ran out of memory
    steps: Int64s  #: ns, where steps begin
    never_freed: Mapping[int, Sequence[Holder]]  #: by device what was not freed across steps, by line
    clocks: ComparedClocks  #: the snapshot's clock beside the trace's


@derived(until="breakdowns")
def held_memory(trace: Trace) -> Held | str | None:
    """What the snapshot attached to the trace says; why it does not belong to the trace; None without one."""
    snapshot = trace.context.attached(MemorySnapshot)
    if snapshot is None:
        return None
    ts = snapshot.action_ts
    what = f"the memory snapshot {snapshot.name}"
    clocks = ComparedClocks()
    if len(trace.events):
        if not snapshot.has_times:
            return f"{what} has no times (PyTorch before 2.4, or no history): it can only be judged alone"
        if reason := apart(trace, int(ts.min()), int(ts.max()), what):
            return reason
        clocks = compared(trace, snapshot.mark_name, snapshot.mark_ts)
    devices = np.unique(np.concatenate([snapshot.segment_device, snapshot.action_device])).tolist()
    steps = step_begins(trace, snapshot)
    played = [replay(snapshot, device) for device in devices]
    failed = sorted(played, key=lambda each: not (each.kind == ACTIONS.index("oom")).any())  # what failed comes first
    moments: list[Moment] = []
    for each in failed:
        ooms = np.flatnonzero(each.kind == ACTIONS.index("oom"))
        for place in ooms[-_MOST_OOMS:].tolist():
            row = int(each.rows[place])
            wanted, free = int(snapshot.action_size[row]), int(snapshot.action_addr[row])
            moments.append(_moment(snapshot, each, steps, "oom", place, wanted, free))
        if len(each.rows):
            moments.append(_moment(snapshot, each, steps, "peak", each.peak))
        moments.append(_moment(snapshot, each, steps, "end", len(each.rows)))
    never = {each.device: _never_freed(snapshot, each, steps) for each in played}
    return Held(snapshot, played, moments, steps, never, clocks)


def step_begins(trace: Trace, snapshot: MemorySnapshot) -> Int64s:
    """When steps begin, ns, ascending: by the snapshot's own ProfilerSteps, else those of the trace, else the calls of
    the optimizer. Empty without times."""
    if not snapshot.has_times:
        return np.empty(0, np.int64)
    names = np.array(snapshot.mark_name, object)
    marked = [str(name).startswith(_PROFILER_STEP) for name in names]
    if sum(marked) < _LEAST_STEPS:
        rows = trace.events.slices_of(Events.USER_ANNOTATION)
        rows = rows[strings_where(trace, lambda name: name.startswith(_PROFILER_STEP))[trace.events.name[rows]]]
        if len(rows) >= _LEAST_STEPS:
            return np.unique(trace.events.ts[rows])
        calls = [str(name) for name in names if str(name).startswith("Optimizer.step#")]
        most = max(set(calls), key=calls.count, default="")
        marked = [name == most for name in names]
    return np.unique(snapshot.mark_ts[np.array(marked, np.bool_)]) if any(marked) else np.empty(0, np.int64)


def _moment(
    snapshot: MemorySnapshot,
    played: MemoryReplay,
    steps: Int64s,
    what: Any,
    after: int,
    requested: int = -1,
    free: int = -1,
) -> Moment:
    at_end = what == "end"
    pools = pieces_at_end(snapshot, played.device) if at_end else pieces_at(snapshot, played, after) or []
    spans = np.flatnonzero(played.live(after))
    at_ns = (
        int(played.ts[min(max(after - (what == "peak"), 0), len(played.ts) - 1)])
        if snapshot.has_times and len(played.ts)
        else None
    )
    labels, stacks = snapshot.stacks.labels, snapshot.stacks
    stack = played.stack[spans]
    in_stacks = {"line": stacks.line, "module": stacks.module, "operator": stacks.operator}
    codes = {
        by: np.where(stack >= 0, column[np.maximum(stack, 0)], -1) if len(column) else np.full(len(spans), -1)
        for by, column in in_stacks.items()
    }
    codes["compiled"] = played.compiled[spans]
    step = step_of_spans(played, steps)[spans]
    complete = np.arange(1, np.searchsorted(steps, at_ns, "right") - 1) if at_ns is not None else np.empty(0, np.int64)
    holders: dict[str, list[Holder]] = {}
    for by, code in codes.items():
        # of lines, what has none is told apart: it was there before, or its thread runs no Python
        code = np.where((code < 0) & (played.start[spans] < 0), -2, code) if by == "line" else code
        holders[by] = _holders(code, played.size[spans], step, complete, labels, every=by == "line")
    names, confidences = categories(snapshot, played, spans)
    sure = dict(zip(names, confidences, strict=True)) | {
        n: c for n, c in zip(names, confidences, strict=True) if c == "low"
    }
    known = sorted(set(names))
    numbers = np.array([known.index(name) for name in names], np.int64)
    by_category = _holders(numbers, played.size[spans], step, complete, known, every=False)
    holders["category"] = [replace(each, confidence=sure[each.name]) for each in by_category]  # type: ignore[index]
    return Moment(
        what, played.device, after, at_ns, int(played.allocated[after]), int(played.active[after]),
        int(played.reserved[after]), requested, free, pools, holders,
    )  # fmt: skip


def _holders(
    code: Int64s, size: Int64s, step: Int64s, complete: Int64s, labels: Sequence[str], *, every: bool
) -> list[Holder]:
    """The bytes of each code, most first. Negative codes are left out unless ``every`` is asked for."""
    if not len(code):
        return []
    holders = []
    order = np.argsort(code, kind="stable")
    different, first = np.unique(code[order], return_index=True)
    for number, places in zip(different.tolist(), np.split(order, first[1:]), strict=True):
        if number < 0 and not every:
            continue
        name = labels[number] if number >= 0 else BEFORE if number == -2 else NO_PYTHON
        per_step = None
        if len(complete) >= _LEAST_STEPS:
            recent = complete[-_RECENT_STEPS:]
            left = [int(size[places][step[places] == each].sum()) for each in recent.tolist()]
            per_step = int(np.median(left)) if min(left) > 0 else 0
        holders.append(Holder(name, int(size[places].sum()), len(places), per_step))
    return sorted(holders, key=lambda each: -each.bytes)


def _never_freed(snapshot: MemorySnapshot, played: MemoryReplay, steps: Int64s) -> list[Holder]:
    """The lines that left memory behind in every complete step but the first, in which states are made, and the last,
    whose memory may still be needed; with what each step left, the median."""
    if not len(played.ts) or len(steps) < _LEAST_STEPS + 2:
        return []
    last = int(np.searchsorted(steps, played.ts[-1], "right")) - 1
    first = max(1, int(np.searchsorted(steps, played.ts[0], "left")))
    between = range(first, last - 1)
    if len(between) < _LEAST_STEPS:
        return []
    between = between[-_MOST_STEPS:]
    spans = np.flatnonzero(played.live(len(played.rows)) & (played.start >= 0) & (played.stack >= 0))
    step = step_of_spans(played, steps)[spans]
    spans, step = spans[step >= between[0]], step[step >= between[0]]
    line = snapshot.stacks.line[played.stack[spans]]
    numbers, of_line = np.unique(line, return_inverse=True)
    left = np.zeros((len(numbers), between[-1] + 2 - between[0]), np.int64)  # the last column: of later steps
    np.add.at(left, (of_line, np.minimum(step, between[-1] + 1) - between[0]), played.size[spans])
    counts = np.bincount(of_line, minlength=len(numbers))
    confidence: Confidence = "high" if len(between) >= _SURE_STEPS else "medium"
    leaks = []
    for row in np.flatnonzero((numbers >= 0) & (left[:, :-1] > 0).all(axis=1)).tolist():
        per_step, name = int(np.median(left[row, :-1])), snapshot.stacks.labels[numbers[row]]
        leaks.append(Holder(name, int(left[row].sum()), int(counts[row]), per_step, confidence))
    return sorted(leaks, key=lambda each: -each.bytes)
