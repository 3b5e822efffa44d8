"""More columns of a rank's summary: what only the questions about parallel dimensions need.

Each table is a dictionary of equal-length int64 columns by name. ``collectives`` is parallel to the summary's
collectives: ``phase``, the :class:`Phase` that launched it, -1 if unknown; ``unit``, an index into the summary's texts
(the module of the FSDP range that launched it; -1 none); ``ready``, the end of the last work on the main stream that
was launched before it, and ``launched``, both in ns (-1 unknown); ``received``, bytes (-1 unknown); ``expert``, 1 for
kernels of libraries of expert parallelism. ``device`` has one row: the ``index`` of the rank's device and the ``count``
of devices on its node. ``actions`` are the passes of :mod:`augment.job.ranks.pipeline_actions`. ``gradients`` are those
of parameters in the order in which they were ready: ``bytes``, ``step`` and ``ready``, as above. ``limiter`` are the
waits of FSDP's rate limiter in steps: ``dur``, ns. ``work`` are the operations of the matrix products whose shapes are
known, ``flops``, by ``step``. ``earlier``, parallel to the collectives, and ``steps earlier``, to the steps, have
columns of each of a few findings, such as ``matrix_units begins``: by how much earlier the rank, with it fixed, would
get on (:class:`augment.diagnosis.ranking.Advance`), ns. It ``begins`` a collective, has done what that waits for
(``ready``), and does nothing else any more (``stopped``); it is at the ``start`` and the ``end`` of a step.
"""

from __future__ import annotations

import re
from enum import IntEnum

import numpy as np
from msgspec import Struct

from augment import facts
from augment.arrays import NO_INDEX, NO_VALUE, Bools, CollectiveIndexes, EventRows, Int64s, Places, distinct, run_starts
from augment.core import Category, Trace, Window

Tables = dict[str, dict[str, Int64s]]
#: ranges of FSDP2: ``FSDP::pre_forward (layers.3)``, ``FSDP::forward_prefetch for layers.3``
_EXPERT = re.compile(r"(?:deep_?ep|hybrid_?ep|moeA2A|\b(?:mori|pplx)::)", re.IGNORECASE)  #: as in ``kernel_types``
_OF_COLLECTIVES = ("phase", "unit", "ready", "received", "expert", "launched")
_UNIT = re.compile(r"FSDP::\w+(?: \((.*)\)| for (.*))?$")


def tables_of(trace: Trace, chosen: CollectiveIndexes, window: Window | None) -> tuple[Tables, dict[str, list[str]]]:
    """The tables of a rank in the ``window``, of its ``chosen`` collectives; and the texts that columns index."""
    records, units = facts.collectives.kernels(trace), list[str]()
    if len(records):
        launch = facts.gpu.work(trace).launch[records.place[chosen]]
        unit, units = _units(trace, launch)
        phase = phases(trace, launch, records.step[chosen])
        known = launch != NO_INDEX
        of_collectives = {
            "phase": phase,
            "unit": unit,
            "ready": np.where(known, _done_before(trace, trace.events.ts[launch]), NO_VALUE),
        }
        of_collectives["received"] = records.received[chosen]
        names = trace.events.name[facts.gpu.work(trace).row[records.place[chosen]]]
        of_collectives["expert"] = facts.names.matching(trace, _EXPERT)[names].astype(np.int64)
        of_collectives["launched"] = np.where(launch == NO_INDEX, NO_VALUE, trace.events.ts[launch])
    else:  # those of the host, if any, are not launched
        of_collectives = {name: np.full(len(chosen), NO_VALUE, np.int64) for name in _OF_COLLECTIVES}
        of_collectives["expert"] = np.zeros(len(chosen), np.int64)
    actions = pipeline_actions(trace)
    inside = np.ones(len(actions.step), np.bool_)
    if window is not None:
        inside = (actions.step >= window.first_step) & (actions.step <= window.last_step)
    actions = actions.take(np.flatnonzero(inside)[:MOST])
    devices = facts.gpu.work(trace).devices
    listed = trace.source.metadata.get("deviceProperties")
    index = devices[0].device if len(devices) == 1 else None
    count = len(listed) if isinstance(listed, list) else 0
    device = {
        "index": np.array([index if isinstance(index, int) else NO_VALUE], np.int64),
        "count": np.array([count or NO_VALUE], np.int64),
    }
    tables = {"collectives": of_collectives, "device": device, "actions": actions.columns()}
    rows = gradient_rows(trace)
    ts = trace.events.ts[rows]
    step = step_at(trace, ts)
    if window is not None:
        inside = (step >= window.first_step) & (step <= window.last_step)
        rows, ts, step = rows[inside], ts[inside], step[inside]
    tables["gradients"] = {"bytes": gradient_bytes(trace, rows, step), "step": step, "ready": _done_before(trace, ts)}
    events = trace.events
    rows = events.slices_of(Category.USER_ANNOTATION, Category.CPU_OP)
    rows = rows[facts.names.matching(trace, re.compile("FullyShardedDataParallel.rate_limiter"))[events.name[rows]]]
    step = step_at(trace, events.ts[rows])
    inside = step >= 0
    if window is not None:
        inside &= (step >= window.first_step) & (step <= window.last_step)
    tables["limiter"] = {"dur": events.dur[rows[inside]]}
    place, kind, _, works = facts.operators.counted(trace)
    flops = np.array([work.flops or 0 for work in works], np.float64)[kind]
    number, which = np.unique(step_at(trace, events.ts[facts.host.stacks(trace).row[place]]), return_inverse=True)
    if window is not None:
        number = np.where((number >= window.first_step) & (number <= window.last_step), number, NO_VALUE)
    tables["work"] = {"step": number, "flops": np.bincount(which, flops, len(number)).astype(np.int64)}
    return tables, {"unit": units}


def unit_names(trace: Trace) -> dict[int, str]:
    """The module in each name that is an FSDP range, by the name's code; empty for the root."""
    matches = ((code, _UNIT.match(name)) for code, name in enumerate(trace.strings))
    return {code: match[1] or match[2] or "" for code, match in matches if match}


def _units(trace: Trace, launch: EventRows) -> tuple[Int64s, list[str]]:
    """The module of the innermost FSDP range around each launch, such as ``layers.3``; the root has no name."""
    names = unit_names(trace)
    if not names:
        return np.full(len(launch), NO_VALUE, np.int64), []
    texts = sorted({text or "" for text in names.values()})
    table = np.full(len(trace.strings), NO_VALUE, np.int64)
    for code, text in names.items():
        table[code] = texts.index(text or "")
    row = facts.host.innermost(trace, launch, (Category.USER_ANNOTATION, Category.CPU_OP), table >= 0)
    return np.where(row == NO_INDEX, NO_VALUE, table[trace.events.name[row]]), texts


def _done_before(trace: Trace, moments: Int64s) -> Int64s:
    """When the work was done that had been launched on the main stream before each moment; -1 without any. The main
    stream is that with the most kernels that compute."""
    work, events = facts.gpu.work(trace), trace.events
    counts = [
        np.count_nonzero(work.type[stream.places] == facts.names.KernelType.COMPUTATION) for stream in work.streams
    ]
    ready = np.full(len(moments), NO_VALUE, np.int64)
    if not any(counts):
        return ready
    main = work.streams[int(np.argmax(counts))]
    of_main = np.arange(main.start, main.stop)
    of_main = of_main[(work.launch[of_main] != NO_INDEX) & (work.type[of_main] != facts.names.KernelType.COMMUNICATION)]
    launched = events.ts[work.launch[of_main]]
    order = np.argsort(launched, kind="stable")
    place = np.searchsorted(launched[order], moments, side="left") - 1
    known = place >= 0
    ready[known] = work.end[of_main[order[place[known]]]]
    return ready


# When the gradient of each parameter was ready, and how large it is: what DDP's buckets are made of.


MOST_GRADIENTS = 20_000  #: limit for a summary: the first are kept


def gradient_rows(trace: Trace) -> EventRows:
    """The rows of the operators that accumulate a parameter's gradient in steps, at most :data:`MOST_GRADIENTS`."""
    events = trace.events
    rows = np.sort(events.slices_of(Category.CPU_OP))
    named = facts.names.strings_where(trace, lambda name: name == "torch::autograd::AccumulateGrad")
    rows = rows[named[events.name[rows]]]
    return rows[step_at(trace, events.ts[rows]) >= 0][:MOST_GRADIENTS]


def gradient_bytes(trace: Trace, rows: EventRows, step: Int64s) -> Int64s:
    """The size of each gradient, from the shape that ``record_shapes`` records; -1 without.

    The shapes are those of the first step; a step with another number of gradients has none.
    """
    sizes = np.full(len(rows), NO_VALUE, np.int64)
    first = np.flatnonzero(step == step[0]) if len(step) else step
    if not len(first) or not trace.source.metadata.get("record_shapes"):
        return sizes  # avoids reading the source again
    sizes_ = np.array([_bytes(args) for args in trace.args_of(rows[first])], np.int64)
    for number in distinct(step).tolist():
        places = np.flatnonzero(step == number)
        if len(places) == len(sizes_):
            sizes[places] = sizes_
    return sizes


def _bytes(args: object) -> int:
    if not isinstance(args, dict):
        return NO_VALUE
    dims, kinds = args.get("Input Dims"), args.get("Input type")
    if not (isinstance(dims, list) and dims and isinstance(kinds, list) and kinds):
        return NO_VALUE
    shape, size = dims[0], facts.names.element_bytes(str(kinds[0]))
    if size is None or not isinstance(shape, list) or not all(isinstance(extent, int) for extent in shape):
        return NO_VALUE
    return int(np.prod(shape, dtype=np.int64)) * size


# The forward and backward passes of microbatches on a rank that is a stage of a pipeline.
#
# They are found by labels: the ranges of torch.distributed.pipelining (``Forward 3`` of its GPipe; ``PP:2F3``,
# microbatch 3 on stage 2, of schedules with several stages a rank), Megatron's functions (with ``with_stack``), and the
# ranges of pipeline timelines. Without labels, but with sends and receives, they are found by phases: runs of
# computation that the autograd engine launched or not, parted by sends and receives.


MOST = 100_000  #: limit for a summary: the first are kept
_LEAST_SHARE = 0.1  #: of the median pass: shorter runs of computation between sends are no passes
_PASS = re.compile(r"(Forward|Backward) (\d+)(?: of chunk (\d+))?$")
_ACTION = re.compile(r"PP:(\d+)([FIBW])(\d+)$")
_OVERLAP = re.compile(r"PP:\((\d+)F(\d+);\d+[FIBW]\d+\)OVERLAP_F_B$")
_MEGATRON = re.compile(r"(?:.*/)?schedules\.py\(\d+\): (forward|backward)_step$")


class ActionKind(IntEnum):
    """What a pass is. ``BACKWARD`` is whole; ``INPUT`` and ``WEIGHT`` are its two halves."""

    FORWARD = 0
    BACKWARD = 1
    INPUT = 2
    WEIGHT = 3
    OVERLAPPED = 4  #: a forward and a backward at once


class ActionSource(IntEnum):
    """How passes are known."""

    LABELS = 0
    PHASES = 1
    TIMELINE = 2


class Actions(Struct, frozen=True):
    """Equal-length int64 columns, in the order of the host: ``kind`` (a :class:`ActionKind`), ``microbatch`` and
    ``chunk`` (the part of the model; -1 unknown), ``step`` (a number, -1 outside), ``start`` and ``end`` of their work,
    ns, and ``source`` (a :class:`ActionSource`)."""

    kind: Int64s
    microbatch: Int64s
    chunk: Int64s
    step: Int64s
    start: Int64s
    end: Int64s
    source: Int64s

    def take(self, places: Places) -> Actions:
        """The actions at ``places``."""
        return Actions(*(getattr(self, name)[places] for name in Actions.__struct_fields__))

    def columns(self) -> dict[str, Int64s]:
        """The columns by name."""
        return {name: getattr(self, name) for name in Actions.__struct_fields__}


def pipeline_actions(trace: Trace) -> Actions:
    """The passes of a rank; none if it is no stage of a pipeline."""
    # Kind, microbatch and chunk of each name that is a label, by its code
    labels: dict[int, tuple[int, int, int]] = {}
    for code, name in enumerate(trace.strings):
        if match := _PASS.match(name):
            labels[code] = (ActionKind[match[1].upper()], int(match[2]), int(match[3] or NO_VALUE))
        elif match := _ACTION.match(name):
            labels[code] = (ActionKind("FBIW".index(match[2])), int(match[3]), int(match[1]))
        elif match := _OVERLAP.match(name):
            labels[code] = (ActionKind.OVERLAPPED, int(match[2]), int(match[1]))
        elif match := _MEGATRON.match(name):
            labels[code] = (ActionKind[match[1].upper()], NO_VALUE, NO_VALUE)
    if labels:
        codes = np.array(sorted(labels), np.int64)
        host = _slices(trace, codes, Category.USER_ANNOTATION, Category.PYTHON_FUNCTION)
        if len(host):
            # passes by ranges of the host: from the start of the first computation launched in them to the end of the
            # last. The launch may be on any thread: backward runs on the autograd engine's. Without any GPU work, the
            # ranges of actions (``PP:2F3``) are the passes. Those of GPipe also contain the waits of the host for
            # messages
            work, events = facts.gpu.work(trace), trace.events
            actions = _of_ranges(trace, host, labels, ActionSource.LABELS)
            computing = np.flatnonzero((work.type == facts.names.KernelType.COMPUTATION) & (work.launch != NO_INDEX))
            if not len(computing):
                return actions.take(np.flatnonzero(actions.chunk != NO_VALUE))
            launched = events.ts[work.launch[computing]]
            place = np.searchsorted(events.ts[host], launched, side="right") - 1
            inside = (place >= 0) & (launched < events.end[host[place]])
            start, end = _extents(place[inside], work.ts[computing[inside]], work.end[computing[inside]], len(host))
            kept = np.flatnonzero(end > start)
            columns = actions.columns() | {"start": start, "end": end}
            return Actions(**columns).take(kept)
        return _of_ranges(trace, _slices(trace, codes, Category.GPU_USER_ANNOTATION), labels, ActionSource.TIMELINE)
    known = facts.collectives.kernels(trace)
    codes = np.array(
        [code for code, kind in enumerate(known.kind.values) if kind in facts.names.POINT_TO_POINT], np.int64
    )
    sends = known.place[np.isin(known.kind.codes, codes)]
    return _of_phases(trace, sends) if len(sends) else _none()


def _slices(trace: Trace, codes: Int64s, *categories: Category) -> EventRows:
    """The rows of the outermost slices with these names, ascending. A slice that begins just before another ends, as
    times are rounded, is beside it."""
    events = trace.events
    rows = np.sort(events.slices_of(*categories))
    rows = rows[np.isin(events.name[rows], codes)]
    end = np.maximum.accumulate(events.end[rows]) if len(rows) else events.ts[rows]
    outer = np.ones(len(rows), np.bool_)
    outer[1:] = (events.ts[rows] + events.dur[rows] // 2)[1:] >= end[:-1]
    return rows[outer]


def _of_ranges(trace: Trace, rows: EventRows, labels: dict[int, tuple[int, int, int]], source: ActionSource) -> Actions:
    events = trace.events
    triples = np.array([labels[int(code)] for code in events.name[rows]], np.int64).reshape(-1, 3)
    ts, end = events.ts[rows], events.end[rows]
    known = np.full(len(rows), source, np.int64)
    return Actions(triples[:, 0], triples[:, 1], triples[:, 2], step_at(trace, ts), ts, end, known)


def _of_phases(trace: Trace, sends: Places) -> Actions:
    """Passes by phases; ``sends`` are the places of sends and receives in ``gpu_work``."""
    work, events = facts.gpu.work(trace), trace.events
    computing = np.flatnonzero((work.type == facts.names.KernelType.COMPUTATION) & (work.launch != NO_INDEX))
    launched = events.ts[work.launch[computing]]
    order = np.argsort(launched, kind="stable")
    computing, launched = computing[order], launched[order]
    step = step_at(trace, launched)
    phase = phases(trace, work.launch[computing], step)
    if not len(phase) or (phase == NO_VALUE).all():
        return _none()
    sent = np.sort(events.ts[work.launch[sends[work.launch[sends] != NO_INDEX]]])
    part = np.searchsorted(sent, launched)
    keys = (part * len(Phase) + phase) * (int(step.max(initial=0)) + 2) + step
    first = run_starts(keys)
    run = np.repeat(np.arange(len(first)), np.diff(np.append(first, len(keys))))
    start, end = _extents(run, work.ts[computing], work.end[computing], len(first))
    busy = np.bincount(run, work.end[computing] - work.ts[computing], len(first))
    of = phase[first]
    wanted = np.isin(of, (Phase.FORWARD, Phase.BACKWARD)) & (step[first] != NO_VALUE)
    for each in (Phase.FORWARD, Phase.BACKWARD):
        of_phase = wanted & (of == each)
        if of_phase.any():
            wanted &= ~of_phase | (busy >= _LEAST_SHARE * np.median(busy[of_phase]))
    kind = np.where(of == Phase.FORWARD, ActionKind.FORWARD, ActionKind.BACKWARD).astype(np.int64)
    unknown = np.full(len(first), NO_VALUE, np.int64)
    known = np.full(len(first), ActionSource.PHASES, np.int64)
    return Actions(kind, unknown, unknown, step[first], start, end, known).take(np.flatnonzero(wanted))


def _extents(code: Int64s, ts: Int64s, end: Int64s, count: int) -> tuple[Int64s, Int64s]:
    """The first of ``ts`` and the last of ``end`` of each code; equal where there is none."""
    first, last = np.full(count, np.iinfo(np.int64).max), np.zeros(count, np.int64)
    np.minimum.at(first, code, ts)
    np.maximum.at(last, code, end)
    missing: Bools = first == np.iinfo(np.int64).max
    return np.where(missing, 0, first), np.where(missing, 0, last)


def step_at(trace: Trace, ts: Int64s) -> Int64s:
    """The number of the step that the host is in at each moment; -1 where there is none."""
    windows = facts.steps.recorded(trace)
    place = np.searchsorted(windows.ts, ts, side="right") - 1
    inside = (place >= 0) & (ts < np.append(windows.end, 0)[place])
    return np.where(inside, np.append(windows.number, NO_VALUE)[place], NO_VALUE)


def _none() -> Actions:
    empty = np.empty(0, np.int64)
    return Actions(*[empty] * len(Actions.__struct_fields__))


# The phase of training that launched GPU work.


class Phase(IntEnum):
    """Backward is what the thread of the autograd engine launches. The optimizer is what its annotation encloses, and
    all that follows the last backward of the step. The rest is forward."""

    FORWARD = 0
    BACKWARD = 1
    OPTIMIZER = 2


def phases(trace: Trace, launch: EventRows, step: Int64s) -> Int64s:
    """The :class:`Phase` of work by the rows of its launches (in steps of these numbers), -1 where unknown, int64."""
    events = trace.events
    engine = facts.names.starting(trace, "autograd::engine::evaluate_function")
    ops = events.slices_of(Category.CPU_OP)
    ops = ops[engine[events.name[ops]]]
    is_autograd = np.array(["pt_autograd" in (track.thread_name or "") for track in trace.tracks], np.bool_)
    is_autograd[events.track[ops]] = True
    annotations = events.slices_of(Category.USER_ANNOTATION)
    is_autograd[events.track[annotations[facts.names.starting(trace, facts.names.STEP)[events.name[annotations]]]]] = (
        False
    )
    if not is_autograd.any():
        return np.full(len(launch), NO_VALUE, np.int64)
    backward = is_autograd[events.track[launch]]
    nodes = np.flatnonzero(is_autograd[events.track[:]]) if not len(ops) else ops
    around = facts.host.innermost(trace, launch, (Category.USER_ANNOTATION,), facts.gpu.steps_of_optimizers(trace))
    # the last of these in each step; the greatest integer where there is none
    ts, windows = np.sort(events.ts[nodes]), facts.steps.recorded(trace)
    place = np.searchsorted(ts, windows.end, side="left") - 1
    inside = (place >= 0) & (ts[np.maximum(place, 0)] >= windows.ts) if len(ts) else np.zeros(len(place), np.bool_)
    last = {int(number): int(ts[at]) for number, at in zip(windows.number[inside], place[inside], strict=True)}
    never = int(np.iinfo(np.int64).max)
    after = (around != NO_INDEX) | (
        events.ts[launch] > np.array([last.get(number, never) for number in step.tolist()], np.int64)
    )
    phase = np.where(backward, Phase.BACKWARD, np.where(after, Phase.OPTIMIZER, Phase.FORWARD))
    return np.where(launch == NO_INDEX, NO_VALUE, phase)
