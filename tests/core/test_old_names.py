"""Files of earlier versions are read with today's names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from augment.compare.totals import samples_of_sidecar
from augment.core.old_names import current
from augment.pipeline import augment
from augment.results.sidecars import read_sidecar
from augment.writers import metrics
from tables import annotation, call, kernel, trace_of

STEPS = (
    annotation("ProfilerStep#1", 0, 100), call("cudaLaunchKernel", 5, 8, correlation=1),
    kernel("gemm", 10, 150, correlation=1), annotation("ProfilerStep#2", 100, 200),
)  # fmt: skip


def ok(*rows: dict[str, Any]) -> dict[str, Any]:
    return {"status": "ok", "rows": list(rows)}


def test_tables_of_steps_become_one() -> None:
    host = {"rank": 0, "device": 0, "step": 1, "wall_ns": 41}
    window = {"rank": 0, "device": 0, "step": 1, "step_ns": 36}
    old = {"analyses": {"steps": ok(host), "step_variation": ok({"count": 1}), "step_figures": ok(window)}}
    assert current(old) == {"analyses": {"steps": ok({"rank": 0, "device": 0, "step": 1, "wall_ns": 36})}}
    assert current({"analyses": {"steps": ok(host)}}) == {"analyses": {}}, "of the host alone: no figure of a step"


def test_columns_and_figures_have_todays_names() -> None:
    old = {
        "step_efficiency": ok({"overlap_ratio": 0.5, "exposed_copy_ns": 1}),
        "communication_computation_overlap": ok({"overlap_ratio": 0.5}),
        "step_heat": ok({"step_ns": 3, "communication_ns": 2, "memory_ns": 1}),
        "diff_figures": ok({"figure": "step_ns"}, {"figure": "busy_ns"}),
        "kernel_breakdown": ok(),
    }
    assert current({"analyses": old})["analyses"] == {
        "step_efficiency": ok({"overlap_of_possible_ratio": 0.5, "exposed_memory_ns": 1}),
        "communication_computation_overlap": ok({"overlap_ratio": 0.5}),
        "step_heat": ok({"wall_ns": 3, "exposed_communication_ns": 2, "exposed_memory_ns": 1}),
        "diff_figures": ok({"figure": "wall_ns"}, {"figure": "busy_ns"}),
        "kernel_breakdown": ok(),
    }


def test_an_old_sidecar_is_a_baseline(tmp_path: Path) -> None:
    """Also as it is written where the old name is asked for."""
    made = augment(trace_of(*STEPS), only=["step_figures"])
    assert [*made] == ["steps", "step_figures"]
    assert made["steps"].columns == made["step_figures"].columns
    document = metrics.as_read(made)
    new = tmp_path / "new.metrics.json"
    new.write_text(json.dumps(document))
    del document["analyses"]["steps"]
    for row in document["analyses"]["step_figures"]["rows"]:
        row["step_ns"] = row.pop("wall_ns")
    old = tmp_path / "old.metrics.json"
    old.write_text(json.dumps(document))
    before, after = (samples_of_sidecar(str(path), read_sidecar(str(path))) for path in (old, new))
    assert before["wall_ns"].tolist() == after["wall_ns"].tolist() == [150, 50]
