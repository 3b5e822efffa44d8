"""Execution traces of simulated and hand-made traces, by a plain loop over the file."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

ROOT = {"name": "[pytorch|profiler|execution_trace|process]", "id": 1, "rf_id": 0, "parent": 1, "tid": 0}
FIRST_ID = 100


def tensor(number: int) -> list[Any]:
    """As observers write it: tensor, storage, offset, elements, bytes of one, device."""
    return [number, number, 0, 16, 4, "cuda:0"]


def execution_trace_of(path: Path) -> dict[str, Any]:
    """What an observer would have written while the trace at ``path`` was recorded.

    A node for each operator, its ``rf_id`` the operator's external id, its parent the operator around it. Operators
    that lie in no other hand a tensor from one to the next, in the order of time; what they call takes and gives the
    same.
    """
    text = path.read_bytes()
    events = json.loads(gzip.decompress(text) if path.suffix == ".gz" else text)["traceEvents"]
    operators = [event for event in events if event.get("cat") == "cpu_op"]
    extents = {id(each): (round(each["ts"] * 1000), round((each["ts"] + each["dur"]) * 1000)) for each in operators}
    operators.sort(key=lambda item: (extents[id(item)][0], -extents[id(item)][1]))
    nodes: list[dict[str, Any]] = [ROOT]
    open_of: dict[Any, list[tuple[int, int]]] = {}  # of each thread, the ends and ids of what is open
    tensors = 0
    for number, each in enumerate(operators, FIRST_ID):
        start, end = extents[id(each)]
        stack = open_of.setdefault((each["pid"], each["tid"]), [])
        while stack and stack[-1][0] <= start:
            stack.pop()
        tensors += not stack
        shapes = each["args"].get("Input Dims", [])
        nodes.append({
            "name": each["name"], "id": number, "rf_id": each["args"]["External id"], "tid": each["tid"],
            "parent": stack[-1][1] if stack else 1, "op_schema": f"{each['name']}(Tensor self) -> Tensor",
            "inputs": [tensor(tensors - 1), 2], "input_shapes": shapes, "input_types": ["Tensor(float)"] * len(shapes),
            "outputs": [[tensor(tensors)]], "output_shapes": [], "output_types": [],
        })  # fmt: skip
        stack.append((end, number))
    return {"schema": "1.1.0-chakra.0.0.4", "nodes": nodes}


def write_execution_trace(path: Path, document: dict[str, Any]) -> Path:
    """Write it, compressed; its folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(json.dumps(document).encode(), 1, mtime=0))
    return path
