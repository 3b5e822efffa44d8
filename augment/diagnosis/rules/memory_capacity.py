"""Is the device's memory nearly full, or held but not used?

From ``[memory]`` instants (``profile_memory=True``) and the device's capacity in the header of the trace. Memory is
nearly full from 92 % of the capacity: another batch may end the job, and before that the allocator gives memory back
and asks again, which waits for the device. It is fragmented if, at the peak of what tensors hold, a quarter of what
PyTorch holds is unused, and the device is at least 70 % full.

**What to do**: activation checkpointing, a smaller batch with gradient accumulation, sharding; for fragments
``PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True``. ``torch.cuda.memory._record_memory_history`` shows who holds it.
"""

from __future__ import annotations

import numpy as np

from augment import facts
from augment.core import Trace, text
from augment.diagnosis import rule

NAME = "memory_capacity"
FULL, USED, UNUSED = 0.92, 0.70, 0.25


class MemoryHeld(rule.Seen, frozen=True):
    """What PyTorch holds of the device's memory."""

    held_bytes: int
    capacity_bytes: int
    unused_ratio: float  #: of what is held, at the peak of what tensors use
    is_full: bool

    @property
    def _ratio(self) -> str:
        return text.percent(self.held_bytes / self.capacity_bytes)

    def title(self, words: text.Words) -> str:
        held, capacity = text.size(self.held_bytes), text.size(self.capacity_bytes)
        if self.is_full:
            return f"PyTorch has reserved {held} of the {words.gpu}'s {capacity}, {self._ratio}: there is no room left"
        unused = text.percent(self.unused_ratio)
        return f"{unused} of the {held} that PyTorch has reserved is unused at the peak: memory is fragmented"

    def fine(self, words: text.Words, saved_ns: int) -> str:
        return f"PyTorch has reserved {text.size(self.held_bytes)} of {text.size(self.capacity_bytes)} ({self._ratio})"

    def advice(self, words: text.Words) -> str:
        if self.is_full:
            return "Use activation checkpointing, a smaller batch with gradient accumulation, or sharding"
        return f"Set {words.allocator}=expandable_segments:True"


def check(trace: Trace) -> rule.Answer:
    """Compare what is held with what there is."""
    devices = facts.memory.held_by_pytorch(trace)
    if not devices and not len(facts.gpu.work(trace)):
        return rule.NotApplicable("no {gpu} work was recorded")
    if not devices and any(events.on_stream for events in facts.memory.devices(trace)):
        return rule.NoData("what PyTorch holds of the {gpu}'s memory was not recorded: this trace has no totals")
    if not devices:
        return rule.NoData("no memory of the {gpu} was recorded", "record with {memory}")
    known = [(memory, facts.operators.capacity_bytes(trace, memory.device)) for memory in devices]
    fullest, capacity = max(known, key=lambda pair: pair[0].peak_reserved / pair[1] if pair[1] else 0.0)
    if not capacity:
        return rule.NoData("the trace does not say how much memory the {gpu} has")
    held = fullest.peak_reserved
    at_peak = 0 if fullest.reserved is None else int(fullest.reserved[fullest.peak])  # when tensors use most
    unused = 1 - int(fullest.allocated[fullest.peak]) / at_peak if at_peak else 0.0
    is_full = held / capacity >= FULL
    seen = MemoryHeld(held, capacity, unused, is_full)
    if not is_full and (held / capacity < USED or unused < UNUSED):
        return rule.Fine(seen)
    at = fullest.ts[fullest.peak : fullest.peak + 1]
    return rule.Found(seen, rule.Spans(at, at + 1, np.full(1, -1, np.int64)), "medium", severity="warning")
