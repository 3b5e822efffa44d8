"""Compares two memory snapshots: what each line of code held at the peak of each device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from augment.compare.diff_rows import HeldRow
from augment.core.findings import Findings, Outcome
from augment.core.text import listed, size
from augment.core.trace import Trace
from augment.errors import UsageError
from augment.facts.memory.held import Held, Holder, Moment, held_memory

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
        pairs = [(next(iter(before.values())), next(iter(after.values())))]
    else:
        pairs = [(before[device], after[device]) for device in sorted(before.keys() & after.keys())]
    if not pairs:
        raise UsageError("no device is in both memory snapshots")
    rows = []
    for first, second in pairs:
        lines = [{holder.name: holder for holder in moment.holders["line"]} for moment in (first, second)]
        for name in dict.fromkeys([*lines[0], *lines[1]]):
            holders = [side.get(name, Holder(name, 0, 0)) for side in lines]
            held, count = [holder.bytes for holder in holders], [holder.count for holder in holders]
            rows.append(HeldRow(second.device, name, held[0], held[1], held[1] - held[0], count[0], count[1]))
    return Findings(sorted(rows, key=lambda row: (-abs(row.delta_bytes), row.device, row.line)))


def _peaks(trace: Trace) -> Mapping[int, Moment]:
    """The peak of each device; the end where there is no history."""
    held = held_memory(trace)
    assert isinstance(held, Held)
    moments = {moment.device: moment for moment in held.moments if moment.what == "end"}
    return moments | {moment.device: moment for moment in held.moments if moment.what == "peak"}


def held_sentences(findings: Outcome) -> list[str]:
    """What grew and shrank most."""
    assert isinstance(findings, Findings)
    said = []
    for word, sign in (("more", 1), ("less", -1)):
        rows = [row for row in findings.rows if sign * row.delta_bytes > 0]
        if rows:
            total = sum(abs(row.delta_bytes) for row in rows)
            most = listed([f"`{row.line}` ({size(abs(row.delta_bytes))})" for row in rows[:_MOST_SAID]])
            said.append(f"{size(total)} {word} are held at the peak, most at {most}.")
    return said or ["At the peak every line of code holds the same."]
