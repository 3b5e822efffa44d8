"""How much of a job a browser can hold, and what to leave out of a larger one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from msgspec import Struct

from augment.batch.selection import spans
from augment.errors import UsageError

#: bytes of Kineto's text that fit into the 4 GB of Perfetto's 32-bit engine, which most browsers run; measured with
#: engine v52: 2.3 bytes of memory per byte of text, and a sixth more for what augment adds
BROWSER_TEXT_BYTES = 1_600_000_000


class Extent(Struct, frozen=True):
    """The size of a rank: the length of its text, and the numbers of its steps."""

    label: str
    text_bytes: int
    steps: tuple[int, ...]

    def part(self, steps: tuple[int, int] | None) -> int:
        """Estimated bytes of text in ``steps``, as if all steps were of equal size."""
        if steps is None:
            return self.text_bytes
        inside = sum(steps[0] <= number <= steps[1] for number in self.steps)
        return self.text_bytes * inside // max(len(self.steps), 1)


class BrowserFit(Struct, frozen=True):
    """The part of a job to write: indexes of the ranks, the range of steps (None: all), and what is left out."""

    ranks: tuple[int, ...]
    steps: tuple[int, int] | None
    left_out: str = ""


def fit(
    extents: Sequence[Extent],
    steps: tuple[int, int] | None,
    *,
    fixed_ranks: bool = False,
    limit: int | None = BROWSER_TEXT_BYTES,
) -> BrowserFit:
    """Choose what a browser can hold: all of the job, else the last steps of all ranks, else fewer ranks.

    Args:
        extents: the sizes of all ranks, in order.
        steps: the first and last step requested; none of these is left out.
        fixed_ranks: keep all ranks.
        limit: bytes of text that fit; None: write everything.

    Raises:
        UsageError: no rank has any of ``steps``.
    """
    ranks = tuple(at for at, extent in enumerate(extents) if steps is None or extent.part(steps))
    if not ranks:
        raise UsageError(f"--steps: no rank has {_steps_text(*steps)}" if steps else "no rank")
    missing = [extents[at].label for at in range(len(extents)) if at not in ranks]
    without = f"without {', '.join(missing)}: no such step" if missing else ""
    size = sum(extents[at].part(steps) for at in ranks)
    if limit is None or size <= limit:
        return BrowserFit(ranks, steps, without)
    chosen = steps if steps else _last_steps([extents[at] for at in ranks], limit)
    kept = ranks if fixed_ranks else _spread(extents, ranks, chosen, limit)
    return BrowserFit(kept, chosen, _left_out(extents, ranks, BrowserFit(kept, chosen), steps, (size, limit)))


def _last_steps(extents: Sequence[Extent], limit: int) -> tuple[int, int] | None:
    """The largest range of last common steps that fits, at least one step; None if the ranks share no step."""
    common = set.intersection(*(set(extent.steps) for extent in extents))
    if not common:
        return None
    sizes = Counter[int]()
    for extent in extents:
        for number in extent.steps:
            # rounded up: no part is larger than its sum
            sizes[number] += -(-extent.text_bytes // len(extent.steps))
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
) -> tuple[int, ...]:
    """As many of ``ranks`` as fit, evenly spaced, with the first; at least one."""
    sizes = {at: extents[at].part(steps) for at in ranks}
    for count in range(len(ranks), 1, -1):
        kept = tuple(ranks[index * len(ranks) // count] for index in range(count))
        if sum(sizes[at] for at in kept) <= limit:
            return kept
    return tuple(ranks[:1])


def _left_out(
    extents: Sequence[Extent],
    ranks: Sequence[int],
    kept: BrowserFit,
    steps: tuple[int, int] | None,
    size: tuple[int, int],
) -> str:
    """One line that says what is left out, and why."""
    what = []
    if kept.steps != steps and kept.steps is not None:
        numbers = sorted({number for at in ranks for number in extents[at].steps})
        left = [number for number in numbers if not kept.steps[0] <= number <= kept.steps[1]]
        if left:
            what.append(f"steps {spans(left)}")
    if left_ranks := [extents[at].label for at in ranks if at not in kept.ranks]:
        what.append(_ranks_text(left_ranks))
    room = f"{size[0] / 1e9:.1f} GB of text are more than the {size[1] / 1e9:.1f} GB that a browser holds"
    if not what:
        return f"{room}: augment query opens the file"
    return f"{room}, left out: {' and '.join(what)} (--all includes them)"


def _ranks_text(labels: Sequence[str]) -> str:
    numbers = [label.removeprefix("rank ") for label in labels]
    if all(number.isdecimal() for number in numbers):
        return f"ranks {spans(sorted(map(int, numbers)))}"
    return ", ".join(labels)


def _steps_text(first: int, last: int) -> str:
    return f"step {first}" if first == last else f"any step of {first} to {last}"
