"""Does the optimizer run a kernel for each operation and parameter?

PyTorch annotates ``Optimizer.step#…``. A plain loop launches about a dozen small kernels per parameter; ``foreach``
works on lists of parameters; ``fused`` does all of it in few kernels, which read and write each number once. The
prediction lets the host take no time in the annotation; kernels of a loop or of ``foreach`` keep a third of their time,
as a fused Adam moves 7 numbers per parameter where single operations move some 22.

**What to do**: ``torch.optim.AdamW(params, fused=True)``; ``foreach=True`` where there is no fused version.
"""

from __future__ import annotations

import numpy as np

from augment.arrays.ordering import is_any
from augment.arrays.types import Bools, Int64s
from augment.derived.critical.savings import fused, joined
from augment.derived.gpu.gpu_work import gpu_work
from augment.derived.gpu.kernel_families import kernel_families
from augment.derived.gpu.launches import NO_ROW
from augment.derived.host.enclosing import innermost
from augment.derived.names.matching import starting, strings_where
from augment.diagnosis.judging import judged
from augment.diagnosis.measure import host_cut, measure, rows_in_steps, saved_a_step, work_in_steps
from augment.diagnosis.rule import Answer, Fine, NotApplicable, Spans
from augment.diagnosis.wording import a_step, count, listed, of_a_step, short, shorter
from augment.trace import Category, Trace, derived

NAME = "unfused_optimizer"
KEPT = 1 / 3  #: of the kernels' time
MOST_KERNELS = 32  #: that a fused step launches
MOSTLY = 0.8  #: this share of the kernels must be single operations: else the optimizer does more than update
_STEP = "Optimizer.step#"
_SINGLE = ("elementwise", "optimizer", "copy_transpose")
_FUSED = ("FusedAdam", "FusedSgd", "FusedAdagrad", "fused_adam", "fused_sgd", "triton_")


@derived
def _steps_of_optimizers(trace: Trace) -> Bools:
    """For each string whether it names a step of an optimizer."""
    return starting(trace, _STEP)


@derived
def in_optimizer(trace: Trace) -> Bools:
    """Whether each piece of ``gpu_work`` was launched in a step of an optimizer."""
    work = gpu_work(trace)
    inside = np.zeros(len(work), np.bool_)
    known = np.flatnonzero(work.launch != NO_ROW)
    if _steps_of_optimizers(trace).any() and len(known):
        around = innermost(trace, work.launch[known], (Category.USER_ANNOTATION,), _steps_of_optimizers(trace))
        inside[known] = around >= 0
    return inside


def check(trace: Trace) -> Answer:
    """Predict steps with a fused optimizer."""
    events, work = trace.events, gpu_work(trace)
    rows = events.slices_of(Category.USER_ANNOTATION)
    rows = rows_in_steps(trace, rows[_steps_of_optimizers(trace)[events.name[rows]]])
    if not len(rows):
        return NotApplicable("no step of an optimizer was recorded")
    places = np.flatnonzero(in_optimizer(trace) & work_in_steps(trace) & (events.category[work.row] == Category.KERNEL))
    number = len(places) / len(rows)
    names = [short(name) for name in sorted(set(trace.names_of(rows)))]
    plain = places[_single(trace)[places] & ~_fused(trace, work.row[places])]
    if number <= MOST_KERNELS or len(plain) < MOSTLY * len(places):
        return Fine(f"the optimizer ({listed(names)}) launches {count(number, 'kernel')}")
    dur = np.maximum(work.end[plain] - work.ts[plain], 0)
    spans = Spans.of(trace, rows)
    cut = joined(
        [
            host_cut(trace, events.track[rows], spans.start, spans.end),
            fused(trace, plain, (dur * (1 - KEPT)).astype(np.int64)),
        ]
    )
    saved = saved_a_step(trace, cut)
    each = measure(trace)
    return judged(
        trace,
        saved,
        fine=Fine(f"the optimizer launches {count(number, 'kernel')}; fused, it would save {of_a_step(trace, saved)}"),
        title=f"The optimizer ({listed(names)}) launches {count(len(places) / each.count, 'kernel')} {a_step(trace)} "
        "where a fused one launches a few; fused, " + shorter(trace, saved),
        advice="Pass fused=True to the optimizer, or foreach=True where it has no fused version",
        spans=spans,
        confidence="medium",
        cut=cut,
    )


def _single(trace: Trace) -> Bools:
    """Whether each piece of GPU work is one operation on numbers, or on lists of tensors."""
    families = kernel_families(trace)
    single: Bools = is_any(families.family, [families.names.index(name) for name in _SINGLE if name in families.names])
    return single


def _fused(trace: Trace, rows: Int64s) -> Bools:
    """Whether each kernel is one of a fused optimizer, or compiled."""
    fused = strings_where(trace, lambda name: any(part in name for part in _FUSED))
    return fused[trace.events.name[rows]]
