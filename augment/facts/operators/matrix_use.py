"""Whether a matrix product that did not use matrix units (tensor cores, matrix cores) could have used them.

It could if the device has such units for the operator's type of number, which is recorded with the shapes. FP32
products count as able to use them where the device multiplies in TF32, although that is less exact and must be enabled.
Products with a vector cannot fill a matrix unit, and do not count.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from augment.arrays.types import Bytes
from augment.core.context import derived
from augment.core.trace import Trace
from augment.facts.gpu.gpu_work import gpu_work
from augment.facts.gpu.kernel_families import MatrixUnits
from augment.facts.operators.operator_work import operator_work
from augment.facts.operators.peaks import Peak, capability_of, device_peaks
from augment.facts.operators.work_families import work_families

_WITH_VECTORS = ("aten::mv", "aten::addmv", "aten::addmv_", "aten::dot", "aten::vdot")
_OF_ALL = ("fp16", "bf16", "int8", "fp32")  #: what matrix units of NVIDIA's GPUs from capability 8.0 on multiply
_TURING, _AMPERE, _HOPPER = (7, 0), (8, 0), (9, 0)  # below 9.0, all devices with a capability are NVIDIA's


class MatrixUse(IntEnum):
    """As :class:`MatrixUnits`, but products that could have used matrix units are separate.

    ``NOT_USED`` remains where the type of number or the device's units are unknown.
    """

    NO_QUESTION = MatrixUnits.NO_QUESTION
    UNTOLD = MatrixUnits.UNTOLD
    USED = MatrixUnits.USED
    NOT_USED = MatrixUnits.NOT_USED
    ELIGIBLE = 4  #: not used, but usable
    NOT_ELIGIBLE = 5  #: not used, and not usable


@derived(until="breakdowns")
def matrix_use(trace: Trace) -> Bytes:
    """The :class:`MatrixUse` of each piece of ``gpu_work``, uint8."""
    work, units = gpu_work(trace), work_families(trace).matrix_units
    use: Bytes = units.copy()
    asked = np.flatnonzero(units == MatrixUnits.NOT_USED)
    if not len(asked):
        return use  # skips reading the operators' args, which are not needed here
    operators = operator_work(trace)
    asked = asked[operators.owner[asked] >= 0]
    device = work.device_of(asked)
    kind = operators.kind[operators.owner[asked]].astype(np.int64)
    pairs, which = np.unique(kind * len(work.devices) + device, return_inverse=True)
    answers = []
    for pair in pairs.tolist():
        call, place = divmod(pair, len(work.devices))
        number = "" if operators.calls[call].operator in _WITH_VECTORS else operators.works[call].number
        on = work.devices[place].device
        answers.append(_use(number, device_peaks(trace)[on], capability_of(trace, on)))
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
