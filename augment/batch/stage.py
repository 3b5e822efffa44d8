"""A question to a whole job, and the answer to it: the shapes that every stage shares."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from augment.batch.job_tracks import Tracks
from augment.batch.jobs import Job, Member

if TYPE_CHECKING:
    from augment.findings import AugmentedTrace


@dataclass(frozen=True, slots=True)
class Conclusion:
    """The contents of files, by what comes after the job's stem in their names (``.metrics.json``).

    And what makes the tracks of each rank of which a summary was given, None where there are none.
    """

    files: Mapping[str, bytes]
    tracks: Sequence[Tracks | None] = ()


@dataclass(frozen=True, slots=True)
class Stage:
    """A question to a job.

    ``summarize`` makes a rank's summary where the rank is converted, perhaps on another machine: a function of a
    module, so that it can be sent there; ``STEM + suffix`` is the file. ``conclude`` gets a job and the summaries of
    those members that have one, in the order of ranks. ``under`` names the tracks of a rank's source under which the
    job's may be drawn in its outputs; of all stages only one may draw.
    """

    suffix: str
    summarize: Callable[[AugmentedTrace], bytes]
    conclude: Callable[[Job, Sequence[tuple[Member, bytes]]], Conclusion]
    under: Callable[[AugmentedTrace], Collection[int]] | None = None
