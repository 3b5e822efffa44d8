"""Does the device wait for copies from or to the host, or copy much within its own memory?

The prediction lets copies between host and device take no time in the steps, as if all ran beside computation; nor do
their calls while they run, as the host itself copies from pageable memory. A step
cannot get shorter than its copies: where they take longer than everything else, they cannot be hidden, and the answer
says so. A copy from or to pageable memory goes through a staging buffer and blocks, on whatever stream it is: if such
copies take most of the time, the answer names them, and the advice is pinned memory first. Large copies from or to
pinned memory that move less than half of what the link of such a device usually reaches are told with both rates.
Pages of managed memory that migrate (Nsight Systems' "Unified" copies) are launched by nobody: host or device stand at
each fault until the page has come. If they take most of the copies' time, the answer says so, and promises nothing. It
cannot tell where the program prefetches: nobody waits for what came in time. Without steps, copies before the first
kernel set the program up, and are no loss of each step. If copies from and to the host are no matter, those within the
device's memory are asked about: each is a tensor that was laid out anew, or cloned, and at most their time is saved.

**What to do**: copy the next batch on its own stream while the step computes (a prefetcher), from pinned memory with
``non_blocking=True``; make tensors on the device (``torch.arange(…, device="cuda")``) in place of copying them; do not
copy back and forth what stays the same. If there is too little to hide them behind: copy less, in smaller types, and
from pinned memory. Managed memory: ``cudaMemPrefetchAsync`` before its use, or ``cudaMalloc`` and explicit copies.
Within the device: keep one layout (no ``contiguous()`` in every step), write into place instead of ``clone()`` and
``cat()``, or let ``torch.compile`` fuse the copy into what reads it; where DDP copies, its option against that.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from augment import arrays, facts
from augment.core import LAUNCHES, Category, Trace, text
from augment.diagnosis import judging, recording_completeness, rule, standstills

NAME = "exposed_copies"
_ACROSS = ("HtoD", "DtoH")
#: CUPTI's names, ROCm's before 6, and those of Intel's devices, where M is the host's memory
_BETWEEN = re.compile("HtoD|DtoH|CopyHostToDevice|CopyDeviceToHost|Memcpy (?:[MH]2D|D2[MH])")
_WITHIN = re.compile("DtoD|CopyDeviceToDevice|Memcpy D2D")
_PREFETCHES = re.compile("MemPrefetch")
_PAGEABLE = re.compile("Pageable")
MOSTLY = 0.5  #: share of the copies' time from which pageable memory is named
#: what copies in DistributedDataParallel, and its option against that
_OF_DDP = {
    re.compile(r"ddp\.reducer::copy_bucket"): "gradient_as_bucket_view=True",
    re.compile("_broadcast_coalesced|_sync_buffers"): "broadcast_buffers=False, unless ranks need equal buffers",
}
OVERLAPPING = 1.1  #: times the time in which any copy runs, that all take one by one
LARGE_BYTES = 1_000_000  #: a copy of so many is limited by the link, not by its start
#: what pinned memory usually reaches on 16 lanes of PCIe 3.0, 4.0, 5.0, GB/s, by the capability of servers' devices
LINK_GBPS = {(7, 0): 12.0, (8, 0): 25.0, (9, 0): 50.0, (10, 0): 50.0}
SLOW = 0.5  #: of what the link usually reaches; two directions at once may take from each other


class Copies(rule.Seen, frozen=True):
    """Copies between host and device."""

    copy_count: float
    moved_bytes: float  #: per step; 0 where no size was recorded
    copy_ns: int  #: per step, in which any copy runs
    other_ns: int  #: of a step, in which nothing is copied
    can_be_hidden: bool  #: there is as much other time
    pageable_ratio: float  #: of the copies' time, those from or to pageable memory
    lines: list[str]  #: of the user's program
    overlap: bool = False  #: they run beside each other
    is_alone: bool = False  #: the device does nothing else
    slow: tuple[Mapping[str, float], float] | None = None  #: GB/s by direction, and what the link usually reaches
    migrates: bool = False  #: pages of managed memory, most of their time

    def _what(self, words: text.Words) -> str:
        return f"{words.often(self.copy_count, 'copy', 'copies')} between host and device"

    def title(self, words: text.Words) -> str:
        pageable = f", {text.percent(self.pageable_ratio)} of it pageable memory" if self._is_pageable else ""
        together = ", overlapping each other" if self.overlap else ""
        each = words.each(self.copy_count)
        moved = f"{_sized(self.moved_bytes)}{text.time(self.copy_ns)}{each}{together}{pageable}"
        if self.migrates:
            often = f"{words.often(self.copy_count, 'copy', 'copies')} ({moved})"
            return f"Pages of managed memory migrate between host and device in {often}; one of the two waits for each"
        what = f"{self._what(words)} ({moved})"
        if self.can_be_hidden:
            return f"The {words.gpu} waits for {what}"
        if self.is_alone:
            return f"Copies dominate: {what}, and the {words.gpu} does nothing else that could hide them"
        return f"Copies dominate: {what}, and only {text.time(self.other_ns)} of other work could hide them"

    def cure(self, words: text.Words) -> str:
        return f"{'hiding' if self.can_be_hidden else 'removing'} {'it' if self.copy_count == 1 else 'them'}"

    def fine(self, words: text.Words, saved_ns: int) -> str:
        what = f"{self._what(words)} ({text.size(self.moved_bytes) if self.moved_bytes else text.time(self.copy_ns)})"
        return f"{what}; {self.cure(words)} would save {words.share(saved_ns)}"

    def advice(self, words: text.Words) -> str:
        return words.fill(self._way) + text.called_from(self.lines) + self._link

    @property
    def _is_pageable(self) -> bool:
        return self.pageable_ratio >= MOSTLY

    @property
    def _link(self) -> str:
        if self.slow is None:
            return ""
        rates, usual = self.slow
        moved = " and ".join(f"{rate:.1f} GB/s {way}" for way, rate in rates.items())
        return (
            f". Large copies of pinned memory move {moved}, where about {usual:.0f} are usual: check the link's lanes "
            "and the NUMA node (nvidia-smi topo -m), and whether other devices copy at the same time"
        )

    @property
    def _way(self) -> str:
        if self.migrates:
            return (
                "Move managed memory ahead of its use, to the device and back to the host (cudaMemPrefetchAsync), and "
                "say how it is used (cudaMemAdvise); or allocate with cudaMalloc and copy explicitly"
            )
        if not self.can_be_hidden:
            more = "use smaller types, and copy from pinned memory" if self._is_pageable else "and use smaller types"
            return f"Copy less: keep on the device what stays the same, {more}"
        if self._is_pageable:
            pinned = "from pinned memory it runs while the step computes"
            return f"{{pinned}}: a copy of pageable memory blocks on any stream; {pinned}"
        return "Copy the next batch on its own stream while the step computes; make tensors on the device"


class CopiesWithin(rule.Seen, frozen=True):
    """Copies within the memory of a device; figures are per step."""

    copy_count: float
    moved_bytes: float
    copy_ns: int
    operators: list[str]  #: the outermost that copy; most bytes first
    lines: list[str]  #: of the user's program
    option: str = ""  #: of DDP, where that copies most bytes
    CURE = "avoiding them"

    def title(self, words: text.Words) -> str:
        copies = f"{words.often(self.copy_count, 'copy', 'copies')} within its memory"
        where = f", most in {text.listed(self.operators)}" if self.operators else ""
        moved = f"{_sized(self.moved_bytes)}{text.time(self.copy_ns)}"
        return f"The {words.gpu} makes {copies} ({moved}{words.each(self.copy_count)}){where}"

    def advice(self, words: text.Words) -> str:
        if self.option:
            return f"Give DistributedDataParallel {self.option}{text.called_from(self.lines)}"
        way = "Keep one layout (no contiguous() in every step), write into place instead of clone() and cat()"
        return f"{way}, or let torch.compile fuse them{text.called_from(self.lines)}"


def _sized(moved_bytes: float) -> str:
    return f"{text.size(moved_bytes)}, " if moved_bytes else ""


def check(trace: Trace) -> rule.Answer:
    """Predict steps whose copies are hidden; if that saves nothing, steps without those within the device."""
    answer = _with_host(trace)
    within = answer if isinstance(answer, rule.Found) else _within(trace)
    if not isinstance(within, rule.Found) and (left_out := judging.setup_copies(trace)):
        return rule.NoData(left_out, "record later steps")
    return within if isinstance(within, rule.Found) else answer


def _within(trace: Trace) -> rule.Answer:
    work, copies = facts.gpu.work(trace), judging.copies_in_steps(trace)
    copies = copies[facts.names.matching(trace, _WITHIN)[trace.events.name[work.row[copies]]]]
    launched = copies[work.launch[copies] != arrays.NO_INDEX]
    if not len(launched):
        return rule.NotApplicable("the steps copy nothing within the {gpu}'s memory")
    dur, steps = np.maximum(work.end[copies] - work.ts[copies], 0), judging.measure(trace).count
    cut = facts.critical.without_work(trace, copies, dur)
    calls, copied, option = work.launch[launched], trace.events.bytes.at(work.row[launched], -1), ""
    if (copied < 0).any():  # where bytes lack, the longest come first
        copied = work.end[launched] - work.ts[launched]
    for pattern, cure in _OF_DDP.items():
        named = facts.names.matching(trace, pattern)
        by_ddp = facts.host.innermost(trace, calls, (Category.CPU_OP, Category.PYTHON_FUNCTION), named) >= 0
        option = cure if 2 * copied[by_ddp].sum() > copied.sum() else option
    is_step = facts.names.starting(trace, facts.names.STEP)
    around = facts.host.outermost(trace, facts.host.operators_around(trace, calls), (Category.CPU_OP,), ~is_step)
    seen = CopiesWithin(
        copy_count=len(copies) / steps,
        moved_bytes=float(trace.events.bytes.at(work.row[copies], 0).sum()) / steps,
        copy_ns=int(dur.sum()) // steps,
        operators=[name for name in standstills.names_of(trace, around, copied) if name],
        lines=facts.host.python_lines(trace, calls),
        option=option,
    )
    saved, spans = judging.saved_a_step(trace, cut), rule.Spans(work.ts[copies], work.end[copies], work.row[copies])
    return judging.judged(trace, seen, saved, spans=spans, confidence="medium", cut=cut, at_most=True)


def _with_host(trace: Trace) -> rule.Answer:
    work, events, copies = facts.gpu.work(trace), trace.events, judging.copies_in_steps(trace)
    across = facts.names.matching(trace, _BETWEEN)
    copies = copies[across[events.name[work.row[copies]]]]
    if not len(copies):
        return rule.NotApplicable("the steps copy nothing between host and device")
    dur = np.maximum(work.end[copies] - work.ts[copies], 0)
    # the host's time in the calls of copies while they run: a call that copies from pageable memory takes part
    launched = copies[work.launch[copies] != arrays.NO_INDEX]
    calls = work.launch[launched]
    start = np.maximum(events.ts[calls], work.ts[launched])
    end = np.minimum(events.ts[calls] + events.dur[calls], work.end[launched])
    during = start < end
    on_host = judging.host_cut(trace, events.track[calls[during]], start[during], end[during])
    cut = facts.critical.joined([facts.critical.without_work(trace, copies, dur), on_host])
    saved = judging.saved_a_step(trace, cut)
    steps = judging.measure(trace).count
    copying_ns = arrays.total(arrays.union(work.ts[copies], np.maximum(work.ts[copies], work.end[copies])))
    rest = max(judging.measure(trace).length_ns - copying_ns // steps, 0)
    fits = rest >= saved / 2
    seen = Copies(
        copy_count=len(copies) / steps,
        moved_bytes=float(events.bytes.at(work.row[copies], 0).sum()) / steps,
        copy_ns=copying_ns // steps,
        other_ns=rest,
        can_be_hidden=fits,
        pageable_ratio=_ratio(trace, copies, _PAGEABLE),
        lines=facts.host.python_lines(trace, work.launch[copies]),
        overlap=int(dur.sum()) > OVERLAPPING * copying_ns,
        is_alone=len(copies) == int(judging.work_in_steps(trace).sum()),
        slow=_slow_link(trace, copies),
        migrates=_ratio(trace, copies, recording_completeness.MIGRATES) >= MOSTLY,
    )
    spans = rule.Spans(work.ts[copies], work.end[copies], work.row[copies])
    if seen.migrates:  # nothing launched them, so that no path says what waits for them
        ratio = copying_ns / max(steps * judging.measure(trace).length_ns, 1)
        if ratio < rule.LEAST_RATIO:
            return rule.Fine(seen, 0)
        if facts.names.matching(trace, _PREFETCHES)[events.name[events.slices_of(*LAUNCHES)]].any():
            return rule.NoData("the program prefetches managed memory: which migrations it waits for was not recorded")
        return rule.Found(seen, spans, "medium", severity=rule.severity_of(ratio))
    saved = min(saved, rest) if fits else saved
    return judging.judged(trace, seen, saved, spans=spans, confidence="high", cut=cut, at_most=not fits)


def _ratio(trace: Trace, copies: arrays.Int64s, named: re.Pattern[str]) -> float:
    """The share of the copies' time that those of such a name take."""
    work = facts.gpu.work(trace)
    dur = np.maximum(work.end[copies] - work.ts[copies], 0)
    chosen = facts.names.matching(trace, named)[trace.events.name[work.row[copies]]]
    return float(dur[chosen].sum() / max(int(dur.sum()), 1))


def _slow_link(trace: Trace, copies: arrays.Int64s) -> tuple[Mapping[str, float], float] | None:
    """The rates of large copies of pinned memory, GB/s, and what the link usually reaches; None where that is unknown,
    or no direction is slow."""
    work, events = facts.gpu.work(trace), trace.events
    usual = {LINK_GBPS.get(facts.operators.capability_of(trace, each.device) or (0, 0)) for each in work.devices}
    copied, dur = events.bytes.at(work.row[copies], 0), work.end[copies] - work.ts[copies]
    rates = {}
    for way, said in zip(_ACROSS, ("to the device", "from it"), strict=True):
        pinned = facts.names.strings_where(trace, lambda name, way=way: way in name and "Pinned" in name)  # type: ignore[misc]
        large = pinned[events.name[work.row[copies]]] & (copied >= LARGE_BYTES) & (dur > 0)
        if large.any():
            rates[said] = float(copied[large].sum() / dur[large].sum())
    known = usual.pop() if len(usual) == 1 else None
    return (rates, known) if known and rates and min(rates.values()) < SLOW * known else None
