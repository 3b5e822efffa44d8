"""A gap is named by the frame that covers it, not by the operator that ends it."""

from __future__ import annotations

import pytest

from augment.analyses.idle_time_breakdown import analyze
from augment.core.annotations import Flows, SliceTrack
from augment.core.trace import Category, Trace, Track
from tables import Event, call, kernel, op, trace_of

US = 1_000


def gap(begin_us: int, *, stacks: bool = True) -> Trace:
    """The device waits from 10 to 230 us; the operator that ends the gap begins at ``begin_us``, a frame before it."""
    frame = Event(Category.PYTHON_FUNCTION, "preprocess", 11 * US, 228 * US, Track(0, 100, 1))
    return trace_of(
        call("cudaLaunchKernel", 0, 1 * US, correlation=1),
        kernel("gemm", 2 * US, 10 * US, correlation=1),
        *([frame] if stacks else []),
        op("aten::copy_", begin_us * US, 230 * US),
        call("cudaLaunchKernel", 229 * US, 230 * US, correlation=2),
        kernel("gemm", 230 * US, 240 * US, correlation=2),
    )


@pytest.mark.parametrize(
    ("trace", "name"),
    [
        (gap(227), "preprocess"),
        (gap(227, stacks=False), "aten::copy_"),  # nothing else is known
        (gap(20), "aten::copy_"),
    ],
)
def test_who_covers_a_gap_is_named(trace: Trace, name: str) -> None:
    findings = analyze(trace)
    (track,) = (each for each in findings.annotations if isinstance(each, SliceTrack) and each.name == "Idle")
    assert track.inner is not None
    assert [track.inner.values[code] for code in track.inner.codes] == [name]
    flows = [each for each in findings.annotations if isinstance(each, Flows)]
    assert trace.names_of(flows[-1].out.rows) == [name]
