"""The verdict on a comparison: whether a step is faster or slower beyond noise, and which parts it consists of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from augment.compare.calls import Names
from augment.compare.diff_rows import FigureRow
from augment.compare.totals import EFFICIENCY, FIGURES, TEST
from augment.compare.waterfall import TileKind, Tiles
from augment.core import Findings, Outcome, Verdict
from augment.core.text import counted, rough_interval, rough_time, spaced

PARTS = 3  #: of the difference, in the sentence
LEAST_RATIO = 0.01  #: of a step; smaller parts are not mentioned
NEARLY = 0.1  #: names that miss a kind's sum by no more of it: no "mostly"
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
    step: FigureRow | None = next((row for row in _rows(outcomes, "diff_figures") if row.figure == "wall_ns"), None)
    if step is None:
        return Verdict()
    unit = "The recording" if whole else "A step"
    rows = _rows(outcomes, "diff_waterfall")
    kinds = parts((row.kind, row.operator, row.control_names or row.test_names, row.delta_per_step_ns) for row in rows)
    least = LEAST_RATIO * step.control
    large = [each for each in kinds if abs(each.ns) >= least][:PARTS]
    text = [_of_step(step, unit)]
    if large:
        text.append(f"Its largest parts: {', '.join(f'{rough_time(each.ns)} {each.label}' for each in large)}.")
    for each in kinds:
        if min((abs(ns) for _, ns in each.cancel), default=0) >= least:
            opposite = " and ".join(f"{rough_time(ns)} {name}" for name, ns in each.cancel)
            text.append(
                f"Within {each.label} ({rough_time(each.ns)} in all) differences cancel, such as {opposite}: "
                "work may only have moved between names."
            )
    phases = _rows(outcomes, "diff_phases")
    if len(phases) > 1:
        text += [_of_step(row, _PHASES.get(row.figure, unit)) for row in phases if row.figure in _PHASES and row.delta]
    # a difference within the noise may have either sign
    either = step.low is not None and step.high is not None and step.low * step.high <= 0
    if late and step.delta and not (step.verdict == "within_noise" and either):
        text.append(late)
    rows = sorted(rows, key=lambda row: -abs(row.delta_per_step_ns))
    largest = [(each.kind, name) for each in large for name in each.names]
    parted = [((row.kind, _name(row.kind, row.operator, row.control_names or row.test_names)), row) for row in rows]
    return Verdict(text, [row for part in largest for named, row in parted if named == part])


class KindPart(Struct, frozen=True):
    """All of one kind in the difference: its sum per step, and the names that explain the sum.

    Work that is named otherwise on the other side grows under one name and shrinks under another. ``names`` are so few
    as make up most of the sum, none if others take away most of what they add; then ``cancel`` has the two largest.
    """

    kind: str
    ns: float
    label: str
    names: Sequence[str]
    cancel: Sequence[tuple[str, float]]


def parts(rows: Iterable[tuple[str, str | None, Sequence[str], float]]) -> list[KindPart]:
    """The difference by kind, the largest first, from the kind, operator, names and difference of each row."""
    kinds: dict[str, dict[str, float]] = {}
    for kind, operator, names, ns in rows:
        sums, name = kinds.setdefault(kind, {}), _name(kind, operator, names)
        sums[name] = sums.get(name, 0.0) + ns
    of_kinds = []
    for kind, sums in kinds.items():
        whole, label = sum(sums.values()), kind_title(kind)
        along = sorted((name for name in sums if sums[name] * whole > 0), key=lambda name: -abs(sums[name]))
        grown = sum(ns for ns in sums.values() if ns > 0)
        ends = [(name, sums[name]) for name in (max(sums, key=sums.__getitem__), min(sums, key=sums.__getitem__))]
        cancel = ends if min(grown, grown - whole) > abs(whole) else []
        explained = [sum(sums[name] for name in along[: count + 1]) / whole for count in range(len(along[:PARTS]))]
        few = next((count for count, share in enumerate(explained, 1) if share >= MOST), 0)
        names = [] if cancel else [name for name in along[:few] if name]
        if names:
            label += f" ({'mostly ' if abs(explained[few - 1] - 1) > NEARLY else ''}{', '.join(names)})"
        of_kinds.append(KindPart(kind, whole, label, names, cancel))
    return sorted(of_kinds, key=lambda each: -abs(each.ns))


def _name(kind: str, operator: str | None, names: Sequence[str]) -> str:
    """Of which the same is said: the operator, or what the host did."""
    name = names[0] if kind.startswith("host") and names else operator or (names[0] if names else "")
    name = " ".join(name.split())
    return name if len(name) <= _LONGEST else name[: _LONGEST - 1] + "…"


def _rows(outcomes: Mapping[str, Outcome], table: str) -> Sequence[Any]:
    outcome = outcomes.get(table)
    return outcome.rows if isinstance(outcome, Findings) else ()


def kind_title(kind: str) -> str:
    """A kind of time, or of work, in words."""
    return _KINDS.get(kind, spaced(kind))


def figure_title(name: str) -> str:
    """What people call a figure: ``exposed copies``."""
    return _TITLES.get(name) or name.removesuffix("_ns").replace("_", " ")


def _of_step(row: FigureRow, unit: str) -> str:
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
        change = "" if row.change_ratio is None else f" ({100 * row.change_ratio:+.1f} %)"
        differs = f"{unit.lower()} differs by {rough_time(row.delta)}{change}"
        return f"No difference beyond noise: {differs}; 95 % interval {noise}."
    few = counted(row.step_count, "step")
    return f"{faster}; whether beyond noise cannot be told from {few} on each side: too few for an interval."


# Whether most ranks of a job only wait for a rank whose own work takes longer.
#
# A collective ends on all its ranks together. So if a rank is late, exposed communication grows on all the others, and
# the mean of all ranks shows it as the largest part of the difference, although the cause is on the late rank.


MOST = 0.5  #: of the difference: what is communication on the other ranks, and what the cause explains on the late one
FEW = 0.25  #: of the others' communication: no more than this is on the late rank
_CAUSES = (TileKind.COMPUTATION, TileKind.EXPOSED_MEMORY, TileKind.HOST_WAIT, TileKind.OTHER)


class RankParts:
    """By how much a rank's time differs, ns over all steps, by kind, and by what the host did while it was waited for.

    Args:
        label: what the rank is called.
    """

    def __init__(self, label: str) -> None:
        self.label = label
        self._ns: Counter[tuple[TileKind, int]] = Counter()

    def add(self, side: int, tiles: Tiles) -> None:
        """Add the tiles of one of its devices on one side."""
        name = np.where(tiles.kind == TileKind.HOST_WAIT, tiles.name, -1).astype(np.int64)
        keys, which = np.unique(tiles.kind.astype(np.int64) << 32 | (name + 1), return_inverse=True)
        sums = np.zeros(len(keys), np.int64)
        np.add.at(sums, which, tiles.ns)
        for key, ns in zip(keys.tolist(), sums.tolist(), strict=True):
            self._ns[TileKind(key >> 32), (key & (1 << 32) - 1) - 1] += ns if side == TEST else -ns

    @property
    def total_ns(self) -> int:
        """Of everything."""
        return sum(self._ns.values())

    @property
    def communication_ns(self) -> int:
        """Of exposed communication."""
        return self._ns[TileKind.EXPOSED_COMMUNICATION, -1]

    def cause(self, sign: int, names: Names) -> tuple[str, int]:
        """What else differs most in the direction ``sign``, and by how much."""
        rows = (
            (kind.name.lower(), names.texts[name] if name >= 0 else None, (), float(sign * ns))
            for (kind, name), ns in self._ns.items()
            if kind in _CAUSES
        )
        most = max(parts(rows), key=lambda each: each.ns, default=None)
        return (most.label, int(most.ns)) if most else ("", 0)


def late_rank(ranks: Sequence[RankParts], steps: int, names: Names) -> str:
    """A sentence on the one rank that others wait for longer than before, or no longer; empty if there is none.

    Args:
        ranks: of the job.
        steps: how many steps were compared.
        names: of both sides.
    """
    if len(ranks) < 2:
        return ""
    mean = sum(rank.total_ns for rank in ranks) / len(ranks)
    sign = 1 if mean > 0 else -1
    waits = [sign * rank.communication_ns for rank in ranks]
    late = min(range(len(ranks)), key=waits.__getitem__)
    others = np.delete(waits, late)
    if others.min() < MOST * abs(mean) or waits[late] > FEW * others.min() or not mean:
        return ""
    cause, ns = ranks[late].cause(sign, names)
    if ns < MOST * (float(np.median(others)) - waits[late]):
        return ""
    size = rough_time(sign * ns / max(steps, 1))
    who = "the other rank" if len(ranks) == 2 else "the other ranks"
    where = f"On {ranks[late].label} communication takes {'no longer' if sign > 0 else 'as long as before'}"
    return f"{where}: there it is {cause}, {size}, and {who} may only {'wait' if sign > 0 else 'have waited'} for it."


# Whether both sides of a comparison ran on the same type of device: if not, that alone changes times.


def difference(control: Iterable[str], test: Iterable[str]) -> str | None:
    """A sentence if the types of devices differ, by their names; None if they are equal, or unknown on a side."""
    before, after = (sorted(set(filter(None, names))) for names in (control, test))
    if not before or not after or before == after:
        return None
    names = f"{', '.join(before)} in the control, {', '.join(after)} in the test"
    return f"The devices differ ({names}), which alone changes times."
