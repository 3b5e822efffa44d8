"""When compiled code is loaded: for much work at once, and for much by and by."""

from __future__ import annotations

import numpy as np
import pytest

from augment.annotations import SliceTrack, Texts
from augment.kernels.load import Load
from augment.writers.perfetto import annotations, packets
from augment.writers.perfetto.args import ArgsEncoder, Interned


def test_much_at_once() -> None:
    assert not Load().pays(99, 100)
    assert Load().pays(100, 100)


def test_much_by_and_by() -> None:
    load = Load()
    assert [load.pays(30, 100) for _ in range(6)] == [False, False, False, True, True, True]
    assert load.pays(0, 100)


def test_a_process_that_writes_many_small_files_loads_it_at_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packets, "_load", Load())
    each = packets.COMPILED_FROM // 10
    loaded = [packets.engine_for(each) is not None for _ in range(12)]
    assert loaded == [False] * 9 + [True] * 3


@pytest.mark.parametrize("count", [1, annotations._FEW_ROWS - 1, annotations._FEW_ROWS, 300])
def test_few_args_are_the_same_by_either_way(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = np.arange(count) * 1_000_003 - 1
    kinds = Texts((np.arange(count) % 4 - 1).astype(np.int32), ("a", "b", "c"))
    track = SliceTrack(
        analysis="a", name="n", under=0, ts=numbers + 1, dur=numbers + 1, names=kinds, args={"k": kinds, "n": numbers}
    )
    monkeypatch.setattr(packets, "_load", Load())
    engine = packets.engine_for(packets.COMPILED_FROM)
    made = []
    for few in (0, count + 1):
        monkeypatch.setattr(annotations, "_FEW_ROWS", few)
        made.append(annotations._args(track, ArgsEncoder(Interned()), engine).pieces())
    assert made[0] == made[1]
