"""Parsing of TOML files that users write, with errors of one line, and of the tables that come with the package."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from augment.errors import UsageError
from augment.patterns import regex

#: a line of a table as most are: its name, or a key with a text or number
_PLAIN_LINE = regex(
    r"""\[\[(\w+)\]\]
    | (\w+)[ ]=[ ] (?: '([^']*)' | "([^"\\]*)" | ([1-9]\d*(?:_\d+)*) | ((?:0|[1-9]\d*)\.\d+) ) (?:[ ]+\#.*)?
    | \#.*
    |""",
    re.VERBOSE,
)


def parse_toml(text: str) -> dict[str, Any]:
    """The document; raises ``tomllib.TOMLDecodeError``, which is a ValueError."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    document: dict[str, Any] = tomllib.loads(text)
    return document


def plain_toml(text: str) -> dict[str, Any]:
    """As :func:`parse_toml`, in a tenth of the time, if the document has only arrays of tables with plain lines."""
    document: dict[str, list[dict[str, Any]]] = {}
    table: dict[str, Any] | None = None
    for match in map(_PLAIN_LINE.fullmatch, text.splitlines()):
        if match is None or (match[2] and (table is None or match[2] in table)):
            return parse_toml(text)
        name, key, literal, basic, whole, decimal = match.groups()
        if name:
            table = {}
            document.setdefault(name, []).append(table)
        elif key and table is not None:
            given = basic if literal is None else literal
            number = float(decimal) if decimal else int(whole or 0)
            table[key] = number if given is None else given
    return document


def read_toml(path: str) -> dict[str, Any]:
    """The document in the file at ``path``.

    Raises:
        UsageError: the file cannot be read or is not TOML.
    """
    try:
        return parse_toml(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: {(error.strerror or str(error)).lower()}") from error
    except ValueError as error:
        raise UsageError(f"{path}: {error}") from error
