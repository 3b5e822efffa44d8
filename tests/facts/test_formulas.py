"""How much operators have to do: by counting multiplications one by one, and by what cannot be told."""

import sys
from collections.abc import Callable, Iterator
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from augment import UsageError, read
from augment.core.attachments import Tables
from augment.facts.operators.counted_operators import formula_of, work_of
from augment.facts.operators.formulas_custom import GROUP, formulas_of, installed_formulas
from augment.facts.operators.formulas_memory import memory_formula
from augment.facts.operators.formulas_products import ATTENTION, CONVOLUTION, MATMUL, Mask, template
from augment.facts.operators.operator_calls import Call, Unrecorded, Work
from augment.facts.steps.engine_steps import Batch
from tables import trace_of

Dims = list[Any]


def called(operator: str, *dims: Dims, types: str = "float", values: dict[int, str] | None = None) -> Call:
    """A call whose tensors are all of one type."""
    texts = [(values or {}).get(place, "") for place in range(max(len(dims), *(values or {0: ""})) + 1)]
    padded = [*dims, *([] for _ in range(len(texts) - len(dims)))]
    return Call(operator, padded, [types if each else "Scalar" for each in padded], texts)


@pytest.mark.parametrize(("operator", "dims", "multiplications"), [
    ("aten::mm", [[2, 3], [3, 5]], 2 * 3 * 5),
    ("aten::_int_mm", [[2, 3], [3, 5]], 2 * 3 * 5),
    ("aten::_scaled_mm", [[2, 3], [3, 5]], 2 * 3 * 5),
    ("aten::addmm", [[5], [2, 3], [3, 5]], 2 * 3 * 5),
    ("aten::bmm", [[7, 2, 3], [7, 3, 5]], 7 * 2 * 3 * 5),
    ("aten::baddbmm", [[7, 2, 5], [7, 2, 3], [7, 3, 5]], 7 * 2 * 3 * 5),
    ("aten::addbmm", [[2, 5], [7, 2, 3], [7, 3, 5]], 7 * 2 * 3 * 5),
    ("aten::mv", [[2, 3], [3]], 6),
    ("aten::addmv", [[2], [2, 3], [3]], 6),
    ("aten::dot", [[4], [4]], 4),
    ("aten::linear", [[7, 2, 3], [5, 3], [5]], 7 * 2 * 3 * 5),
    ("aten::matmul", [[7, 2, 3], [3, 5]], 7 * 2 * 3 * 5),
    ("aten::matmul", [[4, 1, 2, 3], [7, 3, 5]], 4 * 7 * 2 * 3 * 5),
    ("aten::matmul", [[3], [7, 3, 5]], 7 * 3 * 5),
    ("aten::matmul", [[3], [3]], 3),
    ("aten::_grouped_mm", [[10, 3], [4, 3, 5], [4]], 10 * 3 * 5),
    ("aten::_grouped_mm", [[3, 10], [10, 5], [4]], 3 * 10 * 5),
    ("aten::_grouped_mm", [[4, 2, 3], [4, 3, 5]], 4 * 2 * 3 * 5),
    ("aten::_grouped_mm", [[4, 2, 3], [3, 10], [4]], 2 * 3 * 10),
])  # fmt: skip
def test_matrix_products(operator: str, dims: list[Dims], multiplications: int) -> None:
    assert MATMUL[operator](called(operator, *dims)).flops == 2 * multiplications


def test_bytes_of_a_product_are_operands_and_result_once() -> None:
    work = MATMUL["aten::addmm"](called("aten::addmm", [5], [2, 3], [3, 5], types="c10::BFloat16"))
    assert work == Work(60, 60, 2 * (5 + 6 + 15 + 10), "bf16")


def test_packed_fp4_has_two_numbers_a_byte() -> None:
    fp4 = called("aten::_scaled_mm", [2, 8], [8, 3], types="c10::Float4_e2m1fn_x2")
    assert MATMUL["aten::_scaled_mm"](fp4).flops == 2 * 2 * 16 * 3


@pytest.mark.parametrize("dims", [[[], [3, 5]], [[2, 3], [4, 5]], [[2, 3]], [[2, 3, 4], [4, 5]], [[[2, 3]], [3, 5]]])
def test_a_product_of_other_shapes_is_unknown(dims: list[Dims]) -> None:
    with pytest.raises((Unrecorded, ValueError)):
        MATMUL["aten::mm"](called("aten::mm", *dims))


# --- convolutions: each output is a sum over the taps that lie inside the padded input ---


@pytest.mark.parametrize(("operator", "dims", "multiplications"), [
    ("triton_tem_fused_mm_7", [[64, 64, 2], [2, 128], [4096, 128]], 4096 * 2 * 128),
    ("triton_tem_fused_addmm_gelu_3", [[256], [96, 64], [64, 256], [96, 256]], 96 * 64 * 256),
    ("triton_tem_fused_bmm_12", [[4, 8, 8, 16], [4, 8, 16, 32], [32, 8, 32]], 4 * 8 * 8 * 16 * 32),
    ("_C::cutlass_scaled_mm", [[32, 256], [32, 64], [64, 256], [1], [1], []], 32 * 64 * 256),
    ("sgl_kernel::fp8_scaled_mm", [[32, 64], [64, 256], [32], [256]], 32 * 64 * 256),
])  # fmt: skip
def test_products_of_templates_and_of_engines(operator: str, dims: list[Dims], multiplications: int) -> None:
    formula = formula_of(trace_of(), operator)
    assert formula(called(operator, *dims)).flops == 2 * multiplications


@pytest.mark.parametrize("dims", [[[8, 4], [5, 6], [8, 6]], [[8, 8], [8, 8], [4, 8]]])
def test_a_template_of_other_shapes_is_unknown(dims: list[Dims]) -> None:
    with pytest.raises(Unrecorded):
        template(called("triton_tem_fused_mm_7", *dims))


def taps(x: Dims, w: Dims, stride: int, padding: int, dilation: int) -> Iterator[None]:
    """A convolution's multiplications, also those with padding, which kernels do as well."""
    out = [(size + 2 * padding - dilation * (k - 1) - 1) // stride + 1 for size, k in zip(x[2:], w[2:], strict=True)]
    for _ in product(range(x[0]), range(w[0]), *map(range, out), range(w[1]), *map(range, w[2:])):
        yield


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(("padding", "dilation"), [(0, 1), (1, 1), (2, 2)])
@pytest.mark.parametrize(("channels", "groups"), [(2, 1), (4, 2), (4, 4)])
def test_convolutions_and_their_backward(stride: int, padding: int, dilation: int, channels: int, groups: int) -> None:
    x, w = [2, channels, 7, 6], [4, channels // groups, 3, 2]
    count = sum(1 for _ in taps(x, w, stride, padding, dilation))
    lists = {3: f"[{stride}, {stride}]", 4: f"[{padding}, {padding}]", 5: f"[{dilation}]", 6: "False", 8: str(groups)}
    assert CONVOLUTION["aten::convolution"](called("c", x, w, [4], values=lists)).flops == 2 * count
    cudnn = {2: lists[4], 3: lists[3], 4: lists[5]}
    assert CONVOLUTION["aten::cudnn_convolution"](called("c", x, w, values=cudnn)).flops == 2 * count
    miopen = {3: lists[4], 4: lists[3], 5: lists[5]}
    assert CONVOLUTION["aten::miopen_convolution"](called("c", x, w, [], values=miopen)).flops == 2 * count
    out = [(size + 2 * padding - dilation * (k - 1) - 1) // stride + 1 for size, k in zip(x[2:], w[2:], strict=True)]
    for mask, gradients in (("[True, True, False]", 2), ("[False, True, True]", 1)):
        values = {7: "False", 10: mask}
        backward = called("b", [2, 4, *out], x, w, values=values)
        assert CONVOLUTION["aten::convolution_backward"](backward).flops == 2 * gradients * count


def test_a_transposed_convolution_takes_each_input_to_the_weight() -> None:
    x, w = [2, 4, 5, 3], [4, 6, 2, 2]
    count = 2 * 5 * 3 * prod(w)
    assert CONVOLUTION["aten::cudnn_convolution_transpose"](called("t", x, w)).flops == 2 * count
    backward = called("b", [2, 6, 10, 6], x, w, values={7: "True", 10: "[True, True, False]"})
    assert CONVOLUTION["aten::convolution_backward"](backward).flops == 4 * count


def test_a_convolution_without_recorded_values_is_unknown() -> None:
    with pytest.raises(Unrecorded):
        CONVOLUTION["aten::convolution"](called("c", [2, 4, 7, 6], [4, 4, 3, 3]))


# --- attention ---


@pytest.mark.parametrize("from_end", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("left", "right"), [(-1, -1), (2, -1), (1, 1), (0, 3)])
@pytest.mark.parametrize(("queries", "keys"), [(5, 5), (3, 6), (6, 3), (1, 9)])
def test_pairs_that_a_mask_leaves(queries: int, keys: int, left: int, right: int, causal: bool, from_end: bool) -> None:
    def sees(i: int, j: int) -> bool:
        level = i + (keys - queries if from_end else 0)
        after = j - level
        return (not causal or after <= 0) and (left < 0 or -after <= left) and (causal or right < 0 or after <= right)

    count = sum(sees(i, j) for i, j in product(range(queries), range(keys)))
    assert Mask(causal, left, right, from_end).pairs(queries, keys) == (count, count)


def sdpa(operator: str, q: Dims, k: Dims, v: Dims, causal: str = "False", at: int = 4, first: int = 0) -> Work:
    """The work of one of PyTorch's operators."""
    return ATTENTION[operator](called(operator, *([q] * first), q, k, v, values={at: causal}))


def test_attention_forward_and_backward() -> None:
    q, k, v = [2, 6, 5, 4], [2, 6, 7, 4], [2, 6, 7, 3]
    pairs = 2 * 6 * 5 * 7
    forward = sdpa("aten::_scaled_dot_product_flash_attention", q, k, v)
    backward = sdpa("aten::_scaled_dot_product_flash_attention_backward", q, k, v, at=11, first=1)
    assert forward.flops == 2 * pairs * (4 + 3)
    assert backward.flops == 2 * pairs * (3 * 4 + 2 * 3)
    assert backward.again_flops == 2 * pairs * 4
    assert forward.bytes == 4 * (prod(q) + prod(k) + prod(v) + 2 * 6 * 5 * 3)
    assert backward.bytes == 2 * forward.bytes


def test_causal_and_grouped_queries() -> None:
    flash = "aten::_scaled_dot_product_flash_attention"
    q, k = [1, 8, 5, 4], [1, 2, 5, 4]
    assert sdpa(flash, q, k, k).flops == 2 * 8 * 25 * 8
    assert sdpa(flash, q, k, k, "True").flops == 2 * 8 * 15 * 8
    untold = sdpa(flash, q, k, k, "")
    assert (untold.flops, untold.most_flops) == (2 * 8 * 15 * 8, 2 * 8 * 25 * 8)
    with pytest.raises(Unrecorded):
        sdpa(flash, [1, 7, 5, 4], k, k)


def test_packed_sequences_are_bounded_by_all_that_may_be() -> None:
    tokens, sequences, longest = 9, 3, 5
    qkv = [tokens, 2, 4]
    values = {5: str(longest), 6: str(longest), 8: "True", 11: "-1", 12: "-1"}
    work = ATTENTION["aten::_flash_attention_forward"](called("f", qkv, qkv, qkv, [4], [4], values=values))
    lengths = [sequence for sequence in product(range(longest + 1), repeat=sequences) if sum(sequence) == tokens]
    counts = [sum(each * (each + 1) // 2 for each in some) * 2 * 2 * 8 for some in lengths]
    assert (work.flops, work.most_flops) == (min(counts), max(counts))
    assert work.flops != work.most_flops


def test_paged_keys_are_unknown() -> None:
    call = called("f", [9, 2, 4], [9, 2, 4], [9, 2, 4], *([] for _ in range(8)), [3], values={24: "True"})
    with pytest.raises(Unrecorded):
        ATTENTION["flash_attn_3::fwd"](call)


# --- what only moves bytes ---


def of_memory(operator: str) -> Callable[[Call], Work]:
    formula = memory_formula(operator)
    assert formula is not None
    return formula


@pytest.mark.parametrize(("operator", "dims", "size"), [
    ("aten::add", [[4, 5], [5]], 4 * (20 + 5 + 20)),
    ("aten::add_", [[4, 5], [5]], 4 * (20 + 5 + 20)),
    ("aten::mul", [[4, 5], [5], [4, 5]], 4 * (20 + 5 + 20)),
    ("aten::clamp_min", [[4, 5], [], [4, 5]], 4 * 40),
    ("aten::addcmul", [[4, 5], [4, 5], [4, 5], [], [4, 5]], 4 * 80),
    ("aten::eq", [[4, 5], [5]], 4 * 25 + 20),
    ("aten::copy_", [[4, 5], [5]], 4 * 25),
    ("aten::fill_", [[4, 5]], 4 * 20),
    ("aten::sum", [[4, 5]], 4 * 20),
    ("aten::native_layer_norm", [[4, 5]], 4 * 40),
    ("aten::_softmax_backward_data", [[4, 5]], 4 * 60),
    ("aten::_embedding_bag", [[10, 4], [6], [3]], 4 * (6 * 4 + 3 * 4 + 6 + 3)),
    ("triton_poi_fused_add_3", [[4, 5], [4, 5], [4, 5]], 4 * 60),
])  # fmt: skip
def test_bytes(operator: str, dims: list[Dims], size: int) -> None:
    assert of_memory(operator)(called(operator, *dims)) == Work(bytes=size)


@pytest.mark.parametrize(("operator", "numbers", "known"), [
    ("triton_poi_fused_clamp_clone_45", ["6000"], True),
    ("triton_poi_fused_clamp_clone_45", ["4500"], False),  # three of four masks
    ("triton_poi_fused_clamp_clone_45", ["60", "100"], True),
    ("triton_poi_fused_clamp_clone_45", ["0", "6000"], True),  # an offset before the numbers of points
    ("triton_red_fused_mul_nll_loss_forward_sub_view_41", ["2", "100"], False),  # gathers
    ("triton_red_fused_sum_1", ["60", "100"], True),
    ("triton_per_fused_sum_1", ["60"], True),  # rows of an unknown length
    ("triton_per_fused_sum_1", ["6", "100"], False),
    ("triton_poi_fused_add_1", [""], True),  # not recorded
    ("triton_poi_fused_add_1", [], True),
])  # fmt: skip
def test_kernels_of_the_compiler_may_read_a_part(operator: str, numbers: list[str], known: bool) -> None:
    formula = of_memory(operator)
    shape = [60, 100]
    call = Call(operator, [shape, *([] for _ in numbers)], ["float", *["Scalar"] * len(numbers)], ["", *numbers])
    if known:
        assert formula(call).bytes == 4 * 6000
    else:
        with pytest.raises(Unrecorded):
            formula(call)


def enlarged(count: int, window: int, step: int, pad: int, wide: int) -> int:
    """How many windows fit, one by one."""
    return sum(start + wide * (window - 1) <= count + pad - 1 for start in range(-pad, count + pad, step))


@pytest.mark.parametrize(("window", "step", "pad", "wide"), [(3, 2, 1, 1), (2, 2, 0, 1), (3, 1, 1, 2), (5, 3, 2, 1)])
def test_bytes_of_pooling(window: int, step: int, pad: int, wide: int) -> None:
    lists = {1: [window] * 2, 2: [step] * 2, 3: [pad] * 2, 4: [wide] * 2}
    values = {place: str(numbers) for place, numbers in lists.items()} | {5: "False"}
    formula = of_memory("aten::max_pool2d_with_indices")
    results = 2 * 3 * enlarged(11, window, step, pad, wide) * enlarged(17, window, step, pad, wide)
    expected = 2 * 2 * 3 * 11 * 17 + 10 * results
    assert formula(called("p", [2, 3, 11, 17], types="c10::Half", values=values)).bytes == expected
    with pytest.raises(Unrecorded):
        formula(called("p", [2, 3, 11, 17], values=values | {5: "True"}))


def test_bytes_of_the_gradient_of_pooling() -> None:
    formula = of_memory("aten::max_pool2d_with_indices_backward")
    dims: list[Dims] = [[2, 3, 5, 5], [2, 3, 10, 10], [], [], [], [], [], [2, 3, 5, 5]]
    call = replace(called("p", *dims), types=["float", "float", *["ScalarList"] * 5, "long int"])
    assert formula(call).bytes == 4 * 150 + 4 * 600 + 8 * 150


def test_bytes_of_interpolation() -> None:
    forward, backward = (of_memory(f"aten::upsample_bilinear2d{suffix}") for suffix in ("", "_backward"))
    assert forward(called("u", [2, 3, 4, 5], values={1: "[8, 10]"})).bytes == 4 * 5 * 2 * 3 * 4 * 5
    sizes = {1: "[8, 10]", 2: "[2, 3, 4, 5]"}
    assert backward(called("u", [2, 3, 8, 10], values=sizes)).bytes == 4 * 5 * 2 * 3 * 4 * 5
    for values in ({1: "[2, 2]"}, {1: "[8]"}, {}):
        with pytest.raises(Unrecorded):
            forward(called("u", [2, 3, 4, 5], values=values))


def test_a_tensor_of_no_dimensions_has_an_element() -> None:
    for operator, size in (("aten::fill_", 4), ("aten::zero_", 4), ("aten::copy_", 4)):
        formula = of_memory(operator)
        assert formula(Call(operator, [[], []], ["float", "Scalar"])).bytes == size
        with pytest.raises(Unrecorded):
            formula(Call(operator, [[], []], ["", "Scalar"]))  # not a tensor, or one without data
    with pytest.raises(Unrecorded):
        of_memory("aten::copy_")(Call("aten::copy_", [[], [3]], ["float", "float"]))


def test_an_expanded_dimension_is_read_once() -> None:
    call = Call("aten::sum", [[4, 5]], ["float"], (), [[0, 1]])
    assert of_memory("aten::sum")(call).bytes == 4 * 5


@pytest.mark.parametrize(
    "operator", ["aten::stack", "aten::_fused_adagrad_", "triton_poi_fused_slice_2", "my::op", "aten::nonzero"]
)
def test_what_cannot_be_told_has_no_formula(operator: str) -> None:
    assert memory_formula(operator) is None


def test_a_tensor_of_no_recorded_shape_makes_the_work_unknown() -> None:
    formula = of_memory("aten::mul")
    with pytest.raises(Unrecorded):
        formula(Call("aten::mul", [[], [5]], ["", "float"]))


# --- formulas of users ---


def test_the_last_offset_of_bags_may_be_the_end() -> None:
    formula = of_memory("aten::_embedding_bag")
    call = called("aten::_embedding_bag", [10, 4], [6], [3], values={7: "True"})
    assert formula(call).bytes == 4 * (6 * 4 + 2 * 4 + 6 + 3)


def test_a_formula_of_a_user() -> None:
    row = {"operator": "^my::", "flops": "2 * prod(shape[0]) * shape[1][-1]", "bytes": "size(0) + size(1) * value(2)"}
    [formula] = formulas_of([row])
    call = called("my::mm", [2, 3], [3, 5], types="c10::Half", values={2: "4"})
    assert formula(call) == Work(60, 60, 2 * (6 + 4 * 15), "fp16")


def test_a_formula_with_a_condition() -> None:
    [formula] = formulas_of([{"operator": "x", "flops": "max(shape[0][1:]) if has(1) else len(shape[0]) // 2 - -1"}])
    assert formula(called("x", [2, 3, 7], [1])).flops == 7
    assert formula(called("x", [2, 3, 7])).flops == 2


@pytest.mark.parametrize(
    "text",
    ["__import__('os')", "shape.x", "open('x')", "(lambda: 1)()", "[x for x in shape]", "shape[0", "2 ** 99", "a"],
)
def test_a_formula_says_arithmetic_alone(text: str) -> None:
    with pytest.raises(UsageError, match="a formula"):
        formulas_of([{"operator": "x", "flops": text}])


@pytest.mark.parametrize(
    "text", ["shape[9][0]", "1 / 0", "shape[0]", "-1", "1 < 2", "[1] * 3", "prod(shape)", "min(3)"]
)
def test_a_formula_that_gives_no_count_is_unknown(text: str) -> None:
    [formula] = formulas_of([{"operator": "x", "flops": text}])
    with pytest.raises((Unrecorded, UsageError)):
        formula(called("x", [2, 3]))


@pytest.mark.parametrize(
    "row",
    [{"operator": "x"}, {"flops": "1"}, {"operator": "(", "flops": "1"}, {"operator": "x", "flops": 1},
     {"operator": "x", "flops": "1", "kind": "y"}, {"operator": "x", "flops": "1", "number": "bf17"}],
)  # fmt: skip
def test_a_row_that_is_no_formula_is_refused(row: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="a formula"):
        formulas_of([row])


# --- formulas of installed packages ---

MODULE = """
def flops(call):
    if call.operator == "brought::broken":
        return call.nothing
    return 2 * call.shape(0)[0] * call.shape(1)[0] if call.has(1) else None

FORMULAS = [{"operator": "^brought::", "flops": flops, "bytes": "size(0)", "number": "fp8"}]
WRONG = [{"operator": "^brought::", "flop": flops}]
"""


@pytest.fixture
def installs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Installs a distribution whose entry point is the given one."""

    def install(target: str) -> None:
        (tmp_path / "brought_formulas.py").write_text(MODULE)
        info = tmp_path / "brought-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: brought\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[{GROUP}]\nmine = {target}\n")
        monkeypatch.syspath_prepend(str(tmp_path))
        installed_formulas.cache_clear()

    yield install
    sys.modules.pop("brought_formulas", None)
    installed_formulas.cache_clear()


def test_an_installed_package_brings_formulas(installs: Callable[[str], None], tmp_path: Path) -> None:
    installs("brought_formulas:FORMULAS")
    path = tmp_path / "t.json"
    path.write_text('{"traceEvents": []}')
    trace = read(str(path))
    formula = formula_of(trace, "brought::mm")
    assert formula(called("brought::mm", [2, 3], [5], types="c10::Half")) == Work(20, 20, 12, "fp8")
    with pytest.raises(Unrecorded):
        formula(called("brought::mm", [2, 3]))  # None
    with pytest.raises(Unrecorded):
        formula(called("brought::mm", [], [5]))  # no shape
    with pytest.raises(UsageError, match="formula of brought's entry point mine for brought::broken failed: Attribute"):
        formula(called("brought::broken", [2, 3]))
    rows = [{"operator": "^brought::mm$", "flops": "7"}]
    replaced = formula_of(trace.changed(Tables({"flops": rows})), "brought::mm")
    assert replaced(called("brought::mm", [2, 3])).flops == 7


@pytest.mark.parametrize(
    "target", ["brought_formulas:WRONG", "brought_formulas:flops", "brought_formulas:NONE", "no_module"]
)
def test_a_wrong_entry_point_is_named(installs: Callable[[str], None], target: str) -> None:
    installs(target)
    with pytest.raises(UsageError, match=r"brought's entry point mine \(kineto_augment.flops\)"):
        installed_formulas()


def test_a_table_in_a_file_has_no_functions() -> None:
    with pytest.raises(UsageError, match="a formula"):
        formulas_of([{"operator": "x", "flops": len}])


BF16, FP8, INT = ("c10::BFloat16", 2), ("c10::Float8_e4m3fn", 1), ("int", 4)


@pytest.mark.parametrize(("operator", "tensors", "multiplications", "moved"), [
    # 16 tokens of 64 times weights of 4 bits, 8 of them in an int: (64, 96); scales for groups of 32
    (
        "_C::gptq_gemm",
        [([16, 64], BF16), ([8, 96], INT), ([2, 12], INT), ([2, 96], BF16), ([64], INT)],
        16 * 64 * 96,
        16 * 64 * 2 + 8 * 96 * 4 + 2 * 12 * 4 + 2 * 96 * 2 + 16 * 96 * 2,
    ),
    (
        "_C::awq_gemm",
        [([16, 64], BF16), ([64, 12], INT), ([2, 96], BF16), ([2, 12], INT)],
        16 * 64 * 96,
        16 * 64 * 2 + 64 * 12 * 4 + 2 * 96 * 2 + 2 * 12 * 4 + 16 * 96 * 2,
    ),
    (
        "_C::gptq_marlin_gemm",  # as it was: the packed weight, then the scales
        [([16, 64], BF16), ([4, 192], INT), ([2, 96], BF16), ([2, 12], INT)],
        16 * 64 * 96,
        16 * 64 * 2 + 4 * 192 * 4 + 2 * 96 * 2 + 16 * 96 * 2,
    ),
    (
        "_C::gptq_marlin_gemm",  # as it is: the result, or none, before
        [([16, 64], BF16), ([], BF16), ([4, 192], INT), ([], BF16), ([2, 96], BF16)],
        16 * 64 * 96,
        16 * 64 * 2 + 4 * 192 * 4 + 2 * 96 * 2 + 16 * 96 * 2,
    ),
    (
        "_C::cutlass_scaled_fp4_mm",
        [([16, 96], BF16), ([16, 32], ("unsigned char", 1)), ([96, 32], ("unsigned char", 1))],
        16 * 64 * 96,
        16 * 96 * 2 + 16 * 32 + 96 * 32,
    ),
    ("_C::awq_dequantize", [([64, 12], INT), ([2, 96], BF16), ([2, 12], INT)], None, 64 * 48 + 384 + 96 + 64 * 192),
    ("sgl_kernel::fused_add_rmsnorm", [([16, 64], BF16), ([16, 64], BF16), ([64], BF16)], None, 4 * 2048 + 128),
    ("sgl_kernel::gemma_rmsnorm", [([16, 64], BF16), ([16, 64], BF16), ([64], BF16)], None, 2 * 2048 + 128),
    ("_C::dynamic_scaled_fp8_quant", [([16, 64], FP8), ([16, 64], BF16), ([1], BF16)], None, 1024 + 2048),
    (
        "_C::fused_add_rms_norm_static_fp8_quant",
        [([16, 64], FP8), ([16, 64], BF16), ([16, 64], BF16), ([64], BF16)],
        None,
        1024 + 2048 + 2 * 2048 + 128,
    ),
])  # fmt: skip
def test_operators_of_engines(operator: str, tensors: list[Any], multiplications: int | None, moved: int) -> None:
    call = Call(operator, [dims for dims, _ in tensors], [name for _, (name, _) in tensors])
    formula = formula_of(trace_of(), operator)
    work = formula(call)
    assert (work.flops, work.bytes) == (None if multiplications is None else 2 * multiplications, moved)


def test_latent_attention_of_decodes() -> None:
    """Each token of 4 sequences attends with 8 heads to a latent of 512 and a part with positions of 64."""
    operator = "vllm::unified_mla_attention_with_output"
    dims = [[4, 8, 192], [4, 512], [4, 64], [4, 1024]]
    formula = formula_of(trace_of(), operator)
    heads = formula(Call(operator, dims, ["c10::BFloat16"] * 4)).heads
    assert heads is not None
    decode = Batch("decode", "vLLM", 4, 0, 0, 0, 0, 0, 4, 4, 4_000, 4_000)
    pairs = 4_000
    work = work_of(heads, decode)
    assert work.flops == pairs * 8 * (2 * (512 + 64) + 2 * 512)
    assert work.bytes == 4_000 * (512 + 64) * 2 + 2 * 4 * 8 * 192 * 2
    mixed = replace(decode, phase="mixed", prefill_requests=1, prefill_tokens=9, prefill_context=9, prefill_squares=81)
    assert work_of(heads, replace(mixed, prefill_pairs=81)).flops is None
