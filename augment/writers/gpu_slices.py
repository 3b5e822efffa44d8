"""As ``perfetto``, and the GPU work once more as render stages, for Perfetto's table ``gpu_slice`` and pages on GPUs.

The file is up to half as large again. What reads it leaves the repetition out.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from augment.core import AugmentedTrace
from augment.writers import perfetto
from augment.writers.seams import Written

NAME = "gpu_slices"
SUFFIX = ".augmented.gpu.pftrace"


class GpuSlicesSeam(perfetto.PerfettoSeam, frozen=True, tag=NAME):
    """As that of the file without them."""

    SUFFIX = SUFFIX


def write_seamed(augmented: AugmentedTrace, path: Path, under: Collection[int] = ()) -> Written:
    """Write the source's events, the annotations and the stages to ``path``; equal traces give equal files.

    Raises:
        OutputError: ``path`` cannot be written.
    """
    return perfetto.write_as(GpuSlicesSeam, augmented, path, under, with_stages=True)
