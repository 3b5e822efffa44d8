"""Runs in a worker: one judged against another or against many, and figures over many, as of ``augment check`` and
``augment history``."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from augment.compare import gate
from augment.core.text import counted
from augment.errors import InputError
from augment.history import Run, series
from augment.readers.limits import Limits
from augment.results.recordings import Recording, judged, judged_by_runs, of_ranks, recording_in, run_of
from augment_server.workers.orders import place_of

Order = dict[str, Any]
Stage = Callable[[str, int, int], None]  #: called with the stage that begins, and how many stages of how many are done


def checked(order: Order, sources: Sequence[Path], out: Path, stage: Stage) -> list[Path]:
    """Judge the run of the side ``test``; writes the outcome as Markdown, JUnit and JSON."""
    limits, test_name = gate.limits_of(order["gate"]), _name(order, "test")
    stage("reading the test", 0, 3)
    test = _side(order, sources, "test")
    stage("reading the baseline", 1, 3)
    if any(run["side"] == "run" for run in order["runs"]):
        run = run_of(test, test_name, order["history"])
        runs = [run for run, _ in _runs(order, sources)]
        name = f"{counted(sum(each.is_like(run) for each in runs), 'job')} of this server"
        stage("comparing", 2, 3)
        lines, notes = judged_by_runs(run, runs, "this server", limits)
    else:
        name = _name(order, "baseline")
        baseline = _side(order, sources, "baseline")
        stage("comparing", 2, 3)
        lines, notes = judged(baseline, test, (name, test_name), limits)
    rows = [gate.row_of(line) for line in lines]
    content = {"status": gate.status_of(lines), "test": test_name, "baseline": name, "figures": rows, "notes": notes}
    texts = {
        "check.md": gate.markdown(lines, name, test_name, notes),
        "check.xml": gate.junit(lines, name, test_name),
        "check.json": _json(content),
    }
    return [_written(out / name, text) for name, text in texts.items()]


def followed(order: Order, sources: Sequence[Path], out: Path, stage: Stage) -> list[Path]:
    """Write the figures of each run, and where they changed."""
    stage("reading", 0, 1)
    runs = list(_runs(order, sources))
    jobs = {run.digest: job for run, job in runs}
    figures = dict.fromkeys(name for run, _ in runs for name in run.figures)
    changes = [
        {
            "figure": figure,
            "device": device,
            "rank_count": ranks,
            "run": members[change.first].name,
            "job": jobs[members[change.first].digest],
            "before": change.before,
            "after": change.after,
            "ratio": change.ratio,
        }
        for figure in figures
        for (device, ranks), (members, changed) in series([run for run, _ in runs], figure).items()
        for change in changed
    ]
    content = [{**msgspec.to_builtins(run), "job": job, "recorded": run.recorded} for run, job in runs]
    return [_written(out / "history.json", _json({"runs": content, "changes": changes}))]


def _runs(order: Order, sources: Sequence[Path]) -> Iterator[tuple[Run, str]]:
    """The runs that are jobs, each with its job, by the time of the recording; of the same recording the last job."""
    made: dict[str, tuple[Run, str]] = {}
    for given, source, known in zip(order["inputs"], sources, order["runs"], strict=True):
        if known["side"] == "run":
            recording = _recording(order, _files(order, given, source))
            when = None if recording.start_ns else known["created_ns"]
            run = run_of(recording, known["name"], known["labels"], when)
            made.pop(run.digest, None)
            made[run.digest] = run, known["job"]
    yield from sorted(made.values(), key=lambda of: of[0].time_ns)  # of the same time as the jobs came


def _side(order: Order, sources: Sequence[Path], side: str) -> Recording:
    """The recording of all inputs of one side of a check."""
    each = zip(order["inputs"], sources, order["runs"], strict=True)
    files = [file for given, source, run in each if run["side"] == side for file in _files(order, given, source)]
    return _recording(order, files)


def _recording(order: Order, files: Sequence[str]) -> Recording:
    return recording_in(files, order.get("region") or None, Limits(**order["limits"]))


def _files(order: Order, given: Order, source: Path) -> list[str]:
    """The metrics of the ranks of an earlier job, or the file itself."""
    if "made" not in given:
        return [str(source)]
    names = of_ranks(made["file_name"] for made in given["made"])
    if not names:
        raise InputError(str(place_of(order, given)), "has no metrics of a rank")
    return [os.path.join(given["made_in"], name) for name in names]


def _name(order: Order, side: str) -> str:
    """The name of the run of a side: its only file's or job's, or that of the first of several."""
    return next(str(run["name"]) for run in order["runs"] if run["side"] == side)


def _json(what: Any) -> str:
    return json.dumps(what, ensure_ascii=False, indent=1) + "\n"


def _written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path
