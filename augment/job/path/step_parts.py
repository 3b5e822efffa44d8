"""What each rank's steps went into: exposed communication is parted into waiting for other ranks and moving data.

A rank alone cannot tell these apart. The wait of a collective is that of ``collectives``; a moment in which the
rank waits in one collective and another moves data belongs to the transfer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

import numpy as np
from msgspec import Struct

from augment.arrays import Int64s, Intervals, Places, intervals, sums
from augment.core import Diagnostic, Findings, Skipped, column
from augment.job.collectives import Waits
from augment.job.matching import Matched
from augment.job.ranks import Parts, RankSummary

MOST_ROWS = 20_000
FIGURES = "step_efficiency"  #: the rank's own analysis, for the ratios


class Row(Struct, frozen=True):
    """One step of one rank; the parts from compute_ns to idle_ns add up to wall_ns."""

    step: Annotated[int | None, column("The number of the step; null for a recording without steps.")]
    rank: Annotated[int | None, column("The rank.")]
    trace: Annotated[str, column("The name of its trace.")]
    wall_ns: Annotated[int, column("Length of the step's window.", "ns")]
    compute_ns: Annotated[int, column("The rank's device computes.", "ns")]
    exposed_wait_ns: Annotated[int, column("Communication without computing, waiting for other ranks.", "ns")]
    exposed_transfer_ns: Annotated[int, column("Communication without computing that moves data.", "ns")]
    exposed_unmatched_ns: Annotated[
        int, column("Communication without computing that no other rank's trace has.", "ns")
    ]
    exposed_memory_ns: Annotated[int, column("Copies and memsets alone.", "ns")]
    idle_ns: Annotated[int, column("Nothing runs on the device.", "ns")]
    exposed_wait_ratio: Annotated[float | None, column("exposed_wait_ns by wall_ns.", "ratio")]
    exposed_transfer_ratio: Annotated[float | None, column("exposed_transfer_ns by wall_ns.", "ratio")]
    mfu_ratio: Annotated[float | None, column("The MFU of step_efficiency, if the rank's metrics have it.", "ratio")]
    hfu_ratio: Annotated[float | None, column("The HFU of step_efficiency.", "ratio")]


def step_parts(matched: Matched, parted: Waits, summaries: Sequence[RankSummary]) -> Findings | Skipped:
    """The rows by step, then by rank; at most :data:`MOST_ROWS`."""
    steps = {}
    for member, summary in enumerate(summaries):
        parts = summary.states.parts(summary.step_column("start"), summary.step_column("end"))
        if parts.compute.any() or parts.communication.any():
            steps[member] = parts
    numbers = [summaries[member].step_column("number") for member in steps]
    count = sum(map(len, numbers))
    if not count:
        return Skipped("no rank recorded a step with GPU work")
    last = int(np.sort(np.concatenate(numbers))[min(count, MOST_ROWS) - 1])
    rows = [
        row for member, whole in steps.items() for row in _rows(matched, parted, summaries[member], member, whole, last)
    ]  # ranks in order
    rows.sort(key=lambda row: -1 if row.step is None else row.step)
    why = "steps of ranks beyond the limit; left out"
    remarks = [Diagnostic("step_parts_beyond_limit", count - MOST_ROWS, why)] if count > MOST_ROWS else []
    return Findings(rows[:MOST_ROWS], diagnostics=remarks)


def _rows(matched: Matched, parted: Waits, summary: RankSummary, member: int, whole: Parts, last: int) -> Iterator[Row]:
    """The rows of a rank up to the step ``last``."""
    chosen = summary.step_column("number") <= last
    start, end = summary.step_column("start")[chosen], summary.step_column("end")[chosen]
    whole = Parts(*(part[chosen] for part in whole))
    waited, moved = exposed_parts(matched, parted, summary, matched.rows_of(member), Intervals(start, end))
    waited = np.minimum(waited, whole.communication)
    moved = np.minimum(moved, whole.communication - waited)
    ratios = _ratios(summary)
    idle = whole.host + whole.queued + whole.unknown + whole.before
    alone = whole.communication - waited - moved
    parts = (end - start, whole.compute, waited, moved, alone, whole.memory, idle)
    numbers = summary.step_column("number")[chosen].tolist()
    for number, *values in zip(numbers, *(part.tolist() for part in parts), strict=True):
        wall, compute, wait, transfer, unmatched, copy, rest = values
        mfu, hfu = ratios.get(number, (None, None))
        yield Row(
            step=number if number >= 0 else None,
            rank=summary.rank,
            trace=summary.name,
            wall_ns=wall,
            compute_ns=compute,
            exposed_wait_ns=wait,
            exposed_transfer_ns=transfer,
            exposed_unmatched_ns=unmatched,
            exposed_memory_ns=copy,
            idle_ns=rest,
            exposed_wait_ratio=wait / wall if wall else None,
            exposed_transfer_ratio=transfer / wall if wall else None,
            mfu_ratio=mfu,
            hfu_ratio=hfu,
        )


def exposed_parts(
    matched: Matched, parted: Waits, summary: RankSummary, rows: Places, windows: Intervals
) -> tuple[Int64s, Int64s]:
    """In each window the time without computing that a rank's collectives wait for other ranks, and move data, ns.

    Args:
        matched: the collectives of the job.
        parted: their waits.
        summary: of the rank.
        rows: the collectives that count, in ``matched``.
        windows: disjoint and ascending, on the rank's clock.
    """
    ts, end = matched.ts[rows], matched.end[rows]
    turn = ts + parted.wait_ns[rows]
    moving = intervals.union(turn, end)
    waiting = intervals.subtract(intervals.union(ts, turn), moving)
    _, waiting_step, waits_ = intervals.clip(waiting, windows)
    _, moving_step, moves = intervals.clip(moving, windows)
    pieces = np.concatenate((waits_.start, moves.start)), np.concatenate((waits_.end, moves.end))
    exposed = summary.states.parts(*pieces).communication
    split, count = len(waiting_step), len(windows.start)
    return sums(waiting_step, exposed[:split], count), sums(moving_step, exposed[split:], count)


def _ratios(summary: RankSummary) -> dict[int, tuple[float | None, float | None]]:
    """MFU and HFU by number of step; nothing of ranks with several devices, whose steps have several rows."""
    figures = summary.figures.get(FIGURES)
    if figures is None or not {"mfu_ratio", "hfu_ratio"} <= set(figures.columns):
        return {}
    places = [figures.columns.index(name) for name in ("mfu_ratio", "hfu_ratio")]
    ratios: dict[int, tuple[float | None, float | None]] = {}
    for keys, row in zip(figures.keys, figures.table(), strict=True):
        step = next((int(key.removeprefix("step=")) for key in keys if key.startswith("step=")), -1)
        mfu, hfu = (None if np.isnan(row[place]) else float(row[place]) for place in places)
        ratios[step] = (None, None) if step in ratios else (mfu, hfu)
    return ratios
