"""The database of jobs. Every change is a transaction; only progress is kept in memory."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from google.protobuf.message import DecodeError

from augment.v1 import resources_pb2 as v1
from augment_server.base.errors import Refusal, invalid, within
from augment_server.base.limits import Limits
from augment_server.base.names import new_id
from augment_server.base.people import Caller, prefix_of
from augment_server.jobs import parts
from augment_server.jobs.job_metadata import COLUMNS, Card
from augment_server.jobs.parts import Overtaken, Part, Step
from augment_server.jobs.queue_order import AHEAD, NEXT, WAITING, Turns, serve
from augment_server.storage.catalog import Database, Row
from augment_server.storage.filters import Field, condition_of
from augment_server.storage.inputs import (
    NOTHING,
    Given,
    Inputs,
    Outputs,
    attached_of,
    files_of,
    folder_of,
    is_plain,
    traces_of,
)
from augment_server.storage.pages import MOST_CPU_S, Asked, page, page_of
from augment_server.storage.storage import Storage, now_ns

QUEUED, RUNNING = v1.Job.STATE_QUEUED, v1.Job.STATE_RUNNING
SUCCEEDED, FAILED, CANCELLED = v1.Job.STATE_SUCCEEDED, v1.Job.STATE_FAILED, v1.Job.STATE_CANCELLED
FINAL = (SUCCEEDED, FAILED, CANCELLED)
_MOST_OVERTAKEN = 10
_MOST_CHANGED = 200  #: changed jobs that are read together
MOST_READ = 64  #: jobs that :meth:`Jobs.placed` reads together
_LIGHT = 32 << 10  #: bytes of a job's specification that may be read with others'
_MORE = "jobs = spent.jobs + excluded.jobs, cpu_ms = spent.cpu_ms + excluded.cpu_ms"
_ADDED = f"ON CONFLICT (client, hour) DO UPDATE SET {_MORE}"
_HOURS = 24  #: of which the CPU time of jobs counts


def state_name(state: int) -> str:
    """The name of a state, such as ``QUEUED``."""
    return v1.Job.State.Name(state).removeprefix("STATE_")  # type: ignore[arg-type]


#: the fields that filters and orders may name
FIELDS = {
    "state": Field("choice", "state", {state_name(state): int(state) for state in (QUEUED, RUNNING, *FINAL)}),
    "create_time": Field("time", "created_ns"),
    "start_time": Field("time", "started_ns"),
    "end_time": Field("time", "ended_ns"),
    "display_name": Field("text", "display_name"),
    "labels": Field("labels", "labels"),
    "priority": Field("number", "priority"),
}
#: a whole job leaves other clients a tenth of what it takes itself, at most a gigabyte
_LEFT, _MOST_LEFT = 10, 1 << 30
_MEDIA_TYPES = {".json.gz": "application/gzip", ".json": "application/json", ".zip": "application/zip"}


@dataclass(frozen=True, slots=True)
class Wanted:
    """A requested job.

    ``file_names`` are those of inputs that are files on the server, else empty. ``path`` is that of its request in the
    call's message, such as ``requests[3]``; empty for the message itself.
    """

    spec: v1.JobSpec
    request_id: str
    file_names: Sequence[str]
    card: Card = Card()
    path: str = ""


@dataclass(frozen=True, slots=True)
class Begun:
    """The facts about a started job that the scheduler needs."""

    id: str
    client: str
    spec: v1.JobSpec
    file_name: str  #: the name of the job's input, for messages
    inputs: tuple[Given, ...]  #: outputs are named after the first
    attempts: int
    deaths: int
    queued_s: float
    attempt: str  #: the id of this attempt
    step: Step | None = None  #: the step of a whole job
    parts: tuple[Part, ...] = ()  #: all traces of the job, for its last step
    first: bool = True  #: whether this is the first step that begins
    deadline_s: float | None = None  #: the caller's deadline
    attached: tuple[Given, ...] = ()  #: what was recorded beside the traces of the job
    running_s: float = 0.0  #: how long the job had run
    progress: bytes | None = None  #: how far it was

    @property
    def is_of_a_trace(self) -> bool:
        """Whether it converts a trace of a whole job, which another step ends."""
        return self.step is not None and not self.step.is_last


class Jobs:
    """All jobs. Every method may be called from any thread, and may block."""

    def __init__(self, storage: Storage, limits: Limits) -> None:
        self._storage, self._limits = storage, limits
        self._progress: dict[str, v1.Progress] = {}
        self._turns = Turns(storage)

    def create(self, caller: Caller, wanted: Sequence[Wanted]) -> list[tuple[str, bool]]:
        """Accept all jobs or none; returns the id of each, and whether it is new.

        A known ``request_id`` returns the existing job. :meth:`expect` only checks whether jobs would be accepted.

        Raises:
            Refusal: the queue is full, the client has too many jobs, or an upload does not exist or is incomplete.
        """
        with self._storage.writing() as db:
            return [self._accepted(db, caller, creation) for creation in wanted]

    def expect(self, caller: Caller, wanted: Sequence[Wanted]) -> list[v1.Job]:
        """Check whether jobs would be accepted, without accepting them; returns what they would be.

        Raises:
            Refusal: as :meth:`create`.
        """
        before = 0
        with self._storage.catalog.reading() as db:  # without a transaction, for which others would wait
            for creation in wanted:
                known, _, _ = self._checked(db, caller, creation, before)
                before += not known
        jobs = [v1.Job(spec=creation.spec, state=QUEUED) for creation in wanted]
        for job, creation in zip(jobs, wanted, strict=True):
            creation.card.tell(job)
        return jobs

    def _checked(
        self, db: Database, caller: Caller, wanted: Wanted, before: int = 0
    ) -> tuple[str, list[Given], list[Given]]:
        """The id of the job that has this ``request_id``, empty if it is a new one; and of a new one its traces, and
        what was recorded beside them.

        Args:
            before: how many new jobs of the same client come before it.
        """
        with within(wanted.path):
            return self._resolved(db, caller, wanted, before)

    def _resolved(
        self, db: Database, caller: Caller, wanted: Wanted, before: int
    ) -> tuple[str, list[Given], list[Given]]:
        spec, request_id = wanted.spec, wanted.request_id
        if request_id and (known := _with_request(db, caller, request_id)):
            if known["spec"] != spec.SerializeToString(deterministic=True) or Card.of(known) != wanted.card:
                job = f"{prefix_of(caller.realm)}jobs/{known['id']}"
                what = f"{job} has this request_id, but another spec; choose a new one"
                raise Refusal("REQUEST_ID_REUSED", what, field_path="request_id")
            return str(known["id"]), [], []
        self._expect_room(db, caller, before)
        inputs = Inputs(db, self._storage, caller, wanted.file_names, self._limits.max_job_inputs)
        return "", inputs.given(spec), inputs.attached(spec)

    def _accepted(self, db: Database, caller: Caller, wanted: Wanted) -> tuple[str, bool]:
        known, traces, attached = self._checked(db, caller, wanted)
        if known:
            return known, False
        spec, request_id = wanted.spec, wanted.request_id
        text = spec.SerializeToString(deterministic=True)
        used = {given.upload.rpartition("/")[2] for given in files_of(spec)} - {""}
        db.executemany("UPDATE uploads SET touched_ns = ? WHERE id = ?", [(now_ns(), upload) for upload in used])
        job, now, plain = new_id(), now_ns(), is_plain(spec)
        first = (traces[0].file_name, traces[0].content) if plain else (_called(spec, traces), "")
        columns = (
            f"id, client, realm, creator, request_id, spec, file_name, content, state, created_ns, queued_ns, {COLUMNS}"
        )
        values = (job, caller.client, caller.realm, caller.creator, request_id, text, *first, QUEUED, now, now)
        values = (*values, *wanted.card.values(now))
        db.execute(f"INSERT INTO jobs ({columns}) VALUES ({_marks(values)})", values)  # noqa: S608
        if plain:
            others = [(job, trace.file_name, trace.content) for trace in traces[1:]]
            db.executemany("INSERT INTO controls VALUES (?, ?, ?)", others)
        else:
            parts.insert(db, job, traces, in_steps=spec.WhichOneof("kind") == "job")
        beside = [(job, given.origin, given.file_name, given.content) for given in attached]
        db.executemany("INSERT INTO attachments VALUES (?, ?, ?, ?)", beside)
        return job, True

    def _expect_room(self, db: Database, caller: Caller, before: int) -> None:
        waiting = db.execute("SELECT COUNT(*) FROM jobs WHERE state = ?", (QUEUED,)).fetchone()[0] + before
        if waiting >= self._limits.max_queued_jobs:
            self._expect_share(db, caller, waiting, before)
        query = "SELECT COUNT(*) FROM jobs WHERE state IN (?, ?) AND client = ?"
        count = db.execute(query, (QUEUED, RUNNING, caller.client)).fetchone()[0] + before
        if count >= self._limits.max_client_jobs:
            most = self._limits.max_client_jobs
            raise Refusal(
                "TOO_MANY_JOBS",
                f"{most} of your jobs are waiting or running; wait for one of them",
                retry_s=5,
                subject=caller.client,
            )

        if (most_s := self._limits.max_client_cpu_s) is not None:
            query = "SELECT COALESCE(SUM(cpu_ms), 0) FROM spent WHERE client = ? AND hour > ?"
            spent_s = int(db.execute(query, (caller.client, _hour() - _HOURS)).fetchone()[0]) / 1000
            if spent_s >= most_s:
                what = f"your jobs took {spent_s:.0f} s of CPU within a day, of at most {most_s:.0f}; try again later"
                raise Refusal("TOO_MUCH_CPU", what, retry_s=60, subject=caller.client)

    def _expect_share(self, db: Database, caller: Caller, waiting: int, before: int) -> None:
        """Check that fewer jobs of the client wait than its equal share of a full queue.

        So the queue takes something of each client that asks, whatever others have put into it. The more clients wait,
        the smaller are the shares: N clients together have at most 1 + 1/2 + … + 1/N times ``max_queued_jobs``.
        """
        query = "SELECT COUNT(DISTINCT client), COUNT(*) FILTER (WHERE client = ?) FROM jobs WHERE state = ?"
        clients, count = db.execute(query, (caller.client, QUEUED)).fetchone()
        share = self._limits.max_queued_jobs // (clients + (not count))
        if count + before >= share:
            what = f"{waiting} jobs are waiting already, and of yours as many as your share, {share}; try again later"
            raise Refusal("QUEUE_FULL", what, retry_s=5)

    def get(self, caller: Caller, job: str, *, basic: bool = False, placed: bool = False) -> v1.Job:
        """A job as it stands; ``basic``: without what grows with its inputs (``JOB_VIEW_BASIC``); ``placed``: with its
        place in the queue if it waits, which may take a while.

        Raises:
            Refusal: no such job is visible to the caller.
        """
        row = self._row(caller, job, f"*, {AHEAD}" if placed else "*")
        return self._in_line(row, basic) if placed else self._message(row, basic=basic)

    def placed(self, asked: Sequence[tuple[str, str, bool]]) -> list[v1.Job | None]:
        """Jobs as of :meth:`get` with their places, :data:`MOST_READ` at most, by realm, id, and whether ``basic``.

        None: there is no such job in the realm, or more of it is to be read than its row.
        """
        ids = sorted({job for _, job, _ in asked})
        while len(ids) & (len(ids) - 1):  # to a power of two: the database prepares each text
            ids.append(ids[-1])
        light = f"state IN ({QUEUED:d}, {RUNNING:d}) AND LENGTH(spec) <= {_LIGHT}"
        query = f"SELECT *, {AHEAD} FROM jobs WHERE id IN ({_marks(ids)}) AND {light}"  # noqa: S608 - our own texts
        rows = {row["id"]: row for row in self._storage.rows(query, *ids)}
        answers: list[v1.Job | None] = []
        for realm, job, basic in asked:
            answers.append(None)
            if (row := rows.get(job)) and row["realm"] == realm:
                with contextlib.suppress(DecodeError):  # then it fails for who asks for it alone
                    answers[-1] = self._in_line(row, basic)
        return answers

    def _in_line(self, row: Row, basic: bool) -> v1.Job:
        message = self._message(row, basic=basic)
        if row["ahead"] is not None:
            message.queue_position = self._turns.place(row["client"], row["ahead"])
        return message

    def update(self, caller: Caller, job: str, values: Mapping[str, Any], only_check: bool) -> v1.Job:
        """Change fields of a job's :class:`Card`, unless ``only_check``; returns the job, with the changes.

        Raises:
            Refusal: no such job is visible to the caller.
        """
        row = self._row(caller, job)
        card = replace(Card.of(row), **values)
        if only_check:
            message = self.get(caller, job, placed=True)
            message.ClearField("labels")
            card.tell(message)
            return message
        with self._storage.changing(job) as db:
            change = f"UPDATE jobs SET ({COLUMNS}, changed_ns) = (?, ?, ?, ?, ?, ?) WHERE id = ?"  # noqa: S608
            db.execute(change, (*card.values(row["created_ns"]), now_ns(), job))
        return self.get(caller, job, placed=True)

    def _row(self, caller: Caller, job: str, columns: str = "*") -> Row:
        row = self._storage.row(f"SELECT {columns} FROM jobs WHERE id = ? AND realm = ?", job, caller.realm)  # noqa: S608
        if row is None:
            raise Refusal("NOT_FOUND", f"jobs/{job}: there is no such job; it may have expired")
        return row

    def page(self, caller: Caller, asked: Asked, states: Sequence[int], basic: bool) -> tuple[list[v1.Job], str]:
        """Jobs, as of :meth:`get`, and the token of the next page.

        Raises:
            Refusal: the token, filter or order is invalid.
        """
        wanted = [state for state in (QUEUED, RUNNING, *FINAL) if state in states or not states]
        where = f"realm = ? AND state IN ({_marks(wanted) or 'NULL'})", [caller.realm, *wanted]
        return page(self._storage, "jobs", FIELDS, where, asked, partial(self._message, basic=basic))

    def changed_since(
        self, caller: Caller, place: tuple[int, int], filter_: str, basic: bool
    ) -> list[tuple[int, int, v1.Job]]:
        """The next jobs with a version from that of ``place`` on, with their places; none after the last.

        Raises:
            Refusal: the filter is invalid.
        """
        sql, values = condition_of(filter_, FIELDS)
        query = f"SELECT * FROM jobs WHERE realm = ? AND (version, number) > (?, ?) AND {sql}"  # noqa: S608 - our own texts
        query += f" ORDER BY version, number LIMIT {_MOST_CHANGED}"
        try:
            rows = self._storage.rows(query, caller.realm, *place, *values, cpu_s=MOST_CPU_S)
        except TimeoutError as error:
            raise invalid("filter", f"takes more than {MOST_CPU_S:g} s to look for; narrow it") from error
        return [(row["version"], row["number"], self._message(row, basic=basic)) for row in rows]

    def running_among(self, caller: Caller, jobs: Sequence[str], filter_: str, basic: bool) -> list[v1.Job]:
        """Those of these jobs that run here and match: their progress is in no row."""
        sql, values = condition_of(filter_, FIELDS)
        query = f"SELECT * FROM jobs WHERE realm = ? AND id = ? AND {sql}"  # noqa: S608 - our own texts
        rows = [self._storage.row(query, caller.realm, job, *values) for job in jobs if job in self._progress]
        return [self._message(row, basic=basic) for row in rows if row]

    def _artifacts(self, job: Row) -> list[v1.Artifact]:
        rows = self._storage.rows("SELECT * FROM artifacts WHERE job = ? ORDER BY position", job["id"])
        return [_artifact(_name_of(job), row) for row in rows]

    def artifacts_page(self, caller: Caller, job: str, asked: Asked) -> tuple[list[v1.Artifact], str]:
        """Artifacts of a job, and the token of the next page.

        Raises:
            Refusal: no such job is visible to the caller, or the size or token is invalid.
        """
        row = self._row(caller, job)
        artifacts = self._artifacts(row) if row["state"] == SUCCEEDED else []
        return page_of(self._storage, f"artifacts of {job}", artifacts, asked)

    def artifact(self, caller: Caller, job: str, file_name: str) -> v1.Artifact | None:
        """The artifact of this name; None if a job has none.

        Raises:
            Refusal: no such job is visible to the caller.
        """
        row = self._row(caller, job)
        file = self._storage.row("SELECT * FROM artifacts WHERE job = ? AND file_name = ?", job, file_name)
        return _artifact(_name_of(row), file) if file and row["state"] == SUCCEEDED else None

    def folder(self, job: str) -> str:
        """The key under which its artifacts are stored."""
        row = self._storage.row("SELECT * FROM jobs WHERE id = ?", job)
        return folder_of(row) if row else ""

    def _failures(self, job: str) -> list[v1.InputFailure]:
        query = "SELECT * FROM parts WHERE job = ? AND error IS NOT NULL ORDER BY position"
        return list(parts.failures(self._storage.rows(query, job)))

    def _notes(self, job: str) -> tuple[str, ...]:
        return parts.notes_of(self._storage.rows("SELECT made FROM parts WHERE job = ? AND origin < 0", job))

    def begin(self) -> Begun | None:
        """Begin the next job in the order of :mod:`augment_server.jobs.queue_order`; None if none waits.

        Of a job with several steps, the next step that can begin is begun.
        """
        for _ in range(_MOST_OVERTAKEN):
            with contextlib.suppress(Overtaken):
                return self._begin()
        return None

    def _begin(self) -> Begun | None:
        now, catalog, attempt = now_ns(), self._storage.catalog, new_id()
        with catalog.taking() as db:
            row = None
            for skip in catalog.skip_locked:
                row = row or db.execute(NEXT.format(skip=skip)).fetchone()
            if row is None:
                return None
            serve(db, row["client"])
            step = parts.begin(db, row["id"], catalog.server, attempt)
            converts = step and not step.is_last
            if row["state"] == QUEUED:
                change = "state = ?, started_ns = ?, attempts = attempts + 1, server = ?, attempt = ?"
                values = (RUNNING, now, catalog.server, attempt, row["id"], QUEUED)
                if not db.execute(f"UPDATE jobs SET {change} WHERE id = ? AND state = ?", values).rowcount:  # noqa: S608
                    raise Overtaken
                if step and converts:
                    parts.count_converted(db, row["id"], step, step.ended)
            elif step and step.is_last:  # the attempt that can end the job
                db.execute("UPDATE jobs SET attempt = ? WHERE id = ?", (attempt, row["id"]))
            elif not step:
                raise Overtaken
            spec = v1.JobSpec.FromString(row["spec"])
            traces = [parts.trace_of(db, row["id"], step.number)] if step and converts else traces_of(db, row, spec)
            whole = tuple(parts.rows_of(db, row["id"])) if step and step.is_last else ()
            beside = tuple(attached_of(db, row["id"], spec))
        queued_s = max(0.0, (now - row["queued_ns"]) / 1e9)
        deadline_s = None if row["deadline_ms"] is None else row["deadline_ms"] / 1000
        if step is None:
            counts = (row["attempts"] + 1, row["deaths"])
            facts = (row["id"], row["client"], spec, row["file_name"], tuple(traces), *counts, queued_s, attempt)
            return Begun(*facts, deadline_s=deadline_s, attached=beside)
        name = row["file_name"] if step.is_last else traces[0].file_name
        counts, first, given = (step.attempts, step.deaths), row["state"] == QUEUED, tuple(traces)
        facts = (row["id"], row["client"], spec, name, given, *counts, queued_s, attempt)
        running_s = 0.0 if first else max(0.0, (now - row["started_ns"]) / 1e9)
        return Begun(*facts, step, whole, first, deadline_s, beside, running_s, row["progress"])

    def waiting_s(self) -> dict[str, float]:
        """How long each client has waited whose jobs all wait."""
        return {row["client"]: (now_ns() - row["since"]) / 1e9 for row in self._storage.rows(WAITING)}

    def queue_again(self, begun: Begun, *, died: bool = False, yielded: bool = False) -> None:
        """Put a running job back into the queue, at its old place.

        Args:
            died: its worker died.
            yielded: another client had its turn; then the attempt does not count.
        """
        job = begun.id
        if begun.step:
            with self._storage.changing(job) as db:
                parts.queue_again(db, job, begun.step.number, begun.attempt, died=died, yielded=yielded)
                if begun.step.is_last and (progress := self._progress.pop(job, None)):
                    db.execute("UPDATE jobs SET progress = ? WHERE id = ?", (progress.SerializeToString(), job))
            return
        self._progress.pop(job, None)
        with self._storage.changing(job) as db:
            counts = "deaths = deaths + ?, attempts = attempts - ?, progress = NULL"
            change = f"UPDATE jobs SET state = ?, queued_ns = ?, {counts} WHERE id = ? AND state = ? AND attempt = ?"  # noqa: S608
            db.execute(change, (QUEUED, now_ns(), int(died), int(yielded), job, RUNNING, begun.attempt))

    def end(
        self,
        job: str,
        state: int,
        error: Refusal | None = None,
        made: Outputs = NOTHING,
        *,
        attempt: str = "",
    ) -> bool:
        """Bring a job to a final state; returns False, without a change, if it already is in one.

        Args:
            job: its id.
            state: a final one.
            error: why it failed.
            made: what it has made.
            attempt: the one that ends it, which must be the last at it; empty: whichever is.
        """
        text = _text_of(error)
        with self._storage.changing(job) as db:
            ended = self._end(db, job, state, text, attempt)
            if not ended and attempt:
                query = "SELECT 1 FROM jobs WHERE id = ? AND state = ? AND attempt = ?"
                if db.execute(query, (job, state, attempt)).fetchone():
                    return True  # it was recorded, and only the answer was lost
            rows = [(job, position, file.file_name, file.size, file.sha256) for position, file in enumerate(made.files)]
            db.executemany("INSERT INTO artifacts VALUES (?, ?, ?, ?, ?)", rows if ended else ())
            if ended and made.folder:
                db.execute("UPDATE jobs SET folder = ? WHERE id = ?", (made.folder, job))
            if ended and made.notes:
                parts.note(db, job, made)
            for failure in made.failures if ended else ():
                refusal = Refusal(failure.reason, failure.message, failure.metadata)
                parts.fail(db, job, failure.position, _text_of(refusal))
        if ended:
            self._progress.pop(job, None)
        return ended

    def expect_stored(self, begun: Begun, made: Outputs) -> None:
        """Check that this server stores as much as the outputs of a trace of a whole job take.

        Raises:
            Refusal: it does not.
        """
        with self._storage.writing() as db:
            parts.expect_room(db, begun.id, sum(file.size for file in made.files), self._limits.max_stored_bytes)

    def reserve(self, begun: Begun) -> int:
        """What a step of a whole job must leave free on the disk, for other clients: a part of what the job takes.

        Raises:
            Refusal: the disk has not even the room for the traces under way, if each takes what the largest took.
        """
        taken = parts.taken(self._storage, begun.id)
        reserve = min(taken.bytes // _LEFT, _MOST_LEFT)
        self.expect_free(begun, reserve + taken.largest * taken.running)
        return reserve

    def expect_free(self, begun: Begun, size: int) -> None:
        """Check that the disk has room for ``size`` bytes, or that this is no whole job's.

        Raises:
            Refusal: it has not.
        """
        if size and self._storage.free_bytes() < size:
            raise Refusal("STORAGE_FULL", f"{begun.file_name}: the server's disk has no room for its outputs")

    def no_room(self, begun: Begun) -> Refusal:
        """The refusal of a whole job for which there is no room, with the room that it would need.

        That is, for each trace, what those before took; as much again for the copies in which the job's tracks are
        drawn; and as much again for a merged timeline.
        """
        taken = parts.taken(self._storage, begun.id)
        left = max(0, min(self._storage.free_bytes(), self._limits.max_stored_bytes - taken.bytes))
        name = _called(begun.spec, begun.inputs)
        what = f"{name}: this server has no room for the outputs of all {taken.of} traces"
        metadata = {"taken_bytes": str(taken.bytes), "free_bytes": str(left)}
        if taken.traces:
            copies = 3 if begun.spec.job.HasField("merge") else 2
            needed = copies * taken.of * taken.bytes // taken.traces
            metadata["needed_bytes"] = str(needed)
            what += f", which would need about {needed} bytes: those of {taken.traces} take {taken.bytes}"
        what += f"; {left} bytes are left; send fewer traces, or ask the server's operator"
        return Refusal("STORAGE_FULL", what, metadata)

    def end_without_room(self, job: str, error: Refusal) -> bool:
        """As :meth:`end` of a job that fails for want of room, where the disk is full of what it stored."""
        return self._storage.freeing(lambda: self.end(job, FAILED, error))

    def end_step(self, begun: Begun, error: Refusal | None = None, made: Outputs = NOTHING) -> tuple[int | None, bool]:
        """Record that a trace of a whole job is done, or cannot be converted.

        Returns:
            How many traces have ended, None if the record does not count (the job may have ended in the meantime); and
            whether the job has failed because all traces failed.
        """
        assert begun.step
        with self._storage.changing(begun.id) as db:
            counts = parts.end(db, begun.id, begun.step, begun.attempt, _text_of(error), made)
            why = parts.first_error(db, begun.id) if counts is not None else None
            failed = bool(why) and self._end(db, begun.id, FAILED, why)
        return counts, failed

    def _end(self, db: Database, job: str, state: int, error: bytes | None, attempt: str = "") -> bool:
        progress = self._progress[job].SerializeToString() if job in self._progress else None
        ours, last = (" AND attempt = ?", [attempt]) if attempt else ("", [])
        change = "state = ?, error = ?, progress = COALESCE(?, progress), ended_ns = ?"
        values = (state, error, progress, now_ns(), job, QUEUED, RUNNING, *last)
        query = f"UPDATE jobs SET {change} WHERE id = ? AND state IN (?, ?){ours}"  # noqa: S608 - our own texts
        ended = bool(db.execute(query, values).rowcount)
        if ended:
            parts.close(db, job)
            _count_ended(db, job)
        return ended

    def spend(self, spent: Mapping[str, float]) -> None:
        """Count the CPU time, in seconds, that jobs of each client took; forget what is older than is asked for."""
        with self._storage.writing() as db:
            db.execute("DELETE FROM spent WHERE hour < ?", (_hour() - _HOURS,))
            rows = [(client, _hour(), round(1000 * seconds)) for client, seconds in spent.items()]
            db.executemany(f"INSERT INTO spent VALUES (?, ?, 0, ?) {_ADDED}", rows)  # noqa: S608

    def spent(self) -> dict[str, tuple[int, float]]:
        """Of each client how many of its jobs ended within the last day, and how many seconds of CPU they took."""
        query = "SELECT client, SUM(jobs) AS jobs, SUM(cpu_ms) AS ms FROM spent WHERE hour > ? GROUP BY client"
        rows = self._storage.rows(query, _hour() - _HOURS)
        return {row["client"]: (int(row["jobs"]), int(row["ms"]) / 1000) for row in rows}

    def unfinished(self) -> dict[tuple[str, str], int]:
        """The number of waiting and of running jobs of each client, by client and state."""
        query = "SELECT client, state, COUNT(*) AS count FROM jobs WHERE state IN (?, ?) GROUP BY client, state"
        return {
            (row["client"], state_name(row["state"])): row["count"]
            for row in self._storage.rows(query, QUEUED, RUNNING)
        }

    def cancel_waiting(self, job: str) -> bool:
        """Cancel a job that waits, has several steps, or runs in another server; False for other jobs."""
        waits = "state = ? OR (state = ? AND (server != ? OR id IN (SELECT job FROM wholes)))"
        with self._storage.changing(job) as db:
            change = f"UPDATE jobs SET state = ?, ended_ns = ?, attempt = '' WHERE id = ? AND ({waits})"  # noqa: S608
            values = (CANCELLED, now_ns(), job, QUEUED, RUNNING, self._storage.catalog.server)
            cancelled = bool(db.execute(change, values).rowcount)
            if cancelled:
                parts.close(db, job)
                _count_ended(db, job)
        return cancelled

    def is_ours(self, begun: Begun) -> bool:
        """Whether an attempt goes on: its job was not cancelled, nor another attempt begun."""
        ours = "state = ? AND attempt = ?"
        values = (RUNNING, begun.attempt, begun.id)
        if begun.step:
            query = f"SELECT 1 FROM parts WHERE {ours} AND job = ? AND position = ?"  # noqa: S608
            return self._storage.row(query, *values, begun.step.number) is not None
        return self._storage.row(f"SELECT 1 FROM jobs WHERE {ours} AND id = ?", *values) is not None  # noqa: S608

    def save_progress(self, job: str) -> None:
        """Let other servers see how far a job is."""
        if progress := self._progress.get(job):  # it may end meanwhile
            change = "UPDATE jobs SET progress = ? WHERE id = ? AND state = ?"
            with self._storage.catalog.taking() as db:
                db.execute(change, (progress.SerializeToString(), job, RUNNING))

    def forget(self, job: str) -> None:
        """Take the progress of a job from the catalog: this server does not work on it any more."""
        self._progress.pop(job, None)

    def tell(self, job: str, progress: v1.Progress) -> None:
        """Register the progress of a job; ``progress`` may change later, and is copied on each read."""
        self._progress[job] = progress

    def by_state(self) -> dict[str, int]:
        """The number of jobs in each state."""
        rows = self._storage.rows("SELECT state, COUNT(*) AS count FROM jobs GROUP BY state")
        counts = {row["state"]: row["count"] for row in rows}
        return {state_name(state): counts.get(state, 0) for state in (QUEUED, RUNNING, *FINAL)}

    def _message(self, row: Row, *, basic: bool = False) -> v1.Job:
        made = v1.Job(
            name=_name_of(row),
            creator=row["creator"],
            state=row["state"],
            progress=None if row["state"] in FINAL else self._progress.get(row["id"]),
            error=v1.JobError.FromString(row["error"]) if row["error"] else None,
            attempt_count=row["attempts"],
        )
        if row["progress"] and not made.HasField("progress"):
            made.progress.ParseFromString(row["progress"])
        if basic:
            if made.HasField("progress"):
                made.progress.ClearField("stages")
            if row["state"] == SUCCEEDED:
                count = self._storage.row("SELECT COUNT(*) AS count FROM artifacts WHERE job = ?", row["id"])
                made.artifact_count = count["count"] if count else 0
        else:
            made.spec.ParseFromString(row["spec"])
            made.artifacts.extend(self._artifacts(row) if row["state"] == SUCCEEDED else ())
            made.failures.extend(self._failures(row["id"]) if row["state"] in FINAL else ())
            made.notes.extend(self._notes(row["id"]) if row["state"] == SUCCEEDED else ())
            made.artifact_count = len(made.artifacts)
        Card.of(row).tell(made)
        made.create_time.FromNanoseconds(row["created_ns"])
        times = (row[name] for name in ("created_ns", "queued_ns", "started_ns", "ended_ns", "changed_ns"))
        made.update_time.FromNanoseconds(max(time for time in times if time))
        if row["started_ns"]:
            made.start_time.FromNanoseconds(row["started_ns"])
        if row["ended_ns"]:
            made.end_time.FromNanoseconds(row["ended_ns"])
            made.expire_time.FromNanoseconds(row["ended_ns"] + int(self._limits.artifact_life_s * 1e9))
        return made


def _hour() -> int:
    return now_ns() // (3600 * 10**9)


def _count_ended(db: Database, job: str) -> None:
    """Count a job that has ended."""
    db.execute(f"INSERT INTO spent SELECT client, ?, 1, 0 FROM jobs WHERE id = ? {_ADDED}", (_hour(), job))  # noqa: S608


def _called(spec: v1.JobSpec, traces: Sequence[Given]) -> str:
    """The name, in messages, of a job of several traces or of earlier jobs."""
    if spec.WhichOneof("kind") == "job":
        return spec.job.name or "job"
    return traces[0].file_name if traces else ""


def _text_of(error: Refusal | None) -> bytes | None:
    if error is None:
        return None
    metadata = dict(error.metadata)
    said = v1.JobError(code=error.code_number, reason=error.reason, message=error.message, metadata=metadata)
    return said.SerializeToString()


def _with_request(db: Database, caller: Caller, request_id: str) -> Row | None:
    query = "SELECT * FROM jobs WHERE realm = ? AND request_id = ?"
    row: Row | None = db.execute(query, (caller.realm, request_id)).fetchone()
    return row


def _name_of(row: Row) -> str:
    return f"{prefix_of(row['realm'])}jobs/{row['id']}"


def _artifact(job: str, row: Row) -> v1.Artifact:
    name = row["file_name"]
    kind = next((kind for ending, kind in _MEDIA_TYPES.items() if name.endswith(ending)), "application/octet-stream")
    place = f"{job}/artifacts/{name}"
    return v1.Artifact(name=place, file_name=name, size_bytes=row["size"], sha256=row["sha256"], media_type=kind)


def _marks(values: Sequence[object]) -> str:
    return ", ".join("?" * len(values))
