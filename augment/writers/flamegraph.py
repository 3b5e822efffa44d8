"""As ``perfetto``, and time by call stack, of which Perfetto draws a flame graph for each selected area.

On each device the tracks ``GPU time by stack``, ``Idle time by stack`` and ``Exposed communication by stack``.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from augment.core import AugmentedTrace
from augment.writers import perfetto
from augment.writers.seams import Written

NAME = "flamegraph"
SUFFIX = ".augmented.flame.pftrace"


class FlamegraphSeam(perfetto.PerfettoSeam, frozen=True, tag=NAME):
    """As that of the file without them."""

    SUFFIX = SUFFIX


def write_seamed(augmented: AugmentedTrace, path: Path, under: Collection[int] = ()) -> Written:
    """Write the source's events, the annotations and the stacks to ``path``; equal traces give equal files.

    Raises:
        OutputError: ``path`` cannot be written.
    """
    return perfetto.write_as(FlamegraphSeam, augmented, path, under, with_flames=True)
