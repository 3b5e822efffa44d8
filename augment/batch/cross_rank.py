"""The stage that compares the ranks of a job: ``job.metrics.json``, and the job's tracks in each rank's outputs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

from augment.batch import locations
from augment.batch.job_tracks import job_digest
from augment.batch.jobs import Job, Member
from augment.batch.stage import Conclusion, Crew

if TYPE_CHECKING:
    from augment.core.findings import AugmentedTrace
    from augment.job.answer import Answer
    from augment.job.portions import Portion
    from augment.pipeline.request import Request
    from augment.writers.seams import Addable

SUFFIX = ".ranks.summary"


def summarize(augmented: AugmentedTrace) -> bytes:
    """The summary of a rank."""
    from augment.job.ranks import summary

    return summary.summarize(augmented)


def drawn_under(augmented: AugmentedTrace) -> Collection[int]:
    """The tracks under which the job's tracks of this rank are drawn."""
    from augment.job.ranks import summary

    return summary.drawn_under(augmented)


def conclude(job: Job, summaries: Sequence[tuple[Member, str]], request: Request, crew: Crew) -> Conclusion:
    """The metrics and tracks of a job."""
    from augment.job import sidecar
    from augment.job.answer import answer_of
    from augment.job.portions import split

    count = len(summaries)
    ranks = [(path, member.input.path) for member, path in summaries]
    tasks = [partial(_portion, some, first, count) for first, some in split(ranks)]
    with closing(crew(tasks)) as portions:
        result = answer_of(portions, request.parallelism, trust_clocks=request.trust_clocks)
    files = {sidecar.SUFFIX: sidecar.content(result, job.name, job.window, job.world_size)}
    tracks = [partial(_drawn, result, rank) if result.is_drawn(rank) else None for rank in range(count)]
    return Conclusion(files, tracks, result.verdict.text, job_digest(result.hashes, request), result.verdict.joined)


def _drawn(result: Answer, rank: int) -> list[Addable]:
    """What the job draws into the outputs of a rank."""
    from augment.job.rank_answers import track

    return [track(result, rank), *result.annotations(rank)]


def _portion(ranks: Sequence[tuple[str, str]], first: int, count: int) -> Portion:
    """Some ranks of a job, reduced; of each the path of its summary, and of its trace."""
    from augment.job.portions import portion

    return portion((locations.read(path) for path, _ in ranks), [name for _, name in ranks], first, count)
