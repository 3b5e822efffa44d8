"""Jobs of several ranks, recorded or simulated, and what is said of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from augment import AugmentedTrace, augment, read
from augment.job.answer import Answer, answer
from augment.job.collectives import waits
from augment.job.matching import align, match
from augment.job.ranks import RankSummary, read_summary, summarize
from simulator import JobOptions, simulate


def job_at(folder: Path, pattern: str = "*.json.gz") -> list[Path]:
    """The traces of a recorded job; where it is not at hand, the test is skipped."""
    paths = sorted(folder.glob(pattern))
    if not paths:
        pytest.skip(f"no recorded traces at {folder}")
    return paths


def simulated_job(folder: Path, **options: Any) -> list[Path]:
    return [path for path, _ in simulate(JobOptions(**options), folder)]


def summaries_at(paths: Sequence[Path]) -> list[RankSummary]:
    return [read_summary(_content(path, path.stat().st_mtime_ns), path.name) for path in paths]


@lru_cache(32)
def _content(path: Path, changed_ns: int, *analyses: str) -> bytes:
    trace = read(str(path))
    return summarize(augment(trace, only=analyses) if analyses else AugmentedTrace(trace, {}))


def answered(paths: Sequence[Path], *analyses: str, **options: Any) -> Answer:
    """The answer to the traces of a job, of which each has these analyses alone."""
    contents = [_content(path, path.stat().st_mtime_ns, *analyses) for path in paths]
    return answer(contents, [path.name for path in paths], **options)


def answer_to(summaries: Sequence[RankSummary], parallelism: dict[str, int] | None = None) -> Answer:
    """The answer to summaries as they are."""
    matched = match(summaries)
    clocks, _ = align(matched, summaries)
    return Answer(summaries, clocks, matched, waits(matched, clocks), [], parallelism or {})


def rows(result: Answer, question: str) -> Any:
    return result.outcomes[question].rows  # type: ignore[union-attr]
