"""What is left out of a job that no browser holds: as little as can be, and it is told."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from augment.batch.timeline_contents import Extent, fit
from augment.errors import UsageError


def ranks(count: int, size: int, steps: tuple[int, ...] = (3, 4, 5, 6)) -> list[Extent]:
    return [Extent(f"rank {number}", size, steps) for number in range(count)]


def test_what_fits_is_whole() -> None:
    result = fit(ranks(8, 100), None, limit=800)
    assert (result.ranks, result.steps, result.left_out) == (tuple(range(8)), None, "")


def test_first_steps_are_left_out_first() -> None:
    result = fit(ranks(8, 100), None, limit=799)
    assert (result.ranks, result.steps) == (tuple(range(8)), (4, 6))
    assert result.left_out.endswith("left out: steps 3 (--all includes them)")
    assert fit(ranks(8, 100), None, limit=400).steps == (5, 6)


def test_then_ranks_at_even_distances() -> None:
    result = fit(ranks(8, 100), None, limit=100)
    assert (result.ranks, result.steps) == ((0, 2, 4, 6), (6, 6))
    assert result.left_out.endswith("left out: steps 3-5 and ranks 1, 3, 5, 7 (--all includes them)")
    assert fit(ranks(3, 100, steps=()), None, limit=1).ranks == (0,)


def test_what_was_chosen_is_never_left_out() -> None:
    assert fit(ranks(2, 100), (3, 6), limit=100).steps == (3, 6)
    assert fit(ranks(2, 100), (3, 6), limit=100).ranks == (0,)
    assert fit(ranks(2, 100), None, fixed_ranks=True, limit=10).ranks == (0, 1)
    both = fit(ranks(2, 100), (3, 6), fixed_ranks=True, limit=10)
    assert (both.ranks, both.steps) == ((0, 1), (3, 6))
    assert "more than" in both.left_out
    assert "left out" not in both.left_out


def test_without_a_limit_all_is_written() -> None:
    result = fit(ranks(9, 10**12), None, limit=None)
    assert (result.ranks, result.steps, result.left_out) == (tuple(range(9)), None, "")


def test_ranks_without_the_steps() -> None:
    extents = [*ranks(2, 100), Extent("other.json", 100, (7,))]
    result = fit(extents, (3, 4))
    assert (result.ranks, result.left_out) == ((0, 1), "without other.json: no such step")
    with pytest.raises(UsageError, match="no rank has any step of 8 to 9"):
        fit(extents, (8, 9))


@given(
    st.lists(st.tuples(st.integers(1, 1000), st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=20),
    st.integers(1, 10_000),
)
def test_the_rest_fits_unless_it_is_the_least_there_is(parts: list[tuple[int, int, int]], limit: int) -> None:
    extents = [Extent(str(at), size, tuple(range(low, low + n))) for at, (size, low, n) in enumerate(parts)]
    result = fit(extents, None, limit=limit)
    size = sum(extents[at].part(result.steps) for at in result.ranks)
    assert size <= limit or len(result.ranks) == 1
    assert bool(result.left_out) == (len(result.ranks) < len(extents) or result.steps is not None or size > limit)
    assert result.ranks[0] == 0
