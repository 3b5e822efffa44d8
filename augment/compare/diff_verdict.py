"""The verdict on a comparison: whether a step is faster or slower beyond noise, and which parts it consists of."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import asdict

from augment.compare.calls import Names
from augment.compare.diff_rows import FigureRow, NameRow, StepRow
from augment.compare.noise import FEWEST, TRIM, hidden_by_outliers, trimmed_mean
from augment.compare.totals import CONTROL, EFFICIENCY, FIGURES, TEST
from augment.compare.waterfall import TileKind, Tiles
from augment.core import Findings, Outcome, Verdict
from augment.core.text import capitalized, counted, rough_interval, rough_time, short, spaced, three_digits, time

PARTS = 3  #: of the difference, in the sentence
LEAST_RATIO = 0.01  #: of a step; smaller parts are not mentioned
LEAST_COMPUTING = 0.02  #: of computing, that is worth a sentence beside the step's
NEARLY = 0.1  #: names that miss a kind's sum by no more of it: no "mostly"; or a step's length: they cover it
_LONGEST = 48  #: letters of a name
_KINDS = {
    "computation": "computing",
    "exposed_communication": "exposed communication",
    "exposed_memory": "exposed copies",
    "host_wait": "waiting for the host",
    "kernel_wait": "between kernels",
    "other": "other waits",
    "host": "on the host",
}


_TITLES = {figure.name: figure.title for figure in (*FIGURES, *EFFICIENCY)}
_PHASES = {"prefill_ns": "A prefill", "decode_ns": "A decode", "mixed_ns": "A step of prompts and decodes"}


def verdict(outcomes: Mapping[str, Outcome], whole: bool, late: str = "") -> Verdict:
    """The sentences, and the rows of the parts that they name.

    Args:
        outcomes: of the comparison.
        whole: recordings were compared, not steps.
        late: what to say of a rank that others wait for, if there is a difference.
    """
    figures = {row.figure: row for row in _rows(outcomes, "diff_figures")}
    step: FigureRow | None = figures.get("wall_ns")
    if step is None:
        return Verdict()
    unit = "The recording" if whole else f"A {'mean ' * (step.step_count > 1)}step"
    rows = _rows(outcomes, "diff_waterfall")
    scale = next((row.delta_per_step_ns / row.delta_ns for row in rows if row.delta_ns), 0.0)
    sides = ((row.control_names or row.test_names, scale * row.control_ns, scale * row.test_ns) for row in rows)
    times = ((row.kind, row.operator, *side) for row, side in zip(rows, sides, strict=True))
    kinds = parts(times, changed_on_host(map(asdict, _rows(outcomes, "diff_names")), step.control))
    least = LEAST_RATIO * step.control
    large = [each for each in kinds if abs(each.ns) >= least][:PARTS]
    text = [_of_step(step, unit, _rows(outcomes, "diff_steps"))]
    # a difference within the noise may have either sign
    either = step.low is not None and step.high is not None and step.low * step.high <= 0
    is_late = bool(late and step.delta and not (step.verdict == "within_noise" and either))
    text += [late] if is_late else []
    if large:
        which = "The largest parts of the difference, as means of the ranks" if is_late else "Its largest parts"
        text.append(f"{which}: {', '.join(f'{rough_time(each.ns)} {each.label}' for each in large)}.")
    doubts = "; ".join(each.doubt for each in kinds if each.doubted_ns >= least)
    text += [f"{capitalized(doubts)}: work may only have moved between names."] if doubts else []
    text += _of_computing(step, figures.get("compute_ns"))
    phases = _rows(outcomes, "diff_phases")
    if len(phases) > 1:
        text += [_of_step(row, _PHASES.get(row.figure, unit)) for row in phases if row.figure in _PHASES and row.delta]
    rows = sorted(rows, key=lambda row: -abs(row.delta_per_step_ns))
    largest = [(each.kind, name) for each in large for name in each.names]
    parted = [((row.kind, _name(row.kind, row.operator, row.control_names or row.test_names)), row) for row in rows]
    return Verdict(text, [row for part in largest for named, row in parted if named == part])


class KindPart(Struct, frozen=True):
    """All of one kind in the difference: its sum per step, and the names that explain the sum.

    Work that is named otherwise on the other side grows under one name and shrinks under another. ``names`` are so few
    as make up most of the sum, none if others take away most of what they add. ``doubt`` says what speaks against them,
    and ``doubted_ns`` how much of the sum that is.
    """

    kind: str
    ns: float
    label: str
    names: Sequence[str]
    doubt: str = ""
    doubted_ns: float = 0.0


def parts(
    rows: Iterable[tuple[str, str | None, Sequence[str], float, float]], on_host: Mapping[str, float]
) -> list[KindPart]:
    """The difference by kind, the largest first, from kind, operator, names, and times per step of both sides of each
    row. ``on_host``: by how much longer each name takes on the host; what takes less is not why the device waits more.
    """
    kinds: dict[str, dict[str, list[float]]] = {}
    for kind, operator, names, control, test in rows:
        times = kinds.setdefault(kind, {}).setdefault(_name(kind, operator, names), [0.0, 0.0])
        times[0], times[1] = times[0] + control, times[1] + test
    of_kinds = []
    for kind, sides in kinds.items():
        sums = {name: test - control for name, (control, test) in sides.items()}
        whole, label, doubt, doubted = sum(sums.values()), kind_title(kind), "", 0.0
        along = sorted((name for name in sums if sums[name] * whole > 0), key=lambda name: -abs(sums[name]))
        grown = sum(ns for ns in sums.values() if ns > 0)
        opposite = min(grown, grown - whole)  # what other names take away
        explained = [sum(sums[name] for name in along[: count + 1]) / whole for count in range(len(along[:PARTS]))]
        few = next((count for count, share in enumerate(explained, 1) if share >= MOST), 0)
        names = [name for name in along[:few] if name and opposite <= abs(whole)]
        known = {name: [three_digits(ns) if ns else "0" for ns in sides[name]] for name in names}
        shown = {name: short(name, _LONGEST) + (not all(sides[name])) * f" {' → '.join(known[name])}" for name in names}
        lacking = next((name for name in names if not all(sides[name])), None)
        if opposite > abs(whole):
            ends = [max(sums, key=sums.__getitem__), min(sums, key=sums.__getitem__)]
            such = " and ".join(f"{rough_time(sums[name])} {short(name, _LONGEST)}" for name in ends)
            doubt = f"within {label} ({rough_time(whole)} in all) differences cancel, such as {such}"
            doubted = min(abs(sums[name]) for name in ends)
        elif moved := next((each for each in names if kind == "host_wait" and on_host.get(each, 0) * whole < 0), None):
            before, after = known[moved]
            before = f" (before: {before})" * bool(sides[moved][0])  # else it may have waited in another part of that
            while_in = f"the device now waits {after}{before} while the host is in {short(moved, _LONGEST)}"
            doubt = f"{while_in}, although that itself became {'shorter' if whole > 0 else 'longer'}"
            names, doubted = [], abs(sums[moved])
        elif lacking is not None and opposite >= FEW * abs(sums[lacking]):
            only, change = ("new in", "less") if whole > 0 else ("gone from", "more")
            name = f"{short(lacking, _LONGEST)} is {only} the test"
            doubt = f"within {kind_title(kind)}, {name}, and other names take {time(opposite)} {change} there"
            doubted = abs(sums[lacking])
        if names:
            mostly = "mostly " if abs(explained[few - 1] - 1) > NEARLY else ""
            label += f" ({mostly}{', '.join(shown.values())})"
        of_kinds.append(KindPart(kind, whole, label, names, doubt, doubted))
    return sorted(of_kinds, key=lambda each: -abs(each.ns))


def changed_on_host(rows: Iterable[Mapping[str, Any]], step_ns: float) -> dict[str, int]:
    """By how much longer each name takes on the host, ns, of the rows of ``diff_names``: where that is a tenth of its
    time, and no noise, unless it covers most of a step."""
    parts_of_it = (row for row in rows if (row["control_mean_ns"] or 0) < (1 - NEARLY) * step_ns)
    known = (row for row in parts_of_it if row["side"] == "cpu" and row["verdict"] != "within_noise")
    return {row["name"]: row["delta_ns"] for row in known if 10 * abs(row["delta_ns"]) >= row["control_ns"]}


def _name(kind: str, operator: str | None, names: Sequence[str]) -> str:
    """Of which the same is said: the operator, or what the host did."""
    return names[0] if kind.startswith("host") and names else operator or (names[0] if names else "")


def _rows(outcomes: Mapping[str, Outcome], table: str) -> Sequence[Any]:
    outcome = outcomes.get(table)
    return outcome.rows if isinstance(outcome, Findings) else ()


def kind_title(kind: str) -> str:
    """A kind of time, or of work, in words."""
    return _KINDS.get(kind, spaced(kind))


def figure_title(name: str) -> str:
    """What people call a figure: ``exposed copies``."""
    return _TITLES.get(name) or name.removesuffix("_ns").replace("_", " ")


def _of_step(row: FigureRow, unit: str, steps: Sequence[StepRow] = ()) -> str:
    if not row.delta:
        return f"No difference: {unit.lower()} is as long on both sides."
    size = rough_time(abs(row.delta)).removeprefix("+")
    share = "" if row.change_ratio is None else f" ({abs(100 * row.change_ratio):.1f} %)"
    faster = f"{unit} is {size}{share} {'faster' if row.delta < 0 else 'slower'}"
    if row.verdict in ("improvement", "regression", "different"):
        return f"{faster}."
    if row.verdict == "within_noise" and row.low is not None and row.high is not None and row.low * row.high > 0:
        noise = rough_interval(row.low, row.high)
        return f"{faster}, {noise}: more than its own noise, but one of all figures compared may differ so by chance."
    if row.verdict == "within_noise" and row.low is not None and row.high is not None:
        noise = rough_interval(row.low, row.high)
        both = np.array([(each.control_ns, each.test_ns) for each in steps], np.float64).reshape(-1, 2).T
        if hidden_by_outliers(*both):
            ratio = trimmed_mean(both[1], TRIM) / trimmed_mean(both[0], TRIM) - 1
            rest = f"{abs(100 * ratio):.1f} % {'shorter' if ratio < 0 else 'longer'}, beyond noise"
            doubt = f"which single steps make uncertain (95 % interval {noise})"
            return f"{faster}, {doubt}: without the shortest and the longest fifth of each side it is {rest}."
        change = "" if row.change_ratio is None else f" ({100 * row.change_ratio:+.1f} %)"
        differs = f"{unit.lower()} differs by {rough_time(row.delta)}{change}"
        return f"No difference beyond noise: {differs}; 95 % interval {noise}."
    few = counted(row.step_count, "step")
    if row.step_count < FEWEST:
        return f"{faster}; whether beyond noise cannot be told from {few} on each side: too few for an interval."
    scale = row.control * len(steps) / max(sum(each.control_ns for each in steps), 1)
    sides = [[scale * each.control_ns for each in steps], [scale * each.test_ns for each in steps]]
    reach = [rough_interval(min(side), max(side), "-") for side in sides if side]
    of_sides = f" ({reach[0]} in the control, {reach[1]} in the test)" if reach else ""
    return f"{faster}; the {few} are too irregular to judge that{of_sides}."


def _of_computing(step: FigureRow, computing: FigureRow | None) -> list[str]:
    """What to say of computing that the step's length hides: it changes the other way, or beyond noise alone."""
    if computing is None or not computing.change_ratio or abs(computing.change_ratio) < LEAST_COMPUTING:
        return []
    is_sure = computing.verdict != "within_noise" and (computing.verdict != "unknown" or step.verdict == "unknown")
    if not is_sure or (step.delta * computing.delta > 0 and step.verdict != "within_noise"):
        return []
    size = f"{rough_time(abs(computing.delta)).removeprefix('+')} ({abs(100 * computing.change_ratio):.1f} %)"
    return [f"Computing itself takes {size} {'longer' if computing.delta > 0 else 'less'}."]


def no_interval(step_count: int) -> str:
    """Why a figure has none."""
    return "too few steps" if step_count < FEWEST else "too irregular"


# Whether most ranks of a job only wait for a rank whose own work takes longer.
#
# A collective ends on all its ranks together. So if a rank is late, exposed communication grows on all the others, and
# the mean of all ranks shows it as the largest part of the difference, although the cause is on the late rank.


MOST = 0.5  #: of the difference: what is communication on the other ranks, and what the cause explains on the late one
FEW = 0.25  #: of the others' communication: no more than this is on the late rank
_Owner = tuple[TileKind, int]  #: a kind, and the number of a name or -1
_EXPOSED: _Owner = (TileKind.EXPOSED_COMMUNICATION, -1)
_CAUSES = (TileKind.COMPUTATION, TileKind.EXPOSED_MEMORY, TileKind.HOST_WAIT, TileKind.OTHER)


class RankParts:
    """By how much a rank's time differs, ns per step, by kind, and by what the host did while it was waited for.

    Args:
        label: what the rank is called, to begin a sentence.
        steps: how many steps are compared.
    """

    def __init__(self, label: str, steps: int) -> None:
        self.label, self._steps = label, max(steps, 1)
        self._ns = defaultdict[_Owner, float](float), defaultdict[_Owner, float](float)  #: of each side

    def add(self, side: int, tiles: Tiles) -> None:
        """Add the tiles of one of its devices on one side."""
        name = np.where(tiles.kind == TileKind.HOST_WAIT, tiles.name, -1).astype(np.int64)
        keys, which = np.unique(tiles.kind.astype(np.int64) << 32 | (name + 1), return_inverse=True)
        sums = np.zeros(len(keys), np.int64)
        np.add.at(sums, which, tiles.ns)
        for key, ns in zip(keys.tolist(), sums.tolist(), strict=True):
            self._ns[side][TileKind(key >> 32), (key & (1 << 32) - 1) - 1] += ns / self._steps

    @property
    def total_ns(self) -> float:
        """Of everything."""
        return sum(self._ns[TEST].values()) - sum(self._ns[CONTROL].values())

    @property
    def communication_ns(self) -> float:
        """Of exposed communication."""
        return self._ns[TEST][_EXPOSED] - self._ns[CONTROL][_EXPOSED]

    def cause(self, sign: int, names: Names, by_name: Sequence[NameRow]) -> tuple[str, float]:
        """What else differs most in the direction ``sign``, and by how much."""
        control, test = self._ns
        rows = (
            (kind.name.lower(), names.texts[name] if name >= 0 else None, (), control[kind, name], test[kind, name])
            for kind, name in dict.fromkeys((*control, *test))
            if kind in _CAUSES
        )
        on_host = changed_on_host(map(asdict, by_name), sum(control.values()))
        most = max(parts(rows, on_host), key=lambda each: sign * each.ns, default=None)
        return (most.label, most.ns) if most else ("", 0.0)


def late_rank(ranks: Sequence[RankParts], names: Names, by_name: Sequence[NameRow]) -> tuple[str, int]:
    """A sentence on the one rank of a job that others wait for longer than before, or no longer, and its place; empty
    and 0 if there is none. ``names`` are those of both sides; ``by_name`` has the rows of ``diff_names``."""
    if len(ranks) < 2:
        return "", 0
    mean = sum(rank.total_ns for rank in ranks) / len(ranks)
    sign = 1 if mean > 0 else -1
    waits = [sign * rank.communication_ns for rank in ranks]
    late = min(range(len(ranks)), key=waits.__getitem__)
    others = np.delete(waits, late)
    if others.min() < MOST * abs(mean) or waits[late] > FEW * others.min() or not mean:
        return "", 0
    cause, ns = ranks[late].cause(sign, names, by_name)
    if sign * ns < MOST * (float(np.median(others)) - waits[late]):
        return "", 0
    who = "the other rank" if len(ranks) == 2 else "the other ranks"
    there = f"communication takes {'no longer' if sign > 0 else 'as long as before'} there"
    waits_for = f"{who} may only {'wait' if sign > 0 else 'have waited'} for it"
    return f"{ranks[late].label} itself changed: {rough_time(ns)} {cause}; {there}, and {waits_for}.", late


# Whether both sides of a comparison ran on the same type of device: if not, that alone changes times.


def difference(control: Iterable[str], test: Iterable[str]) -> str | None:
    """A sentence if the types of devices differ, by their names; None if they are equal, or unknown on a side."""
    before, after = (sorted(set(filter(None, names))) for names in (control, test))
    if not before or not after or before == after:
        return None
    names = f"{', '.join(before)} in the control, {', '.join(after)} in the test"
    return f"The devices differ ({names}), which alone changes times."
