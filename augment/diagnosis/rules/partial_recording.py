"""Is the recording whole?

A file may end in the middle, as when a job was killed while it wrote. Then only steps are judged that are known to be
whole: all their launches are in the file, what these launched, and launches after the step. ``augment cut`` makes files
that are parts of a recording; where it left out events that causes rest on, such as launches, nothing is certain. And a
recording that begins while the device still works on earlier steps shows work of which the cause is missing, or lacks
this work although its time passes: then the first work of a stream begins long after its launch had returned. Without
steps, what comes before the first work of all counts for nothing. Where work begins late again and again, nothing
earlier is missing: something else holds the device up, such as another process that uses it. That counts where an idle
device does not begin the only work that is queued, or the next kernel of a stream whose waits would be recorded, for
0.2 ms and more, no recorded wait of the stream explains it, and other work begins at once. Recordings also lose events:
if more than 5 % of the launches outside of captures lack their kernel, the device only seems to wait; so it does
where it idles within single graphs for more than 5 % of a step, 20 µs and more at a time; then 1 ms and more before the
first recorded work of a graph whose launch had returned counts, too. If these are the
last launches, the profiler stopped before the device had run their kernels. If no launch has its kernel, the device was
not recorded at all (another profiler may have held it, or the profiler's options leave it out): only the host is judged
then. Fewer than 16 pieces of GPU work are an excerpt, of which nothing usual can be told. Then no cause has more than
low confidence; of an excerpt, the verdict names the likeliest all the same, and says from how many pieces. Where within
a backward pass hardly an operator or a collective of the host is recorded, autograd's functions nowhere, and its own
thread launches nothing, another thread ran it.

**What to do**: let the profiler finish (``prof.stop()``, or leave its ``with`` block) before the process ends. Give the
schedule a ``warmup`` step, or call ``torch.cuda.synchronize()`` before the recording begins, and before it ends.
"""

from __future__ import annotations

import re
from typing import Literal

import numpy as np

from augment import arrays, facts
from augment.core import COMPLETE, LAUNCHES, Category, Trace, text
from augment.diagnosis import judging, rule
from augment.diagnosis import recording_completeness as recording

NAME = "partial_recording"
MOST_UNKNOWN = 0.8  #: share of the backward pass without an operator, from which on its thread is not recorded
_BACKWARD = re.compile(r"^(?:## backward ##|torch/(?:autograd/__init__|_tensor)\.py\(\d+\): backward)$")
MOST_EARLY = 0.10  #: share of the GPU's work that may have been launched before the recording

Problem = Literal[
    "truncated",
    "cut_without_causes",
    "cut",
    "cut_with_earlier_work",
    "ends_early",
    "lost_kernels",
    "idle_in_graphs",
    "no_work",
    "held_up",
    "late_first_work",
    "excerpt",
    "no_launches",
    "earlier_work",
    "backward",
]
_TITLES: dict[Problem, str] = {
    "truncated": "The file is cut off ({what}): {steps}",
    "cut_without_causes": "The file is a part of a recording ({what}), made by augment cut: too little is left to tell "
    "causes",
    "cut": "The file is a part of a recording ({what}), made by augment cut",
    "cut_with_earlier_work": "The file is a part of a recording ({what}), made by augment cut: {ratio} of the {gpu}'s "
    "work was launched earlier",
    "ends_early": "The recording ends before the {gpu} ran the last {ratio} of the kernels that were launched: the "
    "idle time at its end is not real",
    "lost_kernels": "{ratio} of the kernels that were launched are missing from the recording: part of the idle "
    "time is not real",
    "idle_in_graphs": "The {gpu} stands still for {ratio} of {a_step} while {graphs} that were launched should run: "
    "either the profiler lost kernels of them, or another process uses the {gpu}",
    "no_work": "No {gpu} work was recorded, only the launches of {count}",
    "held_up": "The {gpu} begins work up to {time} later than it could, {count}: something outside the file holds it "
    "up",
    "late_first_work": "The first work of a stream was queued for {time} while the file shows an idle {gpu}: it "
    "probably lacks earlier work",
    "excerpt": "Only {count} of {gpu} work: too few to tell what is typical",
    "no_launches": "{ratio} of the {gpu}'s work has no launch in the recording: what it waited for is unknown",
    "earlier_work": "{ratio} of the {gpu}'s work was launched before the recording began, so its causes are unknown",
    "backward": "The backward pass ran on a thread that was not recorded: what it computes in {ratio} of {a_step} is "
    "unknown",
}
_ADVICE: dict[Problem, str] = {
    "truncated": "Copy the file again if it was whole; else record again, and let the profiler stop before the process "
    "ends",
    **dict.fromkeys(
        ("cut_without_causes", "cut", "cut_with_earlier_work"),
        "This part may not be typical: diagnose the whole recording, too",
    ),
    "ends_early": "Call {torch}.synchronize() before the recording ends, so that all work is in it",
    "lost_kernels": "Record fewer steps, or without stacks and shapes: profilers lose events when their buffers are "
    "full",
    "idle_in_graphs": "Record again without {graphs}, or with a newer profiler: some lose work of graphs; see whether "
    "other processes use this {gpu} ({process_tool})",
    "no_work": "Record with {kernels}",
    "held_up": "See whether other processes use this {gpu} ({process_tool}): they take turns. An idle device may "
    "also need time to wake up, and under Windows and WSL the driver may hold launches back to submit several at once",
    "late_first_work": "Record whole steps: {warmup}, and do not cut between a launch and its work",
    "excerpt": "Record several whole steps",
    "no_launches": "Record with {calls}; some devices never record launches",
    "earlier_work": "Synchronize before the recording begins, or {warmup}",
    "backward": "Record all threads: torch.profiler's experimental_config, with "
    "torch._C._profiler._ExperimentalConfig(profile_all_threads=True)",
}


class PartialRecording(rule.Seen, frozen=True):
    """What is missing from the recording, or looks like it."""

    problem: Problem
    what: str = ""  #: why the file is not whole, or which part it is
    work_ratio: float | None = None  #: the share of the work, or of the launched kernels, that is concerned
    late_ns: int | None = None  #: how late work begins
    count: int | None = None  #: of late beginnings, of pieces of work, or of steps begun in a file that is cut off
    whole_count: int | None = None  #: of those steps, the ones known to be whole

    def title(self, words: text.Words) -> str:
        noun = {"held_up": "time", "no_work": "kernel"}.get(self.problem, "piece")
        return words.fill(
            _TITLES[self.problem],
            what=self.what,
            ratio=text.percent(self.work_ratio or 0.0),
            time=text.time(self.late_ns or 0),
            count=text.counted(self.count or 0, noun),
            steps=self._steps,
            a_step=words.a_step,
        )

    @property
    def _steps(self) -> str:
        if not self.whole_count:
            return "no step in it is known to be complete, so nothing is judged"
        whole = f"{self.whole_count} of {text.counted(self.count or 0, 'step')}"
        return f"{whole} {'is' if self.whole_count == 1 else 'are'} known to be whole, and judged"

    def advice(self, words: text.Words) -> str:
        return words.fill(_ADVICE[self.problem])


def check(trace: Trace) -> rule.Answer:
    """Ask the reader, and count the work launched before the recording."""
    if trace.partial is not None:
        whole = len(facts.steps.recorded_windows(trace))
        seen = PartialRecording("truncated", trace.partial, count=len(facts.steps.recorded(trace)), whole_count=whole)
        return _all(trace, seen)
    early = facts.gpu.before_recording(trace)
    ratio = recording.share_of_work(trace, early)
    if part := facts.source.cut_text(trace.source.metadata):
        if facts.source.lacks_causes(trace.source.metadata):
            return _all(trace, PartialRecording("cut_without_causes", part))
        if ratio >= MOST_EARLY:
            return _all(trace, PartialRecording("cut_with_earlier_work", part, ratio), severity="info")
        return _all(trace, PartialRecording("cut", part), severity="info")
    if (lost := recording.lost_ratio(trace)) > recording.MOST_LOST:
        why: Problem = "ends_early" if recording.ends_early(trace) else "lost_kernels"
        return _all(trace, PartialRecording(why, work_ratio=lost))
    if not len(facts.gpu.work(trace)) and (launched := len(recording.kernel_launches(trace))):
        return _all(trace, PartialRecording("no_work", count=launched))
    if not len(facts.gpu.work(trace)) and not len(facts.host.operator_calls(trace).row):
        return rule.NotApplicable("neither {gpu} work nor operators were recorded")
    if answer := _late(trace):
        return answer
    if (ratio_in_graphs := recording.idle_ratio_in_graphs(trace)) > recording.MOST_IN_GRAPHS:
        gaps = recording.idle_in_graphs(trace)
        spans = rule.Spans(gaps.start, gaps.end, np.full(len(gaps.start), -1, np.int64))
        seen = PartialRecording("idle_in_graphs", work_ratio=ratio_in_graphs)
        return rule.Found(seen, spans, "medium", severity="warning", first=True)
    if recording.is_excerpt(trace):
        return _all(trace, PartialRecording("excerpt", count=len(facts.gpu.work(trace))), "info")
    if (unlaunched := recording.unlaunched_ratio(trace)) > recording.MOST_UNLAUNCHED:
        return _all(trace, PartialRecording("no_launches", work_ratio=unlaunched), severity="info")
    if ratio < MOST_EARLY:
        before = f", but for {text.percent(ratio)} of the {{gpu}}'s work, which was launched before it"
        return _backward(trace) or rule.Fine(f"the recording is whole{before if ratio >= text.LEAST_SHARE else ''}")
    seen = PartialRecording("earlier_work", work_ratio=ratio)
    spans = rule.Spans.of(trace, facts.gpu.work(trace).row[early])
    return rule.Found(seen, spans, "high", severity="info", of_recording=True)


def _all(trace: Trace, seen: PartialRecording, severity: rule.Severity = "warning") -> rule.Found:
    """What is said of all the recording, in most cases first, as it puts all else in doubt."""
    first = seen.problem not in ("no_work", "excerpt")
    return rule.Found(seen, _whole(trace), "high", severity=severity, first=first, of_recording=not first)


def _late(trace: Trace) -> rule.Found | None:
    """What is to be said if a device is idle for long although work was launched: before the first work of a stream, or
    again and again."""
    device, late = recording.late_device(trace), recording.held_up(trace)
    if late is not None:
        seen = PartialRecording("held_up", late_ns=int((late.end - late.start).max()), count=len(late.start))
    elif device is not None:
        late = judging.late_beginnings(trace)[device]
        seen = PartialRecording("late_first_work", late_ns=arrays.total(late))
    else:
        return None
    spans = rule.Spans(late.start, late.end, np.full(len(late.start), -1, np.int64))
    return rule.Found(seen, spans, "medium", severity="warning", first=True)


def _backward(trace: Trace) -> rule.Found | None:
    """What is to be said if hardly anything of the host is recorded while a pass is said to go backward."""
    events, whole = trace.events, judging.measure(trace)
    around, of_backward = (Category.USER_ANNOTATION, Category.PYTHON_FUNCTION), facts.names.matching(trace, _BACKWARD)
    if not of_backward.any():
        return None
    rows = events.slices_of(*around)
    rows = rows[of_backward.take(events.name[rows])]
    calls = events.slices_of(*LAUNCHES)
    if (facts.host.innermost(trace, calls, around, of_backward) >= 0).any():
        return None  # its own thread works, as with graphs that hold the pass
    operators, collectives = events.slices_of(Category.CPU_OP), facts.collectives.host_collectives(trace)
    if facts.names.starting(trace, "autograd::engine::")[events.name[operators]].any():
        return None  # threads that run autograd's functions are recorded
    known = rule.Spans.of(trace, np.concatenate((operators, collectives.row)))
    _, parts = judging.within_steps(trace, events.ts[rows], events.end[rows])
    passes = arrays.union(parts.start, parts.end)
    unknown = arrays.subtract(passes, arrays.union(known.start, known.end))
    ratio = whole.ratio(arrays.total(unknown) / whole.count)
    if ratio < MOST_EARLY or arrays.total(unknown) < MOST_UNKNOWN * arrays.total(passes):
        return None
    seen = PartialRecording("backward", work_ratio=ratio)
    return rule.Found(seen, rule.Spans.of(trace, rows), "medium", severity="info", of_recording=True)


def _whole(trace: Trace) -> rule.Spans:
    """The time from the first event to the end of the last, or the period that was cut out."""
    events = trace.events
    if not len(events):
        return rule.NOWHERE
    last = int((events.ts + np.where(events.phase == COMPLETE, np.maximum(events.dur, 0), 0)).max())
    start, end = facts.source.limits_of(trace.source.metadata) or (int(events.ts[0]), last)
    start, end = max(start, int(events.ts[0])), min(end, last)
    return rule.Spans(np.array([start], np.int64), np.array([end], np.int64), np.full(1, -1, arrays.EventRow))
