"""The track ``Diagnosis``: findings as slices over the time that they speak of, and arrows to what causes them."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from augment.annotations import Annotation, Ends, Flows, SliceTrack, Texts
from augment.derived.critical.handovers import NO_TRACK, main_track
from augment.derived.gpu.gpu_work import gpu_work
from augment.diagnosis.diagnose import diagnose
from augment.diagnosis.measure import longest
from augment.diagnosis.rule import Finding
from augment.diagnosis.wording import percent
from augment.records import dataclass
from augment.trace import Trace

TRACK = "Diagnosis"
MOST_SLICES = 32  #: of one finding; the longest


@dataclass(frozen=True, slots=True)
class _Slice:
    start: int
    end: int
    finding: int
    row: int


def drawn(trace: Trace, analysis: str) -> list[Annotation]:
    """The track and its arrows; nothing without findings."""
    findings = diagnose(trace).findings
    slices = _nested(_slices(findings))
    if not slices or not trace.tracks:
        return []
    code = np.array([each.finding for each in slices], np.int32)
    track = SliceTrack(
        analysis=analysis,
        name=TRACK,
        under=_under(trace),
        ts=np.array([each.start for each in slices], np.int64),
        dur=np.array([each.end - each.start for each in slices], np.int64),
        names=Texts(code, [_name(each) for each in findings]),
        args={
            "rule": Texts(code, [each.rule for each in findings]),
            "severity": Texts(code, [each.severity for each in findings]),
            "confidence": Texts(code, [each.found.confidence for each in findings]),
            "advice": Texts(code, [each.found.advice for each in findings]),
            "evidence": _evidence(findings, code),
            "saved_per_step_ns": np.array([_saved(each) for each in findings], np.int64)[code],
        },
        description="what is wrong with this run: each finding over the time that it speaks of",
        of_process=True,
    )
    rows = np.array([each.row for each in slices], np.int64)
    caused = np.flatnonzero(rows >= 0)
    flows = Flows(analysis, TRACK, Ends(caused, track), Ends(rows[caused]))
    return [track, flows] if len(flows) else [track]


def _name(finding: Finding) -> str:
    """``data loading 23 %: The host fetches …``: what a narrow slice has no room for comes last."""
    share = "" if finding.saved_ratio is None else f" {percent(finding.saved_ratio)}"
    return f"{finding.rule.replace('_', ' ')}{share}: {finding.found.title}"


def _under(trace: Trace) -> int:
    main = main_track(trace)
    streams = gpu_work(trace).streams
    return streams[0].track if main == NO_TRACK and streams else max(main, 0)


def _evidence(findings: tuple[Finding, ...], code: np.ndarray[tuple[int], np.dtype[np.int32]]) -> Texts:
    texts = ["; ".join(each.found.evidence) for each in findings]
    known = np.array([bool(text) for text in texts])
    return Texts(np.where(known[code], code, np.int32(-1)), texts)


def _saved(finding: Finding) -> int:
    return -1 if finding.found.saved_ns is None else finding.found.saved_ns


def _slices(findings: tuple[Finding, ...]) -> list[_Slice]:
    """The longest spans of each finding. A span around spans of its own finding is left out."""
    slices = []
    for number, each in enumerate(findings):
        spans, reached = longest(each.found.spans, MOST_SLICES), None
        for start, end, row in zip(spans.start.tolist(), spans.end.tolist(), spans.row.tolist(), strict=True):
            if end > start and (reached is None or start >= reached):
                slices.append(_Slice(start, end, number, row))
                reached = end
    return slices


def _nested(slices: list[_Slice]) -> list[_Slice]:
    """The slices cut so that they nest: the longer ones stay whole, the shorter are cut where these begin and end.

    Only the first piece of a slice keeps its row, so that there is one arrow. There are at most some hundred slices.
    """
    placed: list[_Slice] = []
    for each in sorted(slices, key=lambda each: (each.start - each.end, each.finding, each.start)):
        cuts = {edge for other in placed for edge in (other.start, other.end) if each.start < edge < each.end}
        edges = sorted({each.start, each.end, *cuts})
        row = each.row
        for start, end in pairwise(edges):
            placed.append(_Slice(start, end, each.finding, row))
            row = -1
    return sorted(placed, key=lambda each: (each.start, each.start - each.end, each.finding))
