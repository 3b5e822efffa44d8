"""What an analysis returns, and how a metric row is declared.

A row is a frozen dataclass whose fields are made by :func:`column`, which gives each its unit and one sentence. From
that one declaration come the sidecar, its JSON Schema, the tables of ``augment show`` and the pages in docs/.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from augment.annotations import Annotation
from augment.trace import Diagnostic, Trace

#: every unit a column may have; the suffix of its name says the same where there is one
UNITS = ("", "ns", "bytes", "count", "ratio", "GB/s")


def column(doc: str, unit: str = "") -> Any:
    """A field of a metric row: ``doc`` is one sentence, ``unit`` one of :data:`UNITS`."""
    if unit not in UNITS:
        raise ValueError(f"unknown unit {unit!r}")
    return dataclasses.field(metadata={"doc": doc, "unit": unit})


@dataclass(frozen=True, slots=True)
class Findings:
    """The metric rows and annotations of one analysis. ``partial`` says what is missing, if anything is."""

    rows: Sequence[Any]
    annotations: Sequence[Annotation] = ()
    diagnostics: Sequence[Diagnostic] = ()
    partial: str | None = None


@dataclass(frozen=True, slots=True)
class Skipped:
    """The trace lacks what the analysis needs."""

    reason: str


Outcome = Findings | Skipped


@dataclass(frozen=True, slots=True)
class Window:
    """The steps, the first and the last, that alone were analysed; ``start_ns`` is the time of their first event."""

    first_step: int
    last_step: int
    start_ns: int


@dataclass(frozen=True)
class AugmentedTrace:
    """A trace with the outcome of every analysis that was asked for, by its name, in the registry's order.

    The trace is whole even where a ``window`` of it alone was analysed.
    """

    trace: Trace
    outcomes: Mapping[str, Outcome]
    window: Window | None = None

    @property
    def annotations(self) -> list[Annotation]:
        """Every annotation, in the analyses' order."""
        found = (o for o in self.outcomes.values() if isinstance(o, Findings))
        return [annotation for findings in found for annotation in findings.annotations]

    @property
    def diagnostics(self) -> list[Diagnostic]:
        """What was repaired, dropped or doubtful: the reader's, then the analyses'; what two of them tell, once."""
        found = (o for o in self.outcomes.values() if isinstance(o, Findings))
        return list(dict.fromkeys([*self.trace.diagnostics, *(d for findings in found for d in findings.diagnostics)]))
