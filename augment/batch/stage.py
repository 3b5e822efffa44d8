"""The interface of a stage: a question to a whole job, and its answer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from msgspec import Struct

from augment.batch.job_tracks import Tracks
from augment.batch.jobs import Job, Member

if TYPE_CHECKING:
    from augment.core.findings import AugmentedTrace
    from augment.pipeline.request import Request

T = TypeVar("T")


class Crew(Protocol):
    """Does parts of a conclusion, perhaps several at once in other processes."""

    def __call__(self, tasks: Sequence[Callable[[], T]]) -> Generator[T, None, None]:
        """The results in the order of ``tasks``, which can be pickled. Close it where they are not all wanted."""


def alone(tasks: Sequence[Callable[[], T]]) -> Generator[T, None, None]:
    """The crew that is this process."""
    return (task() for task in tasks)


class Conclusion(Struct, frozen=True):
    """The answer of a stage for one job.

    ``files``: contents by the suffix that follows the job's stem in the file name (``.metrics.json``). ``tracks``: for
    each rank with a summary, a function that makes its tracks, or None. ``verdict``: sentences about the job, which is
    one if its traces are ``joined``. ``digest`` identifies the tracks of all ranks: it changes with the summaries.
    """

    files: Mapping[str, bytes]
    tracks: Sequence[Tracks | None] = ()
    verdict: Sequence[str] = ()
    digest: str = ""
    joined: bool = True


class Stage(Struct, frozen=True):
    """A question to a job.

    ``summarize`` makes the summary of a rank during its conversion, perhaps on another machine; it is a module-level
    function so that it can be pickled. ``STEM + suffix`` is the summary's file. ``conclude`` gets a job, the members
    that have a summary, sorted by rank, with its path, what the user asks, and who does parts of the work. ``under``
    names the tracks of a rank's source under which the job's tracks may be drawn in its outputs; only one of all stages
    may draw.
    """

    suffix: str
    summarize: Callable[[AugmentedTrace], bytes]
    conclude: Callable[[Job, Sequence[tuple[Member, str]], Request, Crew], Conclusion]
    under: Callable[[AugmentedTrace], Collection[int]] | None = None
