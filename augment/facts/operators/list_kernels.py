"""What the kernels of operators over lists of tensors move, by their names.

A trace has the shapes of such lists, but no types. The names of the kernels have them: ``CatArrayBatchedCopy<float,
…>`` copies floats, ``multi_tensor_apply_kernel<…, BinaryOpListAlphaFunctor<float, 2, 2, 0>, …>`` reads two lists of
floats and writes one. The functors' parameters are those of PyTorch's ``ForeachFunctors.cuh``,
``fused_adam_utils.cuh`` and ``FusedSgdKernel.cu``.
"""

from __future__ import annotations

import re

import numpy as np
from msgspec import Struct

from augment.arrays.types import Int64s
from augment.core.context import derived
from augment.core.trace import Trace
from augment.facts.gpu.gpu_work import gpu_work
from augment.facts.gpu.work_operators import work_operators
from augment.facts.names.kernel_types import KernelType
from augment.facts.names.matching import strings_where
from augment.facts.operators.operator_calls import TYPES

_OPERATOR = re.compile(r"aten::(_?cat|_foreach_\w+|_fused_(adam|adamw|sgd)_)")
_NUMBER = r"(?:at::native::)?(?:\(anonymous namespace\)::)?(OpaqueType<\d+u?>|c10::\w+(?:<\w+>)?|(?:un)?signed \w+|\w+)"
_CAT = re.compile(rf"\bCatArrayBatchedCopy\w*<{_NUMBER},")
_FUNCTOR = re.compile(rf"\bmulti_tensor_apply_kernel<.*?\b(\w+)Functor<{_NUMBER}, (?:(?!\d){_NUMBER}, )?(.*?)>")
_MAPS = re.compile(r"(Unary|Binary|Pointwise|Ternary)Op(List|ListAlpha|Scalar|ScalarList|ScalarTensor)?|Copy")
_STEPS = ("FusedAdamMath", "FusedSgdMath")
_BESIDE = re.compile(r"\blpnorm_cleanup<")  #: finishes what another kernel began, and moves next to nothing


class ListKernels(Struct, frozen=True):
    """Operators over lists of tensors that launched computation.

    Equal-length columns: ``row`` int64, ascending, of the operator; ``element_bytes`` int64, the bytes that its kernels
    read and write for each element of a list, 0 where their names do not tell; ``ns`` int64, the durations of its
    kernels added.
    """

    row: Int64s
    element_bytes: Int64s
    ns: Int64s


@derived(until="operations")
def list_kernels(trace: Trace) -> ListKernels:
    """The operators over lists of tensors, and what their kernels move."""
    work = gpu_work(trace)
    is_list = strings_where(trace, _OPERATOR.fullmatch)
    if not is_list.any():
        return ListKernels(*(np.empty(0, np.int64) for _ in range(3)))
    operator = work_operators(trace)
    places = np.flatnonzero((operator >= 0) & (work.type == KernelType.COMPUTATION))
    places = places[is_list[trace.events.name[operator[places]]]]
    row, which = np.unique(operator[places], return_inverse=True)
    codes, code = np.unique(trace.events.name[work.row[places]], return_inverse=True)
    known = [bytes_of_element(trace.strings[code]) for code in codes.tolist()]
    moved = np.array([-1 if size is None else size for size in known], np.int64)[code]
    ns = np.zeros(len(row), np.int64)
    np.add.at(ns, which, work.end[places] - work.ts[places])
    moves = moved >= 0
    least, most = np.full(len(row), np.iinfo(np.int64).max), np.zeros(len(row), np.int64)
    np.minimum.at(least, which[moves], moved[moves])
    np.maximum.at(most, which[moves], moved[moves])
    return ListKernels(row, np.where(least == most, most, 0), ns)


def bytes_of_element(kernel: str) -> int | None:
    """The bytes that a kernel of that name moves for each element of a list; 0: its name does not tell; None: it moves
    no elements.
    """
    if _BESIDE.search(kernel):
        return None
    if match := _CAT.search(kernel):
        return 2 * _width(match[1])
    if not (match := _FUNCTOR.search(kernel)):
        return 0
    functor, number, other, rest = match[1], _width(match[2]), match[3], match[4]
    depths = [int(text) for text in rest.split(", ") if text.isdecimal()]
    if functor in _STEPS and depths:  # all lists are read, all but the gradients written
        return (2 * depths[0] - 1) * number
    if functor == "Zero":
        return number
    if functor == "LpNorm":
        return number
    if not _MAPS.fullmatch(functor) or len(depths) != 3:
        return 0
    if other:
        return number + _width(other) if functor == "Copy" and number and _width(other) else 0
    return (depths[1] + 1) * number


def _width(number: str) -> int:
    """The bytes of an element of a type as kernels' names have it; 0 if unknown."""
    if opaque := re.fullmatch(r"OpaqueType<(\d+)u?>", number):
        return int(opaque[1])
    return TYPES.get(number, ("", 0))[1]
