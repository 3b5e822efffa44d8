"""The forward and backward passes of microbatches on a rank that is a stage of a pipeline.

They are found by labels: the ranges of torch.distributed.pipelining (``Forward 3`` of its GPipe; ``PP:2F3``, microbatch
3 on stage 2, of schedules with several stages a rank), Megatron's functions (with ``with_stack``), and the ranges of
pipeline timelines. Without labels, but with sends and
receives, they are found by phases: runs of computation that the autograd engine launched or not, parted by sends and
receives.
"""

from __future__ import annotations

import re
from enum import IntEnum

import numpy as np
from msgspec import Struct

from augment.arrays.ordering import run_starts
from augment.arrays.types import NO_INDEX, Bools, Int64s, Places
from augment.core.trace import Category, Trace
from augment.facts.collectives.collective_kernels import UNKNOWN, collectives
from augment.facts.gpu.gpu_work import gpu_work
from augment.facts.names.kernel_types import POINT_TO_POINT, KernelType
from augment.facts.steps.step_windows import steps
from augment.job.ranks.phases import Phase, phases

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
    labels = _labels(trace)
    if labels:
        codes = np.array(sorted(labels), np.int64)
        host = _slices(trace, codes, Category.USER_ANNOTATION, Category.PYTHON_FUNCTION)
        if len(host):
            return _of_work(trace, host, labels)
        return _of_ranges(trace, _slices(trace, codes, Category.GPU_USER_ANNOTATION), labels, ActionSource.TIMELINE)
    known = collectives(trace)
    codes = np.array([code for code, kind in enumerate(known.kind.values) if kind in POINT_TO_POINT], np.int64)
    sends = known.place[np.isin(known.kind.codes, codes)]
    return _of_phases(trace, sends) if len(sends) else _none()


def _labels(trace: Trace) -> dict[int, tuple[int, int, int]]:
    """Kind, microbatch and chunk of each name that is a label, by its code."""
    out: dict[int, tuple[int, int, int]] = {}
    for code, name in enumerate(trace.strings):
        if match := _PASS.match(name):
            out[code] = (ActionKind[match[1].upper()], int(match[2]), int(match[3] or UNKNOWN))
        elif match := _ACTION.match(name):
            out[code] = (ActionKind("FBIW".index(match[2])), int(match[3]), int(match[1]))
        elif match := _OVERLAP.match(name):
            out[code] = (ActionKind.OVERLAPPED, int(match[2]), int(match[1]))
        elif match := _MEGATRON.match(name):
            out[code] = (ActionKind[match[1].upper()], UNKNOWN, UNKNOWN)
    return out


def _slices(trace: Trace, codes: Int64s, *categories: Category) -> Int64s:
    """The rows of the outermost slices with these names, ascending."""
    events = trace.events
    rows = np.sort(events.slices_of(*categories))
    rows = rows[np.isin(events.name[rows], codes)]
    end = np.maximum.accumulate(events.end[rows]) if len(rows) else rows
    outer = np.ones(len(rows), np.bool_)
    outer[1:] = events.ts[rows][1:] >= end[:-1]
    return rows[outer]


def _of_work(trace: Trace, rows: Int64s, labels: dict[int, tuple[int, int, int]]) -> Actions:
    """Passes by ranges of the host: from the start of the first computation launched in them to the end of the last.

    The launch may be on any thread: backward runs on the autograd engine's. Without any GPU work, the ranges of actions
    (``PP:2F3``) are the passes. Those of GPipe also contain the waits of the host for messages.
    """
    work, events = gpu_work(trace), trace.events
    actions = _of_ranges(trace, rows, labels, ActionSource.LABELS)
    computing = np.flatnonzero((work.type == KernelType.COMPUTATION) & (work.launch != NO_INDEX))
    if not len(computing):
        return actions.take(np.flatnonzero(actions.chunk != UNKNOWN))
    launched = events.ts[work.launch[computing]]
    place = np.searchsorted(events.ts[rows], launched, side="right") - 1
    inside = (place >= 0) & (launched < events.end[rows[place]])
    start, end = _extents(place[inside], work.ts[computing[inside]], work.end[computing[inside]], len(rows))
    kept = np.flatnonzero(end > start)
    columns = actions.columns() | {"start": start, "end": end}
    return Actions(**columns).take(kept)


def _of_ranges(trace: Trace, rows: Int64s, labels: dict[int, tuple[int, int, int]], source: ActionSource) -> Actions:
    events = trace.events
    triples = np.array([labels[int(code)] for code in events.name[rows]], np.int64).reshape(-1, 3)
    ts, end = events.ts[rows], events.end[rows]
    known = np.full(len(rows), source, np.int64)
    return Actions(triples[:, 0], triples[:, 1], triples[:, 2], step_at(trace, ts), ts, end, known)


def _of_phases(trace: Trace, sends: Places) -> Actions:
    """Passes by phases; ``sends`` are the places of sends and receives in ``gpu_work``."""
    work, events = gpu_work(trace), trace.events
    computing = np.flatnonzero((work.type == KernelType.COMPUTATION) & (work.launch != NO_INDEX))
    launched = events.ts[work.launch[computing]]
    order = np.argsort(launched, kind="stable")
    computing, launched = computing[order], launched[order]
    step = step_at(trace, launched)
    phase = phases(trace, work.launch[computing], step)
    if not len(phase) or (phase == UNKNOWN).all():
        return _none()
    sent = np.sort(events.ts[work.launch[sends[work.launch[sends] != NO_INDEX]]])
    part = np.searchsorted(sent, launched)
    keys = (part * len(Phase) + phase) * (int(step.max(initial=0)) + 2) + step
    first = run_starts(keys)
    run = np.repeat(np.arange(len(first)), np.diff(np.append(first, len(keys))))
    start, end = _extents(run, work.ts[computing], work.end[computing], len(first))
    busy = np.bincount(run, work.end[computing] - work.ts[computing], len(first))
    of = phase[first]
    wanted = np.isin(of, (Phase.FORWARD, Phase.BACKWARD)) & (step[first] != UNKNOWN)
    for each in (Phase.FORWARD, Phase.BACKWARD):
        of_phase = wanted & (of == each)
        if of_phase.any():
            wanted &= ~of_phase | (busy >= _LEAST_SHARE * np.median(busy[of_phase]))
    kind = np.where(of == Phase.FORWARD, ActionKind.FORWARD, ActionKind.BACKWARD).astype(np.int64)
    unknown = np.full(len(first), UNKNOWN, np.int64)
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
    windows = steps(trace)
    place = np.searchsorted(windows.ts, ts, side="right") - 1
    inside = (place >= 0) & (ts < np.append(windows.end, 0)[place])
    return np.where(inside, np.append(windows.number, UNKNOWN)[place], UNKNOWN)


def _none() -> Actions:
    empty = np.empty(0, np.int64)
    return Actions(*[empty] * len(Actions.__struct_fields__))
