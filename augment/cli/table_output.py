"""Tables of a sidecar: of a trace, a job or a comparison. Units come from the names of columns, so that sidecars of
other versions can be shown, too."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from augment.cli.terminal import emit
from augment.core.jsontext import json_line
from augment.core.text import (
    COLUMN_WORDS,
    SIZES,
    capitalized,
    counted,
    devices_text,
    exact_size,
    exact_time,
    first_of,
    job_lines,
    opening,
    printable,
    scale_of,
    signed_text,
    spaced,
    time_unit,
    unmangled,
    value_text,
)

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


def print_sidecar(sidecar: dict[str, Any], limit: int, path: str | None = None) -> None:
    """Print every table of ``sidecar`` to stdout, at most ``limit`` rows each (0: all); its trace is at ``path``."""
    emit(source_line(sidecar["source"]))
    for sentence in verdict_lines(sidecar.get("verdict", {}), path):
        emit(f"  {sentence}")
    is_job = "traces" in sidecar["source"]  # what is in doubt comes before its tables
    if is_job and sidecar["diagnostics"]:
        print_rows("Diagnostics", sidecar["diagnostics"])
    for name, analysis in sidecar["analyses"].items():
        if analysis["status"] not in ("skipped", "failed"):
            rows = analysis["rows"]
            title = capitalized(spaced(name))
            host = name == "steps" and rows and rows[0]["device"] is None
            title = f"{title}, {_PERIODS[name]}" if rows and name in _PERIODS and not host else title
            if rows:
                print_rows(title, rows[:limit] if limit else rows)
            else:
                _emit_title(_console(), title)
                emit("no rows")
            if limit and len(rows) > limit:
                emit(f"… {counted(len(rows) - limit, 'more row')} (--limit 0 shows all)")
            if analysis["status"] == "partial":
                emit(f"partial: {analysis['reason']}")
    for status in ("failed", "skipped"):
        why = {name: each["reason"] for name, each in sidecar["analyses"].items() if each["status"] == status}
        if why:
            print_rows(status.capitalize(), [{"analysis": name, "reason": reason} for name, reason in why.items()])
    if sidecar["diagnostics"] and not is_job:
        print_rows("Diagnostics", sidecar["diagnostics"])
    if sidecar.get("lacking"):
        emit("  no table has rows: --all says what each analysis lacks")
    if sidecar.get("others"):
        emit("")
        emit(f"{counted(sidecar['others'], 'more table')}: --all shows them")


def verdict_lines(verdict: dict[str, Any], path: str | None = None) -> Iterator[str]:
    """The sentences of a sidecar's ``verdict``, then what to do about what they say; ``path`` is that of its trace."""
    from augment.diagnosis.wording import heading

    yield from job_lines(opening(verdict.get("text", ()), path), verdict.get("cures", ()))
    rows = [row for row in verdict.get("rows", ()) if row.get("in_verdict") and row.get("advice")]
    for row in rows:
        yield f"→ {row['advice']}" if len(rows) == 1 else f"→ {heading(row['rule'])}: {row['advice']}"


def print_markdown(sidecar: dict[str, Any], limit: int, path: str | None = None) -> None:
    """Print the same as :func:`print_sidecar` as Markdown; numbers are those of the sidecar."""
    emit(f"# {source_line(sidecar['source']).splitlines()[0]}")
    for sentence in verdict_lines(sidecar.get("verdict", {}), path):
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
    of = ", ".join(  # several ranks, folded into one row, are "ranks 0 to 3"
        value if name == "rank" and isinstance(value, str) else f"{name} {value}"
        for name, value in shared.items()
        if value is not None
    )
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


def print_whole(columns: Sequence[TableColumn]) -> None:
    """Print one table without a title; on a terminal, text is cut to fit, numbers never are."""
    console = _console()
    _emit(console, _table(_fitted(columns, console.width)))


def columns_of(table: dict[str, Sequence[Any]]) -> list[TableColumn]:
    """The columns of ``table`` for people: totals in one unit of time, statistics in one, long text last."""
    times = {name: [v for v in values if v is not None] for name, values in table.items() if name.endswith("_ns")}
    totals = [value for name, values in times.items() if not _is_statistic(name) for value in values]
    single = [value for name, values in times.items() if _is_statistic(name) for value in values if value]
    import statistics

    units = {False: time_unit(max(totals, default=0)), True: time_unit(statistics.median(single) if single else 0)}
    columns = [_column(name, values, units[_is_statistic(name)]) for name, values in table.items()]
    for place, name in enumerate(table):  # time_ns and time_ratio have headings of their own
        if name.endswith("_ratio") and [column.head[0] for column in columns].count(columns[place].head[0]) > 1:
            columns[place] = replace(columns[place], head=(f"{columns[place].head[0]} share", "%"))
    return sorted(columns, key=lambda column: column.text and column.width > _LONG_TEXT)


def _is_statistic(name: str) -> bool:
    return name.split("_")[0] in _OF_MANY


def _column(name: str, values: Sequence[Any], time: tuple[float, str]) -> TableColumn:
    """A column of the sidecar; the suffix of ``name`` is its unit."""
    stem, _, unit = name.rpartition("_")
    numbers = [value for value in values if value is not None]
    words, whole = COLUMN_WORDS.get(name, spaced(stem)), all(isinstance(value, int) for value in numbers)
    if name in IDENTITIES or any(isinstance(value, (str, list)) for value in numbers):
        text = any(not isinstance(value, int) for value in numbers)
        head = COLUMN_WORDS.get(name, spaced(name)), ""
        return TableColumn(head, [_text(value) for value in values], key=True, text=text)
    if any(isinstance(value, bool) for value in numbers):
        return TableColumn((spaced(name), ""), [{None: NOTHING, True: "yes", False: "no"}[value] for value in values])
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
    return _numbers((COLUMN_WORDS.get(name, spaced(name)), ""), values, 1, 0 if whole else 2)


def _numbers(head: tuple[str, str], values: Iterable[Any], factor: float, digits: int) -> TableColumn:
    return TableColumn(head, [NOTHING if value is None else f"{value * factor:,.{digits}f}" for value in values])


def _text(value: Any) -> str:
    if value is None:
        return NOTHING
    text = " → ".join(unmangled(str(each)) for each in (value if isinstance(value, list) else [value]))
    return " ".join((json_line(value) if isinstance(value, dict) else text).split())


def _blocks(columns: Sequence[TableColumn], width: int) -> Iterator[list[TableColumn]]:
    """The columns split into as many tables as ``width`` requires.

    The first table has all identities; the others have only those needed to distinguish rows.
    """
    shown = [column for column in columns if column.key]
    again = [*shown]
    for widest in sorted(shown, key=lambda key: key.width, reverse=True):
        rest = [key for key in again if key is not widest]
        if len(set(zip(*(key.cells for key in rest), strict=True))) == len(widest.cells):
            again = rest
    for column in columns:
        if column.key:
            continue
        if any(not other.key for other in shown) and _least(shown) + _BETWEEN + column.width > width:
            yield _in_order(columns, shown)
            shown = list(again)
        shown.append(column)
    yield _in_order(columns, shown)


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
    fitted = []
    for column in columns:
        width = max(most, *map(len, column.head))
        cells = [cell if len(cell) <= width else f"{cell[: width - 1]}…" for cell in column.cells]
        fitted.append(replace(column, cells=cells) if column.text else column)
    return fitted


def _table(columns: Sequence[TableColumn]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, _BETWEEN, 0, 0), header_style="dim")
    units = any(column.head[1] for column in columns)
    for column in columns:
        head = Text("\n".join(column.head) if units else column.head[0])
        table.add_column(head, justify="left" if column.text else "right", no_wrap=True, min_width=column.width)
    for cells in zip(*(column.cells for column in columns), strict=True):
        table.add_row(*map(Text, map(printable, cells)))
    return table


#: what the times of these tables are parts of: a recording, its steps and its GPU work last differently long
_PERIODS = {
    "temporal_breakdown": "from the first to the last GPU work",
    "steps": "from the end of earlier GPU work until that of the step is done",
    "step_efficiency": "as in steps",
}


def source_line(source: dict[str, Any]) -> str:
    """One line that names the sidecar's source."""
    name = printable(source["name"])
    if "traces" in source:
        return f"{name}: {counted(len(source['traces']), 'trace')} of {source['world_size'] or 'some'} ranks"
    events = (
        f"{counted(source['events'], 'event')}, {exact_time(source.get('recorded_ns', source['duration_ns']))}"
        if source["events"]
        else ""
    )
    line = f"{name}: {events or 'no trace'}"  # what is recorded beside one, alone
    if source["ranks"]:
        line += f", rank {', '.join(map(str, source['ranks']))}"
    if source["steps"]:
        line += f", {counted(len(source['steps']), 'step')}"
    line += f", {devices_text(source['devices'])}" if source["devices"] else ""
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
    _emit(console, Text(printable(title), style="bold"))


def _emit(console: Console, shown: Any) -> None:
    """Print through ``emit``, which tolerates a closed pipe; without trailing blanks, with the styles of ``shown``."""
    with console.capture() as capture:
        console.print(shown)
    for line in capture.get().splitlines():
        emit(line.rstrip(), exact=True)


MAIN_ROWS = 6  #: of each main table of a comparison
BAR_WIDTH = 12
NAME_WIDTH = 64
NAMES_SHOWN = 2  #: names shown per side of a part
LEAST_NS = 500  #: per step: less would show as 0.000 ms
_MARKS = {"regression": "worse", "improvement": "better", "different": "differs", "within_noise": "", "unknown": ""}


def print_diff(sidecar: dict[str, Any], labels: Sequence[str], most: int | None) -> None:
    """Print the tables of a comparison to stdout, at most ``most`` rows each (0: all); None: the main tables, short."""
    from augment.results.report.of_diff import by_operator, windows
    from augment.results.report.sections import doubts

    limit = MAIN_ROWS if most is None else most
    analyses = {name: analysis.get("rows", []) for name, analysis in sidecar["analyses"].items()}
    counts = sidecar.get("traces") or dict.fromkeys(("control", "test"), len(sidecar["compared"]))  # of an older server
    emit(f"control: {_about(labels[0], sidecar['control'], counts['control'])}")
    emit(f"test:    {_about(labels[1], sidecar['source'], counts['test'])}")
    if "diff_memory" in analyses:  # of memory snapshots there is nothing else
        for sentence in sidecar["verdict"]["text"]:
            emit(f"  {sentence}")
        rows = [row for row in analyses["diff_memory"] if row["delta_bytes"]]
        if rows:
            print_rows("Held at the peak, by line", rows[: limit or None])
        return
    emit(_compared(sidecar["compared"], counts.values()))
    for sentence in sidecar.get("verdict", {}).get("text", ()):
        emit(f"  {sentence}")
    whole_recordings = not sidecar["compared"][0]["control"]["steps"]
    of = "recording" if whole_recordings else f"a {'mean ' * (len(sidecar['compared'][0]['control']['steps']) > 1)}step"
    _figures("Figures", analyses["diff_figures"], of)
    if len(analyses.get("diff_phases", ())) > 1:
        _figures("Steps by phase", analyses["diff_phases"], of)
    if reason := sidecar["analyses"]["diff_figures"].get("reason"):
        emit(reason)
    count, whole = windows(sidecar), sum(row["delta_ns"] for row in analyses["diff_steps"])
    _waterfall(analyses["diff_waterfall"], whole, count, limit)
    rows = analyses["diff_waterfall"]
    shown = [row for row in by_operator(rows, count) if abs(row["delta_ns"]) >= LEAST_NS][: limit or None]
    if shown:
        print_columns(
            "By operator, for any kernels: exclusive time per step",
            [
                TableColumn(("difference", "ms"), [f"{row['delta_ns'] / 1e6:+,.3f}" for row in shown]),
                TableColumn(("control", "ms"), [f"{row['control_ns'] / 1e6:,.3f}" for row in shown]),
                TableColumn(("test", "ms"), [f"{row['test_ns'] / 1e6:,.3f}" for row in shown]),
                TableColumn(("operator", ""), [row["operator"] for row in shown], text=True),
            ],
        )
    steps = len(sidecar["compared"]) * len(analyses["diff_steps"])  # of ranks: lines are those of all its devices
    _kinds("By line of the program: GPU time per step", analyses["diff_source_lines"], "source", steps, limit)
    if most is None:
        emit("\n--limit 10 prints more tables (kernels, kinds of work, efficiency) and notes; --limit 0 every row")
        return
    _kinds("By kind of work: exclusive time per step", analyses["diff_kinds"], "kind_of_work", count, limit)
    # The MFU and where the rest of the time went, or why the MFU is unknown
    outcome = sidecar["analyses"]["diff_efficiency"]
    if reason := outcome.get("reason"):
        emit(reason)
    else:
        _figures("Efficiency", outcome["rows"], of)
        for row in outcome["rows"]:
            if row["figure"] == "mfu_ratio" and row["control_peak"] != row["test_peak"]:
                emit(f"The MFUs are of different peaks: {row['control_peak']} (control), {row['test_peak']} (test)")
    _changes(analyses["diff_names"], steps, limit)
    if notes := doubts(sidecar["diagnostics"]):
        emit("\n".join(["", "Notes on the recordings", *(f"  {note}" for note in notes)]))


def _about(label: str, source: dict[str, Any], ranks: int) -> str:
    return ", ".join(filter(None, (label, devices_text(source["devices"], ranks))))


def _which(steps: Sequence[int]) -> str:
    """``0 to 39``; each, where some between are missing."""
    whole = len(steps) > 2 and list(steps) == list(range(steps[0], steps[-1] + 1))
    return f"{steps[0]} to {steps[-1]}" if whole else ", ".join(map(str, steps))


def _compared(pairs: Sequence[dict[str, Any]], counts: Collection[int]) -> str:
    steps = [pairs[0][side]["steps"] for side in ("control", "test")]
    of_rank = {pair["test"]["rank"] for pair in pairs}
    twice = None not in of_rank and len(of_rank) < len(pairs)
    several = f"{len(pairs)} recordings of {counted(len(of_rank), 'rank')}" if twice else counted(len(pairs), "rank")
    several = several if None not in of_rank else f"{counted(len(pairs), 'trace')} of unknown rank"
    ranks = f"{several}, " if len(pairs) > 1 or any(count > 1 for count in counts) else ""
    if not steps[0]:
        instead = "--region NAME uses an annotation as steps"
        return f"compared: {ranks}whole recordings, because there are no steps ({instead})"
    numbers = [_which(step) for step in steps]
    which = numbers[0] if numbers[0] == numbers[1] else f"{numbers[0]} with {numbers[1]}"
    return f"compared: {ranks}{counted(len(steps[0]), 'step')}: {which}"


def _figures(title: str, rows: Sequence[dict[str, Any]], of: str) -> None:
    from augment.compare.diff_verdict import figure_title

    rows = [row for row in rows if row["control"] or row["test"]]
    columns = [
        TableColumn((of, ""), [figure_title(row["figure"]) for row in rows], True, True),
        TableColumn(("control", ""), [value_text(row["control"], row["unit"]) for row in rows]),
        TableColumn(("test", ""), [value_text(row["test"], row["unit"]) for row in rows]),
        TableColumn(("difference", ""), [signed_text(row["delta"], row["unit"]) for row in rows]),
        TableColumn(
            ("", ""),
            [NOTHING if row["change_ratio"] is None else f"{100 * row['change_ratio']:+.1f} %" for row in rows],
        ),
    ]
    if any(row["low"] is not None for row in rows):
        columns += [
            TableColumn(("95 % confidence interval", ""), [_interval(row) for row in rows]),
            TableColumn(("", ""), [_MARKS[row["verdict"]] for row in rows], text=True),
        ]
    print_columns(title, columns)


def _waterfall(rows: Sequence[dict[str, Any]], whole: int, scale: int, limit: int) -> None:
    from augment.compare.diff_verdict import kind_title

    rows = [row for row in rows if row["delta_ns"]]
    if not rows:
        return
    shown = rows[:limit] if limit else rows
    rest = whole - sum(row["delta_ns"] for row in shown)
    numbers = [row["delta_ns"] / scale for row in shown]
    tail = [rest / scale] if len(rows) > len(shown) else []
    blank = [""] * (len(tail) + 1)
    words = [kind_title(row["kind"]) for row in shown]
    longest = max(map(abs, (*numbers, *tail)))
    bars = ["█" * round(BAR_WIDTH * abs(value) / longest) for value in (*numbers, *tail)]
    print_columns(
        "Where the difference comes from",
        [
            TableColumn(("time", "ms"), [f"{value / 1e6:+,.3f}" for value in (*numbers, *tail, whole / scale)]),
            TableColumn(("", ""), [*bars, ""], text=True),
            TableColumn(("what", ""), [*words, *(["the rest"] if tail else []), "all"], text=True),
            TableColumn(("", ""), [row["change"] for row in shown] + blank, text=True),
            TableColumn(("", ""), [_MARKS[row["verdict"]] for row in shown] + blank, text=True),
            TableColumn(("operator", ""), [row["operator"] or NOTHING for row in shown] + blank, text=True),
            TableColumn(("control → test", ""), [_what(row) for row in shown] + blank, text=True),
        ],
    )
    if tail:
        emit(f"… the rest: {counted(len(rows) - len(shown), 'part')} (--limit 0 shows all)")


def _what(row: dict[str, Any]) -> str:
    """The names of what ran, or of the host's activity, on both sides."""
    sides = [
        first_of(list(dict.fromkeys(map(_readable, row[side]))), NAMES_SHOWN)
        for side in ("control_names", "test_names")
    ]
    if sides[0] == sides[1]:
        return sides[0]
    return f"{sides[0] or NOTHING} → {sides[1] or NOTHING}"


def _kinds(title: str, rows: Sequence[dict[str, Any]], key: str, scale: int, limit: int) -> None:
    """The time of each kind of work, or other ``key``; prints nothing for a recording of the host alone."""
    from augment.compare.diff_verdict import kind_title

    if not any(row["control_count"] or row["test_count"] for row in rows):
        return
    shown = [row for row in rows if max(row["control_ns"], row["test_ns"]) >= LEAST_NS * scale][: limit or None]
    if not shown:
        return
    kinds = [kind_title(row[key]) if key == "kind_of_work" else row[key] or NOTHING for row in shown]
    print_columns(
        title,
        [
            TableColumn(("difference", "ms"), [f"{row['delta_ns'] / scale / 1e6:+,.3f}" for row in shown]),
            TableColumn(("control", "ms"), [f"{row['control_ns'] / scale / 1e6:,.3f}" for row in shown]),
            TableColumn(("test", "ms"), [f"{row['test_ns'] / scale / 1e6:,.3f}" for row in shown]),
            TableColumn(("", ""), [_percent(row) for row in shown]),
            TableColumn(
                ("count", "in all"),
                [_counts(row) if row["control_count"] or row["test_count"] else "" for row in shown],
            ),
            TableColumn(("", ""), [_MARKS[row["verdict"]] for row in shown], text=True),
            TableColumn((key.replace("_", " "), ""), kinds, text=True),
        ],
    )


def _changes(rows: Sequence[dict[str, Any]], steps: int, limit: int) -> None:
    changed = [row for row in rows if row["change"] not in ("added", "deleted") and row["verdict"] != "within_noise"]
    tables = (
        ("Slower", [row for row in changed if row["delta_ns"] > 0]),
        ("Faster", [row for row in changed if row["delta_ns"] < 0]),
        ("Added", [row for row in rows if row["change"] == "added"]),
        ("Removed", [row for row in rows if row["change"] == "deleted"]),
    )
    for title, all_of_it in tables:
        chosen = [row for row in all_of_it if abs(row["delta_ns"]) >= LEAST_NS * steps]
        if not chosen:
            continue
        shown = sorted(chosen, key=lambda row: (row["side"] != "gpu", -abs(row["delta_ns"])))
        gpu, cpu = ([row for row in shown if row["side"] == side] for side in ("gpu", "cpu"))
        shown = [*gpu[:limit], *cpu[:limit]] if limit else shown
        print_columns(
            f"{title}, time per step",
            [
                TableColumn(("on", ""), [row["side"] for row in shown], True, True),
                TableColumn(("difference", "ms"), [f"{row['delta_ns'] / steps / 1e6:+,.3f}" for row in shown]),
                TableColumn(("", ""), [_percent(row) for row in shown]),
                TableColumn(("count", "in all"), [_counts(row) for row in shown]),
                TableColumn(("name", ""), [_readable(row["name"]) for row in shown], text=True),
            ],
        )
        if len(chosen) > len(shown):
            emit(f"… and {len(chosen) - len(shown):,} more")


def _readable(name: str) -> str:
    """A kernel's name without return type and parameters, cut to a readable length."""
    name = unmangled(name)
    if name.startswith("void ") or "::" in name.partition("(")[0]:
        name = re.sub(r"\([^()]*\)$", "", name.removeprefix("void ")) or name
    return name if len(name) <= NAME_WIDTH else name[: NAME_WIDTH - 1] + "…"


def _percent(row: dict[str, Any]) -> str:
    return f"{100 * row['delta_ns'] / row['control_ns']:+.1f} %" if row["control_ns"] and row["test_ns"] else ""


def _counts(row: dict[str, Any]) -> str:
    if row["control_count"] == row["test_count"]:
        return f"{row['test_count']:,}"
    return f"{row['control_count']:,} → {row['test_count']:,}"


def _interval(row: dict[str, Any]) -> str:
    if row["low"] is None:
        from augment.compare.diff_verdict import no_interval

        return no_interval(row["step_count"])
    return f"{signed_text(row['low'], row['unit'])} … {signed_text(row['high'], row['unit'])}"
