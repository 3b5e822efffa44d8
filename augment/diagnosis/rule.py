"""What a rule is, and what it may answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Protocol

import numpy as np
from msgspec import Struct, field

from augment.arrays.types import Int64s
from augment.derived.critical.savings import Cut
from augment.trace import Trace

Severity = Literal["high", "warning", "info"]
Confidence = Literal["high", "medium", "low"]
SEVERITIES: tuple[Severity, ...] = ("high", "warning", "info")  #: the gravest first

HIGH_RATIO, WARNING_RATIO = 0.10, 0.05  #: shares of a step that a finding of this severity would save
LEAST_RATIO = 0.02  #: below this share of a step there is nothing to find


class Spans(Struct, frozen=True):
    """The slices that a finding speaks of: equal-length int64 columns. ``row``, into the event table, names them (-1:
    no slice); ``start`` and ``end``, ns, are when."""

    start: Int64s
    end: Int64s
    row: Int64s

    @staticmethod
    def of(trace: Trace, rows: Int64s) -> Spans:
        """Whole slices."""
        start = trace.events.ts[rows]
        return Spans(start, start + np.maximum(trace.events.dur[rows], 0), rows)

    def __len__(self) -> int:
        return len(self.start)


class Found(Struct, frozen=True):
    """The rule fires.

    ``title`` is a sentence with numbers, ``advice`` says what to change. ``saved_ns`` is per step, as the critical
    path predicts it; None where it predicts nothing. ``cut`` is what that prediction leaves out. Without ``severity``
    the saved share of a step decides. ``at_most``: less is saved if other ranks are what the run waits for.
    """

    title: str
    advice: str
    spans: Spans
    confidence: Confidence
    saved_ns: int | None = None
    cut: Cut | None = None
    severity: Severity | None = None
    evidence: Sequence[str] = ()
    first: bool = False  #: whether it is said before all others, because it puts them in doubt
    at_most: bool = False
    of_recording: bool = False  #: whether it is about the recording, not the run: it comes before others as grave


class Fine(Struct, frozen=True):
    """The rule looked and does not fire; ``title`` says what it saw."""

    title: str


class NotApplicable(Struct, frozen=True):
    """The run has nothing that the rule speaks of."""

    title: str


class NoData(Struct, frozen=True):
    """The trace cannot tell; ``remedy`` says what to do, as a command: ``record with record_shapes=True``."""

    title: str
    remedy: str = ""


Answer = Found | Fine | NotApplicable | NoData


class Rule(Protocol):
    """The interface of a rule's module. The module's docstring becomes its section of docs/diagnosis.md."""

    @property
    def NAME(self) -> str:  # noqa: N802
        """Its name, also the anchor of its section."""

    @property
    def check(self) -> Callable[[Trace], Answer]:
        """The answer for a trace."""


class Finding(Struct, frozen=True):
    """What a rule found, with the severity that follows. ``saved_ratio``: of a step. ``overlaps``: the rules of other
    findings that would save some of the same time."""

    rule: str
    severity: Severity
    found: Found
    saved_ratio: float | None
    overlaps: tuple[str, ...] = field(default=())

    @property
    def is_grave(self) -> bool:
        """Whether the verdict names it: a good part of a step, and not merely possible."""
        return self.severity != "info" and self.found.confidence != "low"


def severity_of(saved_ratio: float | None) -> Severity:
    """The severity of what would save this share of a step. How certain that is, the confidence alone says."""
    if saved_ratio is None or saved_ratio < WARNING_RATIO:
        return "info"
    return "warning" if saved_ratio < HIGH_RATIO else "high"
