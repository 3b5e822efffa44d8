"""What a report is about: reads metrics, or analyses a trace."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from augment.core.text import counted
from augment.errors import InputError, UsageError
from augment.history.store import Store, is_store
from augment.results.report import of_diff, of_job, of_trace, trend
from augment.results.report.sections import Document
from augment.results.sidecars import Sidecar, is_sidecar, read_sidecar, sidecars_in

Analyse = Callable[[str], Mapping[str, Any]]  #: makes the sidecar of a trace


def document_of(path: str, analyse: Analyse) -> Document:
    """The report of a metrics file, of a trace, or of a history."""
    if is_store(path):
        return trend_of(path)
    return document_of_metrics(read_sidecar(path)) if is_sidecar(path) else of_trace.document(analyse(path))


def trend_of(folder: str, labels: Mapping[str, str] | None = None) -> Document:
    """The report of many runs.

    Args:
        folder: the store of a history (also a URL), or a folder of runs: a run is a folder with metrics, or a metrics
            file beside others.
        labels: only runs of the history that have all of these.

    Raises:
        InputError: there are fewer than two runs.
        UsageError: there are labels, but no history.
    """
    if is_store(folder):
        runs_of_history = Store(folder).runs(labels)
        if len(runs_of_history) < 2:
            raise InputError(folder, f"holds {counted(len(runs_of_history), 'such run')}; a trend needs two")
        return trend.document_of_history(runs_of_history, _name(folder))
    if labels:
        raise UsageError(
            "--label and --branch choose runs of a history: name the folder that augment history add wrote"
        )
    runs: dict[str, list[Sidecar]] = {}
    for sidecar in sidecars_in([folder]):
        if "control" not in sidecar.content and "world_size" not in sidecar.content["source"]:
            runs.setdefault(sidecar.run, []).append(sidecar)
    if len(runs) == 1:
        runs = {sidecar.trace: [sidecar] for sidecars in runs.values() for sidecar in sidecars}
    if len(runs) < 2:
        raise InputError(folder, "holds the metrics of fewer than two runs; give a folder with a folder for each run")
    named = [(name, [sidecar.content for sidecar in sidecars]) for name, sidecars in sorted(runs.items())]
    return trend.document_of_runs(named, _name(folder))


def _name(folder: str) -> str:
    return folder.rstrip("/").rpartition("/")[2] if "://" in folder else os.path.basename(os.path.abspath(folder))


def document_of_metrics(sidecar: Mapping[str, Any]) -> Document:
    """The report of a comparison's metrics, of a job's, or of a trace's."""
    if "control" in sidecar:
        return of_diff.document(sidecar)
    return of_job.document(sidecar) if "world_size" in sidecar["source"] else of_trace.document(sidecar)
