"""The recordings of one run: a file, or a folder with one file per rank; traces or metrics."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from augment.errors import InputError, UnknownFormat

if TYPE_CHECKING:
    from augment.cli.terminal import Bar
    from augment.compare.compared_steps import Regions
    from augment.compare.totals import Samples
    from augment.core import Trace
    from augment.history import Run


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
    from augment.writers.files import stem

    real = os.path.abspath(path)
    return os.path.basename(real) if os.path.isdir(real) else stem(real)


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
    from augment.batch.inputs import choose_inputs
    from augment.batch.peek import has_events
    from augment.cli.terminal import complain
    from augment.core.text import counted
    from augment.results.report.health import OF_JOBS, metrics_among
    from augment.writers.files import METRICS_SUFFIX, output_path

    below = [str(path.relative_to(folder)) for path in Path(folder).rglob(f"*{METRICS_SUFFIX}")]
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
        if output_path(item.output_name, Path(item.folder), METRICS_SUFFIX) not in there and has_events(item.path)
    ]
    of_job = os.path.basename(metrics[0]).startswith(OF_JOBS)
    if without:
        outcome = "they are not judged; augment run makes them" if of_job else "all are analysed"
        complain(f"{folder}: {counted(len(without), 'trace')} without metrics: {outcome}")
    return [] if without and not of_job else [os.path.join(folder, name) for name in metrics]


class Recording(Struct, frozen=True):
    """The figures of each step of a run, the regions in its traces, and each rank's ``source`` from its sidecar."""

    samples: Samples
    regions: Regions
    sources: Sequence[Mapping[str, Any]]
    in_steps: bool  #: whether the figures are of steps (or occurrences of a region), not of the recording as a whole

    @property
    def device_names(self) -> list[str]:
        """The names of the devices of all ranks, as the sidecars say them."""
        return [device["name"] for source in self.sources for device in source["devices"]]


def recording_of(path: str, region: str | None, shown: Bar) -> Recording:
    """The run at ``path``, from its metrics if there are any, else from its traces.

    Raises:
        InputError: there is no file, or none with anything to compare.
    """
    from augment.analyses import steps
    from augment.compare.totals import mean_of_ranks, samples_of_sidecar
    from augment.results.sidecars import is_sidecar, read_sidecar
    from augment.writers.files import JOB_METRICS

    if not os.path.exists(path):
        raise InputError(path, "no such file or folder")
    names = sorted(metrics_of(path)) if os.path.isdir(path) else []
    names = [name for name in names if not name.endswith(JOB_METRICS)]
    if not os.path.isdir(path) and is_sidecar(path):
        names = [path]
    if not names:
        return _from_traces(path, region, shown)
    sidecars = [read_sidecar(name) for name in names]
    samples = [samples_of_sidecar(name, sidecar) for name, sidecar in zip(names, sidecars, strict=True)]
    figures = [sidecar["analyses"][steps.NAME]["rows"] for sidecar in sidecars]
    in_steps = all(row["step"] is not None for rows in figures for row in rows)
    return Recording(mean_of_ranks(samples), {}, [sidecar["source"] for sidecar in sidecars], in_steps)


def _from_traces(path: str, region: str | None, shown: Bar) -> Recording:
    from augment.compare.compared_steps import expect_work, regions_of, windows_in
    from augment.compare.totals import mean_of_ranks, samples_of
    from augment.writers.metrics import source_of

    samples, sources = [], []
    regions: Regions = {}
    in_steps = True
    for trace in traces_of(path, shown):
        windows = windows_in(trace, region)
        expect_work(trace, windows)
        samples.append(samples_of(trace, windows))
        sources.append(source_of(trace))
        regions = regions or regions_of(trace)
        in_steps &= bool((windows.number >= 0).all())
    return Recording(mean_of_ranks(samples), regions, sources, in_steps)


def run_of(recording: Recording, name: str, labels: Mapping[str, str], time_ns: int | None = None) -> Run:
    """The run as a history stores it: with the device as a label, and named after its label run or commit.

    Args:
        recording: its figures.
        name: the name without such a label.
        labels: given by the user.
        time_ns: the time of the recording; by default the trace's own, or now.
    """
    import time

    from augment.history import Run, RunFigure
    from augment.history.store import digest_of

    devices = [device["name"] for source in recording.sources for device in source["devices"]]
    labels = {**({"device": devices[0]} if devices else {}), **labels}
    starts = [source["start_ns"] for source in recording.sources if (source["start_ns"] or 0) > _SINCE_2015_NS]
    recorded = min(starts) if starts else time.time_ns()
    return Run(
        name=labels.get("run") or labels.get("commit") or name,
        time_ns=recorded if time_ns is None else time_ns,
        labels=labels,
        rank_count=len(recording.sources),
        figures={name: RunFigure.of(values) for name, values in recording.samples.items()},
        digest=digest_of([source["sha256"] for source in recording.sources], labels),
    )


_SINCE_2015_NS = 1_420_070_400 * 10**9  #: clocks of older traces count from the boot of the machine
