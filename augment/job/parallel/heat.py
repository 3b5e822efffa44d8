"""What each rank did in each step: the cells of a heat map."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np
from msgspec import Struct

from augment.arrays.ordering import sums
from augment.core.findings import Findings, Skipped, column
from augment.core.trace import Diagnostic
from augment.job.collectives.waits import Waits
from augment.job.matching.matching import Matched
from augment.job.parallel.rank_steps import TIMES, RankSteps
from augment.job.ranks.summary import RankSummary

MOST_CELLS = 20_000


class Row(Struct, frozen=True):
    """One step of one rank."""

    step: Annotated[int, column("The number of the step.")]
    rank: Annotated[int | None, column("The rank.")]
    trace: Annotated[str, column("The name of its trace.")]
    wall_ns: Annotated[int, column("The length of the step: the sum of the next four columns.", "ns")]
    compute_ns: Annotated[int, column("The device computes.", "ns")]
    exposed_communication_ns: Annotated[int, column("The device communicates without computing.", "ns")]
    exposed_memory_ns: Annotated[int, column("The device copies, and nothing else runs.", "ns")]
    idle_ns: Annotated[int, column("Nothing runs on the device.", "ns")]
    wait_ns: Annotated[int, column("Waiting for other ranks within collectives of the step, exposed or not.", "ns")]


def heat(steps: RankSteps, matched: Matched, parted: Waits, summaries: Sequence[RankSummary]) -> Findings | Skipped:
    """The rows by step, then rank. Of more than :data:`MOST_CELLS` steps are left out, evenly spread."""
    if not steps.numbered:
        return Skipped("no rank recorded a step")
    numbers = np.unique(steps.number[steps.number >= 0])
    most = max(MOST_CELLS // max(len(summaries), 1), 1)
    kept = numbers[np.unique(np.linspace(0, len(numbers) - 1, min(most, len(numbers))).astype(np.intp))]
    order = np.lexsort((steps.member, steps.number))
    order = order[np.isin(steps.number[order], kept)][:MOST_CELLS]
    width = int(numbers[-1]) + 1
    part = matched.step[matched.instance]
    inside = part >= 0
    keys = steps.member[order] * width + steps.number[order]
    distinct, place = np.unique(keys, return_inverse=True)
    cells = matched.member[inside] * width + part[inside]
    at = np.minimum(np.searchsorted(distinct, cells), len(distinct) - 1)
    known = distinct[at] == cells
    wait = sums(at[known], parted.wait_ns[inside][known], len(distinct))[place]
    rows = [
        Row(
            step=int(steps.number[cell]),
            rank=summaries[steps.member[cell]].rank,
            trace=summaries[steps.member[cell]].name,
            wall_ns=int(steps.end[cell] - steps.start[cell]),
            **{name: int(getattr(steps, name)[cell]) for name in TIMES},
            wait_ns=int(waited),
        )
        for cell, waited in zip(order.tolist(), wait.tolist(), strict=True)
    ]
    lost = int((steps.number >= 0).sum()) - len(rows)
    why = "steps of ranks beyond the limit of step_heat; left out, evenly spread over the steps"
    return Findings(rows, diagnostics=[Diagnostic("cells_beyond_limit", lost, why)] if lost else [])
