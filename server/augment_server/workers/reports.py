"""Reports and diagnoses, in a worker, of traces or of the artifacts of earlier jobs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from augment.core import Trace
from augment.core.output_files import JOB_METRICS, METRICS_SUFFIX
from augment.errors import InputError
from augment.readers.limits import Limits
from augment.results.report import health
from augment.results.report.page import document_of, markdown, page
from augment.results.report.sections import Document
from augment.results.sidecars import Sidecar, readable
from augment_server.workers.orders import with_beside

Order = dict[str, Any]
Stage = Callable[[str, int, int], None]  #: called with the stage that begins, and how many stages of how many are done
Failed = Callable[[int, InputError], None]  #: called with the number of an unreadable input, and its error
_MOST_STAGES = 100


def reported(order: Order, sources: Sequence[Path], out: Path, stage: Stage) -> list[Path]:
    """Write the page of a trace, or of the last metrics of an earlier job."""
    (given,), (source,) = order["inputs"], sources
    metrics = [made for made in given.get("made", ()) if made["file_name"].endswith(METRICS_SUFFIX)]
    path = str(Path(given["made_in"], metrics[-1]["file_name"]) if metrics else source)
    stages = iter(range(3))

    def begin(name: str) -> None:
        stage(name, next(stages), 3)

    def analyse(name: str) -> dict[str, Any]:
        return _analysed(name, Limits(**order["limits"]), begin)

    with readable(path):
        made = document_of(path, analyse)
        begin("writing")
        return list(_written(made, out, _called(given, metrics), order))


def _called(given: Order, metrics: Sequence[Order]) -> str:
    """The page's name: that of a whole job's folder, or a trace's file name up to the first dot."""
    name = str(given["file_name"])
    of_job = bool(metrics) and os.path.basename(metrics[-1]["file_name"]) == JOB_METRICS
    return os.path.basename(name) if of_job else Sidecar.of(name, {}).trace


def _written(made: Document, out: Path, name: str, order: Order) -> Iterator[Path]:
    forms = [(".report.md", markdown)] if order["markdown"] else []
    for suffix, text in (*forms, (".report.html", page)):
        path = out / f"{name}{suffix}"
        path.write_text(text(made), encoding="utf-8")
        yield path


def _analysed(path: str, limits: Limits, begin: Callable[[str], None]) -> dict[str, Any]:
    from augment.pipeline import augment
    from augment.readers import read
    from augment.writers.metrics import as_read

    begin("reading")
    trace = read(path, limits=limits)
    begin("analysing")
    return as_read(augment(trace))


def diagnosed(order: Order, sources: Sequence[Path], out: Path, stage: Stage, failed: Failed) -> list[Path]:
    """Write the diagnosis of each input, whole jobs first."""
    limits, count = Limits(**order["limits"]), len(sources)
    every = -(-count // _MOST_STAGES)
    reports: list[health.Report] = []

    def beside(trace: Trace) -> Trace:
        return with_beside(order, trace, limits)

    dumps: list[Any] = []
    for number, (given, source) in enumerate(zip(order["inputs"], sources, strict=True)):
        if number % every == 0:
            stage("diagnosing", number // every, -(-count // every))
        for path, name in _subjects(given, source):
            try:  # an unreadable input must not prevent the diagnosis of the others
                if (dump := health.dump_in(path, limits)) is not None:
                    dumps.append(dump)
                    continue
                reports.append({**health.report_on(path, lambda _: None, limits, beside=beside), "told": name})
            except InputError as error:
                if number == count - 1 and not reports and not dumps:
                    raise
                failed(number, error)
    reports = [*({**report, "told": report["input"]} for report in health.on_dumps(dumps)), *reports]
    several = len(reports) > 1
    shown = [*health.of_jobs(reports), *({**report, "input": report["told"]} for report in reports)]
    return [
        _lines(out / "diagnosis.md", health.lines_of(shown, markdown=True, brief=several)),
        _lines(out / "diagnosis.jsonl", map(health.json_of, shown)),
    ]


def _lines(path: Path, lines: Iterable[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def _subjects(given: Order, source: Path) -> list[tuple[str, str]]:
    """The paths of an input, with their names; of a job its metrics, those of the whole job first."""
    if "made" not in given:
        return [(str(source), given["file_name"])]
    names = health.metrics_among(str(made["file_name"]) for made in given["made"])
    return [(os.path.join(given["made_in"], name), f"{given['job']}/artifacts/{name}") for name in names]
