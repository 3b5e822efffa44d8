"""Rows of one analysis of a job: filtered, ordered, in pages, with their columns described."""

from __future__ import annotations

import io
import sqlite3
import sys
import time
from collections.abc import Sequence
from typing import Any

import msgspec
from google.protobuf.wrappers_pb2 import BytesValue

from augment.core.findings import columns_of
from augment.core.tabular import Table
from augment.errors import UsageError
from augment.results.sidecars import row_types
from augment.v1 import service_pb2 as calls
from augment.writers.table_files import pyarrow
from augment_server.base.errors import Refusal, invalid
from augment_server.jobs.catalog import MetricsFile, damage_told
from augment_server.storage.filters import Field
from augment_server.storage.pages import Asked, page

MOST_BYTES, MOST_COLUMNS = 64 << 20, 500  #: of the rows that are looked through
MOST_VALUES = 1_000_000  #: of these rows, by their punctuation: each takes up to a hundred bytes of memory
#: the type of a column: how filters take it; others are JSON, and cannot be filtered
_FILTERED = {"boolean": "choice", "int64": "number", "double": "real", "string": "text"}
_TRUTH = {"true": 1, "false": 0}
_LARGEST = sys.float_info.max
_STEPS = 1000  #: of a query, after which its time is looked at


def query(file: MetricsFile, secret: bytes, job: str, request: calls.QueryMetricsRequest) -> calls.QueryMetricsResponse:
    """The page of rows that a request asks for. Blocks.

    Args:
        file: the metrics.
        secret: the key of page tokens.
        job: the job's name, for which a token is valid.
        request: names one of the analyses in ``file``.

    Raises:
        Refusal: the filter, order, page or a column is invalid, the rows are too large, or Arrow is not installed.
    """
    texts, left, values = list[bytes](), MOST_BYTES, 0
    for message in file.messages(request.analysis):
        left -= message.ByteSize()
        if left < 0:
            what = f"{request.analysis}: has more than {MOST_BYTES >> 20} MiB of rows; read the artifact"
            raise Refusal("LIMIT_EXCEEDED", what)
        texts += (added := [row.encode() for row in message.json_rows])
        values += sum(text.count(mark) for text in added for mark in (b",", b"[", b"{"))
        if values > MOST_VALUES:
            raise Refusal("LIMIT_EXCEEDED", f"{request.analysis}: has too many values; read the artifact")
    with damage_told():
        rows = [msgspec.json.decode(text, type=dict[str, Any]) for text in texts]
    columns = _columns(request.analysis, rows)
    for at, name in enumerate(request.columns):
        if name not in columns:
            raise invalid(f"columns[{at}]", f"there is no column {name[:80]!r}; known: {', '.join(columns)}")
    fields = {"row": Field("number", "id")}
    for at, column in enumerate(columns.values()):
        if kind := _FILTERED.get(column.type):
            fields[column.name] = Field(kind, f"c{at}", _TRUTH if kind == "choice" else None, optional=True)
    table = _Rows(secret, rows, list(columns), fields)
    asked = Asked(request.page_size, request.page_token, request.filter, request.order_by or "row")
    scope = ("? IS NOT NULL", [f"{job} {request.artifact} {request.analysis}"])  # so that tokens are of this list

    def message_of(row: sqlite3.Row) -> BytesValue:
        if not request.columns:
            return BytesValue(value=texts[row["id"]])
        kept = {name: rows[row["id"]].get(name) for name in request.columns}
        return BytesValue(value=msgspec.json.encode(kept))

    entries, more = page(table, "metrics", fields, scope, asked, message_of)  # type: ignore[arg-type]
    shown = [columns[name] for name in dict.fromkeys(request.columns)] or list(columns.values())
    answer = calls.QueryMetricsResponse(columns=shown, next_page_token=more, total_count=len(rows))
    if request.format == calls.METRICS_FORMAT_ARROW:
        chosen = [msgspec.json.decode(entry.value, type=dict[str, Any]) for entry in entries]
        answer.arrow = _arrow(request.analysis, chosen, [column.name for column in shown])
    else:
        answer.json_rows.extend(entry.value.decode() for entry in entries)
    return answer


def _columns(analysis: str, rows: Sequence[dict[str, Any]]) -> dict[str, calls.MetricsColumn]:
    """The columns that the analysis declares and those of the rows, by name."""
    declared = {column.name: column for of, row in row_types().items() if of == analysis for column in columns_of(row)}
    kinds = dict.fromkeys(declared, frozenset[str]())
    for row in rows:
        for name, value in row.items():
            kinds[name] = kinds.get(name, frozenset()) | {type(value).__name__}
    if len(kinds) > MOST_COLUMNS:
        raise Refusal("LIMIT_EXCEEDED", f"{analysis}: has more than {MOST_COLUMNS} columns; read the artifact")
    columns = {}
    for name, seen in kinds.items():
        about = declared.get(name)
        unit, doc = (about.unit, about.doc) if about else ("", "")
        columns[name] = calls.MetricsColumn(name=name, type=_type(seen, unit), unit=unit, summary=doc)
    return columns


def _type(seen: frozenset[str], unit: str) -> str:
    """The type of a column whose values have these types."""
    match sorted(seen - {"NoneType"}):
        case ["bool"]:
            return "boolean"
        case ["int"]:
            return "int64"
        case ["float"] | ["float", "int"]:
            return "double"
        case ["str"]:
            return "string"
        case []:  # nothing but missing values
            return "int64" if unit in ("ns", "bytes", "count") else "double" if unit else "string"
    return "json"


def _arrow(analysis: str, rows: Sequence[dict[str, Any]], names: Sequence[str]) -> bytes:
    """The rows as a stream of Arrow's IPC format.

    Raises:
        Refusal: pyarrow is not installed, or has no table for such rows.
    """
    try:
        arrow = pyarrow()
    except UsageError as error:
        raise invalid("format", "this server has no pyarrow; ask for METRICS_FORMAT_JSON") from error
    target = io.BytesIO()
    try:
        table = arrow.table(Table.of_rows(analysis, rows, row_types().get(analysis))).select(names)
    except (ValueError, KeyError, OverflowError) as error:  # of names or numbers that a hostile trace may have made
        raise invalid("format", "Arrow has no table for these rows; ask for METRICS_FORMAT_JSON") from error
    with arrow.ipc.new_stream(target, table.schema) as writer:
        writer.write_table(table)
    return target.getvalue()


class _Rows:
    """The rows in a table in memory, which :func:`page` reads as it does those of the server."""

    def __init__(
        self, secret: bytes, rows: Sequence[dict[str, Any]], names: Sequence[str], fields: dict[str, Field]
    ) -> None:
        self.secret = secret
        self._db = sqlite3.connect(":memory:", isolation_level=None)
        self._db.row_factory = sqlite3.Row
        places = [at for at, name in enumerate(names) if name in fields]
        self._db.execute(f"CREATE TABLE metrics ({', '.join(['id', 'created_ns', *(f'c{at}' for at in places)])})")
        marks = ", ".join("?" * (len(places) + 2))
        values = ((at, -at, *(_stored(row.get(names[place])) for place in places)) for at, row in enumerate(rows))
        self._db.execute("BEGIN")
        self._db.executemany(f"INSERT INTO metrics VALUES ({marks})", values)  # noqa: S608 - question marks
        self._db.execute("COMMIT")

    def rows(self, query: str, *values: Any, cpu_s: float) -> list[sqlite3.Row]:
        """As :meth:`Storage.rows`."""
        end = time.thread_time() + cpu_s
        self._db.set_progress_handler(lambda: time.thread_time() >= end, _STEPS)
        try:
            return self._db.execute(query, values).fetchall()
        except sqlite3.OperationalError as error:
            raise TimeoutError from error
        finally:
            self._db.set_progress_handler(None, 0)

    def row(self, query: str, *values: Any) -> sqlite3.Row:
        """As :meth:`Storage.row`."""
        row: sqlite3.Row = self._db.execute(query, values).fetchone()
        return row


def _stored(value: Any) -> Any:
    """The value as SQLite keeps it, which has no larger integers, and no larger numbers than a double."""
    if isinstance(value, int) and not -1 << 63 <= value < 1 << 63:
        return float(max(-_LARGEST, min(value, _LARGEST)))
    return value
