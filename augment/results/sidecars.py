"""Reads sidecars: the files of metrics that ``augment`` wrote, of one run or many."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from augment.analyses import ANALYSES
from augment.core import output_files, tabular
from augment.core.old_names import current
from augment.core.text import device_label
from augment.errors import AugmentError, InputError, UnknownFormat, expect_regular
from augment.writers.metrics import found_in_job

_SUFFIXES = (output_files.DIFF_METRICS_SUFFIX, output_files.METRICS_SUFFIX)


class _Analysis(Struct):
    status: str = "ok"
    rows: list[dict[str, Any]] = []
    reason: str | None = None


class _Verdict(Struct):
    text: list[str] = []
    rows: list[dict[str, Any]] = []


class _Shape(Struct):
    """What every sidecar has, of any version."""

    source: dict[str, Any]
    analyses: dict[str, _Analysis]
    diagnostics: list[dict[str, Any]]
    verdict: _Verdict | None = None


class Sidecar(Struct, frozen=True):
    """A sidecar. ``run`` is the name of the run that it belongs to; ``trace`` is the name of what it describes."""

    path: str
    run: str
    trace: str
    content: dict[str, Any]

    @classmethod
    def of(cls, path: str, content: dict[str, Any], run: str | None = None) -> Sidecar:
        """The metrics at ``path``, which are a run of their own unless ``run`` is given."""
        base = os.path.basename(path)
        suffix = next((suffix for suffix in _SUFFIXES if base.endswith(suffix)), None)
        trace = base.removesuffix(suffix) if suffix else base.partition(".")[0]
        return cls(path, trace if run is None else run, trace, content)

    @property
    def rank(self) -> int | None:
        """The rank, if the sidecar describes one."""
        ranks: list[int] = self.content["source"].get("ranks") or []
        return ranks[0] if len(ranks) == 1 else None


def sidecars_in(sources: Sequence[str | os.PathLike[str]]) -> Iterator[Sidecar]:
    """The sidecars named, and those below the folders named.

    A file is a run of its own. Of a folder, each folder that holds sidecars is a run; its name is its path below the
    folder named, or that folder's own name.

    Raises:
        InputError: a source does not exist, or a folder holds no sidecar.
        UnknownFormat: a file holds no metrics.
    """
    for named in sources:
        source = os.fspath(named)
        if not os.path.isdir(source):
            if not os.path.exists(source):
                raise InputError(source, "no such file or folder")
            yield Sidecar.of(source, read_sidecar(source))
            continue
        paths = [
            path
            for path in sorted(Path(source).rglob(f"*{output_files.METRICS_SUFFIX}"))
            if not path.name.startswith(".")
        ]
        if not paths:
            raise InputError(source, "holds no metrics; augment run writes them")
        for path in paths:
            below = path.parent.relative_to(source).as_posix()
            run = os.path.basename(os.path.abspath(source)) if below == "." else below
            yield Sidecar.of(str(path), read_sidecar(str(path)), run)


def is_sidecar(path: str) -> bool:
    """Whether the file at ``path`` holds metrics, by its first bytes or else its name."""
    try:
        expect_regular(path)
        with open(path, "rb") as file:
            head = file.read(64)  # other tools' files have a version, too
        return (b'"schema_version"' in head and b'"tool"' in head) or path.endswith(output_files.METRICS_SUFFIX)
    except OSError as error:
        raise InputError.of(path, error) from error


def read_sidecar(path: str) -> dict[str, Any]:
    """The metrics in ``path``, with today's names of tables and columns.

    Raises:
        UnknownFormat: the file holds no metrics.
    """
    try:
        decoded: dict[str, Any] = msgspec.json.decode(Path(path).read_bytes())
        shape = msgspec.convert(decoded, _Shape)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise UnknownFormat(path, f"not a metrics file of augment: {error}; augment run writes them") from error
    for name in shape.analyses:
        if not name.isidentifier():
            raise UnknownFormat(path, f"not a metrics file of augment: {name[:80]!r} is no name of an analysis")
    return current(decoded)


def in_steady_steps(sidecar: Mapping[str, Any], analysis: str) -> list[dict[str, Any]]:
    """The rows by step of an analysis, but for those of the steps that verdicts leave out; none if it did not run."""
    analyses = sidecar["analyses"]
    steps = analyses.get("steps", {}).get("rows", ())
    left_out = {(row["rank"], row["device"], row["step"]) for row in steps if not row.get("is_steady", True)}
    rows = analyses.get(analysis, {}).get("rows", ())
    return [row for row in rows if (row["rank"], row["device"], row["step"]) not in left_out]


@contextlib.contextmanager
def readable(path: str) -> Iterator[None]:
    """What cannot be done inside with the metrics at ``path`` is an error of that file, if it holds metrics.

    Then members are missing, or of other types than those that ``augment`` writes.

    Raises:
        UnknownFormat: that is so.
    """
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        if isinstance(error, AugmentError) or not (os.path.isfile(path) and is_sidecar(path)):
            raise
        what = f"{type(error).__name__}: {str(error)[:200]}"
        raise UnknownFormat(path, f"cannot be shown as metrics of augment ({what}); make them again") from error


def verdict_in_job(of_job: Mapping[str, Any] | None, sentences: Sequence[str]) -> list[str]:
    """The ``sentences`` of a rank's verdict, or where its job is known those that the job tells, and the job's own."""
    if not of_job:
        return [*sentences]
    job = of_job.get("job")
    return [*(of_job.get("verdict") or sentences), *([f"Its job: {job}"] if job else [])]


def in_job(content: dict[str, Any]) -> dict[str, Any]:
    """The metrics of a rank as its job tells them: its verdict, those rows of the diagnosis that differ from the rank's
    alone, and which steps are judged. Unchanged if the job is unknown."""
    of_job = content.get(output_files.TOLD)
    if not of_job:
        return content
    verdict = content.get("verdict", {"text": [], "rows": []})
    known = {row["rule"]: row for row in of_job.get("rows", ())}
    problems = found_in_job(verdict["rows"], of_job.get("rows", ()))
    analyses = dict(content["analyses"])
    if "diagnosis" in analyses:
        rows = [known.get(row["rule"], row) for row in analyses["diagnosis"]["rows"]]
        rows.sort(key=lambda row: (row["status"] != "found", not row["in_verdict"]))
        analyses["diagnosis"] = {**analyses["diagnosis"], "rows": rows}
    if (judged := of_job.get("steps")) and analyses.get("steps", {}).get("rows"):
        rows = [{**row, "is_steady": row["step"] in judged} for row in analyses["steps"]["rows"]]
        analyses["steps"] = {**analyses["steps"], "rows": rows}
    text = verdict_in_job(of_job, verdict["text"])
    return {**content, "verdict": {**verdict, "text": text, "rows": problems}, "analyses": analyses}


_NAMED = 5  #: tables that a text names
#: members of a sidecar's source that are columns of ``sources``
_OF_SOURCE = ("name", "start_ns", "duration_ns", "events", "format", "partial", "window", "world_size", "sha256")


def with_device_names(content: dict[str, Any]) -> dict[str, Any]:
    """The metrics as people read them: the only NPU is called that in all rows, not by the number of a process."""
    gpu = content["source"].get("accelerator") or "GPU"
    tables = {name: each["rows"] for name, each in content["analyses"].items()}
    devices = {row["device"] for rows in tables.values() for row in rows if row.get("device") is not None}
    if [device_label(gpu, device, is_only=True) for device in devices] != [gpu]:
        return content
    named = {
        name: [{**row, "device": gpu} if row.get("device") else row for row in rows] for name, rows in tables.items()
    }
    analyses = {name: {**each, "rows": named[name]} for name, each in content["analyses"].items()}
    return {**content, "analyses": analyses}


class Frames(dict[str, tabular.Table]):
    """Tables by name. Its text is one line, not all their rows."""

    def __repr__(self) -> str:
        sources = len(self.get("sources", ()))
        traces = f" of {sources} {'file' if sources == 1 else 'files'}" if sources else ""
        return f"<Frames: {len(self)} tables{traces}: {', '.join(list(self)[:_NAMED])}, …>"

    def _repr_html_(self) -> str:
        """What notebooks display: the tables, and how many rows each has."""
        rows = "".join(
            f"<tr><td style='text-align:left'><code>{name}</code></td><td style='text-align:right'>{len(table):,}</td>"
            f"<td style='text-align:left'>{table.status}</td></tr>"
            for name, table in self.items()
        )
        heads = "".join(f"<th scope='col'>{head}</th>" for head in ("table", "rows", "status"))
        return f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"


def frames(*sources: str | os.PathLike[str]) -> Frames:
    """A table for each analysis, with the rows of all ``sources``; and ``verdict``, ``diagnostics`` and ``sources``.

    The latter says when each trace was recorded, and how it was read.

    The columns ``run``, ``trace`` and ``rank`` come first. ``run`` is the STEM of a file that is named, or the folder
    of a sidecar in a folder that is named. ``trace`` is the STEM, and ``rank`` null where that is not of one rank.

    Args:
        sources: sidecars (``STEM.metrics.json``, also of jobs and comparisons), and folders of them at any depth.

    Raises:
        InputError: a source does not exist, or a folder holds no sidecar.
        UnknownFormat: a file holds no metrics.
    """
    return frames_of(sidecars_in(sources))


def row_types() -> dict[str, type[Struct]]:
    """The class of metric rows of each analysis, also of those of jobs and comparisons."""
    from augment.compare.diff_rows import ROWS as OF_DIFF  # these load all of jobs, which no other use of this needs
    from augment.job.sidecar import ROWS as OF_JOB

    return {**{analysis.NAME: analysis.Row for analysis in ANALYSES}, **OF_JOB, **OF_DIFF}


def frames_of(sidecars: Iterable[Sidecar]) -> Frames:
    """A table for each analysis of ``sidecars``, in their order, and those beside them."""
    types = row_types()
    tables: dict[str, list[tabular.Table]] = {}
    leads: dict[str, list[dict[str, Any]]] = {}
    for sidecar in sidecars:
        # what a sidecar has besides analyses
        content, source = sidecar.content, sidecar.content["source"]
        others = {
            "verdict": [{"text": text} for text in content.get("verdict", {}).get("text", ())],
            "diagnostics": content["diagnostics"],
            "sources": [{name: source[name] for name in _OF_SOURCE if name in source}],
        }
        beside = {name: {"status": "ok", "rows": rows} for name, rows in others.items() if rows and rows[0]}
        for name, analysis in {**content["analyses"], **beside}.items():
            outcome = {"status": analysis["status"], "reason": analysis.get("reason")}
            table = tabular.Table.of_rows(name, analysis["rows"], types.get(name), **outcome)
            lead: dict[str, Any] = {"run": sidecar.run, "trace": sidecar.trace}
            if "rank" not in table.columns:
                lead["rank"] = sidecar.rank
            tables.setdefault(name, []).append(table)
            leads.setdefault(name, []).append(lead)
    frames = Frames()
    for name, parts in tables.items():
        table = tabular.concatenated(name, parts, leads[name])
        order = dict.fromkeys(each for each in ("run", "trace", "rank", *table.columns) if each in table.columns)
        columns = {each: table.columns[each] for each in order}
        frames[name] = tabular.Table(table.name, columns, table.kinds, table.status, table.reason)
    return frames
