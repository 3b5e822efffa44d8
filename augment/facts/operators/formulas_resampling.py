"""Bytes of operators that resample: pooling and interpolation. Each element is read once, each result written once."""

from __future__ import annotations

import re
from collections.abc import Callable
from math import prod

from augment.facts.operators.operator_calls import Call, Unrecorded
from augment.facts.operators.work_model import Work

_UPSAMPLE = re.compile(r"aten::_?upsample_(nearest(_exact)?|linear|bilinear|trilinear|bicubic)[123]d(_aa)?(_backward)?")
_INDEX = 8  #: bytes of the index of a maximum


def resampling_formula(operator: str) -> Callable[[Call], Work] | None:
    """The formula of an operator of that name."""
    if match := _UPSAMPLE.fullmatch(operator):
        return _interpolated_backward if match[4] else _interpolated
    return _POOLING.get(operator)


def _interpolated(call: Call) -> Work:
    """An enlarged image; of a reduced one, only a part may be read."""
    shape, size = call.shape(0), call.numbers(1)
    elements = prod(shape[:2]) * prod(size)
    if len(size) != len(shape) - 2 or elements < prod(shape):
        raise Unrecorded(1)
    return Work(bytes=call.bytes_of(0) + elements * call.type_of(0)[1])


def _interpolated_backward(call: Call) -> Work:
    """The gradient of the enlarged image is read, that of the image written."""
    size = call.numbers(2)
    if len(size) != len(call.shape(0)):
        raise Unrecorded(2)
    return Work(bytes=call.bytes_of(0) + prod(size) * call.type_of(0)[1])


def _max_pool(call: Call) -> Work:
    """The result, and the index of each maximum."""
    shape = call.shape(0)
    kernel, stride, padding, dilation = (
        call.numbers(place) if call.value(place) != "[]" else [] for place in range(1, 5)
    )
    if call.flag(5) is not False:
        raise Unrecorded(5)  # sizes may be rounded up
    stride = stride or kernel
    rank = len(kernel)
    if not len(shape) >= rank + 1 or not len(stride) == len(padding) == len(dilation) == rank:
        raise Unrecorded
    steps = zip(shape[-rank:], kernel, stride, padding, dilation, strict=True)
    sizes = [(size + 2 * pad - wide * (window - 1) - 1) // step + 1 for size, window, step, pad, wide in steps]
    elements = prod(shape[:-rank]) * prod(sizes)
    return Work(bytes=call.bytes_of(0) + elements * (call.type_of(0)[1] + _INDEX))


def _max_pool_backward(call: Call) -> Work:
    """The gradient and the indices are read; a gradient of the input's size is written."""
    return Work(bytes=call.bytes_of(0) + call.bytes_of(1) + call.bytes_of(7))


_POOLING: dict[str, Callable[[Call], Work]] = {
    "aten::max_pool2d_with_indices": _max_pool,
    "aten::max_pool3d_with_indices": _max_pool,
    "aten::max_pool2d_with_indices_backward": _max_pool_backward,
    "aten::max_pool3d_with_indices_backward": _max_pool_backward,
}
