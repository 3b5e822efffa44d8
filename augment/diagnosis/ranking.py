"""Asks all rules, ranks what they found, and says which findings speak of the same time."""

from __future__ import annotations

from functools import partial
from itertools import combinations
from typing import Literal, get_args

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from augment import arrays, facts
from augment.core import RankInJob, Stage, Trace, derived, text
from augment.diagnosis.host_causes import beside_workers_ns
from augment.diagnosis.judging import (
    decided_in_steps,
    has_pauses,
    hides_host,
    launches_block,
    measure,
    saved_a_step,
    unknown_ratio,
    with_waits,
)
from augment.diagnosis.recording_completeness import is_doubtful, is_excerpt
from augment.diagnosis.rule import (
    LEAST_RATIO,
    SEVERITIES,
    WARNING_RATIO,
    Answer,
    Finding,
    Fine,
    Found,
    Limit,
    NoData,
    judged_in_job,
    severity_of,
)
from augment.diagnosis.rules import RULES, SEEN_OF_JOB, Rule, partial_recording
from augment.diagnosis.wording import words

COMPARED = 6  #: so many findings are examined for overlaps, pair by pair
_EFFECTS = ("synchronizing_calls", "step_outliers")  #: of what else there is to find
NEARLY = 0.9  #: share of what they would save, from which on their reason is named first
MOST_FIXED = 4  #: findings of a rank that its job is told in full
LEAST_REST = 0.2  #: what is cured but not saved, beside what is saved, for its reason to be said
_BESIDE_WORKERS = ("data_loading", "straggling_rank")  #: what the pace of a loader's workers does not limit
_OF_KINDS = ("matrix_units", "elementwise_chains", "wide_norms")  #: what they find rests on the families of kernels
_TEACH = "name them: augment run TRACE --tables FILE, with [[kernel]] in FILE (example: docs/tables.md)"
_STEADY = "record steady steps"
#: findings that are not told twice: either cure saves what both save, and step_gaps has the engine's option
_TOLD_BY = (("host_gaps", "step_gaps"), ("launch_bound", "step_gaps"), ("host_gaps", "long_calls"))
APART = 0.9  #: two findings overlap if together they save less than this share of the sum


#: the rules asked first, and last: each of these ask for facts that take much memory, and that others do not need. The
#: first find every cause on the host, for which they look through the segments of threads
_FIRST, _LAST = ("launch_bound", "host_gaps"), ("unaligned_shapes", "low_roofline")


class RankedFindings(Struct, frozen=True):
    """The ``findings``, the most important first; every rule's ``answers`` by its name, in the registry's order."""

    findings: tuple[Finding, ...]
    answers: dict[str, Answer]


@derived(until="diagnosis")
def diagnose(trace: Trace) -> RankedFindings:
    """All answers about a trace."""
    rules = sorted(RULES, key=lambda rule: (rule.NAME in _LAST) - (rule.NAME in _FIRST))
    made = dict(zip(rules, trace.context.threads.all([partial(_answer, trace, rule) for rule in rules]), strict=True))
    answers = {rule.NAME: made[rule] for rule in RULES}
    for name, teller in _TOLD_BY:
        other, tells = answers[name], answers[teller]
        if isinstance(other, Found) and isinstance(tells, Found) and other.cut and tells.cut:
            both = _saved_by_both(trace, other.cut, tells.cut)
            if NEARLY * both <= (tells.saved_ns or 0) and tells.confidence != "low":
                answers[name] = Fine(f"its time is counted under {teller}")
    capture, shows_no_run = answers["graph_capture"], NoData("the recording captures graphs, it shows no run", _STEADY)
    if isinstance(capture, Found) and capture.first:
        answers = {name: shows_no_run if _speaks_of_run(each) else each for name, each in answers.items()}
    findings: list[Finding] = []
    loads = answers["long_calls"]  # a step that mostly loads kernels tells little of later ones
    doubtful = is_doubtful(trace) or (isinstance(loads, Found) and loads.first)
    for name, problem in answers.items():
        if not isinstance(problem, Found):
            continue
        if doubtful and _speaks_of_run(problem) and problem.confidence != "low":
            problem = replace(problem, confidence="low")  # what is missing may have filled the gaps
        if facts.source.is_period(trace.source.metadata) and not problem.first and problem.confidence == "high":
            problem = replace(problem, confidence="medium")  # what came before and after may limit what would be saved
        ratio = None if problem.saved_ns is None else measure(trace).ratio(problem.saved_ns)
        findings.append(Finding(name, problem.severity or severity_of(ratio), problem, ratio))
    few = is_excerpt(trace)
    findings.sort(key=lambda finding: _rank(finding, few=few))
    cuts = {each.rule: each.found.cut for each in findings[:COMPARED] if each.found.cut is not None}
    # The rules that save part of the same time: together they save less than the sum of both
    saved = {each.rule: each.found.saved_ns or 0 for each in findings}
    overlaps: dict[str, list[str]] = {}
    pairs = list(combinations(cuts, 2))
    saved_by_both = trace.context.threads.all(
        [partial(_saved_by_both, trace, *map(cuts.__getitem__, pair)) for pair in pairs]
    )
    for (first, second), both in zip(pairs, saved_by_both, strict=True):
        lesser = min(saved[first], saved[second])
        if saved[first] + saved[second] - both > (1 - APART) * lesser > 0:
            overlaps.setdefault(first, []).append(second)
            overlaps.setdefault(second, []).append(first)
    asked_limits = {each.rule: partial(limit_of, trace, each.found) for each in findings[:COMPARED]}
    limits = dict(zip(asked_limits, trace.context.threads.all(list(asked_limits.values())), strict=True))
    hidden = "host" in limits.values() and hides_host(trace)
    for place, each in enumerate(findings):
        limit, others = limits.get(each.rule), tuple(overlaps.get(each.rule, ()))
        findings[place] = replace(each, overlaps=others, limit=limit, is_hidden=hidden and limit == "host")
    return RankedFindings(tuple(findings), answers)


def _speaks_of_run(answer: Answer) -> bool:
    """Whether it is a finding that is not about the recording itself."""
    return isinstance(answer, Found) and not answer.first and not answer.of_recording


def _answer(trace: Trace, rule: Rule) -> Answer:
    if trace.partial is not None and measure(trace).is_empty and rule.NAME != partial_recording.NAME:
        return NoData("no step is known to be whole in the file, which is cut off", "record again")
    answer, job = rule.check(trace), trace.context.attached(RankInJob)
    trace.context.end(stage_of_rule(rule))
    if rule.NAME in _OF_KINDS and isinstance(answer, Fine) and (unknown := unknown_ratio(trace)) > WARNING_RATIO:
        return NoData(f"{text.percent(unknown)} of the {{gpu}}'s time is in kernels whose names say nothing", _TEACH)
    if rule.NAME in _LAST and isinstance(answer, Fine) and (lacking := facts.operators.why_hardly_sized(trace)):
        return NoData(lacking)
    predicted = isinstance(answer, Fine) and not isinstance(answer.seen, str)
    if rule.NAME in (*_OF_KINDS, *_LAST) and predicted and launches_block(trace):
        return NoData("launches return only when their kernels are done: what faster ones would save is not known")
    if job is not None and isinstance(answer, Found):
        answer = judged_in_job(answer, job, words(trace), rule=rule.NAME)
    most = None if rule.NAME in _BESIDE_WORKERS else beside_workers_ns(trace)
    if most is None or not isinstance(answer, Found) or (answer.saved_ns or 0) <= most:
        return answer
    return replace(answer, saved_ns=most)


def stage_of_rule(rule: Rule) -> Stage:
    """The stage of a run in which a rule is asked."""
    return "rules" if rule.NAME in _FIRST else "diagnosis"


def _rank(finding: Finding, *, few: bool) -> tuple[bool, bool, bool, int, bool, float]:
    """What must come first; what saves nothing last, before it the merely possible (all, with ``few`` pieces of work);
    then by severity, what is about the recording, and the time that would be saved. A wait costs time where the host
    has much to do, and a step is long for a reason: what that is comes first if it saves nearly as much."""
    problem, grade = finding.found, SEVERITIES.index(finding.severity)
    unsure = problem.confidence == "low" and not few
    saved = (problem.saved_ns or 0) * (NEARLY if finding.rule in _EFFECTS else 1.0)
    idle = finding.severity == "info" and problem.saved_ns is None and not problem.of_recording
    return not problem.first, idle, unsure, grade, not problem.of_recording, -saved


def limit_of(trace: Trace, problem: Found) -> Limit | Literal["batches"] | None:
    """Why a cure saves less than it takes out of the path: what decides instead of most of the rest. None if it saves
    nearly all of it, if no single kind decides, or if other reasons limit the saving, of which the graph knows nothing.
    """
    cut, saved = problem.cut, problem.saved_ns or 0
    if problem.saved_ns is not None and problem.saved_ns == beside_workers_ns(trace):
        return "batches"
    if cut is None or not saved or not facts.gpu.coverage(trace) or has_pauses(trace):
        return None
    if abs(saved_a_step(trace, cut) - saved) > (1 - NEARLY) * saved:
        return None
    if facts.critical.saved_ns(trace, cut) // measure(trace).count > saved / NEARLY:
        return "host"
    left, then = decided_in_steps(trace, cut)
    rest = (then.ns - left.ns) // measure(trace).count
    if rest < max(LEAST_RATIO * measure(trace).length_ns, LEAST_REST * saved):
        return None
    more = {limit: getattr(then, limit) - getattr(left, limit) for limit in get_args(Limit)}
    limit = max(get_args(Limit), key=more.__getitem__)
    return limit if 2 * more[limit] > then.ns - left.ns else None


class Advance(Struct, frozen=True):
    """By how much earlier a rank gets on if a finding is fixed and its collectives take as long as they did, int64 ns.
    ``begins``, of :func:`facts.collectives.kernels`: it begins each. ``by_ns``: it has computed what ends by each of
    the moments ``ends``, ascending."""

    begins: arrays.Int64s
    ends: arrays.Int64s
    by_ns: arrays.Int64s

    def at(self, moments: arrays.Int64s) -> arrays.Int64s:
        """By how much earlier it has computed what ends by each moment."""
        return np.append(self.by_ns, 0)[np.searchsorted(self.ends, moments, side="right") - 1]


@derived
def earlier(trace: Trace) -> dict[str, Advance]:
    """What findings about the devices cost this rank from one collective to the next, by which its job tells what it
    gains if all ranks fix them. By rule, of the :data:`MOST_FIXED` that save most; of none that is merely possible, or
    of which the graph alone promises more."""
    known, work, whole = facts.collectives.kernels(trace), facts.gpu.work(trace), measure(trace)
    if not len(known) or not facts.gpu.coverage(trace) or whole.is_empty:
        return {}
    computes = np.flatnonzero(work.type == facts.names.KernelType.COMPUTATION)
    computes = computes[np.argsort(work.end[computes], kind="stable")]
    computes = computes[np.append(np.diff(work.end[computes]) > 0, True)[: len(computes)]]  # of those that end at once
    made = dict[str, Advance]()
    for each in sorted(diagnose(trace).findings, key=lambda each: -(each.found.saved_ns or 0)):
        cut, saved, is_told = each.found.cut, each.found.saved_ns or 0, each.rule in SEEN_OF_JOB
        if cut is None or not saved or each.found.confidence == "low" or not is_told or each.found.seen.is_of_host:
            continue
        cut = with_waits(trace, cut)
        less = facts.critical.taken_of_work(trace, cut)
        if not less[computes].any() or less[work.type == facts.names.KernelType.COMMUNICATION].any():
            continue
        begins = facts.critical.earlier_ns(trace, cut)
        by_ns = (begins + less)[computes]
        changes = np.diff(by_ns, prepend=0) != 0
        of = Advance(begins[known.place], work.end[computes[changes]], by_ns[changes])
        first, last = of.at(np.append(whole.windows.start[:1], whole.windows.end[-1:])).tolist()
        if last - first <= saved * whole.count / NEARLY:
            made[each.rule] = of
        if len(made) == MOST_FIXED:
            break
    return made


def _saved_by_both(trace: Trace, first: facts.critical.Cut, second: facts.critical.Cut) -> int:
    return saved_a_step(trace, facts.critical.joined([first, second]))
