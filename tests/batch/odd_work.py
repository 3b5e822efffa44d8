"""Work for other processes that is not converting; they import it by name."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from augment.batch.inputs import Input
from augment.batch.results import Result


def dies_of_some(input: Input) -> Result:
    """Work that kills its process when the input is called so, having begun to write."""
    half = Path(input.folder, f".{input.path}.augmented.pftrace.0123456789ab.tmp")
    half.write_bytes(b"half")
    if input.path.startswith("deadly"):
        os.kill(os.getpid(), signal.SIGKILL)
    half.unlink()
    return Result(input.path, "augmented")
