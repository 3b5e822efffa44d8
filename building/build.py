"""Builds the library where it is lacking or older than the kernels, once at a time."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from augment.kernels.native import digest, is_current, own_target
from building.link import link
from building.targets import TARGETS, library_name

ROOT = Path(__file__).resolve().parents[1]
KERNELS = ROOT / "augment" / "kernels"


def build(target: str) -> Path:
    """The library of a platform, built if need be: beside the kernels that of this machine, else in ``.cache``."""
    if target not in TARGETS:
        raise SystemExit(f"no kernels for {target}; there are some for {', '.join(TARGETS)}")
    folder = KERNELS if target == own_target() else ROOT / ".cache" / "kernels" / target
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / library_name(target)
    with _alone(folder / ".kernels.lock"):
        if not is_current(library, target):  # by now: another process may have built it meanwhile
            # a process of its own: numba reads its settings once, and kernels are imported as Python here
            command = [sys.executable, str(Path(__file__).parent), target, str(library)]
            if code := subprocess.run(command, check=False).returncode:
                raise SystemExit(code)  # it has said why
    return library


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Wait until no other process is here."""
    with path.open("a+b") as file:
        if sys.platform == "win32":
            import msvcrt

            file.seek(0)
            msvcrt.locking(file.fileno(), msvcrt.LK_LOCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main(arguments: list[str]) -> None:
    """``[TARGET]``; what :func:`build` itself runs has the library's place besides."""
    if len(arguments) == 2:
        from building.emit import object_file

        link(object_file(arguments[0], digest(arguments[0])), arguments[0], Path(arguments[1]))
    else:
        sys.stdout.write(f"{build(*arguments or [own_target()])}\n")
