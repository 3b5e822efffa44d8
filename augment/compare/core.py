"""Compares a control with a test."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from msgspec import Struct

from augment import facts
from augment.compare import compared_steps, totals
from augment.compare.alignment import Alignment, align_sides
from augment.compare.call_tables import ByLine, ByName, ByPath
from augment.compare.calls import Names, Paths, Side, side_of
from augment.compare.diff_rows import ROWS, HeldRow, StepRow
from augment.compare.diff_verdict import RankParts, difference, late_rank
from augment.compare.diff_verdict import verdict as verdict_on
from augment.compare.noise import hidden_by_outliers
from augment.compare.waterfall import ByKind, Waterfall, tiles_of
from augment.core import LAUNCHES, Category, Diagnostic, Findings, Outcome, Trace, Verdict, tabular, text
from augment.core.findings import table_of
from augment.core.tabular import Table
from augment.errors import UsageError, expect_known
from augment.facts.memory.held import Held, Holder, Moment, held_memory
from augment.readers import read

Input = Trace | str | os.PathLike[str]
Sides = Input | Sequence[Input]


class Pair(Struct, frozen=True):
    """A rank of the control and the rank of the test that it is compared with."""

    control: Side
    test: Side
    alignment: Alignment

    def __repr__(self) -> str:
        return f"<Pair {self.control.trace.source.label} and {self.test.trace.source.label}>"


class Diff(Struct, frozen=True):
    """A comparison: ``outcomes`` by name, as of analyses, and the aligned pairs of ranks behind them.

    ``names`` and ``paths`` resolve the numbers in the pairs' columns. ``whole`` says that whole recordings were
    compared, not steps. ``late`` is a sentence on a rank that others wait for, and its place, ``choice`` one on steps
    left out, or that could be. ``unequal``: sentences that whole recordings are of unequal work, in place of a verdict.
    ``snapshots``: of two memory snapshots the control and the test; such a comparison has no pairs.
    ``trace_counts``: how many traces the control and the test have, compared or not.
    """

    pairs: tuple[Pair, ...]
    names: Names
    paths: Paths
    outcomes: Mapping[str, Outcome]
    diagnostics: tuple[Diagnostic, ...]
    whole: bool
    late: tuple[str, int] = ("", 0)
    choice: str = ""
    unequal: Sequence[str] = ()
    snapshots: tuple[Trace, Trace] | None = None
    trace_counts: tuple[int, int] = (1, 1)

    def __getitem__(self, name: str) -> Table:
        """A table of the comparison, such as ``diff_waterfall``.

        Raises:
            UsageError: there is no such table.
        """
        expect_known(name, self.outcomes, "table of a comparison")
        return table_of(name, self.outcomes[name], ROWS.get(name))

    def __iter__(self) -> Iterator[str]:
        return iter(self.outcomes)

    def __contains__(self, name: object) -> bool:
        return name in self.outcomes

    @property
    def verdict(self) -> Verdict:
        """Whether a step is faster or slower, which parts that consists of, whether ranks only wait for another, and
        whether the types of devices differ."""
        if self.snapshots:
            return Verdict(held_sentences(self.outcomes[HELD]))
        verdict = Verdict(self.unequal) if self.unequal else verdict_on(self.outcomes, self.whole, self.late[0])
        if self.choice:
            verdict = Verdict([*verdict.text, f"{text.capitalized(self.choice)}."], verdict.rows)
        sides = [pair.control for pair in self.pairs], [pair.test for pair in self.pairs]
        note = difference(*([name for side in ranks for _, name in side.trace.source.devices] for ranks in sides))
        notes = [each.message for each in self.diagnostics if each.code == compared_steps.COLD_BESIDE_WARM]
        return Verdict([*notes, *([note] if note else ()), *verdict.text], verdict.rows) if verdict.text else verdict

    @property
    def summary(self) -> str:
        """One line: both runs, how much of them was compared, and the step time."""
        if self.snapshots:
            control, test = (trace.source.label for trace in self.snapshots)
            return f"{test} against {control}: {' '.join(self.verdict.text)}"
        first = self.pairs[0]
        steps = "whole recordings" if self.whole else text.counted(len(first.test.steps), "step")
        ranks = f", {text.counted(len(self.pairs), 'rank')}" if len(self.pairs) > 1 else ""
        figures = self.outcomes.get("diff_figures")
        rows = figures.rows if isinstance(figures, Findings) else ()
        step = next((row for row in rows if row.figure == "wall_ns"), None)
        verdict = step and not self.unequal and f": step {step.delta / 1e6:+,.3f} ms, {step.verdict.replace('_', ' ')}"
        return (
            f"{first.test.trace.source.label} against {first.control.trace.source.label}, {steps}{ranks}{verdict or ''}"
        )

    def __repr__(self) -> str:
        return f"<Diff {self.summary}>"

    def _repr_html_(self) -> str:
        """What notebooks display."""
        return tabular.notebook_page(
            self.summary, self.verdict.text, (), {name: outcome.summary for name, outcome in self.outcomes.items()}
        )


def diff(
    control: Sides,
    test: Sides,
    *,
    step: compared_steps.StepChoice = None,
    region: str | None = None,
    control_rank: int | None = None,
    test_rank: int | None = None,
    short_names: bool = False,
    functions: bool = False,
) -> Diff:
    """Compare ``test`` with ``control``: traces, or the traces of all ranks of a job; or the paths of their files. Two
    memory snapshots are compared by what each line of code held at the peak (``diff_memory``).

    Args:
        control: the earlier state.
        test: the current state.
        step: the number of the step to compare, or one number per side; by default all steps, as many as both have.
        region: the name of an annotation whose occurrences serve as steps, or a pattern (``*``, ``?``); they are
            numbered from 0.
        control_rank: compare only this rank of the control.
        test_rank: compare only this rank of the test; any two ranks can be compared.
        short_names: use HTA's short names of operators and kernels.
        functions: match Python functions like operators, if they were recorded.

    Raises:
        InputError: a file cannot be read.
        UsageError: a step or rank does not exist, or there is nothing to compare.
    """
    controls, tests = _traces(control), _traces(test)
    pairs, diagnostics = _ranks(controls, tests, control_rank, test_rank)
    if are_snapshots([trace for pair in pairs for trace in pair]):
        if len(pairs) > 1:
            raise UsageError(f"{len(pairs)} memory snapshots on each side: compare one with one")
        return Diff((), Names(), Paths(Names()), {HELD: compare_held(*pairs[0])}, (), True, snapshots=pairs[0])
    names = Names(short=short_names)
    paths = Paths(names)
    diagnostics += _of_recorders(pairs)
    for label, side in zip(("control", "test"), zip(*pairs, strict=True), strict=True):
        diagnostics += facts.gpu.before_recording_diagnostics(*side, of=f" of the {label}")
    # The steps of each pair of ranks; equally many for all pairs
    choices = [compared_steps.choose(*pair, step, region) for pair in pairs]
    if any(choice.whole for choice in choices) and not all(choice.whole for choice in choices):
        raise UsageError("some ranks have steps and others have none: compare them separately")
    first = np.arange(min(len(choice.control) for choice in choices))
    chosen = [choice.take(first) for choice in choices]
    whole, said = chosen[0].whole, ""
    if step is None and not whole:
        chosen, said = compared_steps.without_one_offs(chosen, pairs)
        message = "steps named in the verdict are left out on both sides"
        diagnostics += [Diagnostic("one_off_steps", len(first) - len(chosen[0].control), message)] if said else []
        stays = chosen[0].control.start[:1] == choices[0].control.start[:1]  # the first step is no one-off
        # phases of batches differ, and are compared apart
        if stays.all() and not facts.steps.batches(pairs[0][totals.TEST]):
            chosen, why = compared_steps.without_first_outlier(chosen)
            message = "an outlying first step, named in the verdict, is left out on both sides"
            diagnostics += [Diagnostic("first_step_outlying", 1, message)] if why else []
            said = "; ".join(filter(None, (said, why)))
    compared = []
    for (before, after), steps in zip(pairs, chosen, strict=True):
        diagnostics += steps.diagnostics
        sides = [
            side_of(trace, windows, names, paths, functions=functions)
            for trace, windows in ((before, steps.control), (after, steps.test))
        ]
        compared.append(Pair(sides[totals.CONTROL], sides[totals.TEST], align_sides(*sides)))
    unequal = compared_steps.unequal_work(*pairs[0], chosen[0]) if whole else []
    diagnostics += compared_steps.cold_beside_warm(chosen, pairs)
    said = said or ("" if unequal else chosen[0].offered)
    outcomes, late, more = _outcomes(compared, names, paths)
    counts = Counter[tuple[str, str]]()
    for each in (*diagnostics, *more):
        counts[each.code, each.message] += each.count
    summed = tuple(Diagnostic(code, count, message) for (code, message), count in counts.items())
    recorded = len(controls), len(tests)
    return Diff(tuple(compared), names, paths, outcomes, summed, whole, late, said, unequal, trace_counts=recorded)


def _traces(sides: Sides) -> list[Trace]:
    some = [sides] if isinstance(sides, (Trace, str, os.PathLike)) else sides
    traces = [side if isinstance(side, Trace) else read(side) for side in some]
    if not traces:
        raise UsageError("nothing to compare: a side has no trace")
    return traces


def _ranks(
    control: list[Trace], test: list[Trace], control_rank: int | None, test_rank: int | None
) -> tuple[list[tuple[Trace, Trace]], list[Diagnostic]]:
    """Pairs of traces to compare: by rank if all are known, the first recording of a rank with the other's first; else
    by position."""
    controls = _of_rank(control, control_rank, "control")
    other = _of_rank(test, test_rank, "test")
    if control_rank is not None or test_rank is not None or len(controls) == len(other) == 1:
        return [(controls[0], other[0])], []
    ranks = [[trace.rank for trace in side] for side in (controls, other)]
    notes = []
    if all(None not in side for side in ranks):
        by_rank, twin_by_rank = (
            {(rank, of[:place].count(rank)): trace for place, (rank, trace) in enumerate(zip(of, side, strict=True))}
            for of, side in zip(ranks, (controls, other), strict=True)
        )
        pairs = [(by_rank[key], twin_by_rank[key]) for key in by_rank if key in twin_by_rank]
    else:
        pairs = list(zip(controls, other, strict=False))
        first = " with ".join(trace.source.label for trace in pairs[0])
        message = (
            f"pairs of traces of unknown rank, such as {first}, were averaged; unless they are of one job, compare each"
        )
        notes = [Diagnostic("ranks_unknown", len(pairs), message)] * (len(pairs) > 1)
    if not pairs:
        raise UsageError(f"no rank is on both sides: control has {ranks[0]}, test has {ranks[1]}; name one per side")
    left_out = len(controls) + len(other) - 2 * len(pairs)
    message = "ranks, or recordings of one, found on one side only; not compared"
    return pairs, [*notes, Diagnostic("ranks_without_counterpart", left_out, message)] if left_out else notes


def _of_rank(side: list[Trace], rank: int | None, label: str) -> list[Trace]:
    if rank is None:
        return side
    matching = [trace for trace in side if trace.rank == rank]
    if not matching:
        known = ", ".join(str(trace.rank) for trace in side if trace.rank is not None)
        raise UsageError(f"the {label} has no rank {rank} ({f'it has {known}' if known else 'no rank is recorded'})")
    return matching[:1]


#: what a recorder may not record, and the categories of slices that show it
_RECORDED = {
    "operators": (Category.CPU_OP,),
    "annotations": (Category.USER_ANNOTATION,),
    "Python functions": (Category.PYTHON_FUNCTION,),
    "calls of the runtime": LAUNCHES,
    "copies": (Category.GPU_MEMCPY,),
    "synchronization": (Category.CUDA_SYNC,),
}


def _of_recorders(pairs: Sequence[tuple[Trace, Trace]]) -> list[Diagnostic]:
    """What cannot be compared because one side's recorder, which is another's, does not record it."""
    for before, after in pairs:
        members = [trace.source.metadata.get("recorder") for trace in (before, after)]
        recorders = [str(each.get("name")) if isinstance(each, dict) else "Kineto" for each in members]
        if recorders[0] == recorders[1]:
            continue
        there = [
            {what for what, categories in _RECORDED.items() if len(trace.events.slices_of(*categories))}
            for trace in (before, after)
        ]
        lacking = ", ".join(sorted(there[0] ^ there[1]))
        message = (
            f"the sides were recorded by {recorders[0]} and {recorders[1]}, each of which slows the host in its own way"
        )
        only = f"; on one side only, and not comparable: {lacking}" if lacking else ""
        return [Diagnostic("recorders_differ", 1, message + only)]
    return []


def _outcomes(
    pairs: Sequence[Pair], names: Names, paths: Paths
) -> tuple[dict[str, Outcome], tuple[str, int], list[Diagnostic]]:
    """The tables, the sentence on a late rank with its place, and diagnostics."""
    count = len(pairs[0].control.steps)
    waterfall, by_name, by_path = Waterfall(count, names, paths), ByName(count, names), ByPath(paths)
    by_kind, by_line = ByKind(count, names), ByLine(count)
    samples: tuple[list[totals.Samples], list[totals.Samples]] = ([], [])
    efficiency: tuple[list[totals.EfficiencySamples], list[totals.EfficiencySamples]] = ([], [])
    diagnostics, ranks = [], []
    for pair in pairs:
        trace = pair.test.trace
        label = f"Rank {trace.rank}" if trace.rank is not None else trace.source.label
        ranks.append(RankParts(label, count))
        devices, left_out = _devices(pair)
        if left_out:
            diagnostics.append(Diagnostic("devices_without_counterpart", left_out, "devices found on one side only"))
        for which, side in ((totals.CONTROL, pair.control), (totals.TEST, pair.test)):
            samples[which].append(totals.samples_of(side.trace, side.steps))
            efficiency[which].append(totals.efficiency_samples(side.trace, side.steps))
            by_name.add(which, side)
            by_line.add(which, side)
            by_kind.add_work(which, side, devices)
            by_path.add(which, side, pair.alignment)
            for device in devices:
                tiles = tiles_of(side, names, device)
                waterfall.add(which, tiles)
                ranks[-1].add(which, tiles)
                by_kind.add_tiles(which, tiles)
    wholes = totals.mean_of_ranks(samples[totals.CONTROL]), totals.mean_of_ranks(samples[totals.TEST])
    if robust := hidden_by_outliers(*(side["wall_ns"] for side in wholes)):
        change = f"{text.rough_time(robust.delta)}, 95 % interval {text.rough_interval(robust.low, robust.high)}"
        message = f"without the shortest and the longest fifth of each side, steps differ beyond noise ({change}): "
        message += "single steps hide that in the mean; augment check leaves them out"
        diagnostics.append(Diagnostic("outlying_steps", 1, message))
    # A row for each pair of steps, summed over ranks and devices as in the waterfall
    weights = [len(_devices(pair)[0]) for pair in pairs]
    first = pairs[0]
    lengths = [np.zeros(len(first.control.steps), np.int64) for _ in (totals.CONTROL, totals.TEST)]
    for weight, pair in zip(weights, pairs, strict=True):
        for length, side in zip(lengths, (pair.control, pair.test), strict=True):
            length += weight * (side.steps.end - side.steps.start)
    numbers = [
        [None if number < 0 else number for number in side.steps.number.tolist()]
        for side in (first.control, first.test)
    ]
    columns = zip(*numbers, *(length.tolist() for length in lengths), strict=True)
    step_rows = [StepRow(before, after, was, now, now - was) for before, after, was, now in columns]
    rows_by_name = by_name.rows()
    outcomes: dict[str, Outcome] = {
        "diff_figures": totals.figures_outcome(*wholes),
        **_by_phase(pairs[0], wholes),
        "diff_waterfall": Findings(waterfall.rows(by_path.operators)),
        "diff_kinds": Findings(by_kind.rows()),
        "diff_source_lines": by_line.outcome(),
        "diff_efficiency": totals.efficiency_outcome(efficiency),
        "diff_steps": Findings(step_rows),
        "diff_names": Findings(rows_by_name),
        "diff_call_paths": Findings(by_path.rows()),
    }
    return outcomes, late_rank(ranks, names, rows_by_name), diagnostics


def _by_phase(pair: Pair, wholes: tuple[totals.Samples, totals.Samples]) -> dict[str, Outcome]:
    """The lengths of an engine's steps by phase; nothing without an engine."""
    samples: list[totals.Samples] = []
    for side, whole in zip((pair.control, pair.test), wholes, strict=True):
        of_step = facts.steps.batches(side.trace)
        if not of_step or len(side.steps) != len(whole["wall_ns"]) or (side.steps.number < 0).any():
            return {}
        phases = np.array([of_step[number].phase for number in side.steps.number.tolist()])
        samples.append({f"{phase}_ns": whole["wall_ns"][phases == phase] for phase in dict.fromkeys(phases.tolist())})
    figures = [totals.Figure(name, name, "ns") for name in samples[0]]
    return {"diff_phases": Findings(totals.figure_rows(samples[0], samples[1], figures=figures))}


def _devices(pair: Pair) -> tuple[list[int | None], int]:
    """The indexes of devices present on both sides; None (the host) if a side has no GPU work."""
    counts = [len(facts.gpu.work(side.trace).devices) for side in (pair.control, pair.test)]
    devices: list[int | None] = list(range(min(counts)))
    return devices or [None], max(counts) - min(counts)


# Compares two memory snapshots: what each line of code held at the peak of each device.

HELD = "diff_memory"  #: the table
_MOST_SAID = 3


def are_snapshots(traces: Sequence[Trace]) -> bool:
    """Whether all of these are memory snapshots without a trace.

    Raises:
        UsageError: some are, and others are not.
    """
    alone = [not len(trace.events) and isinstance(held_memory(trace), Held) for trace in traces]
    if any(alone) and not all(alone):
        raise UsageError("a memory snapshot can only be compared with another")
    return all(alone)


def compare_held(control: Trace, test: Trace) -> Findings:
    """The lines that held memory at the peak of any device, those that differ most first."""
    before, after = (_peaks(trace) for trace in (control, test))
    if len(before) == len(after) == 1:
        before = dict(zip(after, before.values(), strict=True))
    if not before.keys() & after.keys():
        raise UsageError("no device is in both memory snapshots")
    rows = []
    for device in sorted(before.keys() | after.keys()):
        pair = [side[device].holders["line"] if device in side else () for side in (before, after)]
        lines = [{holder.name: holder for holder in holders} for holders in pair]
        for name in dict.fromkeys([*lines[0], *lines[1]]):
            holders = [side.get(name, Holder(name, 0, 0)) for side in lines]
            held, count = [holder.bytes for holder in holders], [holder.count for holder in holders]
            rows.append(HeldRow(device, name, held[0], held[1], held[1] - held[0], count[0], count[1]))
    return Findings(sorted(rows, key=lambda row: (-abs(row.delta_bytes), row.device, row.line)))


def _peaks(trace: Trace) -> Mapping[int, Moment]:
    """The peak of each device; the end where there is no history."""
    held = held_memory(trace)
    assert isinstance(held, Held)
    moments = {moment.device: moment for moment in held.moments if moment.what == "end"}
    return moments | {moment.device: moment for moment in held.moments if moment.what == "peak"}


def held_sentences(findings: Outcome) -> list[str]:
    """By how much the peaks of the devices differ, the one that differs most first, and what grew and shrank most."""
    assert isinstance(findings, Findings)
    said, devices = list[str](), defaultdict[int, list[HeldRow]](list)
    for row in findings.rows:
        devices[row.device].append(row)
    net = {device: sum(row.delta_bytes for row in rows) for device, rows in devices.items()}
    for device in sorted(net, key=lambda device: (-abs(net[device]), device)):
        rows, parts = devices[device], []
        for word, sign in (("more", 1), ("less", -1)):
            if some := [row for row in rows if sign * row.delta_bytes > 0]:
                most = text.listed([f"`{row.line}` ({text.size(abs(row.delta_bytes))})" for row in some[:_MOST_SAID]])
                parts.append((f"{text.size(sum(abs(row.delta_bytes) for row in some))} {word}", most))
        if parts:
            by = "; ".join(f"{amount} by {most}" for amount, most in parts)
            by = by if len(parts) > 1 else f"most by {parts[0][1]}"
            before, after = sum(row.control_bytes for row in rows), sum(row.test_bytes for row in rows)
            differ = f"{text.size(abs(net[device]))} {'more' if net[device] >= 0 else 'less'}"
            amounts = f"{differ} are allocated ({text.size(after)} instead of {text.size(before)})"
            said.append(f"At the peak of GPU {device}, {amounts}: {by}.")
    return said or ["At the peak every line of code holds the same."]
