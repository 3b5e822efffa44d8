"""More columns of a rank's summary: what only the questions about parallel dimensions need.

Each table is a dictionary of equal-length int64 columns by name. ``collectives`` is parallel to the summary's
collectives: ``phase``, the :class:`Phase` that launched it, -1 if unknown; ``unit``, an index into the summary's texts
(the module of the FSDP range that launched it; -1 none); ``ready``, the end of the last work on the main stream that
was launched before it, and ``launched``, both in ns (-1 unknown); ``received``, bytes (-1 unknown); ``expert``, 1 for
kernels of libraries of expert parallelism. ``device`` has one row: the ``index`` of the rank's device and the ``count``
of devices on its node. ``actions`` are the passes of :mod:`augment.job.ranks.pipeline_actions`. ``gradients`` are those
of parameters in the order in which they were ready: ``bytes``, ``step`` and ``ready``, as above. ``limiter`` are the
waits of FSDP's rate limiter in steps: ``dur``, ns.
"""

from __future__ import annotations

import re

import numpy as np

from augment.arrays.types import NO_INDEX, Int64s, Places
from augment.core.findings import Window
from augment.core.trace import Category, Trace
from augment.facts.collectives.collective_kernels import UNKNOWN, collectives
from augment.facts.gpu.gpu_work import gpu_work
from augment.facts.host.call_stacks import innermost
from augment.facts.names.kernel_types import KernelType
from augment.facts.names.name_masks import matching
from augment.job.ranks.gradients import gradient_bytes, gradient_rows
from augment.job.ranks.phases import phases
from augment.job.ranks.pipeline_actions import MOST, pipeline_actions, step_at

Tables = dict[str, dict[str, Int64s]]
#: ranges of FSDP2: ``FSDP::pre_forward (layers.3)``, ``FSDP::forward_prefetch for layers.3``
_EXPERT = re.compile(r"(?:deep_?ep|hybrid_?ep|moeA2A|\b(?:mori|pplx)::)", re.IGNORECASE)  #: as in ``kernel_types``
_OF_COLLECTIVES = ("phase", "unit", "ready", "received", "expert", "launched")
_LIMITER = "FullyShardedDataParallel.rate_limiter"
_UNIT = re.compile(r"FSDP::\w+(?: \((.*)\)| for (.*))?$")


def tables_of(trace: Trace, chosen: Places, window: Window | None) -> tuple[Tables, dict[str, list[str]]]:
    """The tables of a rank in the ``window``, of its ``chosen`` collectives; and the texts that columns index."""
    records, units = collectives(trace), list[str]()
    if len(records):
        launch = gpu_work(trace).launch[records.place[chosen]]
        unit, units = _units(trace, launch)
        phase = phases(trace, launch, records.step[chosen])
        of_collectives = {"phase": phase, "unit": unit, "ready": _ready(trace, launch)}
        of_collectives["received"] = records.received[chosen]
        names = trace.events.name[gpu_work(trace).row[records.place[chosen]]]
        of_collectives["expert"] = matching(trace, _EXPERT)[names].astype(np.int64)
        of_collectives["launched"] = np.where(launch == NO_INDEX, UNKNOWN, trace.events.ts[launch])
    else:  # those of the host, if any, are not launched
        of_collectives = {name: np.full(len(chosen), UNKNOWN, np.int64) for name in _OF_COLLECTIVES}
        of_collectives["expert"] = np.zeros(len(chosen), np.int64)
    actions = pipeline_actions(trace)
    inside = np.ones(len(actions.step), np.bool_)
    if window is not None:
        inside = (actions.step >= window.first_step) & (actions.step <= window.last_step)
    actions = actions.take(np.flatnonzero(inside)[:MOST])
    tables = {"collectives": of_collectives, "device": _device(trace), "actions": actions.columns()}
    tables["gradients"] = _gradients(trace, window)
    tables["limiter"] = _limiter(trace, window)
    return tables, {"unit": units}


def unit_names(trace: Trace) -> dict[int, str]:
    """The module in each name that is an FSDP range, by the name's code; empty for the root."""
    matches = ((code, _UNIT.match(name)) for code, name in enumerate(trace.strings))
    return {code: match[1] or match[2] or "" for code, match in matches if match}


def _units(trace: Trace, launch: Int64s) -> tuple[Int64s, list[str]]:
    """The module of the innermost FSDP range around each launch, such as ``layers.3``; the root has no name."""
    names = unit_names(trace)
    if not names:
        return np.full(len(launch), UNKNOWN, np.int64), []
    texts = sorted({text or "" for text in names.values()})
    table = np.full(len(trace.strings), UNKNOWN, np.int64)
    for code, text in names.items():
        table[code] = texts.index(text or "")
    row = innermost(trace, launch, (Category.USER_ANNOTATION, Category.CPU_OP), table >= 0)
    return np.where(row == NO_INDEX, UNKNOWN, table[trace.events.name[row]]), texts


def _ready(trace: Trace, launch: Int64s) -> Int64s:
    """When the work was done that was on the main stream when each collective was launched: DDP and FSDP let the
    stream of communication wait for it."""
    known = launch != NO_INDEX
    return np.where(known, _done_before(trace, trace.events.ts[launch]), UNKNOWN)


def _done_before(trace: Trace, moments: Int64s) -> Int64s:
    """When the work was done that had been launched on the main stream before each moment; -1 without any. The main
    stream is that with the most kernels that compute."""
    work, events = gpu_work(trace), trace.events
    counts = [np.count_nonzero(work.type[stream.places] == KernelType.COMPUTATION) for stream in work.streams]
    ready = np.full(len(moments), UNKNOWN, np.int64)
    if not any(counts):
        return ready
    main = work.streams[int(np.argmax(counts))]
    of_main = np.arange(main.start, main.stop)
    of_main = of_main[(work.launch[of_main] != NO_INDEX) & (work.type[of_main] != KernelType.COMMUNICATION)]
    launched = events.ts[work.launch[of_main]]
    order = np.argsort(launched, kind="stable")
    place = np.searchsorted(launched[order], moments, side="left") - 1
    known = place >= 0
    ready[known] = work.end[of_main[order[place[known]]]]
    return ready


def _device(trace: Trace) -> dict[str, Int64s]:
    devices = gpu_work(trace).devices
    listed = trace.source.metadata.get("deviceProperties")
    index = devices[0].device if len(devices) == 1 else None
    count = len(listed) if isinstance(listed, list) else 0
    return {
        "index": np.array([index if isinstance(index, int) else UNKNOWN], np.int64),
        "count": np.array([count or UNKNOWN], np.int64),
    }


def _gradients(trace: Trace, window: Window | None) -> dict[str, Int64s]:
    rows = gradient_rows(trace)
    ts = trace.events.ts[rows]
    step = step_at(trace, ts)
    if window is not None:
        inside = (step >= window.first_step) & (step <= window.last_step)
        rows, ts, step = rows[inside], ts[inside], step[inside]
    return {"bytes": gradient_bytes(trace, rows, step), "step": step, "ready": _done_before(trace, ts)}


def _limiter(trace: Trace, window: Window | None) -> dict[str, Int64s]:
    events = trace.events
    rows = events.slices_of(Category.USER_ANNOTATION, Category.CPU_OP)
    rows = rows[matching(trace, re.compile(_LIMITER))[events.name[rows]]]
    step = step_at(trace, events.ts[rows])
    inside = step >= 0
    if window is not None:
        inside &= (step >= window.first_step) & (step <= window.last_step)
    return {"dur": events.dur[rows[inside]]}
