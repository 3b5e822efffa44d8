"""Questions to a whole job: each conversion leaves a small summary of its rank, and the answer is made of those.

Traces are not read again. A summary lies next to the rank's other outputs and is listed in the manifest, so that a
resumed batch has the summaries of the ranks converted before.

To add a stage, add a module with a :class:`Stage` next to this file, and two lines here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, overload

from augment.batch import cross_rank, locations
from augment.batch.inputs import Input
from augment.batch.job_tracks import Errand, job_digest
from augment.batch.jobs import Job, Member, jobs_of
from augment.batch.stage import Conclusion, Stage
from augment.records import dataclass

if TYPE_CHECKING:
    from augment.batch.results import Result
    from augment.request import Request


STAGES: tuple[Stage, ...] = (
    Stage(cross_rank.SUFFIX, cross_rank.summarize, cross_rank.conclude, cross_rank.drawn_under),
)


@dataclass(frozen=True, slots=True)
class Concluded:
    """The outcome for a job: the files about it, and the tracks still to be drawn into its ranks' outputs.

    ``seamless`` counts the ranks whose outputs have no seam to draw at: an old server converted them. ``verdict``:
    sentences about the job.
    """

    job: Job
    written: Sequence[str]
    errands: Sequence[Errand]
    seamless: int
    verdict: Sequence[str] = ()


def conclude(
    stages: Sequence[Stage], inputs: Sequence[Input], results: Mapping[str, Result], request: Request
) -> Iterator[Concluded]:
    """Answer every stage for every job among ``inputs`` that has summaries of more than one rank.

    Args:
        results: the results of the inputs by path; a failed input is missing from its job.
        request: what the user asks.

    Raises:
        InputError: a summary cannot be read.
        OutputError: a file cannot be written.
    """
    for job in jobs_of(inputs, results) if stages else []:
        written: list[str] = []
        errands: list[Errand] = []
        verdict: list[str] = []
        for stage in stages:
            paths = [(member, _summary(results[member.input.path], stage)) for member in job.members]
            summaries = _Summaries([(member, path) for member, path in paths if path])
            if len(summaries) < 2:
                continue
            conclusion = stage.conclude(job, summaries, request)
            for suffix, content in conclusion.files.items():
                written.append(locations.join(job.folder, job.stem + suffix))
                _write(written[-1], content)
            errands += _errands(summaries, conclusion, results)
            verdict += conclusion.verdict
        possible = [errand for errand in errands if errand.size]
        yield Concluded(job, written, possible, len(errands) - len(possible), verdict)


class _Summaries(Sequence[tuple[Member, bytes]]):
    """The members of a job with their summaries, of which each is read when it is asked for: thousands are large."""

    def __init__(self, paths: Sequence[tuple[Member, str]]) -> None:
        self._paths = paths

    def __len__(self) -> int:
        return len(self._paths)

    @overload
    def __getitem__(self, at: int) -> tuple[Member, bytes]: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[tuple[Member, bytes]]: ...
    def __getitem__(self, at: int | slice) -> tuple[Member, bytes] | Sequence[tuple[Member, bytes]]:
        if isinstance(at, slice):
            return _Summaries(self._paths[at])
        member, path = self._paths[at]
        return member, locations.read(path)


def _errands(
    summaries: Sequence[tuple[Member, bytes]], conclusion: Conclusion, results: Mapping[str, Result]
) -> Iterator[Errand]:
    """The members whose outputs show other results of the job, or outdated ones."""
    drawn = job_digest(content for _, content in summaries) if conclusion.tracks else ""
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
