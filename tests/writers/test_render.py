from __future__ import annotations

import json

import numpy as np
import pytest

from augment.core.annotations import Texts
from augment.writers import templates
from plain_encoders import rendered

pytestmark = pytest.mark.slow

LEAST, MOST = -(2**63), 2**63 - 1


def plain(template: templates.Template) -> bytes:
    return rendered(template)


def compiled(template: templates.Template) -> bytes:
    return b"".join(bytes(piece) for piece in templates.render(template))


def random_template(rows: int) -> templates.Template:
    random = np.random.default_rng(0)
    words = templates.choice(Texts(random.integers(-1, 3, rows).astype(np.int32), ["host_wait", 'a "b" \\ c\n', "é😀"]))
    sizes = 10 ** random.integers(0, 18, rows)
    return [
        b'{"ts":',
        templates.micros(random.integers(-sizes, sizes)),
        b',"args":{',
        templates.TemplateArgs({"w": words, "n": templates.Number(random.integers(-1, 3, rows)), 'é"': words}),
        b'},"more":{',
        templates.TemplateArgs({"x": templates.number(random.integers(-1, 1, rows))}),
        b'},"v":',
        templates.number(random.normal(size=rows) * sizes.astype(np.float64) / 1e12),
        b"}\n",
    ]


@pytest.mark.parametrize("rows", [1, 4095, 4097, 70_000])
def test_both_ways_give_the_same_bytes(rows: int) -> None:
    template = random_template(rows)
    text = plain(template)
    assert text == compiled(template)
    assert len([json.loads(line) for line in text.splitlines()]) == rows == templates.rows_of(template)


@pytest.mark.parametrize("way_of", [plain, compiled])
def test_numbers(way_of: object) -> None:
    assert callable(way_of)
    integers = np.array([0, -2, 7, LEAST, MOST, 10, -10])
    assert way_of([templates.Number(integers), b" "]).split() == [b"%d" % i for i in integers.tolist()]
    times = np.array([0, 1, 999, 1000, -1, -1001, 1712195495406752797, MOST])
    assert way_of([templates.micros(times), b" "]).decode().split() == [
        "0.000", "0.001", "0.999", "1.000", "-0.001", "-1.001", "1712195495406752.797", "9223372036854775.807"
    ]  # fmt: skip
    floats = np.array([0.0, -0.0, 12.5, 1 / 3, -2e-7, 1e-6, 100.0, -1.25])
    assert way_of([templates.number(floats), b" "]).decode().split() == [
        "0", "0", "12.5", "0.333333", "0", "0.000001", "100", "-1.25"
    ]  # fmt: skip
    expected = [1e15, 1e300]
    assert [json.loads(text) for text in way_of([templates.number(np.array([1e15, 1e300])), b" "]).split()] == expected


@pytest.mark.parametrize("way_of", [plain, compiled])
def test_missing_args_leave_no_comma(way_of: object) -> None:
    assert callable(way_of)
    columns: dict[str, templates.Column] = {
        "a": templates.Number(np.array([1, -1, -1])),
        "b": templates.choice(Texts(np.array([0, 0, -1], np.int32), ["x"])),
    }
    template = [templates.Number(np.arange(3)), b"{", templates.TemplateArgs(columns), b"}"]
    assert way_of(template) == b'0{"a":1,"b":"x"}1{"b":"x"}2{}'
    nothing = templates.choice(Texts(np.array([-1], np.int32), []))
    assert way_of([templates.Number(np.arange(1)), b"{", templates.TemplateArgs({"a": nothing}), b"}"]) == b"0{}"


def test_only_texts_that_occur_are_encoded() -> None:
    chosen = templates.choice(Texts(np.array([70, -1, 7, 70], np.int32), [str(i) for i in range(100)]))
    assert (chosen.codes.tolist(), chosen.values) == ([1, -1, 0, 1], [b'"7"', b'"70"'])


@pytest.mark.parametrize(("text", "expected"), [
    ("é😀", '"é😀"'),
    ('a"b', '"a\\"b"'),
    ("C:\\", '"C:\\\\ "'),  # Perfetto before v53 refuses a file with a string that ends in a backslash
    ("\ud83d", '"?"'),  # and every version one with half a surrogate pair
    ("a\x00\n", '"a\\u0000\\n"'),
])  # fmt: skip
def test_strings_that_perfetto_takes(text: str, expected: str) -> None:
    assert templates.json_text(text).decode() == expected
