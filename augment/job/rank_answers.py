"""What the job tells each rank: for whom it waits, that others wait for it, or that nobody is late.

A rank's own diagnosis cannot tell waiting from slow communication; it is made before the other ranks are read. With the
job known, its findings about communication are judged again from what its summary says of them. The result is the only
answer about the rank: it is drawn into its timeline, stands in its metrics, and is what a folder is told.
Messages of pipelines are left out, as stages wait by design; so are collectives of which at most half of the ranks have
traces.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from augment.arrays import Bools, Int64s, Intervals, distinct, sums
from augment.core import AugmentedTrace, Findings, Flows, LateRank, Outcome, RankInJob, Reason, SliceTrack, Texts, Trace
from augment.core.output_files import TOLD
from augment.core.text import Words, capitalized, counted, listed, period, three_digits, time, words_of
from augment.diagnosis.drawing import DrawnDiagnosis, colour, of_verdict, texts_of
from augment.diagnosis.late_ranks import MOST_OF_IT, can_explain, compared
from augment.diagnosis.rule import NOWHERE, WARNING_RATIO, Finding, Fine, Found, Seen, judged_in_job, severity_of
from augment.diagnosis.rule import Answer as RuleAnswer
from augment.diagnosis.rules import SEEN_OF_JOB, launch_bound, long_calls, straggling_rank
from augment.diagnosis.verdict import PART_COLUMNS, busy_text
from augment.diagnosis.wording import answer_text, saves, title
from augment.facts.source.several_ranks import may_be_merged, rank_of_track
from augment.facts.steps.window import only
from augment.job.aggregates import Aggregation
from augment.job.answer import Answer, Portion, answer_of
from augment.job.path import exposed_parts
from augment.job.ranks import OwnDiagnosis, RankSummary, rank_names, summary_of
from augment.job.verdict import MOST_PEERS, may_be_loading
from augment.writers.metrics import ReportedTrack
from augment.writers.seams import Addable

TRACK, DIAGNOSIS = "Job diagnosis", "diagnosis"


class RankAnswer(Struct, frozen=True):
    """What the job tells a rank. ``text``: about the rank, and what to do; ``verdict``: that with what else is wrong,
    and ``headline``: the same with findings first; ``rows``: the answers of rules that differ from those of the rank
    alone, as rows of its diagnosis; ``steps``: those of which the verdict is the mean, where the rank alone is judged
    by others. All are empty, and ``figures`` None, if the job cannot tell."""

    text: list[str] = []
    verdict: list[str] = []
    rows: list[dict[str, Any]] = []
    figures: RankInJob | None = None
    headline: str = ""
    steps: list[int] = []

    def reported(self, job: str) -> dict[str, Any]:
        """The member of the rank's metrics; ``job`` is the verdict of its job."""
        figures = self.figures
        return {
            "text": self.text,
            "job": job,
            "waits_for": figures.waits_for or None if figures and not figures.itself else None,
            "wait_per_step_ns": figures.wait_ns if figures else None,
            "transfer_per_step_ns": figures.transfer_ns if figures else None,
            "longer_than_peers_per_step_ns": figures.itself.charged_ns if figures and figures.itself else None,
            "verdict": self.verdict,
            "rows": self.rows,
            "steps": self.steps,
        }


def rank_in_job(answer: Answer, member: int) -> RankInJob | None:
    """Figures of a member in the job's steps; None without collectives, or without these steps, as its recording is
    cut short, and where the job cannot tell who is late for more than uncertain clocks."""
    matched, parted, summary = answer.matched, answer.parted, answer.summaries[member]
    rows = matched.rows_of(member)
    rows = rows[answer.tells_late[matched.instance[rows]]]
    tells = answer.judgement.tells
    if not len(rows) or not (tells or all(clock.uncertain for clock in answer.clocks)):
        return None
    if not (judged := _judged_steps(answer, summary)).any():
        return None
    start, end = summary.step_column("start")[judged], summary.step_column("end")[judged]
    waited, moved = exposed_parts(matched, parted, summary, rows, Intervals(start, end))
    place = np.searchsorted(start, matched.ts[rows], side="right") - 1
    inside = (place >= 0) & (matched.ts[rows] < end[np.maximum(place, 0)])
    alone = np.minimum(parted.wait_ns[rows], summary.column("exposed_ns")[matched.place[rows]])
    last = matched.instance[rows]
    late, alone = matched.member[parted.late[last]], np.where(inside, np.maximum(alone, 0), 0)
    for_each = sums(late, np.minimum(alone, parted.lead_ns[last]), len(answer.summaries))  # for the last one alone
    most = int(for_each.argmax())
    share = float(for_each[most] / max(int(alone.sum()), 1))
    if not tells:
        return RankInJob(int(waited.sum()) // len(start), int(moved.sum()) // len(start), is_told=False)
    steps = answer.judgement.step_count or 1
    return RankInJob(
        wait_ns=int(waited.sum()) // len(start),
        transfer_ns=int(moved.sum()) // len(start),
        waits_for=rank_names([answer.summaries[most]])[0] if share >= MOST_OF_IT else "",
        most_ratio=share,
        late_ranks=tuple(
            LateRank(
                name=rank_names([answer.summaries[each]])[0],
                is_own=each == member,
                reason=reason,
                charged_ns=row.charged_ns // steps,
                gain_ns=None if row.gain_ns is None else row.gain_ns // steps,
                confidence="high" if row.confidence == "high" else "medium",  # the waits are known, even if not why
                at_most="hides_loaders" in row.figures,
            )
            for each, row, reason in answer.judgement.late_ranks
        ),
        transfer_gain_ns=answer.judgement.transfer_gain_ns,
        shared=answer.judgement.shared,
        fixed_ns=answer.judgement.fixed_ns,
        most_fixed=answer.judgement.most_fixed.rule if answer.judgement.most_fixed else "",
        is_whole=not (matched.members < matched.size())[matched.instance[rows]].any(),
    )


def _judged_steps(answer: Answer, summary: RankSummary) -> Bools:
    """Whether the job is judged by each step of a rank: by all of a recording without steps, by the steady ones where
    the job cannot tell."""
    number = summary.step_column("number")
    if not answer.judgement.tells:
        return np.not_equal(summary.step_column("steady"), 0)
    steps = answer.judgement.steps.numbers
    return np.isin(number, steps) if len(steps) else np.ones(len(number), np.bool_)


def rank_answer(answer: Answer, member: int) -> RankAnswer:
    """What the job tells a member."""
    figures, summary = rank_in_job(answer, member), answer.summaries[member]
    alone = summary.own_diagnosis
    if figures is None:
        return RankAnswer()
    steady, judged = summary.step_column("steady") != 0, _judged_steps(answer, summary)
    length = (summary.step_column("end") - summary.step_column("start"))[judged]
    has_steps = bool((summary.step_column("number") >= 0).any())
    words = words_of(alone.vendor if alone else "nvidia", "step" if has_steps else "recording", int(length.mean()))
    words = words._replace(steps=int(steady.sum())) if has_steps else words
    words = words._replace(gpu="rank", waiting="") if summary.is_host_alone else words
    straggling = straggling_rank.of_job(figures, words)
    finding = _finding(straggling_rank.NAME, straggling, words)
    if finding is None:
        text = [answer_text(words, straggling)]
    else:
        text = [title(words, finding), *finding.found.seen.evidence(words), finding.found.seen.advice(words)]
    text = [f"{capitalized(sentence)}." for sentence in text]
    if alone is None:
        return RankAnswer(text, [], [], figures)
    rows, about_job, other_steps = [], [], bool((steady != judged).any())
    known = replace(figures, shared=None) if other_steps else figures  # what all ranks would gain is of the job's steps
    for row in alone.rows:
        changed = _judged(row, straggling, known, words)
        if changed != row:
            rows.append(changed)
            if changed["in_verdict"]:
                about_job.append((changed["rule"] != straggling_rank.NAME, f"{changed['title']}."))
    rules = {row["rule"] for row in rows}
    said, steps = list(alone.sentences), list[int]()
    if other_steps and alone.busy >= 0:  # one job has steps of one length
        parts = {label: int(summary.step_column(name)[judged].sum()) for name, label in PART_COLUMNS.items()}
        steps, span = summary.step_column("number")[judged].tolist(), int(length.sum()) * alone.device_count
        alike = (summary.step_column("end") - summary.step_column("start"))[steady]
        alone_ns = int(alike.mean()) if len(alike) else 0
        whose = f"; what only its own trace shows is of its usual steps, of {time(alone_ns)} each" if alone_ns else ""
        notes = f" (the {counted(len(steps), 'step')} by which the job is judged{whose})"
        mean = f"a {'mean ' * (len(steps) > 1)}step of {time(int(length.mean()))}"
        busy = busy_text(words, alone.device_count, span, parts, mean, notes)
        said[alone.busy] = busy, []
    if (about_job or finding) and alone.nothing >= 0:
        del said[alone.nothing]
    kept = [(sentence, about) for sentence, about in said if not rules.intersection(about)]
    if about_job:  # what the rank calls the largest of minor problems is not
        kept = [(sentence, about) for sentence, about in kept if not about or set(alone.grave).intersection(about)]
    state = next((number for number, (_, about) in enumerate(kept, 1) if not about), len(kept))
    of_job = [sentence for _, sentence in sorted(about_job, key=lambda each: each[0])]
    of_job = [*dict.fromkeys([*(text[:1] if finding or not about_job else []), *of_job])]
    kept[state:state] = [(sentence, [straggling_rank.NAME]) for sentence in of_job]
    others = {row["rule"]: row for row in alone.others}
    if about_job and may_be_loading(others):  # it makes no rank late, and may be most of what this one loses
        kept.insert(state + len(of_job), (f"Possible: {others[long_calls.NAME]['title']}.", [long_calls.NAME]))
    findings_first = sorted(kept, key=lambda each: not each[1])
    headline = " ".join(sentence for sentence, _ in findings_first)
    return RankAnswer(text, [sentence for sentence, _ in kept], rows, figures, headline, steps)


def _finding(rule: str, answer: RuleAnswer, words: Words) -> Finding | None:
    if not isinstance(answer, Found):
        return None
    ratio = None if answer.saved_ns is None else words.ratio(answer.saved_ns)
    return Finding(rule, answer.severity or severity_of(ratio), answer, ratio)


def _judged(row: dict[str, Any], straggling: RuleAnswer, figures: RankInJob, words: Words) -> dict[str, Any]:
    """A row of the rank's own diagnosis where the job is known."""
    late = figures.itself
    explains = late is not None and _is_grave(row) and can_explain(row["rule"], late.reason)  # it is not left out
    seen: Seen | None = None
    if row["rule"] == straggling_rank.NAME:
        answer = straggling
    elif row["status"] == "found":
        seen = msgspec.convert(row["figures"], SEEN_OF_JOB[row["rule"]])
        kept = {"at_most": row["at_most"], "in_step": row.get("in_step")}
        alone = Found(seen, NOWHERE, row["confidence"], row["saved_ns"], **kept)
        answer = judged_in_job(alone, figures, words, rule=row["rule"], keep=explains)
        if answer == alone:
            return row
    else:
        return row
    finding = _finding(row["rule"], answer, words)
    evidence = [] if finding is None else list(finding.found.seen.evidence(words))
    return {
        **row,
        "status": "found" if finding else "fine",
        "in_verdict": finding is not None and (finding.is_grave or explains or row["rule"] == figures.most_fixed),
        "severity": finding.severity if finding else None,
        "title": title(words, finding) if finding else answer_text(words, answer),
        "saved_ns": finding.found.saved_ns if finding else None,
        "saved_ratio": finding.saved_ratio if finding else None,
        "at_most": finding is not None and finding.found.at_most,
        "at_least": finding is not None and finding.found.at_least,
        "confidence": finding.found.confidence if finding else None,
        "overlaps": [],
        "evidence": row["evidence"] if finding is not None and finding.found.seen == seen else evidence,
        "figures": answer.seen.figures if isinstance(answer, Found | Fine) and isinstance(answer.seen, Seen) else {},
        "advice": finding.found.seen.advice(words) if finding else None,
    }


Problems = dict[str, dict[str, Any]]  #: what rules found on a rank, as rows of its diagnosis, by rule


def cures(answer: Answer, problems: Mapping[int, Problems] = MappingProxyType({})) -> list[str]:
    """What to do about what the job's verdict names first, without full stops at the ends; empty if no rank says so.

    Of a late rank it is, of the findings that can explain the verdict's cause, the one that would save, beyond what it
    would save on its peers (their median), about what the rank is late by, if that is most of it; before it comes what
    would save most ranks more. Where all wait for their hosts alike, or no rank is known to be late, it is that of the
    rule whose cures would save most of all ranks, on the rank where that is most. What to do about transfers that hold
    all ranks up comes last, or first where they are most, and what most ranks may load at its first use. Findings about
    other ranks and the recording are none. Of many ranks some are asked: for their ``problems``, by member, or else
    their summaries.
    """
    row = next(iter(answer.verdict.rows), None)
    count = len(answer.summaries)
    some = {*range(0, count, -(-count // MOST_PEERS))}
    ways = Counter[str]()
    rows_in_job = cache(lambda member: rank_answer(answer, member).rows)
    gain_ns, late_first = answer.judgement.transfers
    for member in sorted(some.difference(late_first)) if gain_ns else ():
        if alone := answer.summaries[member].own_diagnosis:
            rows = (row for row in alone.rows if row["rule"] == "exposed_communication" and row["status"] == "found")
            seen = (msgspec.convert(row["figures"], SEEN_OF_JOB[row["rule"]]) for row in rows)
            known = (each.in_job(RankInJob(0, 0), 0)[0] for each in seen)  # as who is late is known
            ways.update(each.advice(words_of(alone.vendor, "step", 1)) for each in known)
    transfers = [f"Communication: {way}" for way, _ in ways.most_common(1)]
    if row is not None and row.rank is None and row.cause != "shared":
        is_uneven = row.cause == "uneven"  # else links are slow, or a rank of unknown number is late
        reason = Reason("compute", more_work=1.0) if is_uneven else Reason(row.cause, row.figures.get("where", ""))
        return [*filter(None, [compared(reason)]), *transfers]
    late = [] if row is None or row.rank is None else [[each.rank for each in answer.summaries].index(row.rank)]
    asked = {
        member: problems.get(member)
        or _problems(answer.summaries[member].own_diagnosis, () if member in late else rows_in_job(member))
        for member in sorted({*some, *late})
    }
    loading = [of_rank[long_calls.NAME] for of_rank in asked.values() if may_be_loading(of_rank)]
    if 2 * len(loading) > len(asked):
        whose = f"{len(loading)} of {counted(len(asked), 'rank')}"
        transfers.append(f"Possible, by the own traces of {whose}: {loading[0]['title']}. {loading[0]['advice']}")
    of_all = answer.judgement.fixed_ns
    gains = dict[str, dict[int, int]]()  # what its cure saves, by rule and member
    for member, of_rank in asked.items():
        for rule, each in of_rank.items():
            if _is_grave(each) or (rule in of_all and each["confidence"] != "low"):
                gains.setdefault(rule, {})[member] = of_all.get(rule, each["saved_ns"] or 0)
    if row is not None and late:  # what saves each of most ranks more than the late one costs the job
        least = (row.charged_ns if row.gain_ns is None else row.gain_ns) / (answer.judgement.step_count or 1)
        gains = {rule: of for rule, of in gains.items() if min(of.values()) > least and 2 * len(of) > len(asked)}
    of_most = list[str]()
    for rule in sorted(gains, key=lambda rule: -sum(gains[rule].values()))[:1]:
        of = gains[rule]
        most = max(of, key=lambda member: (of[member], asked[member][rule].get("dur_ns") or 0, -member))
        named = rank_names([answer.summaries[most]])[0]
        in_job = [row for row in rows_in_job(most) if row["rule"] == rule and row["status"] == "found"]
        which = f"{named} most" if [*of.values()].count(of[most]) == 1 else f"such as {named}"
        whose = f"{len(of)} of {len(asked)} ranks{' looked at' * (len(asked) < count)}"
        alone = f"By their own traces {whose} would gain {100 * WARNING_RATIO:.0f} % or more, {which}"
        every = "both ranks" if count == 2 else f"all {count} ranks"
        whose = f"On {every if len(of) == count else whose}, {which}" if rule in of_all else alone
        if in_job and row is not None and row.cause == "shared" and getattr(SEEN_OF_JOB[rule], "is_of_host", 0) is True:
            see_it = _see_it(answer.summaries[most], in_job[0])
            of_most = ["Speed up the hosts of all ranks, as one alone gains little"]
            of_most += [f"What slows them, {which}: {in_job[0]['title']}{see_it}", in_job[0]["advice"]]
        else:
            of_most = [f"{whose}: {_what_to_do(answer.summaries[most], in_job[0] if in_job else asked[most][rule])}"]
    if row is None or not late:
        return [*transfers, *of_most] if answer.judgement.are_transfers_most else [*of_most, *transfers]
    of_late = asked.pop(late[0])
    alike = {member: _problems(answer.summaries[member].own_diagnosis, ()) for member in asked} if of_all else asked
    usual = {
        rule: np.median([of.get(rule, {}).get("saved_ns") or 0 for of in (alike if rule in of_all else asked).values()])
        for rule in (of_late if asked else ())
    }
    reason = Reason(row.cause, row.figures.get("where", ""), more_work=row.figures.get("more_work", 0.0))
    beyond = {
        rule: (each["saved_ns"] or 0) - usual.get(rule, 0)
        for rule, each in of_late.items()
        if _is_grave(each) and can_explain(rule, reason)
    }
    name = rank_names([answer.summaries[late[0]]])[0].capitalize()
    alone = answer.summaries[late[0]].own_diagnosis
    look = compared(reason)
    if alone and alone.outside and row.cause == "host" and row.figures.get("where") == "no_operator":
        look = f"While no thread runs an operator, its main thread spends {listed(alone.outside)}"
    way = [f"{name}: {look}"] if look else []
    steps = answer.judgement.step_count or 1
    late_ns = max(row.charged_ns / steps, 1)
    for rule in sorted(beyond, key=lambda rule: (round(abs(beyond[rule] / late_ns - 1)), -beyond[rule])):
        if beyond[rule] > usual.get(rule, 0):
            # of several that are late, the cure of one gains nothing
            judged_rows = [] if row.ranks else rows_in_job(late[0])
            judged = {row["rule"]: row for row in judged_rows if row["status"] == "found"}.get(rule)
            problem, gain = judged or of_late[rule], row.gain_ns
            more = not judged and gain is not None and (problem["saved_ns"] or 0) * steps > _MORE * gain
            of_job = (
                f"the job gains {three_digits((gain or 0) / steps)}, its own trace more" if more else "in its own trace"
            )
            who = f"{name} ({of_job})" if more or rule not in SEEN_OF_JOB else name
            if rule == launch_bound.NAME and reason.where == "many_operators":  # peers launch as much, but faster
                way[-1] += _see_it(answer.summaries[late[0]], problem)
            else:
                way.append(f"{who}: {_what_to_do(answer.summaries[late[0]], problem)}")
            break
    if row.all_hosts_ns and launch_bound.NAME in of_late:
        way.insert(0, f"Hosts of all ranks: {of_late[launch_bound.NAME]['advice']}")
    way = [*of_most, *way]
    return [*transfers, *way] if answer.judgement.are_transfers_most else [*way, *transfers]


_OPEN_FOLDER = "augment open FOLDER"  #: of a job, whose metrics do not know where its traces are


def in_folder(lines: Iterable[str], folder: str, traces: Mapping[int, str] = MappingProxyType({})) -> list[str]:
    """The lines with the folder of the job's traces in their commands, or with these ``traces``, by rank."""
    opened = {f"{_OPEN_FOLDER} --rank {rank} ": f"{shlex.join(['augment', 'open', traces[rank]])} " for rank in traces}
    for command, named in {**opened, _OPEN_FOLDER: shlex.join(["augment", "open", folder])}.items():
        lines = [line.replace(command, named) for line in lines]
    return list(lines)


def _what_to_do(summary: RankSummary, problem: dict[str, Any]) -> str:
    """A rank's finding, its cure, and where it can be seen, as far as that is known."""
    return ". ".join(filter(None, (problem["title"], problem["advice"]))) + _see_it(summary, problem)


def _see_it(summary: RankSummary, problem: dict[str, Any]) -> str:
    """The command that shows a rank's finding, to end a sentence; empty if its place is not known."""
    if summary.rank is None or problem.get("start_ns") is None:
        return ""
    at = period(problem["start_ns"], problem["dur_ns"])
    return f"; see it: `{_OPEN_FOLDER} --rank {summary.rank} --at {at}`"


def problems_of(outcome: Outcome) -> Problems:
    """What rules found on a trace of a rank, of its outcome of the analysis ``diagnosis``."""
    rows = outcome.rows if isinstance(outcome, Findings) else ()
    return {
        row.rule: {name: getattr(row, name) for name in _JUDGED}
        for row in rows
        if row.status == "found" and row.rule not in _OF_OTHERS
    }


def _problems(alone: OwnDiagnosis | None, in_job: Sequence[dict[str, Any]]) -> Problems:
    """What rules found on a rank, by rule; ``in_job``: the rows that differ from its own."""
    if alone is None:
        return {}
    rows = {row["rule"]: row for row in (*alone.others, *alone.rows, *in_job)}
    return {rule: row for rule, row in rows.items() if row.get("status", "found") == "found" and rule not in _OF_OTHERS}


def _is_grave(row: dict[str, Any]) -> bool:
    return row["severity"] in ("high", "warning") and row["confidence"] != "low"


_JUDGED = ("title", "advice", "severity", "confidence", "saved_ns", "start_ns", "dur_ns")
_MORE = 1.05  #: a cure that would save so much more than its job gains by it says whose figure that is
_OF_OTHERS = ("straggling_rank", "exposed_communication", "partial_recording")


def drawn_alone(summary: RankSummary) -> list[SliceTrack | Flows]:
    """The rank's own diagnosis as it was drawn before its job was known; nothing if no rule was asked."""
    alone = summary.own_diagnosis
    return alone.drawn.annotations(DIAGNOSIS) if alone and alone.drawn else []


def drawn(answer: Answer, member: int) -> list[Addable]:
    """All that a job draws on the timeline of a member: its diagnosis, which the job may tell otherwise, and the job's
    tracks, where it has any."""
    alone = answer.summaries[member].own_diagnosis
    judged: list[Addable] = []
    if alone is not None and alone.drawn is not None:
        judged += _in_job(alone.drawn, rank_answer(answer, member)).annotations(DIAGNOSIS)
    return [*judged, *([track(answer, member), *answer.annotations(member)] if answer.is_drawn(member) else [])]


def _in_job(alone: DrawnDiagnosis, said: RankAnswer) -> DrawnDiagnosis:
    """The diagnosis that a rank has drawn, as its job tells it: what is withdrawn is gone, other findings say what the
    job knows, and what only the job finds is around all of them: in the verdict, unless it begins otherwise."""
    if not said.headline:
        return alone
    of_rule = {text["rule"]: number for number, text in enumerate(alone.texts) if number != alone.of_text[0]}
    texts, saved_ns = dict(enumerate(alone.texts)), dict(enumerate(alone.saved_ns))
    for row in said.rows:
        number = of_rule.get(row["rule"], len(alone.texts))
        if row["status"] == "found" and (number in of_rule.values() or row["rule"] == straggling_rank.NAME):
            texts[number] = texts_of(
                *(row[name] for name in ("rule", "title", "advice", "evidence", "severity", "confidence")),
                figures=row["figures"],
                saves=saves(row["saved_ratio"], row["confidence"], row["at_most"], row["at_least"]),
                where=texts[number]["where"] if number in texts else "",
            )
            saved_ns[number] = -1 if row["saved_ns"] is None else row["saved_ns"]
        elif row["rule"] in of_rule:
            del texts[number]
    verdict, added = alone.of_text[0], [number for number in texts if number >= len(alone.texts)]
    findings = [texts[number] for number in (*added, *of_rule.values()) if number in texts]
    grave = [text for text in findings if text["severity"] != "info" and text["confidence"] != "low"]
    advised = f" → {grave[0]['advice']}" if grave else ""
    unexplained = "" if texts[verdict]["rule"] else texts[verdict]["severity"]
    texts[verdict] = of_verdict(said.headline + advised, grave[0] if grave else None, unexplained)
    if grave and grave[0]["rule"] == straggling_rank.NAME:
        texts = {number: text for number, text in texts.items() if number not in added}
        added = []
    kept = [place for place, number in enumerate(alone.of_text) if number in texts]
    places = [0] + [0] * len(added) + kept[1:]
    of_text = [verdict, *added, *(alone.of_text[place] for place in kept[1:])]
    place_of = {place: index for index, place in enumerate(places)} | {0: 0}
    number_of = {number: index for index, number in enumerate(sorted(texts))}
    return DrawnDiagnosis(
        under=alone.under,
        start_ns=[alone.start_ns[place] for place in places],
        dur_ns=[alone.dur_ns[place] for place in places],
        of_text=[number_of[number] for number in of_text],
        texts=[texts[number] for number in sorted(texts)],
        saved_ns=[saved_ns[number] for number in sorted(texts)],
        arrows=[(place_of[arrow[0]], *arrow[1:]) for arrow in alone.arrows if arrow[0] in place_of],
    )


def track(answer: Answer, member: int) -> ReportedTrack:
    """The track: a slice over the steps and collectives of a member."""
    summary, said = answer.summaries[member], rank_answer(answer, member)
    edges = [summary.step_column(side) for side in ("start", "end")] + [summary.column(side) for side in ("ts", "end")]
    times = np.concatenate(edges)
    start, end = int(times.min()), int(times.max())
    job = " ".join(answer.verdict.text)
    reported = said.reported(job)

    def text(value: str) -> Texts:
        return Texts(np.array([0 if value else -1], np.int32), [value])

    def ns(name: str) -> Int64s:
        return np.array([-1 if reported[name] is None else reported[name]], np.int64)

    return ReportedTrack(
        analysis=TOLD,
        name=TRACK,
        under=summary.main_track if summary.main_track >= 0 else summary.streams[0].device_track,
        ts=np.array([start], np.int64),
        dur=np.array([max(end - start, 1)], np.int64),
        names=text(answer.drawn_verdict),
        args={
            "rank": text(" ".join(said.text)),
            "rank_verdict": text(" ".join(said.verdict)),
            "waits_for": text(reported["waits_for"] or ""),
            "wait_per_step_ns": ns("wait_per_step_ns"),
            "transfer_per_step_ns": ns("transfer_per_step_ns"),
            "longer_than_peers_per_step_ns": ns("longer_than_peers_per_step_ns"),
        },
        description="the verdict of the job; what it tells of this rank is in the args, and in the rank's diagnosis",
        of_process=True,
        on_top=True,
        colour=np.array([colour(*answer.judgement.severity)], np.int64),
        reported=reported,
    )


# Ranks that another tool merged into one file are a job.

MOST_RANKS = 512  #: of a file; more are not compared


def with_its_ranks(trace: Trace) -> Trace:
    """The trace with what its ranks tell of each other, for its diagnosis: the mean of what they wait, and for whom.

    A trace of one rank is returned as it is; so is one whose ranks cannot tell who is late.
    """
    if not may_be_merged(trace):
        return trace
    of_track = rank_of_track(trace)
    ranks = distinct(of_track[of_track >= 0]).tolist()
    if not 2 <= len(ranks) <= MOST_RANKS:
        return trace
    of_event = of_track[trace.events.track[:]]
    summaries = []
    for rank in ranks:
        summary = summary_of(AugmentedTrace(only(trace, of_event == rank), {}))
        summary.rank, summary.name = rank, f"rank {rank}"
        summaries.append(summary)
    result = answer_of([Portion(summaries, Aggregation(), [])], trust_clocks=True)  # one file has one time axis
    each = [figures for member in range(len(ranks)) if (figures := rank_in_job(result, member)) is not None]
    if not each:
        return trace
    waits_most = max(each, key=lambda figures: figures.wait_ns)
    job: RankInJob = replace(
        waits_most,
        wait_ns=sum(figures.wait_ns for figures in each) // len(each),
        transfer_ns=sum(figures.transfer_ns for figures in each) // len(each),
        late_ranks=tuple(replace(late, is_own=False) for late in waits_most.late_ranks),
    )
    return trace.changed(job)
