"""What is asked of a whole job: each rank's conversion leaves a small summary, and the job's answer is made of those.

No trace is read a second time for it: a summary lies beside the rank's other outputs and is told of in the manifest,
so that a batch that goes on where it was ended has those of the ranks that were done before.

To add a stage: a module beside this file with a :class:`Stage`, and two lines here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from augment.batch import cross_rank, locations
from augment.batch.inputs import Input
from augment.batch.job_tracks import Errand, told_of
from augment.batch.jobs import Member, jobs_of
from augment.batch.stage import Conclusion, Stage

if TYPE_CHECKING:
    from augment.batch.results import Result


STAGES: tuple[Stage, ...] = (
    Stage(cross_rank.SUFFIX, cross_rank.summarize, cross_rank.conclude, cross_rank.drawn_under),
)


@dataclass(frozen=True, slots=True)
class Concluded:
    """What came of a job: the files about it, and what is still to be drawn in its ranks' outputs.

    In those of ``seamless`` ranks nothing can be drawn: they come from a server that does not tell of seams.
    """

    written: Sequence[str]
    errands: Sequence[Errand]
    seamless: int


def conclude(stages: Sequence[Stage], inputs: Sequence[Input], results: Mapping[str, Result]) -> Iterator[Concluded]:
    """Ask every stage of every job among ``inputs`` of which more than one rank has a summary.

    Args:
        results: what came of the inputs, by path; those that failed leave their jobs without them.

    Raises:
        InputError: a summary cannot be read.
        OutputError: a file cannot be written.
    """
    for job in jobs_of(inputs, results) if stages else []:
        written: list[str] = []
        errands: list[Errand] = []
        for stage in stages:
            found = [(member, _summary(results[member.input.path], stage)) for member in job.members]
            summaries = [(member, locations.read(path)) for member, path in found if path]
            if len(summaries) < 2:
                continue
            conclusion = stage.conclude(job, summaries)
            for suffix, content in conclusion.files.items():
                written.append(locations.join(job.folder, job.stem + suffix))
                _write(written[-1], content)
            errands += _errands(summaries, conclusion, results)
        possible = [one for one in errands if one.size]
        yield Concluded(written, possible, len(errands) - len(possible))


def _errands(
    summaries: Sequence[tuple[Member, bytes]], conclusion: Conclusion, results: Mapping[str, Result]
) -> Iterator[Errand]:
    """Those members whose outputs show something else of the job, or nothing where there is something."""
    drawn = told_of(content for _, content in summaries) if conclusion.tracks else ""
    for (member, _), tracks in zip(summaries, conclusion.tracks, strict=False):
        before = results[member.input.path]
        if before.drawn != drawn and (tracks or before.drawn):
            yield Errand(member.input, before, tracks or tuple, drawn)


def _write(path: str, content: bytes) -> None:
    """Leave a local file alone that has this content."""
    if locations.size(path) != len(content) or locations.read(path) != content:
        locations.write(path, content)


def _summary(result: Result, stage: Stage) -> str | None:
    """None of a rank that an older server converted: it sends no summaries."""
    return next((file.path for file in result.summaries if file.path.endswith(stage.suffix)), None)
