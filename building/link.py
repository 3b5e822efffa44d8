"""From an object file to a shared library, by Zig's linker: the machine needs none of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from building.targets import TARGETS


def link(object_file: bytes, target: str, library: Path) -> None:
    """Write the library, which appears as a whole.

    Raises:
        subprocess.CalledProcessError: the object needs something from outside, as memset may be, which LLVM makes of
            loops, or there is no linker.
    """
    platform = TARGETS[target]
    with tempfile.TemporaryDirectory(dir=library.parent, prefix=".kernels-") as folder:
        made, source = Path(folder, library.name), Path(folder, "kernels.o")
        source.write_bytes(object_file)
        command = [sys.executable, "-m", "ziglang", "cc", "-target", platform.zig, "-shared", "-nostdlib", "-s"]
        caches = {name: os.environ.get(name, folder) for name in ("ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR")}
        command += [*platform.options, "-o", str(made), str(source)]
        subprocess.run(command, check=True, env={**os.environ, **caches})
        made.replace(library)
