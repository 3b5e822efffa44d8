"""The job's tracks on a rank's timeline: wait and transfer under every collective, and the bandwidth."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from augment.arrays import intervals
from augment.arrays.ordering import combinations, each
from augment.arrays.types import Int64s, Places
from augment.core.annotations import CounterTrack, SliceTrack, Texts
from augment.facts.names.kernel_types import bus_factor
from augment.job.collectives.waits import Waits
from augment.job.matching.matching import Floats, Matched
from augment.job.ranks.rank_lists import rank_texts
from augment.job.ranks.summary import RankSummary

NAME = "job_collectives"


def tracks(
    matched: Matched, parted: Waits, summaries: Sequence[RankSummary], member: int
) -> list[SliceTrack | CounterTrack]:
    """The tracks of one rank: those of each stream, then those of each device."""
    summary, rows = summaries[member], matched.rows_of(member)
    stream = summary.column("stream")[matched.place[rows]]
    device = np.array([device_track.device_track for device_track in summary.streams], np.int64)[stream]
    annotations: list[SliceTrack | CounterTrack] = []
    for number, places in each(stream, len(summary.streams)):
        stream_rows = rows[places]
        stream_rows = stream_rows[np.argsort(matched.ts[stream_rows], kind="stable")]
        stream_info = summary.streams[number]
        annotations.append(_slices(matched, parted, summaries, stream_rows, stream_info.track, stream_info.name))
    for track in dict.fromkeys(stream.device_track for stream in summary.streams):
        annotations += _bandwidths(matched, parted, rows[device == track], track)
    return annotations


def links(matched: Matched, parted: Waits, summaries: Sequence[RankSummary]) -> tuple[Int64s, Int64s, Int64s]:
    """See :meth:`Answer.links`."""
    row = np.empty(len(matched.instance), np.int64)
    for member, summary in enumerate(summaries):
        parts = matched.rows_of(member)
        row[parts] = summary.column("row")[matched.place[parts]]
    order = np.lexsort((-parted.wait_ns, matched.instance))
    return matched.instance[order], matched.member[order], row[order]


def _slices(
    matched: Matched, parted: Waits, summaries: Sequence[RankSummary], parts: Places, track: int, stream: str
) -> SliceTrack:
    """A slice for the wait and one for the transfer of each collective. An overlap with the next one is not drawn."""
    start, end = matched.ts[parts], matched.end[parts]
    reach = np.concatenate(([np.iinfo(np.int64).min], np.maximum.accumulate(end)[:-1]))
    begin = np.maximum(start, reach)
    turn = np.clip(start + parted.wait_ns[parts], begin, np.maximum(begin, end))
    ts = np.column_stack((begin, turn)).ravel()
    dur = np.column_stack((turn - begin, np.maximum(end, turn) - turn)).ravel()
    drawn = np.flatnonzero(dur > 0)
    shown = np.repeat(parts, 2)[drawn]
    instance = matched.instance[shown]
    names = Texts((drawn % 2).astype(np.int32), ("wait", "transfer"))
    late = rank_texts(matched.member[parted.late[instance]].astype(np.int64), summaries)
    waits = drawn % 2 == 0
    below = np.where(waits, late.codes, len(late.values) + matched.kind[instance]).astype(np.int32)
    return SliceTrack(
        analysis=NAME,
        name=f"Wait and transfer stream {stream}",
        under=track,
        ts=ts[drawn],
        dur=dur[drawn],
        names=names,
        args={
            "kind": Texts(matched.kind[instance].astype(np.int32), matched.kinds),
            "last_to_arrive": late,
            "after_the_others_ns": parted.lead_ns[instance],
            "wait_ns": parted.wait_ns[shown],
            "transfer_ns": parted.transfer_ns[shown],
            "bytes": matched.bytes[instance],
            "told_by": Texts(parted.by_arrival[instance].astype(np.int32), ("durations", "clocks")),
        },
        description="waiting for the last rank to arrive, then moving data",
        inner=Texts(below, [*(f"for {rank}" for rank in late.values), *matched.kinds]),
    )


def _bandwidths(matched: Matched, parted: Waits, parts: Places, track: int) -> list[CounterTrack]:
    """The bus bandwidth of each process group while its data move."""
    factor = _factors(matched)[matched.instance[parts]]
    moves = (matched.bytes[matched.instance[parts]] > 0) & (parted.transfer_ns[parts] > 0) & np.isfinite(factor)
    parts, factor = parts[moves], factor[moves]
    tracks = []
    of = matched.group[matched.instance[parts]]
    for group, members in each(of, len(matched.groups)):
        part, group_info = parts[members], matched.groups[group]
        instance = matched.instance[part]
        rate = np.rint(matched.bytes[instance] * factor[members] * 1e9 / parted.moving_ns[instance]).astype(np.int64)
        edges = np.concatenate((matched.ts[part] + parted.wait_ns[part], matched.end[part]))
        ts, value = intervals.steps(edges, np.concatenate((rate, -rate)))  # integers: exactly 0 again
        tracks.append(
            CounterTrack(
                analysis=NAME,
                name=f"Bus bandwidth without waits {group_info.description or group_info.name}",
                under=track,
                ts=ts,
                values=value / 1e9,
                unit="GB/s",
                description="bytes times nccl-tests' factor, by the time from the last arrival to the end",
                scale="bus bandwidth",
            )
        )
    return tracks


def _factors(matched: Matched) -> Floats:
    """nccl-tests' factor of each collective; NaN where unknown."""
    if not len(matched):
        return np.empty(0)
    (kinds, sizes), which = combinations(matched.kind, matched.size())
    pairs = zip(kinds.tolist(), sizes.tolist(), strict=True)
    known = [bus_factor(matched.kinds[kind], size) for kind, size in pairs]
    return np.array([np.nan if known_factor is None else known_factor for known_factor in known])[which]
