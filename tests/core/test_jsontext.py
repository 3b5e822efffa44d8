"""JSON that profilers break is mended, and nothing else is changed."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from augment.core.jsontext import lenient_json, mended, mended_json

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(values, st.booleans(), st.sampled_from([None, 1]))
def test_what_is_json_stays_as_it_is(value: object, ascii_only: bool, indent: int | None) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    assert json.loads(mended(text)) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"Process Group Description": , "a": 1}', {"Process Group Description": None, "a": 1}),
        ('{"a": 1, "last":}', {"a": 1, "last": None}),
        ('{"blocks per SM": inf, "x": -inf, "y": +1.5}', {"blocks per SM": math.inf, "x": -math.inf, "y": 1.5}),
        ('{"a": 007, "b": -.5, "c": 1., "d": 0x1F, "e": 1.e3}', {"a": 7, "b": -0.5, "c": 1.0, "d": 31, "e": 1000.0}),
        ('{"a": True, "b": [None, False]}', {"a": True, "b": [None, False]}),
        (r'{"name": "C:\Users\x\new\uff.py"}', {"name": "C:\\Users\\x\new\\uff.py"}),
        ('{,"a": [1,, 2,], ,"b": {},}', {"a": [1, 2], "b": {}}),
        ('{"a": 1 "b": "x", "c": [2] "d": 3}', {"a": 1, "b": "x", "c": [2], "d": 3}),
    ],
)
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
