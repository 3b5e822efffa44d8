"""The result of an analysis, and the declaration of a metric row.

A row is a frozen ``msgspec.Struct``. Each field is ``Annotated`` with its :func:`column`: one sentence and a unit. The
sidecar, its JSON Schema, the tables of ``augment show`` and the pages in docs/ are all made from that declaration.
"""

from __future__ import annotations

import functools
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Meta, Struct, field
from msgspec.structs import replace

from augment.core import tabular
from augment.core.annotations import Annotation
from augment.core.tabular import Table
from augment.core.text import listed
from augment.core.trace import Category, Diagnostic, Identity, Trace
from augment.errors import expect_known

#: all units of columns; the suffix of a column's name agrees with its unit
UNITS = ("", "ns", "bytes", "count", "ratio", "GB/s", "TFLOP/s", "FLOP", "FLOP/B")
REDUCED = "annotations_reduced"  #: the code of diagnostics whose counts are added up, one of each analysis


def column(doc: str, unit: str = "", *, key: bool = True) -> Meta:
    """What a field of a metric row means: ``doc`` is one sentence, ``unit`` is one of :data:`UNITS`. Without ``key`` it
    does not say which row this is, although it has no unit: a sentence, and what it is made of."""
    if unit not in UNITS:
        raise ValueError(f"unknown unit {unit!r}")
    return Meta(description=doc, extra={"unit": unit, "key": key})


class OfRank(Struct, frozen=True):
    """A metric row of a rank."""

    rank: typing.Annotated[int | None, column("The rank of the process, if known.")]


class OfDevice(OfRank, frozen=True):
    """A metric row of a device."""

    device: typing.Annotated[Identity, column("The device.")]


class Column(Struct, frozen=True):
    """A column of a table of metric rows. ``type`` is that of its values."""

    name: str
    type: Any
    doc: str
    unit: str
    is_key: bool  #: it says which row this is


@functools.cache
def columns_of(row: type[Struct]) -> tuple[Column, ...]:
    """The columns that a class of metric rows declares, in their order."""
    hints = typing.get_type_hints(row, include_extras=True)
    declared = [(name, hints[name], hints[name].__metadata__[0]) for name in row.__struct_fields__]
    return tuple(
        Column(name, hint.__origin__, meta.description, meta.extra["unit"], meta.extra["key"])
        for name, hint, meta in declared
    )


class Verdict(Struct, frozen=True):
    """What is wrong with a run: one to five sentences, and the metric rows that they rest on. ``str`` of it, and what a
    notebook prints, are the sentences. ``joined``: whether the traces that it is about are of one run. ``about``: of
    each sentence the rules that it speaks of."""

    text: Sequence[str] = ()
    rows: Sequence[Any] = ()
    joined: bool = True
    about: Sequence[Sequence[str]] = ()

    def __repr__(self) -> str:
        return "\n".join(self.text) or "<Verdict: none>"


class Findings(Struct, frozen=True):
    """The metric rows and annotations of one analysis. ``partial`` says what is missing; None means nothing.

    ``verdict`` is what it says of the whole run, if it says that.
    """

    rows: Sequence[Any]
    annotations: Sequence[Annotation] = ()
    diagnostics: Sequence[Diagnostic] = ()
    partial: str | None = None
    verdict: Verdict | None = None

    def __repr__(self) -> str:
        return f"<Findings: {self.summary}>"

    @property
    def summary(self) -> str:
        """The number of rows and annotations, and what is missing."""
        drawn = f", {_counted(len(self.annotations), 'annotation')}" if self.annotations else ""
        return f"{_counted(len(self.rows), 'row')}{drawn}{f'; partial: {self.partial}' if self.partial else ''}"


class Skipped(Struct, frozen=True):
    """The outcome of an analysis whose input data the trace lacks, or that an error of this program ended."""

    reason: str
    verdict: Verdict | None = None  #: what can be said of the run all the same
    annotations: Sequence[Annotation] = ()  #: tracks that say it on the timeline
    traceback: str = ""  #: of an error of this program in the analysis, which is its outcome; empty: none

    @classmethod
    def without(cls, categories: Sequence[Category]) -> Skipped:
        """The outcome of an analysis of events of these categories, of which the trace has none."""
        names = [category.name.lower() for category in categories]
        return cls(f"no event of category {listed(names, len(names), 'or')}")

    @property
    def status(self) -> str:
        """``failed`` by an error of this program, else ``skipped``."""
        return "failed" if self.traceback else "skipped"

    @property
    def summary(self) -> str:
        """That it was skipped, and why."""
        return f"{self.status}: {self.reason}"


Outcome = Findings | Skipped


class Window(Struct, frozen=True):
    """The analysed range of steps: the first and last number; ``start_ns`` is the time of their first event."""

    first_step: int
    last_step: int
    start_ns: int


def table_of(name: str, outcome: Outcome, row: type[Any] | None = None) -> Table:
    """The outcome of an analysis as a table, with the columns of ``row`` even if it has no rows."""
    if isinstance(outcome, Skipped):
        return Table.of_rows(name, (), row, status=outcome.status, reason=outcome.reason)
    status = "ok" if outcome.partial is None else "partial"
    return Table.of_rows(name, outcome.rows, row, status=status, reason=outcome.partial)


class AugmentedTrace(Struct, frozen=True):
    """A trace with the outcome of each requested analysis by name, in the registry's order.

    The trace is whole even if the analyses covered only a ``window`` of it. ``row_types`` are the classes of the rows
    of each analysis. ``augmented["kernel_breakdown"]`` is an outcome as a table; iteration gives the names.
    """

    trace: Trace
    outcomes: Mapping[str, Outcome]
    window: Window | None = None
    row_types: Mapping[str, type[Any]] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Table:
        """The outcome of an analysis as a table.

        Raises:
            UsageError: no analysis of that name was run.
        """
        expect_known(name, self.outcomes, "analysis that was run")
        return table_of(name, self.outcomes[name], self.row_types.get(name))

    def __iter__(self) -> Iterator[str]:
        return iter(self.outcomes)

    def __contains__(self, name: object) -> bool:
        return name in self.outcomes

    def __repr__(self) -> str:
        skipped = sum(isinstance(outcome, Skipped) for outcome in self.outcomes.values())
        skipped_text = f", {skipped} of them skipped" if skipped else ""
        return f"<AugmentedTrace {self.trace.summary}; {len(self.outcomes)} analyses{skipped_text}>"

    def _repr_html_(self) -> str:
        """What notebooks display."""
        steps = self.outcomes.get("steps")
        shares = tabular.shares_of(steps.rows) if isinstance(steps, Findings) else ()
        outcomes = {name: outcome.summary for name, outcome in self.outcomes.items()}
        return tabular.notebook_page(self.trace.summary, self.verdict.text, shares, outcomes)

    @property
    def annotations(self) -> list[Annotation]:
        """All annotations, in the order of the analyses."""
        return [annotation for outcome in self.outcomes.values() for annotation in outcome.annotations]

    @property
    def verdict(self) -> Verdict:
        """The verdict of the analysis that has one; empty if none ran."""
        return next((each.verdict for each in self.outcomes.values() if each.verdict is not None), Verdict())

    @property
    def diagnostics(self) -> list[Diagnostic]:
        """What was repaired, dropped or doubtful: the reader's diagnostics, then the analyses', without duplicates."""
        results = (outcome for outcome in self.outcomes.values() if isinstance(outcome, Findings))
        added = [diagnostic for findings in results for diagnostic in findings.diagnostics]
        reduced = sum(diagnostic.count for diagnostic in added if diagnostic.code == REDUCED)  # others may repeat
        added = [replace(each, count=reduced) if each.code == REDUCED else each for each in added]
        return list(dict.fromkeys([*self.trace.diagnostics, *added]))


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
