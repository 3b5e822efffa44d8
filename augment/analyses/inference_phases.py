"""How long do steps of each phase and batch take in the steady state of an inference engine?

There is a row for each device, phase and size of the batch, which are in powers of two, with the steady steps alone:
``median_ns`` is the middle length, ``p90_ns`` what nine of ten do not exceed, and ``spread_ratio`` half of what lies
between the quartiles, by the median. ``unusual_count`` counts those whose ``robust_z`` lies beyond 3.5 (at least four
steps). ``tokens_per_s`` are tokens of running sequences by the time of the steps of this row; the row of phase ``all``
has those of all steps by the whole time from the first to the last. The row ``pause`` is the time between steps: no
request was there, or the host was held up; the recording cannot tell.

**What to do**: compare phases: steps that prefill lengthen the time to the next token of all that decode; spread that
is wide at one batch is not of the work.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
import numpy.typing as npt

from augment import facts
from augment.arrays import OUTLIER, Int64s, Places, median, robust_z
from augment.core import GPU_WORK, Findings, OfDevice, Skipped, Trace, column
from augment.diagnosis.judging import measure

NAME = "inference_phases"
NEEDS = (GPU_WORK,)
ALL, PAUSE = "all", "pause"


class Row(OfDevice, frozen=True):
    """Steps of a phase with batches of about one size."""

    phase: Annotated[str, column("The phase; all: every step; pause: no step.")]
    requests_from: Annotated[int | None, column("Least size of the batch in this row.", "count")]
    requests_to: Annotated[int | None, column("Greatest size of the batch in this row.", "count")]
    step_count: Annotated[int, column("Number of steady steps, or of pauses.", "count")]
    sum_ns: Annotated[int, column("Length of all of them.", "ns")]
    median_ns: Annotated[int, column("Median length.", "ns")]
    p90_ns: Annotated[int, column("Length that nine of ten do not exceed.", "ns")]
    spread_ratio: Annotated[float | None, column("Half the distance of the quartiles, by the median.", "ratio")]
    unusual_count: Annotated[int, column("Steps of unusual length.", "count")]
    busy_ratio: Annotated[float | None, column("Share of the time in which any GPU work runs.", "ratio")]
    median_gap_ns: Annotated[int | None, column("Median idle time before the next step's first work.", "ns")]
    tokens_per_s: Annotated[float | None, column("Tokens of running sequences in a second.", key=False)]
    mbu_ratio: Annotated[float | None, column("Median known bytes by what the memory can move.", "ratio")]


def analyze(trace: Trace) -> Findings | Skipped:
    """Sum up the steady steps."""
    engines = facts.operators.served_steps(trace)
    if not engines:
        return Skipped("no step of an inference engine: see docs/inference.md for the names")
    rows: list[Row] = []
    for served in engines:
        windows = served.windows
        steady = np.flatnonzero(np.isin(windows.begin, measure(trace).windows.begin))
        sizes: dict[tuple[str, int], list[int]] = {}
        for place in steady.tolist():
            batch = served.batches[place]
            sizes.setdefault((batch.phase, max(batch.requests - 1, 0).bit_length()), []).append(place)
        whole_ns = int(windows.end[steady[-1]] - windows.start[steady[0]]) if len(steady) else 0
        rows.append(_row(trace, served, ALL, steady, whole_ns))
        for (phase, _), places in sorted(sizes.items()):
            chosen = np.array(places, np.int64)
            rows.append(_row(trace, served, phase, chosen, int(served.wall_ns[chosen].sum())))
        pause = windows.start[1:] - windows.end[:-1]
        pause = pause[pause > 0]
        if len(pause):
            device = facts.gpu.work(trace).devices[served.device]
            rows.append(
                Row(
                    device.rank, device.device, PAUSE, None, None, len(pause), int(pause.sum()), int(median(pause)),
                    int(np.percentile(pause, 90)), _spread(pause), 0, None, None, None, None,
                )
            )  # fmt: skip
    return Findings(rows)


def _row(trace: Trace, served: facts.operators.ServedSteps, phase: str, places: Places | Int64s, time_ns: int) -> Row:
    device, wall = facts.gpu.work(trace).devices[served.device], served.wall_ns[places]
    batches = [served.batches[place] for place in places.tolist()]
    requests = [batch.requests for batch in batches if batch.requests >= 0]
    gaps = served.gap_ns[places]
    gaps = gaps[gaps >= 0]
    decoding = np.array([batch.phase in ("decode", "mixed") for batch in batches], np.bool_)
    kept = served.accepted[places]
    tokens = int(kept[decoding].sum())
    known = bool((kept[decoding] >= 0).all())
    z = robust_z(wall) if phase != ALL else None
    mbu: npt.NDArray[np.float64] = served.mbu_ratio[places]
    return Row(
        rank=device.rank,
        device=device.device,
        phase=phase,
        requests_from=min(requests, default=None),
        requests_to=max(requests, default=None),
        step_count=len(places),
        sum_ns=int(wall.sum()),
        median_ns=int(median(wall)) if len(wall) else 0,
        p90_ns=int(np.percentile(wall, 90)) if len(wall) else 0,
        spread_ratio=_spread(wall),
        unusual_count=0 if z is None else int((np.abs(z) > OUTLIER).sum()),
        busy_ratio=float(served.busy_ns[places].sum() / wall.sum()) if wall.sum() else None,
        median_gap_ns=int(median(gaps)) if len(gaps) else None,
        tokens_per_s=tokens / time_ns * 1e9 if known and tokens and time_ns > 0 else None,
        mbu_ratio=float(np.nanmedian(mbu)) if len(mbu) and not np.isnan(mbu).all() else None,
    )


def _spread(wall: Int64s) -> float | None:
    if len(wall) < 2 or not median(wall):
        return None
    low, high = np.percentile(wall, [25, 75])
    return float((high - low) / 2 / median(wall))
