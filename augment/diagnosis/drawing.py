"""The track ``Diagnosis``: the verdict, in it findings over the time that they speak of, and arrows to causes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from augment import facts
from augment.arrays import NO_INDEX, run_starts
from augment.core import Annotation, Ends, Flows, InstantTrack, SliceTrack, Texts, Trace
from augment.core.annotations import CUT_OFF
from augment.core.text import time
from augment.diagnosis.judging import longest, measure
from augment.diagnosis.ranking import diagnose
from augment.diagnosis.recording_completeness import ends_early
from augment.diagnosis.rule import Finding, Spans
from augment.diagnosis.rules import straggling_rank
from augment.diagnosis.verdict import headline, sentences
from augment.diagnosis.wording import heading, saves, title, track_of
from augment.diagnosis.wording import words as words_of_trace

TRACK = "Diagnosis"
MOST_SLICES = 32  #: of one finding; the longest
#: of the verdict and of findings: the Perfetto UI makes these numbers red, orange, light blue and green
COLOURS = {"high": 1339, "warning": 1324, "info": 101, "none": 1254}
JOINED_RATIO = 0.03  #: of a step: what is no further apart is one slice


class DrawnDiagnosis(Struct, frozen=True):
    """The track as plain data, which a rank leaves for its job, whose findings may differ.

    ``start_ns`` and ``dur_ns`` of each slice, and of which of the ``texts`` it is, the first slice that of the verdict.
    Each of the ``texts`` has a name and args; ``saved_ns`` (-1: unknown) are theirs. ``arrows`` lead from a slice to an
    event: slice, id of the arrow, row of the event, its start and its track.
    """

    under: int
    start_ns: list[int]
    dur_ns: list[int]
    of_text: list[int]
    texts: list[dict[str, str]]
    saved_ns: list[int]
    arrows: list[tuple[int, int, int, int, int]]

    @classmethod
    def of(cls, annotations: Iterable[Annotation], trace: Trace) -> DrawnDiagnosis | None:
        """That which is among the annotations of a trace."""
        drawn = list(annotations)
        track = next((each for each in drawn if isinstance(each, SliceTrack) and each.seamed), None)
        if track is None:
            return None
        of_text, columns = track.names.codes.tolist(), {_NAME: track.names}
        columns |= {name: each for name, each in track.args.items() if isinstance(each, Texts)}
        texts = [{name: each.values[number] for name, each in columns.items()} for number in range(max(of_text) + 1)]
        saved_ns = np.asarray(track.args[_SAVED])[np.unique(of_text, return_index=True)[1]]
        arrows: list[tuple[int, int, int, int, int]] = []
        for each in drawn:
            if isinstance(each, Flows) and each.ids is not None:
                rows = each.into.rows
                ends = each.out.rows, each.ids, rows, each.into.times(trace), trace.events.track[rows]
                arrows += [tuple(arrow) for arrow in np.column_stack(ends).tolist()]
        return cls(track.under, track.ts.tolist(), track.dur.tolist(), of_text, texts, saved_ns.tolist(), arrows)

    def annotations(self, analysis: str) -> list[SliceTrack | Flows]:
        """The track and its arrows."""
        code, none = np.array(self.of_text, np.int32), np.int32(-1)

        def column(name: str) -> Texts:
            """A text for each slice; none where it is empty."""
            values = [each[name] for each in self.texts]
            return Texts(np.where(np.array([*map(bool, values)])[code], code, none), values)

        track = SliceTrack(
            analysis=analysis,
            name=TRACK,
            under=self.under,
            ts=np.array(self.start_ns, np.int64),
            dur=np.array(self.dur_ns, np.int64),
            names=column(_NAME),
            args={
                **{name: column(name) for name in self.texts[0] if name != _NAME},
                _SAVED: np.array(self.saved_ns, np.int64)[code],
            },
            description="the verdict, and in it what is wrong with this run: each finding over the time it speaks of",
            of_process=True,
            on_top=True,
            colour=np.array([colour(each["severity"], each["confidence"]) for each in self.texts], np.int64)[code],
            seamed=True,
        )
        out, ids, rows, ts, tracks = np.array(self.arrows, np.int64).reshape(-1, 5).T.copy()
        flows = Flows(analysis, TRACK, Ends(out, track), Ends(rows, None, ts, tracks), ids)
        return [track, *([flows] if len(flows) else [])]


_NAME, _SAVED = "name", "saved_per_step_ns"
_MOST_TEXTS = 64  #: more than there are rules


def texts_of(
    rule: str,
    title: str,
    advice: str,
    evidence: Sequence[str],
    severity: str,
    confidence: str,
    *,
    figures: Mapping[str, Any] | None = None,
    saves: str,
    where: str = "",
    limit: str = "",
) -> dict[str, str]:
    """The name and args of a finding: ``Waiting for batches (a fix saves 23 %): The host … → Give the loader …``. Last
    is what a narrow slice has no room for.

    The panel of a selected slice begins with its name; the args stand below its arrows, where few look.
    """
    return {
        _NAME: f"{heading(rule, figures)}{saves}: {title} → {advice}",
        "advice": advice,  # the first that is seen
        "evidence": "; ".join(evidence),
        "where": where,
        "limit": limit,
        "confidence": confidence,
        "severity": severity,
        "rule": rule,
    }


def of_verdict(text: str, first: dict[str, str] | None, severity: str = "") -> dict[str, str]:
    """The name and args of the verdict: these are those of its first finding, if it names any, or else a severity."""
    args = {**dict.fromkeys(texts_of("", "", "", (), "", "", saves=""), ""), "severity": severity} | (first or {})
    return {**args, _NAME: text}


def colour(severity: str, confidence: str) -> int:
    """The colour of a severity, empty for none: what is merely possible is as light as what saves little."""
    return COLOURS["info" if confidence == "low" and severity else severity or "none"]


class _Slice(Struct, frozen=True):
    start: int
    end: int
    finding: int
    row: int


def drawn(trace: Trace, analysis: str) -> list[Annotation]:
    """The track and its arrows; nothing if nothing could be judged."""
    findings, windows, words = diagnose(trace).findings, measure(trace).windows, words_of_trace(trace)
    # the longest bands of each finding
    join_ns = JOINED_RATIO * measure(trace).length_ns
    slices = []
    for number, each in enumerate(findings):
        spans = longest(bands(each.found.drawn or each.found.spans, join_ns), MOST_SLICES)
        for start, end, row in zip(spans.start.tolist(), spans.end.tolist(), spans.row.tolist(), strict=True):
            if end > start:
                slices.append(_Slice(start, end, number, row))
    slices = _nested(slices)
    if not trace.tracks or not len(slices) + len(windows):
        return []
    start = min([*windows.start[:1].tolist(), *windows.begin[:1].tolist(), *(each.start for each in slices)])
    end = max([*windows.end[-1:].tolist(), *(each.end for each in slices), start + 1])
    # The verdict is around all, and in it what speaks of the whole job, unless the verdict begins with that
    about = [sentence.is_unexplained for sentence in sentences(trace) if not sentence.is_state]
    likely = [each for each in findings if each.severity != "info" and not any(about)]
    grave = [each for each in findings if each.is_grave] or likely[:1]
    said = grave[0].rule if grave else ""
    of_job = [number for number, each in enumerate(findings) if each.rule == straggling_rank.NAME != said]
    slices = [*(_Slice(start, end, number, -1) for number in (len(findings), *of_job)), *slices]
    saved = {
        each.rule: saves(each.saved_ratio, each.found.confidence, each.found.at_most, each.found.at_least)
        for each in findings
    }
    verdict = headline(
        trace, {each.rule: f"{heading(each.rule, each.found.seen.figures)}{saved[each.rule]}" for each in grave}
    )
    verdict += f" → {grave[0].found.seen.advice(words)}" if grave else ""
    texts = [
        texts_of(
            each.rule,
            title(words, each),
            each.found.seen.advice(words),
            each.found.seen.evidence(words),
            each.severity,
            each.found.confidence,
            figures=each.found.seen.figures,
            saves=saved[each.rule],
            where=_where(trace, each),
            limit=each.limit or "",
        )
        for each in findings
    ]
    texts.append(of_verdict(verdict, texts[findings.index(grave[0])] if grave else None, "warning" * any(about)))
    saved_ns = [-1 if each.found.saved_ns is None else each.found.saved_ns for each in findings]
    events, rows = trace.events, np.array([each.row for each in slices], np.int64)
    shown, code = np.unique([each.finding for each in slices], return_inverse=True)
    caused = np.flatnonzero(rows >= 0)
    ids = rows[caused] * _MOST_TEXTS + code[caused]
    arrows = np.column_stack([caused, ids, rows[caused], events.ts[rows[caused]], events.track[rows[caused]]])
    track = DrawnDiagnosis(
        under=_under(trace),
        start_ns=[each.start for each in slices],
        dur_ns=[each.end - each.start for each in slices],
        of_text=code.tolist(),
        texts=[texts[number] for number in shown.tolist()],
        saved_ns=[[*saved_ns, -1][number] for number in shown.tolist()],
        arrows=[tuple(arrow) for arrow in arrows.tolist()],
    )
    # A mark where the GPU's events end in a recording that ends before its last work does; none if it has no such event
    work, end_of_work = facts.gpu.work(trace), list[Annotation]()
    if len(work) and (trace.partial is not None or ends_early(trace)):
        why = "the recording ended before the work did" if trace.partial is None else "the file is cut off"
        text = Texts(np.zeros(1, np.int32), [f"{words_of_trace(trace).gpu} events end here: {why}"])
        end = np.array([np.maximum(work.ts, work.end).max()], np.int64)
        end_of_work.append(InstantTrack(analysis, CUT_OFF, _under(trace), end, text, why))
    return [*track.annotations(analysis), *end_of_work]


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
        on_top=True,
    )
    return [track]


def _under(trace: Trace) -> int:
    main = facts.critical.main_track(trace)
    streams = facts.gpu.work(trace).streams
    return streams[0].track if main == NO_INDEX and streams else max(main, 0)


def _where(trace: Trace, finding: Finding) -> str:
    """``the worst of 24 places: 3.6 ms long, on GPU 5 stream 37, 115 ms after the first event``; empty without any."""
    spans, worst = finding.found.spans, finding.found.worst
    if worst is None:
        return ""
    start, end, row = (int(column[worst]) for column in msgspec.structs.astuple(spans))
    track, count = track_of(trace, row), f"the worst of {len(spans):,} places: " if len(spans) > 1 else ""
    after = (start - int(trace.events.ts[0])) / 1e6
    return f"{count}{time(end - start)} long{f', on {track}' if track else ''}, {after:.3f} ms after the first event"


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
    """The slices cut so that they nest, the more important above: these stay whole, the others are cut where they begin
    and end.

    Only the first piece of a slice keeps its row, so that there is one arrow. There are at most some hundred slices.
    """
    placed: list[_Slice] = []
    for each in sorted(slices, key=lambda each: (each.finding, each.start - each.end, each.start)):
        cuts = {edge for other in placed for edge in (other.start, other.end) if each.start < edge < each.end}
        edges = sorted({each.start, each.end, *cuts})
        row = each.row
        for start, end in pairwise(edges):
            placed.append(_Slice(start, end, each.finding, row))
            row = -1
    return sorted(placed, key=lambda each: (each.start, each.start - each.end, each.finding))
