"""Names of tables, columns and figures in files of versions up to 0.5.0, and what they are called now."""

from __future__ import annotations

from typing import Any

#: tables that were joined with another; whoever names one gets that
TABLES = {"step_figures": "steps", "step_variation": "steps"}
FIGURES = {"step_ns": "wall_ns"}
#: columns of every table that has one
_COLUMNS = {
    "step_ns": "wall_ns",
    "mean_step_ns": "mean_wall_ns",
    "max_step_ns": "max_wall_ns",
    "exposed_copy_ns": "exposed_memory_ns",
}
_EXPOSED = {"communication_ns": "exposed_communication_ns", "memory_ns": "exposed_memory_ns"}
#: columns of one table alone
_COLUMNS_OF = {
    "step_efficiency": {"overlap_ratio": "overlap_of_possible_ratio"},
    "critical_path": {"span_ns": "path_ns"},
    "step_heat": _EXPOSED,
    "dimension_places": _EXPOSED,
    "stragglers": {"charged_ns": "after_the_others_ns"},
}


def current(sidecar: dict[str, Any]) -> dict[str, Any]:
    """The sidecar with today's names.

    ``steps`` of old files measured the host's annotations under names that now mean the step's window, so
    ``step_figures`` takes its place; without that it is left out.
    """
    analyses: dict[str, Any] = {}
    for name, table in sidecar["analyses"].items():
        rows = table.get("rows", ())
        of_host = name == "steps" and rows and "host_wall_ns" not in rows[0]
        if name == "step_figures" or not (name in TABLES or of_host):
            new = _COLUMNS | _COLUMNS_OF.get(name, {})
            first = rows[0] if rows else {}
            if not new.keys() & first.keys() and "figure" not in first:
                analyses[TABLES.get(name, name)] = table
            else:
                renamed = [{new.get(column, column): value for column, value in row.items()} for row in rows]
                for row in renamed:
                    if "figure" in row:
                        row["figure"] = FIGURES.get(row["figure"], row["figure"])
                analyses[TABLES.get(name, name)] = {**table, "rows": renamed}
    return {**sidecar, "analyses": analyses}
