"""How findings say numbers, names and places."""

from __future__ import annotations

from collections.abc import Sequence

from augment import units
from augment.diagnosis.measure import measure
from augment.trace import ON_DEVICE, Trace

LONGEST_NAME = 60


def time(ns: float) -> str:
    """``3.1 ms``: two digits, or as many as there are before the point."""
    return units.rounded(ns, units.TIMES)


def size(count: float) -> str:
    """``25 MB``."""
    return units.rounded(count, units.SIZES)


def percent(ratio: float) -> str:
    """``12 %``; one digit after the point below 10 %."""
    return f"{100 * ratio:.0f} %" if abs(ratio) >= 0.0995 else f"{100 * ratio:.1f} %"


def count(number: float, noun: str, nouns: str = "") -> str:
    """``1 call``, ``12 calls``, ``2.5 calls``; ``nouns`` where an s does not do."""
    return units.counted(number, noun, nouns)


def short(name: str) -> str:
    """A name that fits a sentence."""
    name = " ".join(name.split())
    return name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "…"


def a_step(trace: Trace) -> str:
    """``per step``, or ``in the recording``."""
    return "per step" if measure(trace).unit == "step" else "in the recording"


def shorter(trace: Trace, saved_ns: int) -> str:
    """``a step would be 3.1 ms (12 %) shorter``."""
    whole = measure(trace)
    return f"{_A[whole.unit]} would be {time(saved_ns)} ({percent(whole.ratio(saved_ns))}) shorter"


def of_a_step(trace: Trace, ns: float) -> str:
    """``2.3 % of a step``."""
    whole = measure(trace)
    return f"{percent(whole.ratio(ns))} of {_A[whole.unit]}"


def track_of(trace: Trace, row: int) -> str:
    """The name of the thread or stream of a row; empty for row -1."""
    if row < 0:
        return ""
    track = trace.tracks[trace.events.track[row]]
    if trace.events.category[row] in ON_DEVICE:
        return f"GPU {track.device} stream {track.stream}"
    return track.thread_name or f"thread {track.tid}"


def within(sentence: str) -> str:
    """A sentence as part of another: with a small first letter, unless it begins with an abbreviation or a number."""
    return sentence[:1].lower() + sentence[1:] if sentence[1:2].islower() else sentence


def listed(names: Sequence[str], most: int = 3) -> str:
    """``a, b and c``; of more than ``most``, the first and how many more."""
    shown = [*names[:most], *([f"{len(names) - most} more"] if len(names) > most else [])]
    return " and ".join(filter(None, (", ".join(shown[:-1]), shown[-1]))) if shown else ""


def called_from(lines: Sequence[str]) -> str:
    """`` (called from a and b)``, to end an advice with; empty without ``lines``."""
    return f" (called from {listed(lines)})" if lines else ""


_A = {"step": "a step", "recording": "the recording"}
