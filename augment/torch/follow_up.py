"""The process that augments a trace for a training process: ``python -m augment.torch.follow_up TRACE ARGUMENT…``.

It lowers its own priority, waits for its turn on this machine, compresses the trace, and runs ``augment run``.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from augment.core.output_files import replacing
from augment.writers.compression import GzipWriter

PRIORITY = 19  #: the lowest, whatever the training's


def main(arguments: Sequence[str] | None = None) -> int:
    """Augment the trace; the exit code is that of ``augment run``."""
    parser = argparse.ArgumentParser(prog="augment.torch.follow_up")
    parser.add_argument("--remove-source", action="store_true")
    parser.add_argument("trace", type=Path)
    parser.add_argument("more", nargs=argparse.REMAINDER, metavar="ARGUMENT")
    given = parser.parse_args(arguments)
    if hasattr(os, "setpriority"):
        os.setpriority(os.PRIO_PROCESS, 0, PRIORITY)
    with turn():
        trace = compressed(given.trace)
        command = [sys.executable, "-m", "augment", "run", str(trace), "-o", str(trace.parent), "--quiet", *given.more]
        code = subprocess.run(command, check=False).returncode
    if why := killed_by(code):
        sys.stderr.write(f"{why}\n")
        return 128 - code
    if code == 0 and given.remove_source:
        trace.unlink(missing_ok=True)
    return code


def killed_by(code: int) -> str:
    """What ended a process, of the code that :mod:`subprocess` gives it; empty if it ended by itself."""
    if code >= 0:
        return ""
    why = "; the kernel does this where memory is short" if -code == signal.SIGKILL else ""
    return f"killed by {signal.Signals(-code).name}{why}"


@contextlib.contextmanager
def turn() -> Iterator[None]:
    """While no other process of this user on this machine is in here: memory is needed once, not once for each rank."""
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    with open(turn_file(), "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def turn_file() -> Path:
    """The file whose lock is the turn."""
    return Path(tempfile.gettempdir(), f"augment-{os.getuid()}.turn")


def compressed(trace: Path) -> Path:
    """The trace as gzip, in place of the plain file; the file itself if it is gzip, or that cannot be written."""
    if trace.suffix == ".gz":
        return trace
    target = trace.with_name(f"{trace.name}.gz")
    try:
        with open(trace, "rb") as source, replacing(target) as file:
            writer = GzipWriter(file)
            shutil.copyfileobj(source, writer, 1 << 20)
            writer.finish()
    except Exception as error:
        sys.stderr.write(f"augment: {trace}: not compressed: {error}\n")
        return trace
    trace.unlink()
    return target


if __name__ == "__main__":
    sys.exit(main())
