"""Both traces of a comparison in one file, a group of tracks for each: the first steps begin at the same moment.

The control's times are moved for that, by whole nanoseconds; the test's stay what they are. Arrows link the calls that
differ most, in themselves and in the GPU work that they launched themselves, with their partners.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from augment.arrays.types import Int64s
from augment.comparison.core import Pair
from augment.comparison.sequences import ALONE
from augment.derived.source.clock_correction import on_clock
from augment.findings import AugmentedTrace
from augment.trace import Diagnostic
from augment.writers.files import replacing
from augment.writers.perfetto.several import Group, Several
from augment.writers.perfetto.suffixes import Links

SUFFIX = ".diff.overlay.pftrace"
ARROW_COUNT = 100


def write_overlay(
    pair: Pair, drawn: AugmentedTrace, labels: tuple[str, str], path: Path, arrow_count: int = ARROW_COUNT
) -> list[Diagnostic]:
    """Write the overlay to ``path``, in Perfetto's own format.

    Args:
        pair: what was compared.
        drawn: the test with the differences as annotations.
        labels: what to call control and test.
        path: the target.
        arrow_count: how many arrows to draw at most.

    Raises:
        OutputError: ``path`` cannot be written.
    """
    control, test = pair.control, pair.test
    shift = int(test.steps.begin[0]) - int(control.steps.begin[0])
    first = min(int(control.trace.events.ts[0]) + shift, int(test.trace.events.ts[0]))
    lift = max(0, -first)  # Perfetto drops what lies before time 0
    before = on_clock(AugmentedTrace(control.trace, {}), lambda ts: ts + (shift + lift))
    now = on_clock(drawn, lambda ts: ts + lift) if lift else drawn
    partner, chosen = pair.alignment.call_of_test, most_changed(pair, arrow_count)
    ids = np.arange(len(chosen), dtype=np.int64)
    description = f"the control, moved by {shift} ns: the first steps begin together"
    with replacing(path, test.trace.source.path) as file:
        several = Several(file)
        links = Links(control.calls.row[partner[chosen]], ids)
        found = several.add(before, Group(f"control: {labels[0]}", description), links)
        links = Links(test.calls.row[chosen], ids)
        return found + several.add(now, Group(f"test: {labels[1]}", "the test, on its own clock"), links)


def most_changed(pair: Pair, count: int) -> Int64s:
    """The places of the test's calls that differ most from their partners, less what the calls in them do."""
    now, before, partner = pair.test.calls, pair.control.calls, pair.alignment.call_of_test
    met = np.flatnonzero((partner != ALONE) & (now.step >= 0))
    host = now.cpu_self_ns[met] - before.cpu_self_ns[partner[met]]
    gpu = now.gpu_self_ns[met] - before.gpu_self_ns[partner[met]]
    difference = np.maximum(abs(host), abs(gpu))
    order = np.argsort(-difference, kind="stable")[:count]
    return np.sort(met[order[difference[order] > 0]])
