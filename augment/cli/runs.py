"""The recordings of one run: a file, or a folder with one file per rank; traces or metrics."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from augment.core import output_files
from augment.errors import InputError, UnknownFormat

if TYPE_CHECKING:
    from augment.cli.terminal import Bar
    from augment.core import Trace
    from augment.results.recordings import Recording


def traces_of(path: str, shown: Bar) -> Iterator[Trace]:
    """The trace at ``path``, or the traces in the folder ``path``, read one after the other; other files in it are
    passed over.

    Raises:
        InputError: there is no trace.
    """
    from augment.batch.inputs import no_trace
    from augment.readers import read

    count = 0
    for name, named in _files(path):
        shown.stage(f"reading {name}")
        try:
            yield read(name)
            count += 1
        except UnknownFormat:
            if named:
                raise
    if not count:
        raise no_trace(path)


def label_of(path: str) -> str:
    """The name of a run: its file's STEM, or its folder's name."""
    real = os.path.abspath(path)
    return os.path.basename(real) if os.path.isdir(real) else output_files.stem(real)


def labels_of(*paths: str) -> list[str]:
    """The names of runs; where two are equal, with the folders in which they differ."""
    labels = [label_of(path) for path in paths]
    if len({*labels}) == len(labels):
        return labels
    above = [os.path.dirname(os.path.abspath(path)) for path in paths]
    common = os.path.commonpath(above)
    return [
        os.path.normpath(os.path.join(os.path.relpath(folder, common), label))
        for folder, label in zip(above, labels, strict=True)
    ]


def _files(path: str) -> Iterator[tuple[str, bool]]:
    """The files, and whether the user named them."""
    if not os.path.isdir(path):
        yield path, True
        return
    from augment.batch.inputs import choose_inputs

    made = choose_inputs([path], None)
    for _, error in made.refused:
        raise error
    for item in made.inputs:
        yield item.path, item.named


def files_of(path: str) -> list[str]:
    """The files that may be traces of a run: ``path`` itself, or the files in the folder ``path``.

    Raises:
        InputError: there is none.
    """
    return [name for name, _ in _files(path)]


def metrics_of(folder: str) -> list[str]:
    """The metrics below ``folder`` that stand for its traces, those of a job first, not of comparisons; none, where a
    trace there has none and no job's tell of all: then its traces are to be analysed. Both are said."""
    from augment.batch.inputs import choose_inputs, has_events
    from augment.cli.terminal import complain
    from augment.core import text
    from augment.results.report.health import metrics_among

    below = [str(path.relative_to(folder)) for path in Path(folder).rglob(f"*{output_files.METRICS_SUFFIX}")]
    metrics = metrics_among(name for name in below if not os.path.basename(name).startswith("."))
    if not metrics:
        return []
    try:
        inputs = choose_inputs([folder], None).inputs
    except InputError:
        inputs = []
    there = {Path(folder, name) for name in metrics}
    without = [
        item.path
        for item in inputs
        if output_files.output_path(item.output_name, Path(item.folder), output_files.METRICS_SUFFIX) not in there
        and has_events(item.path)
    ]
    of_job = output_files.is_of_job(metrics[0])
    if without:
        outcome = "they are not judged; augment run makes them" if of_job else "all are analysed"
        complain(f"{folder}: {text.counted(len(without), 'trace')} without metrics: {outcome}")
    return [] if without and not of_job else [os.path.join(folder, name) for name in metrics]


def recording_of(path: str, region: str | None, shown: Bar) -> Recording:
    """The run at ``path``, from its metrics if there are any, else from its traces.

    Raises:
        InputError: there is no file, or none with anything to compare.
    """
    from augment.results.recordings import of_metrics, of_traces

    names = _metrics_at(path)
    return of_metrics(names) if names else of_traces(traces_of(path, shown), region)


def recorded_at(path: str) -> list[str]:
    """The files of :func:`recording_of`, or the name of a server's job."""
    return [path] if output_files.SERVER_JOB.fullmatch(path) else _metrics_at(path) or files_of(path)


def _metrics_at(path: str) -> list[str]:
    from augment.results.recordings import of_ranks
    from augment.results.sidecars import is_sidecar

    if not os.path.exists(path):
        raise InputError(path, "no such file or folder")
    if os.path.isdir(path):
        return of_ranks(sorted(metrics_of(path)))
    if not is_sidecar(path):
        return []
    if output_files.is_of_job(path):
        folder = os.path.dirname(path) or "."
        raise InputError(path, f"tells of a job as a whole; name the folder of its ranks' metrics: {folder}")
    return [path]
