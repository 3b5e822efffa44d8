"""The interface of a stage: a question to a whole job, and its answer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from augment.batch.job_tracks import Tracks
from augment.batch.jobs import Job, Member
from augment.records import dataclass

if TYPE_CHECKING:
    from augment.findings import AugmentedTrace
    from augment.request import Request


@dataclass(frozen=True, slots=True)
class Conclusion:
    """The answer of a stage for one job.

    ``files``: contents by the suffix that follows the job's stem in the file name (``.metrics.json``). ``tracks``: for
    each rank with a summary, a function that makes its tracks, or None. ``verdict``: sentences about the job.
    """

    files: Mapping[str, bytes]
    tracks: Sequence[Tracks | None] = ()
    verdict: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Stage:
    """A question to a job.

    ``summarize`` makes the summary of a rank during its conversion, perhaps on another machine; it is a module-level
    function so that it can be pickled. ``STEM + suffix`` is the summary's file. ``conclude`` gets a job, the
    summaries of the members that have one, sorted by rank, and what the user asks. ``under`` names the tracks of a
    rank's source under which the job's tracks may be drawn in its outputs; only one of all stages may draw.
    """

    suffix: str
    summarize: Callable[[AugmentedTrace], bytes]
    conclude: Callable[[Job, Sequence[tuple[Member, bytes]], Request], Conclusion]
    under: Callable[[AugmentedTrace], Collection[int]] | None = None
