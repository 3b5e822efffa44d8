"""What a report is about: reads metrics, or analyses a trace."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from augment.errors import InputError
from augment.report import of_diff, of_job, of_runs, of_trace
from augment.report.document import Document
from augment.sidecars import Sidecar, is_sidecar, read_sidecar, sidecars_in

Analyse = Callable[[str], Mapping[str, Any]]  #: makes the sidecar of a trace


def document_of(path: str, analyse: Analyse) -> Document:
    """The report of a metrics file, of a trace, or of a folder that ``augment run`` wrote.

    Raises:
        InputError: there is nothing that can be reported on.
    """
    if os.path.isdir(path):
        return _of_folder(path, analyse)
    return _of_metrics(read_sidecar(path)) if is_sidecar(path) else of_trace.document(analyse(path))


def trend_of(folder: str) -> Document:
    """The report of the runs below a folder; a run is a folder with metrics, or a metrics file beside others.

    Raises:
        InputError: there are fewer than two runs.
    """
    runs: dict[str, list[Sidecar]] = {}
    for sidecar in sidecars_in([folder]):
        if "control" not in sidecar.content and "world_size" not in sidecar.content["source"]:
            runs.setdefault(sidecar.run, []).append(sidecar)
    if len(runs) == 1:
        runs = {sidecar.trace: [sidecar] for sidecars in runs.values() for sidecar in sidecars}
    if len(runs) < 2:
        raise InputError(folder, "holds the metrics of fewer than two runs; give a folder with a folder for each run")
    named = [(name, [sidecar.content for sidecar in sidecars]) for name, sidecars in sorted(runs.items())]
    return of_runs.document(named, os.path.basename(os.path.abspath(folder)))


def _of_folder(folder: str, analyse: Analyse) -> Document:
    job = Path(folder) / "job.metrics.json"
    if job.exists():
        return _of_metrics(read_sidecar(str(job)))
    metrics = [each for each in sidecars_in([folder]) if "control" not in each.content] if _has_metrics(folder) else []
    if len(metrics) == 1:
        return _of_metrics(metrics[0].content)
    if metrics:
        raise InputError(
            folder, f"holds the metrics of {len(metrics)} traces that are no job: name one, or use --trend"
        )
    return of_job.document(analyse(folder))


def _has_metrics(folder: str) -> bool:
    return any(True for _ in Path(folder).rglob("*.metrics.json"))


def _of_metrics(sidecar: Mapping[str, Any]) -> Document:
    if "control" in sidecar:
        return of_diff.document(sidecar)
    return of_job.document(sidecar) if "world_size" in sidecar["source"] else of_trace.document(sidecar)
