"""How findings and answers become text, for whatever shows them: titles, advice and evidence, in the words of a run:
what findings call the device, and its vendor's tools.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from augment.arrays import EventRows, Int32s, distinct
from augment.core import GPU_WORK, LAUNCHES, ON_DEVICE, Category, Trace, derived
from augment.core.text import Words, capitalized, device_label, percent, words_of
from augment.diagnosis.judging import measure
from augment.diagnosis.rule import Answer, Finding, Fine, Found
from augment.facts.names import matching

#: by the name of the rule, where that says too little
HEADINGS = {
    "allocator_calls": "Memory requested from the driver",
    "clock_drop": "Unsteady clock",
    "data_loading": "Waiting for batches",
    "disturbed_device": "Kernels take many times as long at times",
    "eager_decodes": "Decodes without graphs",
    "elementwise_chains": "Chains of elementwise kernels",
    "graph_capture": "Capturing graphs",
    "graph_padding": "Padded decodes",
    "host_gaps": "Stalls of the host",
    "late_gathers": "Late gathers of parameters",
    "launch_bound": "The host launches too late",
    "long_calls": "Long runtime calls",
    "low_roofline": "Far below the roofline",
    "matrix_units": "Matrix units are not used",
    "memory_capacity": "Memory",
    "pageable_copies": "Copies of pageable memory",
    "partial_recording": "Not all was recorded",
    "prefill_stalls": "Prompts hold up decodes",
    "profiler_overhead": "The profiler's own time",
    "slow_start": "Slow first step",
    "small_collectives": "Many small collectives",
    "starved_host": "The host gets no CPU",
    "step_gaps": "Gaps between steps",
    "step_outliers": "Outlying steps",
    "straggling_rank": "Late rank",
    "stream_contention": "Streams slow each other down",
    "wide_norms": "Norms in FP32",
    "written_attention": "Attention without a fused kernel",
}


def heading(rule: str, figures: Mapping[str, Any] | None = None) -> str:
    """``Waiting for batches``; the words of the name where these say it. Of long calls, what these ``figures`` say."""
    if figures and rule == "long_calls" and any("Compile" in name for name, _ in figures["calls"][:1]):
        return "Operators are compiled at run time"  # Ascend's, one by one
    if figures and rule == "long_calls" and figures.get("is_loading"):
        return "Kernels are loaded at their first use"
    return HEADINGS.get(rule) or rule.replace("_", " ").capitalize()


def saves(ratio: float | None, confidence: str, at_most: bool, at_least: bool, whole: str = "") -> str:
    """What a cure saves of a step, not of the time that is drawn; what is merely possible ``may save``."""
    verb = "may save" if confidence == "low" else "saves"
    bound = " up to" if at_most else " at least" if at_least else ""
    return "" if ratio is None else f" (a fix {verb}{bound} {percent(ratio)}{whole})"


def title(words: Words, finding: Finding) -> str:
    """What was found, and what its cure would save: ``…. Hiding it would save up to 3.8 ms per step (8.8 %)``."""
    answer = finding.found
    text = answer.seen.title(words)
    if answer.saved_ns is None:
        return text
    cure = capitalized(answer.seen.cure(words)) + " on all ranks" * answer.on_all
    if not answer.saved_ns:
        beyond = f", {answer.beyond}" * bool(answer.beyond)
        return f"{text}. {cure} would save nothing{beyond}"
    saving = words.saving(answer.saved_ns)
    bound = "up to " if answer.at_most else "at least " if answer.at_least else ""
    once = "" if answer.in_step is None else f", nearly all of it in step {answer.in_step}"
    limit = f", {answer.beyond}" * bool(answer.beyond)
    limit = limit or LIMITS["hidden" if finding.is_hidden else finding.limit or "none"]
    return f"{text}. {cure} would save {bound}{saving}{once}{limit}"


#: what then decides; ``hidden``: GPU work hides the host today
LIMITS = {
    "none": "",
    "hidden": "; then the host is the limit, which kernels hide today",
    "host": "; then the host is the limit",
    "computing": "; then computing is the limit",
    "communication": "; then communication is the limit",
    "copies": "; then copies are the limit",
    "batches": "; then late batches are the limit",
}


def answer_text(words: Words, answer: Answer) -> str:
    """What a rule says that found nothing; of a finding its title without the saving."""
    if isinstance(answer, Found):
        return answer.seen.title(words)
    if not isinstance(answer, Fine):
        return words.fill(answer.why)
    return words.fill(answer.seen) if isinstance(answer.seen, str) else answer.seen.fine(words, answer.saved_ns)


def track_of(trace: Trace, row: int) -> str:
    """The name of the thread or stream of a row; empty for row -1."""
    if row < 0:
        return ""
    track = trace.tracks[trace.events.track[row]]
    if trace.events.category[row] in ON_DEVICE:
        is_only = len({each.device for each in trace.tracks} - {None}) == 1
        device = device_label(words_of(vendor(trace)).gpu, track.device, is_only)
        return f"{device} stream {track.stream}"
    return (track.thread_name or f"thread {track.tid}").removesuffix(" ()")  # Kineto's, of one without a name


#: in names of kernels, ranges, threads and processes: a program of PyTorch, or one in Python, which may be
_TORCH = re.compile(r"\bat(?:en)?::|2at6native|c10::|torch|python|\bpt_|triton", re.IGNORECASE)

_DEVICES = {"amd": "amd", "instinct": "amd", "radeon": "amd", "ascend": "ascend", "intel": "intel"}
_CALLS = {"AscendCL@": "ascend", "hip": "amd", "ur": "intel", "ze": "intel"}  #: beginnings of names of calls


@derived
def vendor(trace: Trace) -> str:
    """``amd``, ``ascend``, ``intel``, ``mtia``, or ``nvidia``, which also stands for unknown ones.

    Names of devices tell it, but of MTIA's, which have code names; else those of calls.
    """
    events = trace.events
    if any(name.lower().startswith("mtia") for name in _used(trace, events.category_name[:])):
        return "mtia"
    names = " ".join(name or "" for _, name in trace.source.devices).lower()
    if names.strip():
        return next((vendor for word, vendor in _DEVICES.items() if word in names), "nvidia")
    tracks = distinct(events.track[events.slices_of(Category.KERNEL)]).tolist()
    if any(trace.tracks[track].process_name == "Ascend Hardware" for track in tracks):
        return "ascend"
    calls = tuple(_used(trace, events.name[events.slices_of(*LAUNCHES)]))
    return next((vendor for start, vendor in _CALLS.items() if any(name.startswith(start) for name in calls)), "nvidia")


def _used(trace: Trace, codes: Int32s) -> list[str]:
    """The strings of the trace that ``codes`` stand for, each once."""
    return [trace.strings[code] for code in distinct(codes).tolist()]


@derived
def words(trace: Trace) -> Words:
    """The words for the trace's device, and for figures of its steady steps."""
    whole, recorder = measure(trace), trace.source.metadata.get("recorder")
    programs = {name for track in trace.tracks for name in (track.process_name, track.thread_name) if name}
    is_torch = recorder is None or bool(matching(trace, _TORCH).any()) or any(map(_TORCH.search, programs))
    return words_of(vendor(trace), whole.unit, whole.length_ns, recorder, is_torch=is_torch, steps=whole.count)


def known_slices(trace: Trace) -> EventRows:
    """The rows of slices that rules know: of PyTorch's profiler, on the host or on a device."""
    return trace.events.slices_of(*LAUNCHES, *GPU_WORK, Category.CPU_OP, Category.USER_ANNOTATION)
