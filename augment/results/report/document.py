"""What a report consists of: sections with charts and tables."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct, field

Row = Mapping[str, Any]


class Chart(Struct, frozen=True):
    """A chart. ``spec`` is a Vega or Vega-Lite specification; ``text`` says what it shows."""

    name: str
    spec: Mapping[str, Any]
    text: str


class ReportTable(Struct, frozen=True):
    """Rows with equal members; the unit of a column is its suffix, as in the sidecar. ``total`` counts all rows that
    there are, of which ``rows`` may be the first. ``folded`` tables are shown on demand."""

    name: str
    title: str
    rows: Sequence[Row]
    total: int
    folded: bool = False


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
