"""How figures and names become text."""

from __future__ import annotations

import pytest

from augment.core.text import Words, opening, percent, percents, period, unmangled


@pytest.mark.parametrize(
    ("ratio", "text"), [(0.0, "0 %"), (0.0004, "<0.1 %"), (0.0123, "1.2 %"), (0.916, "92 %"), (0.9962, "99.6 %")]
)
def test_shares(ratio: float, text: str) -> None:
    assert percent(ratio) == percents(ratio, ratio) == text
    assert percents(0.07, ratio) == f"7.0 to {text}"


def test_a_period_selects_what_it_is_of() -> None:
    assert [period(84_779_000, 10**6), period(0, 300), period(9, 0)] == ["84.779-85.779", "0.000000-0.000300", "0.000"]


MANGLED = {
    "_ZN5aiter4gemmILi8EEvPT_": "aiter::gemm<Li8EEvPT_>",
    "_ZN2ck12_GLOBAL__N_16kernelIfEvv": "ck::(anonymous)::kernel<fEvv>",
    "_Z3addPfS_": "add(PfS_)",
    **{name: name for name in ("void at::native::add<float>(int)", "_Z", "_ZN", "_Z9cut", "_ZSt4fill", "")},
}


def test_names_that_were_mangled_are_shown_by_what_they_are_called() -> None:
    assert {name: unmangled(name) for name in MANGLED} == MANGLED


def test_calls_are_counted_in_whole_numbers() -> None:
    """A mean of 0.4 calls is of something, and what it takes is still told per step."""
    words = Words(steps=5)
    assert [words.often(count, "call") for count in (0.4, 2.0, 12.4)] == [
        "2 calls in 5 steps", "2 calls per step", "12 calls per step",
    ]  # fmt: skip
    assert words.often(1.2, "copy", "copies", of=" of 1 MB") == "6 copies of 1 MB in 5 steps"
    assert [words.each(0.4), words.each(2.0), Words("recording").each(3)] == [" per step", "", ""]


def test_a_command_of_a_verdict_opens_its_trace() -> None:
    said = "look at it (augment open TRACE --at 1.000-2.000)"
    assert opening([said], "my run/t.json") == ["look at it (augment open 'my run/t.json' --at 1.000-2.000)"]
    assert opening([said], None) == [said]
