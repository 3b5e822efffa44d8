"""Tables of other recorders, read with care: SQLite files, folders of Parquet files, CSV files.

The files may come from anybody. Only ordinary tables of a database are read, and only the columns that a
reader names: no view, trigger or virtual table runs. Its work, and the length of its cells, are bounded.
"""

from __future__ import annotations

import csv
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from augment.errors import LimitExceeded, UnknownFormat
from augment.readers.recorders.kineto_text import Row

CELL_BYTES = 1 << 20  #: the longest text or blob of a cell
_STEP = 1 << 20  #: instructions of SQLite between two looks at its work
#: instructions that a database may take: a row of 10 bytes takes about 20 at each reading, and it is read a few times
_LEAST_WORK, _WORK_PER_BYTE = 1 << 24, 50
_BATCH = 1 << 14  #: rows of a Parquet file at a time
_PRAGMA, _READ, _SELECT = 19, 20, 21  #: actions, as SQLite numbers them


class RecorderTables(Protocol):
    """The tables of a file. ``damage``: why some rows could not be read, None if all could."""

    names: frozenset[str]
    damage: str | None

    def columns(self, table: str) -> frozenset[str]:
        """The columns of a table; none if there is no such table."""

    def rows(self, table: str, columns: Sequence[str]) -> Iterator[Row]:
        """The rows of a table in a fixed order; None for each column that it lacks. They end where the file is damaged.

        Raises:
            LimitExceeded: the file takes far more work than its size explains.
        """


class SqliteTables:
    """The tables of an SQLite database at ``path``, which the user calls ``named``."""

    def __init__(self, path: str, named: str) -> None:
        import sqlite3

        self._named, self._error = named, sqlite3.Error
        self.damage: str | None = None
        self._work, self._most = 0, _LEAST_WORK + _WORK_PER_BYTE * os.path.getsize(path)
        self._wanted = "sqlite_master", frozenset(("name", "type", "rootpage"))
        self._columns: dict[str, frozenset[str]] = {}
        try:
            self._database = sqlite3.connect(
                f"{Path(path).absolute().as_uri()}?mode=ro&immutable=1", uri=True, check_same_thread=False
            )
            self._database.text_factory = lambda text: text.decode("utf-8", "replace")
            for pragma in ("trusted_schema=OFF", "query_only=ON", "cell_size_check=ON", "mmap_size=0"):
                self._database.execute(f"PRAGMA {pragma}")
            if sys.version_info >= (3, 11):
                self._database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, CELL_BYTES)
            self._database.set_progress_handler(self._worked, _STEP)
            self._database.set_authorizer(self._allowed)
            # a virtual table has no root page
            rows = self._database.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0")
            self.names = frozenset(str(name) for (name,) in rows)
        except (sqlite3.Error, UnicodeDecodeError) as error:  # names that are no text
            raise UnknownFormat(named, f"an SQLite database that cannot be read ({_line(error)})") from error

    def close(self) -> None:
        """Close the database."""
        self._database.close()

    def columns(self, table: str) -> frozenset[str]:
        """See :class:`RecorderTables`."""
        if table not in self._columns:
            rows = self._query(f"PRAGMA table_info({_quoted(table)})") if table in self.names else ()
            self._columns[table] = frozenset(str(row[1]) for row in rows)
        return self._columns[table]

    def rows(self, table: str, columns: Sequence[str]) -> Iterator[Row]:
        """See :class:`RecorderTables`."""
        if known := self.columns(table):
            chosen = ", ".join(_quoted(name) if name in known else "NULL" for name in columns)
            self._wanted = table, frozenset(columns)
            yield from self._query(f"SELECT {chosen} FROM {_quoted(table)}")  # noqa: S608 - names of the schema, quoted

    def _query(self, query: str) -> Iterator[Row]:
        try:
            yield from self._database.execute(query)
        except (self._error, UnicodeDecodeError) as error:
            if self._work > self._most:
                raise LimitExceeded(self._named, "the database takes far more work than its size explains") from error
            self.damage = f"the database is damaged ({_line(error)})"

    def _worked(self) -> bool:
        self._work += _STEP
        return self._work > self._most

    def _allowed(self, action: int, first: str | None, second: str | None, _base: str | None, via: str | None) -> int:
        """0 if SQLite may do this, else 1. ``via``: the view or trigger that wants it."""
        table, columns = self._wanted
        is_read = action == _READ and first == table and (second in columns or not second)
        is_fine = via is None and (action == _SELECT or is_read or (action == _PRAGMA and first == "table_info"))
        return 0 if is_fine else 1


def _line(error: Exception) -> str:
    """What it says, in a line."""
    return " ".join((str(error) or type(error).__name__).split())[:200]


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


class ParquetTables:
    """The Parquet files in a folder: each is a table, named as the file."""

    def __init__(self, folder: str, named: str) -> None:
        try:
            import pyarrow.parquet as parquet
        except ImportError as error:
            raise UnknownFormat(named, "Parquet: pip install pyarrow, or nsys export --type sqlite") from error
        self._parquet, self._files = parquet, dict[str, Any]()
        self.damage: str | None = None
        self._paths = {path.stem: path for path in sorted(Path(folder).glob("*.parquet"))}
        self.names = frozenset(self._paths)

    def columns(self, table: str) -> frozenset[str]:
        """See :class:`RecorderTables`."""
        file = self._file(table)
        return frozenset(file.schema_arrow.names if file else ())

    def rows(self, table: str, columns: Sequence[str]) -> Iterator[Row]:
        """See :class:`RecorderTables`."""
        chosen = [name for name in columns if name in self.columns(table)]
        if not chosen:
            return
        nothing = [None] * _BATCH
        batches = self._file(table).iter_batches(_BATCH, columns=chosen)
        while True:
            try:
                batch = next(batches, None)
                values = {name: batch.column(name).to_pylist() for name in chosen} if batch else {}
            except Exception as error:
                self._damaged(table, error)
                break
            if not values:
                break
            yield from zip(*(values.get(name, nothing) for name in columns), strict=False)

    def _file(self, table: str) -> Any:
        if table not in self._files:
            try:
                self._files[table] = self._parquet.ParquetFile(self._paths[table]) if table in self.names else None
            except Exception as error:
                self._files[table] = None
                self._damaged(table, error)
        return self._files[table]

    def _damaged(self, table: str, error: Exception) -> None:
        self.damage = f"{table}.parquet is damaged ({_line(error)})"


class CsvTables:
    """CSV files: each is a table, named by its kind (``kernel_trace``). ``texts``: the lines of each, with a header."""

    def __init__(self, texts: Mapping[str, Iterable[str]]) -> None:
        self.damage: str | None = None
        self._readers = {name: csv.reader(lines) for name, lines in texts.items()}
        self._headers: dict[str, list[str]] = {}
        for name, reader in self._readers.items():
            try:
                self._headers[name] = next(reader, [])
            except csv.Error as error:  # noqa: PERF203 - a few files
                self.damage = f"the CSV is damaged ({_line(error)})"
        self.names = frozenset(texts)

    def columns(self, table: str) -> frozenset[str]:
        """See :class:`RecorderTables`."""
        return frozenset(self._headers.get(table, ()))

    def rows(self, table: str, columns: Sequence[str]) -> Iterator[Row]:
        """See :class:`RecorderTables`. They can be read once."""
        header = self._headers.get(table, [])
        places = [header.index(name) if name in header else None for name in columns]
        try:
            for row in self._readers.get(table, ()):
                if count := len(row):  # else a line without anything
                    yield tuple(None if at is None or at >= count else row[at] for at in places)
        except csv.Error as error:
            self.damage = f"the CSV is damaged ({error})"
