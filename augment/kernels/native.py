"""Machine code kept on disk: a compiled function without numba's start.

Importing numba and loading from its own cache costs some 0.4 CPU seconds and 80 MB in every process, as much as
reading 200 MB of trace. So numba compiles a function once on a machine, llvmlite (LLVM's binding, which numba brings)
turns its intermediate code into an object file, and later processes load that file alone.

Only functions of int64 (addresses among them) to int64 that raise nothing can be kept like this.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import importlib
import os
import secrets
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from augment.kernels.catalogue import KERNELS

Native = Callable[..., int]
Announce = Callable[[str], None]

_FOLDER = Path(__file__).parent
_known: dict[str, Native] = {}
_kept: list[Any] = []  #: engines own the code that they loaded: as long as the process lives


def native(name: str, announce: Announce = lambda _: None) -> Native:
    """A kernel as machine code; it runs without the GIL.

    Args:
        name: of the catalogue, ``module.function``; the module is imported only if the code is not on disk yet.
        announce: told when the function has to be compiled first.

    Raises:
        ImportError: there is no llvmlite or no numba on this machine.
    """
    if name not in _known:
        _known[name] = _native(name, announce)
    return _known[name]


def _native(name: str, announce: Announce) -> Native:
    import llvmlite.binding as llvm

    _initialize(llvm)
    path = _path(llvm, name)
    code = _kept_code(path)
    if code is None:
        announce("compiling for this machine's processor (some 15 s, once)")
        code = _compile(llvm, name)
        _keep(path, code)
    return _load(llvm, code, name)


def at_hand(name: str) -> bool:
    """Whether :func:`native` would not have to compile."""
    if name in _known:
        return True
    if not any(cache_folder().glob(f"{name}-*.o")):  # asked first: importing LLVM costs 30 ms
        return False
    try:
        import llvmlite.binding as llvm
    except ImportError:
        return False
    _initialize(llvm)
    return _path(llvm, name).exists()


def _path(llvm: Any, name: str) -> Path:
    """Where a kernel's machine code is kept."""
    return cache_folder() / f"{name}-{_digest(llvm)}.o"


def cache_folder() -> Path:
    """Where compiled code is kept: the user's cache folder, whatever can be written of the package's."""
    if named := os.environ.get("KINETO_AUGMENT_CACHE"):
        return Path(named)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "kineto-augment"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kineto-augment"


def _symbol(name: str) -> str:
    return name.replace(".", "_")


@functools.cache
def _digest(llvm: Any) -> str:
    """Of all that the machine code depends on: the package's compiled sources, LLVM, the processor."""
    parts = [llvm.llvm_version_info, llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten(), sys.platform]
    digest = hashlib.sha256(repr(parts).encode())
    for path in compiled_sources():
        digest.update(path.read_bytes())
    return digest.hexdigest()[:20]


def compiled_sources() -> list[Path]:
    """The sources that are compiled, and those whose constants are compiled in, in a fixed order."""
    return sorted(_FOLDER.glob("*.py"))


def _initialize(llvm: Any) -> None:
    with contextlib.suppress(Exception):  # newer versions do it themselves, and say so by raising
        llvm.initialize()
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()


def _compile(llvm: Any, name: str) -> bytes:
    from numba import cfunc, types

    module, function = name.split(".")
    target = getattr(importlib.import_module(f"{__package__}.{module}"), function)
    made = cfunc(types.int64(*[types.int64] * KERNELS[name]))(target.py_func)
    text = made.inspect_llvm().replace(made.native_name, _symbol(name))
    return bytes(_machine(llvm).emit_object(llvm.parse_assembly(text)))


def _machine(llvm: Any) -> Any:
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        opt=3,
        reloc="pic",
        codemodel="jitdefault",
        jit=True,
    )


def _kept_code(path: Path) -> bytes | None:
    """What is on disk, if it is what was written: LLVM ends the process over a damaged object."""
    try:
        digest, code = (data := path.read_bytes())[:32], data[32:]
    except OSError:
        return None
    return code if hashlib.sha256(code).digest() == digest else None


def _keep(path: Path, code: bytes) -> None:
    """Write whole or not at all; where nothing can be written, each process compiles for itself."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
        beside.write_bytes(hashlib.sha256(code).digest() + code)
        beside.replace(path)


def _load(llvm: Any, code: bytes, name: str) -> Native:
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _machine(llvm))
    for symbol in ("numba_gil_ensure", "numba_gil_release", "numba_unpickle", "numba_do_raise", "NRT_Free",
                 "NRT_decref", "NRT_incref", "numba_runtime_build_excinfo_struct"):  # fmt: skip
        # the wrapper names them for exceptions, which these functions do not raise
        llvm.add_symbol(symbol, ctypes.cast(_unreachable, ctypes.c_void_p).value)
    engine.add_object_file(llvm.object_file.ObjectFileRef.from_data(code))
    engine.finalize_object()
    kind = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * KERNELS[name])
    function: Native = kind(engine.get_function_address(_symbol(name)))
    _kept.append(engine)
    return function


@ctypes.CFUNCTYPE(None)
def _unreachable() -> None:
    raise AssertionError("compiled code raised")
