"""What the tests of the native Perfetto writer share: Chrome events in, rows of Perfetto's engine out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from augment import AugmentedTrace, read
from augment.core import Annotation, Diagnostic
from augment.writers import perfetto as writer
from perfetto_engine import Cell, PerfettoEngine
from writer_traces import augmented

KERNEL = {"ph": "X", "cat": "kernel", "pid": 0, "tid": 7}
KERNEL_ARGS = {"device": 0, "stream": 7, "correlation": 5}
OP = {"ph": "X", "cat": "cpu_op", "pid": 42, "tid": 43}
NAMES = [
    {"ph": "M", "name": "process_name", "pid": 42, "args": {"name": "python"}},
    {"ph": "M", "name": "thread_name", "pid": 42, "tid": 43, "args": {"name": "main"}},
    {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "python"}},
    {"ph": "M", "name": "thread_name", "pid": 0, "tid": 7, "args": {"name": "stream 7 "}},
]
ALL = "select ts, dur, name from slice order by ts, dur desc, id"
#: each track by its path from the root; threads by their process and own name
TRACKS = """
    with recursive path(id, text) as (
        select id, name from track where parent_id is null and type not glob 'thread_*' and name is not null
        union all select track.id, path.text || ' > ' || track.name from track join path on track.parent_id = path.id
    )
    select text from path
"""


def source(folder: Path, events: Sequence[dict[str, Any]], **members: Any) -> Path:
    """A Chrome file of ``events``."""
    path = folder / "t.json"
    path.write_text(json.dumps({**members, "traceEvents": events}, ensure_ascii=False), encoding="utf-8")
    return path


def trace_of_events(
    folder: Path, events: Sequence[dict[str, Any]], *annotations: Annotation, **members: Any
) -> AugmentedTrace:
    """The trace of ``events``, as a reader has it, with ``annotations``."""
    return augmented(read(str(source(folder, events, **members))), *annotations)


def load(
    perfetto: PerfettoEngine, folder: Path, events: Sequence[dict[str, Any]], *annotations: Annotation, **members: Any
) -> list[Diagnostic]:
    """Have ``events`` and ``annotations`` written and read by the engine; what the writer tells."""
    result = writer.write(trace_of_events(folder, events, *annotations, **members), folder / "t.pftrace")
    perfetto.load_clean(folder / "t.pftrace")
    return result


def args_by_key(perfetto: PerfettoEngine, name: str) -> dict[str, Cell]:
    """The args of the slice with this name."""
    value = "coalesce(int_value, real_value, string_value)"
    sql = f"select key, {value} from slice join args using (arg_set_id) where name = '{name}' and key glob 'debug*'"
    return {str(key).removeprefix("debug."): value for key, value in perfetto.rows(sql)}


def arrows(perfetto: PerfettoEngine) -> list[tuple[Cell, ...]]:
    """The names of the slices that each flow links."""
    sql = "select a.name, b.name from flow join slice a on a.id = slice_out join slice b on b.id = slice_in"
    return sorted(perfetto.rows(sql), key=repr)


def codes(result: list[Diagnostic]) -> dict[str, int]:
    """What was told, and how often."""
    return {each.code.removeprefix("perfetto_"): each.count for each in result}
