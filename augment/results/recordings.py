"""The recording of a run, of one rank or many, from their metrics or traces; and whether it is worse than others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from augment.core.output_files import DIFF_METRICS_SUFFIX, is_of_job

if TYPE_CHECKING:
    from augment.compare.compared_steps import Regions
    from augment.compare.gate import GateLimits, Line
    from augment.compare.totals import Samples
    from augment.core import Trace
    from augment.history import Run
    from augment.readers.limits import Limits

Judgement = tuple["Sequence[Line]", list[str]]  #: the lines of the gate, and notes


class Recording(Struct, frozen=True):
    """The figures of each step of a run, the regions in its traces, and each rank's ``source`` from its sidecar."""

    samples: Samples
    regions: Regions
    sources: Sequence[Mapping[str, Any]]
    in_steps: bool  #: whether the figures are of steps (or occurrences of a region), not of the recording as a whole
    warm: bool = True  #: whether the first step is steady on all ranks
    numbers: Sequence[int] = ()  #: of the steps; empty of metrics
    once: Sequence[bool] = ()  #: whether something lengthens them, on a rank, that happens once; empty of metrics

    @property
    def start_ns(self) -> int | None:
        """When the first rank began, since 1970; None if the traces do not tell."""
        starts = [source["start_ns"] for source in self.sources if (source["start_ns"] or 0) > _SINCE_2015_NS]
        return min(starts, default=None)

    @property
    def device_names(self) -> list[str]:
        """The names of the devices of all ranks, as the sidecars say them."""
        return [device["name"] for source in self.sources for device in source["devices"]]


def recording_in(files: Sequence[str], region: str | None, limits: Limits) -> Recording:
    """The recording of which these are the files: metrics of all ranks, or their traces, read within limits.

    Raises:
        InputError: a file is neither, or has nothing to compare.
    """
    from augment.readers import read
    from augment.results.sidecars import is_sidecar

    if all(map(is_sidecar, files)):
        return of_metrics(files)
    return of_traces((read(name, limits=limits) for name in files), region)


def of_ranks(metrics: Iterable[str]) -> list[str]:
    """The names of metrics without those of whole jobs and of comparisons."""
    return [name for name in metrics if not (name.endswith(DIFF_METRICS_SUFFIX) or is_of_job(name))]


def of_metrics(names: Sequence[str]) -> Recording:
    """The recording of the ranks with these metrics.

    Raises:
        InputError: a file has none, or none of steps.
    """
    from augment.analyses import steps, user_annotation_breakdown
    from augment.compare.compared_steps import by_pattern
    from augment.compare.totals import mean_of_ranks, samples_of_sidecar
    from augment.results.sidecars import read_sidecar

    sidecars = [read_sidecar(name) for name in names]
    samples = [samples_of_sidecar(name, sidecar) for name, sidecar in zip(names, sidecars, strict=True)]
    figures = [sidecar["analyses"][steps.NAME]["rows"] for sidecar in sidecars]
    in_steps = all(row["step"] is not None for rows in figures for row in rows)
    warm = all(rows[0].get("is_steady", True) for rows in figures)
    annotations = sidecars[0]["analyses"].get(user_annotation_breakdown.NAME, {}).get("rows", ())
    regions = by_pattern((row["name"], row["count"], row["sum_ns"]) for row in annotations if row["side"] == "cpu")
    return Recording(mean_of_ranks(samples), regions, [sidecar["source"] for sidecar in sidecars], in_steps, warm)


def of_traces(traces: Iterable[Trace], region: str | None) -> Recording:
    """The recording of the ranks with these traces, with the occurrences of ``region`` as steps.

    Raises:
        InputError: a trace has nothing to compare.
    """
    from augment.compare.compared_steps import expect_work, lengthened_once, regions_of, windows_in
    from augment.compare.totals import mean_of_ranks, samples_of
    from augment.diagnosis.judging import measure
    from augment.writers.metrics import source_of

    samples, sources, numbers, once = [], [], [], []
    regions: Regions = {}
    in_steps = warm = True
    for trace in traces:
        windows = windows_in(trace, region)
        expect_work(trace, windows)
        samples.append(samples_of(trace, windows))
        sources.append(source_of(trace))
        numbers.append(windows.number.tolist())
        once.append(lengthened_once(trace, windows).tolist())
        regions = regions or regions_of(trace)
        in_steps &= bool((windows.number >= 0).all())
        warm &= region is not None or not in_steps or windows.begin[0] in measure(trace).windows.begin
    of_any = [any(each) for each in zip(*once, strict=False)]  # as many as all have
    return Recording(mean_of_ranks(samples), regions, sources, in_steps, warm, numbers[0], of_any)


def judged(control: Recording, test: Recording, names: tuple[str, str], limits: GateLimits) -> Judgement:
    """Compare the steps of two runs of these names, the baseline's first."""
    from statistics import median

    import numpy as np

    from augment.compare import compared_steps, gate
    from augment.compare.diff_verdict import difference
    from augment.compare.noise import FEWEST, TRIM, hidden_by_outliers
    from augment.core.text import rough_time, three_digits

    (baseline, tested), before, after = names, control.samples, test.samples
    notes = []
    if min(len(before["wall_ns"]), len(after["wall_ns"])) < 2 and (
        note := compared_steps.offer(control.regions, test.regions)
    ):
        notes.append(note)
    count = min(len(before["wall_ns"]), len(after["wall_ns"]))
    sides = [
        (label, each.numbers[:count], each.samples["wall_ns"][:count], np.array(each.once[:count]))
        for label, each in (("control", control), ("test", test))
        if each.once
    ]
    left_out, note = compared_steps.one_offs(sides)
    notes, gone = [*notes, *filter(None, [note])], np.flatnonzero(left_out)
    before, after = ({name: np.delete(each, gone) for name, each in side.items()} for side in (before, after))
    warm = (True, True) if left_out[:1].any() else (control.warm, test.warm)
    before, after, note = compared_steps.without_outlying_first_step(before, after, warm)
    if note:
        notes.append(note)
    if hidden_by_outliers(before["wall_ns"], after["wall_ns"]):
        delta = rough_time(float(after["wall_ns"].mean() - before["wall_ns"].mean()))
        said = f"the means of all steps, which augment diff tells first, differ by {delta}, within the noise"
        notes.append(f"{said}; here the shortest and the longest fifth of each side are left out")
    for name, walls in zip(names, (before["wall_ns"], after["wall_ns"]), strict=True):
        usual, most = median(walls.tolist()), float(walls.max())
        if FEWEST <= len(walls) < 1 / TRIM and most > compared_steps.ONCE_LONGER * usual:
            long = f"a step takes {three_digits(most)}, the median {three_digits(usual)}, and counts, as steps are few"
            notes.append(f"{name}: {long}; of metrics it is not known whether it compiles or captures")
    lines = gate.check(before, after, limits)
    if control.in_steps != test.in_steps:
        whole, steps = names if test.in_steps else names[::-1]
        notes.append(f"{whole} has no steps: its whole recording cannot be compared with a step of {steps}")
        lines = gate.cannot_tell(lines, "a step cannot be compared with a whole recording")
    elif not test.in_steps and (known := compared_steps.recurring(control.regions, test.regions)) and not known[1]:
        _, many = compared_steps.units(control.regions, test.regions, known[0])
        notes.append(f"not of equal work: {many}; --region compares equal parts")
        lines = gate.cannot_tell(lines, "whole recordings that are not of equal work cannot be compared")
    elif ("busy_ns" in before) != ("busy_ns" in after):
        host_alone = baseline if "busy_ns" in after else tested
        notes.append(f"{host_alone} has no GPU work: its steps are those of the host, not of a device")
        lines = gate.cannot_tell(lines, "only one side has GPU work")
    if devices := difference(control.device_names, test.device_names):
        notes.append(devices)
    for name, recording in zip(names, (control, test), strict=True):
        notes += [f"{name} is not whole: {source['partial']}" for source in recording.sources if source.get("partial")]
    return lines, notes


def judged_by_runs(run: Run, runs: Sequence[Run], store: str, limits: GateLimits) -> Judgement:
    """Compare a run with those of ``runs`` in ``store`` that have its labels, device and number of ranks."""
    from augment.compare.gate import level_text
    from augment.core.text import counted
    from augment.history.changes import baselines as baselines_of
    from augment.history.changes import check

    alike = [each for each in runs if each.is_like(run)]
    baselines = baselines_of(alike)
    notes = []
    for figure, known in baselines.items():
        if known.change and limits.of(figure):
            level = level_text(known.change.before, known.change.after, figure.name)
            notes.append(f"{figure.name} {level} at {known.runs[0].name}; compared with the runs since")
    if not alike:
        wanted = ", ".join(f"{key}={value}" for key, value in run.labels.items())
        notes.append(f"{store} holds no other run of {counted(run.rank_count, 'rank')} with {wanted or 'any label'}")
    return check(baselines, run, limits), notes


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

    devices = recording.device_names
    labels = {**({"device": devices[0]} if devices else {}), **labels}
    return Run(
        name=labels.get("run") or labels.get("commit") or name,
        time_ns=time_ns or recording.start_ns or time.time_ns(),
        labels=labels,
        rank_count=len(recording.sources),
        figures={name: RunFigure.of(values) for name, values in recording.samples.items()},
        digest=digest_of([source["sha256"] for source in recording.sources], labels),
    )


_SINCE_2015_NS = 1_420_070_400 * 10**9  #: clocks of older traces count from the boot of the machine
