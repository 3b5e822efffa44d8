"""What compiled code is made with: numba's decorator and memory by address.

Addresses, so that compiled code handles scalars alone: each use of an array costs numba atomic reference counts, more
than most tokens take. Importing this module imports numba.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """``function`` compiled by numba into its compiled callers; ``native.py`` makes it callable from Python.

    A call of numba's costs several nanoseconds, which is most of what a JSON token costs: all is one piece of code.
    """
    made: Function = njit(nogil=True, forceinline=True)(function)
    return made


def compiled_apart(function: Function) -> Function:
    """``function`` compiled by numba once, to be called: for what is rare, and would only make its callers large."""
    made: Function = njit(nogil=True)(function)
    return made


def _load(bits: int, result: Any, signed: bool) -> Any:
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


load_byte = _load(8, types.int64, False)  #: the byte at an address
load_word = _load(64, types.uint64, False)  #: the 8 bytes at an address, little-endian, at any alignment
load_int = _load(64, types.int64, False)  #: the int64 at an address
load_int32 = _load(32, types.int64, True)  #: the int32 at an address
store_byte, store_int32, store_int = _store(8), _store(32), _store(64)  #: (address, value)


@intrinsic
def trailing_zeros(typing_context: Any, word: Any) -> Any:
    """How many low bits of the uint64 ``word`` are 0; ``word`` must not be 0."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.uint64(types.uint64), generate
