"""Tables as files of other programs: Parquet by pyarrow, an Excel workbook by XlsxWriter; each is loaded only here."""

from __future__ import annotations

import datetime
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from augment.core.output_files import replacing
from augment.core.tabular import Table
from augment.errors import UsageError


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


_ROWS = (1 << 20) - 1  #: of a sheet, below its heading
_NAME = 31  #: most letters of a sheet's name
_WIDEST = 60  #: of a column, in letters
_AS_TEXT = {"strings_to_formulas": False, "strings_to_urls": False, "nan_inf_to_errors": True}
_CREATED = datetime.datetime(2000, 1, 1)  #: the same metrics make the same bytes
_COUNTS = {"count": "count", "sum_ns": "GPU time (ms)", "gpu_ns": "GPU time (ms)", "self_gpu_ns": "self GPU time (ms)"}
#: sheets of two levels: the table, what a group is, what its rows are, the figures, of which the last sorts
GROUPED = {
    "By kind and kernel": ("kernel_breakdown", "family", "name", ("count", "sum_ns")),
    "By operator and shape": ("operator_breakdown", "operator", "input_shapes", ("count", "gpu_ns", "self_gpu_ns")),
}


def write_xlsx(sidecar: Mapping[str, Any], path: Path) -> None:
    """Write the verdict, the GPU time by kind and kernel and by operator and shape, and every table, a sheet each.

    Raises:
        UsageError: XlsxWriter is not installed.
        OutputError: ``path`` cannot be written.
    """
    try:
        import xlsxwriter
    except ImportError as error:
        raise UsageError("Excel needs XlsxWriter: pip install 'kineto-augment[xlsx]'") from error
    with replacing(path) as file:
        book = xlsxwriter.Workbook(file, _AS_TEXT)
        book.set_properties({"created": _CREATED})
        bold = book.add_format({"bold": True})
        first = book.add_worksheet("Verdict")
        first.set_column(0, 0, 150)
        for row, text in enumerate([sidecar["source"]["name"], *sidecar.get("verdict", {}).get("text", ())]):
            first.write_string(row, 0, text, bold if not row else None)
        for title, (analysis, of, each, figures) in GROUPED.items():
            if rows := sidecar["analyses"].get(analysis, {}).get("rows"):
                _grouped(book.add_worksheet(title), rows, of, each, figures, bold)
        for name, made in sidecar["analyses"].items():
            if made["rows"]:
                _table(book.add_worksheet(name[:_NAME]), made["rows"][:_ROWS], bold)
        book.close()


def _grouped(
    sheet: Any, rows: Sequence[Mapping[str, Any]], of: str, each: str, figures: Sequence[str], bold: Any
) -> None:
    """A sheet of groups, the largest first, whose rows are folded below them."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(str(row[of]), []).append(row)

    def total(members: Sequence[Mapping[str, Any]], figure: str) -> float:
        return sum(row[figure] or 0 for row in members) / (1e6 if figure.endswith("_ns") else 1)

    by = figures[-1]
    sheet.outline_settings(True, False, True, False)  # what is folded is below its group
    for column, head in enumerate((of, each.replace("_", " "), *(_COUNTS[figure] for figure in figures))):
        sheet.write_string(0, column, head, bold)
    place = 1
    for name, members in sorted(groups.items(), key=lambda group: -total(group[1], by))[:_ROWS]:
        sheet.write_string(place, 0, name, bold)
        for column, figure in enumerate(figures, 2):
            sheet.write_number(place, column, total(members, figure), bold)
        sheet.set_row(place, None, None, {"collapsed": True})
        for row in sorted(members, key=lambda row: -(row[by] or 0)):
            place += 1
            sheet.set_row(place, None, None, {"level": 1, "hidden": True})
            sheet.write_string(place, 0, name)
            sheet.write_string(place, 1, _text(row[each]))
            for column, figure in enumerate(figures, 2):
                sheet.write_number(place, column, total([row], figure))
        place += 1
    sheet.freeze_panes(1, 0)
    sheet.set_column(0, 1, _WIDEST)
    sheet.set_column(2, 2 + len(figures), 18)


def _table(sheet: Any, rows: Sequence[Mapping[str, Any]], bold: Any) -> None:
    """All rows and columns, as in the metrics; names end in their units."""
    names = list(rows[0])
    for column, name in enumerate(names):
        sheet.write_string(0, column, name, bold)
        sheet.set_column(column, column, min(_WIDEST, max(len(name), *(len(_text(row[name])) for row in rows[:100]))))
    for place, row in enumerate(rows, 1):
        for column, name in enumerate(names):
            value = row[name]
            if isinstance(value, bool):
                sheet.write_boolean(place, column, value)
            elif isinstance(value, (int, float)):
                sheet.write_number(place, column, value)
            elif value is not None:
                sheet.write_string(place, column, _text(value))
    sheet.autofilter(0, 0, len(rows), len(names) - 1)
    sheet.freeze_panes(1, 0)


def _text(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else "" if value is None else str(value)
