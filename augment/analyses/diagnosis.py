"""What is wrong with this run, and what would it save to change it?

Rules look for known problems, such as waiting for the data loader, calls that make the host wait, or exposed
communication ([the rules](diagnosis.md)). Each rule has a row. Its ``status`` is ``found``; ``fine`` (the rule looked,
and nothing is wrong); ``not_applicable`` (the run has nothing that the rule speaks of); or ``no_data`` (the trace
cannot tell; ``advice`` then says what would: an option of the profiler, or a command).

``saved_ns`` is a prediction for one step, by the graph of the critical path: what the rule blames is taken out of the
graph, and the longest path is computed again. So it is never a sum of durations: where other work would take as long,
nothing is saved. ``overlaps`` names the findings that would save part of the same time; their ``saved_ns`` do not add
up. A first step that is more than 1.5 times as long as the median of the others is left out, as it warms up.

``severity`` follows from the saved share of a step alone: ``high`` from 10 %, ``warning`` from 5 %, else ``info``; less
than 2 % is fine. ``confidence`` says how certain that is ([both tables](diagnosis.md#severity-and-confidence)). Rows
are in the order of importance: findings about the recording itself, then by severity and by ``saved_ns``, what is
merely possible (``low`` confidence) after what is not, then rules that found nothing.

``start_ns``, ``dur_ns``, ``track`` and ``slice`` are the worst slice that a finding speaks of: the longest, and of
calls of the runtime the one that costs most idle time. The track ``Diagnosis`` shows the longest slices of
each finding, with arrows to the events.

**What to do**: begin with the first finding: its ``advice``, and its rule's section. Record again, and compare
with ``augment diff`` before the next.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np

from augment.core import Category, Findings, OfRank, Skipped, Trace, Verdict, column
from augment.core.text import listed, percent, short
from augment.diagnosis.drawing import drawn, drawn_alone
from augment.diagnosis.host_alone import timeless, unjudged
from augment.diagnosis.judging import measure
from augment.diagnosis.ranking import diagnose, earlier
from augment.diagnosis.rule import LEAST_RATIO, Finding, Fine, NoData, Seen
from augment.diagnosis.rules import launch_bound
from augment.diagnosis.rules.clock_drop import sentences_watched
from augment.diagnosis.rules.graph_breaks import sentences_compiled
from augment.diagnosis.rules.network_setup import sentences_alone
from augment.diagnosis.rules.out_of_memory import snapshot_sentences
from augment.diagnosis.verdict import named, sentences, verdict
from augment.diagnosis.wording import answer_text, known_slices, title, track_of, words
from augment.facts.gpu.lines_of_work import lines_of_rows, source_lines

NAME = "diagnosis"
NEEDS: tuple[tuple[Category, ...], ...] = ()
DOCS = "diagnosis.md"
_MOST_LINES = 3

#: of a rule that found nothing
_UNFOUND: dict[str, Any] = dict.fromkeys(("in_verdict", "at_most", "at_least"), False) | dict.fromkeys(
    ("severity", "saved_ns", "saved_ratio", "in_step", "confidence", "start_ns", "dur_ns", "track", "slice")
)
Status = Literal["found", "fine", "not_applicable", "no_data"]


class Row(OfRank, frozen=True):
    """The answer of one rule."""

    rule: Annotated[str, column("The name of the rule.")]
    status: Annotated[Status, column("found, fine, not_applicable or no_data.")]
    in_verdict: Annotated[bool, column("Whether the verdict says it.", key=False)]
    severity: Annotated[str | None, column("high, warning or info; null unless found.")]
    title: Annotated[str, column("What was found or seen, in a sentence with numbers.", key=False)]
    saved_ns: Annotated[
        int | None, column("How much shorter a step would be, as predicted; null if nothing predicts it.", "ns")
    ]
    saved_ratio: Annotated[float | None, column("Share of a step.", "ratio")]
    at_most: Annotated[bool, column("Whether less is saved if other ranks are what the run waits for.", key=False)]
    at_least: Annotated[bool, column("Whether more may be saved, which the recording cannot tell.", key=False)]
    in_step: Annotated[int | None, column("The only step of three or more in which nearly all of it is.", key=False)]
    confidence: Annotated[str | None, column("high, medium or low; null unless found.")]
    overlaps: Annotated[list[str], column("Rules of other findings that would save part of the same time.")]
    count: Annotated[int, column("Number of slices that the finding speaks of.", "count")]
    start_ns: Annotated[
        int | None, column("Start of the worst of them, after the first event of what was analysed.", "ns")
    ]
    dur_ns: Annotated[int | None, column("Its duration.", "ns")]
    track: Annotated[str | None, column("Its thread or stream.")]
    slice: Annotated[str | None, column("Its name.")]
    evidence: Annotated[list[str], column("More that was seen.", key=False)]
    figures: Annotated[
        dict[str, Any],
        column(
            "The figures and names of the title, by name; times are per step, lists have 16 entries at most.", key=False
        ),
    ]
    advice: Annotated[str | None, column("What to change; without data, what would provide it.")]
    docs: Annotated[str, column("The rule's section in the documentation.")]


def analyze(trace: Trace) -> Findings | Skipped:
    """Ask every rule."""
    if not len(known_slices(trace)):
        text = unjudged(trace)
        beside = snapshot_sentences(trace) or sentences_alone(trace) or sentences_compiled(trace)
        beside = beside or sentences_watched(trace)
        verdict_alone = Verdict(beside or text)
        return Skipped("no event of PyTorch's profiler", verdict_alone, drawn_alone(trace, NAME, text))
    if trace.partial is None and not measure(trace).length_ns:
        text = timeless(trace)
        return Skipped("the recording has no time that could be judged", Verdict(text), drawn_alone(trace, NAME, text))
    diagnosis = diagnose(trace)
    rows = [_found(trace, each) for each in diagnosis.findings]
    known = {row.rule for row in rows}
    # of the rules that found nothing, what they saw
    rest = []
    for rule, answer in diagnosis.answers.items():
        if rule in known:
            continue
        status: Status = (
            "fine" if isinstance(answer, Fine) else "no_data" if isinstance(answer, NoData) else "not_applicable"
        )
        remedy = words(trace).fill(answer.remedy) if isinstance(answer, NoData) else ""
        rest.append(
            Row(
                rank=trace.rank,
                rule=rule,
                status=status,
                title=answer_text(words(trace), answer),
                overlaps=[],
                count=0,
                evidence=[],
                **_UNFOUND,
                figures=answer.seen.figures if isinstance(answer, Fine) and isinstance(answer.seen, Seen) else {},
                advice=remedy or None,
                docs=f"{DOCS}#{rule}",
            )
        )
    earlier(trace)  # while the graph is there
    about = [sentence.rules for sentence in sentences(trace)]
    judged = Verdict(verdict(trace), tuple(rows), about=about)
    return Findings([*rows, *rest], drawn(trace, NAME), verdict=judged)


def _found(trace: Trace, finding: Finding) -> Row:
    spans, problem = finding.found.spans, finding.found
    worst = problem.worst
    row = -1 if worst is None else int(spans.row[worst])
    # Which lines of the program the GPU work comes from that a finding speaks of
    source = source_lines(trace)
    site = lines_of_rows(trace, spans.row) if source else np.full(len(spans), -1)
    ns = np.bincount(site[site >= 0], (spans.end - spans.start)[site >= 0], len(source.labels))
    longest = [place for place in np.argsort(-ns, kind="stable")[:_MOST_LINES].tolist() if ns[place] > 0]
    places = [(source.sites[place][0].folder, source.labels[place]) for place in longest]
    shown = [label if "/" in label else folder + label for folder, label in places]
    ratio = float(ns[longest].sum() / max(int((spans.end - spans.start).sum()), 1))
    what = "these waits end with launches" if finding.rule == launch_bound.NAME else "their time comes"
    lines = [f"{percent(ratio)} of {what} from {listed(shown)}"] if ratio >= LEAST_RATIO else []
    return Row(
        rank=trace.rank,
        rule=finding.rule,
        status="found",
        in_verdict=finding.rule in named(trace),
        severity=finding.severity,
        title=title(words(trace), finding),
        saved_ns=problem.saved_ns,
        saved_ratio=finding.saved_ratio,
        at_most=problem.at_most,
        at_least=problem.seen.at_least,
        in_step=problem.in_step,
        confidence=problem.confidence,
        overlaps=list(finding.overlaps),
        count=len(spans),
        start_ns=None if worst is None else int(spans.start[worst] - trace.events.ts[0]),
        dur_ns=None if worst is None else int(spans.end[worst] - spans.start[worst]),
        track=track_of(trace, row) or None,
        slice=short(trace.strings[int(trace.events.name[row])]) if row >= 0 else None,
        figures=problem.seen.figures,
        evidence=[*problem.seen.evidence(words(trace)), *lines],
        advice=problem.seen.advice(words(trace)),
        docs=f"{DOCS}#{finding.rule}",
    )
