"""The library of the kernels: machine code that is built with the package and lies beside this file.

In a checkout (``building/`` lies beside ``augment/``) the library is rebuilt when its sources have changed.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from augment.kernels.catalogue import KERNELS

_RECORDS = (ctypes.Structure, ctypes.Array)
_bytes_of = ctypes.c_char.from_buffer
_FOLDER = Path(__file__).parent
_BUILDING = _FOLDER.parents[1] / "building"
_NAME = {"win32": "kernels.dll", "darwin": "kernels.dylib"}.get(sys.platform, "kernels.so")


class Kernel:
    """A kernel of the catalogue as machine code. It runs without the GIL."""

    def __init__(self, name: str) -> None:
        import numpy as np

        kinds = KERNELS[name]
        self._name = name
        self._kinds = [(kind, np.dtype(kind[:-2]) if kind.endswith("[]") else None) for kind in kinds]
        self.function = getattr(_library(), name.replace(".", "_"))
        self.function.argtypes = [ctypes.c_int64] * (len(kinds) + sum(kind.endswith("[]") for kind in kinds))
        self.function.restype = ctypes.c_int64

    def __call__(self, *arguments: Any) -> int:
        """Run it."""
        return self.prepared(*arguments)()

    def prepared(self, *arguments: Any) -> Callable[[], int]:
        """A call that may be repeated, for which addresses are taken once. The caller keeps the arguments."""
        flat: list[int] = []
        for (kind, dtype), argument in zip(self._kinds, arguments, strict=True):
            if kind == "int64":
                flat.append(argument)
            elif dtype is not None:
                if argument.dtype != dtype or argument.ndim != 1 or not argument.flags.c_contiguous:
                    raise TypeError(f"{self._name} takes a contiguous {kind}, not {argument.dtype} {argument.shape}")
                flat += address(argument), len(argument)
            elif type(argument) is record_of(kind):
                flat.append(address(argument))
            else:
                raise TypeError(f"{self._name} takes a {kind}, not {argument!r}")
        return functools.partial(self.function, *flat)


def native(name: str) -> Kernel:
    """A kernel of the catalogue.

    Raises:
        ImportError: no library fits the sources, and none can be built.
    """
    return _native(name)


@functools.cache
def _native(name: str) -> Any:
    kernel = Kernel(name)
    return kernel.function if set(KERNELS[name]) == {"int64"} else kernel


@functools.cache
def record_of(kind: str) -> Any:
    """The record that the catalogue calls ``module.Class``."""
    module, name = kind.split(".")
    return getattr(importlib.import_module(f"augment.kernels.{module}"), name)


@functools.cache
def _library() -> ctypes.CDLL:
    path = _FOLDER / _NAME
    if _BUILDING.is_dir() and not is_current(path, own_target()):
        import subprocess

        sys.stderr.write("augment: the kernels changed and are built again (some 20 s)\n")
        command = [sys.executable, str(_BUILDING)]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        if done.returncode:
            why = (done.stderr.strip().splitlines() or ["?"])[-1]
            raise ImportError(f"the kernels are older than their sources: {' '.join(command)} fails: {why}")
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise ImportError(f"the kernels cannot be loaded; install the wheel of this platform: {error}") from error


def address(memory: Any) -> int:
    """The address of an array without gaps or of a record, which the caller keeps while a kernel may use it.

    All memory that kernels touch is the library's own or such memory; tests check it (``tests/support/oracles.py``).
    """
    return _address(memory)


def _address(memory: Any) -> int:
    try:
        return ctypes.addressof(_bytes_of(memory))  # a tenth of the time of what follows
    except (TypeError, ValueError, BufferError):  # read-only, or empty
        return ctypes.addressof(memory) if isinstance(memory, _RECORDS) else int(memory.ctypes.data)


def own_target() -> str:
    """The name of this machine's platform."""
    machine = platform.machine().lower()
    return f"{sys.platform}-{'amd64' if sys.platform == 'win32' and machine == 'x86_64' else machine}"


def is_current(library: Path, target: str) -> bool:
    """Whether a library was built from the current sources."""
    return library.exists() and digest(target).encode() in library.read_bytes()


def digest(target: str) -> str:
    """The digest of all sources of a platform's library."""
    made = hashlib.sha256(target.encode())
    for path in sorted(_FOLDER.glob("*.py")) + sorted(_BUILDING.glob("*.py")):
        made.update(path.name.encode() + b"\0" + path.read_bytes())
    return made.hexdigest()
