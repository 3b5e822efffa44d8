"""The order of waiting jobs.

The next job belongs to the client with the fewest running jobs; among equals, to the one whose last turn is longest
ago, or that had none and whose oldest job came first. So clients take turns even on one worker. Among the jobs of one
client, priorities decide: each level counts as a minute of waiting. So priorities give no advantage over other clients,
and no job waits forever behind more urgent ones. If a client has waited for a minute and no job of its own runs, the
newest one of a client with more than an equal share of the workers is queued again.
"""

from __future__ import annotations

import sqlite3
import threading
from bisect import bisect_left, insort
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
    LEFT JOIN temp.served ON served.client = waiting.client
    ORDER BY COALESCE(busy.running, 0), COALESCE(served.turn, 0), first, due_ns, waiting.number LIMIT 1)"""  # noqa: S608
_MOST_SERVED = 10_000  #: clients whose last turn is remembered
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
CREATE TEMP TABLE served (client TEXT PRIMARY KEY, turn INTEGER NOT NULL);
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
    second when they have one more. Of equal turns, those are first that are their clients' first. The waiting jobs are
    kept in memory, as the last transaction left them: a place is found in the logarithm of their number, for each
    client that waits. May be used from any thread.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._lines: dict[str, _Line] = {}  # of each client with waiting jobs
        self._served: dict[str, int] = {}  # the number of each client's last turn, as in the database
        self._turn = 0
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

    def serve(self, db: sqlite3.Connection, client: str) -> None:
        """Remember that a client has its turn."""
        with self._lock:
            self._turn += 1
            self._served.pop(client, None)
            self._served[client] = self._turn
            if len(self._served) > _MOST_SERVED:
                db.execute("DELETE FROM served WHERE client = ?", (first := next(iter(self._served)),))
                del self._served[first]
            db.execute("INSERT OR REPLACE INTO served VALUES (?, ?)", (client, self._turn))

    def places(self, jobs: Iterable[str]) -> dict[str, int]:
        """The places, from 1, of jobs in the queue of all clients; without those that do not wait."""
        busy = {row["client"]: int(row["running"]) for row in self._storage.rows(_BUSY)}
        query = "SELECT client, due_ns, number FROM jobs WHERE id = ?"
        rows = [(job, row) for job in jobs if (row := self._storage.row(query, job))]
        with self._lock:
            keys = {
                client: (-busy.get(client, 0), self._served.get(client, 0), line.numbers[0])
                for client, line in self._lines.items()
            }
            answers = {job: self._place(row["client"], (row["due_ns"], row["number"]), keys) for job, row in rows}
        return {job: place for job, place in answers.items() if place}

    def _place(self, client: str, job: tuple[int, int], keys: Mapping[str, tuple[int, int, int]]) -> int:
        """The place of a job; 0 if it does not wait.

        Args:
            keys: of each client the number of its running jobs, negative; its last turn, and its lowest waiting number:
                in their order clients have equal turns, now and later.
        """
        line = self._lines.get(client, _NONE)
        at = bisect_left(line.jobs, job)
        if line.jobs[at : at + 1] != [job]:
            return 0
        key, place = keys[client], 1
        for other, line in self._lines.items():
            ahead = at - key[0] + keys[other][0]  # how many of its jobs have an earlier turn; the next one has the same
            if ahead >= 0:
                place += min(ahead, len(line.jobs)) + (ahead < len(line.jobs) and keys[other] < key)
        return place


class _Line:
    """The waiting jobs of a client, by due time and number, in their order; and their numbers."""

    def __init__(self) -> None:
        self.jobs: list[tuple[int, int]] = []
        self.numbers: list[int] = []

    def add(self, job: tuple[int, int]) -> None:
        """Add a job."""
        insort(self.jobs, job)
        insort(self.numbers, job[1])

    def remove(self, job: tuple[int, int]) -> None:
        """Remove a job."""
        del self.jobs[bisect_left(self.jobs, job)]
        del self.numbers[bisect_left(self.numbers, job[1])]


_NONE = _Line()
