"""The verdict: one to five sentences, from what the device did and from the gravest findings."""

from __future__ import annotations

import numpy as np

from augment.derived.gpu.type_coverage import COMMUNICATION, COMPUTATION, MEMORY, type_coverage
from augment.derived.steps.step_idle import step_idle
from augment.derived.waits.gap_causes import GapCategory
from augment.diagnosis.diagnose import Diagnosis, diagnose
from augment.diagnosis.measure import measure
from augment.diagnosis.wording import percent, shorter, time
from augment.trace import Trace, derived

MOST_FINDINGS = 3
TOLD_RATIO = 0.02  #: parts of the time below this are not mentioned


@derived
def verdict(trace: Trace) -> tuple[str, ...]:
    """The sentences."""
    result = diagnose(trace)
    first = [each for each in result.findings if each.found.first]
    grave = [each for each in result.findings if each.severity != "info" and not each.found.first]
    sentences = [f"{each.found.title}." for each in first[:1]]
    sentences.append(busy(trace))
    sentences += [f"{each.found.title}." for each in grave[:MOST_FINDINGS]]
    if not grave:
        sentences.append(_nothing(result))
    elif (saved := result.together_ns) and len(grave) > 1 and len(sentences) < 5:
        sentences.append(f"Without all of this, {shorter(trace, saved)}.")
    return tuple(sentences[:5])


def _nothing(result: Diagnosis) -> str:
    sure = [each for each in result.findings if each.found.confidence != "low" and not each.found.first]
    if sure:
        small = sure[0].found.title
        return f"Nothing grave was found; the first of the small things: {small[:1].lower()}{small[1:]}."
    return "No rule found a cause that would save as much as 2 % of a step."


def busy(trace: Trace) -> str:
    """What the devices did in the steps, as shares: ``GPU 93 % busy: …; idle …``."""
    windows, devices = measure(trace).windows, type_coverage(trace)
    if not devices or not len(windows):
        return "There is no GPU work in this recording: only the host can be judged."
    span = int((windows.end - windows.start).sum()) * len(devices)
    parts = dict.fromkeys((*_PARTS, *_IDLE.values()), 0)
    for place, device in enumerate(devices):
        for name, (wanted, without) in _PARTS.items():
            parts[name] += int(device.time_within(windows.start, windows.end, any_of=wanted, none_of=without).sum())
        idle = step_idle(trace, place, windows)
        for category, name in _IDLE.items():
            parts[name] += int((idle.end - idle.start)[idle.category == category].sum())
    ratios = {name: ns / max(span, 1) for name, ns in parts.items()}
    working = sum(ratios[name] for name in _PARTS)
    shares = {name: percent(ratio) for name, ratio in ratios.items() if ratio >= TOLD_RATIO}
    whole = "the GPU is" if len(devices) == 1 else f"the {len(devices)} GPUs are"
    done = ", ".join(f"{shares[name]} {name}" for name in _PARTS if name in shares)
    waits = ", ".join(f"{shares[name]} {name}" for name in _IDLE.values() if name in shares)
    of = (
        "In a step of " + time(np.int64(measure(trace).length_ns))
        if measure(trace).unit == "step"
        else "Over " + time(measure(trace).length_ns)
    )
    return (
        f"{of} {whole} {percent(working)} busy"
        + (f": {done}" if done else "")
        + (f"; idle {waits}" if waits else "")
        + "."
    )


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
