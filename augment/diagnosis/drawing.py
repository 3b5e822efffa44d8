"""The track ``Diagnosis``: the verdict, in it findings over the time that they speak of, and arrows to causes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import msgspec
import numpy as np
from msgspec import Struct

from augment.arrays.ordering import run_starts
from augment.arrays.types import NO_INDEX
from augment.core.annotations import CUT_OFF, Annotation, Ends, Flows, InstantTrack, SliceTrack, Texts
from augment.core.text import Words, percent, time
from augment.core.trace import Trace
from augment.diagnosis.devices import words as words_of_trace
from augment.diagnosis.judging import longest, measure
from augment.diagnosis.ranking import diagnose
from augment.diagnosis.recording_completeness import ends_early
from augment.diagnosis.rule import Finding, Spans
from augment.diagnosis.verdict import headline
from augment.diagnosis.wording import advice, evidence, title, track_of
from augment.facts.critical.handovers import main_track
from augment.facts.gpu.gpu_work import gpu_work

TRACK = "Diagnosis"
MOST_SLICES = 32  #: of one finding; the longest
#: of the verdict and of findings: the Perfetto UI makes these numbers red, orange, light blue and green
COLOURS = {"high": 1339, "warning": 1324, "info": 101, "none": 1254}
JOINED_RATIO = 0.03  #: of a step: what is no further apart is one slice


class _Slice(Struct, frozen=True):
    start: int
    end: int
    finding: int
    row: int


def drawn(trace: Trace, analysis: str) -> list[Annotation]:
    """The track and its arrows; nothing if nothing could be judged."""
    findings, windows, words = diagnose(trace).findings, measure(trace).windows, words_of_trace(trace)
    slices = _nested(_slices(findings, JOINED_RATIO * measure(trace).length_ns))
    if not trace.tracks or not len(slices) + len(windows):
        return []
    start = min([*windows.start[:1].tolist(), *windows.begin[:1].tolist(), *(each.start for each in slices)])
    end = max([*windows.end[-1:].tolist(), *(each.end for each in slices), start + 1])
    slices = [_Slice(start, end, len(findings), -1), *slices]  # the verdict is around all
    code = np.array([each.finding for each in slices], np.int32)
    grave = [number for number, each in enumerate(findings) if each.is_grave]
    shown = findings[grave[0]] if grave else None  # whose advice the verdict's slice has, too
    colour = [COLOURS[each.severity if each.found.confidence != "low" else "info"] for each in findings]
    colour.append(COLOURS["none"] if shown is None else COLOURS[shown.severity])
    advised = f" → {advice(words, shown)}" if shown is not None else ""

    def texts(text: Callable[[Finding], str]) -> Texts:
        """A text for each slice; none where it is empty. That of the verdict is its first finding's."""
        values = [*map(text, findings), "" if shown is None else text(shown)]
        return Texts(np.where(np.array([*map(bool, values)])[code], code, np.int32(-1)), values)

    track = SliceTrack(
        analysis=analysis,
        name=TRACK,
        under=_under(trace),
        ts=np.array([each.start for each in slices], np.int64),
        dur=np.array([each.end - each.start for each in slices], np.int64),
        names=Texts(code, [*(_name(words, each) for each in findings), headline(trace) + advised]),
        args={
            "advice": texts(lambda each: advice(words, each)),  # the first that is seen
            "evidence": texts(lambda each: "; ".join(evidence(words, each))),
            "where": texts(lambda each: _where(trace, each)),
            "limit": texts(lambda each: each.limit or ""),
            "confidence": texts(lambda each: each.found.confidence),
            "severity": texts(lambda each: each.severity),
            "rule": texts(lambda each: each.rule),
            "saved_per_step_ns": np.array([*map(_saved, findings), -1], np.int64)[code],
        },
        description="the verdict, and in it what is wrong with this run: each finding over the time that it speaks of",
        of_process=True,
        colour=np.array(colour, np.int64)[code],
    )
    rows = np.array([each.row for each in slices], np.int64)
    caused = np.flatnonzero(rows >= 0)
    flows = Flows(analysis, TRACK, Ends(caused, track), Ends(rows[caused]))
    # A mark where the GPU's events end in a recording that ends before its last work does; none if it has no such event
    work, end_of_work = gpu_work(trace), list[Annotation]()
    if len(work) and (trace.partial is not None or ends_early(trace)):
        why = "the recording ended before the work did" if trace.partial is None else "the file is cut off"
        code, text = np.zeros(1, np.int32), f"{words_of_trace(trace).gpu} events end here: {why}"
        end = np.array([np.maximum(work.ts, work.end).max()], np.int64)
        end_of_work.append(InstantTrack(analysis, CUT_OFF, _under(trace), end, Texts(code, [text]), why))
    return [track, *([flows] if len(flows) else []), *end_of_work]


def drawn_alone(trace: Trace, analysis: str, sentences: tuple[str, str]) -> list[Annotation]:
    """The track of a recording that no rule can judge: why, around all of it, and within this what to do.

    It lies in the process of the thread with the most slices. Nothing without events.
    """
    events = trace.events
    if not trace.tracks or not len(events):
        return []
    rows = np.flatnonzero(events.dur > 0)
    busiest = int(np.bincount(events.track[rows], minlength=len(trace.tracks)).argmax())
    start, code = int(events.ts[0]), np.zeros(1, np.int32)
    track = SliceTrack(
        analysis=analysis,
        name=TRACK,
        under=busiest,
        ts=np.array([start], np.int64),
        dur=np.array([max(int(events.end.max()) - start, 1)], np.int64),
        names=Texts(code, sentences[:1]),
        args={"advice": Texts(code, sentences[1:])},
        inner=Texts(code, sentences[1:]),
        description="why this recording was not judged, and what to do",
        of_process=True,
    )
    return [track]


def _name(words: Words, finding: Finding) -> str:
    """``data loading, saves 23 %: The host … → Give the loader …``: what a narrow slice has no room for is last.
    The share is what a cure saves of a step, not that of the time which is drawn; what is merely possible ``may save``.

    The panel of a selected slice begins with its name; the args stand below its arrows, where few look.
    """
    saves = "may save" if finding.found.confidence == "low" else "saves"
    saves += " up to" if finding.found.at_most else " at least" if finding.found.seen.at_least else ""
    share = "" if finding.saved_ratio is None else f", {saves} {percent(finding.saved_ratio)}"
    return f"{finding.rule.replace('_', ' ')}{share}: {title(words, finding)} → {advice(words, finding)}"


def _under(trace: Trace) -> int:
    main = main_track(trace)
    streams = gpu_work(trace).streams
    return streams[0].track if main == NO_INDEX and streams else max(main, 0)


def _where(trace: Trace, finding: Finding) -> str:
    """``the longest of 24: 3.6 ms on GPU 5 stream 37, 115 ms after the first event``; empty without slices."""
    spans = finding.found.spans
    if not len(spans):
        return ""
    (start,), (end,), (row,) = (column.tolist() for column in msgspec.structs.astuple(longest(spans, 1)))
    track, count = track_of(trace, row), f"the longest of {len(spans):,}: " if len(spans) > 1 else ""
    after = (start - int(trace.events.ts[0])) / 1e6
    return f"{count}{time(end - start)}{f' on {track}' if track else ''}, {after:.3f} ms after the first event"


def _saved(finding: Finding) -> int:
    return -1 if finding.found.saved_ns is None else finding.found.saved_ns


def _slices(findings: tuple[Finding, ...], join_ns: float) -> list[_Slice]:
    """The longest bands of each finding."""
    slices = []
    for number, each in enumerate(findings):
        spans = longest(bands(each.found.spans, join_ns), MOST_SLICES)
        for start, end, row in zip(spans.start.tolist(), spans.end.tolist(), spans.row.tolist(), strict=True):
            if end > start:
                slices.append(_Slice(start, end, number, row))
    return slices


def bands(spans: Spans, join_ns: float) -> Spans:
    """Spans that overlap or are at most ``join_ns`` apart as one, with the row of the longest of them.

    Thousands of short waits all over a step would be hairlines without a name.
    """
    order = np.argsort(spans.start, kind="stable")
    start, end, row = spans.start[order], spans.end[order], spans.row[order]
    if not len(start):
        return spans
    reached = np.maximum.accumulate(end)
    first = np.flatnonzero(np.append(True, start[1:] > reached[:-1] + int(join_ns)))
    band = np.repeat(np.arange(len(first)), np.diff(np.append(first, len(start))))
    dur = end - start
    longest_of = np.flatnonzero(dur == np.maximum.reduceat(dur, first)[band])
    longest_of = longest_of[run_starts(band[longest_of])]
    return Spans(start[first], np.maximum.reduceat(end, first), row[longest_of])


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
