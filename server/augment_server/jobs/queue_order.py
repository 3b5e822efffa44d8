"""The order of waiting jobs.

The next job belongs to the client with the fewest running jobs; among equals, to the one whose last turn is longest
ago, or that had none and whose oldest job came first. So clients take turns even on one worker. Among the jobs of one
client, priorities decide: each level counts as a minute of waiting. So priorities give no advantage over other clients,
and no job waits forever behind more urgent ones. If a client has waited for a minute and no job of its own runs, the
newest one of a client with more than an equal share of the workers is queued again.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from augment.v1 import resources_pb2 as v1
from augment_server.storage.catalog import Database
from augment_server.storage.storage import Storage

_QUEUED, _RUNNING = int(v1.Job.STATE_QUEUED), int(v1.Job.STATE_RUNNING)
#: the number of running jobs, or traces of whole jobs, of each client
_BUSY = f"""
SELECT client, SUM(COALESCE(wholes.running, 1)) AS running FROM jobs LEFT JOIN wholes ON wholes.job = jobs.id
WHERE state = {_RUNNING} GROUP BY client"""  # noqa: S608 - our own numbers
_WAITS = f"(state = {_QUEUED} OR (state = {_RUNNING} AND ready > 0))"
#: the job that is next; ``{skip}``: what passes over those that another server is taking
NEXT = f"""
WITH busy AS ({_BUSY}), waiting AS (
    SELECT jobs.number, MIN(jobs.number) OVER (PARTITION BY jobs.client) AS first
    FROM jobs LEFT JOIN wholes ON wholes.job = jobs.id WHERE {_WAITS})
SELECT jobs.* FROM jobs WHERE number = (
    SELECT jobs.number FROM jobs JOIN waiting ON waiting.number = jobs.number
    LEFT JOIN busy ON busy.client = jobs.client LEFT JOIN served ON served.client = jobs.client
    WHERE jobs.state IN ({_QUEUED}, {_RUNNING})
    ORDER BY COALESCE(busy.running, 0), COALESCE(served.turn, 0), waiting.first, jobs.due_ns, jobs.number
    LIMIT 1 {{skip}})"""  # noqa: S608
#: the clients of which jobs wait and none runs, and since when (ns)
WAITING = f"""
WITH busy AS ({_BUSY})
SELECT jobs.client, MIN(queued_ns) AS since FROM jobs
LEFT JOIN wholes ON wholes.job = jobs.id LEFT JOIN busy ON busy.client = jobs.client
WHERE {_WAITS} AND COALESCE(busy.running, 0) = 0
GROUP BY jobs.client"""  # noqa: S608
#: the turn of a client's first job comes when others have as many running ones as this client, that of its second when
#: they have one more; of equal turns, those are first that are their clients' first
_PLACES = f"""
WITH busy AS ({_BUSY}), waiting AS (
    SELECT id, client, ROW_NUMBER() OVER (PARTITION BY client ORDER BY due_ns, number) AS at,
           MIN(number) OVER (PARTITION BY client) AS first
    FROM jobs WHERE state = {_QUEUED})
SELECT id, ROW_NUMBER() OVER (
    ORDER BY at + COALESCE(running, 0), -COALESCE(running, 0), COALESCE(turn, 0), first) AS place
FROM waiting LEFT JOIN busy ON busy.client = waiting.client LEFT JOIN served ON served.client = waiting.client
"""  # noqa: S608


def serve(db: Database, client: str) -> None:
    """Remember that a client has its turn."""
    change = "INSERT INTO served VALUES (?, ?) ON CONFLICT (client) DO UPDATE SET turn = excluded.turn"
    db.execute(change, (client, time.time_ns()))


class Turns:
    """The places of waiting jobs: those at which :data:`NEXT` takes them if none is added and no running job ends.

    All are looked for together, once after each change. May be used from any thread.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._known: tuple[object, dict[str, int]] = (None, {})

    def places(self, jobs: Iterable[str]) -> dict[str, int]:
        """The places, from 1, of jobs in the queue of all clients; without those that do not wait."""
        version = self._storage.catalog.version()
        known, places = self._known
        if known != version:
            places = {row["id"]: row["place"] for row in self._storage.rows(_PLACES)}
            self._known = (version, places)
        return {job: places[job] for job in jobs if job in places}
