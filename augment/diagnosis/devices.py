"""What findings call the device of a trace, and its vendor's tools."""

from __future__ import annotations

from augment.arrays import EventRows, Int32s, distinct
from augment.core import GPU_WORK, LAUNCHES, Category, Trace, derived
from augment.core.text import Words, words_of
from augment.diagnosis.judging import measure


@derived
def vendor(trace: Trace) -> str:
    """``amd``, ``ascend``, ``mtia``, or ``nvidia``, which also stands for unknown ones.

    Names of devices tell it, but of MTIA's, which have code names; else those of calls.
    """
    events = trace.events
    if any(name.lower().startswith("mtia") for name in _used(trace, events.category_name[:])):
        return "mtia"
    names = " ".join(name or "" for _, name in trace.source.devices).lower()
    if any(word in names for word in ("amd", "instinct", "radeon")):
        return "amd"
    if names.strip():
        return "ascend" if "ascend" in names else "nvidia"
    calls = _used(trace, events.name[events.slices_of(*LAUNCHES)])
    if any(name.startswith("AscendCL@") for name in calls) or _on_ascend(trace):
        return "ascend"
    return "amd" if any(name.startswith("hip") for name in calls) else "nvidia"


def _on_ascend(trace: Trace) -> bool:
    tracks = distinct(trace.events.track[trace.events.slices_of(Category.KERNEL)]).tolist()
    return any(trace.tracks[track].process_name == "Ascend Hardware" for track in tracks)


def _used(trace: Trace, codes: Int32s) -> list[str]:
    """The strings of the trace that ``codes`` stand for, each once."""
    return [trace.strings[code] for code in distinct(codes).tolist()]


@derived
def words(trace: Trace) -> Words:
    """The words for the trace's device, and for figures of its steady steps."""
    whole = measure(trace)
    return words_of(vendor(trace), whole.unit, whole.length_ns, trace.source.metadata.get("recorder"))


def known_slices(trace: Trace) -> EventRows:
    """The rows of slices that rules know: of PyTorch's profiler, on the host or on a device."""
    return trace.events.slices_of(*LAUNCHES, *GPU_WORK, Category.CPU_OP, Category.USER_ANNOTATION)


def has_work(trace: Trace) -> bool:
    """Whether the trace has slices that rules know."""
    return len(known_slices(trace)) > 0
