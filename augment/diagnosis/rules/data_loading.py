"""Does the device wait for the data loader?

PyTorch annotates each fetch of a batch, ``enumerate(DataLoader)#…__next__``. The prediction takes these fetches out of
the steps: the host would have the batch at once.

**What to do**: with `_SingleProcessDataLoaderIter`, load in other processes (``num_workers`` above 0). With workers,
they are too slow: more of them, a larger ``prefetch_factor``, ``persistent_workers=True``, less work per sample. Use
``pin_memory=True`` and copy with ``non_blocking=True``.
"""

from __future__ import annotations

from augment.derived.gpu.gpu_work import gpu_work
from augment.diagnosis.judging import judged
from augment.diagnosis.measure import fetches_in_steps, host_cut, measure, saved_by_host
from augment.diagnosis.rule import Answer, Fine, NotApplicable, Spans
from augment.diagnosis.wording import a_step, of_a_step, shorter, time
from augment.trace import Trace, derived

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
    workers = any("MultiProcessing" in name for name in trace.names_of(rows))
    return judged(
        trace,
        saved,
        fine=Fine(
            f"fetching batches takes the host {time(fetch)} {a_step(trace)} and would save {of_a_step(trace, saved)}"
        ),
        title=f"The host fetches batches for {time(fetch)} {a_step(trace)}"
        f"{', and computes nothing meanwhile' if alone else ' while the GPU waits'}; without that, "
        + shorter(trace, saved),
        advice=_MORE if workers else _WORKERS,
        spans=spans,
        confidence="medium" if alone else "high",
        cut=cut,
    )


_WORKERS = (
    "The main process loads the data itself: give DataLoader num_workers above 0 (start with 4 to 8), pin_memory=True "
    "and persistent_workers=True"
)
_MORE = (
    "The workers are too slow: more num_workers or prefetch_factor, less work per sample (decode and augment ahead of "
    "time or on the GPU), pin_memory=True"
)
