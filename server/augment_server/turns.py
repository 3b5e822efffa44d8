"""The order of waiting jobs.

The next job belongs to the client with the fewest running jobs; among equals, to the client whose oldest job came
first. Among the jobs of one client, priorities decide: each level counts as a minute of waiting. So priorities give no
advantage over other clients, and no job waits forever behind more urgent ones.
"""

from __future__ import annotations

from augment.v1 import resources_pb2 as v1
from augment_server.storage import Storage

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
#: the order in which NEXT takes the waiting jobs if none is added and no running job ends: the turn of a client's first
#: job comes when other clients have as many running jobs as this client, that of its second when they have one more
_PLACES = f"""
WITH busy AS ({_BUSY}), waiting AS (
    SELECT jobs.id, jobs.client,
        COALESCE(busy.running, 0) + ROW_NUMBER() OVER (PARTITION BY jobs.client ORDER BY due_ns, number) AS turn,
        MIN(number) OVER (PARTITION BY jobs.client ORDER BY due_ns DESC, number DESC) AS first
    FROM jobs LEFT JOIN busy ON busy.client = jobs.client WHERE state = {_QUEUED}),
placed AS (SELECT id, client, ROW_NUMBER() OVER (ORDER BY turn, first) AS place FROM waiting)
SELECT id, place FROM placed WHERE client = (SELECT client FROM jobs WHERE id = ?)"""  # noqa: S608


def places(storage: Storage, job: str) -> dict[str, int]:
    """The places, from 1, in the queue of all clients, of the waiting jobs of the client of ``job``."""
    return {row["id"]: row["place"] for row in storage.rows(_PLACES, job)}
