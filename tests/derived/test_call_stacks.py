"""Call stacks against their definition, by both of their loops."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from augment.derived import call_stacks as module
from augment.derived.call_stacks import OUTER_FIRST, call_stacks, enclosing, innermost, outermost
from augment.trace import Category, Track
from tables import Event, kernel, trace_of

TIMES = st.integers(0, 12)
SLICES = st.lists(st.tuples(TIMES, TIMES, st.sampled_from(OUTER_FIRST), st.integers(0, 1)), max_size=14)


@pytest.fixture(params=["python", "compiled"])
def _loop(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COMPILED_FROM", 0 if request.param == "compiled" else 1 << 60)


def host(category: Category, ts: int, end: int, thread: int = 0, name: str = "x") -> Event:
    return Event(category, name, ts, end, Track(0, 1, thread))


def sort_key(one: Event) -> tuple[int, int, int]:
    return one.ts, -one.end, OUTER_FIRST.index(one.category)


@pytest.mark.usefixtures("_loop")
@given(SLICES)
def test_parent_is_the_innermost_that_encloses(drawn: list[tuple[int, int, Category, int]]) -> None:
    events = [host(category, min(a, b), max(a, b), thread) for a, b, category, thread in drawn]
    trace = trace_of(*events, kernel("k", 0, 12))
    stacks = call_stacks(trace)
    assert len(stacks) == len(events)
    table = trace.events
    found = [
        Event(Category(table.category[row]), "x", table.ts[row], table.ts[row] + table.dur[row],
              trace.tracks[table.track[row]])
        for row in stacks.row.tolist()
    ]  # fmt: skip
    for place, one in enumerate(found):
        before = [
            other
            for other in range(place)
            if found[other].track == one.track
            and found[other].ts <= one.ts < found[other].end
            and one.end <= found[other].end
        ]
        # of those that enclose it, the last in the order from outer to inner
        assert stacks.parent[place] == (max(before) if before else -1)
        assert stacks.depth[place] == (stacks.depth[max(before)] + 1 if before else 0)
        if place and found[place - 1].track == one.track:
            assert sort_key(found[place - 1]) <= sort_key(one)
    for place in range(len(found)):  # a slice and all below it stand together
        below = [place]
        for other in range(place + 1, len(found)):
            below += [other] if stacks.parent[other] in below else []
        assert below == list(range(place, stacks.stop[place]))
    some = [place for place in range(len(found)) if place % 3 == 1]
    inside = {other for place in some for other in range(place, stacks.stop[place])}
    assert np.flatnonzero(stacks.within(np.array(some, np.intp))).tolist() == sorted(inside)
    innermost_of = stacks.enclosing(np.array(some, np.intp)).tolist()
    for place, which in enumerate(innermost_of):
        around = [index for index, other in enumerate(some) if other <= place < stacks.stop[other]]
        assert which == max(around, default=-1)
    assert sorted(stacks.place_of.tolist()) == sorted([-1, *range(len(events))])


def test_ancestors_by_category() -> None:
    trace = trace_of(
        host(Category.PYTHON_FUNCTION, 0, 100, name="main"),
        host(Category.CPU_OP, 10, 50, name="aten::linear"),
        host(Category.CPU_OP, 15, 45, name="aten::addmm"),
        host(Category.CUDA_RUNTIME, 20, 30, name="cudaLaunchKernel"),
        host(Category.CUDA_RUNTIME, 60, 70, name="cudaMemcpyAsync"),
        kernel("gemm", 40, 90),
    )
    rows = np.array(
        [trace.names_of(np.arange(6)).index(name) for name in ("cudaLaunchKernel", "cudaMemcpyAsync", "gemm")]
    )
    rows = np.append(rows, -1)

    def named(found: np.ndarray) -> list[str | None]:  # type: ignore[type-arg]
        return [None if row < 0 else trace.names_of(np.array([row]))[0] for row in found.tolist()]

    assert named(innermost(trace, rows, [Category.CPU_OP])) == ["aten::addmm", None, None, None]
    assert named(outermost(trace, rows, [Category.CPU_OP])) == ["aten::linear", None, None, None]
    linear = np.array([name == "aten::linear" for name in trace.strings])
    assert named(innermost(trace, rows, [Category.CPU_OP], linear)) == ["aten::linear", None, None, None]
    assert named(outermost(trace, rows, [Category.CPU_OP], ~linear)) == ["aten::addmm", None, None, None]
    assert named(outermost(trace, rows, [Category.PYTHON_FUNCTION])) == ["main", "main", None, None]


def test_no_host_at_all() -> None:
    trace = trace_of(kernel("k", 0, 12))
    assert len(call_stacks(trace)) == 0
    assert innermost(trace, np.array([0]), [Category.CPU_OP]).tolist() == [-1]


@pytest.mark.usefixtures("_loop")
@given(SLICES, st.lists(st.tuples(TIMES, st.integers(0, 1)), min_size=1, max_size=5))
def test_enclosing_a_moment(drawn: list[tuple[int, int, Category, int]], asked: list[tuple[int, int]]) -> None:
    events = [host(category, min(a, b), max(a, b), thread) for a, b, category, thread in drawn]
    trace = trace_of(*events, host(Category.OTHER, 0, 1), host(Category.OTHER, 0, 1, 1))
    threads = {one.tid: index for index, one in enumerate(trace.tracks)}
    found = enclosing(trace, np.array([ts for ts, _ in asked]), np.array([threads[tid] for _, tid in asked], np.int32))
    stacks, table = call_stacks(trace), trace.events
    for (ts, tid), row in zip(asked, found.tolist(), strict=True):
        around = [
            place
            for place, one in enumerate(stacks.row.tolist())
            if table.track[one] == threads[tid] and table.ts[one] <= ts < table.ts[one] + table.dur[one]
        ]
        if not around:
            assert row == -1
            continue
        # what overlaps in part is in none of the others: then it may be any that has not ended
        assert stacks.place_of[row] in around
        if all(stacks.parent[inner] == outer for outer, inner in itertools.pairwise(around)):
            assert stacks.place_of[row] == around[-1]


class _Counted(np.ndarray[Any, np.dtype[np.int32]]):
    """A column that counts what is taken of it."""

    taken = 0

    def __getitem__(self, key: Any) -> Any:
        found = np.asarray(self)[key]
        _Counted.taken += np.size(found)
        return found


def test_a_deep_stack_is_not_climbed_by_each_slice_in_it() -> None:
    depth, leaves = 300, 3000
    end = depth + 2 * leaves
    frames = [host(Category.PYTHON_FUNCTION, i, end - i, name=f"f{i}") for i in range(depth)]
    outer = host(Category.CPU_OP, 0, end, name="op")
    calls = [host(Category.CUDA_RUNTIME, depth + i, depth + i + 1) for i in range(leaves)]
    trace = trace_of(*frames, outer, *calls)
    stacks = call_stacks(trace)
    counted = dataclasses.replace(stacks, parent=stacks.parent.view(_Counted))
    trace.facts[f"{module.__name__}.call_stacks"] = counted
    rows = trace.events.slices_of(Category.CUDA_RUNTIME)
    (op,) = trace.events.slices_of(Category.CPU_OP)
    _Counted.taken = 0
    for find in (innermost, outermost):
        assert set(find(trace, rows, [Category.CPU_OP]).tolist()) == {op}
        assert (find(trace, rows, [Category.USER_ANNOTATION]) == -1).all()
    after = np.full(leaves, end - 1)  # the leaf that began last has ended, and so have all frames but the first
    around = enclosing(trace, after, np.zeros(leaves, np.int32))
    assert (around == op).all()
    assert _Counted.taken <= 6 * len(stacks)  # each took depth * leaves, 300 times as much
