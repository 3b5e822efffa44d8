"""What every rule needs: the steps to judge, what of a trace lies in them, what shorter events save, and the answer.

Judged are all steps but a first one that is far longer than the others, as it warms up, or of which a backlog from
before the recording hides a part. And a last one is judged as far as it was recorded: the profiler may stop in it.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from augment import arrays, facts
from augment.core import GPU_WORK, LAUNCHES, Category, Trace, derived, text
from augment.diagnosis.captures import captures, compilations
from augment.diagnosis.rule import LEAST_RATIO, WARNING_RATIO, Answer, Confidence, Fine, Found, Seen, Spans
from augment.facts.critical import what_if
from augment.facts.steps import step_windows

WARM_UP = 1.5  #: a first step so many times as long as the median of the others is not steady
AGAIN = 1.25  #: and so many times as long as each later one but the second, else it is what comes again
DELAY_NS, LEAST_DELAYS, USUAL_DELAY_NS = 10_000, 16, 1_000  #: between kernels of which the second is queued
HELD_NS = 200_000  #: work that begins so long after its launch, on an idle device, was held up; less may be the driver
ONE_OFF = 0.05  #: of an engine's steps: if more compile, that comes again
LASTING_NS = 50_000  #: no call takes longer for its launch of a kernel than so long a kernel, but by waiting for it
BLOCKING = 0.1  #: share of the time of such kernels after their launches returned, up to which all launches wait
HIDDEN = 0.1  #: so much of a step's length is missing from a first one that is not whole
UNKNOWN_IDLE = 0.1  #: of a step: what a device waits for so long may decide how long the step is

LEAST_PAUSE, LEAST_PAUSE_NS = 0.05, 200_000  #: of a step: shorter waits that no call says decide little, or are chance
JUST = 0.01  #: of such a wait, by which it ends apart from what it waited for, where that comes again and again,
SURE = 4  #: in so many steps; in fewer it may do so by chance
MOST_BEHIND = 1.05  #: of the devices' time of the steps, the host's: it takes no longer if they go on


class Measure(Struct, frozen=True):
    """The ``windows`` of the steady steps, and the mean ``length_ns`` of one; of a file that was cut off, only of those
    that are whole, and there may be none. Without steps the recording from its first GPU work on is the only one, and
    ``unit`` says so. ``warm_up``: the first step was slow, and is left out. ``hidden``: a part of it was,
    and it is left out.
    """

    windows: step_windows.StepWindows
    unit: Literal["step", "recording"]
    length_ns: int
    warm_up: bool
    hidden: bool = False
    lead_in_ns: int = 0  #: before the first GPU work of an engine, or of a recording without steps from its first event
    tail_ns: int = 0  #: after the last work: without steps until the last call returns, else of the last step
    host_from: int = 0  #: ns; of what the host did before, nothing is judged: the device was not free
    capture_count: int = 0  #: steps of an engine that are left out because graphs are captured in them
    compilation_count: int = 0  #: of the others, those left out because code is compiled in them

    @property
    def is_empty(self) -> bool:
        """Whether no step is known to be whole in a file that was cut off: nothing can be judged."""
        return not len(self.windows)

    @property
    def count(self) -> int:
        """The number of steps; at least 1."""
        return max(len(self.windows), 1)

    def ratio(self, ns: float) -> float:
        """The share of a step."""
        return ns / self.length_ns if self.length_ns else 0.0


@derived
def measure(trace: Trace) -> Measure:
    """The steps to judge."""
    windows = step_windows.recorded_windows(trace)
    real = len(step_windows.steps(trace)) > 0
    lead_in, host_from = 0, int(windows.begin.min(initial=0))
    tail = int((step_windows.whole_steps(trace).end - windows.end).sum())
    if (not real or step_windows.is_served(trace)) and len(windows):
        whole = real or facts.source.limits_of(trace.source.metadata) is not None
        lead_in = max(int(windows.start[0] - (windows.begin[0] if whole else trace.events.ts[0])), 0)
        # When the launch of the first GPU work returned, if that was just before its ``start``; else the start
        work, events, start = facts.gpu.work(trace), trace.events, int(windows.start[0])
        first = work.launch[work.ts.argmin()] if len(work) else arrays.NO_INDEX
        returned = start if first == arrays.NO_INDEX else int(events.ts[first] + events.dur[first])
        host_from = max(int(windows.begin[0]), min(start, returned) if abs(start - returned) < HELD_NS else start)
        if not real:
            windows = replace(windows, begin=np.array([host_from], np.int64))
            calls = events.slices_of(*LAUNCHES)
            tail = max(int((events.ts[calls] + events.dur[calls]).max(initial=0) - windows.end[0]), 0)
    length = windows.end - windows.start
    like = like_first(trace, windows)
    like_length = like.end - like.start
    warm_up = bool(real and len(like) > 2 and like_length[0] > WARM_UP * arrays.median(like_length[1:]))
    warm_up = warm_up and bool(like_length[0] > AGAIN * like_length[2:].max(initial=0))
    # As long as every step begins with as long a backlog, windows are as long as steps. But a first backlog that the
    # next steps do not have is missing from the first window: the host was busy meanwhile, and now the device waits
    hidden = False
    if real and len(like) > 2:
        median = arrays.median(like_length[1:])
        shrunk = like.backlog[0] - like.backlog[1] > HIDDEN * median
        hidden = bool(shrunk and like_length[0] < (1 - HIDDEN) * median)
    if warm_up or hidden:
        windows = windows.take(np.arange(1, len(windows)))
        length = length[1:]
    left_out = [0, 0]  # steps of an engine in which it captures graphs, if most do not, or compiles, if very few do
    if step_windows.is_served(trace):
        least = (len(windows) - 1) // 2, max(ONE_OFF * len(windows), 1)
        for place, moments in enumerate((captures(trace).start, trace.events.ts[compilations(trace)])):
            inside = windows.of_host(moments)
            inside = arrays.distinct(inside[inside >= 0])
            if len(inside) <= least[place] and len(inside) < len(windows):
                windows, left_out[place] = windows.take(np.delete(np.arange(len(windows)), inside)), len(inside)
        length = windows.end - windows.start
    mean = int(length.mean()) if len(length) else 0
    unit: Literal["step", "recording"] = "step" if real else "recording"
    return Measure(windows, unit, mean, warm_up, hidden, lead_in, tail, host_from, *left_out)


def like_first(trace: Trace, windows: step_windows.StepWindows) -> step_windows.StepWindows:
    """The steps to compare the first with: of an engine those of its phase, as prefills are slower than decodes."""
    phase = step_windows.phases(trace, windows) if step_windows.is_served(trace) else np.zeros(len(windows))
    return windows.take(np.flatnonzero(phase == phase[:1]))


def within_steps(trace: Trace, start: arrays.Int64s, end: arrays.Int64s) -> tuple[arrays.Places, arrays.Intervals]:
    """The parts of intervals (int64 ns) in which the host is in steady steps: the index of each, and its time."""
    windows = measure(trace).windows
    real = windows.finish > windows.begin
    begin = np.clip(windows.begin[real], measure(trace).host_from, windows.finish[real])
    whole = arrays.Intervals(begin, windows.finish[real])
    which, _, parts = arrays.clip(arrays.Intervals(start, np.maximum(end, start)), whole)
    return which, parts


def host_cut(trace: Trace, track: arrays.Int32s, start: arrays.Int64s, end: arrays.Int64s) -> what_if.Cut:
    """The cut that takes time of threads out of the steady steps."""
    which, parts = within_steps(trace, start, end)
    return what_if.without_host_time(trace, track[which], parts.start, parts.end)


@derived(until="diagnosis")
def work_in_steps(trace: Trace) -> arrays.Bools:
    """Whether each piece of ``gpu_work`` was launched in a steady step."""
    if measure(trace).unit == "recording":
        return np.ones(len(facts.gpu.work(trace)), np.bool_)
    inside: arrays.Bools = step_windows.step_of_work(trace, measure(trace).windows) >= 0
    return inside


@derived(until="diagnosis")
def unknown_ratio(trace: Trace) -> float:
    """The share of the devices' work of the steady steps in kernels of unknown family."""
    work, inside = facts.gpu.work(trace), work_in_steps(trace)
    ns = np.maximum(work.end - work.ts, 0)[inside]
    return float(ns[~facts.gpu.families(trace).known[inside]].sum() / max(int(ns.sum()), 1))


@derived(until="diagnosis")
def launches_block(trace: Trace) -> bool:
    """Whether launches return only when their kernels are done: the graph does not show what faster ones would save."""
    work, events = facts.gpu.work(trace), trace.events
    places = work.where((events.category[work.row] == Category.KERNEL) & (work.launch != arrays.NO_INDEX))
    ts, end = work.ts[places], work.end[places]
    after, ns = np.maximum(end - np.maximum(ts, events.end[work.launch[places]]), 0), end - ts
    lasts = (ns >= LASTING_NS) & (events.ts[work.launch[places]] <= ts)  # else clocks are off
    return bool(2 * ns[lasts].sum() > ns.sum() and after[lasts].sum() < BLOCKING * ns[lasts].sum())


def copies_in_steps(trace: Trace) -> arrays.WorkIndexes:
    """The copies of steady steps; without steps, none before the first kernel, as these only set the program up, but
    that of a batch once the first was fetched; without fetches none after the last kernel, which fetch the result."""
    work, events, fetches = facts.gpu.work(trace), trace.events, facts.names.fetches(trace)
    category, inside = events.category[work.row], work_in_steps(trace)
    kernels = work.ts[category == Category.KERNEL]
    if measure(trace).unit == "recording" and len(kernels):
        inside = inside & (work.ts > np.concatenate((kernels, events.end[fetches])).min())
        for device in work.devices if not len(fetches) else ():
            last = int(work.ts[device.places][category[device.places] == Category.KERNEL].max(initial=0))
            inside[device.places] &= (work.ts[device.places] < last) | (work.launch[device.places] == arrays.NO_INDEX)
    return work.where(inside & (category == Category.GPU_MEMCPY))


def setup_copies(trace: Trace) -> str:
    """What is said of the copies that :func:`copies_in_steps` leaves out; empty if they take little time."""
    work, whole = facts.gpu.work(trace), measure(trace)
    chosen = work_in_steps(trace) & (trace.events.category[work.row] == Category.GPU_MEMCPY)
    chosen[copies_in_steps(trace)] = False
    kernels = work.ts[trace.events.category[work.row] == Category.KERNEL]
    first, apart = kernels.min(initial=work.ts.max(initial=0)), list[str]()
    for where, does, part in (
        ("before the first kernel", "set the program up", chosen & (work.ts <= first)),
        ("after the last kernel", "fetch its result", chosen & (work.ts > first)),
    ):
        ratio = whole.ratio(ns := int((work.end - work.ts)[part].sum()) // max(len(work.devices), 1))
        took = f"copies {where} take {text.time(ns)}, {text.percent(ratio)} of the recording, and may only {does}"
        apart += [took] if ratio >= WARNING_RATIO else []
    return "; ".join(apart)


def rows_in_steps(trace: Trace, rows: arrays.EventRows) -> arrays.EventRows:
    """Those of ``rows``, slices of the host, that begin in a steady step, of which the devices' part is recorded."""
    whole, ts = measure(trace), trace.events.ts[rows]
    chosen: arrays.EventRows = rows[(whole.windows.of_host(ts) >= 0) & (ts >= whole.host_from)]
    return chosen


@derived
def fetches_in_steps(trace: Trace) -> arrays.EventRows:
    """The fetches of batches that are in a steady step."""
    return rows_in_steps(trace, facts.names.fetches(trace))


def saved_a_step(trace: Trace, cut: what_if.Cut) -> int:
    """How much shorter a steady step would be without what ``cut`` takes out, ns. Time in which a server has no request
    saves nothing: what a step may gain is the work that is taken out and the time in which its devices idle. So it is
    in a recording without steps. That, and a last step that is cut short, end with their last work, not when the host
    has waited for it. A host that is ahead of the devices is so only for a while if they become faster: steps that go
    on are no shorter than what the host takes for them."""
    whole = measure(trace)
    of_work = len(facts.gpu.work(trace)) > 0 and (whole.unit == "recording" or whole.tail_ns > 0)
    cut = with_waits(trace, cut)
    saved = what_if.saved_ns(trace, cut, of_work=of_work)
    if has_pauses(trace) or (of_work and whole.unit == "recording"):
        idle = max((int((each.end - each.start).sum()) for each in idle_in_steps(trace)), default=0)
        saved = min(saved, idle + what_if.taken_work_ns(trace, cut))
    elif whole.unit == "step":
        finish, host = int(whole.windows.finish[-1]), host_ns(trace)
        devices = whole.length_ns * whole.count
        if devices - saved < host <= MOST_BEHIND * devices:  # one that takes longer waited for what is not recorded
            saved = min(saved, max(devices - host, 0) + what_if.host_saved_ns(trace, cut, finish))
    return min(saved // whole.count, _beyond_full_ns(trace, cut))


def with_waits(trace: Trace, cut: what_if.Cut) -> what_if.Cut:
    """``cut``, and what the host waits less where no call says that it waits: by as much as devices are busy for less
    time meanwhile."""
    track, spans = unrecorded_waits(trace)
    less = what_if.taken_of_work(trace, cut) if len(track) else np.zeros(0, np.int64)
    if not less.any():
        return cut
    work, waited = facts.gpu.work(trace), list[arrays.Int64s]()
    for end in (work.end, work.end - less):
        which, _, parts = arrays.clip(spans, arrays.union(work.ts, np.maximum(work.ts, end)))
        waited.append(arrays.sums(which, parts.end - parts.start, len(track)))
    shorter = what_if.without_host_time(trace, track, spans.end - np.maximum(waited[0] - waited[1], 0), spans.end)
    return what_if.joined([cut, shorter])


def _beyond_full_ns(trace: Trace, cut: what_if.Cut) -> int:
    """The most that a cut may save of a steady step, ns, as kernels with a block on each SM do not run at once."""
    whole = measure(trace)
    return (whole.length_ns * whole.count - full_ns(trace) + what_if.taken_work_ns(trace, cut)) // whole.count


@derived
def full_ns(trace: Trace) -> int:
    """The time of the steady steps in which such a kernel computes, ns, of the device with the most of it."""
    work, windows = facts.gpu.work(trace), measure(trace).windows
    full = (
        (facts.gpu.occupancy(trace).filled >= 1)
        & (work.type == facts.names.KernelType.COMPUTATION)
        & (work.end > work.ts)
    )
    places = (device.places for device in work.devices)
    ran = (arrays.union(work.ts[each][full[each]], work.end[each][full[each]]) for each in places)
    steps = arrays.Intervals(windows.start, windows.end)
    return max((arrays.total(arrays.clip(each, steps)[2]) for each in ran), default=0)


@derived(until="diagnosis")
def unrecorded_waits(trace: Trace) -> tuple[arrays.Int32s, arrays.Intervals]:
    """Where threads of the host wait for devices in each steady step although no call says so; nothing where a step
    lacks such a wait, as what ends at once with a device's work may do so by chance."""
    whole, tracks = measure(trace), facts.critical.launching_tracks(trace)
    least = max(int(LEAST_PAUSE * whole.length_ns), LEAST_PAUSE_NS)
    track, spans = facts.waits.unrecorded_waits(trace, tracks, least, JUST * min(whole.count / SURE, 1))
    _, step, _ = arrays.clip(spans, arrays.Intervals(whole.windows.begin, whole.windows.finish))
    if whole.unit != "step" or not len(step) or len(arrays.distinct(step)) < len(whole.windows):
        return track[:0], arrays.Intervals(spans.start[:0], spans.end[:0])
    return track, spans


@derived(until="diagnosis")
def host_ns(trace: Trace) -> int:
    """What the host takes for the steady steps."""
    windows = measure(trace).windows
    whole = arrays.Intervals(windows.begin[:1], windows.finish[-1:])
    return int(what_if.busy_host_ns(trace, whole, unrecorded_waits(trace)[1]).sum())


@derived(until="diagnosis")
def host_ns_of_steps(trace: Trace) -> arrays.Int64s:
    """The same for each of the steady steps."""
    windows = measure(trace).windows
    return what_if.busy_host_ns(trace, arrays.Intervals(windows.begin, windows.finish), unrecorded_waits(trace)[1])


def has_pauses(trace: Trace) -> bool:
    """Whether time passes between the steps of an engine that belongs to none."""
    windows = measure(trace).windows
    return bool(step_windows.is_served(trace) and (windows.start[1:] > windows.end[:-1]).any())


def decided_in_steps(trace: Trace, cut: what_if.Cut) -> tuple[what_if.Decided, what_if.Decided]:
    """As :func:`decided`, of all steady steps together, without what is not counted as theirs."""
    windows = measure(trace).windows
    return what_if.decided(trace, cut, int(windows.start[0]), int(windows.end[-1]))


def saved_ahead(trace: Trace, cut: what_if.Cut) -> int:
    """As :func:`saved_a_step`, where ``cut`` lets the host run ahead of the devices, as far as it gets if the steps go
    on; as far as it gets in a recording without steps, if the first is left out, or if devices work on behind the last,
    in a file that was cut off."""
    whole, saved = measure(trace), saved_a_step(trace, cut)
    if whole.unit == "step" and trace.partial is None and not (whole.warm_up or whole.hidden or has_pauses(trace)):
        host, since = (int(whole.windows.begin[0]), int(whole.windows.finish[-1])), int(whole.windows.start[0])
        cuts = what_if.Cut.nothing(), with_waits(trace, cut)
        before, after = (what_if.lasting_ns(trace, each, host, since) for each in cuts)
        saved = min(max(saved, (before - after) // whole.count), _beyond_full_ns(trace, cut))
    return saved


def saved_unwaited(trace: Trace, cut: what_if.Cut) -> int:
    """As :func:`saved_ahead`, where ``cut`` ends waits of the host: a delay remains of each wait for it. Where ranks
    communicate, no more than the idle time that the host explains: collectives that this rank begins earlier end no
    earlier unless all others begin them earlier, too."""
    waits = [
        (idle.end - idle.start)[idle.category == facts.waits.GapCategory.HOST_WAIT] for idle in idle_in_steps(trace)
    ]
    remaining = max((int(np.minimum(wait, delay_ns(trace)).sum()) for wait in waits), default=0)
    saved = saved_ahead(trace, cut)
    if (facts.gpu.work(trace).type == facts.names.KernelType.COMMUNICATION).any():
        saved = min(saved, _explained_idle_ns(trace) // measure(trace).count)
    return max(saved - remaining // measure(trace).count, 0)


@derived
def delay_ns(trace: Trace) -> int:
    """What a device takes between two kernels of which the second is queued, ns, and what remains of any wait for the
    host: the median of such gaps, or :data:`USUAL_DELAY_NS` where there are too few."""
    work = facts.gpu.work(trace)
    later = np.flatnonzero(work.launch != arrays.NO_INDEX)
    later = later[~np.isin(later, [stream.start for stream in work.streams])]
    gap = work.ts[later] - work.end[later - 1]
    queued = trace.events.ts[work.launch[later]] + trace.events.dur[work.launch[later]] < work.end[later - 1]
    gaps = gap[queued & (gap >= 0) & (gap < DELAY_NS)]
    return int(arrays.median(gaps)) if len(gaps) >= LEAST_DELAYS else USUAL_DELAY_NS


def saved_by_host(trace: Trace, cut: what_if.Cut) -> int:
    """As :func:`saved_a_step`, for time of the host alone: no more than the device's idle time that the host or a delay
    between kernels explains. Work that started long after its launch had returned did not wait for the host.
    """
    return min(saved_a_step(trace, cut), _explained_idle_ns(trace) // measure(trace).count)


@derived(until="diagnosis")
def idle_in_steps(trace: Trace) -> list[facts.steps.StepIdle]:
    """The idle time of each device in the steady steps, in the order of ``gpu_work(trace).devices``."""
    windows = measure(trace).windows
    return [facts.steps.step_idle(trace, place, windows) for place in range(len(facts.gpu.work(trace).devices))]


def hides_host(trace: Trace) -> bool:
    """Whether GPU work hides the host in the steady steps: devices hardly idle, but between kernels."""
    reasons, whole = (facts.waits.GapCategory.HOST_WAIT, facts.waits.GapCategory.OTHER), measure(trace)
    most = max((each.time_of(*reasons) for each in idle_in_steps(trace)), default=0)
    return whole.ratio(most / whole.count) < LEAST_RATIO


@derived
def late_beginnings(trace: Trace) -> list[arrays.Intervals]:
    """For each device, idle time in the steady steps that nothing in the file explains although work was queued: it
    ends with the first work of a stream, long after the call that launched this work had returned."""
    work = facts.gpu.work(trace)
    launch = arrays.distinct(work.launch[[stream.start for stream in work.streams]])
    launch = launch[launch != arrays.NO_INDEX]
    late = []
    for idle in idle_in_steps(trace):
        chosen = arrays.is_among(idle.launch, launch) & (idle.category == facts.waits.GapCategory.OTHER)
        late.append(arrays.Intervals(idle.start[chosen], idle.end[chosen]))
    return late


def confidence_in(trace: Trace, saved_ns: int) -> Confidence:
    """How certain a prediction is that takes time or waits of the host out of steps: ``medium`` if more would be saved
    than the idle time that the host explains. The rest would come from another order of GPU work, and whether
    collectives wait for other ranks, or copies for each other, is not in one trace.
    """
    return "high" if saved_ns * measure(trace).count <= _explained_idle_ns(trace) else "medium"


@derived
def _explained_idle_ns(trace: Trace) -> int:
    """Idle time in the steady steps of the device that has most of it, but for ``other``, ns."""
    explained = (facts.waits.GapCategory.HOST_WAIT, facts.waits.GapCategory.KERNEL_WAIT)
    return max((each.time_of(*explained) for each in idle_in_steps(trace)), default=0)


def idle_ns(trace: Trace, spans: Spans) -> arrays.Int64s:
    """The time in each of ``spans`` in which no device works, ns."""
    work = facts.gpu.work(trace)
    which, _, parts = arrays.clip(
        arrays.Intervals(spans.start, spans.end), arrays.union(work.ts, np.maximum(work.end, work.ts))
    )
    idle: arrays.Int64s = spans.end - spans.start - arrays.sums(which, parts.end - parts.start, len(spans))
    return idle


def beside_ns(trace: Trace, among: arrays.Bools) -> arrays.Int64s:
    """For each piece of GPU work that is ``among`` some, how long of its time others of these run on its device, ns; 0
    for the rest."""
    work = facts.gpu.work(trace)
    beside = np.zeros(len(work), np.int64)
    for device in work.devices:
        places = work.by_time[device.places]
        places = places[among[places]]
        start, end = work.ts[places], work.end[places]
        # Two run where one that began later runs beside those before it
        several = arrays.union(start[1:], np.minimum(end[1:], np.maximum.accumulate(end)[:-1]))
        which, _, parts = arrays.clip(arrays.Intervals(start, end), several)
        beside[places] = arrays.sums(which, parts.end - parts.start, len(places))
    return beside


def longest(spans: Spans, count: int) -> Spans:
    """The ``count`` longest of ``spans``, in the order of time."""
    return spans.take(np.sort(np.argsort(spans.start - spans.end, kind="stable")[:count]))


SEVERAL_STEPS, IN_ONE_STEP = 3, 0.8  #: of so many, one with more than this share has what others have not


def judged(
    trace: Trace,
    seen: Seen,
    saved_ns: int,
    *,
    spans: Spans,
    confidence: Confidence,
    cut: what_if.Cut,
    at_most: bool = False,
    shown: int | None = None,
) -> Answer:
    """A finding, or ``Fine`` if less than :data:`LEAST_RATIO` of a step would be saved.

    A recording without steps may be anything, also a benchmark that waits on purpose, and a single step may be the
    first of all: confidence is then ``medium`` at most. It is ``low`` where a later step may have the host ahead, and
    for its work alone where a device idles before work without a launch: what it waits for may decide.
    """
    whole, proven = measure(trace), proven_of_host_ns(trace)
    if whole.ratio(saved_ns) < LEAST_RATIO:
        return Fine(seen, saved_ns)
    if proven is not None and saved_ns > proven and not what_if.taken_work_ns(trace, cut):
        confidence = "low"
    if (whole.unit == "recording" or whole.count == 1) and confidence == "high":
        confidence = "medium"
    unknown = whole.ratio(_unknown_idle_ns(trace) / whole.count) > UNKNOWN_IDLE
    if unknown and what_if.taken_work_ns(trace, cut) >= saved_ns * whole.count:
        confidence, at_most = "low", True
    return Found(seen, spans, confidence, saved_ns, cut, at_most=at_most, shown=shown, in_step=_only_step(trace, spans))


@derived(until="diagnosis")
def _unknown_idle_ns(trace: Trace) -> int:
    """The time of the steady steps in which a device idles before work without a launch, ns, of the one with most."""
    idle, other = idle_in_steps(trace), facts.waits.GapCategory.OTHER
    gaps = ((each.end - each.start)[(each.category == other) & (each.launch == arrays.NO_INDEX)] for each in idle)
    return max((int(each.sum()) for each in gaps), default=0)


@derived(until="diagnosis")
def proven_of_host_ns(trace: Trace) -> int | None:
    """What a faster host saves of any step, ns, in a recording of a single one that begins with nothing queued and in
    which the host hardly waits, if devices idle for longer: later steps may have the host ahead of them. Else None."""
    whole = measure(trace)
    if whole.unit == "recording" or len(whole.windows) != 1 or whole.windows.backlog[0] > whole.lead_in_ns:
        return None
    host, idle = host_ns(trace), max((int((each.end - each.start).sum()) for each in idle_in_steps(trace)), default=0)
    waited = int(whole.windows.finish[0] - whole.windows.begin[0]) - host
    proven = max(host - whole.length_ns + idle, 0)
    hidden = whole.ratio(waited) < WARNING_RATIO and idle >= max(proven + LEAST_RATIO * whole.length_ns, 2 * proven)
    return proven if hidden else None


def _only_step(trace: Trace, spans: Spans) -> int | None:
    """The number of the step that has nearly all of what ``spans`` cost, in a recording of several; None if none has.
    What the devices wait for costs the time in which they idle; what they do may be steps behind the host."""
    whole = measure(trace)
    if whole.unit == "recording" or whole.count < SEVERAL_STEPS:
        return None
    which, parts = within_steps(trace, spans.start, spans.end)
    step = whole.windows.of_host(parts.start)
    if spans.row.min(initial=0) >= 0 and arrays.is_any(trace.events.category[spans.row], GPU_WORK).all():
        windows = arrays.Intervals(whole.windows.start, whole.windows.end)
        which, step, parts = arrays.clip(arrays.Intervals(spans.start, spans.end), windows)
    idle = idle_ns(trace, Spans(parts.start, parts.end, spans.row[which]))
    took = idle if idle.any() else parts.end - parts.start
    by_step = arrays.sums(step, took, len(whole.windows))
    most = int(by_step.argmax())
    return int(whole.windows.number[most]) if by_step[most] > IN_ONE_STEP * by_step.sum() else None
