"""The phase of training that launched GPU work."""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from augment.arrays.types import NO_INDEX, Int64s
from augment.core.trace import Category, Trace
from augment.facts.collectives.collective_kernels import UNKNOWN
from augment.facts.host.call_stacks import innermost
from augment.facts.names.name_masks import STEP, starting
from augment.facts.steps.step_windows import steps

_ENGINE = "autograd::engine::evaluate_function"
_AUTOGRAD_THREAD = "pt_autograd"
_OPTIMIZER = "Optimizer.step"


class Phase(IntEnum):
    """Backward is what the thread of the autograd engine launches. The optimizer is what its annotation encloses, and
    all that follows the last backward of the step. The rest is forward."""

    FORWARD = 0
    BACKWARD = 1
    OPTIMIZER = 2


def phases(trace: Trace, launch: Int64s, step: Int64s) -> Int64s:
    """The :class:`Phase` of work by the rows of its launches (in steps of these numbers), -1 where unknown, int64."""
    events = trace.events
    engine = starting(trace, _ENGINE)
    ops = events.slices_of(Category.CPU_OP)
    ops = ops[engine[events.name[ops]]]
    is_autograd = np.array([_AUTOGRAD_THREAD in (track.thread_name or "") for track in trace.tracks], np.bool_)
    is_autograd[events.track[ops]] = True
    annotations = events.slices_of(Category.USER_ANNOTATION)
    is_autograd[events.track[annotations[starting(trace, STEP)[events.name[annotations]]]]] = False
    if not is_autograd.any():
        return np.full(len(launch), UNKNOWN, np.int64)
    backward = is_autograd[events.track[launch]]
    nodes = np.flatnonzero(is_autograd[events.track[:]]) if not len(ops) else ops
    around = innermost(trace, launch, (Category.USER_ANNOTATION,), starting(trace, _OPTIMIZER))
    after = (around != NO_INDEX) | (events.ts[launch] > _last_in_step(trace, events.ts[nodes], step))
    phase = np.where(backward, Phase.BACKWARD, np.where(after, Phase.OPTIMIZER, Phase.FORWARD))
    return np.where(launch == NO_INDEX, UNKNOWN, phase)


def _last_in_step(trace: Trace, ts: Int64s, step: Int64s) -> Int64s:
    """The last of ``ts`` in each of ``step`` (numbers of steps); the greatest integer where there is none."""
    windows = steps(trace)
    ts = np.sort(ts)
    place = np.searchsorted(ts, windows.end, side="left") - 1
    inside = (place >= 0) & (ts[np.maximum(place, 0)] >= windows.ts) if len(ts) else np.zeros(len(place), np.bool_)
    last = {int(number): int(ts[at]) for number, at in zip(windows.number[inside], place[inside], strict=True)}
    never = int(np.iinfo(np.int64).max)
    return np.array([last.get(number, never) for number in step.tolist()], np.int64)
