"""Memory timelines of simulated traces, by a plain loop over the file."""

from __future__ import annotations

import gzip
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

PREEXISTING, CREATE, INCREMENT_VERSION, DESTROY = 1, 2, 3, 4
CATEGORIES = 8
GRADIENT, UNKNOWN = 5, 7

Change = list[int]  #: time, action, bytes, category


def memory_timeline_of(path: Path, categories: int = CATEGORIES) -> list[Change]:
    """What ``export_memory_timeline`` would have written of the trace at ``path``.

    Allocations are taken for one category after the other. What the second of each three held becomes a gradient at the
    next instant. What is freed and was not allocated was there before, unknown.
    """
    text = path.read_bytes()
    document = json.loads(gzip.decompress(text) if path.suffix == ".gz" else text, parse_float=Decimal)
    base = document.get("baseTimeNanoseconds", 0)
    before: list[Change] = []
    changes: list[Change] = []
    live: dict[int, list[int]] = {}  # by address: size and category
    turning: list[int] = []
    allocations = 0
    for row in sorted((row for row in document["traceEvents"] if row["name"] == "[memory]"), key=lambda row: row["ts"]):
        ns, size, address = int(row["ts"] * 1000) + base, row["args"]["Bytes"], row["args"]["Addr"]
        while turning:
            held = live.get(turning.pop())
            if held:
                changes += [[ns, INCREMENT_VERSION, -held[0], held[1]], [ns, INCREMENT_VERSION, held[0], GRADIENT]]
                held[1] = GRADIENT
        if size > 0:
            live[address] = [size, allocations % categories]
            changes.append([ns, CREATE, *live[address]])
            if allocations % 3 == 1:
                turning.append(address)
            allocations += 1
        elif address in live:
            freed, category = live.pop(address)
            changes.append([ns, DESTROY, -freed, category])
        else:
            before.append([-1, PREEXISTING, -size, UNKNOWN])
            changes.append([ns, DESTROY, size, UNKNOWN])
    return [*before, *changes]


def write_memory_timeline(path: Path, changes: Any) -> Path:
    """Write it, compressed; its folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(json.dumps(changes).encode(), 1, mtime=0))
    return path
