"""The stage that compares the ranks of a job: ``job.metrics.json``, and the job's tracks in each rank's outputs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING

from augment.batch.jobs import Job, Member
from augment.batch.stage import Conclusion

if TYPE_CHECKING:
    from augment.findings import AugmentedTrace
    from augment.request import Request

SUFFIX = ".ranks.summary"


def summarize(augmented: AugmentedTrace) -> bytes:
    """The summary of a rank."""
    from augment.job import summary

    return summary.summarize(augmented)


def drawn_under(augmented: AugmentedTrace) -> Collection[int]:
    """The tracks under which the job's tracks of this rank are drawn."""
    from augment.job import summary

    return summary.drawn_under(augmented)


def conclude(job: Job, summaries: Sequence[tuple[Member, bytes]], request: Request) -> Conclusion:
    """The metrics and tracks of a job."""
    from augment.job import sidecar
    from augment.job.answer import answer

    paths = [member.input.path for member, _ in summaries]
    result = answer(
        (content for _, content in summaries), paths, request.parallelism, trust_clocks=request.trust_clocks
    )
    files = {sidecar.SUFFIX: sidecar.content(result, job.name, job.window, job.world_size)}
    members = range(len(summaries))
    tracks = [partial(result.annotations, rank) if result.is_drawn(rank) else None for rank in members]
    return Conclusion(files, tracks, result.verdict.text)
