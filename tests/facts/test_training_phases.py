from __future__ import annotations

import numpy as np

from augment.core.trace import Category, Track
from augment.facts.host.training_phases import forward_backward
from tables import Event, fwdbwd, kernel, op, trace_of


def links_of(*events: Event) -> list[tuple[str, str]]:
    trace = trace_of(*events)
    links = forward_backward(trace)
    assert (links.forward_of(links.backward) == links.forward).all()
    assert links.forward_of(np.array([-1])).tolist() == [-1]
    return list(zip(trace.names_of(links.forward), trace.names_of(links.backward), strict=True))


def test_a_flow_links_the_operators_that_begin_at_its_ends() -> None:
    assert links_of(
        op("linear", 0, 50), op("addmm", 10, 40), op("inner", 10, 20), fwdbwd("s", 7, 10),
        op("engine", 100, 150, thread=2), op("AddmmBackward0", 110, 140, thread=2), fwdbwd("f", 7, 110, thread=2),
    ) == [("addmm", "AddmmBackward0")]  # fmt: skip


def test_an_end_within_an_operator_binds_to_the_innermost() -> None:
    assert links_of(
        op("linear", 0, 50), op("addmm", 10, 30), op("gone", 12, 14), fwdbwd("s", 7, 20),
        op("engine", 100, 150, thread=2), op("before", 110, 120, thread=2), fwdbwd("f", 7, 130, thread=2),
    ) == [("addmm", "engine")]  # fmt: skip


def test_an_id_that_is_used_again_links_what_is_nearest_before() -> None:
    events = []
    for at, forward, backward in ((0, "a", "A"), (1000, "b", "B")):
        events += [op(forward, at, at + 9), fwdbwd("s", 1, at)]
        events += [op(backward, at + 100, at + 109), fwdbwd("f", 1, at + 100)]
        events += [op(f"{backward}2", at + 200, at + 209), fwdbwd("f", 1, at + 200)]
    assert links_of(*events) == [("a", "A"), ("a", "A2"), ("b", "B"), ("b", "B2")]


def test_ends_without_a_beginning_or_an_operator_link_nothing() -> None:
    assert links_of(op("a", 0, 9), fwdbwd("s", 1, 0), fwdbwd("f", 2, 5), fwdbwd("f", 1, 50), op("b", 60, 70)) == []
    assert links_of(kernel("k", 0, 9), fwdbwd("s", 1, 0), fwdbwd("f", 1, 5)) == []
    assert links_of(kernel("k", 0, 9)) == []


def numbered(name: str, ts: int, number: int, forward_thread: int = 0) -> Event:
    """An operator with the args that old traces have, and no flow."""
    args = {"Fwd thread id": forward_thread, "Sequence number": number}
    return Event(Category.CPU_OP, name, ts, ts + 9, Track(0, 100, 1 + bool(forward_thread)), args=args)


def test_without_flows_the_sequence_numbers_tell() -> None:
    events = [
        numbered("peeks", 0, 5), numbered("mm", 10, 5), numbered("relu", 20, 6), numbered("none", 30, -1),
        numbered("engine", 100, 6, 1), numbered("ReluBackward0", 101, 6, 1), numbered("MmBackward0", 120, 5, 1),
        numbered("unknown", 130, 4, 1), numbered("none", 140, -1, 1),
        numbered("mm again", 200, 5), numbered("MmBackward0", 300, 5, 1),
    ]  # fmt: skip
    assert links_of(*events) == [
        ("relu", "engine"), ("relu", "ReluBackward0"), ("mm", "MmBackward0"), ("mm again", "MmBackward0")
    ]  # fmt: skip
    flows = [op("a", 400, 409), fwdbwd("s", 1, 400), op("b", 500, 509), fwdbwd("f", 1, 500)]
    assert links_of(*events, *flows) == [("a", "b")]
