"""PyTorch's execution traces (``ExecutionTraceObserver``) linked to the events of a trace.

Both files were recorded together. A node and an event of one call share an id: the node's ``rf_id`` is the event's
``Record function id`` (in older recordings, its ``External id``). Unrelated ids may be equal by chance. So ids are used
only if the names mostly agree, too, and a link requires equal names. If no id can be used (PyTorch 1.x has a different
numbering), the operators of a thread are linked by order, provided that the node's thread occurs in exactly one place
of exactly one thread of the trace.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from augment.arrays import EventRows, Int64s, each
from augment.core import Category, ExecutionNodes, Trace
from augment.facts.source.event_args import identifiers

#: the methods of linking, and the arg that each uses
IDS = {"record_function_id": "Record function id", "external_id": "External id"}
BELIEVED = 0.9  #: least share of equal ids with equal names
_ROOT = "[pytorch|profiler|"  #: prefix of the names of nodes that stand for a process or a thread
_NOTHING = np.iinfo(np.int64).min

Node = dict[str, Any]


class ExecutionLinks(Struct, frozen=True):
    """Links between events and nodes: equal-length int64 columns, ascending ``row``.

    ``row`` is a row of the event table, ``node`` an index into ``nodes``. These are the nodes of the file, without
    those that stand for a process or a thread. ``events`` are the rows that could be linked. ``method`` is
    ``record_function_id``, ``external_id``, ``order``, or None if there are no links. ``differing`` is the number of
    equal ids whose names differ.
    """

    nodes: Sequence[Node]
    events: EventRows
    row: EventRows
    node: Int64s
    method: str | None
    differing: int


def execution_links(trace: Trace) -> ExecutionLinks:
    """The links of the trace's :class:`ExecutionNodes`; without any there are no links."""
    attached = trace.context.attached(ExecutionNodes)
    nodes = [node for node in (attached.nodes if attached else ()) if not str(node.get("name", "")).startswith(_ROOT)]
    names = [str(node.get("name", "")) for node in nodes]
    numbers = [attribute(node, "rf_id") for node in nodes]
    ids = [each if isinstance(each, int) and each is not True and 0 < each < 1 << 63 else 0 for each in numbers]
    events = trace.events.slices_of(Category.CPU_OP, Category.USER_ANNOTATION)
    event_names = trace.names_of(events)
    row, node = events[:0], np.empty(0, np.int64)
    differing, method = 0, None
    for way, arg in IDS.items():
        event_ids = identifiers(trace).ints(arg).at(events, _NOTHING)
        place_of: dict[int, int] = {}
        for place in np.flatnonzero(event_ids > 0).tolist():  # of several events or nodes with one id, the first counts
            place_of.setdefault(int(event_ids[place]), place)
        linked = [(place_of.pop(node_id), number) for number, node_id in enumerate(ids) if node_id in place_of]
        shared = np.array(linked, np.int64).reshape(-1, 2)
        same = np.array([event_names[i] == names[j] for i, j in linked], np.bool_)
        if same.any() and same.mean() >= BELIEVED:
            row, node, method, differing = events[shared[same, 0]], shared[same, 1], way, int((~same).sum())
            break
    else:
        pairs = _by_order(
            trace, events, names, [(str(attribute(node, "tid")), key) for node, key in zip(nodes, ids, strict=True)]
        )
        if len(pairs):
            row, node, method = events[pairs[:, 0]], pairs[:, 1], "order"
    order = np.argsort(row, kind="stable")
    row, node = row[order], node[order]
    return ExecutionLinks(nodes, events, row, node, method, differing)


def attribute(node: Node, name: str) -> Any:
    """The attribute ``name`` of a node, named as in the first schema (``rf_id``, ``op_schema``, ``input_shapes``).

    None if the node lacks it. Newer schemas have it in ``attrs``, ``inputs`` or ``outputs``, and ``ctrl_deps`` for
    ``parent``.
    """
    if name in node:
        return node[name]
    if name == "parent":
        return node.get("ctrl_deps")
    side, _, what = name.partition("_")
    if side in ("input", "output") and isinstance(node.get(f"{side}s"), dict):
        return node[f"{side}s"].get(what)
    attrs = node.get("attrs")
    listed: Iterable[Any] = attrs if isinstance(attrs, list) else ()
    return next((entry.get("value") for entry in listed if isinstance(entry, dict) and entry.get("name") == name), None)


def _by_order(trace: Trace, events: EventRows, names: list[str], threads: list[tuple[str, int]]) -> Int64s:
    """The pairs (place of an event, node) of threads whose sequence of names occurs in exactly one place.

    Events whose names no node has are ignored, such as the profiler's own annotations. An event that matches nodes of
    two threads is linked to neither.
    """
    known = {name: code for code, name in enumerate(dict.fromkeys(names))}
    code_of = np.array([known.get(name, -1) for name in trace.strings], np.int32)
    code = code_of[trace.events.name[events]]
    places = np.flatnonzero(code >= 0)
    track = trace.events.track[events[places]]
    sequences = [places[index] for _, index in each(track, len(trace.tracks))]
    pairs: list[tuple[int, int]] = []
    nodes_of: dict[str, list[tuple[int, int]]] = {}
    for node, (thread, key) in enumerate(threads):
        if key:
            nodes_of.setdefault(thread, []).append((key, node))
    for nodes in map(sorted, nodes_of.values()):
        wanted = np.array([known[names[node]] for _, node in nodes], np.int32)
        occurrences = [(sequence, at) for sequence in sequences for at in _occurrences(code[sequence], wanted)]
        if len(occurrences) == 1:
            sequence, at = occurrences[0]
            pairs += zip(sequence[at : at + len(nodes)].tolist(), (node for _, node in nodes), strict=True)
    linked = np.array(pairs, np.int64).reshape(-1, 2)
    _, place, count = np.unique(linked[:, 0], return_inverse=True, return_counts=True)
    alone: Int64s = linked[count[place] == 1]
    return alone


def _occurrences(codes: Any, wanted: Any) -> list[int]:
    """At most two places at which ``wanted`` begins in ``codes``; both are int32."""
    text, piece, at = codes.tobytes(), wanted.tobytes(), -1
    starts: list[int] = []
    while piece and len(starts) < 2 and (at := text.find(piece, at + 1)) >= 0:
        if at % codes.itemsize == 0:
            starts.append(at // codes.itemsize)
    return starts
