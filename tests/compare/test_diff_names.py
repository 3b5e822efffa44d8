"""What differs from run to run is no part of a name."""

from __future__ import annotations

import numpy as np
import pytest

from augment.arrays.types import NO_INDEX
from augment.compare.calls import Names, Paths, settled_name, short_name


@pytest.mark.parametrize(
    ("name", "settled"),
    [
        ("ProfilerStep#12", "ProfilerStep"),
        ("Torch-Compiled Region: 5/2", "Torch-Compiled Region"),
        (
            "## Call CompiledFxGraph fpd3wmmqyhdyzq7yn7xxr4eiayiyblbyaypqn4yuppxs4lnwnrzu ##",
            "## Call CompiledFxGraph … ##",
        ),
        ("<function f at 0x7f0012ab34cd>", "<function f at 0x…>"),
        ("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", "enumerate(DataLoader)"),
        ("nvjet_tst_192x192_64x3_2x1_v_bz_coopB_NNN", "nvjet_tst_192x192_64x3_2x1_v_bz_coopB_NNN"),
        ("aten::mm", "aten::mm"),
    ],
)
def test_settled_name(name: str, settled: str) -> None:
    assert settled_name(name) == settled


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("void at::native::elementwise_kernel<4, f<int>(a)>(int, long)", "at::native::elementwise_kernel"),
        ("aten::mm", "aten::mm"),
        ("Memcpy HtoD (Pinned -> Device)", "Memcpy HtoD (Pinned -> Device)"),
        ("## forward ##", "## forward ##"),
        ("autograd::engine::evaluate_function: MmBackward0",) * 2,
        ("(anonymous)", "(anonymous)"),
    ],
)
def test_short_name_as_hta_has_it(name: str, short: str) -> None:
    assert short_name(name) == short


def test_equal_names_have_one_number_on_both_sides() -> None:
    names = Names()
    control = names.of(np.array([2, 0, 2], np.int32), ["ProfilerStep#1", "unused", "aten::mm"])
    test = names.of(np.array([0, 1], np.int32), ["aten::mm", "ProfilerStep#7"])
    assert control[0] == control[2] != control[1]
    assert test.tolist() == [control[0], control[1]]


def test_paths() -> None:
    names = Names()
    outer, inner = names.number("aten::linear"), names.number("aten::addmm")
    paths = Paths(names)
    top = paths.of(np.array([NO_INDEX], np.int32), np.array([outer], np.int32))
    below = paths.of(np.repeat(top, 2), np.array([inner, inner], np.int32))
    assert below[0] == below[1]
    assert paths.text(int(below[0])) == "aten::linear > aten::addmm"
    assert paths.text(NO_INDEX) == ""
