"""Does the device wait for the data loader?

PyTorch annotates each fetch of a batch, ``enumerate(DataLoader)#…__next__``. The prediction takes these fetches out of
the steps: the host would have the batch at once. The first fetch of an epoch waits longer, as workers begin to load
only then: PyTorch draws a seed (``aten::random_``) for each iterator, between the fetch before it and its first.

**What to do**: with `_SingleProcessDataLoaderIter`, load in other processes (``num_workers`` above 0). With workers,
they are too slow: more of them, a larger ``prefetch_factor``, ``persistent_workers=True``, less work per sample. But
if most is the first fetch of an epoch, look at later steps before. Use ``pin_memory=True`` and copy with
``non_blocking=True``.
"""

from __future__ import annotations

import numpy as np

from augment.arrays.types import Bools, Int64s
from augment.derived.gpu.gpu_work import gpu_work
from augment.derived.host.enclosing import outermost
from augment.derived.names.matching import STEP, starting
from augment.diagnosis.judging import judged
from augment.diagnosis.measure import FETCH, fetches, fetches_in_steps, host_cut, measure, saved_by_host
from augment.diagnosis.rule import Answer, Fine, NotApplicable, Spans
from augment.diagnosis.wording import a_step, of_a_step, shorter, time
from augment.trace import Category, Trace, derived

NAME = "data_loading"


@derived  # launch_bound asks, too
def check(trace: Trace) -> Answer:
    """Predict steps whose batches are there at once."""
    events = trace.events
    rows = fetches_in_steps(trace)
    if not len(rows):
        return NotApplicable("no step fetches a batch from a torch.utils.data.DataLoader")
    spans = Spans.of(trace, rows)
    cut = host_cut(trace, events.track[rows], spans.start, spans.end)
    alone = not len(gpu_work(trace))
    fetch = int((spans.end - spans.start).sum()) // measure(trace).count
    saved = fetch if alone else saved_by_host(trace, cut)
    return judged(
        trace,
        saved,
        fine=Fine(
            f"fetching batches takes the host {time(fetch)} {a_step(trace)} and would save {of_a_step(trace, saved)}"
        ),
        title=f"The host fetches batches for {time(fetch)} {a_step(trace)}"
        f"{', and computes nothing meanwhile' if alone else ' while the GPU waits'}; without that, "
        + shorter(trace, saved),
        advice=_advice(trace, rows),
        spans=spans,
        confidence="medium" if alone else "high",
        cut=cut,
    )


def _advice(trace: Trace, rows: Int64s) -> str:
    """What to do about the fetches ``rows``."""
    if not any("MultiProcessing" in name for name in trace.names_of(rows)):
        return _WORKERS
    dur, first = trace.events.dur[rows], _first_of_iterators(trace, rows)
    return _BEGINNING if 2 * dur[first].sum() > dur.sum() else _MORE


def _first_of_iterators(trace: Trace, rows: Int64s) -> Bools:
    """Which fetches are an iterator's first: its thread drew a seed, in no operator, after the fetch before."""
    events = trace.events
    operators = events.slices_of(Category.CPU_OP)
    drawn = operators[starting(trace, _DRAW)[events.name[operators]]]
    drawn = drawn[outermost(trace, drawn, (Category.CPU_OP,), ~starting(trace, STEP, FETCH)) == drawn]
    first = np.zeros(len(rows), np.bool_)
    for thread in set(events.track[rows].tolist()):
        seeds, every = (events.ts[each[events.track[each] == thread]] for each in (drawn, fetches(trace)))
        places = np.flatnonzero(events.track[rows] == thread)
        before = np.searchsorted(every, events.ts[rows[places]], side="left") - 1
        since = np.where(before >= 0, every[np.maximum(before, 0)], np.iinfo(np.int64).min)
        first[places] = np.searchsorted(seeds, events.ts[rows[places]]) > np.searchsorted(seeds, since)
    return first


_DRAW = "aten::random_"
_WORKERS = (
    "The main process loads the data itself: give DataLoader num_workers above 0 (start with 4 to 8), pin_memory=True "
    "and persistent_workers=True"
)
_MORE = (
    "The workers are too slow: more num_workers or prefetch_factor, less work per sample (decode and augment ahead of "
    "time or on the GPU), pin_memory=True"
)
_BEGINNING = (
    "Most of it is the first fetch of an epoch, when the workers only begin to load: look at later steps before adding "
    "workers; if epochs are short, persistent_workers=True"
)
