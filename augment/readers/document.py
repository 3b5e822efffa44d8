"""A whole file as one JSON value: for the files beside traces, which are small."""

from __future__ import annotations

from typing import Any

from augment.errors import UnknownFormat
from augment.jsontext import lenient_json
from augment.readers.containers import CHUNK, open_text


def read_document(path: str) -> Any:
    """The JSON value in the file at ``path``, plain or compressed.

    Raises:
        InputError: there is no such file, or it may not be read.
        UnknownFormat: it is no JSON.
        LimitExceeded: it decompresses to absurdly much.
    """
    pieces = []
    with open_text(path) as text:
        while piece := text.read(CHUNK):
            pieces.append(piece)
        damage = text.damage
    try:
        return lenient_json(b"".join(pieces))
    except ValueError as error:
        raise UnknownFormat(path, damage or "no JSON") from error
