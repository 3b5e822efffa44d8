"""Draws the job's critical path on a rank's timeline: a track with the composition of the path while it is there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from augment.arrays.types import NO_INDEX, Int64s, Places
from augment.core.annotations import Annotation, ArgColumn, SliceTrack, Texts
from augment.job.collectives.waits import Waits
from augment.job.matching.matching import Matched
from augment.job.path.path import Path
from augment.job.path.path_figures import is_handover
from augment.job.ranks.rank_lists import rank_texts
from augment.job.ranks.summary import RankSummary

ANALYSIS = "cross_rank_critical_path"
NAME = "Cross-rank critical path"
_CAME, _LEFT = "handover_before", "handover_after"  #: args: equal numbers on two ranks' tracks mark one handover


def tracks(
    path: Path, matched: Matched, parted: Waits, summaries: Sequence[RankSummary], member: int
) -> list[SliceTrack]:
    """The track of a rank, under the first device with collectives; empty if the path never reaches the rank."""
    pieces, streams = np.flatnonzero(path.member == member), summaries[member].streams
    if not len(pieces) or not streams:
        return []
    part = path.part[pieces]
    kind = np.where(part == NO_INDEX, 0, matched.kind[matched.instance[part]] + 1)
    return [
        SliceTrack(
            analysis=ANALYSIS,
            name=NAME,
            under=streams[0].device_track,
            ts=path.own_start[pieces],
            dur=path.own_end[pieces] - path.own_start[pieces],
            names=Texts(kind.astype(np.int32), ("local work", *(f"transfer {each}" for each in matched.kinds))),
            args=_of_work(path, pieces)
            | _of_transfers(path, matched, parted, pieces)
            | _of_handovers(path, matched, pieces, summaries),
            description="while the path of what decided when the job was done is on this rank",
        )
    ]


def _of_work(path: Path, pieces: Places) -> dict[str, ArgColumn]:
    times = {
        "compute_ns": path.compute_ns,
        "communication_ns": path.communication_ns,
        "memory_ns": path.memory_ns,
        "idle_ns": path.idle_ns,
    }
    local = {name: np.where(path.is_transfer(), NO_INDEX, ns)[pieces] for name, ns in times.items()}
    return {"step": path.step[pieces], **local}


def _of_transfers(path: Path, matched: Matched, parted: Waits, pieces: Places) -> dict[str, ArgColumn]:
    part, moves = path.part[pieces], path.is_transfer()[pieces]
    instance = matched.instance[part]
    return {
        "process_group": Texts(
            np.where(moves, matched.group[instance], NO_INDEX).astype(np.int32),
            tuple(group.description or group.name for group in matched.groups),
        ),
        "bytes": np.where(moves, matched.bytes[instance], NO_INDEX),
        "wait_ns": np.where(moves, parted.wait_ns[part], NO_INDEX),
    }


def _of_handovers(
    path: Path, matched: Matched, pieces: Places, summaries: Sequence[RankSummary]
) -> dict[str, ArgColumn]:
    came = is_handover(path)
    came[:1] = False  # the path begins here
    number = np.where(came, np.cumsum(came) - 1, NO_INDEX)
    following = np.append(number[1:], NO_INDEX)
    waited_for = np.where(is_handover(path), matched.member[path.late], NO_INDEX)
    goes_on = np.where(following == NO_INDEX, NO_INDEX, np.append(path.member[1:], NO_INDEX))
    return {
        "waited_for": rank_texts(waited_for[pieces], summaries),
        _CAME: number[pieces],
        "goes_on_to": rank_texts(goes_on[pieces], summaries),
        _LEFT: following[pieces],
    }


def handovers(annotations: Iterable[Annotation]) -> Iterator[tuple[SliceTrack, Int64s, Int64s]]:
    """Where the path enters and leaves a rank, found in the rank's annotations or copies of them.

    Yields the track, its rows, and the number of each handover: equal on the slices of the ranks before and after.
    """
    for track in annotations:
        if isinstance(track, SliceTrack) and track.analysis == ANALYSIS:
            for numbers in (track.args[_CAME], track.args[_LEFT]):
                assert not isinstance(numbers, Texts)
                rows = np.flatnonzero(numbers != NO_INDEX)
                yield track, rows, numbers[rows]
