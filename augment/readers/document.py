"""Reads a whole file as one JSON value. It serves the small files that accompany traces."""

from __future__ import annotations

from typing import Any

from augment.core.jsontext import lenient_json
from augment.errors import UnknownFormat
from augment.readers.containers import CHUNK, open_text


def read_document(path: str) -> Any:
    """The JSON value in the file at ``path``, plain or compressed.

    Raises:
        InputError: the file does not exist, or access is denied.
        UnknownFormat: the file is not JSON.
        LimitExceeded: the decompressed text is absurdly large.
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
