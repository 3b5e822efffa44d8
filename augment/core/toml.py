"""Parsing of TOML, for every supported Python, with errors of one line."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from augment.errors import UsageError


def parse_toml(text: str) -> dict[str, Any]:
    """The document; raises ``tomllib.TOMLDecodeError``, which is a ValueError."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    document: dict[str, Any] = tomllib.loads(text)
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
