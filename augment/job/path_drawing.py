"""The critical path through the ranks on one rank's timeline: a track of what it consists of while it is there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from augment.annotations import Annotation, ArgColumn, SliceTrack, Texts
from augment.arrays.types import Int64s, Places
from augment.job.matching import Matched
from augment.job.path import Path
from augment.job.path_figures import is_handover
from augment.job.summary import RankSummary
from augment.job.waits import Waits

ANALYSIS = "cross_rank_critical_path"
NAME = "Cross-rank critical path"
_CAME, _LEFT = "handover_before", "handover_after"  #: args: equal numbers on two ranks' tracks are one handover
_NONE = -1


def tracks(
    path: Path, matched: Matched, parted: Waits, summaries: Sequence[RankSummary], member: int
) -> list[SliceTrack]:
    """The track of a rank, under the first device with collectives; none of one that the path does not come to."""
    own, streams = np.flatnonzero(path.member == member), summaries[member].streams
    if not len(own) or not streams:
        return []
    part = path.part[own]
    kind = np.where(part == _NONE, 0, matched.kind[matched.instance[part]] + 1)
    ranks = tuple(f"rank {each.rank}" if each.rank is not None else each.name for each in summaries)
    return [SliceTrack(
        analysis=ANALYSIS,
        name=NAME,
        under=streams[0].device_track,
        ts=path.own_start[own],
        dur=path.own_end[own] - path.own_start[own],
        names=Texts(kind.astype(np.int32), ("local work", *(f"transfer {each}" for each in matched.kinds))),
        args=_of_work(path, own) | _of_transfers(path, matched, parted, own) | _of_handovers(path, matched, own, ranks),
        description="while the path of what decided when the job was done is on this rank",
    )]  # fmt: skip


def _of_work(path: Path, own: Places) -> dict[str, ArgColumn]:
    times = {
        "compute_ns": path.compute_ns,
        "communication_ns": path.communication_ns,
        "memory_ns": path.memory_ns,
        "idle_ns": path.idle_ns,
    }
    local = {name: np.where(path.is_transfer(), _NONE, ns)[own] for name, ns in times.items()}
    return {"step": path.step[own], **local}


def _of_transfers(path: Path, matched: Matched, parted: Waits, own: Places) -> dict[str, ArgColumn]:
    part, moves = path.part[own], path.is_transfer()[own]
    one = matched.instance[part]
    return {
        "process_group": Texts(np.where(moves, matched.group[one], _NONE).astype(np.int32),
                               tuple(group.description or group.name for group in matched.groups)),
        "bytes": np.where(moves, matched.bytes[one], _NONE),
        "wait_ns": np.where(moves, parted.wait_ns[part], _NONE),
    }  # fmt: skip


def _of_handovers(path: Path, matched: Matched, own: Places, ranks: Sequence[str]) -> dict[str, ArgColumn]:
    came = is_handover(path)
    came[:1] = False  # the path begins with it: nothing is before
    number = np.where(came, np.cumsum(came) - 1, _NONE)
    following = np.append(number[1:], _NONE)
    waited_for = np.where(is_handover(path), matched.member[path.late], _NONE)
    goes_on = np.where(following == _NONE, _NONE, np.append(path.member[1:], _NONE))
    return {
        "waited_for": Texts(waited_for[own].astype(np.int32), ranks),
        _CAME: number[own],
        "goes_on_to": Texts(goes_on[own].astype(np.int32), ranks),
        _LEFT: following[own],
    }


def handovers(annotations: Iterable[Annotation]) -> Iterator[tuple[SliceTrack, Int64s, Int64s]]:
    """Where the path comes to a rank and where it leaves, of all its annotations, or of what was made of them.

    The track, its rows, and the number of each handover: that of one slice of the rank before and one of that after.
    """
    for track in annotations:
        if isinstance(track, SliceTrack) and track.analysis == ANALYSIS:
            for numbers in (track.args[_CAME], track.args[_LEFT]):
                assert not isinstance(numbers, Texts)
                rows = np.flatnonzero(numbers != _NONE)
                yield track, rows, numbers[rows]
