"""Simulated jobs for the rules: a fault is injected or not, and the times of both runs are known."""

from __future__ import annotations

import dataclasses
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
from augment.core.trace import Trace  # noqa: E402
from augment.diagnosis.judging import measure  # noqa: E402
from augment.diagnosis.ranking import RankedFindings, diagnose  # noqa: E402
from augment.readers import read  # noqa: E402
from simulator import JobOptions, simulate  # noqa: E402

POINTS = 0.05  #: a prediction may differ so much from the truth, as a share of a step
HEALTHY = JobOptions(ranks=2, steps=5, layers=4, write_ranks=(0,), run_ahead=2)


def changed(**options: Any) -> JobOptions:
    """The healthy job, but for some options."""
    return dataclasses.replace(HEALTHY, **options)


@cache
def trace_of(options: JobOptions) -> Trace:
    """The trace of rank 0."""
    with tempfile.TemporaryDirectory() as folder:
        ((path, _),) = simulate(options, folder)
        return read(str(path))


def diagnosis_of(options: JobOptions) -> RankedFindings:
    """What the rules say of it."""
    return diagnose(trace_of(options))


def severities(options: JobOptions) -> dict[str, str]:
    """The rules that fire, but for what is small or merely possible, and how grave they are."""
    return {each.rule: each.severity for each in diagnosis_of(options).findings if each.is_grave}


def predicted_and_true(rule: str, faulty: JobOptions, cured: JobOptions) -> tuple[float, float]:
    """The shares of a step that the cure saves: as the rule predicts, and by simulating it."""
    (finding,) = (each for each in diagnosis_of(faulty).findings if each.rule == rule)
    before, after = (measure(trace_of(options)).length_ns for options in (faulty, cured))
    assert finding.saved_ratio is not None
    return finding.saved_ratio, 1 - after / before
