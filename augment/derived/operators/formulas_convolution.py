"""Operations and bytes of convolutions and their backward, with groups right.

A convolution's weight is (out channels, in channels / groups, kernel), so that 2 · batch · positions of the output ·
weight elements holds with groups, too. Each of both gradients of the backward costs as much. PyTorch's own
``flop_counter`` counts the gradient of the weight as if there were no groups: ``groups`` times too much.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from augment.derived.operators.operator_calls import Call, Shape, Unrecorded
from augment.derived.operators.work_model import Work, exactly

Formula = Callable[[Call], Work]


def _positions(x: Shape, w: Shape, stride: list[int], padding: list[int], dilation: list[int]) -> Shape:
    """The output's size in each dimension of space."""
    rank = len(x) - 2
    steps, pads, gaps = ((sizes * rank)[:rank] if len(sizes) == 1 else sizes for sizes in (stride, padding, dilation))
    if not len(steps) == len(pads) == len(gaps) == rank:
        raise Unrecorded
    each = zip(x[2:], w[2:], steps, pads, gaps, strict=True)
    return tuple((size + 2 * pad - gap * (kernel - 1) - 1) // step + 1 for size, kernel, step, pad, gap in each)


def _work(call: Call, x: Shape, w: Shape, out: Shape, positions: Shape, gradients: int = 1) -> Work:
    number, size = call.type_of(0)
    flops = 2 * x[0] * prod(positions) * prod(w) * gradients
    moved = (prod(x) + prod(w) + prod(out)) * gradients
    return exactly(flops, moved * size, number)


def _forward(stride: int, padding: int, dilation: int, transposed: int | None = None, always: bool = False) -> Formula:
    """The places of the parameters; ``transposed`` is that of the flag, or it is ``always`` so."""

    def formula(call: Call) -> Work:
        x, w = call.shape(0), call.shape(1)
        if len(x) < 3 or len(x) != len(w):
            raise Unrecorded
        is_transposed = always if transposed is None else call.flag(transposed)
        if is_transposed is None:
            raise Unrecorded
        if is_transposed:  # each position of the input is taken to the weight
            return _work(call, x, w, (*x[:1], w[1], *x[2:]), x[2:])
        out = _positions(x, w, call.numbers(stride), call.numbers(padding), call.numbers(dilation))
        return _work(call, x, w, (x[0], w[0], *out), out)

    return formula


def _backward(call: Call) -> Work:
    """``convolution_backward``: gradients of the input and of the weight, as the mask says."""
    grad, x, w = call.shape(0), call.shape(1), call.shape(2)
    transposed, mask = call.flag(7), call.value(10).lower().strip("[]").split(",")
    if transposed is None or len(mask) != 3:
        raise Unrecorded
    gradients = [flag.strip() for flag in mask[:2]].count("true")
    return _work(call, x, w, grad, x[2:] if transposed else grad[2:], gradients)


def _backward_of_old(call: Call) -> Work:
    """``cudnn_convolution_backward`` of PyTorch up to 1.10, whose mask is not recorded: one gradient, or both."""
    x, grad, w = call.shape(0), call.shape(1), call.shape(2)
    number, size = call.type_of(0) if call.types else ("", 0)
    flops = 2 * grad[0] * prod(grad[2:]) * prod(w)
    if not number:
        raise Unrecorded
    return Work(flops, 2 * flops, (prod(x) + prod(w) + prod(grad)) * size, number)


CONVOLUTION: dict[str, Formula] = {
    "aten::convolution": _forward(3, 4, 5, 6),
    "aten::_convolution": _forward(3, 4, 5, 6),
    "aten::convolution_overrideable": _forward(3, 4, 5, 6),
    "aten::conv1d": _forward(3, 4, 5),
    "aten::conv2d": _forward(3, 4, 5),
    "aten::conv3d": _forward(3, 4, 5),
    "aten::cudnn_convolution": _forward(3, 2, 4),
    "aten::cudnn_convolution_relu": _forward(3, 4, 5),
    "aten::miopen_convolution": _forward(4, 3, 5),
    "aten::miopen_depthwise_convolution": _forward(4, 3, 5),
    "aten::mkldnn_convolution": _forward(4, 3, 5),
    "aten::_conv_depthwise2d": _forward(4, 5, 6),
    "aten::_slow_conv2d_forward": _forward(4, 5, -1),
    "aten::cudnn_convolution_transpose": _forward(0, 0, 0, always=True),
    "aten::miopen_convolution_transpose": _forward(0, 0, 0, always=True),
    "aten::conv_transpose1d": _forward(0, 0, 0, always=True),
    "aten::conv_transpose2d": _forward(0, 0, 0, always=True),
    "aten::conv_transpose3d": _forward(0, 0, 0, always=True),
    "aten::convolution_backward": _backward,
    "aten::cudnn_convolution_backward": _backward_of_old,
    "aten::miopen_convolution_backward": _backward_of_old,
}
