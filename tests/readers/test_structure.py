"""Where a nested value ends, whatever its length."""

from __future__ import annotations

import json

import numpy as np
import pytest

from augment.readers.members import nested_end

SIZES = [0, 1, 4080, 4090, 4093, 4094, 4095, 4096, 16_380, 16_384, 70_000]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("filling", ["x", "\\", '"', "é", "]"])
def test_an_end_is_found_beyond_any_length(size: int, filling: str) -> None:
    value = json.dumps({"a": [{"b": filling * size}, "}"], "c": {}}, ensure_ascii=False).encode()
    whole = np.frombuffer(value + b', "next": [{}]}' + b" " * 5000, np.uint8)
    assert nested_end(whole) == len(value)
    for end in (0, 1, len(value) // 2, len(value) - 1):
        assert nested_end(whole[:end]) == -1
