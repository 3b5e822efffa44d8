"""The result of an analysis, and the declaration of a metric row.

A row is a frozen dataclass. :func:`column` makes each of its fields, with a unit and one sentence. The sidecar, its
JSON Schema, the tables of ``augment show`` and the pages in docs/ are all made from that declaration.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from augment.annotations import Annotation
from augment.trace import Diagnostic, Trace

#: all units of columns; the suffix of a column's name agrees with its unit
UNITS = ("", "ns", "bytes", "count", "ratio", "GB/s", "TFLOP/s", "FLOP", "FLOP/B")


def column(doc: str, unit: str = "") -> Any:
    """A field of a metric row: ``doc`` is one sentence, ``unit`` is one of :data:`UNITS`."""
    if unit not in UNITS:
        raise ValueError(f"unknown unit {unit!r}")
    return dataclasses.field(metadata={"doc": doc, "unit": unit})


@dataclass(frozen=True, slots=True)
class Findings:
    """The metric rows and annotations of one analysis. ``partial`` says what is missing; None means nothing."""

    rows: Sequence[Any]
    annotations: Sequence[Annotation] = ()
    diagnostics: Sequence[Diagnostic] = ()
    partial: str | None = None


@dataclass(frozen=True, slots=True)
class Skipped:
    """The outcome of an analysis whose input data the trace lacks."""

    reason: str


Outcome = Findings | Skipped


@dataclass(frozen=True, slots=True)
class Window:
    """The analysed range of steps: the first and last number; ``start_ns`` is the time of their first event."""

    first_step: int
    last_step: int
    start_ns: int


@dataclass(frozen=True)
class AugmentedTrace:
    """A trace with the outcome of each requested analysis by name, in the registry's order.

    The trace is whole even if the analyses covered only a ``window`` of it.
    """

    trace: Trace
    outcomes: Mapping[str, Outcome]
    window: Window | None = None

    @property
    def annotations(self) -> list[Annotation]:
        """All annotations, in the order of the analyses."""
        results = (outcome for outcome in self.outcomes.values() if isinstance(outcome, Findings))
        return [annotation for findings in results for annotation in findings.annotations]

    @property
    def diagnostics(self) -> list[Diagnostic]:
        """What was repaired, dropped or doubtful: the reader's diagnostics, then the analyses', without duplicates."""
        results = (outcome for outcome in self.outcomes.values() if isinstance(outcome, Findings))
        added = (diagnostic for findings in results for diagnostic in findings.diagnostics)
        return list(dict.fromkeys([*self.trace.diagnostics, *added]))
