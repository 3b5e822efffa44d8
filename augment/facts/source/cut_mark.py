"""The mark in a file that ``augment cut`` wrote: which part of the recording was kept, and what was left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from augment.core import Diagnostic, Trace

MEMBER = "augmentCut"  #: a member of the outer object
_HARMLESS = frozenset(("python_function",))  #: categories that no cause of waiting depends on


def mark(
    members: Mapping[str, Any],
    steps: tuple[int, int] | None = None,
    period_ms: tuple[float, float] | None = None,
    dropped: Sequence[str] = (),
    rank: int | None = None,
    limits_ns: tuple[int, int] | None = None,
) -> dict[str, Any]:
    """The member's value. ``members`` are those of the source, which may itself be a cut file. ``rank`` is the rank
    that was kept of a file with several; ``limits_ns`` is the kept period on the clock of the events.
    """
    earlier = members.get(MEMBER)
    names = [*(_dropped(earlier) if isinstance(earlier, dict) else ()), *dropped]
    limits = limits_of(members) or limits_ns
    if limits and limits_ns:  # the time that lies in both periods
        limits = max(limits[0], limits_ns[0]), min(limits[1], limits_ns[1])
    given = {
        "steps": steps and list(steps),
        "time_ms": period_ms and list(period_ms),
        "limits_ns": limits and list(limits),
        "dropped": names,
    }
    rank = rank_kept(members) if rank is None else rank
    return {name: value for name, value in given.items() if value} | ({} if rank is None else {"rank": rank})


def rank_kept(members: Mapping[str, Any]) -> int | None:
    """The rank that was kept of a file with several; None if the file is not such a part."""
    mark = members.get(MEMBER)
    rank = mark.get("rank") if isinstance(mark, dict) else None
    return rank if isinstance(rank, int) and 0 <= rank < 1 << 31 else None


def cut_text(members: Mapping[str, Any]) -> str | None:
    """A description of the part of a recording in a file: ``steps 3 to 5, without cpu_op``. None if the file is not a
    part. The whole recording of one of several ranks is not a part.
    """
    mark = members.get(MEMBER)
    if not isinstance(mark, dict) or mark.keys() == {"rank"}:
        return None
    parts = [f"rank {rank}"] if (rank := rank_kept(members)) is not None else []
    if (steps := _two(mark.get("steps"))) is not None:
        parts.append(f"step {steps[0]}" if steps[0] == steps[1] else f"steps {steps[0]} to {steps[1]}")
    if (period := _two(mark.get("time_ms"))) is not None:
        parts.append(f"{period[0]:g} to {period[1]:g} ms")
    if dropped := _dropped(mark):
        parts.append(f"without {', '.join(dropped)}")
    return ", ".join(parts) or "a part"


def lacks_causes(members: Mapping[str, Any]) -> bool:
    """Whether events that causes depend on, such as launches, were left out."""
    mark = members.get(MEMBER)
    return isinstance(mark, dict) and not _HARMLESS.issuperset(_dropped(mark))


def is_period(members: Mapping[str, Any]) -> bool:
    """Whether earlier or later times were cut off, so that the events that limit those times are unknown."""
    mark = members.get(MEMBER)
    return isinstance(mark, dict) and bool(mark.get("steps") or mark.get("time_ms"))


def limits_of(members: Mapping[str, Any]) -> tuple[int, int] | None:
    """The period that was kept, ns on the clock of the events: slices at its ends were kept whole and reach beyond it,
    but what else happened there is not in the file. None if no period was cut out.
    """
    mark = members.get(MEMBER)
    limits = _two(mark.get("limits_ns")) if isinstance(mark, dict) else None
    return (int(limits[0]), int(limits[1])) if limits is not None and limits[0] < limits[1] else None


def marked(trace: Trace, value: Mapping[str, Any]) -> Trace:
    """The trace with the mark."""
    source = replace(trace.source, metadata={**trace.source.metadata, MEMBER: dict(value)})
    return replace(trace, source=source, diagnostics=(*trace.diagnostics, *diagnostics(source.metadata)))


def diagnostics(members: Mapping[str, Any]) -> list[Diagnostic]:
    """Diagnostics of a part of a recording."""
    if not (part := cut_text(members)):
        return []
    message = f"a part of a recording, by augment cut: {part}; what the device still had to do then has no launch"
    return [Diagnostic("cut", 1, message)]


def _dropped(mark: dict[str, Any]) -> list[str]:
    names = mark.get("dropped")
    return [str(name) for name in names] if isinstance(names, list) else []


def _two(value: Any) -> tuple[float, float] | None:
    numbers = [number for number in value if isinstance(number, (int, float))] if isinstance(value, list) else []
    return (numbers[0], numbers[1]) if len(numbers) == 2 else None
