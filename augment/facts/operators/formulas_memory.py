"""Bytes of operators that are not matrix products: each operand is read once, each result written once.

This is the least that an operator can move: caches may serve part of it, and a kernel may read twice. A trace gives no
types for lists of tensors. What ``cat`` and optimizers over lists move is known where it has the lists' shapes, and the
kernels' names have the types (:func:`~augment.facts.operators.counted_operators.list_kernels`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from math import prod

from msgspec.structs import replace

from augment.facts.operators.formulas_products import broadcast
from augment.facts.operators.operator_calls import Call, Unrecorded, Work

Formula = Callable[[Call], Work]


def _names(text: str) -> frozenset[str]:
    """The names in a text: alternatives of a pattern would take long to compile."""
    return frozenset(text.split())


#: operators whose result has the shape of the broadcast operands
_ELEMENTWISE = _names(
    "abs add addcdiv addcmul bitwise_and bitwise_or bitwise_not bitwise_xor ceil celu clamp clamp_max "
    "clamp_min cos div elu eq erf erfc exp expm1 floor fmod ge gelu gelu_backward glu_jvp gt hardsigmoid "
    "hardswish hardtanh isnan isinf le leaky_relu leaky_relu_backward lerp log log1p log2 logical_and "
    "logical_not logical_or logical_xor lt masked_fill maximum minimum mish mul nan_to_num ne neg pow "
    "reciprocal relu remainder round rsqrt rsub sgn sigmoid sigmoid_backward sign silu silu_backward sin "
    "softplus sqrt square sub tan tanh tanh_backward threshold_backward tril triu trunc where xlogy"
)
#: the greatest number of operands, where it is not two: a further tensor is the result (``out=``)
_ONE = _names(
    "abs bitwise_not ceil celu cos elu erf erfc exp expm1 floor gelu hardsigmoid hardswish hardtanh isnan "
    "isinf leaky_relu log log1p log2 logical_not mish nan_to_num neg reciprocal relu round rsqrt sgn "
    "sigmoid sign silu sin softplus sqrt square tan tanh tril triu trunc"
)
_THREE = _names("addcdiv addcmul clamp lerp where")
_IN_BOOLS = _names("eq ge gt isnan isinf le logical_and logical_not logical_or logical_xor lt ne")
_REDUCTIONS = _names("all amax amin any argmax argmin linalg_vector_norm max mean min norm prod std sum var var_mean")
#: how many times a tensor of the first operand's size is read or written
_TWO_PASSES = _names(
    "_softmax _log_softmax native_layer_norm _fused_rms_norm native_group_norm native_batch_norm "
    "cudnn_batch_norm miopen_batch_norm _native_batch_norm_legit native_dropout cumsum _to_copy flip roll"
)
_THREE_PASSES = _names(
    "_softmax_backward_data _log_softmax_backward_data native_layer_norm_backward "
    "_fused_rms_norm_backward native_group_norm_backward native_batch_norm_backward "
    "cudnn_batch_norm_backward miopen_batch_norm_backward"
)
#: Triton kernels of the compiler, whose args are all operands and results; kernels with these parts access some partly
_TRITON = re.compile(r"triton_(poi|red|per)_fused_")
PARTLY = re.compile(
    r"slice|select|embedding|index|gather|scatter|cat|split|unbind|pool|upsample|repeat|roll|constant_pad"
)


#: optimizers over lists, and the place of the argument that scales gradients, so that these are written, too
_SCALED = {"_fused_adam": 13, "_fused_adamw": 13, "_fused_sgd": 10}


def memory_formula(operator: str) -> Formula | None:
    """The formula of an operator of that name."""
    name = operator.removeprefix("aten::")
    if name == operator:
        compiled = _TRITON.match(operator) and not PARTLY.search(operator)
        return _compiled if compiled else None
    if name.startswith("_foreach_") or name in ("cat", "_cat"):
        return _lists
    in_place = name.endswith("_") and not name.endswith("__")
    name = name[:-1] if in_place else name
    if name in _SCALED:
        return _step(_SCALED[name])
    if name == "copy":
        return _copy
    if name in ("fill", "zero"):
        return lambda call: Work(bytes=_at_least_one(call))
    if name in _ELEMENTWISE:
        operands = 1 if name in _ONE else 3 if name in _THREE else 2
        return _elementwise(in_place, name in _IN_BOOLS, operands)
    if name in _REDUCTIONS:
        return _all_operands
    if name in _TWO_PASSES:
        return _passes(2)
    if name in _THREE_PASSES:
        return _passes(3)
    return _EMBEDDINGS.get(name) or resampling_formula(operator)


def _elementwise(in_place: bool, in_bools: bool, operands: int) -> Formula:
    def formula(call: Call) -> Work:
        call = replace(call, dims=call.dims[:operands], types=call.types[:operands])
        if any(call.has(place) and place not in call.tensors for place in range(len(call.dims))):
            raise Unrecorded
        for place in range(min(len(call.types), 2)):
            if not call.types[place]:  # a tensor without recorded shape or type
                raise Unrecorded(place)
        shapes = [call.shape(place) for place in call.tensors]
        if not shapes:  # scalars
            return Work(bytes=2 * call.type_of(0)[1])
        read = sum(call.bytes_of(place) for place in call.tensors)
        if in_place:
            return Work(bytes=read + (call.bytes_of(0) if call.has(0) else 0))
        size = 1 if in_bools else max(call.type_of(place)[1] for place in call.tensors)
        return Work(bytes=read + size * prod(broadcast(*shapes)))

    return formula


def _copy(call: Call) -> Work:
    """A copy from the second operand, which may need broadcasting and may have another type, to the first."""
    source = call.bytes_of(1) if call.has(1) else 0
    return Work(bytes=source + (call.bytes_of(0) if source else _at_least_one(call)))


def _at_least_one(call: Call) -> int:
    """The bytes of the first tensor. A tensor of no dimensions has one element; a type says that it is a tensor."""
    return call.bytes_of(0) if call.has(0) else call.type_of(0)[1]


def _all_operands(call: Call) -> Work:
    if not call.tensors or any(call.has(place) and place not in call.tensors for place in range(len(call.dims))):
        raise Unrecorded
    return Work(bytes=sum(map(call.bytes_of, call.tensors)))


def _lists(call: Call) -> Work:
    """All lists have the elements of the first one: an elementwise operator, or its parts of the result."""
    if not call.element_bytes:
        raise Unrecorded
    return Work(bytes=call.element_bytes * call.elements(0))


def _step(scaled: int) -> Formula:
    def formula(call: Call) -> Work:
        if scaled < len(call.types) and call.types[scaled]:
            raise Unrecorded(scaled)
        return _lists(call)

    return formula


def _compiled(call: Call) -> Work:
    """A kernel of the compiler. Its last arguments are the numbers of its points, such as 98304 rows of 128: of an
    operand with more elements it may read only a part, as where it gathers.
    """
    numbers = [call.number(place) for place, number in enumerate(call.types) if number == "Scalar"]
    of_rows = call.operator.startswith("triton_per_") and len(numbers) < 2  # without the length of a row
    if numbers and None not in numbers and not of_rows:
        points = prod(max(number or 1, 1) for number in numbers)
        if any(call.bytes_of(place) > points * call.type_of(place)[1] for place in call.tensors):
            raise Unrecorded
    return _all_operands(call)


def _passes(count: int) -> Formula:
    def formula(call: Call) -> Work:
        return Work(bytes=count * call.bytes_of(0))

    return formula


def _embedding(call: Call) -> Work:
    """One row of the weight is read per index, and written to the result."""
    (_, width), rows = call.shape(0, 2), prod(call.shape(1))
    return Work(bytes=2 * rows * width * call.type_of(0)[1] + call.bytes_of(1))


def _embedding_backward(call: Call) -> Work:
    """The gradient is read, and a gradient of the size of the whole weight is written."""
    rows, width = call.number(2), call.shape(0)[-1]
    if rows is None:
        raise Unrecorded
    return Work(bytes=call.bytes_of(0) + call.bytes_of(1) + rows * width * call.type_of(0)[1])


def _embedding_bag(call: Call) -> Work:
    """One row of the weight is read per index; the result is one row per bag, such as their sum."""
    (_, width), (count,), (bags,) = call.shape(0, 2), call.shape(1, 1), call.shape(2, 1)
    bags -= call.flag(7) is True  # the last offset is the end
    return Work(bytes=(count + bags) * width * call.type_of(0)[1] + call.bytes_of(1) + call.bytes_of(2))


_EMBEDDINGS: dict[str, Formula] = {
    "embedding": _embedding,
    "embedding_dense_backward": _embedding_backward,
    "_embedding_bag": _embedding_bag,
    "_embedding_bag_forward_only": _embedding_bag,
}


# Bytes of operators that resample: pooling and interpolation. Each element is read once, each result written once.


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
