"""Tables that come with the package."""

from __future__ import annotations

import pytest

from augment.facts.gpu.kernel_families import _compiled, _of_lower_case, shipped_rules
from augment.facts.operators.peaks import rows_of, shipped_rows


def test_shipped_peaks_are_rows() -> None:
    assert rows_of(shipped_rows()) == shipped_rows()


NAMES = [
    "aten::mm", "MyAttention_FWD", "void cutlass::Kernel2<cutlass_80_TensorOp_s1688gemm>", "FlashAttn", "ncclKernel",
    "void at::native::vectorized_elementwise_kernel<4, CUDAFunctor_add<float>>", "Torch-Compiled Region: 0/0",
    "aten::_Softmax", "nvjet_TST_128", "Cijk_Ailk_Bljk_HHS_BH_MT64", "Memcpy HtoD", "triton_poi_fused_Add_0",
]  # fmt: skip


def test_patterns_for_lower_case_find_what_patterns_without_regard_to_case_do() -> None:
    rules = shipped_rules()
    patterns = [pattern for kind in (rules.operators, rules.kernels, rules.matrix_units) for pattern, _ in kind]
    texts = {*NAMES, *map(str.upper, NAMES), *map(str.lower, NAMES)}
    texts |= {part for pattern in patterns for part in pattern.replace("\\", "").split("|")}
    texts |= {part.swapcase() for part in texts}
    late = [_of_lower_case(pattern) for pattern in patterns]
    assert sum(each is None for each in late) <= 2
    for pattern, lower in zip(patterns, late, strict=True):
        for text in texts if lower else ():
            assert bool(lower.search(text.lower())) == bool(_compiled(pattern).search(text)), (pattern, text)


@pytest.mark.parametrize(
    "pattern", [r"(?P<a>x)", r"(?i:x)", r"\x41", r"[A-z]", r"[@-_]", r"[+-z]", r"(?=[A-Z])", r"\1"]
)
def test_patterns_in_which_case_matters_stay(pattern: str) -> None:
    assert _of_lower_case(pattern) is None
