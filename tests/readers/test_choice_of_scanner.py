"""Which scanner reads Chrome JSON: compiled code where it is worth its start."""

from __future__ import annotations

import pytest

from augment.kernels.load import Load
from augment.readers import chrome, compiled_scanner


@pytest.mark.parametrize(("size", "at_hand", "compiled"), [
    (chrome.LOADED_FROM - 1, True, False),
    (chrome.LOADED_FROM, True, True),
    (chrome.COMPILED_FROM - 1, False, False),
    (chrome.COMPILED_FROM, False, True),
])  # fmt: skip
def test_by_size_and_by_what_is_on_disk(
    size: int, at_hand: bool, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled_scanner, "is_at_hand", lambda: at_hand)
    monkeypatch.setattr(chrome, "_load", Load())
    assert chrome._is_worth_compiled_code(size) is compiled


def test_a_process_that_reads_many_compiles_at_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_scanner, "is_at_hand", lambda: False)
    monkeypatch.setattr(chrome, "_load", Load())
    each = 8 << 20
    choices = [chrome._is_worth_compiled_code(each) for _ in range(40)]
    assert choices.index(True) == chrome.WORTH_COMPILING // each - 1
    assert not chrome._is_worth_compiled_code(chrome.LOADED_FROM - 1)
