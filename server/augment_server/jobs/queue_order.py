"""The order of waiting jobs.

The next job belongs to the client with the fewest running jobs; among equals, to the client whose oldest job came
first. Among the jobs of one client, priorities decide: each level counts as a minute of waiting. So priorities give no
advantage over other clients, and no job waits forever behind more urgent ones. If a client has waited for a minute
and no job of its own runs, the newest one of a client with more than an equal share of the workers is queued again.
"""

from __future__ import annotations

import sqlite3
import threading
from bisect import bisect_left
from collections.abc import Iterable, Mapping

from augment.v1 import resources_pb2 as v1
from augment_server.storage.storage import Storage

_QUEUED, _RUNNING = int(v1.Job.STATE_QUEUED), int(v1.Job.STATE_RUNNING)
#: the number of running jobs, or traces of whole jobs, of each client
_BUSY = f"""
SELECT client, TOTAL(COALESCE(wholes.running, 1)) AS running FROM jobs LEFT JOIN wholes ON wholes.job = jobs.id
WHERE state = {_RUNNING} GROUP BY client"""  # noqa: S608 - our own numbers
NEXT = f"""
WITH busy AS ({_BUSY}), waiting AS (
    SELECT jobs.number, jobs.client, due_ns, MIN(jobs.number) OVER (PARTITION BY jobs.client) AS first
    FROM jobs LEFT JOIN wholes ON wholes.job = jobs.id
    WHERE state = {_QUEUED} OR (state = {_RUNNING} AND ready > 0))
SELECT jobs.* FROM jobs WHERE number = (
    SELECT waiting.number FROM waiting LEFT JOIN busy ON busy.client = waiting.client
    ORDER BY COALESCE(busy.running, 0), first, due_ns, waiting.number LIMIT 1)"""  # noqa: S608
#: the clients of which jobs wait and none runs, and since when (ns)
WAITING = f"""
WITH busy AS ({_BUSY})
SELECT jobs.client, MIN(queued_ns) AS since FROM jobs
LEFT JOIN wholes ON wholes.job = jobs.id LEFT JOIN busy ON busy.client = jobs.client
WHERE (state = {_QUEUED} OR (state = {_RUNNING} AND ready > 0)) AND COALESCE(busy.running, 0) = 0
GROUP BY jobs.client"""  # noqa: S608
#: notes each job that begins or ceases to wait, in the transaction in which it does
_FOLLOWED = f"""
PRAGMA temp_store = MEMORY;
CREATE TEMP TABLE turned (client TEXT, due_ns INTEGER, number INTEGER, waits INTEGER);
CREATE TEMP TRIGGER turned_new AFTER INSERT ON main.jobs WHEN NEW.state = {_QUEUED} BEGIN
    INSERT INTO turned VALUES (NEW.client, NEW.due_ns, NEW.number, TRUE); END;
CREATE TEMP TRIGGER turned_other AFTER UPDATE OF state ON main.jobs
WHEN (OLD.state = {_QUEUED}) != (NEW.state = {_QUEUED}) BEGIN
    INSERT INTO turned VALUES (NEW.client, NEW.due_ns, NEW.number, NEW.state = {_QUEUED}); END;
CREATE TEMP TRIGGER turned_moved AFTER UPDATE OF due_ns ON main.jobs
WHEN OLD.state = {_QUEUED} AND NEW.state = {_QUEUED} AND OLD.due_ns != NEW.due_ns BEGIN
    INSERT INTO turned VALUES (OLD.client, OLD.due_ns, OLD.number, FALSE);
    INSERT INTO turned VALUES (NEW.client, NEW.due_ns, NEW.number, TRUE); END;
CREATE TEMP TRIGGER turned_gone AFTER DELETE ON main.jobs WHEN OLD.state = {_QUEUED} BEGIN
    INSERT INTO turned VALUES (OLD.client, OLD.due_ns, OLD.number, FALSE); END;
INSERT INTO turned SELECT client, due_ns, number, TRUE FROM main.jobs WHERE state = {_QUEUED};
"""  # noqa: S608 - our own numbers


class Turns:
    """The places of waiting jobs: those at which :data:`NEXT` takes them if none is added and no running job ends.

    The turn of a client's first job comes when other clients have as many running jobs as this client, that of its
    second when they have one more. The waiting jobs are kept in memory, as the last transaction left them: a place is
    found in the logarithm of their number, for each client that waits. May be used from any thread.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._lines: dict[str, _Line] = {}  # of each client with waiting jobs
        self._lock = threading.Lock()
        storage.follow(_FOLLOWED, self._changed)

    def _changed(self, db: sqlite3.Connection) -> None:
        """Take over what a transaction has changed."""
        changes = db.execute("SELECT * FROM turned ORDER BY rowid").fetchall()
        if not changes:
            return
        db.execute("DELETE FROM turned")
        with self._lock:
            for client, due_ns, number, waits in changes:
                line = self._lines.setdefault(client, _Line())
                (line.add if waits else line.remove)((due_ns, number))
                if not line.jobs:
                    del self._lines[client]

    def places(self, jobs: Iterable[str]) -> dict[str, int]:
        """The places, from 1, of jobs in the queue of all clients; without those that do not wait."""
        busy = {row["client"]: int(row["running"]) for row in self._storage.rows(_BUSY)}
        query = "SELECT client, due_ns, number FROM jobs WHERE id = ?"
        rows = [(job, row) for job in jobs if (row := self._storage.row(query, job))]
        with self._lock:
            answers = {job: self._place(row["client"], (row["due_ns"], row["number"]), busy) for job, row in rows}
        return {job: place for job, place in answers.items() if place}

    def _place(self, client: str, job: tuple[int, int], busy: Mapping[str, int]) -> int:
        """The place of a job; 0 if it does not wait."""
        line = self._lines.get(client, _NONE)
        at = bisect_left(line.jobs, job)
        if line.jobs[at : at + 1] != [job]:
            return 0
        turn, first, place = busy.get(client, 0) + at, line.first[at], 1
        for other, line in self._lines.items():
            ahead = turn - busy.get(other, 0)  # how many of its jobs have an earlier turn; the next one has the same
            if ahead >= 0:
                place += min(ahead, len(line.jobs)) + (ahead < len(line.jobs) and line.first[ahead] < first)
        return place


class _Line:
    """The waiting jobs of a client, by due time and number, in their order."""

    def __init__(self) -> None:
        self.jobs: list[tuple[int, int]] = []
        #: of each job the lowest number of itself and those after it, by which equal turns are ordered
        self.first: list[int] = []

    def add(self, job: tuple[int, int]) -> None:
        """Add a job."""
        at = bisect_left(self.jobs, job)
        self.jobs.insert(at, job)
        self.first.insert(at, 0)
        self._mend(at)

    def remove(self, job: tuple[int, int]) -> None:
        """Remove a job."""
        at = bisect_left(self.jobs, job)
        del self.jobs[at], self.first[at]
        self._mend(at - 1)

    def _mend(self, at: int) -> None:
        """Find the lowest numbers anew from ``at`` to the front, until one stays as it is."""
        while at >= 0:
            lowest = min([self.jobs[at][1], *self.first[at + 1 : at + 2]])
            if self.first[at] == lowest:
                return
            self.first[at] = lowest
            at -= 1


_NONE = _Line()
