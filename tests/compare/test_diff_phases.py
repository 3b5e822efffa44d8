"""Comparisons of engines of inference: like phase and batch with like."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from augment.compare.compared_steps import choose
from augment.compare.core import diff
from augment.facts.steps import batches
from serving import US, Serving, serve
from tables import rows_of

SERVER = Serving(is_async=True, steps=40, prefill_every=8, prefill_times=6, noise=0.02)


def phases(trace, windows) -> list[str]:  # type: ignore[no-untyped-def]
    of_step = batches(trace)
    return sorted(of_step[number].phase for number in windows.number.tolist())


@pytest.mark.parametrize(("every", "steps"), [(8, 40), (4, 40), (12, 70), (5, 25)])
def test_both_sides_have_the_same_phases(every: int, steps: int) -> None:
    sides = serve(SERVER), serve(replace(SERVER, seed=1, prefill_every=every, steps=steps))
    chosen = choose(*sides)
    assert phases(sides[0], chosen.control) == phases(sides[1], chosen.test)
    for windows in (chosen.control, chosen.test):
        assert (np.diff(windows.begin) > 0).all()
    left_out = sum(diagnostic.count for diagnostic in chosen.diagnostics)
    assert left_out == 40 + steps - 2 * len(chosen.control)


def test_more_prompts_make_no_step_slower() -> None:
    """The same engine with twice as many prompts: by position, a step would be 40 % longer."""
    result = diff(serve(SERVER), serve(replace(SERVER, seed=1, prefill_every=4)))
    assert result.verdict.text[0].startswith("No difference beyond noise")
    figures = dict(rows_of(result.outcomes["diff_phases"], "figure", "verdict"))
    assert figures == {"decode_ns": "within_noise", "prefill_ns": "within_noise"}


def test_slower_decodes_are_told_beside_equal_prompts() -> None:
    slower = replace(SERVER, seed=1, layer_ns=440 * US, prefill_times=6 * 400 / 440)
    result = diff(serve(SERVER), serve(slower))
    text = " ".join(result.verdict.text)
    assert "A decode is" in text
    row = dict(rows_of(result.outcomes["diff_phases"], "figure", "change_ratio"))
    assert row["decode_ns"] == pytest.approx(0.1, abs=0.02)
    assert abs(row["prefill_ns"]) < 0.03


def test_batches_of_other_sizes_are_not_compared() -> None:
    sides = serve(replace(SERVER, requests=100)), serve(replace(SERVER, requests=16))
    chosen = choose(*sides)
    assert set(phases(sides[0], chosen.control)) == {"prefill"}
    assert [diagnostic.code for diagnostic in chosen.diagnostics] == ["batches_without_counterpart"]


def test_nothing_alike_is_compared_by_position_and_told() -> None:
    sides = (serve(replace(SERVER, requests=requests, prefill_every=0)) for requests in (100, 16))
    result = diff(*sides)
    assert "no_batches_alike" in {diagnostic.code for diagnostic in result.diagnostics}
