"""The rest of the MFU, in points, with the operators that cause it."""

from typing import Any

from augment.analyses.step_efficiency import BESIDE, COMPUTING
from augment.cli.run_summary import waterfall


def step(mfu: float | None, hfu: float | None = None, lacking: str | None = None, **parts: int) -> dict[str, Any]:
    """A row of the sidecar."""
    named = {f"{name}_ns": parts.get(name, 0) for name in (*COMPUTING, *BESIDE)}
    return {"rank": 0, "device": 0, "step": 1, "wall_ns": sum(named.values()), "mfu_ratio": mfu,
            "hfu_ratio": hfu or mfu, "peak": "bf16 989.4 TFLOP/s", "lacking": lacking, **named}  # fmt: skip


def operator(name: str, bound: str, time: int, lost: int) -> dict[str, Any]:
    """A row of the roofline."""
    return {"rank": 0, "device": 0, "operator": name, "bound": bound, "time_ns": time, "lost_ns": lost}


def test_parts_are_in_points_and_largest_first() -> None:
    steps = [
        step(0.3, 0.35, ideal_compute=35, compute_above=20, memory_ideal=5, memory_above=5, host_wait=35),
        step(0.5, 0.55, ideal_compute=55, compute_above=40, memory_ideal=5),
    ]
    rows = [operator("aten::mm", "compute", 90, 30), operator("aten::bmm", "compute", 50, 40),
            operator("aten::add", "memory", 15, 5), operator("aten::mm", "compute", 30, 20)]  # fmt: skip
    assert list(waterfall({"analyses": {"step_efficiency": {"rows": steps}, "roofline": {"rows": rows}}})) == [
        "  MFU 40.0 % (2 steps; bf16 989.4 TFLOP/s); the rest, in points:",
        "     30.0  below peak: aten::mm, aten::bmm",
        "     17.5  host",
        "      7.5  memory-bound: aten::add",
        "      5.0  recomputation",
    ]


def test_parts_and_mfu_make_up_the_whole() -> None:
    steps = [
        step(
            0.25, 0.25, ideal_compute=250, unmodelled=100, exposed_memory=50, exposed_communication=400, other_wait=200
        )
    ]
    lines = list(waterfall({"analyses": {"step_efficiency": {"rows": steps}}}))
    assert 25 + sum(float(line.split()[0]) for line in lines[1:]) == 100


def test_without_an_mfu_the_reason_is_told() -> None:
    lines = list(
        waterfall(
            {"analyses": {"step_efficiency": {"rows": [step(None, lacking="shapes were not recorded", host_wait=1)]}}}
        )
    )
    assert lines == ["  no MFU: shapes were not recorded"]


def test_without_the_analysis_nothing_is_told() -> None:
    assert list(waterfall({"analyses": {}})) == []
    assert list(waterfall({"analyses": {"step_efficiency": {"status": "skipped"}}})) == []
