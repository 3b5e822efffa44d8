"""Did the device run out of memory, and is there memory that every step leaves behind?

From a [memory snapshot](recorded.md#memory-snapshots) beside the trace (``--memory-snapshot``). An out of memory is
told with what was requested and by which line, what was free, allocated and reserved, in which pieces the rest lay,
and the line of code that held most. Memory is never freed if a line left some behind in each step but the first and
the last two.

**What to do**: what holds most is what to checkpoint, to shard or to free. Pieces too small for a request, of which
there are enough: ``PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True``. What every step leaves behind is kept by a
list, a closure or a cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from augment.core import Trace
from augment.core.text import Words, capitalized, counted, listed, percent, size, sizes, words_of
from augment.diagnosis.rule import NOWHERE, Answer, Fine, Found, NoData, NotApplicable, Seen, Spans
from augment.facts.memory.held import BEFORE, Held, Holder, Moment, held_memory
from augment.facts.source.recorded_times import instant

NAME = "out_of_memory"
LEAST_HELD = 0.01  #: of what is allocated, by the line that holds most, to name that
MOST_LOST = 0.5  #: of what is allocated, from before the history: who holds the rest is not what matters
MOST_NAMED = 3
LEAST_LEAK = 0.001  #: of what is allocated at most; less is not told


class OutOfMemory(Seen, frozen=True):
    """The allocator found no room. Figures of -1 were not recorded; ``line`` is empty if nobody's frames were."""

    when: str  #: `` at 14:20:55 UTC on GPU 1``
    requested_bytes: int
    free_bytes: int
    allocated_bytes: int
    reserved_bytes: int  #: by PyTorch
    unused_bytes: int  #: of that, but in no private pool
    largest_bytes: int  #: the largest piece of that
    private_bytes: int  #: unused in private pools
    requested_at: str  #: the line that asked, empty if nobody's frames were recorded
    line: str
    line_ratio: float
    line_count: int
    step_bytes: int | None
    other_lines: dict[str, float]  #: with their shares, the largest first
    lost_ratio: float  #: the share of what was there before the history begins, of unknown lines

    def title(self, words: Words) -> str:
        free = f", {sizes(self.free_bytes)} free" if self.free_bytes >= 0 else ""
        by = f" by `{self.requested_at}`" if self.requested_at else ""
        return f"Out of memory{self.when}: {sizes(self.requested_bytes)} requested{by}{free}"

    @property
    def is_scattered(self) -> bool:
        """Whether there would have been room, but in pieces."""
        return self.unused_bytes >= self.requested_bytes > self.largest_bytes

    @property
    def is_too_large(self) -> bool:
        """Whether the request exceeds what there would be with nothing else allocated."""
        return 0 <= self.free_bytes < self.requested_bytes - self.reserved_bytes

    @property
    def is_in_graphs(self) -> bool:
        """Whether there would be room, but in private pools."""
        return self.private_bytes >= self.requested_bytes and not self.is_scattered

    @property
    def has_cause(self) -> bool:
        """Whether the amounts say what to change, whoever holds the memory."""
        return self.is_too_large or self.is_in_graphs or self.is_scattered

    def evidence(self, words: Words) -> Sequence[str]:
        said = [f"{size(self.allocated_bytes)} are allocated, and {size(self.reserved_bytes)} reserved by PyTorch"]
        most = size(self.reserved_bytes + self.free_bytes)
        if self.is_too_large:
            said[0] += f", {most} with what is free; the request alone exceeds that"
        elif self.free_bytes >= 0:
            said[0] += f"; if the device has more than {most}, other processes or libraries hold the rest"
        if self.is_scattered:
            pieces = f"in pieces of at most {size(self.largest_bytes)}"
            said.append(f"{size(self.unused_bytes)} more are reserved but unused, {pieces}")
        if self.private_bytes > LEAST_HELD * self.reserved_bytes:
            said.append(f"{size(self.private_bytes)} are reserved but unused in private pools, as of CUDA graphs")
        holders = self.line, self.line_ratio, self.line_count, self.step_bytes, self.other_lines
        return [*said, *_held_by(*holders, self.lost_ratio)]

    def advice(self, words: Words) -> str:
        if self.is_too_large:
            where = f" of `{self.requested_at}`" if self.requested_at else ""
            return f"Make the request{where} smaller: it does not fit even if PyTorch keeps nothing else"
        if self.is_in_graphs:
            return "Let CUDA graphs share one pool, or capture fewer: what private pools keep serves no other request"
        if self.is_scattered:
            return f"Set {words.allocator}=expandable_segments:True, which joins such pieces"
        if self.line and self.lost_ratio < MOST_LOST:
            return f"Look at what `{self.line}` keeps: checkpoint it, shard it, or use a smaller batch"
        return f"{capitalized(_RECORD)}, to see who holds it"


class NeverFreed(Seen, frozen=True):
    """Lines of code that every step left memory behind at, with what each leaves per step, the largest first."""

    lines: list[str]
    step_bytes: list[int]
    ADVICE = "Look for a list or a closure that keeps tensors, such as losses.append(loss) instead of loss.item()"

    def title(self, words: Words) -> str:
        named = [f"`{line}` ({size(count)})" for line, count in zip(self.lines, self.step_bytes, strict=True)]
        return f"Every step leaves memory behind that is never freed: {listed(named)}"


def check(trace: Trace) -> Answer:
    """Ask the snapshot."""
    held = held_memory(trace)
    if held is None:
        return NotApplicable("no memory snapshot is given beside the trace")
    if isinstance(held, str):
        return NoData(held)
    if failed := out_of_memory(held):
        # where: the last of them, if it is within the trace
        last = max((each.at_ns for each in held.moments if each.what == "oom" and each.at_ns is not None), default=-1)
        at = np.array([last], np.int64)
        is_within = int(trace.events.ts[0]) <= last <= int(trace.events.end.max())
        spans = Spans(at, at + 1, np.full(1, -1, np.int64)) if is_within else NOWHERE
        return Found(failed, spans, "high", severity="high")
    if leaks := never_freed(held):
        sure = all(leak.confidence == "high" for each in held.never_freed.values() for leak in each)
        return Found(leaks, NOWHERE, "high" if sure else "medium", severity="warning")
    steps = "and nothing is left behind by every step" if len(held.steps) > 2 else "but no steps are known to compare"
    return Fine(f"the memory snapshot has no out of memory, {steps}")


def out_of_memory(held: Held) -> OutOfMemory | None:
    """The last out of memory of the snapshot."""
    moments = [moment for moment in held.moments if moment.what == "oom"]
    if not moments:
        return None
    last = max(moments, key=lambda moment: moment.at_ns or 0)
    snapshot, stacks = held.snapshot, held.snapshot.stacks
    line, ratio, count, grew, others, lost = _holders(last)
    row = next(int(each.rows[last.after]) for each in held.devices if each.device == last.device)
    asks = int(np.append(stacks.line, -1)[snapshot.action_stack[row]])  # without a stack the last one
    shared = [pool for pool in last.pools if not pool.private]
    return OutOfMemory(
        when=_when(last),
        requested_bytes=last.requested,
        free_bytes=last.device_free,
        allocated_bytes=last.allocated,
        reserved_bytes=last.reserved,
        unused_bytes=sum(pool.free for pool in shared),
        largest_bytes=max((pool.largest for pool in shared), default=0),
        private_bytes=sum(pool.free for pool in last.pools if pool.private),
        requested_at=stacks.labels[asks] if asks >= 0 else "",
        line=line,
        line_ratio=ratio,
        line_count=count,
        step_bytes=grew,
        other_lines=others,
        lost_ratio=lost,
    )


def _holders(moment: Moment) -> tuple[str, float, int, int | None, dict[str, float], float]:
    """The line that holds most, its share, count and growth per step; the next ones' shares; and the share of what was
    there before the history begins, of unknown lines."""
    every = [(each, each.bytes / max(moment.allocated, 1)) for each in moment.holders["line"]]
    lost = sum(ratio for each, ratio in every if each.name == BEFORE)
    first, *rest = [(each, ratio) for each, ratio in every if each.name != BEFORE] or [(Holder("", 0, 0), 0.0)]
    others = {each.name: ratio for each, ratio in rest[: MOST_NAMED - 1] if ratio >= LEAST_HELD}
    return first[0].name, first[1], first[0].count, first[0].step_bytes, others, lost


def never_freed(held: Held) -> NeverFreed | None:
    """What steps left behind on any device."""
    leaks = sorted((leak for leaks in held.never_freed.values() for leak in leaks), key=lambda leak: -leak.bytes)
    leaks = [leak for leak in leaks if leak.bytes >= LEAST_LEAK * max(each.allocated for each in held.moments)]
    if not leaks:
        return None
    return NeverFreed([leak.name for leak in leaks], [leak.step_bytes or 0 for leak in leaks])


def snapshot_sentences(trace: Trace) -> list[str]:
    """What filled the memory, who held it, and what was never freed, by the memory snapshot; empty without one."""
    held = held_memory(trace)
    if held is None or isinstance(held, str):
        return []
    words = words_of("nvidia")
    failed, leaks = out_of_memory(held), never_freed(held)
    said: list[str] = []
    if failed:
        said += [failed.title(words), *failed.evidence(words)]
    elif held.moments:
        peaks = [moment for moment in held.moments if moment.what == "peak"] or held.moments
        moment = max(peaks, key=lambda moment: moment.allocated)
        what = "At the peak" if moment.what == "peak" else "At the end"
        before = next(int(each.allocated[0]) for each in held.devices if each.device == moment.device)
        is_cut = before > 0 and moment.what == "peak"
        lost = f", of which {size(before)} were there before its history begins" if is_cut else ""
        unused = sum(pool.free for pool in moment.pools)
        largest = max((pool.largest for pool in moment.pools), default=0)
        scattered = f"; {size(unused)} are unused, in pieces of at most {size(largest)}" if unused else ""
        amounts = f"{size(moment.allocated)} are allocated{lost}, and {size(moment.reserved)} reserved{scattered}"
        said += [f"{what} of the memory snapshot{_when(moment)}, {amounts}", *_held_by(*_holders(moment))]
    every = [f"{size(each.allocated)} on GPU {each.device}" for each in held.moments if each.what == "peak"]
    if len(every) > 1:
        said.append(f"Peak allocation: {listed(every, len(every))}")
    elif not held.moments:
        said.append("The memory snapshot has no segments: nothing was allocated on a device")
    said += [leaks.title(words)] if leaks else []
    if failed and (failed.has_cause or (failed.line and failed.lost_ratio < MOST_LOST)):
        said.append(failed.advice(words))
    return [f"{sentence}." for sentence in said]


def _when(moment: Moment) -> str:
    at = "" if moment.at_ns is None else f" at {instant(moment.at_ns)[11:19]} UTC"
    return f"{at} on GPU {moment.device}"


_RECORD = "call torch.cuda.memory._record_memory_history() before the model is made"


def _held_by(
    line: str, ratio: float, count: int, step_bytes: int | None, others: Mapping[str, float], lost: float
) -> list[str]:
    """Who holds what is allocated, and that it is not known of most."""
    said = []
    if is_lost := MOST_LOST <= lost < 1:
        said.append(
            f"{percent(lost)} of what is allocated was there before the history begins, by whom is unknown: {_RECORD}"
        )
        ratio /= max(1 - lost, ratio)
        others = {}
    elif not line or ratio < LEAST_HELD:
        said.append(f"Who holds {'it' if lost == 1 else 'most of it'} was not recorded: {_RECORD}")
    if line and ratio >= LEAST_HELD:
        grew = f", which grew {size(step_bytes)} per step" if step_bytes else ""
        more = listed([f"{percent(share)} by `{other}`" for other, share in others.items()])
        what = "what was allocated since" if is_lost else "what is allocated"
        who = f"{percent(ratio)} of {what} is held by `{line}`{grew}, in {counted(count, 'allocation')}"
        said.append(f"{who}; {more}" if more else who)
    return said
