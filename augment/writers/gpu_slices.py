"""As ``perfetto``, and the GPU work once more as render stages, for Perfetto's table ``gpu_slice`` and pages on GPUs.

The file is up to half as large again. What reads it leaves the repetition out.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from augment.core.findings import AugmentedTrace
from augment.core.trace import Diagnostic
from augment.writers import perfetto
from augment.writers.files import copy_bytes
from augment.writers.perfetto.added import Room
from augment.writers.seams import Addable, Seam, Written

NAME = "gpu_slices"
SUFFIX = ".augmented.gpu.pftrace"


class GpuSlicesSeam(Seam, frozen=True, tag=NAME):
    """As that of the file without them."""

    SUFFIX = SUFFIX

    shift_ns: int
    room: Room

    def with_tracks(self, old: BinaryIO, new: BinaryIO, annotations: Sequence[Addable]) -> None:
        """See :meth:`Seam.with_tracks`."""
        copy_bytes(old, new, self.at)
        perfetto.add(new, self.room, self.shift_ns, annotations)


def write(augmented: AugmentedTrace, path: Path) -> list[Diagnostic]:
    """Write the source's events, the annotations and the stages to ``path``; equal traces give equal files.

    Raises:
        OutputError: ``path`` cannot be written.
    """
    return write_seamed(augmented, path).diagnostics


def write_seamed(augmented: AugmentedTrace, path: Path) -> Written:
    """As :func:`write`, and returns what is needed to add tracks to the file."""
    return perfetto.write_with_stages(augmented, path, GpuSlicesSeam)
