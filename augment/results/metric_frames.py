"""The metrics of many runs as one table for each analysis."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from augment.analyses import ANALYSES
from augment.compare.diff_rows import ROWS as OF_DIFF
from augment.core.tabular import Table, concatenated
from augment.job.sidecar import ROWS as OF_JOB
from augment.results.sidecars import Sidecar, sidecars_in

_NAMED = 5  #: tables that a text names
#: members of a sidecar's source that are columns of ``sources``
_OF_SOURCE = ("name", "start_ns", "duration_ns", "events", "format", "partial", "window", "world_size", "sha256")


class Frames(dict[str, Table]):
    """Tables by name. Its text is one line, not all their rows."""

    def __repr__(self) -> str:
        sources = len(self.get("sources", ()))
        traces = f" of {sources} {'file' if sources == 1 else 'files'}" if sources else ""
        return f"<Frames: {len(self)} tables{traces}: {', '.join(list(self)[:_NAMED])}, …>"

    def _repr_html_(self) -> str:
        """What notebooks display: the tables, and how many rows each has."""
        rows = "".join(
            f"<tr><td style='text-align:left'><code>{name}</code></td><td style='text-align:right'>{len(table):,}</td>"
            f"<td style='text-align:left'>{table.status}</td></tr>"
            for name, table in self.items()
        )
        heads = "".join(f"<th scope='col'>{head}</th>" for head in ("table", "rows", "status"))
        return f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"


def frames(*sources: str | os.PathLike[str]) -> Frames:
    """A table for each analysis, with the rows of all ``sources``; and ``verdict``, ``diagnostics`` and ``sources``.

    The latter says when each trace was recorded, and how it was read.

    The columns ``run``, ``trace`` and ``rank`` come first. ``run`` is the STEM of a file that is named, or the folder
    of a sidecar in a folder that is named. ``trace`` is the STEM, and ``rank`` null where that is not of one rank.

    Args:
        sources: sidecars (``STEM.metrics.json``, also of jobs and comparisons), and folders of them at any depth.

    Raises:
        InputError: a source does not exist, or a folder holds no sidecar.
        UnknownFormat: a file holds no metrics.
    """
    return frames_of(sidecars_in(sources))


def row_types() -> dict[str, type[Struct]]:
    """The class of metric rows of each analysis, also of those of jobs and comparisons."""
    return {**{analysis.NAME: analysis.Row for analysis in ANALYSES}, **OF_JOB, **OF_DIFF}


def frames_of(sidecars: Iterable[Sidecar]) -> Frames:
    """A table for each analysis of ``sidecars``, in their order, and those beside them."""
    types = row_types()
    tables: dict[str, list[Table]] = {}
    leads: dict[str, list[dict[str, Any]]] = {}
    for sidecar in sidecars:
        for name, analysis in {**sidecar.content["analyses"], **_beside(sidecar.content)}.items():
            outcome = {"status": analysis["status"], "reason": analysis.get("reason")}
            table = Table.of_rows(name, analysis["rows"], types.get(name), **outcome)
            lead: dict[str, Any] = {"run": sidecar.run, "trace": sidecar.trace}
            if "rank" not in table.columns:
                lead["rank"] = sidecar.rank
            tables.setdefault(name, []).append(table)
            leads.setdefault(name, []).append(lead)
    frames = Frames()
    for name, parts in tables.items():
        table = concatenated(name, parts, leads[name])
        order = dict.fromkeys(each for each in ("run", "trace", "rank", *table.columns) if each in table.columns)
        columns = {each: table.columns[each] for each in order}
        frames[name] = Table(table.name, columns, table.kinds, table.status, table.reason)
    return frames


def _beside(content: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What a sidecar has besides analyses, as tables."""
    source = content["source"]
    tables = {
        "verdict": [{"text": text} for text in content.get("verdict", {}).get("text", ())],
        "diagnostics": content["diagnostics"],
        "sources": [{name: source[name] for name in _OF_SOURCE if name in source}],
    }
    return {name: {"status": "ok", "rows": rows} for name, rows in tables.items() if rows and rows[0]}
