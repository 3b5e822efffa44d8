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

Native = Callable[..., int]
Announce = Callable[[str], None]

_FOLDER = Path(__file__).parent.parent
_known: dict[tuple[str, str], Native] = {}
_kept: list[Any] = []  #: engines own the code that they loaded: as long as the process lives


def native(module: str, function: str, arity: int, announce: Announce = lambda _: None) -> Native:
    """``module.function``, of ``arity`` int64 arguments, as machine code; it runs without the GIL.

    Args:
        module: a module of this package that imports numba; it is imported only if the code is not on disk yet.
        function: the name of a ``@compiled`` function in it.
        arity: how many arguments it takes.
        announce: told when the function has to be compiled first.

    Raises:
        ImportError: there is no llvmlite or no numba on this machine.
    """
    if (module, function) not in _known:
        _known[module, function] = _native(module, function, arity, announce)
    return _known[module, function]


def _native(module: str, function: str, arity: int, announce: Announce) -> Native:
    import llvmlite.binding as llvm

    _initialize(llvm)
    path = _path(llvm, module, function)
    code = _kept_code(path)
    if code is None:
        announce("compiling for this machine's processor (some 15 s, once)")
        code = _compile(llvm, module, function, arity)
        _keep(path, code)
    return _load(llvm, code, _symbol(module, function), arity)


def at_hand(module: str, function: str) -> bool:
    """Whether :func:`native` would not have to compile."""
    if (module, function) in _known:
        return True
    if not any(cache_folder().glob(f"{_stem(module, function)}-*.o")):  # asked first: importing LLVM costs 30 ms
        return False
    try:
        import llvmlite.binding as llvm
    except ImportError:
        return False
    _initialize(llvm)
    return _path(llvm, module, function).exists()


def _path(llvm: Any, module: str, function: str) -> Path:
    """Where a function's machine code is kept."""
    return cache_folder() / f"{_stem(module, function)}-{_digest(llvm)}.o"


def _stem(module: str, function: str) -> str:
    return f"{module.rpartition('.')[2]}.{function}"


def cache_folder() -> Path:
    """Where compiled code is kept: the user's cache folder, whatever can be written of the package's."""
    if named := os.environ.get("KINETO_AUGMENT_CACHE"):
        return Path(named)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "kineto-augment"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kineto-augment"


def _symbol(module: str, function: str) -> str:
    return f"{module}.{function}".replace(".", "_")


@functools.cache
def _digest(llvm: Any) -> str:
    """Of all that the machine code depends on: the package's compiled sources, LLVM, the processor."""
    parts = [llvm.llvm_version_info, llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten(), sys.platform]
    digest = hashlib.sha256(repr(parts).encode())
    for path in compiled_sources():
        digest.update(path.read_bytes())
    return digest.hexdigest()[:20]


def compiled_sources() -> list[Path]:
    """The package's sources that are compiled, and those whose constants are compiled in, in a fixed order."""
    named = [
        path
        for path in sorted(_FOLDER.rglob("*.py"))
        if path.parent.name == "compiled" or path.stem.startswith("compiled_") or path.stem.endswith("_compiled")
    ]
    return [*named, _FOLDER / "readers" / "dialects.py"]  # its phases


def _initialize(llvm: Any) -> None:
    with contextlib.suppress(Exception):  # newer versions do it themselves, and say so by raising
        llvm.initialize()
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()


def _compile(llvm: Any, module: str, function: str, arity: int) -> bytes:
    from numba import cfunc, types

    target = getattr(importlib.import_module(module), function)
    made = cfunc(types.int64(*[types.int64] * arity))(target.py_func)
    text = made.inspect_llvm().replace(made.native_name, _symbol(module, function))
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


def _load(llvm: Any, code: bytes, symbol: str, arity: int) -> Native:
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _machine(llvm))
    for name in ("numba_gil_ensure", "numba_gil_release", "numba_unpickle", "numba_do_raise", "NRT_Free",
                 "NRT_decref", "NRT_incref", "numba_runtime_build_excinfo_struct"):  # fmt: skip
        # the wrapper names them for exceptions, which these functions do not raise
        llvm.add_symbol(name, ctypes.cast(_unreachable, ctypes.c_void_p).value)
    engine.add_object_file(llvm.object_file.ObjectFileRef.from_data(code))
    engine.finalize_object()
    kind = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * arity)
    function: Native = kind(engine.get_function_address(symbol))
    _kept.append(engine)
    return function


@ctypes.CFUNCTYPE(None)
def _unreachable() -> None:
    raise AssertionError("compiled code raised")
