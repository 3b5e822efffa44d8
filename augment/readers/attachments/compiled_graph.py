"""The code of a compiled graph, as TORCH_TRACE has it: its nodes with their operands, shapes, strides and types."""

from __future__ import annotations

import re
from collections.abc import Iterator

from augment.core.compiler_records import GraphNode

_NAMED = r'(\w+): "?(\w+)\[([\w, ]*)\](?:\[([\w, ]*)\])?'  #: mm: "f32[8, 16][16, 1]cuda:0"
_INPUT = re.compile(_NAMED)
_NODE = re.compile(rf'\s*(?:{_NAMED}[^"=]*"?|(\w+)) = (torch\.ops\.(\w+)\.(\w+)(?:\.\w+)?\(|(\w+)\[\d)')
_RETURN = re.compile(r"\s*return \(?(.*)")
_NAME = re.compile(r"\w+")


def graph_nodes(text: str) -> tuple[dict[str, GraphNode], frozenset[str]]:
    """The nodes of a graph by their names, in order, and the names of its results. Lines of other forms are passed
    over: what uses them has operands without a node."""
    nodes: dict[str, GraphNode] = {}
    results: frozenset[str] = frozenset()
    for line in text.splitlines():
        if node := _NODE.match(line):
            named, kind, sizes, steps, alone, _, space, operator, taken_from = node.groups()
            operands = (taken_from,) if taken_from else tuple(_arguments(line[node.end() :]))
            called = f"{space}::{operator}" if operator else "getitem"
            nodes[named or alone] = GraphNode(called, operands, _numbers(sizes), _numbers(steps), kind or "")
        elif "def forward(" in line:
            for named, kind, sizes, steps in _INPUT.findall(line):
                nodes[named] = GraphNode("", (), _numbers(sizes), _numbers(steps), kind)
        elif back := _RETURN.match(line):
            results = frozenset(name for name in _NAME.findall(back[1]) if name in nodes)
    return nodes, results


def _arguments(text: str) -> Iterator[str]:
    """The arguments up to the bracket that closes them, those with a keyword last, as their values."""
    depth, begin = 0, 0
    for place, letter in enumerate(text):
        if letter in "([{":
            depth += 1
        elif depth and letter in ")]}":
            depth -= 1
        elif (letter == "," and not depth) or letter == ")":
            argument = text[begin:place].strip()
            begin = place + 1
            if argument:
                yield argument.partition(" = ")[2] or argument
            if letter == ")":
                return


def _numbers(text: str | None) -> tuple[int, ...] | None:
    """Sizes or strides; None if one is a symbol, or none were written."""
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",") if part.strip()]
    return tuple(map(int, parts)) if all(part.isdigit() and len(part) < 19 for part in parts) else None
