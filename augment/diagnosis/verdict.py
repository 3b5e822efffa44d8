"""The verdict: one to six sentences, from what the device did and from the gravest findings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import get_args

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from augment import arrays, facts
from augment.arrays import NO_INDEX, OUTLIER, EventRows, Intervals, clip, median, robust_z, sums, total, union
from augment.core import LAUNCHES, Category, Trace, derived
from augment.core.text import OPEN_TRACE, Words, counted, listed, percent, period, short, time
from augment.diagnosis import judging
from augment.diagnosis.host_alone import host_sentence
from augment.diagnosis.host_causes import beside_workers_ns
from augment.diagnosis.ranking import COMPARED, RankedFindings, diagnose, limit_of
from augment.diagnosis.recording_completeness import MIGRATES, held_up, is_excerpt
from augment.diagnosis.rule import CLEARLY_LESS, HIGH_RATIO, LEAST_RATIO, WARNING_RATIO, Finding, Fine, Limit
from augment.diagnosis.rules import cold_start, eager_decodes, graph_capture, host_gaps, small_grids, step_outliers
from augment.diagnosis.rules.exposed_communication import ExposedCommunication
from augment.diagnosis.rules.long_calls import NAME as LONG_CALLS
from augment.diagnosis.served import served_sentence, unknown_bandwidth
from augment.diagnosis.wording import LIMITS, heading, title, words

MOST_FINDINGS = 3
OVERLAP = 1.05  #: savings whose sum exceeds what they save together by so much are said to overlap
MOST = 0.8  #: share of unexplained time that is alike, to say so
MOST_ANNOTATIONS, LEAST_SHARE = 50, 0.6  #: looked at, of most time; of idle time in one that is named
TOLD_RATIO, LARGE = 0.02, 0.2  #: parts of the time below are not mentioned; from there on, have a sentence
LEAST_PART = 0.005  #: the same of the work, whose parts are to add up


class Sentence(Struct, frozen=True):
    """A sentence of the verdict: of the ``state`` of the devices, or about findings of ``rules``."""

    text: str
    rules: tuple[str, ...] = ()
    is_state: bool = False
    is_title: bool = False  #: of a finding, and nothing else
    is_nothing: bool = False  #: no rule found anything
    is_unexplained: bool = False  #: a good part of the time is idle, and no rule knows why


def verdict(trace: Trace) -> tuple[str, ...]:
    """The sentences."""
    return tuple(sentence.text for sentence in sentences(trace))


def headline(trace: Trace, labels: Mapping[str, str]) -> str:
    """The verdict for a slice, of which a screen shows some 130 characters: what is wrong before what is usual. The
    first sentence about a rule follows its label, if it has one, and that about idle time without a cause says so."""
    ordered = sorted(sentences(trace), key=lambda sentence: sentence.is_state)
    has_finding, unsaid, parts = any(sentence.is_title for sentence in ordered), {**labels}, list[str]()
    for sentence in ordered if has_finding else sentences(trace):
        before = [unsaid.pop(rule) for rule in sentence.rules if rule in unsaid]
        before += ["Idle time"] * sentence.is_unexplained
        parts.append(f"{'; '.join(before)}: {sentence.text}" if before else sentence.text)
    return " ".join(parts)


def named(trace: Trace) -> frozenset[str]:
    """The rules whose findings the verdict says."""
    return frozenset(rule for sentence in sentences(trace) for rule in sentence.rules)


@derived
def sentences(trace: Trace) -> tuple[Sentence, ...]:
    """The verdict's sentences, at most six."""
    result, say = diagnose(trace), words(trace)
    first = [each for each in result.findings if each.found.first]
    grave = [each for each in _possible(result) if each.is_grave]
    stated = tuple(each.rule for each in result.findings if each.is_grave and each.found.of_recording)
    few = is_excerpt(trace) and not first
    said = first[:1]
    if few and not _possible(result):
        said = [each for each in result.findings if each.found.of_recording]
    chosen = grave[: MOST_FINDINGS - len(first[:1])]
    made = [_of_finding(say, each) for each in said]
    if trace.partial is None or not judging.measure(trace).is_empty:
        # What the devices did, or the host where it is alone
        alone = not facts.gpu.coverage(trace) or not len(judging.measure(trace).windows)
        if not alone and (served := served_sentence(trace)):
            made.append(Sentence(served, is_state=True))
        state = host_sentence(trace, words(trace)) if alone else busy(trace)
        made.append(Sentence(state, stated, is_state=True))
    several = sum(bool(each.found.saved_ns) for each in chosen) > 1  # of which each is a limit beside the others
    made += [_of_finding(say, replace(each, limit=None, is_hidden=False) if several else each) for each in chosen]
    possible: list[Sentence] = []
    if few and _possible(result):
        likeliest = _possible(result)[0]
        pieces = counted(len(facts.gpu.work(trace)), "piece")
        text = f"Only {pieces} of {say.gpu} work, so this is merely possible: {title(say, likeliest)}."
        made.append(Sentence(text, (likeliest.rule,)))
    elif trace.partial is not None and judging.measure(trace).is_empty:
        return tuple(made)
    elif {each.rule for each in first} & {cold_start.NAME, graph_capture.NAME}:
        return tuple(made)  # what the run does is not in the recording
    elif not grave:
        made += _nothing(trace, result)
        if (
            not any(at.is_nothing or at.is_unexplained for at in made)
            and (largest := _largest_kernel(trace))[1] >= LARGE
        ):
            made.append(Sentence(largest[0]))
    else:
        most = max(each.found.saved_ns or 0 for each in grave)
        unsure = [each for each in _possible(result) if not each.is_grave]
        more = [each for each in unsure if each.found.saved_ns is None or each.found.saved_ns > most]
        possible = [Sentence(f"Possible: {title(say, each)}.", (each.rule,)) for each in more[:1]]
        unexplained, ratio = _unexplained(trace, result)
        if unexplained and ratio > (chosen[0].saved_ratio or 1):  # what is largest comes first
            made.insert(len(made) - len(chosen), Sentence(unexplained, is_unexplained=True))
        elif unexplained:
            made, possible = [*made, *possible, Sentence(unexplained, is_unexplained=True)], []
    made += [*_together(trace, result, chosen), *possible]
    if lacking := unknown_bandwidth(trace):
        made.append(Sentence(lacking))
    hidden, slow_host = result.answers["exposed_communication"], any(each.found.seen.is_of_host for each in grave)
    if slow_host and isinstance(hidden, Fine) and isinstance(seen := hidden.seen, ExposedCommunication):
        text = f"{seen.fine(say, hidden.saved_ns)}."  # without a slow host late ranks may be what it waits for
        made += [Sentence(text, ("exposed_communication",))] * (say.ratio(seen.exposed_ns) >= HIGH_RATIO)
    return tuple(made[:6])


def _of_finding(say: Words, finding: Finding) -> Sentence:
    lead = "Possible: " if finding.found.confidence == "low" else ""
    return Sentence(f"{lead}{title(say, finding)}.", (finding.rule,), is_title=True)


#: rules whose savings no part of the steps accounts for, and that do not speak of other ranks
_OF_NO_RANK = {step_outliers.NAME, eager_decodes.NAME}


def _together(trace: Trace, result: RankedFindings, chosen: Sequence[Finding]) -> list[Sentence]:
    """What the named findings would save together, and what comes next, as far as that is known."""
    saving = [each for each in chosen if each.found.saved_ns]
    apart = [each.rule for each in saving if each.found.cut is None]
    known = [each for each in saving if each.found.cut is not None]
    cut = facts.critical.joined([each.found.cut for each in known if each.found.cut is not None])
    saved, rules = judging.saved_a_step(trace, cut), tuple(each.rule for each in chosen)
    overlapping = "These savings overlap; do not add them."
    made = [Sentence(overlapping, rules)] if len(known) < 2 <= len(saving) else []
    if len(known) > 1:
        parts = sum(each.found.saved_ns or 0 for each in known)
        alone = apart and {*apart} <= _OF_NO_RANK
        some = f" except {listed([heading(rule).lower() for rule in apart])}" if alone else ""
        some = " except what other ranks decide" if apart and not alone else some
        more = ", more than their sum: once one is fixed, the others save more" * (OVERLAP * parts < saved)
        limit = limit_of(trace, replace(known[0].found, cut=cut, saved_ns=saved)) if parts > OVERLAP * saved else None
        decides = LIMITS["hidden" if limit == "host" and judging.hides_host(trace) else limit or "none"]
        text = f"Fixing all of the above{some} would save {words(trace).saving(saved)}{decides}{more}."
        made = [Sentence(f"{overlapping} {text}" if parts > OVERLAP * saved else text, rules)]
    return [*made, *(_next(trace, result, known, cut) if known and {*apart} <= _OF_NO_RANK else [])]


def _next(trace: Trace, result: RankedFindings, fixed: Sequence[Finding], cut: facts.critical.Cut) -> list[Sentence]:
    """What would limit the run once ``cut`` has taken out what is ``fixed``: the finding that saves most then, or else
    what decides most of a step, if that is news and much of it remains."""
    say, saved = words(trace), judging.saved_a_step(trace, cut)
    done = {each.rule for each in fixed}
    most, largest = 0, None
    for each in result.findings[:COMPARED]:
        if each.rule not in done and each.found.confidence != "low" and each.found.cut is not None:
            gain = judging.saved_a_step(trace, facts.critical.joined([cut, each.found.cut])) - saved
            most, largest = max((most, largest), (gain, each.found), key=itemgetter(0))
    if largest is not None and judging.measure(trace).ratio(most) >= WARNING_RATIO:
        today, cure = largest.saved_ns or 0, largest.seen.cure(say)
        saving = f". Once the above is fixed, {cure} would save up to {say.saving(most)}"
        if 0 < today < CLEARLY_LESS * most:
            saving = f". Once the above is fixed, that costs more: {cure} would then save up to {say.saving(most)}, "
            saving += f"instead of {time(today)} today; {say.saving(saved + most)} with the above"
        if largest.saved_ns is None or (largest.saved_ns == 0 and beside_workers_ns(trace) is None):
            saving = ""  # what saves next to nothing before says itself what it saves later
        text = f"Next: {largest.seen.title(say)}{saving}."
        return [Sentence(text, tuple(sorted(done)))]
    if judging.has_pauses(trace) or judging.measure(trace).ratio(saved) > 1 - HIGH_RATIO:
        return []
    then, whole = judging.decided_in_steps(trace, cut)[1], judging.measure(trace)
    if abs(then.ns / whole.count - (whole.length_ns - saved)) > whole.length_ns * LEAST_PART:
        return []  # another limit than the path keeps the step longer
    decides = max(get_args(Limit), key=lambda limit: getattr(then, limit))
    if (
        decides in {each.limit for each in fixed}
        or 2 * getattr(then, decides) < then.ns
        or not facts.gpu.coverage(trace)
    ):
        return []
    share = percent(getattr(then, decides) / then.ns)
    rest = {name: getattr(then, limit) / then.ns for limit, name in _BOUNDS.items() if limit != decides}
    more = [f"{percent(ratio)} {name}" for name, ratio in rest.items() if ratio >= HIGH_RATIO]
    others = f" ({listed(more)})" if more else ""
    of_roof = ""
    if decides == "computing":
        steps, reached = facts.steps.recorded_windows(trace), facts.operators.efficiencies(trace)
        judged = np.isin(steps.start, whole.windows.start)
        ns = {part: sum(int(each.parts[part][judged].sum()) for _, each in reached) for part in facts.operators.PARTS}
        for roof, parts in _ROOFS.items():
            ratio = sum(ns[part] for part in parts) / max(sum(ns.values()), 1)
            of_roof += f"; {percent(ratio)} of their time today is {roof}" * (2 * ratio > 1)
    text = f"After that, the limit is {_BOUNDS[decides]}: {share} of what remains of {say.a_step}{others}{of_roof}."
    return [Sentence(say.fill(text), tuple(sorted(done)))]


#: what limits kernels at their roof, by the parts of the time in which devices compute
_ROOFS = {"memory-bound": ("memory_ideal", "memory_above"), "compute-bound": ("ideal_compute", "compute_above")}
_BOUNDS = {
    "host": "the host",
    "computing": "the {gpu}'s kernels",
    "communication": "communication",
    "copies": "copies",
    "gaps": "gaps between kernels",
    "other": "other waits",
}


def _nothing(trace: Trace, result: RankedFindings) -> list[Sentence]:
    """What to say if nothing is grave: the first of the small things, and what is merely possible."""
    say, whole = words(trace), judging.measure(trace)
    sure = [each for each in result.findings if each.found.confidence != "low" and each.found.saved_ns]
    since = " in the time counted" * (whole.lead_in_ns > HIGH_RATIO * whole.length_ns)
    if unexplained := _unexplained(trace, result)[0]:
        parts = [("Possible", each) for each in _possible(result)[:1] if each.rule == LONG_CALLS]
        parts = parts or [("The largest known cause", each) for each in sure[:1]]
        known = [Sentence(f"{lead}: {title(say, at)}.", (at.rule,)) for lead, at in parts]
        return [Sentence(unexplained, is_unexplained=True), *known]
    possible = _possible(result)
    if facts.source.lacks_causes(trace.source.metadata):
        possible = []  # the first sentence says that causes cannot be told
    elif not possible and not sure:
        possible = [each for each in result.findings if each.found.saved_ns and not each.found.first]
    parts = [("Possible", each) for each in possible[:1]]
    if sure:
        parts = [(f"No serious problem{since}. The largest minor one", sure[0]), *parts]
    elif possible:
        lacks = any(each.found.first for each in result.findings)
        lead = "Beside that, the largest possible saving" if lacks else "No cause is certain. The likeliest"
        parts = [(lead, possible[0]), *(("Also possible", at) for at in possible[1:2])]
    loads = any(each.found.first and each.rule == LONG_CALLS for each in result.findings)  # has been said
    if parts or loads or is_excerpt(trace) or not facts.gpu.coverage(trace):  # nearly all rules are about the device
        return [Sentence(f"{lead}: {title(say, each)}.", (each.rule,), is_title=not sure) for lead, each in parts]
    for each in result.findings:
        seen = each.found.seen
        if isinstance(seen, small_grids.SmallGrids) and 2 * say.ratio(seen.small_ns) >= 1:
            return [Sentence(f"{title(say, each)}; what larger grids would save is not known.", (each.rule,))]
    text = f"No rule found a cause that would save as much as 2 % of {say.a_step}{since}."
    text += f" {largest}" if (largest := _largest_kernel(trace)[0]) else ""
    recorded = facts.steps.recorded_windows(trace)
    if loss := facts.operators.largest_loss(trace, np.isin(recorded.begin, whole.windows.begin)):
        mfu, name, ratio = loss
        text += f" MFU is {percent(mfu)}; the largest loss: {name}, {percent(ratio)} of {say.a_step}."
    return [Sentence(text, is_nothing=True)]


def _largest_kernel(trace: Trace) -> tuple[str, float]:
    """What to look at if the devices are the limit: the kernel that takes most of their time, and its share of it;
    empty if they hardly work."""
    whole, work = judging.measure(trace), facts.gpu.work(trace)
    windows = Intervals(whole.windows.start, whole.windows.end)
    place, _, parts = clip(Intervals(work.ts, np.maximum(work.end, work.ts)), windows)
    spent = np.bincount(trace.events.name[work.row[place]], parts.end - parts.start, len(trace.strings))
    if not spent.any() or 2 * spent.sum() < whole.length_ns * whole.count:
        return "", 0.0
    ratio = float(spent.max() / spent.sum())
    name = short(trace.strings[int(spent.argmax())])
    return f"The largest kernel is {name}, {percent(ratio)} of the {words(trace).gpu}'s work.", ratio


def _possible(result: RankedFindings) -> list[Finding]:
    """The findings that would be grave if they were certain."""
    grave = (each for each in result.findings if each.severity != "info")
    return [each for each in grave if not (each.found.first or each.found.of_recording)]


def _unexplained(trace: Trace, result: RankedFindings) -> tuple[str, float]:
    """That the device idles for a good part of the time, but no rule knows why, and the part; empty if it does not."""
    idle, whole = judging.idle_in_steps(trace), judging.measure(trace)
    explained = sum(each.saved_ratio or 0 for each in result.findings)
    once = (LONG_CALLS, host_gaps.NAME)  # of what only begins, nothing is saved
    loading = [each.found.spans for each in result.findings if each.rule in once and each.saved_ratio is None]
    explained += sum(whole.ratio(judging.idle_ns(trace, spans).sum() / whole.count) for spans in loading)
    stacks = bool((trace.events.category == Category.PYTHON_FUNCTION).any())
    if beside_workers_ns(trace) is not None:
        return "", 0.0  # all waits but those for batches are slack
    for category in (facts.waits.GapCategory.HOST_WAIT, facts.waits.GapCategory.OTHER):
        spent = sum(each.time_of(category) for each in idle)
        if category == facts.waits.GapCategory.OTHER:
            if any(each.found.first for each in result.findings):
                continue  # what is missing is said
            spent -= sum(map(total, judging.late_beginnings(trace)))
        ratio = whole.ratio(spent / max(len(idle), 1) / whole.count)
        # what a cure saves is time that waited for the host, or work: no rule explains idle time for other reasons
        if ratio >= HIGH_RATIO and (2 * explained <= ratio or category == facts.waits.GapCategory.OTHER):
            lines = "" if stacks or category == facts.waits.GapCategory.OTHER else f", {words(trace).stacks} adds lines"
            late = np.concatenate([each.start for each in judging.late_beginnings(trace)])
            chosen = [(each, (each.category == category) & ~np.isin(each.start, late)) for each in idle]
            parts = [(each.start[which], each.end[which], each.launch[which]) for each, which in chosen]
            start, end, launch = (np.concatenate(column) for column in zip(*parts, strict=True))
            say, share, shown = words(trace), percent(ratio), Intervals(start, end)
            text = f"No rule explains most of the {share} in which the {say.gpu} waits for the host"
            if category == facts.waits.GapCategory.OTHER:
                reason, shown = unknown_reason(trace, shown, launch)
                text = f"The {say.gpu} idles {share} of {say.a_step}{reason}"
            dur = shown.end - shown.start
            at = period(int(shown.start[dur.argmax()] - trace.events.ts[0]), int(dur.max()))
            return f"{text}; {OPEN_TRACE} --at {at} shows the longest gap{lines}.", ratio
    return "", 0.0


def unknown_reason(trace: Trace, gaps: Intervals, launch: EventRows) -> tuple[str, Intervals]:
    """What is known of idle time for other reasons: whether the next work had been launched, what the main thread did
    meanwhile, if most of the time is alike, and where to look, with the idle time that is there."""
    length = gaps.end - gaps.start
    launched = float(length[launch != NO_INDEX].sum() / max(int(length.sum()), 1))
    unknown = " for an unknown reason:"
    if launched >= MOST:
        text = f"{unknown} its next work had been launched, but the trace does not show what that waited for"
    elif launched <= 1 - MOST:
        text = f"{unknown} the launch of its next work was not recorded"
        work = facts.gpu.work(trace)
        row = work.row[np.isin(work.ts, gaps.end[(launch == NO_INDEX) & (length >= length.max() * LEAST_PART)])]
        if len(row) and facts.names.matching(trace, MIGRATES)[trace.events.name[row]].all():
            text = " until pages of managed memory migrate: the host uses them, or does something else first"
        elif len(work.devices) == 1 and total(_nothing_launched(trace, gaps)) >= MOST * length.sum():
            text = (
                ", most likely waiting for the host: no work was queued (launches of what comes next were not recorded)"
            )
    else:
        text = f"{unknown} for {percent(launched)} of it the next work had been launched"
    # The slice that the main thread is innermost in for most of the gaps, and its share of them; empty if none
    lane, segments = facts.critical.main_track(trace), facts.host.host_segments(trace)
    inner = outer = NO_INDEX
    in_name = in_around = Intervals(length[:0], length[:0])
    is_step = facts.names.starting(trace, facts.names.STEP)
    if lane != NO_INDEX:
        part = segments.of(lane)
        ts, row = segments.ts[part], segments.row[part][:-1].astype(np.int64)
        _, which, pieces = clip(gaps, Intervals(ts[:-1], ts[1:]))
        inside = row[which] >= 0
        spent = np.bincount(trace.events.name[row[which[inside]]], (pieces.end - pieces.start)[inside], len(is_step))
        spent[is_step] = 0
        inner = int(spent.argmax())
        same = (row >= 0) & (trace.events.name[row] == inner) & ~is_step[inner]
        in_name = Intervals(ts[:-1][same], ts[1:][same])
    # the shortest annotation that holds most of the gaps, but for steps
    events, shortest = trace.events, np.inf
    rows = events.slices_of(Category.USER_ANNOTATION)
    rows = rows[(events.track[rows] == lane) & ~is_step[events.name[rows]]]
    longest = np.bincount(events.name[rows], events.dur[rows], len(trace.strings))
    for code in np.argsort(-longest, kind="stable")[: min(MOST_ANNOTATIONS, np.count_nonzero(longest))].tolist():
        chosen = rows[events.name[rows] == code]
        spans = union(events.ts[chosen], events.end[chosen])
        held = total(clip(gaps, spans)[2]) / max(total(gaps), 1)
        if held >= LEAST_SHARE and total(spans) < shortest:
            outer, in_around, shortest = code, spans, total(spans)
    spans, name = (in_around, outer) if len(in_around) else (in_name, inner)
    within = clip(gaps, spans)[2]
    share = float(total(within) / max(total(gaps), 1))
    if share < 1 - MOST:
        return text, gaps
    return f"{text}. Meanwhile the host is in {short(trace.strings[name])} for {percent(share)} of that time", within


def _nothing_launched(trace: Trace, gaps: Intervals) -> Intervals:
    """The parts of gaps in which no known launch of work that runs later had begun, and no thread was in a call of the
    runtime."""
    work, events = facts.gpu.work(trace), trace.events
    known = work.where(work.launch != NO_INDEX)
    known = known[arrays.order_of(work.ts[known])]
    first = np.minimum.accumulate(events.ts[work.launch[known]][::-1])[::-1]
    first = np.append(first, 0)[np.searchsorted(work.ts[known], gaps.end)]  # of what follows the last launch, nothing
    calls = events.slices_of(*LAUNCHES)
    free = Intervals(gaps.start, np.clip(first, gaps.start, gaps.end))
    return arrays.subtract(free, Intervals(events.ts[calls], events.end[calls]))


def busy(trace: Trace) -> str:
    """What the devices did in the steps, as shares: ``The GPU is busy 93 % of …``. There is GPU work."""
    windows, devices = judging.measure(trace).windows, facts.gpu.coverage(trace)
    span = int((windows.end - windows.start).sum()) * len(devices)
    parts = dict.fromkeys((*_PARTS, *_IDLE.values(), _LATE, _HELD), 0)
    for device, idle in zip(devices, judging.idle_in_steps(trace), strict=True):
        for name, (wanted, without) in _PARTS.items():
            parts[name] += int(device.time_within(windows.start, windows.end, any_of=wanted, none_of=without).sum())
        for category, name in _IDLE.items():
            parts[name] += idle.time_of(category)
    held = held_up(trace)
    if held is None:
        parts[_LATE] = sum(map(total, judging.late_beginnings(trace)))
    else:
        parts[_HELD] = total(held)
    parts[_IDLE[facts.waits.GapCategory.OTHER]] -= parts[_LATE] + parts[_HELD]
    return busy_text(words(trace), len(devices), span, parts, _length(trace), _notes(trace))


def busy_text(say: Words, device_count: int, span: int, parts: Mapping[str, int], of_what: str, notes: str) -> str:
    """The sentence of :func:`busy` from the time of all devices, ``span``, and that of its parts, ns."""
    ratios = {name: ns / max(span, 1) for name, ns in parts.items()}
    working = sum(ratios[name] for name in _PARTS)
    least = dict.fromkeys(_PARTS, LEAST_PART)
    shares = {name: percent(ratio) for name, ratio in ratios.items() if ratio >= least.get(name, TOLD_RATIO)}
    is_one, done = device_count == 1, [name for name in _PARTS if name in shares]
    idle = sorted((name for name in shares if name not in _PARTS), key=lambda name: -ratios[name])
    waits = ", ".join(f"{shares[name]} {name}" for name in idle)
    busy_for = f"{'is' if is_one else 'are'} busy {percent(working)} of {of_what}"
    busy_for += f": {', '.join(f'{shares[name]} {name}' for name in done)}" if done else ""
    if done == ["computing"] and shares["computing"] == percent(working):  # the same is not said twice
        busy_for = f"{'computes' if is_one else 'compute'} for {percent(working)} of {of_what}"
    whole = f"The {say.gpu}" if is_one else f"The {device_count} {say.gpu}s"
    return f"{whole} {busy_for}{f'. Idle: {waits}' if waits else ''}{notes}."


def _length(trace: Trace) -> str:
    """The time that is spoken of: ``a mean step of 15 ms``. Of a recording, pages and tables say how long it is."""
    whole, recorded = judging.measure(trace), time(trace.recorded_ns)
    length = time(whole.length_ns)
    if whole.unit == "step":
        return f"a {'mean ' * (whole.count > 1)}step of {length}"
    if length == recorded:
        return f"the whole recording ({length})"
    gpu, unseen = words(trace).gpu, int(whole.windows.end[-1]) - int(facts.gpu.work(trace).end.max(initial=0))
    if unseen > TOLD_RATIO * whole.length_ns:
        return f"the {length} from the first {gpu} work to the last call for more (of {recorded} recorded)"
    return f"the {length} between the first and the last {gpu} work (of {recorded} recorded)"


def _left_out(trace: Trace) -> str:
    """How long a recording without steps, or of an engine, lasts before the work that counts and after its last, which
    is not counted, and what devices and the host do before; empty if that is short."""
    whole, least = judging.measure(trace), TOLD_RATIO * judging.measure(trace).length_ns
    whose, gpu, before = "its" if whole.unit == "recording" else "the step's", words(trace).gpu, ""
    windows, events, work = facts.steps.recorded_windows(trace), trace.events, facts.gpu.work(trace)
    calls = np.concatenate((events.slices_of(*LAUNCHES), facts.names.fetches(trace)))
    if (lead_in_ns := whole.lead_in_ns) > least:
        end = int(windows.start[0])
        lead_in = Intervals(windows.start[:1] - lead_in_ns, windows.start[:1])
        ran = total(clip(lead_in, union(work.ts, np.maximum(work.end, work.ts)))[2])
        ns = np.minimum(events.end[calls], end) - np.maximum(events.ts[calls], end - lead_in_ns)
        spent = sums(events.name[calls], np.maximum(ns, 0), len(trace.strings))
        longest, later = int(spent.argmax()), np.flatnonzero(work.ts >= end)
        launch = int(work.launch[later[work.ts[later].argmin()]]) if len(later) else NO_INDEX
        late_ns = min(end - int(events.end[launch]), lead_in_ns) if launch != NO_INDEX else 0
        in_call = 2 * spent[longest] > lead_in_ns
        before = f"{time(lead_in_ns)} {f'at {whose} start' if ran else f'before {whose} first {gpu} work'}"
        if in_call:
            share = percent(spent[longest] / lead_in_ns)
            before += f", for {share} of which the host is in {short(trace.strings[longest])}"
        if ran:
            before += f"{';' if in_call else ', in which'} the {gpu} runs {time(ran)} of recorded work"
        if 2 * late_ns > lead_in_ns and (ran or not in_call):
            before += f"{', and' if in_call else ';' if ran else ','} {'its next work' if ran else 'which'} begins "
            unknown = ", for an unknown reason" * (ran > 0 and not in_call)
            before += f"{time(late_ns)} after its launch{', behind that work' if 2 * ran > late_ns else unknown}"
    if before and whole.unit == "step" and whole.count == 1 and judging.proven_of_host_ns(trace) is None:
        before += "; record several steps to see whether each begins so"
    after = f"{time(whole.tail_ns)} after its last work" * (whole.unit == "recording" and whole.tail_ns > least)
    return "; and ".join(filter(None, (before, after)))


def _notes(trace: Trace) -> str:
    """Why other figures of a step may differ, in parentheses; empty if they do not."""
    whole, left_out = judging.measure(trace), _left_out(trace)
    if whole.unit == "recording":
        said = "; ".join(filter(None, (judging.setup_copies(trace), left_out and f"not counted: {left_out}")))
        return f" ({said})" if said else ""
    host_ns = int(judging.host_ns_of_steps(trace).sum()) // whole.count
    notes = []
    if whole.warm_up:
        notes.append(f"{counted(whole.count, 'step')}, without the slow first")
    elif whole.hidden:
        notes.append(f"{counted(whole.count, 'step')}, without the first, which overlaps earlier work")
    elif (distance := robust_z(length := whole.windows.end - whole.windows.start)) is not None:
        more = length[0] / median(length) - 1  # comparisons leave such a first step out
        if abs(distance[0]) > OUTLIER and abs(more) >= LEAST_RATIO * whole.count:  # it moves the mean
            first = f"the first, which takes {percent(abs(more))} {'longer' if more > 0 else 'less'}"
            notes.append(f"{counted(whole.count, 'step')}, including {first}")
    if judging.proven_of_host_ns(trace) is not None:
        notes.append("one step, begun with nothing queued: later ones may hide such waits")
    work, again = facts.gpu.work(trace), np.append(facts.operators.recomputed(trace), False)  # of no operator: nothing
    again = again[facts.operators.work(trace).owner] & judging.work_in_steps(trace)
    spent = whole.ratio(float((work.end - work.ts)[again].sum()) / whole.count / max(len(work.devices), 1))
    if spent >= TOLD_RATIO:
        notes.append(f"recomputing activations takes at least {percent(spent)} of a step")
    if whole.tail_ns:
        notes.append(f"the last step goes on for {time(whole.tail_ns)} in which nothing was recorded, left out here")
    if whole.capture_count:
        notes.append(f"without {counted(whole.capture_count, 'step')} in which graphs are captured")
    if whole.compilation_count:
        notes.append(f"without {counted(whole.compilation_count, 'step')} in which code is compiled")
    apart = f". Not counted: {left_out}" * (whole.lead_in_ns >= LARGE * max(whole.length_ns, 1))
    if left_out and not apart:
        notes.append(f"not counted: {left_out}")
    is_long = whole.windows.backlog >= LARGE * whole.length_ns
    if is_long[0] and not is_long[1:].any() and not whole.lead_in_ns:
        which = "the" if whole.count == 1 else "the first"
        earlier = f"{time(int(whole.windows.backlog[0]))} at the start of {which} step"
        notes.append(f"not counted: {earlier}, until earlier work is done")
    if not left_out and host_ns - whole.length_ns > TOLD_RATIO * whole.length_ns:
        notes.append(f"the host takes {time(host_ns)}")
    return (f" ({'; '.join(notes)})" if notes else "") + apart


_PARTS = {
    "computing": (facts.gpu.COMPUTATION, 0),
    "exposed communication": (facts.gpu.COMMUNICATION, facts.gpu.COMPUTATION),
    "exposed copies": (facts.gpu.MEMORY, facts.gpu.COMPUTATION | facts.gpu.COMMUNICATION),
}
#: the same, and idle time, by the columns of a step that have them
PART_COLUMNS = {
    "compute_ns": "computing",
    "exposed_communication_ns": "exposed communication",
    "exposed_memory_ns": "exposed copies",
    "host_wait_ns": "waiting for the host",
    "kernel_wait_ns": "between kernels",
    "other_wait_ns": "for reasons not recorded",
}
_IDLE = dict(zip(facts.waits.GapCategory, [*PART_COLUMNS.values()][len(_PARTS) :], strict=True))
_LATE = "before the first work of a stream"
_HELD = "held up although work was queued"
