"""What a report consists of: sections with charts and tables; and tables of a sidecar's rows."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from augment.core import columns_of, text
from augment.diagnosis.wording import heading as in_words
from augment.diagnosis.wording import saves
from augment.results.sidecars import row_types

Row = Mapping[str, Any]


class Chart(Struct, frozen=True):
    """A chart. ``spec`` is a Vega or Vega-Lite specification; ``text`` says what it shows."""

    name: str
    spec: Mapping[str, Any]
    text: str


#: the colour of what is drawn before the parts of a step, as it is not counted
HATCHED = "repeating-linear-gradient(45deg,#999 0 2px,transparent 2px 6px)"


class ReportTable(Struct, frozen=True):
    """Rows with equal members; the unit of a column is its suffix, as in the sidecar. ``total`` counts all rows that
    there are, of which ``rows`` may be the first. ``folded`` tables are shown on demand."""

    name: str
    title: str
    rows: Sequence[Row]
    total: int
    folded: bool = False

    @property
    def about(self) -> Mapping[str, str]:
        """What its columns mean; nothing of a table that the report makes itself."""
        row = row_types().get(self.name)
        return {} if row is None else {each.name: each.doc for each in columns_of(row)}


class Section(Struct, frozen=True):
    """A section: ``lead`` is the sentence that matters."""

    title: str
    lead: str = ""
    charts: Sequence[Chart] = ()
    tables: Sequence[ReportTable] = ()

    @property
    def anchor(self) -> str:
        """The id of its heading."""
        return re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")

    def __bool__(self) -> bool:
        return bool(self.charts or self.tables or self.lead)


class Document(Struct, frozen=True):
    """A report. ``facts`` are names and values of its header; ``findings`` are rows of ``diagnosis``, or of a job's
    verdict; ``subject`` says what the page is about."""

    title: str
    subject: str
    verdict: Sequence[str]
    facts: Sequence[tuple[str, str]]
    sections: Sequence[Section]
    findings: Sequence[Row] = field(default=())
    diagnostics: Sequence[Row] = field(default=())
    parts: Sequence[tuple[str, float, str]] = field(default=())  #: name, share and colour of what a step goes into
    cures: Sequence[str] = field(default=())  #: what to do about the verdict of a job
    opened: str = ""  #: what its commands open; empty for none
    headline: tuple[str, str] = ("", "")  #: what is gravest, if its cure saves much, in a few words; its severity


MOST_ROWS = 200  #: rows of a table that a page holds
MOST_NAMED = 3  #: analyses that are named for one reason
_CLIP = 160  #: the longest text of a cell
_MOST_RULES = 6  #: that are named beside what they all say


def rows_of(sidecar: Mapping[str, Any], analysis: str) -> list[dict[str, Any]]:
    """The rows of an analysis; none if it is absent or skipped."""
    return list(sidecar["analyses"].get(analysis, {}).get("rows", ()))


def table(
    sidecar: Mapping[str, Any], analysis: str, title: str, *, by: str | None = None, folded: bool = False
) -> list[ReportTable]:
    """The table of an analysis, the rows with most of ``by`` first. No table if there is no row."""
    rows = rows_of(sidecar, analysis)
    return [made_table(analysis, title, rows, by=by, folded=folded)] if rows else []


def made_table(
    name: str,
    title: str,
    rows: Sequence[Row],
    *,
    by: str | None = None,
    columns: Sequence[str] = (),
    folded: bool = False,
) -> ReportTable:
    """A table of ``rows``, at least one. Columns without any value are left out."""
    if by:
        rows = sorted(rows, key=lambda row: -(row.get(by) or 0))
    kept = rows[:MOST_ROWS]
    shown = [name for name in columns or rows[0] if not any(isinstance(row.get(name), dict) for row in kept)]
    names = [name for name in shown if any(row.get(name) not in (None, "", []) for row in kept)]
    return ReportTable(name, title, [{name: _cell(row.get(name)) for name in names} for row in kept], len(rows), folded)


def others(sidecar: Mapping[str, Any], shown: Collection[str]) -> Section:
    """The tables of all analyses that no section has ``shown``, folded."""
    tables = []
    for name, analysis in sidecar["analyses"].items():
        if not analysis["rows"] or name in shown:
            continue
        tables.append(made_table(name, text.capitalized(text.spaced(name)), analysis["rows"], folded=True))
    return Section("All other figures", "", (), tables)


def not_possible(sidecar: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """A fact of the header: a line for each reason for which analyses were skipped; none if all could be done."""
    by_reason: dict[str, list[str]] = defaultdict(list)
    for name, each in sidecar["analyses"].items():
        if each["status"] == "skipped":
            by_reason[each["reason"]].append(name)
    reasons = [
        f"{text.counted(len(names), 'analysis', 'analyses') if len(names) > MOST_NAMED else ', '.join(names)}: {reason}"
        for reason, names in by_reason.items()
    ]
    if reasons:
        yield "not possible", "\n".join(f"• {reason}" for reason in reasons)


def totals(rows: Iterable[Row], key: Callable[[Row], Any], *figures: str) -> dict[Any, list[float]]:
    """The sums of ``figures`` by key, in the order of first appearance."""
    sums: dict[Any, list[float]] = defaultdict(lambda: [0.0] * len(figures))
    for row in rows:
        total = sums[key(row)]
        for place, figure in enumerate(figures):
            total[place] += row.get(figure) or 0
    return dict(sums)


def doubts(diagnostics: Iterable[Row]) -> list[str]:
    """Diagnostics in words, with how often if more than once; those of one message together."""
    counts = totals(diagnostics, lambda row: str(row["message"]), "count")
    return [f"{message}: {count:,.0f}" if count > 1 else message for message, (count,) in counts.items()]


def plain(cell: str) -> str:
    """A line for Markdown in which no name is HTML, a link or an image, nor begins another line."""
    return " ".join(cell.replace("<", "&lt;").replace("](", "]&#40;").splitlines())


def heading(row: Row) -> str:
    """What a finding is called below the verdict: ``Waiting for batches (a fix saves 23 %)``, or its title."""
    return str(row["title"]) if needs_title(row) else short_heading(row)


def needs_title(row: Row) -> bool:
    """Whether a finding is not understood by its short heading: that has no figure, or the verdict does not say it."""
    return not row.get("in_verdict") or (row.get("saved_ratio") is None and not row.get("ranks"))


def short_heading(row: Row, whole: str = "") -> str:
    """``Waiting for batches (a fix saves 23 %)``, of any finding of a rule; else its title. ``whole``: of what."""
    if not row.get("rule"):
        return str(row["title"])
    if ranks := row.get("ranks"):  # that hold up a job
        return f"{in_words(str(row['rule']))}, rank{'s' * (len(ranks) > 1)} {text.ranges_text(ranks)}"
    bounds = bool(row.get("at_most")), bool(row.get("at_least"))
    return in_words(str(row["rule"]), row.get("figures")) + saves(
        row.get("saved_ratio"), str(row.get("confidence")), *bounds, whole
    )


def severity_of(row: Row) -> str:
    """``high``, ``warning`` or ``info``; ``possible`` if little is certain."""
    return "possible" if row.get("confidence") == "low" else str(row.get("severity") or "info")


def place_of(row: Row) -> str:
    """Where a finding is worst: ``the worst of 28 places: 3.624 ms long, on GPU 3 stream 37``. Its title may count
    something else, and say a part of these times."""
    many = f"the worst of {row['count']:,} places: " if (row.get("count") or 0) > 1 else ""
    track = f", on {row['track']}" if row.get("track") else ""
    return f"{many}{text.exact_time(row.get('dur_ns') or 0)} long{track}"


def has_place(row: Row) -> bool:
    """Whether a finding is in a part of the file: what a recording lacks may be of all of it."""
    return row.get("start_ns") is not None and (row.get("rule") != "partial_recording" or row["start_ns"] != 0)


def unfound(rows: Iterable[Row], quote: str = "") -> Iterator[str]:
    """Rows of rules that found nothing, those that say the same in one: what they saw or what is missing, and what
    would provide that."""
    rules: dict[str, list[str]] = {}
    for row in rows:
        said = row["title"] + (f"; {row['advice']}" if row.get("advice") else "")
        rules.setdefault(said, []).append(f"{quote}{row['rule']}{quote}")
    yield from (f"{text.listed(names, _MOST_RULES)}: {said}" for said, names in rules.items())


def mean(rows: Sequence[Row], figure: str) -> float | None:
    """The mean of the values that there are."""
    values = [row[figure] for row in rows if row.get(figure) is not None]
    return sum(values) / len(values) if values else None


def _cell(value: Any) -> Any:
    if isinstance(value, list | str):
        value = ", ".join(text.unmangled(str(each)) for each in ([value] if isinstance(value, str) else value))
    return value if not isinstance(value, str) or len(value) <= _CLIP else value[: _CLIP - 1] + "…"
