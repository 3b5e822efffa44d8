"""JSON that profilers break is mended, and nothing else is changed."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from augment.compare.totals import samples_of_sidecar
from augment.core.jsontext import compact_json, lenient_json, mended, mended_json, spaced_json
from augment.core.old_names import current
from augment.pipeline import augment
from augment.results.sidecars import read_sidecar
from augment.writers import metrics
from tables import annotation, call, kernel, trace_of

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(values, st.booleans(), st.sampled_from([None, 1]))
def test_what_is_json_stays_as_it_is(value: object, ascii_only: bool, indent: int | None) -> None:
    assert json.loads(mended(json.dumps(value, ensure_ascii=ascii_only, indent=indent))) == value


@pytest.mark.parametrize(("text", "value"), [
    ('{"Process Group Description": , "a": 1}', {"Process Group Description": None, "a": 1}),
    ('{"a": 1, "last":}', {"a": 1, "last": None}),
    ('{"blocks per SM": inf, "x": -inf, "y": +1.5}', {"blocks per SM": math.inf, "x": -math.inf, "y": 1.5}),
    ('{"a": 007, "b": -.5, "c": 1., "d": 0x1F, "e": 1.e3}', {"a": 7, "b": -0.5, "c": 1.0, "d": 31, "e": 1000.0}),
    ('{"a": True, "b": [None, False]}', {"a": True, "b": [None, False]}),
    (r'{"name": "C:\Users\x\new\uff.py"}', {"name": "C:\\Users\\x\new\\uff.py"}),
    ('{,"a": [1,, 2,], ,"b": {},}', {"a": [1, 2], "b": {}}),
    ('{"a": 1 "b": "x", "c": [2] "d": 3}', {"a": 1, "b": "x", "c": [2], "d": 3}),
])  # fmt: skip
def test_what_is_mended(text: str, value: object) -> None:
    with pytest.raises(ValueError, match=r"."):
        lenient_json(text.encode())
    assert mended_json(text.encode()) == value


def test_numbers_that_are_none() -> None:
    result = mended_json(b'[nan, -nan, -nan(ind), NaN, "nan, -nan(ind) , ,"]')
    assert [math.isnan(each) for each in result[:4]] == [True] * 4
    assert result[4] == "nan, -nan(ind) , ,"


@pytest.mark.parametrize("text", ['{"a": "b', "{a: 1}", '{"a": 1', '{"a" "b"}', "garbage", ""])
def test_what_stays_broken(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        mended_json(text.encode())


# Files of earlier versions are read with today's names.
STEPS = (
    annotation("ProfilerStep#1", 0, 100), call("cudaLaunchKernel", 5, 8, correlation=1),
    kernel("gemm", 10, 150, correlation=1), annotation("ProfilerStep#2", 100, 200),
)  # fmt: skip


def ok(*rows: dict[str, Any]) -> dict[str, Any]:
    return {"status": "ok", "rows": list(rows)}


def test_tables_of_steps_become_one() -> None:
    host = {"rank": 0, "device": 0, "step": 1, "wall_ns": 41}
    window = {"rank": 0, "device": 0, "step": 1, "step_ns": 36}
    old = {"analyses": {"steps": ok(host), "step_variation": ok({"count": 1}), "step_figures": ok(window)}}
    assert current(old) == {"analyses": {"steps": ok({"rank": 0, "device": 0, "step": 1, "wall_ns": 36})}}
    assert current({"analyses": {"steps": ok(host)}}) == {"analyses": {}}, "of the host alone: no figure of a step"


def test_columns_and_figures_have_todays_names() -> None:
    old = {
        "step_efficiency": ok({"overlap_ratio": 0.5, "exposed_copy_ns": 1}),
        "communication_computation_overlap": ok({"overlap_ratio": 0.5}),
        "step_heat": ok({"step_ns": 3, "communication_ns": 2, "memory_ns": 1}),
        "diff_figures": ok({"figure": "step_ns"}, {"figure": "busy_ns"}),
        "kernel_breakdown": ok(),
    }
    assert current({"analyses": old})["analyses"] == {
        "step_efficiency": ok({"overlap_of_possible_ratio": 0.5, "exposed_memory_ns": 1}),
        "communication_computation_overlap": ok({"overlap_ratio": 0.5}),
        "step_heat": ok({"wall_ns": 3, "exposed_communication_ns": 2, "exposed_memory_ns": 1}),
        "diff_figures": ok({"figure": "wall_ns"}, {"figure": "busy_ns"}),
        "kernel_breakdown": ok(),
    }


def test_an_old_sidecar_is_a_baseline(tmp_path: Path) -> None:
    document = metrics.as_read(augment(trace_of(*STEPS), only=["steps"]))
    new = tmp_path / "new.metrics.json"
    new.write_text(json.dumps(document))
    document["analyses"]["step_figures"] = document["analyses"].pop("steps")
    for row in document["analyses"]["step_figures"]["rows"]:
        row["step_ns"] = row.pop("wall_ns")
    old = tmp_path / "old.metrics.json"
    old.write_text(json.dumps(document))
    before, after = (samples_of_sidecar(str(path), read_sidecar(str(path))) for path in (old, new))
    assert before["wall_ns"].tolist() == after["wall_ns"].tolist() == [150, 50]


@given(st.recursive(st.integers() | st.sampled_from(["", "3", "1,2", 'a"b', "é"]) | st.floats() | st.none(), st.lists))
def test_json_is_written_as_python_writes_it(value: Any) -> None:
    assert compact_json(value) == json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    assert spaced_json(value) == json.dumps(value, ensure_ascii=False)
