"""Does the device idle between the steps of an engine, because the host schedules, samples or answers?

From the last work of a step to the first of the next, the device has nothing to do unless the engine prepares the next
step beforehand. The rule looks at gaps that end with work which was launched too late, and predicts steps in which the
launching thread takes no time in them. The functions of engines that run meanwhile name the cause, where stacks were
recorded. A pause without requests is no step, and not counted; nor are gaps ten times as long as usual, where these are
most of the time and no function of an engine was recorded in them: it may have had no request. Where the thread waits
for requests, the finding is merely possible.

**What to do**: let the engine schedule ahead; take logging, callbacks and large answers out of the loop.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from augment import arrays, facts
from augment.core import Category, Trace, text
from augment.diagnosis import judging, rule, served

NAME = "step_gaps"
LEAST_GAPS, NAMED_RATIO, WAITING_RATIO = 3, 0.1, 0.5
RARE = 10  #: times the median, a gap in which the engine may have no request
_WAITS = "waiting for requests"
#: what engines' functions do: patterns of Python functions (``file(line): function``) and of annotations
_KINDS: tuple[tuple[str, re.Pattern[str]], ...] = (
    (_WAITS, re.compile(r"\): (?:recv_requests|_process_input_queue|zmq_\w*poll|poll|select|sleep)$|^recv_requests")),
    (
        "scheduling",
        re.compile(r"\): (?:schedule|get_next_batch_to_run|get_new_batch_prefill|update_running_batch|_schedule)$"
                   r"|^schedule:|_fetch_new_requests|_prepare_and_schedule_batch"),
    ),
    (
        "answering",
        re.compile(r"\): (?:update_from_output|process_outputs|process_batch_result\w*|stream_output\w*|detokenize\w*"
                   r"|_handle_responses)$|\[Executor\] _handle_responses"),
    ),
    (
        "sampling",
        re.compile(r"\): (?:sample|_sample|sample_tokens|_sample_async|apply_logits_bias|_bookkeeping_sync)$"
                   r"|sampler\.py\(\d+\): forward$|^gpu_model_runner: (?:sample|bookkeep)"),
    ),
    (
        "preparing inputs",
        re.compile(r"\): (?:_prepare_inputs|_update_states|prepare_for_decode|prepare_for_extend|init_new"
                   r"|get_model_worker_batch)$|^gpu_model_runner: preprocess"),
    ),
)  # fmt: skip


class StepGaps(rule.Seen, frozen=True):
    """Idle time between steps."""

    engine: str
    gap_ns: int  #: the mean
    median_gap_ns: int
    parts: list[tuple[str, float]]  #: what the host does meanwhile, and its share of the gaps
    has_stacks: bool
    CURE = "preparing the next step meanwhile"

    def title(self, words: text.Words) -> str:
        doing = text.listed([f"{what} ({text.percent(share)})" for what, share in self.parts])
        why = f", while the host is {doing}" if self.parts else ""
        return f"The {words.gpu} idles {text.time(self.gap_ns)} between two steps{why}"

    def advice(self, words: text.Words) -> str:
        if self.parts and self.parts[0][0] == _WAITS:
            return "The engine waits for requests: send more of them, or look at who sends them"
        lines = "" if self.parts else f"; record with {words.stacks} to see what the host does"
        option = served.option_of("gap", self.engine)
        return f"Let the engine prepare the next step while the {words.gpu} works: {option}{lines}"

    is_of_host = True

    def evidence(self, words: text.Words) -> Sequence[str]:
        slows = ["stacks were recorded: the host is slower than usual"] if self.has_stacks else []
        return [f"{text.time(self.median_gap_ns)} in the median", *slows]


def check(trace: Trace) -> rule.Answer:
    """Predict steps that follow each other at once."""
    if (steady := served.steady_steps(trace)) is None:
        return served.NO_ENGINE
    steps, places = steady
    work, events = facts.gpu.work(trace), trace.events
    if len(steps.gap_ns) < 2:
        return rule.NoData("only one step was recorded", "record several")
    places = places[steps.gap_ns[places] > 0]
    first = steps.first[places + 1]
    launch, start = work.launch[first], work.ts[first] - steps.gap_ns[places]
    launched = np.where(launch != arrays.NO_INDEX, events.ts[launch] + events.dur[launch], start)
    late = launched > start
    if late.sum() < LEAST_GAPS:
        return rule.Fine("the next step's work is launched before a step's ends")
    gaps = arrays.Intervals(start[late], np.minimum(launched, work.ts[first])[late])
    track = events.track[launch[late]]
    stacks = bool((events.category == Category.PYTHON_FUNCTION).any())
    length = gaps.end - gaps.start
    # what the launching threads do in the gaps, by engines' functions: the share of each kind, the largest first
    rows = events.slices_of(Category.PYTHON_FUNCTION, Category.USER_ANNOTATION)
    rows = rows[np.isin(events.track[rows], track)]
    parts = []
    for what, pattern in _KINDS:
        chosen = rows[facts.names.matching(trace, pattern)[events.name[rows]]]
        _, _, inside = arrays.clip(gaps, arrays.union(events.ts[chosen], events.ts[chosen] + events.dur[chosen]))
        parts.append((what, float((inside.end - inside.start).sum()) / max(int(length.sum()), 1)))
    parts = sorted((each for each in parts if each[1] >= NAMED_RATIO), key=lambda each: -each[1])[:3]
    usual = length <= RARE * arrays.median(length)
    if not parts and 2 * length[usual].sum() < length.sum():  # the engine may have had no request
        gaps, length, track = arrays.Intervals(gaps.start[usual], gaps.end[usual]), length[usual], track[usual]
    seen = StepGaps(
        engine=steps.batches[0].engine,
        gap_ns=int(length.sum()) // max(len(length), 1),
        median_gap_ns=int(arrays.median(length)),
        parts=parts,
        has_stacks=stacks,
    )
    waits = bool(parts) and parts[0][0] == _WAITS and parts[0][1] >= WAITING_RATIO
    cut = judging.host_cut(trace, track, gaps.start, gaps.end)
    saved = min(judging.saved_a_step(trace, cut), int(length.sum()) // judging.measure(trace).count)
    spans = rule.Spans(gaps.start, gaps.end, np.full(len(length), -1, np.int64))
    return judging.judged(trace, seen, saved, spans=spans, confidence="low" if waits else "medium", cut=cut)
