"""JSON as it is found in the field: strict first, then forgiving."""

from __future__ import annotations

import json
from typing import Any

import msgspec

_strict = msgspec.json.Decoder()


def lenient_json(text: bytes | memoryview) -> Any:
    """The value of one JSON text.

    What strict JSON refuses but traces contain is taken: NaN and Infinity, raw control characters and invalid UTF-8
    inside strings (replaced by U+FFFD). Numbers come as int or float: read exact times elsewhere.

    Raises:
        ValueError: the text is not JSON by any of this.
    """
    try:
        return _strict.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        try:
            return json.loads(bytes(text).decode("utf-8", "replace"), strict=False)
        except RecursionError as error:
            raise ValueError("nested too deeply") from error
