"""Questions to a whole job: each conversion leaves a small summary of its rank, and the answer is made of those.

Traces are not read again. A summary lies next to the rank's other outputs and is listed in the manifest, so that a
resumed batch has the summaries of the ranks converted before.

To add a stage, add a module with a :class:`Stage` next to this file, and two lines here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from augment.batch import cross_rank, locations
from augment.batch.inputs import Input
from augment.batch.job_tracks import Errand
from augment.batch.jobs import Job, Member, jobs_of
from augment.batch.stage import Conclusion, Crew, Stage, alone

if TYPE_CHECKING:
    from augment.batch.results import Result
    from augment.pipeline.request import Request


STAGES: tuple[Stage, ...] = (
    Stage(cross_rank.SUFFIX, cross_rank.summarize, cross_rank.conclude, cross_rank.drawn_under),
)


class Concluded(Struct, frozen=True):
    """The outcome for a job: the files about it, and the tracks still to be drawn into its ranks' outputs.

    ``seamless`` counts the ranks whose outputs have no seam to draw at: an old server converted them. ``verdict``:
    sentences about the job, which is one if its traces are ``joined``.
    """

    job: Job
    written: Sequence[str]
    errands: Sequence[Errand]
    seamless: int
    verdict: Sequence[str] = ()
    joined: bool = True


def conclude(
    stages: Sequence[Stage],
    inputs: Sequence[Input],
    results: Mapping[str, Result],
    request: Request,
    crew: Crew = alone,
) -> Iterator[Concluded]:
    """Answer every stage for every job among ``inputs`` that has summaries of more than one rank.

    Args:
        results: the results of the inputs by path; a failed input is missing from its job.
        request: what the user asks.
        crew: reads the summaries of large jobs.

    Raises:
        InputError: a summary cannot be read.
        OutputError: a file cannot be written.
    """
    for job in jobs_of(inputs, results) if stages else []:
        written: list[str] = []
        errands: list[Errand] = []
        verdict: list[str] = []
        joined = True
        for stage in stages:
            paths = [(member, _summary(results[member.input.path], stage)) for member in job.members]
            summaries = [(member, path) for member, path in paths if path]
            if len(summaries) < 2:
                continue
            conclusion = stage.conclude(job, summaries, request, crew)
            for suffix, content in conclusion.files.items():
                written.append(locations.join(job.folder, job.stem + suffix))
                _write(written[-1], content)
            errands += _errands(summaries, conclusion, results)
            verdict += conclusion.verdict
            joined &= conclusion.joined
        possible = [errand for errand in errands if errand.size]
        yield Concluded(job, written, possible, len(errands) - len(possible), verdict, joined)


def _errands(
    summaries: Sequence[tuple[Member, str]], conclusion: Conclusion, results: Mapping[str, Result]
) -> Iterator[Errand]:
    """The members whose outputs show other results of the job, or outdated ones."""
    drawn = conclusion.digest
    for (member, _), tracks in zip(summaries, conclusion.tracks, strict=False):
        before = results[member.input.path]
        if before.drawn != drawn and (tracks or before.drawn):
            yield Errand(member.input, before, tracks or tuple, drawn)


def _write(path: str, content: bytes) -> None:
    """Write a file; an unchanged local file is left alone."""
    if locations.size(path) != len(content) or locations.read(path) != content:
        locations.write(path, content)


def _summary(result: Result, stage: Stage) -> str | None:
    """The path of a rank's summary; None if an older server converted the rank, which sends no summaries."""
    return next((file.path for file in result.summaries if file.path.endswith(stage.suffix)), None)
