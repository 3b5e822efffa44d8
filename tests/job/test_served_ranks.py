"""Ranks of an inference engine as a job: its steps have the engine's names, and the late rank is found in them."""

from __future__ import annotations

import gzip
import re
from pathlib import Path
from typing import Any

import pytest

from answered_jobs import answered, rows, simulated_job

STEP = re.compile(r"ProfilerStep#\d+")


def served(folder: Path, **options: Any) -> list[Path]:
    """A simulated job whose steps an engine names."""
    paths = simulated_job(folder, ranks=4, steps=5, layers=4, **options)
    for path in paths:
        text = gzip.decompress(path.read_bytes()).decode()
        text = STEP.sub("execute_context_0(0)_generation_8(8)", text)
        path.write_bytes(gzip.compress(text.encode(), 1))
    return paths


@pytest.mark.parametrize("options", [{}, {"ep": 4}, {"tp": 2}])
def test_a_rank_whose_experts_or_layers_take_longer_is_named(tmp_path: Path, options: dict[str, int]) -> None:
    """Of expert parallelism: the rank with most tokens holds up the others at each combine."""
    result = answered(served(tmp_path, straggler=2, **options))
    assert [(row.rank, row.cause) for row in result.verdict.rows][:1] == [(2, "compute")]
    assert result.verdict.text[0].startswith("Rank 2 delays the other")
    steps = {row.step for row in rows(result, "step_heat")}
    assert steps == set(range(5))


@pytest.mark.parametrize("options", [{}, {"ep": 4}])
def test_nobody_is_named_among_equal_ranks(tmp_path: Path, options: dict[str, int]) -> None:
    assert not answered(served(tmp_path, **options)).verdict.rows
