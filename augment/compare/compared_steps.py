"""Chooses the steps of control and test to compare."""

from __future__ import annotations

import re
import shlex
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field
from msgspec.structs import replace

from augment import facts
from augment.arrays import NO_INDEX, OUTLIER, Bools, Int64s, Intervals, Places, clip, distinct, robust_z, sums, union
from augment.compare.totals import Samples
from augment.core import Category, Diagnostic, Trace, text
from augment.diagnosis import captures, first_calls, rule
from augment.errors import InputError, UsageError
from augment.facts.steps import batches
from augment.facts.steps.step_windows import StepWindows, recorded_windows, region_windows

StepChoice = int | tuple[int, int] | None  #: the step of both sides, one per side, or all


class ChosenSteps(Struct, frozen=True):
    """Equally many windows per side: the first of ``control`` is compared with the first of ``test``, and so on.

    ``whole`` says that they are whole recordings, not steps; ``offered`` are the annotations that could be steps.
    """

    control: StepWindows
    test: StepWindows
    whole: bool
    diagnostics: tuple[Diagnostic, ...] = ()
    offered: str = ""

    def take(self, places: Places) -> ChosenSteps:
        """The windows at these places."""
        return replace(self, control=self.control.take(places), test=self.test.take(places))


def choose(control: Trace, test: Trace, step: StepChoice = None, region: str | None = None) -> ChosenSteps:
    """The steps to compare: by number if ``step`` is given, else by position, as many as both sides have. Of an engine
    of inference, equally many of like phase and batch.

    If a side has no steps, whole recordings are compared. With a ``region``, the occurrences of the annotation with
    that name, or matching that pattern, are the steps, numbered from 0.

    Raises:
        UsageError: a side has no step of that number.
        InputError: a side has no work at all, or no whole step.
    """
    sides = windows_in(control, region), windows_in(test, region)
    for trace, windows in zip((control, test), sides, strict=True):
        expect_work(trace, windows)
    if step is not None:
        numbers = step if isinstance(step, tuple) else (step, step)
        chosen = []
        for trace, windows, number in zip((control, test), sides, numbers, strict=True):
            places = np.flatnonzero(windows.number == number)[:1]
            if not len(places):
                known = ", ".join(str(number) for number in windows.number.tolist() if number >= 0)
                there = f"it has {known}" if known else "it has none"
                raise UsageError(f"{trace.source.name}: has no step {number} ({there})")
            chosen.append(windows.take(places))
        return ChosenSteps(chosen[0], chosen[1], whole=False)
    have = [bool((windows.number >= 0).any()) for windows in sides]
    if not all(have):
        wholes = []
        for windows in sides:
            # one window from the first to the last
            first, last = np.array([0]), np.array([len(windows) - 1])
            head, tail = windows.take(first), windows.take(last)
            wholes.append(StepWindows(np.array([-1], np.int64), head.begin, tail.finish, head.start, tail.end))
        offered = offer(regions_of(control), regions_of(test))
        lacking = f"the {'test' if have[0] else 'control'} has no" if any(have) else "neither side has an"
        unlike = (Diagnostic("no_steps", 1, f"{lacking} annotation of a step: whole recordings are compared"),)
        return ChosenSteps(wholes[0], wholes[1], True, unlike if any(have) or offered else (), offered)
    if region is None and (alike := _of_like_batches(control, test, sides)) is not None:
        return alike
    count = min(map(len, sides))
    left_out = max(map(len, sides)) - count
    message = "steps without counterpart: one side recorded more steps, and its last ones are not compared"
    diagnostics = [Diagnostic("steps_without_counterpart", left_out, message)] if left_out else []
    first = np.arange(count)
    return ChosenSteps(sides[0].take(first), sides[1].take(first), whole=False, diagnostics=tuple(diagnostics))


LIKE_BATCH = 1.25  #: times as many sequences, or tokens of prompts, at most


def _of_like_batches(control: Trace, test: Trace, sides: tuple[StepWindows, StepWindows]) -> ChosenSteps | None:
    """As many steps of each phase and of about each size as both sides have, in the order of time; by position if they
    have nothing alike; None if a side has no engine."""
    keys = []
    for trace, windows in zip((control, test), sides, strict=True):
        of_step = batches(trace)
        if not of_step:
            return None
        # the phase of each step, and its tokens of prompts, else its sequences; -1 unknown
        chosen = [of_step[number] for number in windows.number.tolist()]
        keys.append(
            [(each.phase, each.prefill_tokens if each.prefill_tokens > 0 else each.requests) for each in chosen]
        )
    kept: tuple[list[int], list[int]] = ([], [])
    for phase in dict.fromkeys(phase for phase, _ in keys[0]):
        before, after = (
            deque(sorted((size, place) for place, (of, size) in enumerate(side) if of == phase)) for side in keys
        )
        while before and after:
            (size, place), (other, counterpart) = before[0], after[0]
            alike = size == other or max(size, other) <= LIKE_BATCH * min(size, other)
            if alike:
                kept[0].append(place)
                kept[1].append(counterpart)
            if alike or size < other:
                before.popleft()
            if alike or other < size:
                after.popleft()
    if not kept[0]:
        first = np.arange(min(map(len, sides)))
        message = "no phase and batch is on both sides: steps are compared by position, and differ in what they do"
        unlike = (Diagnostic("no_batches_alike", 1, message),)
        return ChosenSteps(sides[0].take(first), sides[1].take(first), whole=False, diagnostics=unlike)
    left_out = sum(map(len, sides)) - 2 * len(kept[0])
    message = "steps whose phase and batch the other side has not, or not as often; not compared"
    diagnostics = (Diagnostic("batches_without_counterpart", left_out, message),) if left_out else ()
    places = [np.sort(np.array(side, np.int64)) for side in kept]
    return ChosenSteps(sides[0].take(places[0]), sides[1].take(places[1]), whole=False, diagnostics=diagnostics)


def windows_in(trace: Trace, region: str | None = None) -> StepWindows:
    """The steps of a trace, or the occurrences of a region.

    Raises:
        UsageError: there is no such region.
    """
    if region is None:
        return recorded_windows(trace)
    occurrences = region_windows(trace, region)
    if not len(occurrences):
        raise UsageError(f"{trace.source.name}: has no annotation or operator that matches {region!r}")
    return occurrences


def expect_work(trace: Trace, windows: StepWindows) -> None:
    """Expect ``windows``, which are those of the trace, to be some.

    Raises:
        InputError: there are none.
    """
    if not len(windows) and trace.partial is not None:
        raise InputError(trace.source.path, "is cut off, and no step is known to be whole in it; record it again")
    if not len(windows):
        raise InputError(trace.source.path, "holds no operator, launch or GPU work that could be compared")


# What happens once (compilation, the capture of a graph, operators at their first call) is no part of steady steps.


ONCE_SHARE = 0.5  #: of what a step takes beyond the median, to be why
ONCE_LONGER = 1.2  #: times the median: a step that takes less is like the others
ONCE_MOST = 4  #: one step in so many at most, else it comes again
COLD_BESIDE_WARM, COLD, COLD_TIMES = "cold_beside_warm", 0.1, 4  #: least share, and times what the other side has
_FEWEST = 3  #: steps on a side, to tell one from the others


def _once(trace: Trace, windows: StepWindows) -> Mapping[str, Int64s]:
    """How much of each window is what happens once, ns: by what it is called, and all of it."""
    cold = distinct(np.append(first_calls.cold_operators(trace), first_calls.loading_calls(trace)))
    parts = {
        "compilation": rule.Spans.of(trace, captures.compilations(trace)),
        "captures": captures.captures(trace),
        "first launches": rule.Spans.of(trace, cold),
    }
    whole, ns = Intervals(windows.begin, np.maximum(windows.finish, windows.begin)), dict[str, Int64s]()
    for name, spans in {**parts, "": rule.Spans.joined([*parts.values()])}.items():
        which, _, inside = clip(whole, union(spans.start, spans.end))
        ns[name] = sums(which, inside.end - inside.start, len(windows))
    return ns


def lengthened_once(trace: Trace, windows: StepWindows) -> Bools:
    """Which windows are much longer than usual, at least half of it for what happens once."""
    length, once = windows.end - windows.start, _once(trace, windows)[""]
    usual = float(np.median(length)) if len(length) else 0.0
    longer: Bools = (length > ONCE_LONGER * usual) & (once >= ONCE_SHARE * (length - usual))
    return longer


def cold_beside_warm(chosen: Sequence[ChosenSteps], pairs: Sequence[tuple[Trace, Trace]]) -> list[Diagnostic]:
    """That what happens once takes a good part of one side, not of the last of several steps, little of the other."""
    ns, lengths, again = (Counter[str](), Counter[str]()), [1, 1], [False, False]
    for steps, pair in zip(chosen, pairs, strict=True):
        for side, windows in enumerate((steps.control, steps.test)):
            once, length = _once(pair[side], windows), windows.end - windows.start
            ns[side].update({name: int(spent.sum()) for name, spent in once.items()})
            lengths[side] += int(length.sum())
            again[side] |= len(length) >= _FEWEST and bool(once[""][-1] >= COLD * length[-1])
    both = [of_side.pop("", 0) for of_side in ns]
    cold = int(both[1] > both[0])
    if again[cold] or both[cold] < max(COLD * lengths[cold], COLD_TIMES * both[1 - cold]):
        return []
    names = [name for name, spent in ns[cold].most_common() if spent >= COLD * ns[cold].total()]
    takes = f"{text.listed(names)} take{'s' * (names == ['compilation'])}"
    control, test = (text.time(once / len(pairs)) for once in both)
    said = f"{takes} {control} in the control and {test} in the test"
    return [Diagnostic(COLD_BESIDE_WARM, 1, f"A cold run is compared with a warm one: {said}; compare later steps.")]


def one_offs(sides: Sequence[tuple[str, Sequence[int], npt.NDArray[Any], Bools]]) -> tuple[Bools, str]:
    """Which steps to leave out on all sides, which something lengthens on one that happens once; and that in a
    sentence, empty for none. A side has its name, and of each step the number, the length, and whether that is so. A
    step stays where another that stays is longer by as much: else it would be compared with what the other side keeps.
    """
    count = len(sides[0][1]) if sides else 0
    left_out, most_ns = np.zeros(count, np.bool_), np.zeros(count)  #: beyond the usual, by step
    for _, _, length, longer in sides if count >= _FEWEST else ():
        np.maximum(most_ns, length - float(np.median(length)), out=most_ns)
        left_out |= longer
    if not left_out.any() or left_out.sum() > max(count // ONCE_MOST, 1):
        return np.zeros(count, np.bool_), ""
    if most_ns[~left_out].max() >= ONCE_SHARE * most_ns[left_out].max():
        return np.zeros(count, np.bool_), ""
    said = dict[tuple[int, str], str]()  # by step and side: of several ranks, of the first that is lengthened
    for place in np.flatnonzero(left_out).tolist():
        for side, number, length, _ in sorted(sides, key=lambda each: not each[3][place]):
            took, usual = text.three_digits(float(length[place])), text.three_digits(float(np.median(length)))
            said.setdefault((place, side), f"step {number[place]} of the {side}, {took} (median {usual})")
    why = "Left out on both sides, for what happens once (compilation, capture, first use)"
    return left_out, f"{why}: {'; '.join(said[key] for key in sorted(said))}"


def without_one_offs(
    chosen: Sequence[ChosenSteps], pairs: Sequence[tuple[Trace, Trace]]
) -> tuple[list[ChosenSteps], str]:
    """The steps of each pair of ranks without those of :func:`one_offs`, and its sentence."""
    sides = [
        (side, windows.number.tolist(), windows.end - windows.start, lengthened_once(trace, windows))
        for steps, pair in zip(chosen, pairs, strict=True)
        for side, trace, windows in zip(("control", "test"), pair, (steps.control, steps.test), strict=True)
    ]
    left_out, said = one_offs(sides)
    return [steps.take(np.flatnonzero(~left_out)) for steps in chosen], said


# Finds annotations that can serve as steps in recordings without steps: those that recur on both sides.


OFFERED = 3
_DIGITS = re.compile(r"\d+")


class Region(Struct):
    """Annotations whose names differ only in numbers: names, count, total time, and whether GPU work is of them."""

    names: set[str] = field(default_factory=set)
    count: int = 0
    ns: int = 0
    has_work: bool = True


Regions = Mapping[str, Region]  #: by their pattern, numbers as ``*``


def regions_of(trace: Trace, category: Category = Category.USER_ANNOTATION) -> Regions:
    """The annotations of the host, or other slices, by pattern."""
    events = trace.events
    rows = events.slices_of(category)
    names = events.name[rows].astype("int64")
    count, ns = sums(names, rows * 0 + 1, len(trace.strings)), sums(names, events.dur[rows], len(trace.strings))
    called = ((trace.strings[code], int(count[code]), int(ns[code])) for code in count.nonzero()[0].tolist())
    regions, work = by_pattern(called), facts.gpu.work(trace)
    began = np.sort(np.where(work.launch == NO_INDEX, work.ts, events.ts[work.launch]))
    before, after = (np.searchsorted(began, times[rows]) for times in (events.ts, events.end))
    launching = {*trace.names_of(rows[after > before])}
    for region in regions.values():
        region.has_work = not len(work) or not region.names.isdisjoint(launching)
    return regions


def by_pattern(counted: Iterable[tuple[str, int, int]]) -> Regions:
    """The regions of names, each with its count and total time, ns."""
    regions: dict[str, Region] = {}
    for name, count, ns in counted:
        region = regions.setdefault(_DIGITS.sub("*", name), Region())
        region.names.add(name)
        region.count += count
        region.ns += ns
    return regions


_OF_PYTORCH = ("nccl:", "gloo:", "Optimizer.", "enumerate(DataLoader)", "## ")  #: around what is only a part of a step


def offer(*sides: Regions, command: str = "") -> str:
    """Suggestions for ``--region`` of ``command``: annotations with most time that recur, with work, on all sides."""
    recurring = [
        pattern
        for pattern in sides[0]
        if all(pattern in side and side[pattern].count > 1 and side[pattern].has_work for side in sides)
        and not pattern.startswith(_OF_PYTORCH)
    ]
    recurring.sort(key=lambda pattern: (-min(side[pattern].ns for side in sides), pattern))
    offers = []
    for pattern in recurring[:OFFERED]:
        names = set().union(*(side[pattern].names for side in sides))
        counts = dict.fromkeys(side[pattern].count for side in sides)
        name = names.pop() if len(names) == 1 else pattern
        quoted = shlex.quote(name) if "'" in name else f"'{name}'"
        offers.append(f"{command}--region {quoted} ({' and '.join(map(str, counts))} times)")
    where = " on both sides" * (len(sides) > 1)
    return f"annotations that recur{where} can be the steps: {', '.join(offers)}" if offers else ""


# Did whole recordings do equal work? Their lengths compare only then.


UNEQUAL = 1.1  #: times as often
_ALIKE = 1.05  #: times as far apart as most: names that recur with each unit of work grow together
_MOST = 0.5  #: of the time of each side, in names that both have


def recurring(control: Regions, test: Regions) -> tuple[str, bool] | None:
    """The region that recurs with each unit of work of two recordings, and whether it does so equally often in both;
    None if that cannot be told."""
    sides = (control, test)
    # what is there once may enclose all units of work, and tells nothing
    once = {name for name in {**control, **test} if max(side[name].count for side in sides if name in side) == 1}
    shared = [name for name in control if name in test and name not in once]
    wholes = [sum(region.ns for name, region in side.items() if name not in once) for side in sides]
    weights = np.array([[side[name].ns for name in shared] for side in sides], np.float64)
    if not shared or not all(wholes) or (weights.sum(axis=1) < _MOST * np.array(wholes)).any():
        return None
    weight = (weights / np.array(wholes)[:, None]).sum(axis=0)
    ratio = np.array([test[name].count / control[name].count for name in shared])
    order = np.argsort(ratio)
    usual = float(ratio[order][np.searchsorted(weight[order].cumsum(), weight.sum() / 2)])
    alike = np.maximum(ratio / usual, usual / ratio) <= _ALIKE
    is_equal = max(usual, 1 / usual) < UNEQUAL or bool(weight[alike].sum() < _MOST * weight.sum())
    return shared[int(np.argmax(np.where(alike, weight, -1)))], is_equal


def units(control: Regions, test: Regions, name: str) -> tuple[str, str]:
    """What a region of both sides is called, and how often each has it: ``30 and 10 × frame *``."""
    names = control[name].names | test[name].names
    called = text.short(names.pop() if len(names) == 1 else name)
    return called, f"{control[name].count:,} and {test[name].count:,} × {called}"


def unequal_work(control: Trace, test: Trace, steps: ChosenSteps) -> list[str]:
    """Sentences that whole recordings are not of equal work; none if they are, or it cannot be told.

    What recurs with each unit of work (annotations; without such, operators, else kernels) tells how many units a side
    did: names of most of its time occur so many times as often on one side, all by about one factor.
    """
    for category in (Category.USER_ANNOTATION, Category.CPU_OP, Category.KERNEL):
        sides = [regions_of(trace, category) for trace in (control, test)]
        if (known := recurring(*sides)) is None:
            continue
        name, is_equal = known
        if is_equal:
            return []
        before, after = (side[name] for side in sides)
        called, many = units(sides[0], sides[1], name)
        walls = [int((windows.end - windows.start).sum()) for windows in (steps.control, steps.test)]
        each = [
            f"{text.three_digits(was)} and {text.three_digits(now)} ({100 * (now / max(was, 1) - 1):+.1f} %)"
            for was, now in (
                (walls[0] / before.count, walls[1] / after.count),
                (before.ns / before.count, after.ns / after.count),
            )
        ]
        lengths = " and ".join(map(text.three_digits, walls))
        how = f"--region {shlex.quote(called)}" if category != Category.KERNEL else "annotate equal parts, and --region"
        return [
            f"The recordings are not of equal work ({many}): their lengths, {lengths}, do not compare.",
            f"{how} compares equal parts.",
            f"By the number of {called}, a recording takes {each[0]} for each; one by itself takes {each[1]}.",
        ]
    return []


# Is the first step an outlier, by the rule of the analysis ``steps``? Then it says nothing about the other steps.


def outlying_first_step(control: Samples, test: Samples, warm: Sequence[bool] = (True, True)) -> str:
    """The reason to leave the first step out on both sides, in a sentence; empty if there is none. ``warm``: of each
    side, whether its first step is steady; one that is not is an outlier if it is longer than others."""
    sides = [("control", control["wall_ns"], warm[0]), ("test", test["wall_ns"], warm[1])]
    if min(len(steps) for _, steps, _ in sides) < _FEWEST:
        return ""
    reasons = []
    for side, steps, steady in sides:
        z = robust_z(np.rint(steps).astype(np.int64))
        if (not steady and steps[0] > ONCE_LONGER * np.median(steps)) or (z is not None and abs(z[0]) > OUTLIER):
            first, usual = (text.value_text(float(ns), "ns") for ns in (steps[0], np.median(steps)))
            reasons.append(f"in the {side} it takes {first}, the median {usual}")
    return f"the first step is an outlier and left out on both sides: {'; '.join(reasons)}" if reasons else ""


def without_first_outlier(chosen: Sequence[ChosenSteps]) -> tuple[list[ChosenSteps], str]:
    """The steps of each pair of ranks without the first, if it is an outlier in their mean, and the reason."""
    sides = ([steps.control for steps in chosen], [steps.test for steps in chosen])
    before, after = ({"wall_ns": np.mean([each.end - each.start for each in side], axis=0)} for side in sides)
    why = outlying_first_step(before, after)
    return [steps.take(np.arange(bool(why), len(steps.control))) for steps in chosen], why


def without_outlying_first_step(
    control: Samples, test: Samples, warm: Sequence[bool] = (True, True)
) -> tuple[Samples, Samples, str]:
    """Both sides without their first steps if one is an outlier, and the reason."""
    why = outlying_first_step(control, test, warm)
    control, test = ({name: values[bool(why) :] for name, values in side.items()} for side in (control, test))
    return control, test, why
