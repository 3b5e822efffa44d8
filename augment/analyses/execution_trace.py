"""Which operators are in the execution trace, with which input shapes, and which operators pass tensors to which?

The input is a file of PyTorch's ``ExecutionTraceObserver``, given with the trace (``augment run --execution-trace
FILE``, ``augment.with_execution_trace``). Without it the analysis is skipped. A node is linked to the operator or
annotation with the same record-function id; without such ids, with the same external id; without these, by the order
within its thread. The names must be equal in every case.

A row combines the nodes of one name whose inputs have the same shapes and types. Every node counts in exactly one row.
The same holds for every operator and annotation of the trace: those without a node have a row per name, without a
``node_id``.

Linked events are drawn as ``Execution trace`` under each thread, nested as they were called. Their args hold the node's
id, its parent's id, the schema, and the shapes, types and tensors of inputs and outputs. Arrows ``tensor`` show the
data dependencies between operators, also across threads: each leads from the outermost operator that last returned a
tensor to an outermost operator that takes it as input. A tensor is identified by its id and the id of its storage.

**What to do**: use the links to replay single operators, or to look up their inputs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any

import numpy as np

from augment.arrays import Int64s, StackIndex, combinations, compressed, each, group_bounds, sums
from augment.core import (
    Category,
    Diagnostic,
    Ends,
    ExecutionNodes,
    Findings,
    Flows,
    OfRank,
    Skipped,
    SliceTrack,
    Texts,
    Trace,
    column,
)
from augment.facts import host

NAME = "execution_trace"
NEEDS = ((Category.CPU_OP, Category.USER_ANNOTATION),)


class Row(OfRank, frozen=True):
    """The nodes of one name whose inputs have the same shapes and types."""

    name: Annotated[str, column("The name of the nodes and of the operators linked to them.")]
    input_shapes: Annotated[str | None, column("The shapes of their inputs; none without a node or inputs.")]
    input_types: Annotated[str | None, column("The types of their inputs; none without a node or inputs.")]
    node_id: Annotated[int | None, column("The id of the first of these nodes; none without a node.")]
    linked_count: Annotated[int, column("Number of nodes that are linked to an event.", "count")]
    unlinked_node_count: Annotated[int, column("Number of nodes that are linked to no event.", "count")]
    unlinked_event_count: Annotated[
        int, column("Number of operators and annotations of the trace without a node.", "count")
    ]
    cpu_ns: Annotated[
        int, column("Sum of the durations of the linked events; in a row without nodes, of its events.", "ns")
    ]


def analyze(trace: Trace) -> Findings | Skipped:
    """Link the nodes, count and draw them."""
    if trace.context.attached(ExecutionNodes) is None:
        return Skipped("no execution trace is given beside the trace; name one with --execution-trace")
    links = host.execution_links(trace)
    if not len(links.row):
        reason = "share neither ids nor an order of operators: they were not recorded together"
        return Skipped(f"the trace and the {len(links.nodes):,} nodes of the execution trace {reason}")
    message = "nodes of the execution trace have the id of an event with another name (not linked)"
    differing = [Diagnostic("execution_node_differs", links.differing, message)] if links.differing else []
    # a track for each thread, and the arrows within and between threads
    stacks, events = host.stacks(trace), trace.events
    order = np.argsort(stacks.place_of[links.row], kind="stable")
    row, node = links.row[order], links.node[order]
    # The ends of the slices ``row``, in call-stack order. A slice that partly overlaps a later one is cut there
    ts, track = events.ts[row], events.track[row]
    end = ts + events.dur[row]
    stop = host.nesting(ts, end, track)[2]
    following = np.minimum(stop, len(row) - 1)
    crossed = (stop < len(row)) & (track[following] == track)
    end = np.where(crossed, np.minimum(end, ts[following]), end)
    threads, table = compressed(track, len(trace.tracks))
    thread = table[track]
    bounds = group_bounds(thread, len(threads))
    tracks = []
    for place, under in enumerate(threads.tolist()):
        part = slice(*bounds[place : place + 2])
        nodes = [links.nodes[number] for number in node[part].tolist()]
        tracks.append(
            SliceTrack(
                analysis=NAME,
                name="Execution trace",
                under=under,
                ts=ts[part],
                dur=np.maximum(end[part] - ts[part], 0),
                names=Texts(trace.events.name[row[part]], trace.strings),
                args={
                    "node_id": np.array([_id(node, "id") for node in nodes], np.int64),
                    "parent_id": np.array([_id(node, "parent") for node in nodes], np.int64),
                    "op_schema": Texts.of(str(host.attribute(node, "op_schema") or "") or None for node in nodes),
                    **{what: Texts.of(_text(node, what) for node in nodes) for what in _TOLD},
                    "input_tensors": Texts.of(_ids_text(node, "inputs") for node in nodes),
                    "output_tensors": Texts.of(_ids_text(node, "outputs") for node in nodes),
                },
                description="operators and annotations that have a node in the execution trace",
            )
        )
    # the pairs of outermost operators of which one last returned a tensor that the other takes as input, each once, as
    # places in row, which is in the order of the call stacks; owner: the outermost operator around each, -1 for none
    placed = stacks.place_of[row].astype(StackIndex)
    operators = np.flatnonzero(trace.events.category[row] == Category.CPU_OP)
    owner: Int64s = np.append(operators, -1)[host.outermost_of(trace, placed[operators])[placed]]
    given: dict[tuple[int, int], int] = {}
    passed: dict[tuple[int, int], None] = {}
    for at in np.argsort(row, kind="stable").tolist():  # by time
        taker, operator = int(owner[at]), links.nodes[int(node[at])]
        if taker < 0:
            continue
        for tensor in _tensors(_values(operator, "inputs")):
            if given.get(tensor, taker) != taker:
                passed[given[tensor], taker] = None
        for tensor in _tensors(_values(operator, "outputs")):
            given[tensor] = taker
    columns = np.array(list(passed), np.int64).reshape(-1, 2)
    out, into = columns[:, 0], columns[:, 1]
    flows = []
    pairs, which = combinations(thread[out], thread[into])
    for pair, index in each(which, len(pairs[0])):
        source, other = (int(end[pair]) for end in pairs)
        ends = Ends(out[index] - bounds[source], tracks[source]), Ends(into[index] - bounds[other], tracks[other])
        flows.append(Flows(NAME, "tensor", *ends))
    return Findings(_rows(trace, links), [*tracks, *flows], differing)


def _rows(trace: Trace, links: host.ExecutionLinks) -> list[Row]:
    """The rows of the nodes, most time first; then the rows of events without a node."""
    dur = trace.events.dur[:]
    event_of = dict(zip(links.node.tolist(), links.row.tolist(), strict=True))
    groups: dict[tuple[str, str | None, str | None], list[int]] = {}  # node_id, linked, unlinked, ns
    for place, node in enumerate(links.nodes):
        key = (str(node.get("name", "")), _text(node, "input_shapes"), _text(node, "input_types"))
        figures = groups.setdefault(key, [_id(node, "id"), 0, 0, 0])
        if place in event_of:
            figures[1] += 1
            figures[3] += int(dur[event_of[place]])
        else:
            figures[2] += 1
    rows = [
        Row(trace.rank, *key, figures[0] if figures[0] >= 0 else None, figures[1], figures[2], 0, figures[3])
        for key, figures in groups.items()
    ]
    rows.sort(key=lambda row: -row.cpu_ns)
    rest = links.events[~np.isin(links.events, links.row)]
    names, table = compressed(trace.events.name[rest], len(trace.strings))
    code = table[trace.events.name[rest]]
    count, ns = np.bincount(code, minlength=len(names)), sums(code, dur[rest], len(names))
    return rows + [
        Row(trace.rank, trace.strings[names[at]], None, None, None, 0, 0, int(count[at]), int(ns[at]))
        for at in np.argsort(-ns, kind="stable").tolist()
    ]


_TOLD = ("input_shapes", "input_types", "output_shapes", "output_types")


def _tensors(values: Any) -> Iterator[tuple[int, int]]:
    """All tensors nested in ``values``, as (tensor id, storage id): the first two fields of
    ``[tensor, storage, offset, elements, size, device]``."""
    if not isinstance(values, list):
        return
    if len(values) == 6 and isinstance(values[5], str) and all(isinstance(value, int) for value in values[:5]):
        yield values[0], values[1]
    else:
        for value in values:
            yield from _tensors(value)


def _values(node: host.Node, side: str) -> Any:
    """The inputs or outputs of a node, in both schemas."""
    tensors = node.get(side)
    return tensors.get("values") if isinstance(tensors, dict) else tensors


def _ids_text(node: host.Node, side: str) -> str | None:
    ids = [tensor for tensor, _ in _tensors(_values(node, side))]
    return json.dumps(ids) if ids else None


def _id(node: host.Node, name: str) -> int:
    value = host.attribute(node, name)
    return value if isinstance(value, int) and 0 <= value < 1 << 63 else -1


def _text(node: host.Node, name: str) -> str | None:
    """The attributes of the node as JSON; None if there are none."""
    value = host.attribute(node, name)
    return json.dumps(value) if value else None
