"""Tables as Parquet, by pyarrow, which is loaded only here."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from augment.core.tabular import Table
from augment.errors import UsageError
from augment.writers.files import replacing


def write_parquet(table: Table, path: str | os.PathLike[str]) -> None:
    """Write ``table`` to ``path``.

    Raises:
        UsageError: pyarrow is not installed.
        OutputError: ``path`` cannot be written.
    """
    arrow = pyarrow()
    with replacing(Path(path)) as file:
        arrow.parquet.write_table(arrow.table(table), file)


def pyarrow() -> Any:
    """The library.

    Raises:
        UsageError: it is not installed.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise UsageError("Parquet needs pyarrow: pip install 'kineto-augment[history]'") from error
    return pyarrow
