"""Regular expressions that are compiled late."""

import re

import pytest

from augment.patterns import regex


def test_a_late_pattern_works_as_a_compiled_one() -> None:
    pattern = regex(r"(a+)b", re.IGNORECASE)
    match = pattern.search("xAAB")
    assert match is not None
    assert match[1] == "AA"
    assert pattern.sub("-", "ab ab") == "- -"
    assert [each.group() for each in pattern.finditer("abaab")] == ["ab", "aab"]
    assert (pattern.pattern, pattern.groups) == (r"(a+)b", 1)
    assert regex(rb"\d").fullmatch(b"7")


def test_a_late_pattern_is_compiled_at_its_first_use() -> None:
    broken = regex("(")
    with pytest.raises(re.error):
        broken.search("x")


def test_what_a_pattern_lacks_is_no_attribute() -> None:
    with pytest.raises(AttributeError):
        _ = regex("x").nothing  # type: ignore[attr-defined]
