"""What is wrong with runs, in short: the verdict and the answers of all rules about traces, metrics and jobs.

``augment diagnose`` prints it, and the service writes it as artifacts.
"""

from __future__ import annotations

import contextlib
import os
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from augment.core.output_files import METRICS_SUFFIX, is_of_job
from augment.core.text import counted, opening, percent, period, printable, ranges_text, time
from augment.results.report.sections import has_place, heading, place_of, plain, severity_of, short_heading, unfound

if TYPE_CHECKING:
    from augment.core import Trace
    from augment.core.records import RankDump
    from augment.job.answer import Answer
    from augment.readers.limits import Limits


#: ``input``, ``verdict``, ``rows``; of a trace also ``summary``, for its job, and the ``regions`` that may be
#: steps; of a job the ``folder`` of its ``traces``
Report = dict[str, Any]
LEVELS = {"high": ("high",), "warning": ("high", "warning")}  #: severities at or above a level
_ANALYSIS = "diagnosis"
_FEWEST_ALIKE = 3  #: ranks with the same kinds of finding are told together beyond so many


def is_grave(row: Report, level: str) -> bool:
    """Whether a row is a finding of ``level`` or above that is more than merely possible."""
    return row.get("severity") in LEVELS[level] and row.get("confidence") != "low"


def report_on(
    path: str,
    stage: Callable[[str], object],
    limits: Limits | None = None,
    *,
    beside: Callable[[Trace], Trace] = lambda trace: trace,
) -> Report:
    """The verdict and the answers of all rules about one trace or metrics file, and a trace's summary for its job.

    Args:
        path: of the file.
        stage: called with the current activity.
        limits: of the reader.
        beside: adds to a trace what was recorded beside it, and what the user says of it.

    Raises:
        InputError: it cannot be read, or the metrics have no diagnosis.
    """
    from augment.results.sidecars import is_sidecar, read_sidecar, readable

    if not is_sidecar(path):
        from augment import facts
        from augment.analyses.activity_over_time import replays
        from augment.batch.inputs import FileIdentity
        from augment.compare.compared_steps import regions_of, windows_in
        from augment.job.rank_answers import with_its_ranks
        from augment.job.ranks import summarize
        from augment.pipeline import augment
        from augment.readers import read
        from augment.readers.limits import UNLIMITED
        from augment.readers.recorded import NAME as RECORDED
        from augment.writers.metrics import as_read

        stage(f"reading {path}")
        trace = with_its_ranks(beside(read(path, limits=limits or UNLIMITED)))
        stage(_ANALYSIS)
        augmented = augment(trace, only=[_ANALYSIS, "kernel_breakdown"])  # by which a job says why a rank is late
        identity = FileIdentity(trace.rank, trace.source.world_size)
        summary = summarize(augmented) if len(trace.events) else None  # a log alone is no rank of a job
        whole = trace.partial is None or len(facts.gpu.work(trace))  # no region is known to be whole before any work
        regions = regions_of(trace) if whole and not (windows_in(trace).number >= 0).any() else {}
        is_drawn = len(trace.events) > 0 or bool(replays(trace))
        has_tables = is_drawn or trace.source.format == RECORDED  # of a log, but not of a trace without events
        of_trace = {"identity": identity, "regions": regions, "is_drawn": is_drawn, "has_tables": has_tables}
        return {**_report(path, as_read(augmented), summary), **of_trace}
    with readable(path):
        report = _report(path, read_sidecar(path), None)
        json_of(report)  # what cannot be shown is refused here, and does not prevent the diagnosis of other inputs
        for markdown in (False, True):
            list(lines_of([report], markdown=markdown, brief=False))
    return report


def is_dump(path: str) -> bool:
    """Whether the file at ``path`` is a dump of the flight recorder: those of a job are judged together.

    Raises:
        InputError: it cannot be read.
    """
    from augment.readers.attachments import begins_as

    return os.path.isfile(path) and (kind := begins_as(path)) is not None and kind.name == "flight_recorder"


def dump_in(path: str, limits: Limits | None = None) -> RankDump | None:
    """The dump of the flight recorder at ``path``, None for any other file; the errors are those of its reader."""
    if not is_dump(path):
        return None
    from augment.readers.attachments.flight_recorder import read_dump
    from augment.readers.limits import UNLIMITED

    return read_dump(path, limits or UNLIMITED)


def on_dumps(dumps: Sequence[RankDump]) -> Iterator[Report]:
    """The report on the dumps of each job: who holds it up. A folder has those of a job; or of some of its nodes, if
    others have those of other ranks in groups of the same ranks, at the same time."""
    from augment.core.text import listed
    from augment.job.verdict import report_on_dumps
    from augment.job.verdict.hangs import APART_NS, times_of

    folders: dict[str, list[RankDump]] = {}
    for dump in dumps:
        folders.setdefault(os.path.dirname(os.path.abspath(dump.path)), []).append(dump)
    jobs: dict[frozenset[int], list[tuple[list[str], list[RankDump], list[int]]]] = {}
    for folder, of_node in folders.items():
        ranks, times = {dump.rank for dump in of_node}, times_of(of_node)
        alike = jobs.setdefault(frozenset(rank for dump in of_node for rank in dump.members), [])
        for job in alike:
            apart = max(times[0], min(job[2])) - min(times[1], max(job[2]))
            if apart < APART_NS and ranks.isdisjoint(dump.rank for dump in job[1]):
                break
        else:
            alike.append(job := ([], [], []))
        job[0].append(os.path.basename(folder))
        job[1].extend(of_node)
        job[2].extend(times)
    for names, of_job, _ in (job for alike in jobs.values() for job in alike):
        yield report_on_dumps(of_job, listed(names))


def logs_together(paths: Sequence[str]) -> dict[str, list[str]]:
    """By the path of the first the paths of the logs of NCCL in a folder that share communicators, by their ids, as
    NCCL_DEBUG_FILE makes one a process; by the paths of the others, which are judged with it, none."""
    from augment.errors import AugmentError
    from augment.readers.attachments import begins_as
    from augment.readers.attachments.nccl_log import identities_in

    groups: list[tuple[str, set[str], list[str]]] = []
    for path in paths:
        known = set[str]()
        with contextlib.suppress(AugmentError):  # told where it is judged
            kind = begins_as(path) if os.path.isfile(path) else None
            known = identities_in(path) if kind and kind.name == "nccl_log" else known
        if known:
            folder, logs = os.path.dirname(path), [path]
            for group in [each for each in groups if each[0] == folder and each[1] & known]:
                groups.remove(group)
                known, logs = known | group[1], [*group[2], *logs]
            groups.append((folder, known, logs))
    return {log: logs if log == logs[0] else [] for *_, logs in groups if len(logs) > 1 for log in logs}


def _report(path: str, sidecar: dict[str, Any], summary: bytes | None) -> Report:
    from augment.errors import UnknownFormat
    from augment.results.sidecars import in_job

    sidecar = in_job(sidecar)
    analysis = sidecar["analyses"].get(_ANALYSIS)
    if "verdict" not in sidecar and analysis is None:
        raise UnknownFormat(path, "these metrics have no verdict: name the trace, or make them again with augment run")
    verdict = sidecar.get("verdict", {"text": [], "rows": []})
    rows = [row for row in verdict["rows"] if "rule" in row] if analysis is None else analysis["rows"]
    text = verdict["text"] or [f"Nothing could be judged: {(analysis or {}).get('reason', 'no rule ran')}."]
    joined = verdict.get("joined", False)  # a job's
    return {"input": path, "verdict": text, "rows": rows, "summary": summary, "joined": joined}


def of_jobs(reports: Sequence[Report]) -> Iterator[Report]:
    """The report on each job, as :mod:`augment.batch.jobs` tells them apart; then on roles that work together.

    Where the job is known, the reports on its ranks say what it tells.
    """
    from augment.batch.inputs import Input
    from augment.batch.jobs import group
    from augment.core.jsontext import storable
    from augment.core.output_files import TOLD
    from augment.job.answer import answer
    from augment.job.rank_answers import cures, rank_answer
    from augment.job.roles import together
    from augment.results.sidecars import in_job

    by_path: dict[str, Report] = {}  # by the path in its folder, with the name that it was given
    for report in reports:
        if report["summary"]:
            folder, name = (
                os.path.dirname(report["input"]) or ".",
                os.path.basename(str(report.get("told") or report["input"])),
            )
            by_path[os.path.join(folder, name)] = report
    identities = {path: report["identity"] for path, report in by_path.items()}
    jobs = group((Input(path, os.path.dirname(path), named=True) for path in by_path), identities)
    pipelines: dict[str, dict[str, list[Answer]]] = {}
    homes = [home for home, _ in {(job.home, job.role) for job in jobs if job.role}]
    of_folder = Counter(job.folder for job in jobs if len(job.members) > 1)
    for job in jobs:
        ranks = [by_path[member.input.path] for member in job.members]
        of_pipeline = bool(job.role) and homes.count(job.home) > 1
        if len(ranks) < 2 and not of_pipeline:
            continue
        result = answer([rank["summary"] for rank in ranks], [rank["input"] for rank in ranks])
        if of_pipeline:
            pipelines.setdefault(job.home, {}).setdefault(job.role, []).append(result)
        if len(ranks) < 2:
            continue
        several = of_folder[job.folder] > 1
        name = (
            f"job {storable(job.name)}{f', window {job.window}' if several and job.window else ''}, {len(ranks)} traces"
        )
        for member, rank in enumerate(ranks):
            answered = rank_answer(result, member)
            if answered.verdict:
                alone = {
                    "verdict": {"text": rank["verdict"], "rows": []},
                    "analyses": {_ANALYSIS: {"rows": rank["rows"]}},
                    TOLD: {"verdict": answered.verdict, "rows": answered.rows},
                }
                known = in_job(alone)
                rank["verdict"], rank["rows"] = known["verdict"]["text"], known["analyses"][_ANALYSIS]["rows"]
            rank["rank"], rank["job"] = result.summaries[member].rank, name
        judged, rows, todo = result.verdict, job_findings(result), cures(result)
        traces = {rank["rank"]: rank["input"] for rank in ranks if rank["rank"] is not None}
        where = {"traces": traces, "joined": judged.joined, **({} if of_pipeline else {"folder": job.folder})}
        yield {"input": name, "verdict": list(judged.text), "rows": rows, "cures": todo, **where}
    for home, of_role in pipelines.items():
        roles_of_home = together(of_role)
        for job in jobs:
            if job.home == home and (said := roles_of_home.idle_sentence(job.role)):
                for rank in (by_path[member.input.path] for member in job.members):
                    rank["verdict"] = [f"{said} A host that stalls may be one that waits for them.", *rank["verdict"]]
        names = ", ".join(role.name for role in roles_of_home.roles)
        name = f"roles of {os.path.basename(os.path.abspath(home))}: {names}"
        yield {"input": name, "verdict": list(roles_of_home.verdict.text), "rows": [], "folder": home}


def job_findings(answer: Answer) -> list[Report]:
    """What is wrong with a job as a whole, as rows like those of the diagnosis of one trace, the gravest first: the
    stages of its pipelines.

    No saving is predicted: what a stage waits for the others, or the order of passes says of equal stages, shows how
    much there is to gain, not how much a cure gains, as messages take their time, too.
    """
    outcome = answer.outcomes.get("pipeline")
    pipelines: dict[int, list[Any]] = {}
    for row in getattr(outcome, "rows", ()):
        pipelines.setdefault(row.pipeline, []).append(row)
    rows = [row for stages in pipelines.values() for row in _of_pipeline(stages, several=len(pipelines) > 1)]
    return sorted(rows, key=lambda row: row["severity"] != "warning")


def _of_pipeline(stages: Sequence[Any], *, several: bool) -> Iterator[Report]:
    from augment.diagnosis.rule import WARNING_RATIO

    name = f" of pipeline {stages[0].pipeline}" if several else ""
    slowest = max(stages, key=lambda stage: stage.work_ns)
    others = [stage for stage in stages if stage is not slowest]
    window = max(sum(stage.window_ns for stage in others), 1)
    waiting = sum(max(stage.imbalance_ns, 0) for stage in others) / window
    gain = 0.0  # by playing the passes, if their schedule is known, with the mean work of the stages
    if slowest.theory_ns is not None:
        mean = sum(stage.work_ns for stage in stages) / len(stages)
        as_slow = slowest.theory_ns + slowest.work_ns
        balanced = as_slow * mean / max(slowest.work_ns, 1)
        gain = (as_slow + slowest.imbalance_ns - balanced) / max(slowest.window_ns, 1)
    if max(waiting, gain) >= WARNING_RATIO:
        usual = sum(stage.work_ns for stage in others) / len(others)
        yield _stage_row(
            "stage_imbalance",
            max(waiting, gain),
            f"Stage {slowest.stage}{name} (rank {slowest.rank}) works {percent(slowest.work_ns / max(usual, 1) - 1)} "
            f"longer than the mean of the others, which wait for it {percent(waiting)} of their time",
            f"Move layers from stage {slowest.stage} to other stages; the embedding and the loss count, too",
            stages,
        )
    theory = sum(stage.theory_ns or 0 for stage in stages) / max(sum(stage.window_ns for stage in stages), 1)
    if theory >= WARNING_RATIO:
        first = stages[0]
        yield _stage_row(
            "pipeline_bubble",
            theory,
            f"The order of passes{name} ({first.schedule}, {first.stage_count} stages, {first.microbatch_count} "
            f"microbatches) leaves the stages without work for {percent(theory)} of their time",
            "Use more microbatches, or an interleaved or zero-bubble schedule",
            stages,
        )


def _stage_row(rule: str, ratio: float, title: str, advice: str, stages: Sequence[Any]) -> Report:
    from augment.diagnosis.rule import HIGH_RATIO

    return {
        "rule": rule,
        "status": "found",
        "severity": "warning" if ratio >= HIGH_RATIO else "info",
        "title": title,
        "confidence": "medium",
        "advice": advice,
        "evidence": [
            f"stage {stage.stage}: works {time(stage.work_ns / max(stage.step_count, 1))} of "
            f"{time(stage.window_ns / max(stage.step_count, 1))} a step"
            for stage in sorted(stages, key=lambda stage: stage.stage)
        ],
    }


def metrics_among(names: Iterable[str]) -> list[str]:
    """The names of metrics to report on, those of roles and of a job first; not of comparisons."""
    chosen = [name for name in names if name.endswith(METRICS_SUFFIX) and ".diff." not in name]
    return sorted(chosen, key=lambda name: (not is_of_job(name), name))


def json_of(report: Report) -> str:
    """A report as a line of JSON."""
    from augment.core.jsontext import json_line

    return json_line({name: report[name] for name in ("input", "rank", "verdict", "rows", "cures") if name in report})


_SIGNS = {"found": "!", "fine": "✓", "no_data": "–"}
_HEADINGS = {"fine": "Checked, and little to save:", "no_data": "Cannot be told from this trace:"}


def lines_of(reports: Sequence[Report], *, markdown: bool, brief: bool) -> Iterator[str]:
    """All reports, an empty line between two; ``brief``: without what is fine, not there or small, and of the ranks of
    a job that have the same kinds of finding the first alone."""
    folds = _alike(reports) if brief else []
    folded = {id(report) for alike in folds for report in alike[1:]}
    of_job = any(report.get("cures") for report in reports)  # which come first, and are not said again
    for place, report in enumerate(report for report in reports if id(report) not in folded):
        if place:
            yield ""
        name = "standard input" if report["input"] == "-" else printable(report["input"])
        title = name if report.get("rank") is None else f"rank {report['rank']}, {name}"
        yield plain(f"## {title}") if markdown else f"{title}:"
        yield ""
        verdict = opening(report["verdict"], trace_of(report["input"]))
        yield plain(" ".join(verdict)) if markdown else "\n".join(f"  {sentence}" for sentence in verdict)
        cures = report.get("cures", [])
        yield from (
            ("", *(f"- {plain(cure)}" for cure in cures)) if markdown and cures else (f"  → {cure}" for cure in cures)
        )
        of_status: dict[str, list[Report]] = {status: [] for status in _SIGNS}
        for row in report["rows"]:
            if not brief or (is_grave(row, "warning") and not row.get("in_verdict")):
                of_status.get(row.get("status", "found"), []).append(row)
        problems = of_status.pop("found")
        of_verdict = sorted((row for row in report["rows"] if row.get("in_verdict")), key=_is_small)
        if brief and not markdown and of_verdict and not (of_job and _is_small(of_verdict[0])):
            if has_place(of_verdict[0]):
                whole = " of this rank's step" if of_job else ""
                yield f"  {short_heading(of_verdict[0], whole)}: {_opened(of_verdict[0], report['input'])}"
            if not of_job:
                yield f"  → {of_verdict[0]['advice']}"
        if problems:
            yield ""
        for row in problems:
            if markdown:
                certain = f"(`{row['rule']}`, confidence {row['confidence']})"
                yield plain(f"- **{severity_of(row)}**: {heading(row)}. {row['advice']}. {certain}")
                continue
            yield f"  {_SIGNS['found']} {severity_of(row)}: {heading(row)}"
            if not brief:
                yield from (f"      {line}" for line in row.get("evidence", []))
                yield f"      → {row['advice']}"
                if row.get("overlaps"):
                    yield f"      overlaps with {', '.join(row['overlaps'])}: do not add the savings"
                where = f"; {place_of(row)} ({_opened(row, report['input'])})" if has_place(row) else ""
                yield f"      {row['rule']}, confidence {row['confidence']}{where}"
        for status, rows in of_status.items():
            if rows:
                yield from ("", f"**{_HEADINGS[status]}**", "") if markdown else ("", f"  {_HEADINGS[status]}")
            for said in unfound(rows, "`" if markdown else ""):
                yield plain(f"- {_SIGNS[status]} {said}") if markdown else f"  {_SIGNS[status]} {said}"
    for first, *others in folds:
        ranks, whose, like = [each["rank"] for each in others], counted(len(others), "other trace"), first["input"]
        if None not in (first["rank"], *ranks):
            whose, like = f"ranks {ranges_text(sorted(ranks))}", f"rank {first['rank']}"
        alone = shlex.join(["augment", "diagnose", others[0]["input"]])
        has_grave = any(is_grave(row, "warning") for row in first["rows"])
        has = f"the same findings as {like}, with other figures" if has_grave else "nothing grave of their own"
        said = f"{whose}: {has}"
        yield from ("", plain(f"- {said}") if markdown else f"{said} (to see one alone: {alone})")


def _alike(reports: Sequence[Report]) -> list[list[Report]]:
    """The reports on ranks of a job with grave findings of the same rules, or with none, where several have them, that
    with the largest saving first; a rank that holds up its job is like no other."""
    of_kind: dict[object, list[tuple[int, Report]]] = {}
    for report in (report for report in reports if "job" in report):
        grave = [row for row in report["rows"] if is_grave(row, "warning")]
        problems = [row for row in report["rows"] if row.get("status", "found") == "found"]
        if not any(((row.get("figures") or {}).get("late") or {}).get("is_own") for row in problems):
            most_ns = max((row["saved_ns"] or 0 for row in grave), default=0)
            of_kind.setdefault((report["job"], *sorted(row["rule"] for row in grave)), []).append((most_ns, report))
    several = [alike for alike in of_kind.values() if len(alike) > _FEWEST_ALIKE]
    return [[report for _, report in sorted(alike, key=lambda known: -known[0])] for alike in several]


def _is_small(row: Report) -> bool:
    return not is_grave(row, "warning")


def _opened(row: Report, path: str) -> str:
    """The command that shows the longest slice of a finding; without the trace, the place alone."""
    at = f"--at {period(row['start_ns'], row['dur_ns'])}"
    shown = trace_of(path)
    return at if shown is None else f"augment open {shlex.quote(shown)} {at}"


def trace_of(path: str) -> str | None:
    """The trace to show for an input: itself, or that written with these metrics; None if it is not beside them."""
    from augment.writers import WRITERS

    if not path.endswith(METRICS_SUFFIX):
        return path
    written = [path.removesuffix(METRICS_SUFFIX) + writer.SUFFIX for writer in WRITERS]
    return next(filter(os.path.exists, written), None)
