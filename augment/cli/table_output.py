"""Tables of the sidecar. Units come from the column names, so that sidecars of other versions can be shown, too."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from augment.cli.terminal import emit
from augment.core.jsontext import json_line
from augment.core.text import SIZES, counted, exact_size, exact_time, scale_of, time_unit

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

IDENTITIES = ("rank", "device", "stream", "step", "correlation")  #: numbers that are identities, not quantities
NOTHING = "–"
_OF_MANY = ("mean", "std", "min", "p25", "p50", "p75", "p99", "max")  #: prefixes of columns with statistics
_BETWEEN = 2  #: blanks between columns
_LEAST_TEXT = 24  #: minimum width of a cut column of text
_LEAST_SHOWN = 0.0005  #: of a unit; less would be shown as 0.000
_LONG_TEXT = 40  #: columns of text wider than this come last


class TableColumn(Struct, frozen=True):
    """A column as shown. ``key`` says that it identifies rows; ``head`` may have two lines."""

    head: tuple[str, str]
    cells: list[str]
    key: bool = False
    text: bool = False

    @property
    def width(self) -> int:
        """The width of its longest line."""
        return max(map(len, (*self.head, *self.cells)))


def print_sidecar(sidecar: dict[str, Any], limit: int) -> None:
    """Print every table of ``sidecar`` to stdout, at most ``limit`` rows each (0: all)."""
    emit(source_line(sidecar["source"]))
    for sentence in sidecar.get("verdict", {}).get("text", ()):
        emit(f"  {sentence}")
    for name, analysis in sidecar["analyses"].items():
        if analysis["status"] != "skipped":
            rows = analysis["rows"]
            title = name.replace("_", " ").capitalize()
            title = f"{title}, {_PERIODS[name]}" if rows and name in _PERIODS else title
            if rows:
                print_rows(title, rows[:limit] if limit else rows)
            else:
                _emit_title(_console(), title)
                emit("no rows")
            if limit and len(rows) > limit:
                emit(f"… {counted(len(rows) - limit, 'more row')} (--limit 0 shows all)")
            if analysis["status"] == "partial":
                emit(f"partial: {analysis['reason']}")
    skipped = {name: each["reason"] for name, each in sidecar["analyses"].items() if each["status"] == "skipped"}
    if skipped:
        print_rows("Skipped", [{"analysis": name, "reason": why} for name, why in skipped.items()])
    if sidecar["diagnostics"]:
        print_rows("Diagnostics", sidecar["diagnostics"])
    if sidecar.get("lacking"):
        emit("  no table has rows: --all says what each analysis lacks")
    if sidecar.get("others"):
        emit("")
        emit(f"{counted(sidecar['others'], 'more table')}: --all shows them")


def print_markdown(sidecar: dict[str, Any], limit: int) -> None:
    """Print the same as :func:`print_sidecar` as Markdown; numbers are those of the sidecar."""
    emit(f"# {source_line(sidecar['source']).splitlines()[0]}")
    for sentence in sidecar.get("verdict", {}).get("text", ()):
        emit(f"\n{sentence}")
    for name, analysis in sidecar["analyses"].items():
        if rows := analysis["rows"]:
            emit(f"\n## {name}\n")
            emit(f"| {' | '.join(rows[0])} |")
            emit(f"|{' --- |' * len(rows[0])}")
            for row in rows[:limit] if limit else rows:
                emit(f"| {' | '.join(_text(value).replace('|', chr(92) + '|') for value in row.values())} |")


def print_rows(title: str, rows: Sequence[dict[str, Any]]) -> None:
    """Print a table of ``rows``, which have equal members; identities shared by all rows go into the title.

    A column without any value is left out, unless there is only one row; and figures that another column says.
    """
    shared = {name: rows[0][name] for name in IDENTITIES if name in rows[0] and len({row[name] for row in rows}) == 1}
    of = ", ".join(f"{name} {value}" for name, value in shared.items() if value is not None)
    nested = {name for row in rows for name, value in row.items() if isinstance(value, dict)}
    columns = columns_of({name: [row[name] for row in rows] for name in rows[0] if name not in {*shared, *nested}})
    telling = [column for column in columns if len(rows) == 1 or set(column.cells) - {"", NOTHING}]
    print_columns(f"{title} · {of}" if of else title, telling)


def print_columns(title: str, columns: Sequence[TableColumn]) -> None:
    """Print a table, split into as many as the width requires."""
    console = _console()
    _emit_title(console, title)
    for block in _blocks(columns, console.width):
        _emit(console, _table(_fitted(block, console.width)))


def columns_of(table: dict[str, Sequence[Any]]) -> list[TableColumn]:
    """The columns of ``table`` for people: totals in one unit of time, statistics in one, long text last."""
    times = {name: [v for v in values if v is not None] for name, values in table.items() if name.endswith("_ns")}
    totals = [value for name, values in times.items() if not _is_statistic(name) for value in values]
    single = [value for name, values in times.items() if _is_statistic(name) for value in values if value]
    import statistics

    units = {False: time_unit(max(totals, default=0)), True: time_unit(statistics.median(single) if single else 0)}
    columns = [_column(name, values, units[_is_statistic(name)]) for name, values in table.items()]
    return sorted(columns, key=lambda column: column.text and column.width > _LONG_TEXT)


def _is_statistic(name: str) -> bool:
    return name.split("_")[0] in _OF_MANY


def _column(name: str, values: Sequence[Any], time: tuple[float, str]) -> TableColumn:
    """A column of the sidecar; the suffix of ``name`` is its unit."""
    stem, _, unit = name.rpartition("_")
    numbers = [value for value in values if value is not None]
    words, whole = stem.replace("_", " "), all(isinstance(value, int) for value in numbers)
    if name in IDENTITIES or any(isinstance(value, (str, list)) for value in numbers):
        text = any(not isinstance(value, int) for value in numbers)
        return TableColumn((name.replace("_", " "), ""), [_text(value) for value in values], key=True, text=text)
    if unit == "ns":
        return _numbers((words, time[1]), values, 1 / time[0], 3 if time[0] > 1 else 1 - whole)
    if unit == "ratio":
        return _numbers((words, "%"), values, 100, 2)
    if unit in ("gbps", "tflops"):
        return _numbers((words, {"gbps": "GB/s", "tflops": "TFLOP/s"}[unit]), values, 1, 2)
    if unit == "bytes":
        scale, sign = scale_of(max(numbers, default=0), SIZES)
        if min(filter(None, numbers), default=scale) < _LEAST_SHOWN * scale:  # sizes from bytes to gigabytes
            return TableColumn(
                (words or "size", ""), [NOTHING if value is None else exact_size(value) for value in values]
            )
        return _numbers((words or "size", sign), values, 1 / scale, 3 if scale > 1 else 0)
    return _numbers((name.replace("_", " "), ""), values, 1, 0 if whole else 2)


def _numbers(head: tuple[str, str], values: Iterable[Any], factor: float, digits: int) -> TableColumn:
    return TableColumn(head, [NOTHING if value is None else f"{value * factor:,.{digits}f}" for value in values])


def _text(value: Any) -> str:
    if value is None:
        return NOTHING
    text = " → ".join(map(str, value)) if isinstance(value, list) else str(value)
    return " ".join((json_line(value) if isinstance(value, dict) else text).split())


def _blocks(columns: Sequence[TableColumn], width: int) -> Iterator[list[TableColumn]]:
    """The columns split into as many tables as ``width`` requires.

    The first table has all identities; the others have only those needed to distinguish rows.
    """
    shown, again = [column for column in columns if column.key], _telling(columns)
    for column in columns:
        if column.key:
            continue
        if any(not other.key for other in shown) and _least(shown) + _BETWEEN + column.width > width:
            yield _in_order(columns, shown)
            shown = list(again)
        shown.append(column)
    yield _in_order(columns, shown)


def _telling(columns: Sequence[TableColumn]) -> list[TableColumn]:
    """A narrow set of identities that distinguishes all rows; all of them if none suffices."""
    kept = [column for column in columns if column.key]
    for widest in sorted(kept, key=lambda key: key.width, reverse=True):
        rest = [key for key in kept if key is not widest]
        if len(set(zip(*(key.cells for key in rest), strict=True))) == len(widest.cells):
            kept = rest
    return kept


def _in_order(columns: Sequence[TableColumn], chosen: Sequence[TableColumn]) -> list[TableColumn]:
    return [column for column in columns if any(column is other for other in chosen)]


def _least(columns: Sequence[TableColumn]) -> int:
    """The minimum width of ``columns``; only text may be cut."""
    widths = [min(column.width, _LEAST_TEXT) if column.text else column.width for column in columns]
    return sum(widths) + _BETWEEN * (len(columns) - 1)


def _fitted(columns: Sequence[TableColumn], width: int) -> list[TableColumn]:
    """The columns with text cut, longest first, so that lines fit ``width``."""
    texts = sorted(column.width for column in columns if column.text)
    room = width - sum(column.width + _BETWEEN for column in columns if not column.text) - _BETWEEN * (len(texts) - 1)
    most = 0
    for index, needed in enumerate(texts):
        most = room // (len(texts) - index)
        if needed > most:
            break
        room, most = room - needed, needed
    return [_cut_to(column, max(most, *map(len, column.head))) if column.text else column for column in columns]


def _cut_to(column: TableColumn, width: int) -> TableColumn:
    return replace(column, cells=[_cut(cell, width) for cell in column.cells])


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def _table(columns: Sequence[TableColumn]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, _BETWEEN, 0, 0), header_style="dim")
    units = any(column.head[1] for column in columns)
    for column in columns:
        head = Text("\n".join(column.head) if units else column.head[0])
        table.add_column(head, justify="left" if column.text else "right", no_wrap=True, min_width=column.width)
    for cells in zip(*(column.cells for column in columns), strict=True):
        table.add_row(*map(Text, cells))
    return table


#: what the times of these tables are parts of: a recording, its steps and its GPU work last differently long
_PERIODS = {
    "temporal_breakdown": "from the first to the last GPU work",
    "steps": "from the end of earlier GPU work until that of the step is done",
    "step_efficiency": "as in steps",
}


def source_line(source: dict[str, Any]) -> str:
    """One line that names the sidecar's source."""
    if "traces" in source:
        return f"{source['name']}: {counted(len(source['traces']), 'trace')} of {source['world_size'] or 'some'} ranks"
    line = f"{source['name']}: {counted(source['events'], 'event')}, {exact_time(source['duration_ns'])}"
    if source["ranks"]:
        line += f", rank {', '.join(map(str, source['ranks']))}"
    if source["steps"]:
        line += f", {counted(len(source['steps']), 'step')}"
    names = [device["name"] for device in source["devices"]]
    line += "".join(f", {names.count(name)} × {name}" for name in dict.fromkeys(names))
    return f"{line}\nincomplete: {source['partial']}" if source.get("partial") else line


def _console() -> Console:
    """The console on stdout; unlimited width and no style in a pipe."""
    from rich.console import Console

    if not sys.stdout.isatty():
        return Console(width=100_000, color_system=None)
    return Console(color_system=None) if os.environ.get("NO_COLOR") else Console()


def _emit_title(console: Console, title: str) -> None:
    from rich.text import Text

    emit("")
    _emit(console, Text(title, style="bold"))


def _emit(console: Console, shown: Any) -> None:
    """Print through ``emit``, which tolerates a closed pipe; without trailing blanks."""
    with console.capture() as capture:
        console.print(shown)
    for line in capture.get().splitlines():
        emit(line.rstrip())
