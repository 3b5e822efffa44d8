"""The windows of steps, on the host and on the devices. Figures per step cover these windows."""

from __future__ import annotations

import re

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from augment import arrays
from augment.core import GPU_WORK, LAUNCHES, Category, Trace, derived
from augment.facts import gpu, names, source
from augment.facts.steps.engine_steps import PHASES, Batch, engine_steps

EMPTY_RATIO = 0.5  #: of the median of the others: a last step without any operator or call that is shorter is none
GAP_COUNT, GAP_RATIO = 256, 0.1  #: correlations that lack at once; of those of a step; profilers leave out some calls
#: at the end of a last step, and of its length: a shorter time with nothing recorded is usual
UNRECORDED_NS, UNRECORDED_RATIO = 1_000_000, 0.02
_BY_HOST = (Category.CPU_OP, Category.USER_ANNOTATION, Category.PYTHON_FUNCTION)
_LAUNCHING = re.compile(r"(?:cuda|cu|hip)\w*(?:LaunchKernel|LaunchCooperativeKernel|Memcpy)")
#: operators and kernels that hardly anything but an optimizer needs, also compiled (``triton_for``)
_UPDATING = re.compile(
    r"^aten::(?:_foreach_(?!copy_|zero_)\w+_|_fused_\w+_|addcdiv_)$|multi_tensor(?!.*copyfunctor)|^triton_for_|fused_?(?:adam|sgd|lamb)",
    re.I,
)
_ASKING = re.compile(r"launch|memcpy|memset|enqueue", re.IGNORECASE)  #: calls that ask for work of a device
#: a recording without steps begins with an event of these categories or with a call, and ends with one or with a launch
_WORK = (Category.CPU_OP, Category.USER_ANNOTATION, *GPU_WORK)


class StepWindows(Struct, frozen=True):
    """Equal-length columns, ascending, with a row for each step; without steps one row with ``number`` -1.

    The window starts when the host has begun the step *and* all work launched earlier, also before the recording, is
    done. It ends when the host has left the step *and* the work launched until then is done. So windows do not overlap,
    and no work is lost if the host runs ahead. If the host waits for the device at the end of each step, the window
    equals the annotation.
    """

    number: arrays.Int64s  #: of ``ProfilerStep#n``, or counted from 0 where an engine names its steps otherwise
    begin: arrays.Int64s  #: ns, of the host's annotation
    finish: arrays.Int64s  #: ns, of the host's annotation
    start: arrays.Int64s  #: ns, of the window
    end: arrays.Int64s  #: ns, of the window

    def __len__(self) -> int:
        return len(self.number)

    def take(self, places: arrays.Places) -> StepWindows:
        """The steps at ``places``."""
        return StepWindows(*(column[places] for column in self.columns))

    @property
    def backlog(self) -> arrays.Int64s:
        """How long the device still works on earlier launches after the step's begin, ns: the time until the window
        starts."""
        return self.start - self.begin

    @property
    def columns(self) -> tuple[arrays.Int64s, ...]:
        """The columns in the order of the fields."""
        return self.number, self.begin, self.finish, self.start, self.end

    def of_host(self, ts: arrays.Int64s) -> arrays.Int64s:
        """The place of the step that the host is in at each moment, int64; -1 where there is none."""
        if not len(self):
            return np.full(len(ts), -1, np.int64)
        place = arrays.where_in(self.begin, ts, side="right") - 1
        return np.where((place >= 0) & (ts < self.finish[place]), place, -1)


@derived(until="summary")
def step_windows(trace: Trace) -> StepWindows:
    """The steps, and the windows in which their work runs on the devices.

    Without steps there is one window, the whole recording; without any work, none.

    Of a recording from which a period was cut out (:mod:`~augment.facts.source.cut_mark`), steps at its ends are kept
    whole, but not what they did beyond it: only steps within the period have a window, and the whole is the period.

    A last step that does nothing, while others have operators or calls, has no window: the profiler's ``step()`` began
    it just before the recording ended. And a recording without steps ends with its last work: calls after it that
    launch nothing are the profiler's own, which waits for the devices, or give memory back as the process ends.
    """
    annotated, limits = steps(trace), source.limits_of(trace.source.metadata)
    number, begin, finish = annotated.number, annotated.ts, annotated.end
    if limits is not None:
        inside = (begin >= limits[0]) & (finish <= limits[1])
        number, begin, finish = number[inside], begin[inside], finish[inside]
    if len(number) > 1 and finish[-1] - begin[-1] < EMPTY_RATIO * arrays.median((finish - begin)[:-1]):
        ts = trace.events.ts[trace.events.slices_of(Category.CPU_OP, *LAUNCHES)]
        if ((ts >= begin[0]) & (ts < begin[-1])).any() and not ((ts >= begin[-1]) & (ts < finish[-1])).any():
            number, begin, finish = number[:-1], begin[:-1], finish[:-1]
    if len(number):
        return windows_of(trace, number, begin, finish)
    rows = trace.events.slices_of(*_WORK, *LAUNCHES)
    count = min(len(rows), 1)
    start = trace.events.ts[rows[:1]]
    work = np.concatenate((trace.events.slices_of(*_WORK), _asking_calls(trace)))
    last = work if len(work) else rows  # calls that ask for no work count where there is nothing else
    end = np.full(count, (trace.events.ts[last] + trace.events.dur[last]).max(initial=0), np.int64)
    if limits is not None:
        start, end = np.maximum(start, limits[0]), np.minimum(end, limits[1])
    end = np.maximum(end, start)
    return StepWindows(np.full(count, -1, np.int64), start, end + 1, start, end)


def _asking_calls(trace: Trace) -> arrays.EventRows:
    calls: arrays.EventRows = trace.events.slices_of(*LAUNCHES)
    return calls[names.matching(trace, _ASKING)[trace.events.name[calls]]]


@derived
def recorded_windows(trace: Trace) -> StepWindows:
    """The steps and their windows, only those that were recorded whole.

    A recording without steps, or of an engine, starts with the first work of a device, if there is any. Before that the
    device may have done what no file has, as where a server is recorded: nobody is known to have waited. Without steps
    it ends with the last work of a device, or that was asked for: what the host does then, such as to end the process,
    keeps none waiting. So does a last step whose end nothing was recorded of.
    """
    windows, work = whole_steps(trace), gpu.work(trace)
    without_steps = bool((windows.number == -1).all())
    if not len(work):
        return windows
    if not (is_served(trace) or without_steps):
        finish = np.append(windows.finish[:-1], _recorded_until(trace, windows))
        return windows_of(trace, windows.number, windows.begin, finish) if finish[-1] < windows.finish[-1] else windows
    last = max(int(work.end.max()), int(trace.events.end[_asking_calls(trace)].max(initial=0)))
    end = np.minimum(windows.end, np.maximum(last, windows.begin)) if without_steps else windows.end
    start = np.minimum(np.maximum(windows.start, _free_from(trace)), end)
    return replace(windows, start=start, end=end, finish=end + 1 if without_steps else windows.finish)


def _recorded_until(trace: Trace, windows: StepWindows) -> int:
    """When the host had done what was recorded of the last step, ns, where the recording ends with it, nothing was
    recorded at its end, and no other step has so long an end: the profiler may stop in it. Else when it left the step.
    """
    events, last = trace.events, int(windows.finish[-1])
    first = int(np.searchsorted(events.ts, last))
    later = (
        arrays.is_any(events.category[first:], (*_BY_HOST, *GPU_WORK)).any() or (_asking_calls(trace) >= first).any()
    )
    if trace.partial is not None or windows.end[-1] > last or later:
        return last  # the file was cut off, devices work on, or what came after was recorded
    of_step = names.starting(trace, names.STEP)

    def ends_ns(begin: int, finish: int) -> tuple[int, int]:
        """The time from the last begin or end of anything in a step until it is over; and of anything on the host."""
        rows = np.arange(*np.searchsorted(events.ts, (begin, finish)))
        rows = rows[
            arrays.is_any(events.category[rows], (*_BY_HOST, *LAUNCHES, *GPU_WORK)) & ~of_step[events.name[rows]]
        ]
        ts, end = events.ts[rows], events.ts[rows] + events.dur[rows]
        moment = np.where(end < finish, end, ts)
        host = ~arrays.is_any(events.category[rows], GPU_WORK)
        return finish - int(moment.max(initial=begin)), finish - int(moment[host].max(initial=begin))

    whole, of_host = ends_ns(int(windows.begin[-1]), last)
    least = max(UNRECORDED_NS, int(UNRECORDED_RATIO * (windows.end - windows.start)[-1]))
    if whole < least or of_host == last - windows.begin[-1]:  # nothing of the host was recorded in it
        return last
    others = [ends_ns(*each) for each in zip(windows.begin[:-1].tolist(), windows.finish[:-1].tolist(), strict=True)]
    usual, usual_of_host = (max(each) for each in zip((0, 0), *others, strict=True))
    return last - max(of_host - usual_of_host, 0) if whole - usual >= least else last


LATE_NS, LATE_RATIO = 200_000, 0.5  #: a device that begins so long after a launch, and is idle for so much of it


def _free_from(trace: Trace) -> int:
    """When a device gets free of what it did before the recording: with its first work, or that of a stream, in the
    first step of an engine, that had been launched long before while nothing else ran. There is GPU work."""
    work, events = gpu.work(trace), trace.events
    first = int(work.ts.min())
    if not is_served(trace):
        return first
    pieces = np.array([stream.start for stream in work.streams], np.int64)
    pieces = pieces[(work.launch[pieces] != arrays.NO_INDEX) & (events.ts[work.launch[pieces]] < steps(trace).end[0])]
    returned = events.ts[work.launch[pieces]] + events.dur[work.launch[pieces]]
    busy = arrays.union(work.ts, np.maximum(work.end, work.ts))
    which, _, parts = arrays.clip(arrays.Intervals(returned, np.maximum(work.ts[pieces], returned)), busy)
    waited = work.ts[pieces] - returned
    idle = waited - arrays.sums(which, parts.end - parts.start, len(pieces))
    late = (waited >= LATE_NS) & (idle >= LATE_RATIO * waited)
    return int(work.ts[pieces[late]].max(initial=first))


@derived
def whole_steps(trace: Trace) -> StepWindows:
    """The windows of the steps that are whole in the file: of all steps unless the file is cut off.

    Profilers write the host's slices first, then calls and GPU work as their buffers come, each thread's calls in
    pieces of their own. So a step of a file that was cut off is known to be whole only if

    - the host's slices go on after it, and so do the launches of each thread that launched work in it;
    - all calls in it that launch a kernel or a copy have their work;
    - no work begins in its window whose launch is missing;
    - correlations, which count all calls of a process, have no large gap in it.

    Of a recording without steps, or without GPU work, nothing is known to be whole.
    """
    windows = step_windows(trace)
    if trace.partial is None:
        return windows
    work, events = gpu.work(trace), trace.events
    slices = events.slices_of(Category.CPU_OP, Category.USER_ANNOTATION)
    if not len(work) or not len(slices) or (windows.number < 0).any():
        return windows.take(np.empty(0, np.int64))
    whole: arrays.Bools = windows.finish <= events.ts[slices].max()
    launching = arrays.distinct(work.launch[work.launch != arrays.NO_INDEX])
    step, track = windows.of_host(events.ts[launching]), events.track[launching]
    last = np.full(len(trace.tracks), np.iinfo(np.int64).min)
    np.maximum.at(last, track, events.ts[launching])
    whole &= np.bincount(step[step >= 0], minlength=len(windows)) > 0
    whole[step[(step >= 0) & (last[track] < windows.finish[step])]] = False
    calls = gpu.calls(trace).row
    calls = calls[names.matching(trace, _LAUNCHING)[events.name[calls]]]
    lost = windows.of_host(events.ts[calls[~arrays.is_among(calls, launching)]])
    whole[lost[lost >= 0]] = False
    unknown = work.ts[gpu.launch_unknown(trace)]
    place = np.searchsorted(windows.start, unknown, side="right") - 1
    whole[place[(place >= 0) & (unknown < windows.end[place])]] = False
    # In which steps many calls in a row are missing, by their correlations
    calls = trace.events.slices_of(*LAUNCHES)
    correlation = gpu.correlations_of(trace, calls)
    order = np.argsort(correlation, kind="stable")
    order = order[correlation[order] > 0]
    known = correlation[order]
    some = np.zeros(len(windows), np.bool_)
    if len(known) and len(windows):
        least = max(GAP_COUNT, GAP_RATIO * float(known[-1] - known[0]) / len(windows))
        for gap in np.flatnonzero(np.diff(known) > least).tolist():  # a loop over gaps, which are few
            first, second = np.sort(trace.events.ts[calls[order[gap : gap + 2]]]).tolist()
            some |= (windows.begin < second) & (windows.finish > first)
    return windows.take(np.flatnonzero(whole & ~some))


def region_windows(trace: Trace, name: str) -> StepWindows:
    """The windows of every occurrence of the annotation or operator ``name``, numbered from 0, as if they were steps.

    If nothing has that name, it is a pattern: ``*`` stands for any characters, ``?`` for one. Of two occurrences that
    overlap, the first counts. There may be no occurrence.
    """
    events = trace.events
    rows = events.slices_of(Category.USER_ANNOTATION, Category.CPU_OP)
    named = names.strings_where(trace, lambda text: text == name)
    if not named.any() and set(name) & {"*", "?"}:
        wanted = re.compile(re.escape(name).replace(r"\*", ".*").replace(r"\?", "."), re.DOTALL)
        named = names.strings_where(trace, wanted.fullmatch)
    rows = rows[named[events.name[rows]]]
    ts, end = events.ts[rows], events.ts[rows] + events.dur[rows]
    first = np.ones(len(rows), np.bool_)
    first[1:] = ts[1:] >= np.maximum.accumulate(end)[:-1]
    return windows_of(trace, np.arange(int(first.sum()), dtype=np.int64), ts[first], end[first])


def windows_of(trace: Trace, number: arrays.Int64s, begin: arrays.Int64s, finish: arrays.Int64s) -> StepWindows:
    """The windows of steps that the host was in from ``begin`` to ``finish`` (int64 ns, ascending and disjoint)."""
    work = gpu.work(trace)
    # When each piece of ``gpu_work`` was launched: the least integer if before the recording, its start if unknown
    launched: arrays.Int64s = work.ts.copy()
    known = work.launch != arrays.NO_INDEX
    launched[known] = trace.events.ts[work.launch[known]]
    launched[gpu.before_recording(trace)] = np.iinfo(np.int64).min
    order = np.argsort(launched, kind="stable")
    done = np.maximum.accumulate(np.concatenate(([np.iinfo(np.int64).min], work.end[order])))
    start = np.maximum(begin, done[np.searchsorted(launched[order], begin, side="left")])
    end = np.maximum(finish, done[np.searchsorted(launched[order], finish, side="left")])
    return StepWindows(number, begin, finish, start, np.maximum(start, end))


def step_of_work(trace: Trace, windows: StepWindows) -> arrays.Int64s:
    """The place of the step in which the host launched each piece of ``gpu_work``; -1 for none.

    Work without a known launch belongs to no step. But if no launch is known at all, or there are no steps, it belongs
    to the window in which it begins.
    """
    work = gpu.work(trace)
    launched = work.launch != arrays.NO_INDEX
    moment = np.where(launched, trace.events.ts[work.launch], work.ts) if len(work) else work.ts
    step = windows.of_host(moment)
    if launched.any() and (windows.number >= 0).any():
        step[~launched] = -1
    return step


# The steps of a recording: its ``ProfilerStep#n`` annotations on the host, else those of an inference engine.


_STEP = re.compile(r"ProfilerStep\s*#\s*([0-9]{1,18})")  # at most 18 digits fit 64 bits
#: categories of the annotation; the oldest recordings have it as an operator. The GPU's copy is no step.
_ON_HOST = (Category.USER_ANNOTATION, Category.CPU_OP)
ROUNDED_NS = 1_000  #: older recordings have whole microseconds


class Steps(Struct, frozen=True):
    """The host's annotations of steps: equal-length columns, ascending ``ts``."""

    number: arrays.Int64s  #: of ``ProfilerStep#n``; counted from 0 where an engine names its steps otherwise
    row: arrays.EventRows  #: the annotation
    ts: arrays.Int64s  #: ns
    end: arrays.Int64s  #: ns; of an engine's step when the next begins, but for pauses

    def __len__(self) -> int:
        return len(self.row)

    def at(self, ts: arrays.Int64s) -> arrays.Int64s:
        """The place of the step in which each moment lies, int64; -1 where there is none."""
        place = arrays.where_in(self.ts, ts, side="right") - 1
        if not len(self):
            return np.full(len(ts), -1, np.int64)
        inside = (place >= 0) & (ts < self.end[place])
        return np.where(inside, place, -1)


@derived(until="summary")
def steps(trace: Trace) -> Steps:
    """The host's annotations of steps.

    Of two that overlap (two threads annotate one step), the first counts; what times are rounded by is no overlap.

    A trace without ``ProfilerStep#n`` may have the steps of an inference engine. Their annotations end before the
    engine samples, answers and schedules the next batch. So such a step lasts until the next begins, unless there is a
    pause between them: then it lasts as much longer than its annotation as others do. A step without requests is none.
    """
    events = trace.events
    rows, number_of = _told(trace)
    ts, end = events.ts[rows], events.ts[rows] + events.dur[rows]
    kept = []
    last_end = None
    for place, (start, stop) in enumerate(
        zip(ts.tolist(), end.tolist(), strict=True)
    ):  # a loop over steps, which are few
        if last_end is None or start >= last_end or stop > last_end > start >= last_end - ROUNDED_NS:
            kept.append(place)
            last_end = stop
    rows, ts, end = rows[kept], ts[kept], end[kept]
    end[:-1] = np.minimum(end[:-1], ts[1:])
    if not is_served(trace):
        return Steps(np.array([number_of[code] for code in events.name[rows].tolist()], np.int64), rows, ts, end)
    batch_of = engine_steps(trace).batch_of
    real = np.array([batch_of[code].phase != "idle" for code in events.name[rows].tolist()], np.bool_)
    finish = end if engine_steps(trace).is_region else _finish(trace, ts, end, real)
    return Steps(np.arange(int(real.sum()), dtype=np.int64), rows[real], ts[real], finish[real])


PAUSE_NS, PAUSE_FACTOR = 100_000_000, 10  #: so long, and so many times the median period, a server has nothing to do


def _finish(trace: Trace, ts: arrays.Int64s, end: arrays.Int64s, real: arrays.Bools) -> arrays.Int64s:
    """When the steps of an engine end whose annotations are from ``ts`` to ``end``; steps without requests are not
    ``real``."""
    after = ts[1:] - end[:-1]  # from an annotation to the next
    period = arrays.median(np.diff(ts)) if len(ts) > 1 else 0.0
    pause = (after > PAUSE_NS) & (after > PAUSE_FACTOR * period)
    usual = int(arrays.median(after[~pause & real[:-1]])) if (~pause & real[:-1]).any() else None
    finish: arrays.Int64s = end.copy()
    finish[:-1] = np.where(pause, np.minimum(end[:-1] + (usual or 0), ts[1:]), ts[1:])
    if len(ts):
        rows = gpu.work(trace).launch
        rows = rows[rows != arrays.NO_INDEX]
        last = int((trace.events.ts[rows] + trace.events.dur[rows]).max(initial=end[-1]))
        finish[-1] = last if usual is None else min(last, int(end[-1]) + usual)
        finish[-1] = max(finish[-1], end[-1])
    return finish


def is_served(trace: Trace) -> bool:
    """Whether the steps of the trace are those of an inference engine, or the user's own."""
    annotated = engine_steps(trace)
    return len(annotated.row) > 0 and (annotated.by_user or not len(_profiler_steps(trace)[0]))


def phases(trace: Trace, windows: StepWindows) -> arrays.Int64s:
    """The phase of each of an engine's steps, as an index of ``PHASES``; 0 where no step has requests."""
    phase = np.array([PHASES.index(batch.phase) for batch in batches(trace)], np.int64)
    return phase.take(windows.number) if len(phase) else np.zeros(len(windows), np.int64)


def updates(trace: Trace, windows: StepWindows) -> arrays.Bools:
    """Whether an optimizer runs in each step: by its annotation, or where none is annotated by what it updates with."""
    rows, name = trace.events.slices_of(*_ON_HOST), trace.events.name
    step = windows.of_host(trace.events.ts[rows[names.starting(trace, names.UPDATE)[name[rows]]]])
    if not len(step):
        updating, work = names.matching(trace, _UPDATING), gpu.work(trace)
        of_work = step_of_work(trace, windows)[updating[name[work.row]]]
        step = np.append(of_work, windows.of_host(trace.events.ts[rows[updating[name[rows]]]]))
    return np.isin(np.arange(len(windows)), step)


def step_numbers(trace: Trace) -> list[int]:
    """The number of every step annotation in the trace, also of those that overlap others; ascending."""
    if is_served(trace):
        return list(range(len(steps(trace))))
    rows, number_of = _told(trace)
    return sorted({number_of[code] for code in arrays.distinct(trace.events.name[rows]).tolist()})


def _told(trace: Trace) -> tuple[arrays.EventRows, dict[int, int]]:
    """The rows of the annotations, ascending, and the step's number for the code of each name."""
    return (engine_steps(trace).row, {}) if is_served(trace) else _profiler_steps(trace)


@derived
def _profiler_steps(trace: Trace) -> tuple[arrays.EventRows, dict[int, int]]:
    number_of = {code: int(match[1]) for code, name in enumerate(trace.strings) if (match := _STEP.fullmatch(name))}
    rows = trace.events.slices_of(*_ON_HOST)
    return rows[arrays.is_among(trace.events.name[rows], np.array([*number_of], np.int64))], number_of


@derived(until="summary")
def steps_of_gpu_work(trace: Trace) -> arrays.Int64s:
    """The number of the step of each piece of GPU work, by its launch; -1 where there is none.

    The work belongs to the step in which it was launched, however much later it runs; to none if it was launched before
    the recording; and if its launch is unknown, to the step in which it begins.
    """
    work = gpu.work(trace)
    step = steps(trace).at(np.where(work.launch == arrays.NO_INDEX, work.ts, trace.events.ts[work.launch]))
    step[gpu.before_recording(trace)] = -1
    return step


@derived(until="summary")
def batches(trace: Trace) -> tuple[Batch, ...]:
    """What the names of an engine's steps say of their batches, in the order of :func:`steps`; empty of others."""
    if not is_served(trace):
        return ()
    batch_of = engine_steps(trace).batch_of
    return tuple(batch_of[code] for code in trace.events.name[steps(trace).row].tolist())
