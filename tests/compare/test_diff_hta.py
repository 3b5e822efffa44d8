"""The figures that HTA's own tests assert of its pair of traces (its ``tests/test_trace_diff.py``)."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import augment
from augment.compare import Diff, diff
from diffs import rows


@pytest.fixture(scope="module")
def compared(shared_traces: Path) -> Diff:
    sides = [
        augment.read(str(shared_traces / "hta_tiny" / f"trace_compare_{name}.json.gz")) for name in ("base", "test")
    ]
    return diff(sides[0], sides[1], step=1010)


def test_control_counts_and_durations(compared: Diff) -> None:
    control = {row.name: (row.control_count, row.control_ns // 1000)
               for row in rows(compared, "diff_names") if row.side == "cpu" and row.control_count}  # fmt: skip
    assert control == {
        "ProfilerStep": (1, 122149),
        "aten::as_strided": (1, 0),
        "aten::empty": (1, 0),
        "cudaEventQuery": (1, 4),
        "cudaLaunchKernel": (1, 4),
        "nccl:all_reduce": (1, 67),
    }


def test_classes_of_change(compared: Diff) -> None:
    of_side = {side: [row for row in rows(compared, "diff_names") if row.side == side] for side in ("cpu", "gpu")}
    assert Counter(row.change for row in of_side["cpu"]) == {"unchanged": 5, "added": 3, "deleted": 1}
    assert Counter(row.change for row in of_side["gpu"]) == {"deleted": 1}
    names = {
        change: sorted(row.name for row in of_side["cpu"] if row.change == change) for change in ("added", "deleted")
    }
    assert names == {"added": ["AddmmBackward0", "All2All_Pooled_Req", "CatBackward0"], "deleted": ["nccl:all_reduce"]}
