"""A table of metrics for notebooks: columns by name, as a pandas frame or an Arrow table.

The columns are those of the sidecar, and their names contain their units. Integers stay integers, also in columns where
some are missing: times since 1970 in nanoseconds do not fit a double.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from augment.core.jsontext import json_line
from augment.core.text import LONGEST_NAME, percent, short, size, time, unmangled
from augment.errors import UsageError, expect_known

if TYPE_CHECKING:
    import pandas as pd


SHOWN = 10  #: rows of a table as a notebook displays it
_NAMED = 6  #: columns that a repr names
_SUFFIXES = {"ns": "int", "bytes": "int", "count": "int", "ratio": "float", "gbps": "float", "tflops": "float"}
_IDENTITIES = ("rank", "device", "stream", "step")


class ColumnKind(Struct, frozen=True):
    """The type of a column: ``int``, ``float``, ``bool``, ``text`` or ``texts``; whether values can be missing."""

    name: str
    optional: bool = True


class Table(Struct, frozen=True, eq=False):
    """Columns of equal length. ``reason`` says why the analysis was skipped, or what is missing from its rows.

    ``table["time_ns"]`` is a column as a list, ``table.frame()`` a pandas frame. Polars, pyarrow and DuckDB take the
    table itself, ``polars.DataFrame(table)``, where pyarrow is installed.
    """

    name: str
    columns: Mapping[str, Sequence[Any]]
    kinds: Mapping[str, ColumnKind] = field(default_factory=dict)
    status: str = "ok"
    reason: str | None = None

    @classmethod
    def of_rows(
        cls,
        name: str,
        rows: Sequence[Any],
        declared: type[Any] | None = None,
        *,
        status: str = "ok",
        reason: str | None = None,
    ) -> Table:
        """The table of ``rows``, metric rows or rows of a sidecar, with the columns that ``declared`` has.

        Rows of a sidecar can have columns that ``declared`` lacks, or lack some, if another version wrote them.
        """
        kinds = kinds_of(declared) if declared else {}
        if rows and isinstance(rows[0], Mapping):
            names = dict.fromkeys([*kinds, *(name for row in rows for name in row)])
            columns = {name: [row.get(name) for row in rows] for name in names}
        else:
            names = dict.fromkeys([*kinds, *(name for row in rows[:1] for name in row.__struct_fields__)])
            columns = {name: [getattr(row, name) for row in rows] for name in names}
        return cls(name, columns, kinds, status, reason)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def __getitem__(self, name: str) -> Sequence[Any]:
        expect_known(name, self.columns, f"column of {self.name}")
        return self.columns[name]

    def __iter__(self) -> typing.Iterator[dict[str, Any]]:
        """The rows."""
        for values in zip(*self.columns.values(), strict=True):
            yield dict(zip(self.columns, values, strict=True))

    def frame(self) -> pd.DataFrame:
        """The table as a pandas frame; pandas is loaded only here.

        Raises:
            UsageError: pandas is not installed.
        """
        try:
            import pandas as pd
        except ImportError as error:
            raise UsageError("frames need pandas: pip install pandas") from error
        series = {name: _series(pd, self._kind(name), values) for name, values in self.columns.items()}
        frame = pd.DataFrame(series, columns=list(self.columns))
        frame.attrs |= {"analysis": self.name, "status": self.status, "reason": self.reason}
        return frame

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The table as an Arrow stream (https://arrow.apache.org/docs/format/CDataInterface/PyCapsuleInterface.html).

        Raises:
            UsageError: pyarrow, which makes it, is not installed.
        """
        try:
            import pyarrow
        except ImportError as error:
            raise UsageError("Arrow needs pyarrow: pip install 'kineto-augment[history]'") from error
        columns = {name: _arrow(pyarrow, self._kind(name), values) for name, values in self.columns.items()}
        return pyarrow.table(columns).__arrow_c_stream__(requested_schema)

    def _kind(self, name: str) -> ColumnKind:
        kind = self.kinds.get(name)
        if kind is None or kind.name == "identity":
            # The type of a column that nothing declares
            values = self.columns[name]
            types = {type(value) for value in values if value is not None}
            if not types:
                return ColumnKind("int" if name in _IDENTITIES else _SUFFIXES.get(name.rpartition("_")[2], "text"))
            if types <= {list, tuple}:
                return ColumnKind("texts")
            if types == {bool}:
                return ColumnKind("bool")
            if types == {int}:
                return ColumnKind("int")
            return ColumnKind("float" if types <= {int, float} else "text")
        return kind

    def __repr__(self) -> str:
        if self.status in ("skipped", "failed"):
            return f"<Table {self.name}: {self.status}, {self.reason}>"
        names = ", ".join(list(self.columns)[:_NAMED]) + (", …" if len(self.columns) > _NAMED else "")
        partial = f"; partial: {self.reason}" if self.reason else ""
        return f"<Table {self.name}: {len(self):,} rows × {len(self.columns)} columns ({names}){partial}>"

    def _repr_html_(self) -> str:
        """The first rows, for notebooks: times with their units, names shortened, and a bar in the first time."""
        import html

        if self.status in ("skipped", "failed"):
            return f"<p><b>{html.escape(self.name)}</b>: {self.status}, {html.escape(str(self.reason))}</p>"
        names = list(self.columns)  # what a row is of, then times, then the rest
        figures = [name for name in names if name not in _IDENTITIES and self._kind(name).name in ("int", "float")]
        of = names[: names.index(figures[0])] if figures else names
        times = [name for name in names if name.endswith("_ns") and name not in of]
        names = list(dict.fromkeys([*of, *times, *names]))
        heads = "".join(f"<th scope='col'>{html.escape(name)}</th>" for name in names)
        charted = next((name for name in names if name.endswith("_ns") and "start" not in name), None)
        shown = {name: [_cell(name, value) for value in self.columns[name][:SHOWN]] for name in names}
        if charted is not None:
            values = self.columns[charted][:SHOWN]
            most = max([value for value in values if value], default=1)
            shown[charted] = [_cell(charted, value, (value or 0) / most) for value in values]
        body = "".join(f"<tr>{''.join(cells)}</tr>" for cells in zip(*shown.values(), strict=True))
        more = f"<p>… {len(self) - SHOWN:,} more rows; <code>.frame()</code> has all</p>" if len(self) > SHOWN else ""
        partial = f"<p>partial: {html.escape(self.reason)}</p>" if self.reason else ""
        caption = f"<caption style='text-align:left'><b>{html.escape(self.name)}</b></caption>"
        return f"<table>{caption}<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>{more}{partial}"


def kinds_of(row: type[Struct]) -> dict[str, ColumnKind]:
    """The types of the columns of a metric row."""
    hints = typing.get_type_hints(row)
    return {name: _kind_of_hint(hints[name]) for name in row.__struct_fields__}


def concatenated(name: str, tables: Sequence[Table], lead: Sequence[Mapping[str, Any]]) -> Table:
    """The rows of all ``tables``; ``lead`` are values that each row of a table begins with, as many as tables."""
    names = dict.fromkeys(
        [*(key for first in lead for key in first), *(key for table in tables for key in table.columns)]
    )
    columns: dict[str, list[Any]] = {key: [] for key in names}
    kinds: dict[str, ColumnKind] = {}
    for table, values in zip(tables, lead, strict=True):
        kinds |= {key: kind for key, kind in table.kinds.items() if key not in values}
        for key, column in columns.items():
            column += [values[key]] * len(table) if key in values else table.columns.get(key, [None] * len(table))
    kinds = {
        key: ColumnKind(kind.name, kind.optional or any(value is None for value in columns[key]))
        for key, kind in kinds.items()
    }
    reasons = dict.fromkeys(table.reason for table in tables if table.reason)
    status = next(
        status for status in ("ok", "partial", "skipped", "failed") if status in {table.status for table in tables}
    )
    return Table(name, columns, kinds, status, "; ".join(reasons) or None)


def _kind_of_hint(hint: Any) -> ColumnKind:
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    members = set(typing.get_args(hint)) if union else {hint}
    optional = type(None) in members
    members.discard(type(None))
    if members == {int, str}:
        return ColumnKind("identity")
    only = next(iter(members)) if len(members) == 1 else str
    if typing.get_origin(only) in (list, tuple) or getattr(typing.get_origin(only), "__name__", "") == "Sequence":
        return ColumnKind("texts", optional)
    return ColumnKind({bool: "bool", int: "int", float: "float"}.get(only, "text"), optional)


def _series(pd: Any, kind: ColumnKind, values: Sequence[Any]) -> Any:
    missing = kind.optional
    if kind.name == "int":
        return pd.Series(list(values), dtype="Int64" if missing else "int64")
    if kind.name == "bool":
        return pd.Series(list(values), dtype="boolean" if missing else "bool")
    if kind.name == "float":
        return pd.Series([float("nan") if value is None else value for value in values], dtype="float64")
    if kind.name == "texts":
        return pd.Series(list(values), dtype=object)
    return pd.Series(_as_texts(values), dtype="str" if int(pd.__version__.partition(".")[0]) >= 3 else object)


def _as_texts(values: Sequence[Any]) -> list[str | None]:
    """Values as text; those of several figures as JSON."""
    return [None if each is None else json_line(each) if isinstance(each, dict) else str(each) for each in values]


def _arrow(pyarrow: Any, kind: ColumnKind, values: Sequence[Any]) -> Any:
    """The column as an Arrow array, in which each value can be missing."""
    text = pyarrow.large_string()
    if kind.name == "texts":
        texts = [None if value is None else list(map(_valid, value)) for value in values]
        return pyarrow.array(texts, pyarrow.large_list(text))
    if kind.name == "text":
        return pyarrow.array([None if value is None else _valid(value) for value in _as_texts(values)], text)
    types = {"int": pyarrow.int64(), "float": pyarrow.float64(), "bool": pyarrow.bool_()}
    return pyarrow.array(values, types[kind.name])


def _valid(value: Any) -> str:
    """``value`` as text that UTF-8 can encode, as Arrow's must be."""
    return str(value).encode("utf-8", "replace").decode()


def _cell(name: str, value: Any, share: float | None = None) -> str:
    """A cell of the column ``name``; a figure that is rounded, or a name that is cut, is whole in its title. ``share``
    is the length of the bar behind it."""
    import html

    if value is None:
        return "<td></td>"
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        exact = f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"
        in_units = {"ns": time, "bytes": size, "ratio": percent}.get(name.rpartition("_")[2])
        text = exact if in_units is None else in_units(value)
        title = f" title='{exact} {name.rpartition('_')[2]}'" if text != exact else ""
        bar = f";background:linear-gradient(90deg,{_CHARTED} {100 * share:.1f}%,transparent 0)" if share else ""
        return f"<td style='text-align:right{bar}'{title}>{text}</td>"
    text = " → ".join(unmangled(str(each)) for each in (value if isinstance(value, (list, tuple)) else [value]))
    title = f" title='{html.escape(text)}'" if len(text) > LONGEST_NAME else ""
    return f"<td style='text-align:left'{title}>{html.escape(short(text))}</td>"


#: the parts of a device's time, their labels, and colours distinguishable on light and dark, also by the colour-blind
PARTS = (
    ("compute_ns", "compute", "#2f7ed8"),
    ("exposed_communication_ns", "exposed communication", "#e8871e"),
    ("exposed_memory_ns", "exposed copies", "#8c6bb1"),
    ("idle_ns", "idle", "#9a9a9a"),
)
_CHARTED = "#2f7ed84d"  #: behind figures, on light and dark
_BAR = "display:flex;height:1.1em;width:100%;max-width:48em;border-radius:3px;overflow:hidden"
_SWATCH = "display:inline-block;width:.8em;height:.8em;border-radius:2px;vertical-align:-.05em"


class Share(Struct, frozen=True):
    """A device and its time: ns by column of :data:`PARTS`, which add up to ``wall_ns``."""

    label: str
    wall_ns: int
    parts: Mapping[str, int]


def shares_of(steps: Iterable[Any]) -> list[Share]:
    """The share of each device in the steady ones of these rows of the table ``steps``."""
    rows: dict[str, list[Any]] = {}
    for row in steps:
        if row.is_steady and row.busy_ns is not None:
            rank = "" if row.rank is None else f"rank {row.rank}, "
            rows.setdefault(f"{rank}device {row.device}", []).append(row)
    sums = {
        label: {name: sum(getattr(row, name) for row in some) for name, _, _ in PARTS} for label, some in rows.items()
    }
    return [Share(label, sum(parts.values()), parts) for label, parts in sums.items()]


def notebook_page(title: str, verdict: Sequence[str], shares: Iterable[Share], outcomes: Mapping[str, str]) -> str:
    """The HTML of a result; ``outcomes`` are texts by analysis."""
    import html

    said = "".join(f"<p style='margin:.2em 0'>{html.escape(text)}</p>" for text in verdict)
    bars = "".join(map(_bar, shares))
    items = "".join(
        f"<tr><td style='text-align:left'><code>{html.escape(name)}</code></td>"
        f"<td style='text-align:left'>{html.escape(text)}</td></tr>"
        for name, text in outcomes.items()
    )
    table = f"<table><tbody>{items}</tbody></table>"
    listed = f"<details><summary>{len(outcomes)} analyses</summary>{table}</details>" if outcomes else ""
    return f"<div><p style='margin:.2em 0'><b>{html.escape(title)}</b></p>{said}{bars}{listed}</div>"


def _bar(share: Share) -> str:
    import html

    known = [(word, colour, share.parts[name]) for name, word, colour in PARTS if share.parts.get(name)]
    text = ", ".join(f"{word} {percent(ns / share.wall_ns)}" for word, _, ns in known)
    pieces = "".join(
        f"<span style='width:{100 * ns / share.wall_ns:.3f}%;background:{colour}' title='{word}: {ns:,} ns'></span>"
        for word, colour, ns in known
    )
    legend = " ".join(
        f"<span style='white-space:nowrap'><span style='{_SWATCH};background:{colour}'></span> "
        f"{word} {percent(ns / share.wall_ns)}</span>&ensp;"
        for word, colour, ns in known
    )
    label = html.escape(f"{share.label}, {share.wall_ns / 1e6:,.3f} ms")
    spoken = html.escape(f"{share.label}: {text}")
    return (
        f"<div style='margin:.4em 0'><div>{label}</div>"
        f"<div role='img' aria-label='{spoken}' style='{_BAR}'>{pieces}</div>"
        f"<div style='font-size:90%'>{legend}</div></div>"
    )
