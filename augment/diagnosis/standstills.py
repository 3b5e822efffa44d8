"""Where a thread of the host stands still in whatever it happens to do, as one that gets no CPU."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np

from augment import arrays, facts
from augment.core import COMPLETE, Category, Trace, derived
from augment.core.source_code import shown_frame
from augment.core.text import short
from augment.diagnosis.first_calls import at_first_calls, cold_operators, loading_calls, waiting_calls
from augment.diagnosis.judging import idle_ns, measure, within_steps
from augment.diagnosis.rule import Spans
from augment.facts.host.occupancy import host_segments, occupants

STILL_NS = 2_000_000  #: schedulers give others some 3 ms and more
USUAL_NS = 100_000  #: what usually takes less, by the median, has not that much to do
LEAST_USUAL = 8  #: stretches of one name that tell what is usual
LEAST_COUNT = 4  #: standstills in what does no work on the CPU, and
LEAST_RATIO = 1 / 3  #: of all that far exceed what is usual, and
LEAST_NAMES = 3  #: different operators that they are in, of which
MOST_OF_ONE = 0.5  #: none has a greater share; below these limits it is a matter of what is done there
SPREAD = 0.5  #: from the first to the last, as a share of the recording: a start-up is over by then
MOST_AROUND, WHOLE = 0.8, 0.9  #: of stretches, in what names them all; of the steps, in what therefore names nothing
_VIEWS = re.compile(
    r"aten::(?:view|_unsafe_view|_reshape_alias|as_strided|t|transpose|permute|expand|select|slice|squeeze|unsqueeze"
    r"|detach|alias|narrow|split|unbind)$"
)
_OTHER_CALLS = re.compile(
    r"Graph|Synchronize|Memcpy|Memset|Query|StreamWait|ElapsedTime|Malloc|Free|Alloc|Module|aclop"
)


@derived(until="diagnosis")
def standstills(trace: Trace) -> Spans:
    """The stretches in which threads that launch stand still while devices idle; none unless there are many, in many
    operators, throughout the recording.

    A stretch, innermost on its thread, is far longer than most of its name. What may do work on the CPU in it,
    sometimes more than usual, is no evidence: only launches, operators that launch, and views are, each but at their
    first call, or where a kernel is loaded.
    If there is enough of it, stretches in other operators and outside of operators count, too.
    """
    spans = Spans.joined([_long_stretches(trace, lane) for lane in facts.critical.launching_tracks(trace)])
    spans = spans.take(np.argsort(spans.start, kind="stable"))
    chosen = arrays.distinct(within_steps(trace, spans.start, spans.end)[0])
    chosen = chosen[2 * idle_ns(trace, spans.take(chosen)) >= (spans.end - spans.start)[chosen]]
    if len(chosen) < LEAST_COUNT:
        return spans.take(chosen[:0])
    # Whether each stretch is in a call that does more than launch, or in what loads kernels at its first call
    row = spans.row[chosen]
    known = np.maximum(row, 0)
    calls = facts.names.matching(trace, _OTHER_CALLS)[trace.events.name[known]] & (
        trace.events.category[known] != Category.CPU_OP
    )
    cold = arrays.is_among(facts.host.innermost(trace, known, (Category.CPU_OP,)), cold_operators(trace))
    waiting_or_loading = np.append(waiting_calls(trace), loading_calls(trace))
    other: arrays.Bools = calls | cold | arrays.is_among(known, waiting_or_loading)
    other |= at_first_calls(trace, known)
    first_or_other = other & (row >= 0)
    spans = spans.take(chosen[~first_or_other])
    # the stretches in launches, in operators that launch, and in views
    launching = arrays.distinct(facts.gpu.work(trace).launch)
    operators = arrays.distinct(facts.host.innermost(trace, launching[launching >= 0], (Category.CPU_OP,)))
    views = facts.names.matching(trace, _VIEWS)[trace.events.name[np.maximum(spans.row, 0)]]
    launches = arrays.is_among(spans.row, launching) | arrays.is_among(spans.row, operators)
    certain = np.flatnonzero((spans.row >= 0) & (launches | views))
    operator = facts.host.innermost(trace, spans.row[certain], (Category.CPU_OP,))
    names = trace.events.name[np.where(operator < 0, spans.row[certain], operator)]
    often = np.bincount(names, minlength=1)
    windows = measure(trace).windows
    few = len(certain) < max(LEAST_COUNT, LEAST_RATIO * len(spans)) or np.count_nonzero(often) < LEAST_NAMES
    if few or often.max() > MOST_OF_ONE * len(certain):
        return spans.take(certain[:0])
    spread = np.ptp(spans.start[certain]) >= SPREAD * (windows.end[-1] - windows.start[0])
    return spans if spread else spans.take(certain[:0])


def _long_stretches(trace: Trace, lane: int) -> Spans:
    """The long stretches of a thread whose name usually takes far less; all outside of operators have one name."""
    segments, part = host_segments(trace), host_segments(trace).of(lane)
    ts, row = segments.ts[part], segments.row[part][:-1].astype(arrays.EventRow)
    took, kind = np.diff(ts), facts.critical.host_kinds(trace, row)
    row = np.where(kind == facts.critical.BoundBy.OUTSIDE_OPERATORS, arrays.NO_INDEX, row)
    whole = arrays.is_any(
        kind,
        (
            facts.critical.BoundBy.CPU_OPERATOR,
            facts.critical.BoundBy.RUNTIME_CALL,
            facts.critical.BoundBy.OUTSIDE_OPERATORS,
        ),
    ) & (took > 0)
    if not (whole & (took >= STILL_NS)).any():
        return Spans.of(trace, row[:0])
    of_name, of_all = np.where(row < 0, len(trace.strings), trace.events.name[row]), np.flatnonzero(whole)
    chosen = of_all[(took[of_all] >= STILL_NS) & usually_short(of_name[of_all], took[of_all])]
    spans = Spans(ts[:-1][chosen], ts[1:][chosen], row[chosen])
    thread = np.full(len(chosen), lane, np.int32)
    in_calls = occupants(trace, (Category.OS_RUNTIME,), spans.start, spans.end, thread).all_ns
    spans = spans.take(np.flatnonzero(2 * in_calls < spans.end - spans.start))  # which waits, or does something
    waits = elsewhere(trace, lane, spans.start, spans.end, spans.row) | (lane != facts.critical.main_track(trace))
    return spans.take(np.flatnonzero((spans.row >= 0) | ~waits))


def usually_short(name: arrays.Int64s, took: arrays.Int64s) -> arrays.Bools:
    """Which stretches have a name whose median is below :data:`USUAL_NS`; none of fewer than :data:`LEAST_USUAL`."""
    count = np.bincount(name, minlength=1)
    less = np.bincount(name[took < USUAL_NS], minlength=len(count))
    usual: arrays.Bools = (2 * less > count) & (count >= LEAST_USUAL)
    for code in np.flatnonzero((2 * less == count) & (count >= LEAST_USUAL)).tolist():  # the median may be less
        usual[code] = arrays.median(took[name == code]) < USUAL_NS
    return usual[name]


def elsewhere(trace: Trace, lane: int, start: arrays.Int64s, end: arrays.Int64s, row: arrays.EventRows) -> arrays.Bools:
    """Whether operators of other threads that launch stretch over half of each stretch that is in no operator, from the
    begin of the first to the end of the last: then it waits for them, as the main thread does for the backward pass."""
    events, others = trace.events, [track for track in facts.critical.launching_tracks(trace) if track != lane]
    rows = events.slices_of(Category.CPU_OP)
    rows = rows[arrays.is_any(events.track[rows], others)]
    ts, until = events.ts[rows], np.maximum.accumulate(events.end[rows])
    first, stop = np.searchsorted(ts, start, side="left"), np.searchsorted(ts, end, side="left")
    some = stop > first
    spread = np.zeros(len(start), np.int64)
    spread[some] = np.minimum(until[stop[some] - 1], end[some]) - ts[first[some]]
    idle = (row < 0) | (events.category[row] != Category.CPU_OP)
    elsewhere: arrays.Bools = idle & (2 * spread > end - start)
    return elsewhere


def system_calls(trace: Trace, spans: Spans) -> Counter[str]:
    """The time, ns, of each call of the operating system that took most of a stretch, on the thread of the stretch;
    empty where none were recorded."""
    thread = np.where(spans.row >= 0, trace.events.track[spans.row], facts.critical.main_track(trace)).astype(np.int32)
    calls = occupants(trace, (Category.OS_RUNTIME,), spans.start, spans.end, thread)
    spent: Counter[str] = Counter()
    for name, ns in zip(calls.name.tolist(), calls.ns.tolist(), strict=True):
        if name >= 0:
            spent[short(trace.strings[name])] += ns
    return spent


def names_of(trace: Trace, rows: arrays.EventRows, ns: arrays.Int64s) -> list[str]:
    """What stretches of ``ns`` are in, longest first, but for what takes less than a tenth of the longest; empty: in
    nothing that was recorded. A step is no name; some profilers record it as an operator."""
    spent: Counter[str] = Counter()
    for row, part in zip(rows.tolist(), ns.tolist(), strict=True):
        name = trace.strings[trace.events.name[row]] if row >= 0 else ""
        spent["" if name.startswith(facts.names.STEP) else shown_frame(name)] += part
    most = max(spent.values(), default=0)
    return [name for name, ns in spent.most_common() if 10 * ns >= most]


def frame_around(trace: Trace, rows: arrays.EventRows, ns: arrays.Int64s) -> str:
    """The name of the innermost frame, annotation or operator that holds most of the time of stretches of ``ns``, each
    directly in one of ``rows``; empty if nothing does but what holds almost everything, such as a step."""
    events, stacks = trace.events, facts.host.stacks(trace)
    inside = np.flatnonzero(rows >= 0)
    place = stacks.place_of[rows[inside]]
    pairs = []  # a stretch, and what is around it
    while len(inside := inside[place >= 0]):  # one round per level of nesting
        place = place[place >= 0]
        pairs.append((inside, place))
        place = stacks.parent[place]
    if not pairs or int(np.argmax(ns)) not in pairs[0][0]:
        return ""
    stretch, around = map(np.concatenate, zip(*pairs, strict=True))
    name = events.name[stacks.row[around]]
    _, first = np.unique(np.stack((stretch, name)), axis=1, return_index=True)  # a function may call itself
    held = np.bincount(name[first], ns[stretch[first]], len(trace.strings))
    names = name[stretch == np.argmax(ns)]  # of the longest, from the innermost
    most = names[held[names] >= MOST_AROUND * ns.sum()][:1]
    if not len(most) or trace.strings[int(most[0])].startswith(facts.names.STEP):
        return ""
    slices, windows = np.flatnonzero((events.phase == COMPLETE) & (events.name == most[0])), measure(trace).windows
    parts = within_steps(trace, events.ts[slices], events.ts[slices] + events.dur[slices])[1]
    steps_ns = arrays.total(arrays.union(windows.begin, windows.finish))
    whole = arrays.total(arrays.union(parts.start, parts.end)) >= WHOLE * steps_ns
    return "" if whole else shown_frame(trace.strings[int(most[0])])
