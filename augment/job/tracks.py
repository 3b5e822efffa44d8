"""What a job's answer draws on a rank's timeline: waiting and moving under every collective, and the bandwidth."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from augment.annotations import CounterTrack, SliceTrack, Texts
from augment.arrays import intervals
from augment.arrays.ordering import combinations, each
from augment.arrays.types import Int64s, Places
from augment.derived.names.collective_kinds import bus_factor
from augment.job.matching import Floats, Matched
from augment.job.summary import RankSummary
from augment.job.waits import Waits

NAME = "job_collectives"


def tracks(
    matched: Matched, parted: Waits, summaries: Sequence[RankSummary], member: int
) -> list[SliceTrack | CounterTrack]:
    """The tracks of one rank: those of each stream, then those of each device."""
    summary, mine = summaries[member], matched.rows_of(member)
    stream = summary.column("stream")[matched.place[mine]]
    device = np.array([one.device_track for one in summary.streams], np.int64)[stream]
    found: list[SliceTrack | CounterTrack] = []
    for number, places in each(stream, len(summary.streams)):
        own = mine[places]
        own = own[np.argsort(matched.ts[own], kind="stable")]
        one = summary.streams[number]
        found.append(_slices(matched, parted, summaries, own, one.track, one.name))
    for track in dict.fromkeys(one.device_track for one in summary.streams):
        found += _bandwidths(matched, parted, mine[device == track], track)
    return found


def links(matched: Matched, parted: Waits, summaries: Sequence[RankSummary]) -> tuple[Int64s, Int64s, Int64s]:
    """See :meth:`Answer.links`."""
    row = np.empty(len(matched.instance), np.int64)
    for member, one in enumerate(summaries):
        own = matched.rows_of(member)
        row[own] = one.column("row")[matched.place[own]]
    order = np.lexsort((-parted.wait_ns, matched.instance))
    return matched.instance[order], matched.member[order], row[order]


def _slices(
    matched: Matched, parted: Waits, summaries: Sequence[RankSummary], own: Places, track: int, stream: str
) -> SliceTrack:
    """A slice for the wait and one for the transfer of each collective; what a collective overlaps the next with is
    not drawn."""
    start, end = matched.ts[own], matched.end[own]
    reach = np.concatenate(([np.iinfo(np.int64).min], np.maximum.accumulate(end)[:-1]))
    begin = np.maximum(start, reach)
    turn = np.clip(start + parted.wait_ns[own], begin, np.maximum(begin, end))
    ts = np.column_stack((begin, turn)).ravel()
    dur = np.column_stack((turn - begin, np.maximum(end, turn) - turn)).ravel()
    drawn = np.flatnonzero(dur > 0)
    both = np.repeat(own, 2)[drawn]
    one = matched.instance[both]
    names = Texts((drawn % 2).astype(np.int32), ("wait", "transfer"))
    ranks = tuple(f"rank {each.rank}" if each.rank is not None else each.name for each in summaries)
    return SliceTrack(
        analysis=NAME,
        name=f"Wait and transfer stream {stream}",
        under=track,
        ts=ts[drawn],
        dur=dur[drawn],
        names=names,
        args={
            "kind": Texts(matched.kind[one].astype(np.int32), matched.kinds),
            "last_to_arrive": Texts(matched.member[parted.late[one]].astype(np.int32), ranks),
            "after_the_others_ns": parted.lead_ns[one],
            "wait_ns": parted.wait_ns[both],
            "transfer_ns": parted.transfer_ns[both],
            "bytes": matched.bytes[one],
            "told_by": Texts(parted.by_arrival[one].astype(np.int32), ("durations", "clocks")),
        },
        description="waiting for the last rank to arrive, then moving data",
    )


def _bandwidths(matched: Matched, parted: Waits, own: Places, track: int) -> list[CounterTrack]:
    """The bus bandwidth of each process group while its data move."""
    factor = _factors(matched)[matched.instance[own]]
    moves = (matched.bytes[matched.instance[own]] > 0) & (parted.transfer_ns[own] > 0) & np.isfinite(factor)
    own, factor = own[moves], factor[moves]
    tracks = []
    of = matched.group[matched.instance[own]]
    for group, mine in each(of, len(matched.groups)):
        part, told = own[mine], matched.groups[group]
        one = matched.instance[part]
        rate = np.rint(matched.bytes[one] * factor[mine] * 1e9 / parted.moving_ns[one]).astype(np.int64)
        edges = np.concatenate((matched.ts[part] + parted.wait_ns[part], matched.end[part]))
        ts, value = intervals.steps(edges, np.concatenate((rate, -rate)))  # whole bytes a second: it falls back to 0
        tracks.append(CounterTrack(
            analysis=NAME,
            name=f"Bus bandwidth without waits {told.description or told.name}",
            under=track,
            ts=ts,
            values=value / 1e9,
            unit="GB/s",
            description="bytes times nccl-tests' factor, by the time from the last arrival to the end",
            scale="bus bandwidth",
        ))  # fmt: skip
    return tracks


def _factors(matched: Matched) -> Floats:
    """nccl-tests' factor of each collective, NaN where unknown."""
    if not len(matched):
        return np.empty(0)
    (kinds, sizes), which = combinations(matched.kind, matched.size())
    pairs = zip(kinds.tolist(), sizes.tolist(), strict=True)
    known = [bus_factor(matched.kinds[kind], size) for kind, size in pairs]
    return np.array([np.nan if one is None else one for one in known])[which]
