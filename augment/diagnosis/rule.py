"""What a rule is, and what it may answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal, Protocol

import msgspec
import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from augment.arrays import Bools, EventRow, EventRows, Int64s
from augment.core import RankInJob, Trace, text
from augment.facts.critical.what_if import Cut

Severity = Literal["high", "warning", "info"]
Confidence = Literal["high", "medium", "low"]
#: what decides how long a step takes: the host, kernels, or copies
Limit = Literal["host", "computing", "communication", "copies"]
SEVERITIES: tuple[Severity, ...] = ("high", "warning", "info")  #: the gravest first

HIGH_RATIO, WARNING_RATIO = 0.10, 0.05  #: shares of a step that a finding of this severity would save
MOST_LISTED = 16  #: entries of a list among the figures of a finding
CLEARLY_LESS = 0.9  #: of what a cure saves on its rank: the job gains less
LEAST_RATIO = 0.02  #: below this share of a step there is nothing to find


class Spans(Struct, frozen=True):
    """The slices that a finding speaks of: equal-length int64 columns. ``row``, into the event table, names them (-1:
    no slice); ``start`` and ``end``, ns, are when."""

    start: Int64s
    end: Int64s
    row: EventRows

    @staticmethod
    def of(trace: Trace, rows: EventRows) -> Spans:
        """Whole slices."""
        start = trace.events.ts[rows]
        return Spans(start, start + np.maximum(trace.events.dur[rows], 0), rows)

    @staticmethod
    def joined(parts: Sequence[Spans]) -> Spans:
        """All of several, in their order."""
        columns = (
            [getattr(NOWHERE, name), *(getattr(part, name) for part in parts)] for name in NOWHERE.__struct_fields__
        )
        return Spans(*map(np.concatenate, columns))

    def take(self, places: Int64s | Bools) -> Spans:
        """Some of them."""
        return Spans(self.start[places], self.end[places], self.row[places])

    def __len__(self) -> int:
        return len(self.start)


NOWHERE = Spans(
    np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, EventRow)
)  #: of a finding that no slice of the trace shows


class Seen(Struct, frozen=True):
    """What a rule saw: figures and names. Each rule derives a record of its own; the methods say its fields in words.

    Names of fields end in their unit: ``_ns``, ``_bytes``, ``_count`` (per step, unless it says otherwise), ``_ratio``.
    """

    #: what :meth:`cure` and :meth:`advice` say where no figures are needed
    CURE: ClassVar[str] = "fixing that"
    ADVICE: ClassVar[str]

    def title(self, words: text.Words) -> str:
        """The finding: a sentence without its full stop."""
        raise NotImplementedError

    def cure(self, words: text.Words) -> str:
        """What would save time, before ``would save``."""
        return words.fill(self.CURE)

    def fine(self, words: text.Words, saved_ns: int) -> str:
        """What is seen where too little would be saved."""
        return f"{self.title(words)}; {self.cure(words)} would save {words.share(saved_ns)}"

    def advice(self, words: text.Words) -> str:
        """What to change: a sentence without its full stop."""
        return words.fill(self.ADVICE)

    def evidence(self, words: text.Words) -> Sequence[str]:
        """More that was seen."""
        return ()

    def in_job(self, job: RankInJob, saved_ns: int) -> tuple[Seen, int]:
        """The same where the job of the rank is known, and what its cure, which saves ``saved_ns`` by the rank's own
        trace, saves there. What a faster host saves, the rank waits longer for late ones; where all hosts are slow for
        many reasons, it is what the cure saves on all ranks."""
        shared = job.shared
        if self.is_of_host and shared is not None and shared.reason.where == "many_operators":
            return self, min(saved_ns, shared.gain_ns)
        return self, max(saved_ns - job.wait_ns, 0) if self.is_of_host else saved_ns

    @property
    def is_of_host(self) -> bool:
        """Whether a cure only makes the host of this rank faster: in a job it then waits longer for late ranks."""
        return False

    @property
    def at_least(self) -> bool:
        """Whether a cure may save more than is predicted, as the recording cannot tell how much faster it makes the
        work."""
        return False

    @property
    def is_limit(self) -> bool:
        """Whether a cure may save less than is predicted, whatever other ranks do."""
        return False

    @property
    def figures(self) -> dict[str, Any]:
        """The fields by name, as plain data; the first :data:`MOST_LISTED` entries of a list."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return {name: value[:MOST_LISTED] if isinstance(value, list) else value for name, value in plain.items()}


class Found(Struct, frozen=True):
    """The rule fires.

    ``saved_ns`` is per step, as the critical path predicts it; None where it predicts nothing. ``cut`` is what that
    prediction leaves out. Without ``severity`` the saved share of a step decides. ``at_most``: less is saved if other
    ranks are what the run waits for, or the device falls short of its peaks. ``shown`` is the place among ``spans`` of
    the one to look at; None: the longest. ``in_step``: the number of the only step of several in which it is.
    ``beyond``: what else a cure may save, or why the job of the rank gains no more.
    """

    seen: Seen
    spans: Spans
    confidence: Confidence
    saved_ns: int | None = None
    cut: Cut | None = None
    severity: Severity | None = None
    first: bool = False  #: whether it is said before all others, because it puts them in doubt
    at_most: bool = False
    of_recording: bool = False  #: whether it is about the recording, not the run: it comes before others as grave
    shown: int | None = None
    in_step: int | None = None
    beyond: str = ""
    on_all: bool = False  #: ``saved_ns`` is what the job of the rank gains if all ranks fix it
    drawn: Spans | None = None  #: what a timeline shows, if not ``spans``

    @property
    def at_least(self) -> bool:
        """Whether its cure may save more: not where the job of the rank limits what it gains."""
        return self.seen.at_least and not self.beyond

    @property
    def worst(self) -> int | None:
        """The place among ``spans`` of the one to look at; None without any."""
        if not len(self.spans) or self.shown is not None:
            return self.shown
        return int(np.argmax(self.spans.end - self.spans.start))


class Fine(Struct, frozen=True):
    """The rule looked and does not fire; ``seen`` is what it saw, or a text of ours."""

    seen: Seen | str
    saved_ns: int = 0


class NotApplicable(Struct, frozen=True):
    """The run has nothing that the rule speaks of; ``why`` is a text of ours, with words of :class:`Words`."""

    why: str


class NoData(Struct, frozen=True):
    """The trace cannot tell; ``remedy`` says what to do, as a command: ``record with record_shapes=True``."""

    why: str
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
    findings that would save some of the same time. ``limit``: why not more would be saved: what then decides, in
    place of a good part of the time that is cured. ``is_hidden``: it is the host, which GPU work hides today."""

    rule: str
    severity: Severity
    found: Found
    saved_ratio: float | None
    overlaps: tuple[str, ...] = field(default=())
    limit: Limit | Literal["batches"] | None = None
    is_hidden: bool = False

    @property
    def is_grave(self) -> bool:
        """Whether the verdict names it: a good part of a step, and not merely possible."""
        return self.severity != "info" and self.found.confidence != "low"


def severity_of(saved_ratio: float | None) -> Severity:
    """The severity of what would save this share of a step. How certain that is, the confidence alone says."""
    if saved_ratio is None or saved_ratio < WARNING_RATIO:
        return "info"
    return "warning" if saved_ratio < HIGH_RATIO else "high"


def judged_in_job(finding: Found, job: RankInJob, words: text.Words, *, rule: str = "", keep: bool = False) -> Answer:
    """A finding, of the ``rule`` of this name, of a rank whose job is known, if it saves enough of a step, or anything
    and is to be kept."""
    seen, alone = finding.seen.in_job(job, finding.saved_ns or 0)
    on_all = job.fixed_ns.get(rule)
    if on_all is not None:
        if not keep and words.ratio(on_all) < LEAST_RATIO:
            return Fine(seen, on_all)
        return replace(finding, seen=seen, saved_ns=on_all, cut=None, on_all=True)
    saved, held_by = (job.gained_ns(alone), job.held_by) if seen.is_of_host and alone else (alone, "")
    late = job.itself  # a cure of more than what it is late by gains more where its peers have it, too
    is_bound = late is not None and saved < alone and (seen.at_least or CLEARLY_LESS * alone > late.charged_ns)
    # of what a cure of all hosts brings; with many reasons, one cure is a part of it
    alike = job.shared is not None and saved < job.shared.gain_ns + (job.shared.reason.where == "many_operators")
    limited = seen.is_limit or is_bound or bool(held_by) or (seen.is_of_host and (finding.at_most or alike))
    limited |= late is not None and late.at_most and seen.is_of_host and not seen.at_least
    beyond = f"as the job waits for {held_by}" if held_by else ""
    if alone and seen.at_least and not seen.is_of_host:
        held = f"it waits for {job.held_by}" if job.held_by else "other ranks limit it, too"
        beyond = f"by this rank's trace alone: the job may gain less, as {held}"
    beyond = "limited by other ranks" if saved < CLEARLY_LESS * alone else beyond
    beyond = (
        "but only if the hosts of all ranks become faster" if seen.is_of_host and job.shared is not None else beyond
    )
    if finding.saved_ns is None or (saved == finding.saved_ns and not finding.at_most):
        return replace(finding, seen=seen, at_most=limited, beyond=beyond)
    if not saved or (not keep and words.ratio(saved) < LEAST_RATIO):
        return Fine(seen, saved)
    known = not finding.at_most or (job.transfer_gain_ns is not None and job.is_whole)
    sure = finding.confidence if known or finding.confidence == "low" else "medium"
    cut = finding.cut if saved == finding.saved_ns else None  # else other ranks decide, of which the cut knows nothing
    at_most = limited or not known
    return replace(finding, seen=seen, saved_ns=saved, confidence=sure, cut=cut, at_most=at_most, beyond=beyond)
