"""The rank of each track in a file into which another tool merged the traces of several ranks.

Such tools give each rank separate processes. They write the rank into the arg ``rank`` of all events (TraceLens'
TraceFusion) or before the process id: ``[TP03] 4242`` (SGLang's merger; with one kind of parallelism it is the rank).
"""

from __future__ import annotations

import re

import numpy as np

from augment.arrays.ordering import distinct, each
from augment.arrays.types import Int64s
from augment.core.context import derived
from augment.core.trace import Identity, Trace

_UNKNOWN = -1
_LOOKED_AT = 3  #: events of a process that must agree
_MOST_PROCESSES = 20_000
_HEADER = ("distributedInfo", "deviceProperties", "schemaVersion")  #: members that Kineto writes for a single rank
_IN_PID = re.compile(r"\[(?:TP|DP|PP|EP)-?(\d{1,9})\]")


def may_be_merged(trace: Trace) -> bool:
    """Whether the file may be merged: process ids name ranks, or the profiler's own header is absent. To be sure, the
    args must be read from the text, which takes a pass.
    """
    is_stated = any(isinstance(track.pid, str) and _IN_PID.match(track.pid) for track in trace.tracks)
    return is_stated or trace.source.metadata.keys().isdisjoint(_HEADER)


@derived
def rank_of_track(trace: Trace) -> Int64s:
    """The rank of each of ``trace.tracks``, -1 unknown, int64; all -1 unless the file tells of at least two ranks."""
    pids: dict[Identity, int] = {}
    process = np.array([pids.setdefault(track.pid, len(pids)) for track in trace.tracks], np.int64)
    ranks = np.full(len(pids), _UNKNOWN, np.int64)
    if 1 < len(pids) <= _MOST_PROCESSES:
        for pid, number in pids.items():
            stated = _IN_PID.match(pid) if isinstance(pid, str) else None
            ranks[number] = int(stated[1]) if stated else _UNKNOWN
        if (ranks < 0).all():
            ranks = _by_args(trace, process, len(pids))
    if len(distinct(ranks[ranks >= 0])) < 2:
        return np.full(len(trace.tracks), _UNKNOWN, np.int64)
    return ranks[process] if len(pids) else np.empty(0, np.int64)


def _by_args(trace: Trace, process: Int64s, count: int) -> Int64s:
    """The rank of each process by the args of its first events."""
    ranks = np.full(count, _UNKNOWN, np.int64)
    of = process[trace.events.track[:]]
    samples = [(number, rows[:_LOOKED_AT]) for number, rows in each(of, count)]
    if not samples:
        return ranks
    chosen = np.concatenate([rows for _, rows in samples])
    stated: dict[int, set[object]] = {}
    for row, args in zip(chosen.tolist(), trace.args_of(chosen), strict=True):
        stated.setdefault(int(of[row]), set()).add(args.get("rank"))
    for number, ranks_ in stated.items():
        rank = ranks_.pop() if len(ranks_) == 1 else None
        if isinstance(rank, int) and not isinstance(rank, bool) and 0 <= rank < 1 << 31:
            ranks[number] = rank
    return ranks
