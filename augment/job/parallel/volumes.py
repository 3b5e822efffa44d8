"""What the communication of each dimension costs, and the volume beside what theory asks.

The volume is what passes the link of a rank: bytes times nccl-tests' factor, 2(n-1)/n for an all-reduce and (n-1)/n for
gathers, reduce-scatters and all-to-alls of n ranks. Averaging gradients of G bytes takes 2G(n-1)/n. With fully sharded
parameters it takes 1.5 times that: two gathers and a reduce-scatter. With a sharded optimizer or sharded gradients it
takes no more than without: a reduce-scatter and a gather (ZeRO, arXiv 1910.02054).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import numpy as np
from msgspec import Struct

from augment.arrays.ordering import sums
from augment.core.findings import column
from augment.facts.names.kernel_types import ALL_REDUCE, REDUCE_SCATTER, bus_factor
from augment.job.collectives.waits import Waits
from augment.job.matching.matching import Matched
from augment.job.parallel.dimensions import Dimensions
from augment.job.parallel.group_roles import FULLY_SHARDED, SHARDED_GRADIENTS, SHARDED_OPTIMIZER
from augment.job.parallel.instances import dimension_codes
from augment.job.parallel.rank_steps import RankSteps
from augment.job.ranks.dimension_names import DATA_PARALLEL

_THEORY = {"all-reduce": 1.0, FULLY_SHARDED: 1.5, SHARDED_GRADIENTS: 1.0, SHARDED_OPTIMIZER: 1.0}


class Row(Struct, frozen=True):
    """The communication of one dimension in the steps of all ranks."""

    dimension: Annotated[str, column("The dimension, as in parallel_dimensions.")]
    style: Annotated[str, column("How its collectives work together; empty if unknown.")]
    group_size: Annotated[int | None, column("Ranks of its largest group; null if unknown.", "count")]
    count: Annotated[int, column("Its collectives, summed over ranks.", "count")]
    count_per_step: Annotated[float, column("The same for one rank of the job and one step, the mean.")]
    time_ns: Annotated[int, column("Their durations, summed over ranks: the sum of the next three columns.", "ns")]
    wait_ns: Annotated[int, column("The part spent waiting for the last rank.", "ns")]
    transfer_ns: Annotated[int, column("The part spent moving data.", "ns")]
    unmatched_ns: Annotated[int, column("The duration of those that were not matched across ranks.", "ns")]
    exposed_ns: Annotated[int, column("The part of time_ns in which the rank's device computed nothing.", "ns")]
    step_ratio: Annotated[float | None, column("exposed_ns by the time of the steps of all ranks.", "ratio")]
    bytes: Annotated[
        int | None,
        column("Their sizes, as nccl-tests counts them, summed over ranks; null if one is unknown.", "bytes"),
    ]
    volume_bytes: Annotated[
        float | None, column("What passes a rank's link in a step, the mean; null if unknown.", "bytes")
    ]
    gradient_bytes: Annotated[
        float | None, column("Gradients reduced by a rank in a step, of dimensions of data parallelism.", "bytes")
    ]
    volume_ratio: Annotated[float | None, column("volume_bytes by 2(n-1)/n times gradient_bytes.", "ratio")]
    memory_ratio: Annotated[
        float | None,
        column(
            "The share of parameters, gradients and Adam's state (16 bytes a parameter) that a rank keeps in theory.",
            "ratio",
        ),
    ]
    theory_ratio: Annotated[
        float | None, column("What volume_ratio is in theory: 1, or 1.5 if fully sharded.", "ratio")
    ]


def rows(dims: Dimensions, matched: Matched, parted: Waits, steps: RankSteps) -> list[Row]:
    """A row for each dimension, that of the longest exposed time first."""
    names, code = dimension_codes(dims, matched)
    inside = matched.step[matched.instance] >= 0 if steps.numbered else np.ones(len(matched.instance), np.bool_)
    of_part = code[matched.instance][inside]
    wait, transfer = (sums(of_part, values[inside], len(names)) for values in (parted.wait_ns, parted.transfer_ns))
    parts = {name: (int(wait[place]), int(transfer[place])) for place, name in enumerate(names)}
    result = [_row(name, dims, parts.get(name, (0, 0)), steps) for name in _names(dims)]
    return sorted(result, key=lambda row: -row.exposed_ns)


def _names(dims: Dimensions) -> Sequence[str]:
    return list(dict.fromkeys(use.dimension for use in dims.uses.values()))


def _row(name: str, dims: Dimensions, parts: tuple[int, int], steps: RankSteps) -> Row:
    tallies = [
        (group, kind, tally)
        for group, of in dims.tallies.items()
        for kind, tally in of.items()
        if dims.of(group, kind) == name
    ]
    time = sum(tally.time_ns for *_, tally in tallies)
    exposed = sum(tally.exposed_ns for *_, tally in tallies)
    sized = all(not tally.unsized for *_, tally in tallies)
    groups = dict.fromkeys(group for group, *_ in tallies)
    style = dims.style_of(name)
    count = sum(tally.count for *_, tally in tallies)
    return Row(
        dimension=name,
        style=style,
        group_size=max((dims.sizes[group] for group in groups), default=0) or None,
        count=count,
        count_per_step=count / steps.count if steps.count else 0.0,
        time_ns=time,
        wait_ns=parts[0],
        transfer_ns=parts[1],
        unmatched_ns=time - sum(parts),
        exposed_ns=exposed,
        step_ratio=exposed / steps.wall_ns if steps.wall_ns else None,
        bytes=sum(tally.bytes for *_, tally in tallies) if sized else None,
        **_volume(name, style, [(dims.sizes[group], kind, of.bytes) for group, kind, of in tallies], steps, sized),
    )


def _volume(
    name: str, style: str, tallies: Sequence[tuple[int, str, int]], steps: RankSteps, sized: bool
) -> Mapping[str, float | None]:
    """The columns of volumes, for collectives of (ranks of the group, kind, bytes)."""
    factors = [bus_factor(kind, size) for size, kind, _ in tallies]
    passed = [size * (factor or 0) for factor, (*_, size) in zip(factors, tallies, strict=True)]
    known = sized and bool(steps.count) and all(factor is not None for factor in factors)
    reduced = [(ranks, size) for ranks, kind, size in tallies if kind in (ALL_REDUCE, REDUCE_SCATTER)]
    asked = sum(2 * size * (ranks - 1) / ranks for ranks, size in reduced if ranks)
    is_data = known and name in DATA_PARALLEL and asked > 0
    return {
        "volume_bytes": sum(passed) / steps.count if known else None,
        "gradient_bytes": sum(size for _, size in reduced) / steps.count if is_data else None,
        "volume_ratio": sum(passed) / asked if is_data else None,
        "memory_ratio": _memory(style, max((ranks for ranks, *_ in tallies), default=0)) if is_data else None,
        "theory_ratio": _THEORY.get(style) if is_data else None,
    }


def _memory(style: str, ranks: int) -> float | None:
    """ZeRO, arXiv 1910.02054: of 16 bytes a parameter, stage 1 keeps 4 + 12/n, stage 2 2 + 14/n, stage 3 16/n."""
    kept = {
        "all-reduce": 16.0,
        SHARDED_OPTIMIZER: 4 + 12 / max(ranks, 1),
        SHARDED_GRADIENTS: None,  # parameters are kept between forward and backward
        FULLY_SHARDED: 16 / max(ranks, 1),
    }.get(style)
    return None if kept is None else kept / 16
