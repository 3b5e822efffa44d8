"""The steps of a whole job, in the database: the conversion of each trace, and a last step when all are done.

Any worker may run a step; each is begun, ended or repeated separately. The job runs from the start of its first step to
the end of its last.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from augment.v1 import resources_pb2 as v1
from augment_server.base.errors import Refusal
from augment_server.storage.catalog import Database, Row
from augment_server.storage.inputs import Given, Outputs, given_of
from augment_server.storage.storage import Storage

QUEUED, RUNNING = v1.Job.STATE_QUEUED, v1.Job.STATE_RUNNING
SUCCEEDED, FAILED = v1.Job.STATE_SUCCEEDED, v1.Job.STATE_FAILED
ROW_BYTES = 1024  #: approximate size of a trace of a job in the database, without what an earlier job has made for it
CONVERTING = "converting"  #: the stage of a whole job in which its traces are converted
_LAST = -1  #: the origin of the last step, which has no input


@dataclass(frozen=True, slots=True)
class Step:
    """A step: its number, the number of all steps, and how many had ended when it began."""

    number: int
    of: int
    ended: int
    attempts: int
    deaths: int

    @property
    def is_last(self) -> bool:
        """Whether this is the last step, after all conversions."""
        return self.number == self.of - 1


@dataclass(frozen=True, slots=True)
class Taken:
    """What the outputs for the converted traces of a whole job take."""

    bytes: int
    largest: int  #: bytes of one trace's
    traces: int  #: the converted ones
    running: int  #: those under way
    of: int  #: all


@dataclass(frozen=True, slots=True)
class Part:
    """A trace of a job, and whether its conversion has succeeded."""

    given: Given
    succeeded: bool


def insert(db: Database, job: str, traces: Sequence[Given], *, in_steps: bool) -> None:
    """Add the traces of a new job; ``in_steps``: each trace is converted in a step of its own."""
    made = [trace.made.text() if trace.source else "" for trace in traces]
    sizes = [ROW_BYTES + len(text) for text in made]
    rows = [
        (
            job,
            at,
            trace.origin,
            trace.file_name,
            trace.content,
            trace.uri,
            trace.source,
            made[at],
            SUCCEEDED if trace.source or not in_steps else QUEUED,
            0 if in_steps else sizes[at],
        )
        for at, trace in enumerate(traces)
    ]
    if in_steps:
        rows.append((job, len(traces), _LAST, "", "", "", "", "", QUEUED, sum(sizes)))
    columns = "job, position, origin, file_name, content, uri, source, made, state, bytes"
    db.executemany(f"INSERT INTO parts ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)  # noqa: S608
    if in_steps:
        waiting = sum(not trace.source for trace in traces)
        db.execute("INSERT INTO wholes VALUES (?, ?, 0)", (job, waiting or 1))


class Overtaken(Exception):
    """Another server has taken what this one was about to take."""


def begin(db: Database, job: str, server: str, attempt: str) -> Step | None:
    """Begin the next step; None if the job has no steps.

    Raises:
        Overtaken: none can begin any more.
    """
    whole = db.execute("SELECT ready FROM wholes WHERE job = ?", (job,)).fetchone()
    if whole is None:
        return None
    query = "SELECT * FROM parts WHERE job = ? AND state = ? ORDER BY position LIMIT 1"
    row = db.execute(query, (job, QUEUED)).fetchone() if whole["ready"] > 0 else None
    if row is None:
        raise Overtaken
    values = (RUNNING, server, attempt, job, row["position"])
    change = "state = ?, attempts = attempts + 1, server = ?, attempt = ?"
    db.execute(f"UPDATE parts SET {change} WHERE job = ? AND position = ?", values)  # noqa: S608
    db.execute("UPDATE wholes SET ready = ready - 1, running = running + 1 WHERE job = ?", (job,))
    counts = "SELECT COUNT(*), COUNT(*) FILTER (WHERE state IN (?, ?)) FROM parts WHERE job = ?"
    steps, ended = db.execute(counts, (SUCCEEDED, FAILED, job)).fetchone()
    return Step(row["position"], steps, ended, row["attempts"] + 1, row["deaths"])


def expect_room(db: Database, job: str, size: int, most: int) -> None:
    """Check that ``size`` more bytes of outputs for the traces of a job fit into ``most`` bytes for those of all jobs.

    If they do not, that counts against jobs with more than an equal share.

    Raises:
        Refusal: they do not, and this job has more.
    """
    open_jobs = "SELECT id FROM jobs WHERE state IN (?, ?)"
    query = f"SELECT job, SUM(bytes) FROM parts WHERE origin >= 0 AND job IN ({open_jobs}) GROUP BY job"  # noqa: S608
    taken = {row[0]: row[1] for row in db.execute(query, (QUEUED, RUNNING)) if row[1]}
    share = most // len({*taken, job})
    if sum(taken.values()) + size > most and taken.get(job, 0) + size > share:
        what = f"the outputs of running jobs take all of the {most} bytes that this server stores"
        raise Refusal("STORAGE_FULL", what, retry_s=60)


def taken(storage: Storage, job: str) -> Taken:
    """What the converted traces of a job take."""
    query = (
        "SELECT COALESCE(SUM(bytes), 0), COALESCE(MAX(bytes), 0), COUNT(*) FILTER (WHERE bytes > 0),"
        " COUNT(*) FILTER (WHERE state = ?), COUNT(*) FROM parts WHERE job = ? AND origin >= 0"
    )
    row = storage.row(query, RUNNING, job)
    assert row
    return Taken(*row)


def end(db: Database, job: str, step: Step, attempt: str, error: bytes | None, made: Outputs) -> int | None:
    """Record that a trace is done, or cannot be converted; returns how many have ended.

    None, without a change, if its job has ended, or another attempt at the step was begun.
    """
    values = (FAILED if error else SUCCEEDED, error, made.text(), sum(file.size for file in made.files))
    ours = "job = ? AND position = ? AND state = ? AND attempt = ?"
    change = f"UPDATE parts SET state = ?, error = ?, made = ?, bytes = ? WHERE {ours}"  # noqa: S608
    ended = db.execute(change, (*values, job, step.number, RUNNING, attempt)).rowcount
    left = "SELECT COUNT(*) FROM parts WHERE job = ? AND origin >= 0 AND state IN (?, ?)"
    waiting = db.execute(left, (job, QUEUED, RUNNING)).fetchone()[0]
    if ended:
        change = "UPDATE wholes SET running = running - 1, ready = ready + ? WHERE job = ?"
        db.execute(change, (int(not waiting), job))
        count_converted(db, job, step, step.of - 1 - int(waiting))
    elif not db.execute(f"SELECT 1 FROM parts WHERE {ours}", (job, step.number, values[0], attempt)).fetchone():  # noqa: S608
        return None  # else it was recorded, and only the answer was lost
    return step.of - 1 - int(waiting)


def count_converted(db: Database, job: str, step: Step, count: int) -> None:
    """Let all servers see how many traces of a whole job are converted."""
    progress = v1.Progress(stage=CONVERTING, done_count=count, total_count=step.of).SerializeToString()
    db.execute("UPDATE jobs SET progress = ? WHERE id = ?", (progress, job))


def fail(db: Database, job: str, number: int, error: bytes | None) -> None:
    """Record that a trace cannot be read, and that the job used the others."""
    db.execute("UPDATE parts SET state = ?, error = ? WHERE job = ? AND position = ?", (FAILED, error, job, number))


def note(db: Database, job: str, made: Outputs) -> None:
    """Store the remarks on the outputs of a whole job's last step."""
    said = Outputs(notes=made.notes).text()
    change = "UPDATE parts SET made = ?, bytes = bytes + ? WHERE job = ? AND origin = ?"
    db.execute(change, (said, len(said.encode()), job, _LAST))


def notes_of(rows: Sequence[Row]) -> tuple[str, ...]:
    """The remarks, from the row of the last step."""
    return Outputs.of(rows[0]["made"]).notes if rows else ()


def first_error(db: Database, job: str) -> bytes | None:
    """The first trace's error if all traces failed; else None."""
    query = "SELECT 1 FROM parts WHERE job = ? AND origin >= 0 AND state != ? LIMIT 1"
    if db.execute(query, (job, FAILED)).fetchone():
        return None
    row = db.execute("SELECT error FROM parts WHERE job = ? ORDER BY position LIMIT 1", (job,)).fetchone()
    return bytes(row["error"])


def queue_again(db: Database, job: str, number: int, attempt: str, *, died: bool, yielded: bool) -> None:
    """Put a step that was running back into the queue; if it has ``yielded``, the attempt does not count."""
    counts, ours = "deaths = deaths + ?, attempts = attempts - ?", "state = ? AND attempt = ?"
    change = f"UPDATE parts SET state = ?, {counts} WHERE job = ? AND position = ? AND {ours}"  # noqa: S608
    if db.execute(change, (QUEUED, int(died), int(yielded), job, number, RUNNING, attempt)).rowcount:
        db.execute("UPDATE wholes SET ready = ready + 1, running = running - 1 WHERE job = ?", (job,))


def close(db: Database, job: str) -> None:
    """End the steps of an ended job: none waits or runs, and none has files in ``ranks/``."""
    of_steps = "job = ? AND job IN (SELECT job FROM wholes)"
    db.execute(f"UPDATE parts SET bytes = 0 WHERE {of_steps} AND bytes != 0 AND origin >= 0", (job,))  # noqa: S608
    db.execute("UPDATE wholes SET ready = 0, running = 0 WHERE job = ?", (job,))
    db.execute("UPDATE parts SET state = ? WHERE job = ? AND state IN (?, ?)", (FAILED, job, QUEUED, RUNNING))


def recover(db: Database) -> None:
    """Steps that were interrupted by the end of their server wait again."""
    open_jobs = "state IN (?, ?) AND id IN (SELECT job FROM wholes)"
    lock = f"UPDATE jobs SET attempt = attempt WHERE {open_jobs}"  # noqa: S608 - what others do about them is counted
    db.execute(lock, (QUEUED, RUNNING))
    change = "UPDATE parts SET state = ?, attempt = '' WHERE state = ? AND server NOT IN (SELECT id FROM servers)"
    db.execute(change, (QUEUED, RUNNING))
    of_job = "FROM parts WHERE parts.job = wholes.job AND state"
    waiting = f"(SELECT COUNT(*) {of_job} = {QUEUED} AND origin >= 0)"
    last = f"(SELECT COUNT(*) {of_job} = {QUEUED})"
    converts = f"EXISTS (SELECT 1 {of_job} IN ({QUEUED}, {RUNNING}) AND origin >= 0)"
    ready = f"CASE WHEN {converts} THEN {waiting} ELSE {last} END"
    db.execute(f"UPDATE wholes SET running = (SELECT COUNT(*) {of_job} = {RUNNING}), ready = {ready}")  # noqa: S608


def trace_of(db: Database, job: str, number: int) -> Given:
    """The trace of a step."""
    return given_of(db.execute("SELECT * FROM parts WHERE job = ? AND position = ?", (job, number)).fetchone())


def rows_of(db: Database, job: str) -> list[Part]:
    """The traces of a job."""
    rows = db.execute("SELECT * FROM parts WHERE job = ? AND origin >= 0 ORDER BY position", (job,))
    return [Part(given_of(row), row["state"] == SUCCEEDED) for row in rows]


def failures(rows: Sequence[Row]) -> Iterator[v1.InputFailure]:
    """The failed traces, from rows with errors."""
    for row in rows:
        error = v1.JobError.FromString(row["error"])
        yield v1.InputFailure(index=row["origin"], file_name=row["file_name"], error=error)
