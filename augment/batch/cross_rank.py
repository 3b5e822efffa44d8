"""The stage that compares the ranks of a job: ``job.metrics.json``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from augment.batch.jobs import Job, Member

if TYPE_CHECKING:
    from augment.findings import AugmentedTrace

SUFFIX = ".ranks.summary"


def summarize(augmented: AugmentedTrace) -> bytes:
    """What a rank leaves for its job."""
    from augment.job import summary

    return summary.summarize(augmented)


def conclude(job: Job, summaries: Sequence[tuple[Member, bytes]]) -> Mapping[str, bytes]:
    """The metrics of a job."""
    from augment.job import sidecar
    from augment.job.answer import answer

    found = answer([content for _, content in summaries], [member.input.path for member, _ in summaries])
    return {sidecar.SUFFIX: sidecar.content(found, job.name, job.window, job.world_size)}
