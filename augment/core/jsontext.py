"""JSON as profilers write it: parsed strictly, else leniently, else after repair."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec

_SURROGATE = re.compile(r"[\ud800-\udfff]")
_ESCAPED_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_strict = msgspec.json.Decoder()
_fast = msgspec.json.Encoder().encode
_AS_PYTHON = b'[]",-0123456789'  #: lists of integers, as those of texts without escapes, msgspec writes as Python does
_compact = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_spaced = json.JSONEncoder(ensure_ascii=False).encode


def compact_json(value: Any) -> str:
    """``value`` as Python's JSON without blanks."""
    return _list_json(value) or _compact(value)


def spaced_json(value: Any) -> str:
    """``value`` as Python's JSON, with a blank after each comma and colon."""
    written = _list_json(value)
    return _spaced(value) if not written or '"' in written else written.replace(",", ", ")


def _list_json(value: Any) -> str:
    """As :func:`compact_json` for most shapes and strides, in a fraction of the time; empty for other values."""
    if isinstance(value, list):
        with suppress(OverflowError, UnicodeEncodeError):
            written = _fast(value)
            if not written.translate(None, _AS_PYTHON) or (b"\\" not in written and {*map(type, value)} == {str}):
                return written.decode()
    return ""


def lenient_json(text: bytes | memoryview) -> Any:
    """The value of one JSON text.

    Accepts what strict JSON refuses but traces contain: NaN and Infinity, raw control characters and invalid UTF-8
    inside strings, and lone surrogates (replaced by U+FFFD). Numbers become int or float, so exact times must be read
    by other means.

    Raises:
        ValueError: the text is not JSON even so.
    """
    try:
        return _strict.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        try:
            value = json.loads(bytes(text).decode("utf-8", "replace"), strict=False)
        except RecursionError as error:
            raise ValueError("nested too deeply") from error
        if _ESCAPED_SURROGATE.search(text):
            value = json.loads(clean(json.dumps(value, ensure_ascii=False)))
        return value


def clean(text: str) -> str:
    """``text`` without lone surrogates, which UTF-8 cannot encode."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def mended_json(text: bytes | memoryview) -> Any:
    """The value of one JSON text, after :func:`mended` if necessary.

    Raises:
        ValueError: the text is not JSON even so.
    """
    try:
        return lenient_json(text)
    except ValueError:
        return lenient_json(mended(bytes(text).decode("utf-8", "replace")).encode("utf-8", "replace"))


def storable(name: str) -> str:
    """The name of a file or folder as valid text: bytes that are not UTF-8 become ``\\xff``."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def json_line(value: Any) -> str:
    """``value`` as JSON on one line; file names survive a round trip whatever their bytes."""
    text = json.dumps(value, ensure_ascii=False)
    return text if text.isascii() else _SURROGATE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def mended(text: str) -> str:
    """``text`` with the known faults of profilers repaired. The result is JSON if the text had no others.

    Repaired are: a key without a value (becomes null), numbers as C or Python prints them (``-nan``, ``inf``, ``1.``,
    ``007``, ``0x1f``), Python's constants, lone backslashes of Windows paths, surplus commas, and a comma missing
    before a key.
    """
    parts = [_in_string(part) if part.startswith('"') else _outside(part) for part in _PARTS.findall(text)]
    for place in range(1, len(parts)):
        if parts[place].startswith('"') and _VALUE_ENDS.search(parts[place - 1]):
            parts[place] = "," + parts[place]
    return "".join(parts)


_PARTS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[^"]+|"', re.DOTALL)
_LONE_BACKSLASH = re.compile(r'\\(\\|["/bfnrt]|u[0-9a-fA-F]{4})|\\')
_VALUE_ENDS = re.compile(r"[\w\]}]\s*$")
_Replacement = str | Callable[[re.Match[str]], str]
_OUTSIDE: tuple[tuple[str, _Replacement], ...] = (
    (r"(?<![\w.])[-+]?(?:nan|NaN|NAN)\b(?:\(\w*\))?", "NaN"),
    (r"(?<![\w.])\+?(-?)(?:inf|Inf|INF|Infinity|infinity)\b", r"\1Infinity"),
    (r"\bTrue\b", "true"),
    (r"\bFalse\b", "false"),
    (r"\b(?:None|undefined)\b", "null"),
    (r"(?<![\w.])0[xX]([0-9a-fA-F]{1,16})\b", lambda match: str(int(match[1], 16))),
    (r"(?<![\w.+-])\+(?=[\d.])", ""),
    (r"(?<![\w.])0+(?=\d)", ""),
    (r"(?<![\w.])\.(?=\d)", "0."),
    (r"(?<=\d)\.(?!\d)", ".0"),
    (r",(?:\s*,)+", ","),
    (r"([\[{])\s*,", r"\1"),
    (r",(?=\s*[\]}])", ""),
    (r":(?=\s*[,\]}])", ": null"),
)


def _in_string(text: str) -> str:
    return _LONE_BACKSLASH.sub(lambda match: match[0] if match[1] else r"\\", text)


def _outside(text: str) -> str:
    for pattern, replacement in _OUTSIDE:
        text = re.sub(pattern, replacement, text)
    return text
