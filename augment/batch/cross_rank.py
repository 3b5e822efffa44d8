"""The stage that compares the ranks of a job: ``job.metrics.json``, and what is drawn in the outputs of each rank."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING

from augment.batch.jobs import Job, Member
from augment.batch.stage import Conclusion

if TYPE_CHECKING:
    from augment.findings import AugmentedTrace

SUFFIX = ".ranks.summary"


def summarize(augmented: AugmentedTrace) -> bytes:
    """What a rank leaves for its job."""
    from augment.job import summary

    return summary.summarize(augmented)


def drawn_under(augmented: AugmentedTrace) -> Collection[int]:
    """The tracks under which a rank's part of the job is drawn."""
    from augment.job import summary

    return summary.drawn_under(augmented)


def conclude(job: Job, summaries: Sequence[tuple[Member, bytes]]) -> Conclusion:
    """The metrics of a job, and its tracks."""
    from augment.job import sidecar
    from augment.job.answer import answer

    found = answer([content for _, content in summaries], [member.input.path for member, _ in summaries])
    files = {sidecar.SUFFIX: sidecar.content(found, job.name, job.window, job.world_size)}
    members = range(len(summaries))
    return Conclusion(files, [partial(found.annotations, one) if found.is_drawn(one) else None for one in members])
