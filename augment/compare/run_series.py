"""Compares more than two runs of one program: which rank and which collective changed, and since which run.

Each run gives samples, one a step: the length of the step (the mean of its ranks), the own work of each rank, and the
transfer of the collectives of each kind and group. The time that a rank spends in collectives is left out, because it
waits there for others. A figure changed *since* a run if

- its samples differ from those of the run before by more than steps vary (as in a comparison of two, corrected for all
  figures and runs) and by more than :data:`LEAST_SHARE` of a step;
- all later runs stay on that side of the middle between the two, and all earlier ones on the other side;
- runs differ less on each side than the two sides do. One run on a side has nothing to differ from.

A figure that differs in the first sense but not in the others varies from run to run: there is no run since which.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from augment.compare.compared_steps import expect_work, windows_in
from augment.compare.noise import ALPHA, chance_of
from augment.compare.totals import samples_of
from augment.core import Trace, column
from augment.core.text import counted, listed, percent, three_digits
from augment.errors import UsageError
from augment.facts.collectives import kernels

LEAST_SHARE = 0.01  #: of a step; smaller changes are not told
FEWEST_STEPS = 4  #: with so many, the first of a run is left out: it warms up
FEWEST_TO_TELL = 5  #: steps of a run; with fewer, that no change is seen tells nothing
OWN_WORK = {"compute_ns": "compute", "exposed_memory_ns": "exposed copies", "idle_ns": "idle"}
STEP, TRANSFER, TIME = "step", "transfer", "time with waits"

Floats = npt.NDArray[np.float64]
Verdict = Literal["regression", "improvement", "varies"]


class Row(Struct, frozen=True):
    """A figure that changed."""

    figure: Annotated[str, column("step; of a rank compute, exposed copies or idle; of a collective its transfer.")]
    rank: Annotated[int | None, column("The rank; empty for all of them.")]
    collective: Annotated[str, column("The kind of collective, and its group.")]
    since: Annotated[str, column("The first run with the figure as it is afterwards; empty if it varies.")]
    before_ns: Annotated[float, column("Its mean per step in the runs before.", "ns")]
    after_ns: Annotated[float, column("Its mean per step from then on, or up to the next change.", "ns")]
    delta_ns: Annotated[float, column("after_ns - before_ns; if it varies, the range of runs.", "ns")]
    verdict: Annotated[Verdict, column("regression, improvement or varies.")]
    runs_ns: Annotated[list[float | None], column("Its mean per step in each run.")]


class SeriesKey(Struct, frozen=True):
    """What a series of samples is of."""

    figure: str
    rank: int | None = None
    collective: str = ""


class RunFigures(Struct, frozen=True):
    """The samples of a run, one for each step, by what they are of; ``ranks`` counts its traces."""

    label: str
    ranks: int
    series: Mapping[SeriesKey, Floats]


class SeveralRuns(Struct, frozen=True):
    """What changed among runs: sentences, and rows by size."""

    labels: list[str]
    verdict: list[str]
    rows: list[Row]


def figures_of(label: str, traces: Iterable[Trace], region: str | None = None) -> RunFigures:
    """The figures of a run, whose traces are taken one after the other.

    Raises:
        InputError: a trace holds no work.
        UsageError: a trace has no such region.
    """
    series: dict[SeriesKey, Floats] = {}
    lengths: list[Floats] = []
    calls: dict[tuple[str, str], list[dict[int, npt.NDArray[np.int64]]]] = defaultdict(list)
    sizes: dict[tuple[str, str], int] = {}
    for place, trace in enumerate(traces):
        windows = windows_in(trace, region)
        expect_work(trace, windows)
        windows = windows.take(np.arange(int(len(windows) >= FEWEST_STEPS), len(windows)))
        samples = samples_of(trace, windows)
        rank = place if trace.rank is None else trace.rank
        lengths.append(samples["wall_ns"])
        series.update({SeriesKey(word, rank): samples[name] for name, word in OWN_WORK.items() if name in samples})
        # the durations of each kind and group in each step, in order
        made = kernels(trace)
        step = np.searchsorted(windows.start, made.ts, side="right") - 1
        inside = (step >= 0) & (made.ts < windows.end[np.maximum(step, 0)]) & ~made.is_message
        codes = made.kind.codes.astype(np.int64) * (len(made.groups) + 1) + made.group
        for code in np.unique(codes[inside]).tolist():
            chosen = np.flatnonzero(inside & (codes == code))
            group = made.groups[int(made.group[chosen[0]])]
            kind = made.kind.values[int(made.kind.codes[chosen[0]])]
            name = " of ".join(filter(None, (kind, group.description or group.name)))
            key = name, f"{kind}|{group.identity}"
            calls[key].append({at: made.dur[chosen[step[chosen] == at]] for at in np.unique(step[chosen]).tolist()})
            sizes[key] = group.size
    steps = min(map(len, lengths))
    series[SeriesKey(STEP)] = np.mean([each[:steps] for each in lengths], axis=0)
    of_name: dict[SeriesKey, list[Floats]] = defaultdict(list)
    for (name, identity), ranks in calls.items():
        whole = len(ranks) == sizes[name, identity] and all(_counts(each) == _counts(ranks[0]) for each in ranks)
        each_step = [
            np.min([each[step] for each in ranks], axis=0).sum()
            if whole
            else np.mean([each[step].sum() for each in ranks if step in each])
            for step in sorted({at for each in ranks for at in each})
        ]
        of_name[SeriesKey(TRANSFER if whole else TIME, None, name)].append(np.array(each_step, np.float64))
    for series_key, groups in of_name.items():
        shared = min(map(len, groups))
        series[series_key] = np.mean([group[:shared] for group in groups], axis=0)
    return RunFigures(label, len(lengths), series)


def _counts(of_rank: Mapping[int, Any]) -> dict[int, int]:
    return {step: len(durations) for step, durations in of_rank.items()}


def compare(runs: Sequence[RunFigures]) -> SeveralRuns:
    """What changed among runs, which are in order of time.

    Raises:
        UsageError: the runs have no figure in common.
    """
    labels = [run.label for run in runs]
    keys = [key for key in runs[0].series if all(key in run.series for run in runs)]
    if not keys:
        raise UsageError("these runs have nothing in common that could be compared")
    least_ns = LEAST_SHARE * float(np.median([run.series[SeriesKey(STEP)].mean() for run in runs]))
    alpha = ALPHA / (len(keys) * (len(runs) - 1))
    rows = [row for key in keys for row in _changes(key, [run.series[key] for run in runs], labels, least_ns, alpha)]
    steps = [row for row in rows if row.figure == STEP]
    others = sorted(
        (row for row in rows if row.figure != STEP), key=lambda row: (row.verdict == "varies", -abs(row.delta_ns))
    )
    rows = [*steps, *others]
    sentences = []
    lengths = [float(run.series[SeriesKey(STEP)].mean()) for run in runs]
    fewest = min(len(run.series[SeriesKey(STEP)]) for run in runs)
    of_all = f"{three_digits(min(lengths))} to {three_digits(max(lengths))}"
    if not steps and fewest < FEWEST_TO_TELL and max(lengths) > (1 + LEAST_SHARE) * min(lengths):
        sentences.append(
            f"The mean step takes {of_all}: {counted(fewest, 'step')} in a run cannot tell whether that is noise."
        )
    elif not steps:
        sentences.append(f"Over {counted(len(runs), 'run')}, the mean step changes by no more than noise ({of_all}).")
    for row in steps:
        if row.verdict == "varies":
            sentences.append(
                f"The mean step varies from run to run ({of_all}): there is no run since which it is different."
            )
            continue
        longer = "longer" if row.delta_ns > 0 else "shorter"
        change = f"{three_digits(abs(row.delta_ns))} ({percent(abs(row.delta_ns) / row.before_ns)}) {longer}"
        both = f"{three_digits(row.before_ns)} before, {three_digits(row.after_ns)} since"
        sentences.append(f"Since {row.since} the mean step takes {change}: {both}.")
        parts = [part for part in rows if part.since == row.since and part.figure != STEP]
        parts = [part for part in parts if (part.delta_ns > 0) == (row.delta_ns > 0)]
        # what of the ranks' own work changed: all ranks alike, or those that changed most
        of_ranks = []
        for figure in OWN_WORK.values():
            of = [part for part in parts if part.figure == figure]
            if len(of) == runs[0].ranks > 1:
                of_ranks.append(f"all ranks {three_digits(float(np.median([part.delta_ns for part in of])))} {figure}")
            else:
                of_ranks += (_part(f"rank {part.rank}", part) for part in of[:2])
        where = [*of_ranks, *(_part(part.collective, part) for part in parts if part.collective)]
        if where:
            sentences.append(f"Since then, per step: {listed(where, most=4)}.")
        else:
            sentences.append(
                "No rank's own work and no transfer of a collective changed with it: where cannot be told."
            )
    return SeveralRuns(labels, sentences, rows)


def _changes(key: SeriesKey, runs: list[Floats], labels: Sequence[str], least_ns: float, alpha: float) -> Iterator[Row]:
    means = np.array([samples.mean() for samples in runs])
    jumps = []
    for at in range(1, len(runs)):
        p = chance_of(runs[at - 1], runs[at])
        if p is not None and p < alpha and abs(means[at] - means[at - 1]) >= least_ns:
            jumps.append(at)
    bounds = [0, *(at for at in jumps if _stays(means, at)), len(runs)]
    changed = False
    for before, at, after in zip(bounds, bounds[1:], bounds[2:], strict=False):
        # the runs on each side must differ less than the sides do
        left, right = means[before:at], means[at:after]
        gap = max(left.min() - right.max(), right.min() - left.max())
        if gap <= max(np.ptp(left), np.ptp(right)):
            continue
        changed = True
        was, became = float(means[before:at].mean()), float(means[at:after].mean())
        verdict: Verdict = "regression" if became > was else "improvement"
        yield Row(key.figure, key.rank, key.collective, labels[at], was, became, became - was, verdict, means.tolist())
    if jumps and not changed:
        low, high = float(means.min()), float(means.max())
        yield Row(key.figure, key.rank, key.collective, "", low, high, high - low, "varies", means.tolist())


def _stays(means: Floats, at: int) -> bool:
    """Whether all runs before ``at`` lie on one side of the middle between it and the run before, all others on the
    other."""
    above = means > (means[at - 1] + means[at]) / 2
    return bool((above[:at] != above[at]).all() and (above[at:] == above[at]).all())


def _part(who: str, part: Row) -> str:
    more = "more" if part.delta_ns > 0 else "less"
    return f"{who} {three_digits(abs(part.delta_ns))} {more} {part.figure}"
