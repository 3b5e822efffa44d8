"""Operations and bytes of convolutions and their backward, with correct treatment of groups.

A convolution's weight has the shape (out channels, in channels / groups, kernel), so the count 2 · batch · positions of
the output · weight elements also holds with groups. Each of the two gradients of the backward costs the same. PyTorch's
own ``flop_counter`` ignores groups for the gradient of the weight, and so counts ``groups`` times too much.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from augment.facts.operators.operator_calls import Call, Shape, Unrecorded
from augment.facts.operators.work_model import Work, exactly

Formula = Callable[[Call], Work]


def _positions(x: Shape, w: Shape, stride: list[int], padding: list[int], dilation: list[int]) -> Shape:
    """The output's size in each spatial dimension."""
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
    """The places of the parameters. ``transposed`` is the place of the flag; ``always`` means that the operator is
    always transposed.
    """

    def formula(call: Call) -> Work:
        x, w = call.shape(0), call.shape(1)
        if len(x) < 3 or len(x) != len(w):
            raise Unrecorded
        is_transposed = always if transposed is None else call.flag(transposed)
        if is_transposed is None:
            raise Unrecorded
        if is_transposed:  # each position of the input is multiplied by the weight
            return _work(call, x, w, (*x[:1], w[1], *x[2:]), x[2:])
        out = _positions(x, w, call.numbers(stride), call.numbers(padding), call.numbers(dilation))
        return _work(call, x, w, (x[0], w[0], *out), out)

    return formula


def _backward(call: Call) -> Work:
    """``convolution_backward``: the gradients of input and weight that the mask selects."""
    grad, x, w = call.shape(0), call.shape(1), call.shape(2)
    transposed, mask = call.flag(7), call.value(10).lower().strip("[]").split(",")
    if transposed is None or len(mask) != 3:
        raise Unrecorded
    gradients = [flag.strip() for flag in mask[:2]].count("true")
    return _work(call, x, w, grad, x[2:] if transposed else grad[2:], gradients)


def _backward_of_old(call: Call) -> Work:
    """``cudnn_convolution_backward`` of PyTorch up to 1.10. Its mask is not recorded: it computes one gradient, or
    both.
    """
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
