"""Jobs: accepted, run, ended. Every change is a transaction; progress alone is kept in memory."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

from augment.v1 import resources_pb2 as v1
from augment_server.errors import Refusal
from augment_server.limits import Limits
from augment_server.names import new_id
from augment_server.pages import page
from augment_server.storage import Storage, now_ns
from augment_server.uploads import Caller

QUEUED, RUNNING = v1.Job.STATE_QUEUED, v1.Job.STATE_RUNNING
SUCCEEDED, FAILED, CANCELLED = v1.Job.STATE_SUCCEEDED, v1.Job.STATE_FAILED, v1.Job.STATE_CANCELLED
FINAL = (SUCCEEDED, FAILED, CANCELLED)
_MEDIA_TYPES = {".json.gz": "application/gzip", ".json": "application/json", ".zip": "application/zip"}


@dataclass(frozen=True, slots=True)
class Made:
    """A file that a job has made."""

    file_name: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Given:
    """An input: its file's name, and the SHA-256 of its upload, or the ``uri`` of a file of the server's."""

    file_name: str
    content: str
    uri: str


@dataclass(frozen=True, slots=True)
class Begun:
    """What a scheduler needs to know of a job that it has begun."""

    id: str
    client: str
    spec: v1.JobSpec
    inputs: tuple[Given, ...]  #: the first is the one that outputs are called after
    attempts: int
    deaths: int
    queued_s: float

    @property
    def file_name(self) -> str:
        """What the job is about."""
        return self.inputs[0].file_name


class Jobs:
    """All jobs. Every method may be called from any thread, and may block."""

    def __init__(self, storage: Storage, limits: Limits) -> None:
        self._storage, self._limits = storage, limits
        self._progress: dict[str, v1.Progress] = {}

    def create(self, caller: Caller, spec: v1.JobSpec, request_id: str, file_names: Sequence[str]) -> tuple[str, bool]:
        """Accept a job: its id, and whether it is new; with a ``request_id`` that is known, the job that has it.

        ``file_names`` are those of its inputs that are files of the server's.

        Raises:
            Refusal: the queue is full, the client has too many jobs, the upload is not there or not complete.
        """
        text = spec.SerializeToString(deterministic=True)
        with self._storage.writing() as db:
            if request_id and (known := _with_request(db, caller, request_id)):
                if known["spec"] != text:
                    job = f"jobs/{known['id']}"
                    raise Refusal("REQUEST_ID_REUSED", f"{job} has this request_id, but another spec; choose a new one")
                return str(known["id"]), False
            self._expect_room(db, caller)
            inputs = zip(inputs_of(spec), file_names, strict=True)
            first, *others = [_stored(db, caller, given, file_name) for given, file_name in inputs]
            job, now = new_id(), now_ns()
            columns = "id, client, realm, request_id, spec, file_name, content, state, created_ns, queued_ns"
            values = (job, caller.client, caller.realm, request_id, text, *first, QUEUED, now, now)
            db.execute(f"INSERT INTO jobs ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", values)  # noqa: S608
            db.executemany("INSERT INTO controls VALUES (?, ?, ?)", [(job, *other) for other in others])
        return job, True

    def _expect_room(self, db: sqlite3.Connection, caller: Caller) -> None:
        waiting = db.execute("SELECT COUNT(*) FROM jobs WHERE state = ?", (QUEUED,)).fetchone()[0]
        if waiting >= self._limits.max_queued_jobs:
            raise Refusal("QUEUE_FULL", f"{waiting} jobs wait already; try again in a while", retry_s=5)
        mine = "SELECT COUNT(*) FROM jobs WHERE state IN (?, ?) AND client = ?"
        if db.execute(mine, (QUEUED, RUNNING, caller.client)).fetchone()[0] >= self._limits.max_client_jobs:
            most = self._limits.max_client_jobs
            raise Refusal("TOO_MANY_JOBS", f"{most} of your jobs wait or run; wait for one of them", retry_s=5)

    def get(self, caller: Caller, job: str) -> v1.Job:
        """A job as it stands.

        Raises:
            Refusal: there is none of this id that the caller may see.
        """
        return self._message(self._row(caller, job))

    def _row(self, caller: Caller, job: str) -> sqlite3.Row:
        row = self._storage.row("SELECT * FROM jobs WHERE id = ? AND realm = ?", job, caller.realm)
        if row is None:
            raise Refusal("NOT_FOUND", f"jobs/{job}: there is no such job; it may have been removed by its age")
        return row

    def page(self, caller: Caller, size: int, token: str, states: Sequence[int]) -> tuple[list[v1.Job], str]:
        """Jobs from the newest on, and the token of the next page.

        Raises:
            Refusal: this is no token.
        """
        wanted = [one for one in (QUEUED, RUNNING, *FINAL) if one in states or not states]
        query = f"SELECT * FROM jobs WHERE realm = ? AND state IN ({_marks(wanted)})"  # noqa: S608
        return page(self._storage, query, (caller.realm, *wanted), size, token, self._message)

    def artifacts(self, job: str) -> list[v1.Artifact]:
        """What a job has made."""
        rows = self._storage.rows("SELECT * FROM artifacts WHERE job = ? ORDER BY position", job)
        return [_artifact(job, row) for row in rows]

    def begin(self) -> Begun | None:
        """Take up the next job: of the clients with the fewest jobs running the one that came first."""
        mine = "SELECT COUNT(*) FROM jobs AS other WHERE other.client = jobs.client AND other.state = ?"
        query = f"SELECT * FROM jobs WHERE state = ? ORDER BY ({mine}), number LIMIT 1"  # noqa: S608
        now = now_ns()
        with self._storage.writing() as db:
            row = db.execute(query, (QUEUED, RUNNING)).fetchone()
            if row is None:
                return None
            change = "UPDATE jobs SET state = ?, started_ns = ?, attempts = attempts + 1 WHERE id = ?"
            db.execute(change, (RUNNING, now, row["id"]))
            stored = [row, *db.execute("SELECT * FROM controls WHERE job = ?", (row["id"],))]
        spec = v1.JobSpec.FromString(row["spec"])
        given = zip(stored, inputs_of(spec), strict=True)
        inputs = tuple(Given(one["file_name"], one["content"], source.uri) for one, source in given)
        queued_s = max(0.0, (now - row["queued_ns"]) / 1e9)
        counts = (row["attempts"] + 1, row["deaths"])
        return Begun(row["id"], row["client"], spec, inputs, *counts, queued_s)

    def queue_again(self, job: str, *, died: bool = False) -> None:
        """Put a job that was running back into the queue, at its old place; ``died`` says that its worker has."""
        self._progress.pop(job, None)
        with self._storage.writing() as db:
            change = "UPDATE jobs SET state = ?, queued_ns = ?, deaths = deaths + ? WHERE id = ? AND state = ?"
            db.execute(change, (QUEUED, now_ns(), int(died), job, RUNNING))

    def end(self, job: str, state: int, error: Refusal | None = None, made: Sequence[Made] = ()) -> bool:
        """Bring a job to a final state; False, and nothing changes, if it has one."""
        text = None
        progress = self._progress[job].SerializeToString() if job in self._progress else None
        if error:
            metadata = dict(error.metadata)
            said = v1.JobError(code=error.code_number, reason=error.reason, message=error.message, metadata=metadata)
            text = said.SerializeToString()
        with self._storage.writing() as db:
            change = "UPDATE jobs SET state = ?, error = ?, progress = ?, ended_ns = ? WHERE id = ? AND state IN (?, ?)"
            if not db.execute(change, (state, text, progress, now_ns(), job, QUEUED, RUNNING)).rowcount:
                return False
            rows = [(job, position, one.file_name, one.size, one.sha256) for position, one in enumerate(made)]
            db.executemany("INSERT INTO artifacts VALUES (?, ?, ?, ?, ?)", rows)
        self._progress.pop(job, None)
        return True

    def cancel_queued(self, job: str) -> bool:
        """Cancel a job that waits; False if it does not wait."""
        with self._storage.writing() as db:
            change = "UPDATE jobs SET state = ?, ended_ns = ? WHERE id = ? AND state = ?"
            return bool(db.execute(change, (CANCELLED, now_ns(), job, QUEUED)).rowcount)

    def tell(self, job: str, progress: v1.Progress) -> None:
        """How far a job is; ``progress`` may change from now on, and is copied whenever somebody asks."""
        self._progress[job] = progress

    def by_state(self) -> dict[str, int]:
        """How many jobs there are in each state."""
        rows = self._storage.rows("SELECT state, COUNT(*) AS count FROM jobs GROUP BY state")
        found = {row["state"]: row["count"] for row in rows}
        return {state_name(state): found.get(state, 0) for state in (QUEUED, RUNNING, *FINAL)}

    def _message(self, row: sqlite3.Row) -> v1.Job:
        made = v1.Job(
            name=f"jobs/{row['id']}",
            spec=v1.JobSpec.FromString(row["spec"]),
            state=row["state"],
            progress=v1.Progress.FromString(row["progress"]) if row["progress"] else self._progress.get(row["id"]),
            error=v1.JobError.FromString(row["error"]) if row["error"] else None,
            attempt_count=row["attempts"],
            artifacts=self.artifacts(row["id"]) if row["state"] == SUCCEEDED else (),
        )
        made.create_time.FromNanoseconds(row["created_ns"])
        if row["started_ns"]:
            made.start_time.FromNanoseconds(row["started_ns"])
        if row["ended_ns"]:
            made.end_time.FromNanoseconds(row["ended_ns"])
            made.expire_time.FromNanoseconds(row["ended_ns"] + int(self._limits.artifact_life_s * 1e9))
        return made


def inputs_of(spec: v1.JobSpec) -> list[v1.Input]:
    """The inputs of a job, that first which its outputs are called after."""
    return [spec.diff.test, spec.diff.control] if spec.WhichOneof("kind") == "diff" else [spec.augment.input]


def state_name(state: int) -> str:
    """``QUEUED`` and so on."""
    return v1.Job.State.Name(state).removeprefix("STATE_")  # type: ignore[arg-type]


def _with_request(db: sqlite3.Connection, caller: Caller, request_id: str) -> sqlite3.Row | None:
    query = "SELECT id, spec FROM jobs WHERE realm = ? AND request_id = ?"
    row: sqlite3.Row | None = db.execute(query, (caller.realm, request_id)).fetchone()
    return row


def _stored(db: sqlite3.Connection, caller: Caller, given: v1.Input, file_name: str) -> tuple[str, str]:
    """File name and content of an input."""
    if given.WhichOneof("source") != "upload":
        return file_name, ""
    upload = _complete_upload(db, caller, given.upload)
    return upload["file_name"], upload["sha256"]


def _complete_upload(db: sqlite3.Connection, caller: Caller, name: str) -> sqlite3.Row:
    upload = name.removeprefix("uploads/")
    query = "SELECT * FROM uploads WHERE id = ? AND realm = ?"
    row: sqlite3.Row | None = db.execute(query, (upload, caller.realm)).fetchone()
    if row is None:
        raise Refusal("NOT_FOUND", f"{name[:80]}: there is no such upload; it may have been removed by its age")
    if not row["complete"]:
        there = f"{name}: only {row['received']} bytes are there; finish the upload first"
        raise Refusal("UPLOAD_INCOMPLETE", there, {"received_bytes": str(row["received"])})
    db.execute("UPDATE uploads SET touched_ns = ? WHERE id = ?", (now_ns(), upload))
    return row


def _artifact(job: str, row: sqlite3.Row) -> v1.Artifact:
    name = row["file_name"]
    kind = next((kind for ending, kind in _MEDIA_TYPES.items() if name.endswith(ending)), "application/octet-stream")
    place = f"jobs/{job}/artifacts/{name}"
    return v1.Artifact(name=place, file_name=name, size_bytes=row["size"], sha256=row["sha256"], media_type=kind)


def _marks(values: Sequence[object]) -> str:
    return ", ".join("?" * len(values))
