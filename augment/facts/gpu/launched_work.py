"""What is known of the launches of GPU work: their order, operators and delays, and whether they were recorded; and
which collectives they are of."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from msgspec import Struct

from augment import arrays
from augment.core import LAUNCHES, NO_CORRELATION, Category, Diagnostic, Texts, Trace, derived, text
from augment.facts import names
from augment.facts.gpu.gpu_work import correlations_of, gpu_work, launches
from augment.facts.host.call_stacks import call_stacks, crossed_places, innermost, is_of, thread_bounds
from augment.facts.host.queued_tasks import operators_around
from augment.facts.source.event_args import arg_columns

_COMMS = "record_param_comms"
_TELLING = ("nccl:", "rccl:", "hccl:", "xccl:", "c10d::")


class LaunchedWork(Struct, frozen=True):
    """Work of known launch by thread, then by launch, then by start, so that a slice's is one range: see :meth:`under`.

    If launches begin at one moment, the lower correlation comes first.
    """

    place: arrays.WorkIndexes  #: the work
    listed: arrays.WorkIndexes  #: ``place``, then lists of slices whose work is not one range, because slices cross
    before: arrays.Int32s  #: of each call stack, how many of ``place`` are launched before it
    last: arrays.Int32s  #: of each call stack, the index after its last descendant
    apart: dict[int, tuple[int, int]]  #: spans in ``listed`` of slices that cross, by the index of their call stack

    def spans(self, places: arrays.StackIndexes) -> tuple[arrays.Int64s, arrays.Int64s]:
        """The ``start`` and ``stop`` of the work launched by each of ``places`` and all that these enclose:
        ``listed[start:stop]``. ``places`` are of the call stacks, and not runtime calls."""
        start, stop = (self.before[each].astype(np.int64) for each in (places, self.last[places]))
        if self.apart:
            at = np.array(sorted(self.apart), np.int64)
            known = arrays.is_among(places, at)
            spans = [self.apart[place] for place in places[known].tolist()]
            start[known], stop[known] = np.array(spans, np.int64).reshape(-1, 2).T
        return start, stop

    def under(self, stacks: arrays.StackIndexes) -> arrays.WorkIndexes:
        """The work launched by any of ``stacks`` and all that these enclose, ascending and distinct. ``stacks`` are
        indexes of the call stacks, and not runtime calls."""
        depth = np.zeros(len(self.listed) + 1, np.int64)
        start, stop = self.spans(stacks)
        np.add.at(depth, start, 1)
        np.add.at(depth, stop, -1)
        return np.unique(self.listed[np.cumsum(depth)[:-1] > 0])


@derived(until="breakdowns")
def launched_work(trace: Trace) -> LaunchedWork:
    """Joins operators to the work that they launch: ``gpu.launched(trace).under(…)``, of indexes of ``host.stacks``."""
    work, stacks = gpu_work(trace), call_stacks(trace)
    place = work.by_time[work.launch[work.by_time] != arrays.NO_INDEX]
    launch = stacks.place_of[work.launch[place]]
    order = np.argsort(launch, kind="stable")
    place, launch = place[order], launch[order]
    before = np.concatenate(
        (np.zeros(1, np.int64), np.cumsum(np.bincount(launch, minlength=len(stacks)))), dtype=np.int32
    )
    # launches of one moment in the order of their correlations, where no operator begins between them
    others = np.cumsum(~is_of(trace, LAUNCHES))[launch]
    ts, thread = trace.events.ts[work.launch[place]], trace.events.track[work.launch[place]]
    tied = (ts[1:] == ts[:-1]) & (thread[1:] == thread[:-1]) & (others[1:] == others[:-1])
    by_correlation = arrays.settled(tied, correlations_of(trace, work.row[place])) if tied.any() else None
    place = place if by_correlation is None else place[by_correlation]
    # ``listed``, and the spans in it of slices that launched more than their call tree holds. Where another slice
    # crosses the end of such a slice, later launches can lie outside its tree, although it encloses them
    events = trace.events
    launch = gpu_work(trace).launch[place]
    until = events.ts[launch] + events.dur[launch]
    begin, bounds = events.ts[stacks.row], thread_bounds(trace)
    lists, count = [place], len(place)
    known: dict[bytes, tuple[int, int]] = {}
    apart: dict[int, tuple[int, int]] = {}
    for bad in crossed_places(trace).tolist():
        row = stacks.row[bad]
        end, thread = events.ts[row] + events.dur[row], slice(*bounds[events.track[row] : events.track[row] + 2])
        after = thread.start + int(np.searchsorted(begin[thread], end))
        first, near, far = before[[bad, stacks.stop[bad], after]].tolist()
        more = near + np.flatnonzero(until[near:far] <= end)
        if not len(more):
            continue
        if more[-1] - near + 1 == len(more):
            apart[bad] = first, near + len(more)
            continue
        both = np.concatenate((np.arange(first, near), more))
        span = known.setdefault(both.tobytes(), (count, count + len(both)))
        if span[0] == count:
            lists.append(place[both])
            count += len(both)
        apart[bad] = span
    return LaunchedWork(place, np.concatenate(lists), before, stacks.stop, apart)


@derived(until="diagnosis")
def work_operators(trace: Trace) -> arrays.EventRows:
    """The innermost operator around the launch of each piece of work: ``aten::copy_`` in ``aten::contiguous``.

    Of a launch that was put on a queue, the operator that put it there; ``NO_INDEX`` where unknown.
    """
    return operators_around(trace, gpu_work(trace).launch)


TOLD = 0.99  #: least share of other work with a known launch in a recording that loses no launches


@derived(until="summary")
def before_recording(trace: Trace) -> arrays.Bools:
    """Whether each piece of ``gpu_work`` was launched before the recording; false also where this is unknown.

    Correlations ascend with the calls of a process, and a stream runs its work in the order of launches. So work was
    launched before the recording if

    - the recording has no call with its correlation, which is below the correlations of all recorded calls;
    - it begins before all work of its stream whose launch was recorded;
    - the recording has the launches of nearly all other work (:data:`TOLD`). Otherwise launches were lost, such as
      those by calls that the profiler does not know, and a missing launch is no evidence.

    For work without a correlation, and in a trace without runtime calls, the answer is unknown.
    """
    work = gpu_work(trace)
    known = work.launch != arrays.NO_INDEX
    nothing = np.zeros(len(work), np.bool_)
    recorded = correlations_of(trace, trace.events.slices_of(*LAUNCHES))
    recorded = recorded[recorded > 0]  # 0 and below mean none
    if not len(recorded) or known.all():
        return nothing
    correlation = correlations_of(trace, work.row)
    early = ~known & (correlation > 0) & (correlation < recorded.min())
    for stream in work.streams:
        is_known = known[stream.places]
        if is_known.any():
            early[stream.start + int(is_known.argmax()) : stream.stop] = False
    others = known[~early]
    return early if len(others) and others.mean() >= TOLD else nothing


def launch_unknown(trace: Trace) -> arrays.Bools:
    """Whether the time of launch of each piece of ``gpu_work`` is unknown."""
    unknown: arrays.Bools = (gpu_work(trace).launch == arrays.NO_INDEX) & ~before_recording(trace)
    return unknown


def before_recording_diagnostics(*traces: Trace, of: str = "") -> list[Diagnostic]:
    """How much GPU work of all ``traces`` was launched before the recording; ``of`` names its owner in the message."""
    return _told("before_recording", traces, before_recording, of, "were launched before the recording (in no step)")


def launch_unknown_diagnostics(trace: Trace) -> list[Diagnostic]:
    """How much GPU work has an unknown time of launch."""
    what = "have no known launch, which may have been before the recording"
    return _told("launch_unknown", [trace], launch_unknown, "", what)


def _told(
    code: str, traces: Sequence[Trace], which: Callable[[Trace], arrays.Bools], of: str, what: str
) -> list[Diagnostic]:
    whole = count = ns = 0
    for trace in traces:
        work, chosen = gpu_work(trace), which(trace)
        ran = np.maximum(work.end - work.ts, 0)
        count += int(np.count_nonzero(chosen))
        whole, ns = whole + int(ran.sum()), ns + int(ran[chosen].sum())
    message = f"pieces of GPU work{of} ({text.percent(ns / max(whole, 1))} of its time) {what}"
    return [Diagnostic(code, count, message)] if count else []


class LaunchDelays(Struct, frozen=True):
    """Equal-length columns, with a row for each piece of GPU work of known launch, in ``gpu_work``'s order."""

    place: arrays.WorkIndexes  #: the work
    row: arrays.EventRows  #: the launching call
    cpu_ns: arrays.Int64s  #: the call's duration, which pieces of work of one call (a CUDA graph) share
    gpu_ns: arrays.Int64s  #: the work's duration
    delay_ns: arrays.Int64s  #: from the end of the call to the start of the work, 0 if the work starts first

    def __len__(self) -> int:
        return len(self.place)

    def take(self, chosen: arrays.Places | arrays.Bools | slice) -> LaunchDelays:
        """The rows at ``places``."""
        return LaunchDelays(*(getattr(self, name)[chosen] for name in self.__struct_fields__))


@derived(until="breakdowns")
def launch_delays(trace: Trace) -> LaunchDelays:
    """How long launched work waited for its start."""
    work, events = gpu_work(trace), trace.events
    place = work.where(work.launch != arrays.NO_INDEX)
    row = work.launch[place]
    start = work.ts[place]
    cpu_ns = events.dur[row]
    delay = np.maximum(start - (events.ts[row] + cpu_ns), 0)
    return LaunchDelays(place, row, cpu_ns, work.end[place] - start, delay)


@derived
def launch_diagnostics(trace: Trace) -> list[Diagnostic]:
    """Diagnostics of the launches, counted in pieces of GPU work."""
    work, delays = gpu_work(trace), launch_delays(trace)
    early = int(np.count_nonzero(trace.events.ts[delays.row] > work.ts[delays.place]))
    disputed = int(np.isin(correlations_of(trace, delays.row), launches(trace).disputed).sum())
    message = "pieces of GPU work have the correlation of calls of several processes (the first call counts)"
    by_arrow = int((trace.events.correlation[work.row[delays.place]] == NO_CORRELATION).sum())
    moved = "launches begin after the work that they launch (moved to the start of the work)"
    diagnostics = (
        Diagnostic("launch_by_arrow", by_arrow, "pieces of GPU work have no correlation (linked by arrows)"),
        Diagnostic("gpu_work_without_launch", len(work) - len(delays), "pieces of GPU work have no known launch"),
        Diagnostic("launch_after_kernel", early, moved),
        Diagnostic("launch_disputed", disputed, message),
    )
    return [diagnostic for diagnostic in diagnostics if diagnostic.count]


class CollectiveArgs:
    """The args of collectives, by the rows of their kernels and of the operators that launched them."""

    def __init__(self, trace: Trace, row: arrays.EventRows, launch: arrays.EventRows) -> None:
        self._trace, self._row = trace, row
        self._columns = arg_columns(trace)
        self._op = innermost(trace, launch, (Category.CPU_OP,), names.starting(trace, _COMMS))

    def ints(self, name: str) -> arrays.Int64s:
        """The values of an arg, :data:`NO_VALUE` where there is none."""
        column = self._columns.ints(name)
        values = column.at(self._row, arrays.NO_VALUE)
        return np.where(values == arrays.NO_VALUE, column.at(self._op, arrays.NO_VALUE), values)

    def texts(self, name: str) -> Texts:
        """The codes of a text arg, -1 where there is none."""
        rows, texts = self._columns.texts(name)
        if not len(rows):
            return Texts(np.full(len(self._row), arrays.NO_VALUE, np.int32), ())
        of_kernel, of_operator = (
            np.where(is_there, texts.codes[where], arrays.NO_VALUE)
            for where, is_there in (arrays.looked_up(rows, wanted) for wanted in (self._row, self._op))
        )
        return Texts(np.where(of_kernel < 0, of_operator, of_kernel).astype(np.int32), texts.values)


@derived(until="breakdowns")
def collective_kinds(trace: Trace) -> Texts:
    """The kind of each communication kernel: from the user's rules, the arg, the host's names, or the kernel's name."""
    work, strings, name = gpu_work(trace), trace.strings, trace.events.name[:]
    place = work.where(work.type == names.KernelType.COMMUNICATION)
    row, launch = work.row[place], work.launch[place]
    arg = CollectiveArgs(trace, row, launch).texts("Collective name")
    host = innermost(trace, launch, (Category.CPU_OP, Category.USER_ANNOTATION), names.starting(trace, *_TELLING))
    kernel = name[row]
    known: dict[str, int] = {}
    codes = np.full(len(row), arrays.NO_VALUE, np.int32)
    by_name = [(code, strings[code]) for code in arrays.distinct(kernel.astype(np.int64)).tolist()]
    for code, named in by_name:
        if (kind_stated := names.stated_kind(trace, named)) is not None:
            codes[kernel == code] = known.setdefault(kind_stated, len(known))
    sources: list[tuple[arrays.Int64s, Sequence[str]]] = [
        (arg.codes.astype(np.int64), arg.values),
        (np.where(host == arrays.NO_INDEX, arrays.NO_VALUE, name[host]), strings),
    ]
    for source, values in sources:
        open_ = np.flatnonzero((codes < 0) & (source >= 0))
        for code in arrays.distinct(source[open_]).tolist():
            if (kind := names.kind_of(values[code])) != names.OTHER:
                codes[open_[source[open_] == code]] = known.setdefault(kind, len(known))
    for code, named in by_name:
        if (lacking := (kernel == code) & (codes < 0)).any():
            codes[lacking] = known.setdefault(names.kind_of(named), len(known))
    return Texts(codes, tuple(known))
