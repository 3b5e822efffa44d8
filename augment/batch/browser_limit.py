"""How much of a job a browser can hold, and what to leave out of one that is larger."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from augment.batch.selection import spans
from augment.errors import UsageError

#: bytes of Kineto's text that Perfetto's 32-bit engine, which most browsers run, holds in its 4 GB of memory;
#: measured with engine v52: 2.3 bytes of memory for each, and a sixth more for what is added
BROWSER_TEXT_BYTES = 1_600_000_000


@dataclass(frozen=True, slots=True)
class Extent:
    """The size of a rank: the length of its text, and the numbers of its steps."""

    label: str
    text_bytes: int
    steps: tuple[int, ...]

    def part(self, steps: tuple[int, int] | None) -> int:
        """Bytes of text that these steps take, about: as if all were of one size."""
        if steps is None:
            return self.text_bytes
        inside = sum(steps[0] <= number <= steps[1] for number in self.steps)
        return self.text_bytes * inside // max(len(self.steps), 1)


@dataclass(frozen=True, slots=True)
class Fit:
    """The ranks to write, as places in the list of all; which steps of them (None: all); and what is left out."""

    ranks: tuple[int, ...]
    steps: tuple[int, int] | None
    left_out: str = ""


def fit(
    extents: Sequence[Extent], steps: tuple[int, int] | None, *, fixed_ranks: bool = False,
    limit: int | None = BROWSER_TEXT_BYTES,
) -> Fit:  # fmt: skip
    """What of a job to write, so that a browser holds it: all, else the last steps of all ranks, else fewer ranks.

    Args:
        extents: of all ranks, in order.
        steps: the first and the last of those that were asked for: then none of these is left out.
        fixed_ranks: no rank may be left out.
        limit: bytes of text that are held; None: write all, whatever its size.

    Raises:
        UsageError: no rank has any of ``steps``.
    """
    ranks = tuple(at for at, one in enumerate(extents) if steps is None or one.part(steps))
    if not ranks:
        raise UsageError(f"--steps: no rank has any step of {steps[0]} to {steps[1]}" if steps else "no rank")
    missing = [extents[at].label for at in range(len(extents)) if at not in ranks]
    without = f"without {', '.join(missing)}: no such step" if missing else ""
    size = sum(extents[at].part(steps) for at in ranks)
    if limit is None or size <= limit:
        return Fit(ranks, steps, without)
    chosen = steps if steps else _last_steps([extents[at] for at in ranks], limit)
    kept = ranks if fixed_ranks else _spread(extents, ranks, chosen, limit)
    return Fit(kept, chosen, _told(extents, ranks, Fit(kept, chosen), steps, (size, limit)))


def _last_steps(extents: Sequence[Extent], limit: int) -> tuple[int, int] | None:
    """As many of the last steps that all have as fit, but one at least; None if they have none in common."""
    common = set.intersection(*(set(one.steps) for one in extents))
    if not common:
        return None
    sizes = Counter[int]()
    for one in extents:
        for number in one.steps:
            sizes[number] += -(-one.text_bytes // len(one.steps))  # rounded up, so that no part is larger than its sum
    first = last = max(common)
    inside = 0
    for number in sorted((number for number in sizes if number <= last), reverse=True):
        inside += sizes[number]
        if inside > limit:
            break
        first = number if number in common else first
    return first, last


def _spread(
    extents: Sequence[Extent], ranks: Sequence[int], steps: tuple[int, int] | None, limit: int
) -> tuple[int, ...]:  # fmt: skip
    """As many of ``ranks`` as fit, at even distances, the first among them; one at least."""
    sizes = {at: extents[at].part(steps) for at in ranks}
    for count in range(len(ranks), 1, -1):
        kept = tuple(ranks[index * len(ranks) // count] for index in range(count))
        if sum(sizes[at] for at in kept) <= limit:
            return kept
    return tuple(ranks[:1])


def _told(
    extents: Sequence[Extent], ranks: Sequence[int], kept: Fit, steps: tuple[int, int] | None, size: tuple[int, int]
) -> str:  # fmt: skip
    """One line of what is left out of how much."""
    what = []
    if kept.steps != steps and kept.steps is not None:
        numbers = sorted({number for at in ranks for number in extents[at].steps})
        left = [number for number in numbers if not kept.steps[0] <= number <= kept.steps[1]]
        if left:
            what.append(f"steps {spans(left)}")
    if left_ranks := [extents[at].label for at in ranks if at not in kept.ranks]:
        what.append(_listed(left_ranks))
    room = f"{size[0] / 1e9:.1f} GB of text are more than the {size[1] / 1e9:.1f} GB that a browser holds"
    if not what:
        return f"{room}: augment query opens the file"
    return f"{room}, left out: {' and '.join(what)} (--all takes them in)"


def _listed(labels: Sequence[str]) -> str:
    numbers = [label.removeprefix("rank ") for label in labels]
    if all(number.isdecimal() for number in numbers):
        return f"ranks {spans(sorted(map(int, numbers)))}"
    return ", ".join(labels)
