"""The inputs of a job, resolved to traces when the job is accepted."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from augment.core.output_files import JOB_METRICS, METRICS_SUFFIX, OF_JOBS, stem
from augment.v1 import resources_pb2 as v1
from augment_server.base.errors import Refusal, invalid, within
from augment_server.base.names import id_of, safe_file_name, safe_path
from augment_server.base.people import Caller, prefix_of
from augment_server.storage.catalog import Database, Row
from augment_server.storage.storage import Storage

_SUCCEEDED = v1.Job.STATE_SUCCEEDED
#: kinds of jobs that need only the metrics of an earlier job, and kinds that leave them
_OF_METRICS = {
    **dict.fromkeys(("report", "diagnose"), ("augment", "job", "diff")),
    "check": ("augment", "job"),
}
WITH_ATTACHMENTS = ("augment", "job", "diff", "diagnose")  #: kinds of jobs with files beside their traces
MOST_RUNS, RUNS = 1000, 100  #: jobs of a history, at most and by default
#: artifacts with the metrics of a rank
_OF_RANKS = (
    "artifacts.file_name LIKE '%.metrics.json' AND artifacts.file_name NOT LIKE '%.diff.metrics.json'"
    + "".join(f" AND '/' || artifacts.file_name NOT LIKE '%/{name}%'" for name in OF_JOBS)
)


@dataclass(frozen=True, slots=True)
class Made:
    """An artifact of a job."""

    file_name: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an input cannot be read: its position among all traces, and what a refusal says."""

    position: int
    reason: str
    message: str
    metadata: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Outputs:
    """The outputs of a step; for a trace also its rank and the number of ranks, if they are known and needed.

    ``failures`` are unreadable inputs of a job that used the others. ``notes`` are remarks for people. ``folder`` is
    the key under which the files are stored; empty: that of earlier versions.
    """

    files: tuple[Made, ...] = ()
    rank: int | None = None
    world_size: int | None = None
    failures: tuple[Failure, ...] = ()
    notes: tuple[str, ...] = ()
    folder: str = ""

    def text(self) -> str:
        """The form in which the database stores it."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def of(cls, text: str) -> Outputs:
        """The outputs from a text of :meth:`text`; none for an empty text."""
        return msgspec.json.decode(text, type=cls) if text else NOTHING


NOTHING = Outputs()


@dataclass(frozen=True, slots=True)
class Given:
    """A trace: its file name, and the SHA-256 of its upload, or the ``uri`` of a file on the server.

    ``origin`` is the number of the spec's input that it belongs to. ``source`` is the earlier job that has ``made``
    outputs for it; empty without one.
    """

    file_name: str
    content: str
    uri: str
    origin: int = 0
    source: str = ""
    made: Outputs = NOTHING


@dataclass(frozen=True, slots=True)
class Earlier:
    """An earlier job as an input: its spec, its ``file_name`` in messages, its readable traces, and its artifacts."""

    spec: v1.JobSpec
    file_name: str
    traces: Sequence[Given]
    made: Outputs


def inputs_of(spec: v1.JobSpec) -> Sequence[v1.Input]:
    """The inputs of a job; outputs are named after the first."""
    kind = spec.WhichOneof("kind")
    if kind == "diff":
        return [spec.diff.test, spec.diff.control, *spec.diff.tests, *spec.diff.controls]
    if kind == "report":
        return [spec.report.input]
    if kind == "check":
        return [*spec.check.tests, *spec.check.baselines]
    if kind in ("augment", "cut"):
        return [getattr(spec, kind).input]
    return () if kind == "history" else spec.job.inputs if kind == "job" else spec.diagnose.inputs


def history_of(spec: v1.JobSpec) -> v1.HistorySpec | None:
    """The earlier jobs that a job is about as many runs; None if it is about none."""
    if spec.WhichOneof("kind") == "history":
        return spec.history
    return spec.check.history if spec.check.HasField("history") else None


def attachments_of(spec: v1.JobSpec) -> Sequence[v1.Attachment]:
    """What was recorded beside the traces of a job."""
    kind = spec.WhichOneof("kind")
    if kind not in WITH_ATTACHMENTS:
        return ()
    attachments: Sequence[v1.Attachment] = (spec.job.augment if kind == "job" else getattr(spec, kind)).attachments
    return attachments


def files_of(spec: v1.JobSpec) -> list[v1.Input]:
    """All files of a job: those of :func:`inputs_of`, then those of :func:`attachments_of`."""
    return [*inputs_of(spec), *(attachment.input for attachment in attachments_of(spec))]


def _name_of(given: v1.Input, *, in_folders: bool) -> str:
    """The file name that a client gives an input, whatever its source; empty if it gives none.

    Every name of an input comes through here.

    Raises:
        Refusal: it is no file name, or, where it may be ``in_folders``, no path that stays below the job's folder.
    """
    if not given.file_name:
        return ""
    if in_folders:
        return safe_path(given.file_name)
    if safe_file_name(given.file_name) != given.file_name:
        raise invalid("file_name", "must be a file name without folders, such as rank0.json.gz")
    return given.file_name


def paths_of(spec: v1.JobSpec) -> list[str]:
    """The path of each of :func:`files_of` in the request, such as ``spec.job.inputs[3]``."""
    kind = spec.WhichOneof("kind")
    if kind == "diff":
        tests = [f"spec.diff.tests[{at}]" for at in range(len(spec.diff.tests))]
        controls = [f"spec.diff.controls[{at}]" for at in range(len(spec.diff.controls))]
        return ["spec.diff.test", "spec.diff.control", *tests, *controls, *_attached_paths(spec, "spec.diff")]
    if kind == "check":
        sides = (("tests", spec.check.tests), ("baselines", spec.check.baselines))
        return [f"spec.check.{side}[{at}]" for side, inputs in sides for at in range(len(inputs))]
    within_kind = f"spec.{kind}.augment" if kind == "job" else f"spec.{kind}"
    attached = _attached_paths(spec, within_kind)
    if kind in ("augment", "report", "cut"):
        return [f"spec.{kind}.input", *attached]
    return [*(f"spec.{kind}.inputs[{at}]" for at in range(len(inputs_of(spec)))), *attached]


def _attached_paths(spec: v1.JobSpec, path: str) -> list[str]:
    return [f"{path}.attachments[{at}].input" for at in range(len(attachments_of(spec)))]


def list_path(spec: v1.JobSpec) -> str:
    """The path of all inputs of a job together."""
    kind = spec.WhichOneof("kind")
    return f"spec.{kind}.inputs" if kind in ("job", "diagnose") else f"spec.{kind}"


def is_plain(spec: v1.JobSpec) -> bool:
    """Whether each input is one trace, as in the first version of the API."""
    inputs = inputs_of(spec)
    return (
        spec.WhichOneof("kind") in ("augment", "diff") and len(inputs) <= 2 and not any(given.job for given in inputs)
    )


def is_control(spec: v1.DiffSpec, origin: int) -> bool:
    """Whether this input of a comparison belongs to the control."""
    return origin == 1 or origin >= 2 + len(spec.tests)


class Inputs:
    """Resolves inputs to traces, within the transaction that accepts the job.

    Args:
        file_names: those of inputs that are files on the server; empty for other inputs.
        most: the maximum number of traces; of an earlier job all count, also where only its metrics are needed.
    """

    def __init__(self, db: Database, storage: Storage, caller: Caller, file_names: Sequence[str], most: int) -> None:
        self._db, self._storage, self._caller, self._file_names = db, storage, caller, file_names
        self._most, self._earlier = most, dict[str, Earlier]()

    def given(self, spec: v1.JobSpec) -> list[Given]:
        """The traces of a job, in the order of its inputs.

        Raises:
            Refusal: an input does not exist, or is unsuitable for this kind of job; or there are too many traces.
        """
        inputs, paths, count = list[Given](), paths_of(spec), 0
        for origin, given in enumerate(inputs_of(spec)):
            with within(paths[origin]):
                name = _name_of(given, in_folders=spec.WhichOneof("kind") in ("job", "diagnose", "check"))
                inputs += self._of_input(spec, origin, given, name)
            count += len(self._earlier[given.job].traces) if given.job else 1
            if count > self._most:
                raise invalid(list_path(spec), f"more than {self._most} traces, with those of earlier jobs")
        if history := history_of(spec):
            with within("spec.history" if history is spec.history else "spec.check.history"):
                inputs += self._runs(history, len(inputs_of(spec)))
        if not inputs:
            raise invalid(list_path(spec), "has no trace")
        kind = spec.WhichOneof("kind")
        if kind == "augment" and len(inputs) > 1:
            what = f"{spec.augment.input.job} has {len(inputs)} traces; use spec.job"
            raise invalid("spec.augment.input.job", what)
        if kind == "diagnose":
            _expect_different([trace for trace in inputs if not trace.source], paths)
        if kind == "job":
            if spec.job.merge.only:
                inputs = list(_apart(inputs, spec.job.inputs))
            _expect_different(inputs, paths, {JOB_METRICS.removesuffix(METRICS_SUFFIX): JOB_METRICS})
        return inputs

    def attached(self, spec: v1.JobSpec) -> list[Given]:
        """What was recorded beside the traces, in the order of the attachments; ``origin`` counts them.

        Raises:
            Refusal: one is no file, or does not exist; or the name of one is no file name.
        """
        first, paths = len(inputs_of(spec)), paths_of(spec)
        attached = list[Given]()
        for origin, attachment in enumerate(attachments_of(spec)):
            with within(paths[first + origin]):
                if attachment.input.job:
                    raise invalid("job", "must be an upload or a uri: an earlier job is no attachment")
                name = _name_of(attachment.input, in_folders=False)
                (given,) = self._of_input(spec, first + origin, attachment.input, name)
                attached.append(replace(given, origin=origin))
        return attached

    def _of_input(self, spec: v1.JobSpec, origin: int, given: v1.Input, name: str) -> Iterator[Given]:
        """The traces of an input; ``name`` is the wanted file name, checked, or empty."""
        kind = given.WhichOneof("source")
        if kind == "job":
            yield from self._of_job(spec, origin, given.job, name)
        elif kind == "upload":
            upload = _complete_upload(self._db, self._caller, given.upload)
            yield Given(name or upload["file_name"], upload["sha256"], "", origin)
        else:
            yield Given(name or self._file_names[origin], "", given.uri, origin)

    def _runs(self, history: v1.HistorySpec, origin: int) -> Iterator[Given]:
        """The metrics of each rank of each job of a history, the oldest first; ``origin`` counts the jobs from here."""
        labels = list(itertools.chain.from_iterable(history.labels.items()))
        has = " AND EXISTS (SELECT 1 FROM job_labels WHERE job = jobs.id AND key = ? AND value = ?)"
        of_ranks = f"SELECT 1 FROM artifacts WHERE job = jobs.id AND {_OF_RANKS}"  # noqa: S608 - our own texts
        newest = (
            "SELECT jobs.id FROM job_labels AS first JOIN jobs ON jobs.id = first.job"  # noqa: S608
            " WHERE first.realm = ? AND first.key = ? AND first.value = ?"
            f"{has * (len(labels) // 2 - 1)} AND jobs.state = ? AND EXISTS ({of_ranks})"
            " ORDER BY first.created_ns DESC, first.job DESC LIMIT ?"
        )
        rows = self._db.execute(
            "SELECT jobs.id, jobs.folder, jobs.file_name AS called, artifacts.file_name, size, sha256"  # noqa: S608
            f" FROM jobs JOIN artifacts ON artifacts.job = jobs.id WHERE {_OF_RANKS}"
            f" AND jobs.id IN ({newest})"
            " ORDER BY jobs.created_ns, jobs.id, position LIMIT ?",
            (self._caller.realm, *labels, _SUCCEEDED, history.limit or RUNS, self._most + 1),
        ).fetchall()
        if not rows:
            raise invalid("labels", "no job has these labels and metrics of its traces")
        if len(rows) > self._most:
            raise invalid("limit", f"the jobs with these labels have more than {self._most} ranks; choose fewer jobs")
        for at, (job, of_job) in enumerate(itertools.groupby(rows, key=lambda row: str(row["id"]))):
            files = list(of_job)
            made = tuple(Made(file["file_name"], file["size"], file["sha256"]) for file in files)
            yield Given(files[0]["called"], "", "", origin + at, job, Outputs(made, folder=folder_of(files[0])))

    def _of_job(self, spec: v1.JobSpec, origin: int, job: str, file_name: str) -> Iterator[Given]:
        """The traces of the earlier job of this name, or only its metrics if these suffice."""
        earlier = self._earlier.get(job) or self._read(job)
        self._earlier[job] = earlier
        kind, source = earlier.spec.WhichOneof("kind"), id_of(job, "jobs")
        if kind in _OF_METRICS.get(spec.WhichOneof("kind") or "", ()):
            files = tuple(made for made in earlier.made.files if made.file_name.endswith(METRICS_SUFFIX))
            metrics = replace(earlier.made, files=files)
            yield Given(earlier.file_name, "", "", origin, source, metrics)
            return
        if kind not in ("augment", "job"):
            what = f"{job}: has no trace"
            what += "; use it in spec.report or spec.diagnose" if kind == "diff" else ", and no metrics of one"
            raise Refusal("INVALID_REQUEST", what, field_path="job")
        for known in earlier.traces:
            called = file_name or known.file_name
            trace = replace(known, file_name=called, origin=origin, source="", made=NOTHING)
            reusable = _is_reusable(earlier.spec, spec) or (spec.job.merge.only and kind == "augment")
            if reusable and called.rpartition("/")[2] == known.file_name:
                trace = replace(trace, source=source, made=earlier.made)
            if (not trace.source or spec.job.HasField("merge")) and not self._is_there(trace):
                what = f"{job}: its trace is no longer stored; send it again"
                raise Refusal("NOT_FOUND", what, field_path="job")
            yield trace

    def _read(self, job: str) -> Earlier:
        _expect_same_project(self._caller, job, "job")
        query, values = "SELECT * FROM jobs WHERE id = ? AND realm = ?", (id_of(job, "jobs"), self._caller.realm)
        row = self._db.execute(query, values).fetchone()
        if row is None:
            raise Refusal("NOT_FOUND", f"{job}: there is no such job; it may have expired", field_path="job")
        if row["state"] != _SUCCEEDED:
            what = f"{job}: has not succeeded, so it cannot be an input"
            raise Refusal("JOB_NOT_DONE", what, field_path="job")
        spec = v1.JobSpec.FromString(row["spec"])
        files = self._db.execute("SELECT * FROM artifacts WHERE job = ? ORDER BY position", (row["id"],)).fetchall()
        artifacts = tuple(Made(file["file_name"], file["size"], file["sha256"]) for file in files)
        made = Outputs(artifacts, folder=folder_of(row))
        return Earlier(spec, row["file_name"], traces_of(self._db, row, spec, good=True), made)

    def _is_there(self, trace: Given) -> bool:
        return bool(trace.uri) or self._storage.store.has(trace.content)


def folder_of(job: Row) -> str:
    """The key under which the artifacts of a job are stored."""
    return job["folder"] or f"artifacts/{job['id']}"


def traces_of(db: Database, row: Row, spec: v1.JobSpec, *, good: bool = False) -> list[Given]:
    """The traces of a job, a ``row`` of the table of jobs; ``good``: without failed traces."""
    parts = db.execute("SELECT * FROM parts WHERE job = ? AND origin >= 0 ORDER BY position", (row["id"],)).fetchall()
    if parts:
        return [given_of(part) for part in parts if not (good and part["error"])]
    others = db.execute("SELECT * FROM controls WHERE job = ?", (row["id"],))
    stored = zip((row, *others), inputs_of(spec), strict=True)
    return [Given(row["file_name"], row["content"], given.uri, at) for at, (row, given) in enumerate(stored)]


def attached_of(db: Database, job: str, spec: v1.JobSpec) -> list[Given]:
    """What was recorded beside the traces of a job."""
    rows = db.execute("SELECT * FROM attachments WHERE job = ? ORDER BY position", (job,))
    return [
        Given(row["file_name"], row["content"], attachment.input.uri, at)
        for at, (row, attachment) in enumerate(zip(rows, attachments_of(spec), strict=True))
    ]


def given_of(part: Row) -> Given:
    """The trace in a row of the table of parts."""
    made = Outputs.of(part["made"])
    return Given(part["file_name"], part["content"], part["uri"], part["origin"], part["source"], made)


def _is_reusable(earlier: v1.JobSpec, spec: v1.JobSpec) -> bool:
    """Whether the earlier job's outputs are those that this job would make."""
    if spec.WhichOneof("kind") != "job" or earlier.WhichOneof("kind") != "augment" or not earlier.augment.summaries:
        return False
    made, wanted = v1.AugmentSpec(), v1.AugmentSpec()
    made.CopyFrom(earlier.augment)
    wanted.CopyFrom(spec.job.augment)
    for each in (made, wanted):
        each.ClearField("input")
        each.summaries = True
    return made == wanted


def _apart(traces: Sequence[Given], inputs: Sequence[v1.Input]) -> Iterator[Given]:
    """The traces of a timeline, in folders of their own where those of earlier jobs have equal names, as ranks may;
    no file is named after them."""
    seen = set[str]()
    for at, trace in enumerate(traces):
        given, name = inputs[trace.origin], trace.file_name
        if given.job and not given.file_name and name in seen:
            name = f"{at}/{name}"
        seen.add(name)
        yield replace(trace, file_name=name)


def _expect_different(traces: Sequence[Given], paths: Sequence[str], others: Mapping[str, str] | None = None) -> None:
    """Refuse traces whose outputs would have equal names. ``paths`` are those of the spec's inputs; ``others`` are
    names that outputs have already, by stem."""
    seen = dict(others or {})
    for trace in traces:
        name = trace.file_name
        folder, slash, base = name.rpartition("/")
        outputs = f"{folder}{slash}{stem(base)}"
        if other := seen.get(outputs):
            what = f"{other[:200]} and {name[:200]} would be written to the same files; set another file_name"
            raise invalid(f"{paths[trace.origin]}.file_name", what)
        seen[outputs] = name


def _expect_same_project(caller: Caller, name: str, field: str) -> None:
    if name.startswith("projects/") and not name.startswith(prefix_of(caller.realm) or "/"):
        raise invalid(field, f"{name[:80]} is of another project than the job; send it, or make it, in this one")


def _complete_upload(db: Database, caller: Caller, name: str) -> Row:
    _expect_same_project(caller, name, "upload")
    upload = id_of(name, "uploads", "upload")
    query = "SELECT * FROM uploads WHERE id = ? AND realm = ?"
    row: Row | None = db.execute(query, (upload, caller.realm)).fetchone()
    if row is None:
        what = f"{name[:80]}: there is no such upload; it may have expired"
        raise Refusal("NOT_FOUND", what, field_path="upload")
    if not row["complete"]:
        there = f"{name}: only {row['received']} bytes have arrived; finish the upload first"
        raise Refusal("UPLOAD_INCOMPLETE", there, {"received_bytes": str(row["received"])}, field_path="upload")
    return row
