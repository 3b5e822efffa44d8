"""What is asked of a whole job: each rank's conversion leaves a small summary, and the job's answer is made of those.

No trace is read a second time for it: a summary lies beside the rank's other outputs and is told of in the manifest,
so that a batch that goes on where it was ended has those of the ranks that were done before.

To add a stage: a module beside this file with a :class:`Stage`, and two lines here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from augment.batch import cross_rank, places
from augment.batch.inputs import Input
from augment.batch.jobs import Job, Member, jobs_of

if TYPE_CHECKING:
    from augment.batch.convert import Result
    from augment.findings import AugmentedTrace


@dataclass(frozen=True, slots=True)
class Stage:
    """A question to a job.

    ``summarize`` makes a rank's summary where the rank is converted, perhaps on another machine: a function of a
    module, so that it can be sent there; ``STEM + suffix`` is the file. ``conclude`` gets a job and the summaries of
    those members that have one, in the order of ranks, and returns the contents of files by what comes after the
    job's stem in their names (``.metrics.json``).
    """

    suffix: str
    summarize: Callable[[AugmentedTrace], bytes]
    conclude: Callable[[Job, Sequence[tuple[Member, bytes]]], Mapping[str, bytes]]


STAGES: tuple[Stage, ...] = (Stage(cross_rank.SUFFIX, cross_rank.summarize, cross_rank.conclude),)


def conclude(stages: Sequence[Stage], inputs: Sequence[Input], results: Mapping[str, Result]) -> list[str]:
    """Ask every stage of every job among ``inputs`` of which more than one rank has a summary; the files written.

    Args:
        results: what came of the inputs, by path; those that failed leave their jobs without them.

    Raises:
        InputError: a summary cannot be read.
        OutputError: a file cannot be written.
    """
    written = []
    jobs = jobs_of(inputs, results) if stages else []
    for job in jobs:
        for stage in stages:
            found = [(member, _summary(results[member.input.path], stage)) for member in job.members]
            summaries = [(member, places.read(path)) for member, path in found if path]
            if len(summaries) < 2:
                continue
            for suffix, content in stage.conclude(job, summaries).items():
                written.append(places.join(job.folder, job.stem + suffix))
                _write(written[-1], content)
    return written


def _write(path: str, content: bytes) -> None:
    """Leave a local file alone that has this content."""
    if places.size(path) != len(content) or places.read(path) != content:
        places.write(path, content)


def _summary(result: Result, stage: Stage) -> str | None:
    """None of a rank that an older server converted: it sends no summaries."""
    return next((file.path for file in result.summaries if file.path.endswith(stage.suffix)), None)
