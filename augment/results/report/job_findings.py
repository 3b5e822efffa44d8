"""What is wrong with a job as a whole, as rows like those of the diagnosis of one trace: the stages of its pipelines.

No saving is predicted: what a stage waits for the others shows how much there is to gain, not how much a cure gains.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from augment.core.text import percent, time
from augment.diagnosis.rule import HIGH_RATIO, WARNING_RATIO
from augment.job.answer import Answer

Row = dict[str, Any]


def findings(answer: Answer) -> list[Row]:
    """The rows, the gravest first."""
    outcome = answer.outcomes.get("pipeline")
    pipelines: dict[int, list[Any]] = {}
    for row in getattr(outcome, "rows", ()):
        pipelines.setdefault(row.pipeline, []).append(row)
    rows = [row for stages in pipelines.values() for row in _of_pipeline(stages, several=len(pipelines) > 1)]
    return sorted(rows, key=lambda row: row["severity"] != "warning")


def _of_pipeline(stages: Sequence[Any], *, several: bool) -> Iterator[Row]:
    name = f" of pipeline {stages[0].pipeline}" if several else ""
    slowest = max(stages, key=lambda stage: stage.work_ns)
    others = [stage for stage in stages if stage is not slowest]
    window = max(sum(stage.window_ns for stage in others), 1)
    waiting = sum(max(stage.imbalance_ns, 0) for stage in others) / window
    if waiting >= WARNING_RATIO:
        usual = sum(stage.work_ns for stage in others) / len(others)
        yield _row(
            "stage_imbalance",
            waiting,
            f"Stage {slowest.stage}{name} (rank {slowest.rank}) works {percent(slowest.work_ns / max(usual, 1) - 1)} "
            f"longer than the mean of the others, which wait for it {percent(waiting)} of their time",
            f"Move layers from stage {slowest.stage} to other stages; the embedding and the loss count, too",
            stages,
        )
    theory = sum(stage.theory_ns or 0 for stage in stages) / max(sum(stage.window_ns for stage in stages), 1)
    if theory >= WARNING_RATIO:
        first = stages[0]
        yield _row(
            "pipeline_bubble",
            theory,
            f"The order of passes{name} ({first.schedule}, {first.stage_count} stages, {first.microbatch_count} "
            f"microbatches) leaves the stages without work for {percent(theory)} of their time",
            "Use more microbatches, or an interleaved or zero-bubble schedule",
            stages,
        )


def _row(rule: str, ratio: float, title: str, advice: str, stages: Sequence[Any]) -> Row:
    return {
        "rule": rule,
        "status": "found",
        "severity": "warning" if ratio >= HIGH_RATIO else "info",
        "title": title,
        "confidence": "medium",
        "advice": advice,
        "evidence": [
            f"stage {stage.stage}: works {time(stage.work_ns / max(stage.step_count, 1))} of "
            f"{time(stage.window_ns / max(stage.step_count, 1))} a step"
            for stage in sorted(stages, key=lambda stage: stage.stage)
        ],
    }
