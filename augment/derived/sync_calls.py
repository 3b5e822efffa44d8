"""The host's waiting for a device, and what it waited for."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from augment.derived.launches import NO_ROW
from augment.derived.ordering import each
from augment.intervals import Intervals, Places, least_over, touched
from augment.trace import LAUNCHES, NO_CORRELATION, Category, Identity, Int64s, Trace, derived

ARGS_AT_MOST = 10_000  #: slices whose args are read again from the source
#: in the names of calls: CUDA, HIP, Level Zero and others; SYCL's adapters; Cambricon
_WAITS = re.compile(r"Synchronize|^(?:ur|pi)(?:QueueFinish|Events?Wait)$|^cnrt(?:QueueSync|SyncDevice|NotifierWait)")


@dataclass(frozen=True, slots=True)
class SyncCalls:
    """``row`` int64, into the event table. ``of_stream``: the places of the ``cuda_sync`` slices that lie on a stream,
    by (device, stream); ``general``: the places of every other: calls whose name says that they wait, from any thread,
    and ``cuda_sync`` slices on no stream, which speak of a whole device."""

    row: Int64s
    general: Places
    of_stream: dict[tuple[Identity, Identity], Places]

    def near(self, device: Identity, stream: Identity) -> Int64s:
        """The rows that may speak of a stream."""
        own = self.of_stream.get((device, stream))
        return self.row[self.general if own is None else np.concatenate((self.general, own))]


@derived
def sync_calls(trace: Trace) -> SyncCalls:
    """Every call that waits for a device, and every ``cuda_sync`` slice."""
    events = trace.events
    waits = np.array([_WAITS.search(name) is not None for name in trace.strings], np.bool_)
    calls = events.slices_of(*LAUNCHES)
    calls = calls[waits[events.name[calls]]] if len(calls) else calls
    syncs = events.slices_of(Category.CUDA_SYNC)
    general: list[Places] = [np.arange(len(calls))]
    of_stream: dict[tuple[Identity, Identity], list[Places]] = {}
    for index, own in each(events.track[syncs], len(trace.tracks)):
        one = trace.tracks[index]
        places = own + len(calls)
        (of_stream.setdefault((one.device, one.stream), []) if _is_stream(one.stream) else general).append(places)
    joined = {key: np.concatenate(places) for key, places in of_stream.items()}
    return SyncCalls(np.concatenate((calls, syncs)), np.concatenate(general), joined)


def longest_in(trace: Trace, rows: Int64s, gaps: Intervals) -> Int64s:
    """Of ``rows``, the one that overlaps each of the disjoint ``gaps`` longest, ``NO_ROW`` where none does; int64.

    Of equals, the first of ``rows``. Any may end before the gaps that it first and last overlaps do; those between it
    holds wholly, of which the first row that does is enough: so each counts three times, however long it is.
    """
    found = np.full(len(gaps.start), NO_ROW, np.int64)
    start = trace.events.ts[rows]
    end = start + trace.events.dur[rows]
    first, stop = touched(start, end, gaps)
    some = np.flatnonzero(stop > first)
    whole = least_over(first[some] + 1, stop[some] - 1, some, len(gaps.start))
    held = np.flatnonzero(whole < len(rows))
    call = np.concatenate((some, some, whole[held]))
    gap = np.concatenate((first[some], stop[some] - 1, held))
    shared = np.minimum(end[call], gaps.end[gap]) - np.maximum(start[call], gaps.start[gap])
    call, gap, shared = call[shared > 0], gap[shared > 0], shared[shared > 0]
    order = np.lexsort((-call, shared, gap))
    found[gap[order]] = rows[call[order]]  # of those of one gap, the last assigned stays
    return found


def waited_for(trace: Trace, rows: Int64s) -> dict[int, str]:
    """What the calls and slices in ``rows`` waited for, by row, as far as the trace says: ``event 8 of stream 7``.

    A runtime call says it through the ``cuda_sync`` slice with its correlation. No more than :data:`ARGS_AT_MOST`
    are looked up.
    """
    events = trace.events
    syncs = events.slices_of(Category.CUDA_SYNC)
    syncs = syncs[events.correlation[syncs] != NO_CORRELATION]
    by_correlation = dict(zip(events.correlation[syncs].tolist(), syncs.tolist(), strict=True))
    evidence: dict[int, int] = {}
    for row in np.unique(rows)[:ARGS_AT_MOST].tolist():
        if events.category[row] == Category.CUDA_SYNC:
            evidence[row] = row
        elif (sync := by_correlation.get(int(events.correlation[row]))) is not None:
            evidence[row] = sync
    args = trace.args_of(np.array(list(evidence.values()), np.int64)) if evidence else []
    texts = {row: _waited(one) for row, one in zip(evidence, args, strict=True)}
    return {row: text for row, text in texts.items() if text}


def _is_stream(stream: object) -> bool:
    """Whether it names a stream: -1, also as Kineto wrote it unsigned, stands for none."""
    return isinstance(stream, str) or (isinstance(stream, int) and 0 <= stream < 2**32 - 1)


def _waited(args: dict[str, Any]) -> str:
    """What a ``cuda_sync`` slice's args say."""
    kind = args.get("cuda_sync_kind")
    stream = args.get("wait_on_stream", args.get("stream"))
    event = args.get("wait_on_cuda_event_id")
    of_stream = f"stream {stream}" if _is_stream(stream) else ""
    if isinstance(event, int) and event >= 0:
        return f"event {event} of {of_stream}" if of_stream else f"event {event}"
    return of_stream or ("every stream" if kind == "Context Sync" else "")
