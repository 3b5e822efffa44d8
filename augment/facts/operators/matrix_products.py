"""The sizes of matrix products, whether they fit the tiles of matrix units, and whether they could have used such."""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from msgspec import Struct

from augment.arrays import NO_INDEX, Bools, Bytes, Int64s, WorkIndexes
from augment.core import SparseColumn, Trace, derived
from augment.core.text import Words, percent
from augment.facts import gpu, names, source
from augment.facts.operators.formulas_products import CONVOLUTION
from augment.facts.operators.operator_calls import TYPES, Call
from augment.facts.operators.operator_work import operator_work, work_families
from augment.facts.operators.peaks import Peak, capability_of, device_peaks

MULTIPLE, TILE = 8, 64  #: sizes that 16-bit products need for matrix units; sizes that fill them well
SMALLEST = 16  #: sizes below are vectors, not matrices
_TENSORS = {"aten::mm": (0, 1), "aten::bmm": (0, 1), "aten::addmm": (1, 2), "aten::baddbmm": (1, 2)}
_FORWARD = ("conv1d", "conv2d", "conv3d", "convolution", "_convolution", "cudnn_convolution")
#: the places of the input and the weight
_CONVOLUTIONS = {
    **{f"aten::{name}": (0, 1) for name in _FORWARD},
    "aten::convolution_backward": (1, 2),
    "aten::cudnn_convolution_backward": (0, 2),
}


def sizes_text(call: Call) -> str:
    """The shapes of the two factors of a product that has :func:`sizes_of`."""
    return " × ".join("x".join(map(str, call.dims[place])) for place in _TENSORS[call.operator])


def sizes_of(call: Call) -> tuple[int, ...]:
    """Rows, columns and the sum's length, of both factors; of a batch its number does not matter. Empty if unknown."""
    tensors = _TENSORS.get(call.operator)
    if tensors is None or not all(call.has(place) for place in tensors):
        return ()
    first, second = (call.dims[place][-2:] for place in tensors)
    return (*first, *second)


def unfit_sizes(call: Call) -> int:
    """Which sizes of a product of matrices are no multiples of :data:`MULTIPLE`: the sum of 1 for its rows, 2 for the
    sum's length, 4 for its columns; 0 also if they are unknown."""
    sizes = sizes_of(call)
    if not sizes or min(sizes) < SMALLEST:
        return 0
    return sum((size % MULTIPLE > 0) << place for place, size in enumerate((sizes[0], sizes[1], sizes[3])))


@derived(until="diagnosis")
def plain_products(trace: Trace) -> Bools:
    """Whether each piece of GPU work is of a product of FP32 matrices, by the shapes and types of its operator."""
    work = operator_work(trace)
    kinds = zip(work.calls, work.works, strict=True)
    plain = [made.number == "fp32" and min(sizes_of(call), default=0) >= SMALLEST for call, made in kinds]
    of_work: Bools = np.append(np.array(plain, np.bool_)[work.kind], False)[work.owner]  # -1 reads the last entry
    return of_work


def in_narrow_groups(trace: Trace, places: WorkIndexes) -> Bools:
    """Whether each of the GPU work at ``places`` is of a convolution whose groups have fewer than :data:`MULTIPLE`
    channels, as depthwise ones; not where no shapes were recorded."""
    work = operator_work(trace)
    if not len(work) or not work.recorded:
        return np.zeros(len(places), np.bool_)
    narrow = np.array([_is_narrow(call) for call in work.calls], np.bool_)
    owner = work.owner[places]
    groups: Bools = (owner >= 0) & narrow[work.kind[np.maximum(owner, 0)]]
    return groups


def _is_narrow(call: Call) -> bool:
    places = _CONVOLUTIONS.get(call.operator, ())
    if not places or not all(call.has(place) and len(call.dims[place]) > 2 for place in places):
        return False
    channels, of_group = (call.dims[place][1] for place in places)
    return bool(of_group < min(channels, MULTIPLE))


class TileFit(Struct, frozen=True):
    """How much of the time of products has sizes that fit matrix units: shares of the time of those with known sizes
    (no convolutions) that are multiples of :data:`MULTIPLE` and :data:`TILE`; ``known_ratio`` is their share of all."""

    shapes_recorded: bool
    multiple_ratio: float | None = None
    tile_ratio: float | None = None
    all_fit: bool = False
    known_ratio: float = 1.0

    def text(self, words: Words) -> str:
        """The same in words."""
        if not self.shapes_recorded:
            return f"{words.shapes} would tell whether their sizes fit matrix units"
        if self.multiple_ratio is None or self.tile_ratio is None:
            return "no sizes of matrix products are known (those of convolutions are not looked at)"
        fits, fills = percent(self.multiple_ratio), percent(self.tile_ratio)
        known = f" (known for {percent(self.known_ratio)} of this time)" * (round(self.known_ratio, 2) < 1)
        of = f"sizes of matrix products{known}: multiples of {MULTIPLE} for {fits} of the time"
        of += f", of {TILE} for {fills}" if fits != fills else f", all of these of {TILE}"
        return of if self.all_fit else f"{of}; pad those that are not multiples of {MULTIPLE}"


def fit_of(trace: Trace, places: WorkIndexes, ns: Int64s) -> TileFit:
    """How the sizes of products, at ``places`` of the GPU work, fit; ``ns`` is the time of each."""
    work = operator_work(trace)
    owner = work.owner[places]
    kinds = work.kind[owner[owner >= 0]] if len(work) else np.empty(0, np.int64)
    if not work.recorded or not len(kinds):
        return TileFit(False)
    sizes = [sizes_of(call) for call in work.calls]
    known, multiple, tile = (
        np.array([bool(size) and all(each % step == 0 for each in size) for size in sizes], np.bool_)[kinds]
        for step in (1, MULTIPLE, TILE)
    )
    spent = ns[owner >= 0]
    whole = int(spent[known].sum())
    if not whole:
        return TileFit(True)
    fits, fills = (int(spent[each].sum()) / whole for each in (multiple, tile))
    return TileFit(True, fits, fills, bool(multiple[known].all()), whole / int(ns.sum()))


# Whether a matrix product that did not use matrix units (tensor cores, matrix cores) could have used them.
#
# It could if the device has such units for the operator's type of number, which is recorded with the shapes. FP32
# products count as able to use them where the device multiplies in TF32, although that is less exact and must be
# enabled. Products with a vector cannot fill a matrix unit, and do not count.


_WITH_VECTORS = ("aten::mv", "aten::addmv", "aten::addmv_", "aten::dot", "aten::vdot")
_OF_ALL = ("fp16", "bf16", "int8", "fp32")  #: what matrix units of NVIDIA's GPUs from capability 8.0 on multiply
_TURING, _AMPERE, _HOPPER = (7, 0), (8, 0), (9, 0)  # below 9.0, all devices with a capability are NVIDIA's


class MatrixUse(IntEnum):
    """As :class:`MatrixUnits`, but products that could have used matrix units are separate.

    ``NOT_USED`` remains where the type of number or the device's units are unknown.
    """

    NO_QUESTION = gpu.MatrixUnits.NO_QUESTION
    UNTOLD = gpu.MatrixUnits.UNTOLD
    USED = gpu.MatrixUnits.USED
    NOT_USED = gpu.MatrixUnits.NOT_USED
    ELIGIBLE = 4  #: not used, but usable
    NOT_ELIGIBLE = 5  #: not used, and not usable


@derived(until="breakdowns")
def matrix_use(trace: Trace) -> Bytes:
    """The :class:`MatrixUse` of each piece of ``gpu_work``, uint8."""
    work, units = gpu.work(trace), work_families(trace).matrix_units
    use: Bytes = units.copy()
    asked = work.where(units == gpu.MatrixUnits.NOT_USED)
    if not len(asked):
        return use  # skips reading the operators' args, which are not needed here
    operators = operator_work(trace)
    kinds = zip(operators.calls, operators.works, strict=True)
    numbers = ["" if call.operator in _WITH_VECTORS else made.number for call, made in kinds]
    # of convolutions whose work is unknown, as without recorded strides, the type of the input tells
    launched_by = gpu.innermost_operator(trace)[asked].astype(np.int64)
    launched_by[~names.strings_where(trace, CONVOLUTION.__contains__)[trace.events.name[launched_by]]] = NO_INDEX
    rows, types = source.args(trace).texts("Input type")
    first = (text.strip("[]").partition(",")[0].strip('"') for text in types.values)
    codes = SparseColumn(rows, types.codes + np.int64(len(numbers)))
    numbers += [*(TYPES.get(name, ("", 0))[0] for name in first), ""]
    code = codes.at(launched_by, len(numbers) - 1)
    owner = operators.owner[asked]
    code[owner >= 0] = operators.kind[owner[owner >= 0]]
    pairs, which = np.unique(code * len(work.devices) + work.device_of(asked), return_inverse=True)
    answers = []
    for pair in pairs.tolist():
        number, place = divmod(pair, len(work.devices))
        on = work.devices[place].device
        answers.append(_use(numbers[number], device_peaks(trace)[on], capability_of(trace, on)))
    use[asked] = np.array(answers, np.uint8)[which]
    return use


def _use(number: str, peak: Peak | None, capability: tuple[int, int] | None) -> MatrixUse:
    """The use for a product whose kernel did not use matrix units."""
    if not number:
        return MatrixUse.NOT_USED
    rates = {"fp32": ("tf32", "fp32_matrix"), "fp64": ("fp64_matrix",)}.get(number, (number,))
    if peak is not None and any(rate in peak.tflops for rate in rates):
        return MatrixUse.ELIGIBLE
    if capability is None:
        return MatrixUse.NOT_USED
    if capability < _TURING or (capability < _AMPERE and number in ("fp32", "fp64", "bf16")):
        return MatrixUse.NOT_ELIGIBLE
    return MatrixUse.ELIGIBLE if _AMPERE <= capability < _HOPPER and number in _OF_ALL else MatrixUse.NOT_USED
