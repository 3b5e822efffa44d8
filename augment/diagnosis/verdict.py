"""The verdict: one to five sentences, from what the device did and from the gravest findings."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from augment.arrays.intervals import Intervals, clip, total
from augment.derived.critical.handovers import NO_TRACK, main_track
from augment.derived.critical.savings import joined
from augment.derived.gpu.gpu_work import gpu_work
from augment.derived.gpu.launches import NO_ROW
from augment.derived.gpu.type_coverage import COMMUNICATION, COMPUTATION, MEMORY, type_coverage
from augment.derived.host.host_segments import host_segments
from augment.derived.source.cut_mark import lacks_causes
from augment.derived.waits.gap_causes import GapCategory
from augment.diagnosis.devices import fitting
from augment.diagnosis.diagnose import Diagnosis, diagnose
from augment.diagnosis.host_alone import host_sentence
from augment.diagnosis.measure import idle_in_steps, late_beginnings, measure, saved_a_step
from augment.diagnosis.rule import HIGH_RATIO, Finding
from augment.diagnosis.whole import is_excerpt
from augment.diagnosis.wording import count, percent, short, shorter, time, within
from augment.trace import Category, Trace, derived
from augment.units import counted

MOST_FINDINGS = 3
OVERLAP = 1.05  #: savings whose sum exceeds what they save together by so much are said to overlap
MOST = 0.8  #: share of unexplained time that is alike, to say so
TOLD_RATIO = 0.02  #: parts of the time below this are not mentioned


@derived
def verdict(trace: Trace) -> tuple[str, ...]:
    """The sentences."""
    result = diagnose(trace)
    first = [each for each in result.findings if each.found.first]
    grave = [each for each in result.findings if each.is_grave and not each.found.first]
    few = is_excerpt(trace) and not first
    sentences = [f"{each.found.title}." for each in first[:1]]
    if few and not _possible(result):
        sentences = [f"{each.found.title}." for each in result.findings if each.found.of_recording]
    sentences.append(_state(trace))
    named = grave[: MOST_FINDINGS - len(first[:1])]
    sentences += [f"{each.found.title}." for each in named]
    if few and _possible(result):
        pieces = count(len(gpu_work(trace)), "piece")
        cause = within(_possible(result)[0].found.title)
        sentences.append(f"From {pieces} of GPU work only, so merely possible: {cause}.")
    elif not grave:
        sentences += _nothing(trace, result)
    elif unexplained := _unexplained(trace, result):
        sentences.append(unexplained)
    sentences += _together(trace, named)
    return tuple(sentences[:5])


def headline(trace: Trace) -> str:
    """The verdict for a slice, of which a screen shows some 130 characters: what is wrong before what is usual."""
    titles = {f"{each.found.title}." for each in diagnose(trace).findings}
    sentences, state = list(verdict(trace)), _state(trace)
    if titles.intersection(sentences):
        sentences.sort(key=lambda sentence: sentence == state)
    return " ".join(sentences)


def _state(trace: Trace) -> str:
    """What the devices did, or the host where it is alone."""
    alone = not type_coverage(trace) or not len(measure(trace).windows)
    return host_sentence(trace) if alone else fitting(trace, busy(trace))


def _together(trace: Trace, named: Sequence[Finding]) -> list[str]:
    """What the named findings would save together, if that is known of several."""
    saving = [each for each in named if each.found.saved_ns]
    cuts = [each.found.cut for each in saving if each.found.cut is not None]
    if len(cuts) < 2:
        return ["These savings do not add up."] if len(saving) > 1 else []
    saved = saved_a_step(trace, joined(cuts))
    overlap = sum(each.found.saved_ns or 0 for each in saving if each.found.cut is not None) > OVERLAP * saved
    start = "These savings overlap: without all of this" if overlap else "Without all of this"
    if len(cuts) < len(saving):
        start += " but the late rank"
    return [f"{start}, {shorter(trace, saved)} in all."]


def _nothing(trace: Trace, result: Diagnosis) -> list[str]:
    """What to say if nothing is grave: the first of the small things, and what is merely possible."""
    if unexplained := _unexplained(trace, result):
        return [unexplained]
    sure = [each for each in result.findings if each.found.confidence != "low" and each.found.saved_ns]
    possible = _possible(result)
    if lacks_causes(trace.source.metadata):
        possible = []  # the first sentence says that causes cannot be told
    if sure:
        sentences = [f"Nothing grave was found; the first of the small things: {within(sure[0].found.title)}."]
        return sentences + [f"Possible: {within(each.found.title)}." for each in possible[:1]]
    if possible:
        return [f"No cause is certain; possible: {within(possible[0].found.title)}."]
    if not type_coverage(trace):
        return []  # nearly all rules are about the device
    whole = "a step" if measure(trace).unit == "step" else "the recording"
    return [f"No rule found a cause that would save as much as 2 % of {whole}."]


def _possible(result: Diagnosis) -> list[Finding]:
    """The findings that would be grave if they were certain."""
    return [each for each in result.findings if each.severity != "info" and not each.found.first]


def _unexplained(trace: Trace, result: Diagnosis) -> str:
    """That the device idles for a good part of the time, but no rule knows why; empty if it does not."""
    idle, whole = idle_in_steps(trace), measure(trace)
    explained = sum(each.saved_ratio or 0 for each in result.findings)
    stacks = bool((trace.events.category == Category.PYTHON_FUNCTION).any())
    for category, what in _UNEXPLAINED.items():
        spent = sum(each.time_of(category) for each in idle)
        if category == GapCategory.OTHER:
            if any(each.found.first for each in result.findings):
                continue  # what is missing is said
            spent -= sum(map(total, late_beginnings(trace)))
        ratio = whole.ratio(spent / max(len(idle), 1) / whole.count)
        if ratio >= HIGH_RATIO and 2 * explained <= ratio:
            lines = "" if stacks or category == GapCategory.OTHER else " (with_stack=True adds lines)"
            if category == GapCategory.OTHER:
                what += unknown_reason(trace)
            text = f"No rule explains most of the {percent(ratio)} in which the GPU {what}"
            return fitting(trace, f"{text}: look at the longest slices of Idle{lines}.")
    return ""


def unknown_reason(trace: Trace) -> str:
    """What is known of idle time for other reasons: whether the next work had been launched, and what the main thread
    did meanwhile, if most of the time is alike."""
    parts = []
    for idle in idle_in_steps(trace):
        chosen = idle.category == GapCategory.OTHER
        parts.append((idle.start[chosen], idle.end[chosen], idle.launch[chosen]))
    start, end, launch = (np.concatenate(column) for column in zip(*parts, strict=True))
    length = end - start
    launched = float(length[launch != NO_ROW].sum() / max(int(length.sum()), 1))
    if launched >= MOST:
        text = " (its next work had been launched; what that waited for is not in the trace)"
    elif launched <= 1 - MOST:
        text = " (the launch of its next work was not recorded)"
    else:
        text = f" ({percent(launched)} of it with the next work launched, else by what is unknown)"
    name, share = _of_host(trace, Intervals(start, end))
    return f"{text}, while the host is {percent(share)} of the time in {name}" if name and share >= 1 - MOST else text


def _of_host(trace: Trace, gaps: Intervals) -> tuple[str, float]:
    """The slice that the main thread is innermost in for most of the gaps, and its share of them; empty if none."""
    lane, segments = main_track(trace), host_segments(trace)
    if lane == NO_TRACK:
        return "", 0.0
    part = segments.of(lane)
    ts, row = segments.ts[part], segments.row[part][:-1].astype(np.int64)
    if not len(row):
        return "", 0.0
    _, which, pieces = clip(gaps, Intervals(ts[:-1], ts[1:]))
    inside = row[which] >= 0
    names = trace.events.name[row[which[inside]]]
    spent = np.bincount(names, (pieces.end - pieces.start)[inside], len(trace.strings))
    most, whole = int(spent.argmax()), max(total(gaps), 1)
    return (short(trace.strings[most]), float(spent[most] / whole)) if spent[most] else ("", 0.0)


_UNEXPLAINED = {
    GapCategory.HOST_WAIT: "waits for the host",
    GapCategory.OTHER: "idles for other reasons",
}


def busy(trace: Trace) -> str:
    """What the devices did in the steps, as shares: ``GPU 93 % busy: …; idle …``. There is GPU work."""
    windows, devices = measure(trace).windows, type_coverage(trace)
    span = int((windows.end - windows.start).sum()) * len(devices)
    parts = dict.fromkeys((*_PARTS, *_IDLE.values(), _LATE), 0)
    for device, idle in zip(devices, idle_in_steps(trace), strict=True):
        for name, (wanted, without) in _PARTS.items():
            parts[name] += int(device.time_within(windows.start, windows.end, any_of=wanted, none_of=without).sum())
        for category, name in _IDLE.items():
            parts[name] += idle.time_of(category)
    parts[_LATE] = sum(map(total, late_beginnings(trace)))
    parts[_IDLE[GapCategory.OTHER]] -= parts[_LATE]
    ratios = {name: ns / max(span, 1) for name, ns in parts.items()}
    working = sum(ratios[name] for name in _PARTS)
    shares = {name: percent(ratio) for name, ratio in ratios.items() if ratio >= TOLD_RATIO}
    whole = "the GPU is" if len(devices) == 1 else f"the {len(devices)} GPUs are"
    done = ", ".join(f"{shares[name]} {name}" for name in _PARTS if name in shares)
    waits = ", ".join(f"{shares[name]} {name}" for name in (*_IDLE.values(), _LATE) if name in shares)
    return (
        f"{_length(trace)} {whole} {percent(working)} busy"
        + (f": {done}" if done else "")
        + (f"; idle {waits}" if waits else "")
        + "."
    )


def _length(trace: Trace) -> str:
    """The time that is spoken of, and why other figures of a step may differ: ``In a step of 15 ms (…)``."""
    whole = measure(trace)
    if whole.unit == "recording":
        return f"Over the whole recording ({time(whole.length_ns)})"
    host_ns = float((whole.windows.finish - whole.windows.begin).mean())
    notes = []
    if whole.warm_up:
        notes.append(f"the mean of {counted(whole.count, 'step')}, without the slow first")
    elif whole.hidden:
        notes.append(f"the mean of {counted(whole.count, 'step')}, without the first, which began in earlier work")
    if abs(host_ns - whole.length_ns) > TOLD_RATIO * whole.length_ns:
        notes.append(f"on the host {time(host_ns)}")
    return f"In a step of {time(whole.length_ns)}" + (f" ({'; '.join(notes)})" if notes else "")


_PARTS = {
    "computing": (COMPUTATION, 0),
    "exposed communication": (COMMUNICATION, COMPUTATION),
    "exposed copies": (MEMORY, COMPUTATION | COMMUNICATION),
}
_IDLE = {
    GapCategory.HOST_WAIT: "waiting for the host",
    GapCategory.KERNEL_WAIT: "between kernels",
    GapCategory.OTHER: "for other reasons",
}
_LATE = "before the first work of a stream"
