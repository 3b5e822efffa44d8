"""Summaries of ranks made straight from columns, without traces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from augment.arrays import intervals
from augment.facts.collectives.rank_progress import HostWaits, RankStates
from augment.job.ranks.states import state_table
from augment.job.ranks.summary import SPENT, VERSION, RankStream, RankSummary

Part = tuple[str, str, int, int, int]  #: group, kind, number, start, end


def summary_of(
    rank: int, parts: Sequence[Part], *, sizes: dict[str, int] | None = None, bytes: Any = None, step: Any = None,
    numbered: bool = True, host: str = "", steps: Any = None, members: dict[str, str] | None = None,
    peer: Any = None, held: Any = None, follows: Any = None, computing: Sequence[tuple[int, int]] = (),
) -> RankSummary:  # fmt: skip
    """The summary of a rank that took part in these collectives, ascending in time.

    ``steps`` are numbers, starts, ends and computing; ``computing`` are the times in which it does.
    """
    groups = list(dict.fromkeys(part[0] for part in parts))
    kinds = list(dict.fromkeys(part[1] for part in parts))
    count = len(parts)

    def column(values: Any, missing: int = -1) -> bytes:
        return np.array([missing] * count if values is None else values, np.int64).tobytes()

    computes = intervals.union(*np.array(computing, np.int64).reshape(-1, 2).T)
    spans = np.array([(part[3], part[4]) for part in parts], np.int64).reshape(-1, 2)
    communicates = intervals.subtract(intervals.union(*spans.T), computes)

    def spent(moment: str, moments: Any) -> dict[str, bytes]:
        at = np.array(moments, np.int64)[:, None]
        before = [(np.clip(at, each.start, each.end) - each.start).sum(axis=1) for each in (computes, communicates)]
        columns = (*before, np.zeros_like(before[0]))
        return {name: values.tobytes() for name, values in zip(SPENT[moment], columns, strict=True)}

    busy_ts, busy = intervals.coverage((computes, communicates))
    state = np.select((busy & 1 != 0, busy & 2 != 0), (0, 1), 5).astype(np.uint8)
    none = np.empty(0, np.int64)
    no_gaps = HostWaits(none, none, none.astype(np.int32), [])
    states = state_table(RankStates(busy_ts, state[:-1]), no_gaps, [busy_ts])
    if steps is None:
        steps = [-1], [min(spans[:, 0], default=0)], [max(spans[:, 1], default=0)], [0]
    return RankSummary(
        version=VERSION,
        name=f"rank{rank}.json",
        sha256="0" * 64,
        rank=rank,
        host=host,
        groups=[
            [group, group, (members or {}).get(group, ""), "", (sizes or {}).get(group, -1), "recorded"]
            for group in groups
        ],
        kinds=kinds,
        streams=[RankStream("7", 0, 0)],
        columns={
            "row": column(range(count)),
            "ts": column([part[3] for part in parts]),
            "end": column([part[4] for part in parts]),
            "group": column([groups.index(part[0]) for part in parts]),
            "kind": column([kinds.index(part[1]) for part in parts]),
            "seq": column([part[2] for part in parts] if numbered else None),
            "bytes": column(bytes),
            "step": column(step),
            "peer": column(peer),
            "exposed_ns": column(None, 0),
            "held": column(held, 1),
            "follows": column(follows),
            **spent("ts", [part[3] for part in parts]),
            **spent("end", [part[4] for part in parts]),
            "stream": column(None, 0),
        },
        steps={
            **{
                name: np.array(values, np.int64).tobytes()
                for name, values in zip(("number", "start", "end", "compute_ns"), steps, strict=True)
            },
            "steady": np.ones(len(steps[0]), np.int64).tobytes(),
            **spent("start", steps[1]),
            **spent("end", steps[2]),
        },
        states=states,
        figures={},
        link_gbps=0.0,
        left_out=0,
        rows_left_out=0,
    )
