"""JSON as it is found in the field: strict first, then forgiving, then repaired."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import msgspec

_SURROGATE = re.compile(r"[\ud800-\udfff]")
_ESCAPED_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_strict = msgspec.json.Decoder()


def lenient_json(text: bytes | memoryview) -> Any:
    """The value of one JSON text.

    What strict JSON refuses but traces contain is taken: NaN and Infinity, raw control characters and invalid UTF-8
    inside strings, and halves of surrogate pairs (replaced by U+FFFD). Numbers come as int or float: read exact times
    elsewhere.

    Raises:
        ValueError: the text is not JSON by any of this.
    """
    try:
        return _strict.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        try:
            found = json.loads(bytes(text).decode("utf-8", "replace"), strict=False)
        except RecursionError as error:
            raise ValueError("nested too deeply") from error
        if _ESCAPED_SURROGATE.search(text):
            found = json.loads(clean(json.dumps(found, ensure_ascii=False)))
        return found


def clean(text: str) -> str:
    """``text`` without lone surrogates, which no file can hold as UTF-8."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def mended_json(text: bytes | memoryview) -> Any:
    """The value of one JSON text, :func:`mended` if need be.

    Raises:
        ValueError: it is not JSON even so.
    """
    try:
        return lenient_json(text)
    except ValueError:
        return lenient_json(mended(bytes(text).decode("utf-8", "replace")).encode("utf-8", "replace"))


def storable(name: str) -> str:
    """The name of a file or folder as text that any file can hold: bytes that are no UTF-8 become ``\\xff``."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def json_line(value: Any) -> str:
    """``value`` as JSON on one line; names of files can be read back whatever bytes they are of."""
    text = json.dumps(value, ensure_ascii=False)
    return text if text.isascii() else _SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def mended(text: str) -> str:
    """``text`` with what profilers are known to break put right: JSON, if that was all.

    A key without a value (null), numbers as C or Python prints them (``-nan``, ``inf``, ``1.``, ``007``, ``0x1f``),
    Python's words, backslashes of Windows' paths, commas too many, or missing before a key.
    """
    parts = [_in_string(part) if part.startswith('"') else _outside(part) for part in _PARTS.findall(text)]
    for place in range(1, len(parts)):
        if parts[place].startswith('"') and _VALUE_ENDS.search(parts[place - 1]):
            parts[place] = "," + parts[place]
    return "".join(parts)


_PARTS = re.compile(r'"(?:[^"\\]|\\.)*"|[^"]+|"', re.DOTALL)
_LONE_BACKSLASH = re.compile(r'\\(\\|["/bfnrt]|u[0-9a-fA-F]{4})|\\')
_VALUE_ENDS = re.compile(r"[\w\]}]\s*$")
_Replacement = str | Callable[[re.Match[str]], str]
_OUTSIDE: tuple[tuple[re.Pattern[str], _Replacement], ...] = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"(?<![\w.])[-+]?(?:nan|NaN|NAN)\b(?:\(\w*\))?", "NaN"),
        (r"(?<![\w.])\+?(-?)(?:inf|Inf|INF|Infinity|infinity)\b", r"\1Infinity"),
        (r"\bTrue\b", "true"),
        (r"\bFalse\b", "false"),
        (r"\b(?:None|undefined)\b", "null"),
        (r"(?<![\w.])0[xX]([0-9a-fA-F]{1,16})\b", lambda found: str(int(found[1], 16))),
        (r"(?<![\w.+-])\+(?=[\d.])", ""),
        (r"(?<![\w.])0+(?=\d)", ""),
        (r"(?<![\w.])\.(?=\d)", "0."),
        (r"(?<=\d)\.(?!\d)", ".0"),
        (r",(?:\s*,)+", ","),
        (r"([\[{])\s*,", r"\1"),
        (r",(?=\s*[\]}])", ""),
        (r":(?=\s*[,\]}])", ": null"),
    )
)


def _in_string(text: str) -> str:
    return _LONE_BACKSLASH.sub(lambda found: found[0] if found[1] else r"\\", text)


def _outside(text: str) -> str:
    for pattern, replacement in _OUTSIDE:
        text = pattern.sub(replacement, text)
    return text
