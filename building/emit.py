"""From kernels to an object file: numba makes intermediate code of each, LLVM one piece of machine code of all.

numba's intermediate code for integers is the same for every 64-bit little-endian platform, so that the target's name is
all that is changed in it. Much of numba that is used here is not documented: its version is pinned.
"""

from __future__ import annotations

import hashlib
import importlib
import multiprocessing
import os
import platform
import re
import sys
from pathlib import Path
from typing import Any

# what numba asks of this machine must not enter the code; it is read once, at import
os.environ |= {
    "NUMBA_CPU_NAME": "x86-64" if platform.machine() in ("x86_64", "AMD64") else "generic",
    "NUMBA_CPU_FEATURES": "",
    "NUMBA_OPT": "0",
}
import llvmlite.binding as llvm
import numba
import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic
from numba.np import arrayobj

from augment.kernels.catalogue import KERNELS
from augment.kernels.native import record_of
from building.targets import TARGETS

DIGEST = "kernels_digest"
_ROOT = Path(__file__).resolve().parents[1]
_CACHE = _ROOT / ".cache" / "kernels"
_OPTIONS = {"nogil": True, "error_model": "numpy", "_nrt": False}
_ENTRY = "DllMainCRTStartup"
#: a DLL without a C runtime has an entry of its own
_WINDOWS_ENTRY = f"define i32 @{_ENTRY}(ptr %a, i32 %b, ptr %c) {{\n  ret i32 1\n}}\n"
_ARGUMENTS = {
    "int64": types.int64,
    "int64[]": types.Array(types.int64, 1, "C"),
    "int32[]": types.Array(types.int32, 1, "C"),
    "uint8[]": types.Array(types.uint8, 1, "C"),
}
_WRAPPER = """
declare void @kernel_raised()
define i64 @{symbol}({parameters}) nounwind {{
  %value = alloca i64
  %error = alloca ptr
  %status = call i32 @"{native}"(ptr %value, ptr %error, {arguments})
  %bad = icmp ne i32 %status, 0
  br i1 %bad, label %raised, label %fine
raised:
  call void @kernel_raised()
  unreachable
fine:
  %result = load i64, ptr %value
  ret i64 %result
}}
"""


def object_file(target: str, digest: str) -> bytes:
    """All kernels as an object file that needs nothing from outside.

    Raises:
        RuntimeError: a kernel does: it can raise (``kernel_raised``), allocates (``NRT_…``), or calls Python.
    """
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    platform_ = TARGETS[target]
    machine = llvm.Target.from_triple(platform_.triple).create_target_machine(
        cpu=platform_.cpu, opt=3, reloc="pic", codemodel="default"
    )
    head = f'target datalayout = "{machine.target_data}"\ntarget triple = "{platform_.triple}"\n'
    constant = f'@{DIGEST} = constant [{len(digest) + 1} x i8] c"{digest}\\00"\n'
    whole = llvm.parse_assembly(head + constant + _WINDOWS_ENTRY * target.startswith("win32"))
    exported = {DIGEST}
    with multiprocessing.Pool(initializer=_use_numba) as pool:  # numba is most of the work
        made = pool.map(_intermediate, KERNELS, chunksize=1)
    for text, symbol in made:
        exported.add(symbol)
        whole.link_in(llvm.parse_assembly(head + re.sub(r"(?m)^target (?:datalayout|triple) = .*\n", "", text)))
    _export(whole, exported, target)
    passes = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=3))
    passes.getModulePassManager().run(whole, passes)
    declared = [function.name for function in whole.functions if function.is_declaration]
    if wanted := [name for name in declared if not name.startswith("llvm.")]:
        raise RuntimeError(f"kernels need {', '.join(wanted)}")
    return bytes(machine.emit_object(whole))


def _export(whole: Any, exported: set[str], target: str) -> None:
    """Keep all but the kernels to the library itself."""
    for symbol in [*whole.functions, *whole.global_variables]:
        if symbol.is_declaration:
            continue
        symbol.linkage = "external" if symbol.name in exported or symbol.name == _ENTRY else "internal"
        if target.startswith("win32") and symbol.name in exported:
            symbol.storage_class = "dllexport"


def _intermediate(kernel: str) -> tuple[str, str]:
    """The intermediate code of a kernel behind a plain C function, and that function's name.

    It is the same for all platforms, and kept in ``.cache`` until a source changes that it is made from.
    """
    symbol = kernel.replace(".", "_")
    kept = _CACHE / f"{kernel}-{_digest(kernel)}.ll"
    if kept.exists():
        return kept.read_text(), symbol
    made = _made(kernel, symbol)
    _CACHE.mkdir(parents=True, exist_ok=True)
    for older in _CACHE.glob(f"{kernel}-*.ll"):
        older.unlink(missing_ok=True)
    partial = kept.with_suffix(f".{os.getpid()}")
    partial.write_text(made)
    partial.replace(kept)
    return made, symbol


def _digest(kernel: str) -> str:
    """Of the sources that a kernel is made from, and of what makes it."""
    digest = hashlib.sha256(f"{kernel} {KERNELS[kernel]} {numba.__version__} {sys.version_info[:2]}".encode())
    digest.update(Path(__file__).read_bytes())
    wanted, known = [kernel.partition(".")[0]], set[str]()
    while wanted:
        module = wanted.pop()
        if module not in known:
            known.add(module)
            wanted += re.findall(r"^from augment\.kernels(?:\.| import )(\w+)", _source(module).decode(), re.MULTILINE)
    for module in sorted(known):
        digest.update(_source(module))
    return digest.hexdigest()[:16]


def _source(module: str) -> bytes:
    return (_ROOT / "augment" / "kernels" / f"{module}.py").read_bytes()


def _made(kernel: str, symbol: str) -> str:
    module, name = kernel.split(".")
    function = getattr(importlib.import_module(f"augment.kernels.{module}"), name).py_func
    kinds = KERNELS[kernel]
    if function.__code__.co_argcount != len(kinds):
        raise RuntimeError(f"{kernel} takes {function.__code__.co_argcount} arguments, the catalogue says {len(kinds)}")
    arguments = [_ARGUMENTS.get(kind) or _record(record_of(kind)) for kind in kinds]
    made = njit(types.int64(*arguments), no_cpython_wrapper=True, no_cfunc_wrapper=True, **_OPTIONS)(function)
    result = made.overloads[tuple(arguments)]
    taken, given = zip(*(_passed(kind, number) for number, kind in enumerate(kinds)), strict=True)
    native = result.fndesc.llvm_func_name
    wrapper = _WRAPPER.format(symbol=symbol, native=native, parameters=", ".join(taken), arguments=", ".join(given))
    code: str = result.library.get_llvm_str()
    return code + wrapper


def _passed(kind: str, number: int) -> tuple[str, str]:
    """What the C function takes for an argument, and what it gives to numba's: of a column its address and length."""
    if not kind.endswith("[]"):
        passed = f"{'i64' if kind == 'int64' else 'ptr'} %a{number}"
        return passed, passed
    width = int(kind.strip("uint[]")) // 8
    shape = f"i64 %n{number}, i64 {width}"
    return f"ptr %a{number}, i64 %n{number}", f"ptr null, ptr null, {shape}, ptr %a{number}, {shape}"


def _record(kind: Any) -> Any:
    return numba.from_dtype(np.dtype(kind))


def _use_numba() -> None:
    """Have the kernels, which are not imported yet, made with numba instead of plain Python."""
    from augment.kernels import memory

    # an index is what it is: to look at each whether it counts from the end costs 10 to 16 % where indexes are data
    arrayobj.fix_integer_index = lambda context, builder, kind, index, _: context.cast(builder, index, kind, types.intp)
    early = {f"augment.kernels.{name}" for name in ("native", "catalogue", "memory")}
    if others := [name for name in sys.modules if name.startswith("augment.kernels.") and name not in early]:
        raise RuntimeError(f"imported as plain Python: {', '.join(others)}")
    made: dict[str, Any] = {
        "compiled": njit(forceinline=True, **_OPTIONS),
        "compiled_apart": njit(**_OPTIONS),
        "load_byte": _load(8, types.int64, signed=False),
        "load_word": _load(64, types.uint64, signed=False),
        "load_int": _load(64, types.int64, signed=True),
        "load_int32": _load(32, types.int64, signed=True),
        "store_byte": _store(8),
        "store_int32": _store(32),
        "store_int": _store(64),
        "record_at": _record_at,
        "as_word": njit(forceinline=True, **_OPTIONS)(_as_word),
        "as_int": njit(forceinline=True, **_OPTIONS)(_as_int),
        "trailing_zeros": _trailing_zeros,
        "quotient_bits": _quotient_bits,
    }
    for name, function in made.items():
        setattr(memory, name, function)


def _load(bits: int, result: Any, *, signed: bool) -> Any:
    def load(typing_context: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            loaded = builder.load(builder.inttoptr(arguments[0], ir.IntType(bits).as_pointer()), align=1)
            if bits == 64:
                return loaded
            return (builder.sext if signed else builder.zext)(loaded, ir.IntType(64))

        return result(types.int64), generate

    return intrinsic(load)


def _store(bits: int) -> Any:
    def store(typing_context: Any, address: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            kind = ir.IntType(bits)
            value = arguments[1] if bits == 64 else builder.trunc(arguments[1], kind)
            builder.store(value, builder.inttoptr(arguments[0], kind.as_pointer()), align=1)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), generate

    return intrinsic(store)


def _record_at(kind: Any) -> Any:
    made = _record(kind)

    def at(typing_context: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], context.get_value_type(made))

        return made(types.int64), generate

    return intrinsic(at)


def _as_word(value: Any) -> Any:
    return types.uint64(value)


def _as_int(value: Any) -> Any:
    return types.int64(value)


@intrinsic
def _trailing_zeros(typing_context: Any, word: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.uint64(types.uint64), generate


@intrinsic
def _quotient_bits(typing_context: Any, dividend: Any, divisor: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        left, right = (builder.sitofp(argument, ir.DoubleType()) for argument in arguments)
        return builder.bitcast(builder.fdiv(left, right), ir.IntType(64))

    return types.int64(types.int64, types.int64), generate
