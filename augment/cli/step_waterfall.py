"""Where the rest of the MFU went, as lines for people: the parts of the steps, largest first, with their operators."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from augment.core.text import counted
from augment.results.sidecars import in_steady_steps

_DEVICES = 4  #: maximum number of devices shown
_OPERATORS = 3  #: maximum number of operators named for a part
_LONGEST = 40  #: maximum characters of an operator's name
_LEAST = 0.0005  #: share of the step time; smaller parts are left out
#: for a part: the bound of the operators that cause it, and the column with the time they contribute
_CAUSES = {
    "below peak": ("compute", "lost_ns"),
    "memory-bound": ("memory", "time_ns"),
    "small kernels": ("latency", "time_ns"),
}


def waterfall(sidecar: Mapping[str, Any]) -> Iterator[str]:
    """The lines of a sidecar: nothing without ``step_efficiency``, a reason without an MFU."""
    steps = in_steady_steps(sidecar, "step_efficiency")
    operators = sidecar["analyses"].get("roofline", {}).get("rows", [])
    devices = list(dict.fromkeys((row["rank"], row["device"]) for row in steps))
    for rank, device in devices[:_DEVICES]:
        windows = [row for row in steps if (row["rank"], row["device"]) == (rank, device)]
        parts = [row for row in operators if (row["rank"], row["device"]) == (rank, device)]
        yield from _of_device(windows, parts, f" of device {device}" if len(devices) > 1 else "")
    if len(devices) > _DEVICES:
        yield f"  … and {counted(len(devices) - _DEVICES, 'more device')}"


def _of_device(steps: Sequence[Mapping[str, Any]], operators: Sequence[Mapping[str, Any]], of: str) -> Iterator[str]:
    from augment.analyses.step_efficiency import SAID

    wall = sum(row["wall_ns"] for row in steps)
    if not wall:
        return
    ratios = [row["mfu_ratio"] for row in steps]
    if None in ratios:
        yield f"  no MFU{of}: {next(row['lacking'] for row in steps)}"
        return
    mfu = sum(row["mfu_ratio"] * row["wall_ns"] for row in steps) / wall
    hfu = sum(row["hfu_ratio"] * row["wall_ns"] for row in steps) / wall
    shares = {said: sum(row[f"{part}_ns"] for part in parts for row in steps) / wall for said, parts in SAID.items()}
    shares["recomputation"] = hfu - mfu
    yield f"  MFU{of} {100 * mfu:.1f} % ({counted(len(steps), 'step')}; {steps[0]['peak']}); the rest, in points:"
    for said, share in sorted(shares.items(), key=lambda item: -item[1]):
        if share >= _LEAST:
            names = _operators(operators, said)
            yield f"    {100 * share:5.1f}  {said}" + (f": {', '.join(names)}" if names else "")


def _operators(rows: Sequence[Mapping[str, Any]], said: str) -> list[str]:
    """The operators that cause most of a part, by name."""
    if said not in _CAUSES:
        return []
    bound, amount = _CAUSES[said]
    spent: dict[str, int] = {}
    for row in rows:
        if row["bound"] == bound:
            spent[row["operator"]] = spent.get(row["operator"], 0) + row[amount]
    largest = sorted(spent, key=lambda name: -spent[name])[:_OPERATORS]
    return [name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…" for name in largest]
