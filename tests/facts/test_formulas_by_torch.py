"""Our counts of operations against ``torch.utils.flop_counter``, and our reading of what PyTorch's profiler records."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from augment.facts.operators.formulas_products import ATTENTION, CONVOLUTION, MATMUL
from augment.facts.operators.operator_calls import Call

torch: Any


@pytest.fixture(scope="module", autouse=True)
def _load_torch() -> None:
    """Where these tests run: loading it takes seconds of each process that collects them."""
    global torch
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch, its CPU build is enough")


ALL = MATMUL | CONVOLUTION | ATTENTION


def counted(run: Callable[[], object]) -> int:
    """What PyTorch counts."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        run()
    return int(counter.get_total_flops())


def ours(operator: str, *args: Any) -> int | None:
    """What we count of a call with these arguments, told as a trace tells them."""
    tensors = [isinstance(arg, torch.Tensor) for arg in args]
    dims = [list(each.shape) if is_tensor else [] for each, is_tensor in zip(args, tensors, strict=True)]
    values = ["" if is_tensor or each is None else str(each) for each, is_tensor in zip(args, tensors, strict=True)]
    types = ["c10::BFloat16" if is_tensor else "Scalar" for is_tensor in tensors]
    return ALL[operator](Call(operator, dims, types, values)).flops


def meta(*shape: int) -> Any:
    """A tensor without memory."""
    return torch.empty(shape, device="meta", dtype=torch.bfloat16)


@pytest.mark.parametrize(("operator", "shapes"), [
    ("mm", [(4, 6), (6, 8)]),
    ("addmm", [(8,), (4, 6), (6, 8)]),
    ("bmm", [(3, 4, 6), (3, 6, 8)]),
    ("baddbmm", [(3, 4, 8), (3, 4, 6), (3, 6, 8)]),
])  # fmt: skip
def test_products(operator: str, shapes: list[tuple[int, ...]]) -> None:
    args = [meta(*shape) for shape in shapes]
    assert ours(f"aten::{operator}", *args) == counted(lambda: getattr(torch.ops.aten, operator)(*args))


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("stride", [1, 2])
def test_convolutions(groups: int, transposed: bool, stride: int) -> None:
    x, w = meta(2, 4, 9, 8), meta(4, 6 // groups, 3, 3) if transposed else meta(6, 4 // groups, 3, 3)
    args = (x, w, None, [stride, stride], [1, 1], [1, 1], transposed, [0, 0], groups)
    assert ours("aten::convolution", *args) == counted(lambda: torch.ops.aten.convolution(*args))


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("mask", [[True, True, False], [True, False, False], [False, True, False]])
def test_the_backward_of_convolutions(transposed: bool, mask: list[bool]) -> None:
    x, w = meta(2, 4, 9, 8), meta(4, 6, 3, 3) if transposed else meta(6, 4, 3, 3)
    parameters = ([1, 1], [1, 1], [1, 1], transposed, [0, 0], 1)
    args = (torch.ops.aten.convolution(x, w, None, *parameters), x, w, None, *parameters, mask)
    assert ours("aten::convolution_backward", *args) == counted(lambda: torch.ops.aten.convolution_backward(*args))


def test_torch_counts_the_weights_gradient_of_groups_too_often() -> None:
    """Known: PyTorch's formula for it has no groups. Ours is a forward's worth, as brute force has it."""
    x, w = meta(2, 4, 9, 8), meta(4, 1, 3, 3)
    parameters = ([1, 1], [1, 1], [1, 1], False, [0, 0], 4)
    args = (torch.ops.aten.convolution(x, w, None, *parameters), x, w, None, *parameters, [False, True, False])
    assert ours("aten::convolution_backward", *args) == ours("aten::convolution", x, w, None, *parameters)
    assert counted(lambda: torch.ops.aten.convolution_backward(*args)) == 4 * (
        ours("aten::convolution_backward", *args) or 0
    )


@pytest.mark.parametrize("kind", ["flash", "efficient", "cudnn"])
def test_attention(kind: str) -> None:
    from torch.utils.flop_counter import flop_registry

    shapes = (2, 4, 16, 8), (2, 4, 24, 8), (2, 4, 24, 8)
    q, k, v = (meta(*shape) for shape in shapes)
    forward = f"_scaled_dot_product_{kind}_attention"
    causal = {"flash": 4, "efficient": 6, "cudnn": 6}[kind]
    args = [q, k, v, *([None] * (causal - 3)), False]
    registered = flop_registry[getattr(torch.ops.aten, forward)]
    assert ours(f"aten::{forward}", *args) == registered(q, k, v, out_val=None)
    causal = {"flash": 11, "efficient": 11, "cudnn": 14}[kind]
    args = [q, q, k, v, *([None] * (causal - 4)), False]
    registered = flop_registry[getattr(torch.ops.aten, f"{forward}_backward")]
    assert ours(f"aten::{forward}_backward", *args) == registered(q, q, k, v, out_val=None)


def test_what_the_profiler_records_of_a_model_is_counted_as_the_counter_does(tmp_path: Path) -> None:
    """A model with most kinds of products, its backward, too: recorded by the real profiler on the CPU."""
    torch.manual_seed(0)
    layers = torch.nn
    model = layers.Sequential(
        layers.Conv2d(3, 8, 3, stride=2, padding=1), layers.GELU(), layers.Conv2d(8, 8, 3, groups=1), layers.Flatten(2),
        layers.Linear(36, 16), layers.TransformerEncoderLayer(16, 2, 32, batch_first=True),
    )  # fmt: skip
    x = torch.randn(2, 3, 16, 16, requires_grad=True)

    def run() -> None:
        model(x).square().mean().backward()

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profiler:
        run()
    path = tmp_path / "trace.json"
    profiler.export_chrome_trace(str(path))
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        expected = counted(run)
    assert leaf_flops(path) == expected


def leaf_flops(path: Path) -> int:
    """The operations of all operators that hold no other with any, CPU's or not."""
    import augment
    from augment.facts.operators.counted_operators import counted

    _, kind, _, works = counted(augment.read(path))
    return sum(works[number].flops or 0 for number in kind.tolist())


def test_the_profiler_writes_what_calls_are_read_from(tmp_path: Path) -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profiler:
        torch.mm(torch.ones(3, 4), torch.ones(4, 5).t().contiguous().t())
    path = tmp_path / "trace.json"
    profiler.export_chrome_trace(str(path))
    events = json.loads(path.read_text())["traceEvents"]
    [args] = [event["args"] for event in events if event.get("name") == "aten::mm"]
    texts = [json.dumps(args[name]) for name in ("Input Dims", "Input type", "Concrete Inputs", "Input Strides")]
    call = Call.parsed("aten::mm", texts)
    assert (call.shape(0), call.type_of(1), call.bytes_of(1)) == ((3, 4), ("fp32", 4), 80)
