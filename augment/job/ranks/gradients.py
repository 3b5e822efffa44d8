"""When the gradient of each parameter was ready, and how large it is: what DDP's buckets are made of."""

from __future__ import annotations

import numpy as np

from augment.arrays.types import Int64s
from augment.core.trace import Category, Trace
from augment.facts.collectives.collective_kernels import UNKNOWN
from augment.facts.names.kernel_types import element_bytes
from augment.facts.names.name_masks import strings_where
from augment.job.ranks.pipeline_actions import step_at

MOST = 20_000  #: limit for a summary: the first are kept
_ACCUMULATE = "torch::autograd::AccumulateGrad"


def gradient_rows(trace: Trace) -> Int64s:
    """The rows of the operators that accumulate a parameter's gradient in steps, at most :data:`MOST`."""
    events = trace.events
    rows = np.sort(events.slices_of(Category.CPU_OP))
    named = strings_where(trace, lambda name: name == _ACCUMULATE)
    rows = rows[named[events.name[rows]]]
    return rows[step_at(trace, events.ts[rows]) >= 0][:MOST]


def gradient_bytes(trace: Trace, rows: Int64s, step: Int64s) -> Int64s:
    """The size of each gradient, from the shape that ``record_shapes`` records; -1 without.

    The shapes are those of the first step; a step with another number of gradients has none.
    """
    sizes = np.full(len(rows), UNKNOWN, np.int64)
    first = np.flatnonzero(step == step[0]) if len(step) else step
    if not len(first) or not trace.source.metadata.get("record_shapes"):
        return sizes  # avoids reading the source again
    sizes_ = np.array([_bytes(args) for args in trace.args_of(rows[first])], np.int64)
    for number in np.unique(step).tolist():
        places = np.flatnonzero(step == number)
        if len(places) == len(sizes_):
            sizes[places] = sizes_
    return sizes


def _bytes(args: object) -> int:
    if not isinstance(args, dict):
        return UNKNOWN
    dims, kinds = args.get("Input Dims"), args.get("Input type")
    if not (isinstance(dims, list) and dims and isinstance(kinds, list) and kinds):
        return UNKNOWN
    shape, size = dims[0], element_bytes(str(kinds[0]))
    if size is None or not isinstance(shape, list) or not all(isinstance(extent, int) for extent in shape):
        return UNKNOWN
    return int(np.prod(shape, dtype=np.int64)) * size
