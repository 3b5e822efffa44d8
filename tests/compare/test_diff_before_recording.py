"""Work launched before the recording, in a comparison: by order on its stream, and one part of the difference."""

from __future__ import annotations

import numpy as np

from augment.arrays.types import NO_INDEX
from augment.compare import diff
from augment.compare.waterfall import BEFORE
from augment.core.trace import Trace
from augment.facts.gpu.gpu_work import gpu_work
from augment.facts.gpu.launched_work import before_recording
from tables import Event, annotation, call, kernel, op, trace_of

LAYER = ("gemm", "relu", "norm")


def recording(first: int, *, steps: bool = False) -> Trace:
    """Nine kernels, of which the first three had run when the recording began, or only as many as ``first``; the calls
    of all but the last three were made before it."""
    events: list[Event] = []
    for place in range(first, 9):
        name, start = LAYER[place % 3], 100 * place
        events.append(kernel(name, start, start + 90, correlation=10 + place))
        if place >= 6:
            launch = 400 + 10 * place
            events += [op(f"aten::{name}", launch, launch + 5),
                       call("cudaLaunchKernel", launch + 1, launch + 4, correlation=10 + place)]  # fmt: skip
    return trace_of(*events, *([annotation("ProfilerStep#3", 450, 880)] if steps else []))


def test_it_is_matched_by_order_on_its_stream() -> None:
    for steps in (False, True):
        diff_result = diff(recording(1, steps=steps), recording(3, steps=steps))
        (pair,) = diff_result.pairs
        early = np.flatnonzero(before_recording(pair.test.trace))
        assert len(early) == 3
        partner = pair.alignment.work_of_test[early]
        assert (partner != NO_INDEX).all()
        for part, yours in zip(partner.tolist(), early.tolist(), strict=True):
            first, other = gpu_work(pair.control.trace), gpu_work(pair.test.trace)
            assert pair.control.trace.names_of(first.row[[part]]) == pair.test.trace.names_of(other.row[[yours]])
        assert not before_recording(pair.control.trace)[pair.alignment.work_of_test[-3:]].any()


def test_it_is_one_part_and_told_with_its_share() -> None:
    diff_result = diff(recording(1), recording(3))
    rows = diff_result.outcomes["diff_waterfall"].rows  # type: ignore[union-attr]
    assert not [row for row in rows if row.change in ("added", "deleted")]
    (part,) = (row for row in rows if row.test_names == [BEFORE])
    assert (part.operator, part.control_ns, part.test_ns, part.change) == ("", 450, 270, "decreased")
    output = [diagnostic for diagnostic in diff_result.diagnostics if diagnostic.code == "before_recording"]
    assert [(each.count, "62.5 %" in each.message or "50.0 %" in each.message) for each in output] == [
        (5, True),
        (3, True),
    ]


def test_of_steps_it_is_no_part() -> None:
    diff_result = diff(recording(1, steps=True), recording(3, steps=True))
    rows = diff_result.outcomes["diff_waterfall"].rows  # type: ignore[union-attr]
    assert {row.delta_ns for row in rows} == {0}
    assert not [row for row in rows if BEFORE in row.test_names]
