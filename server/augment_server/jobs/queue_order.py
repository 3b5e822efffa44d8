"""The order of waiting jobs.

The next job belongs to the client with the fewest running jobs; among equals, to the one whose last turn is longest
ago, or that had none and whose oldest job came first. So clients take turns even on one worker. Among the jobs of one
client, priorities decide: each level counts as a minute of waiting. So priorities give no advantage over other clients,
and no job waits forever behind more urgent ones. If a client has waited for a minute and no job of its own runs, the
newest one of a client with more than an equal share of the workers is queued again.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

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
WITH busy AS ({_BUSY}), lines AS (
    SELECT client, MIN(number) AS first FROM jobs LEFT JOIN wholes ON wholes.job = jobs.id
    WHERE {_WAITS} GROUP BY client), turns AS (
    SELECT lines.client, first, COALESCE(running, 0) AS running, COALESCE(turn, 0) AS turn FROM lines
    LEFT JOIN busy ON busy.client = lines.client LEFT JOIN served ON served.client = lines.client)
SELECT jobs.* FROM jobs WHERE number = (
    SELECT jobs.number FROM turns JOIN jobs ON jobs.client = turns.client LEFT JOIN wholes ON wholes.job = jobs.id
    WHERE {_WAITS} ORDER BY turns.running, turns.turn, turns.first, jobs.due_ns, jobs.number LIMIT 1 {{skip}})"""  # noqa: S608
#: the clients of which jobs wait and none runs, and since when (ns)
WAITING = f"""
WITH busy AS ({_BUSY})
SELECT jobs.client, MIN(queued_ns) AS since FROM jobs
LEFT JOIN wholes ON wholes.job = jobs.id LEFT JOIN busy ON busy.client = jobs.client
WHERE {_WAITS} AND COALESCE(busy.running, 0) = 0
GROUP BY jobs.client"""  # noqa: S608
#: of each client with waiting jobs how many they are, and what decides about its turns
_LINES = f"""
WITH busy AS ({_BUSY}), lines AS (
    SELECT client, COUNT(*) AS count, MIN(number) AS first FROM jobs WHERE state = {_QUEUED} GROUP BY client)
SELECT lines.client, count, COALESCE(running, 0) AS running, COALESCE(turn, 0) AS turn, first FROM lines
LEFT JOIN busy ON busy.client = lines.client LEFT JOIN served ON served.client = lines.client"""  # noqa: S608
#: a column of a job's row: of one that waits, how many waiting jobs of its client come before it
AHEAD = f"""
CASE WHEN state = {_QUEUED} THEN (
    SELECT COUNT(*) FROM jobs AS other WHERE other.state = {_QUEUED} AND other.client = jobs.client
    AND (other.due_ns, other.number) < (jobs.due_ns, jobs.number)) END AS ahead"""  # noqa: S608


def serve(db: Database, client: str) -> None:
    """Remember that a client has its turn."""
    change = "INSERT INTO served VALUES (?, ?) ON CONFLICT (client) DO UPDATE SET turn = excluded.turn"
    db.execute(change, (client, time.time_ns()))


_Key = tuple[int, int, int]  #: of a client: the number of its running jobs, negative; its last turn; its lowest number


@dataclass(frozen=True, slots=True)
class _Lines:
    """The clients with waiting jobs. Of equal turns, that of the least key is first."""

    keys: Mapping[str, _Key]
    alike: Mapping[tuple[int, int], list[_Key]]  #: the keys, in order, by how many jobs wait and the key's first number


class Turns:
    """The places of waiting jobs: those at which :data:`NEXT` takes them if none is added and no running job ends.

    The turn of a client's first job comes when other clients have as many running jobs as this client, that of its
    second when they have one more. Of equal turns, those are first that are their clients' first. May be used from any
    thread.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage, self._asking = storage, threading.Lock()
        self._known: tuple[object, _Lines] = (None, _Lines({}, {}))

    def place(self, client: str, ahead: int) -> int:
        """The place, from 1, of a job of a client with so many of its own before it; 0 if none of its jobs waits."""
        with self._asking:  # the others that wait for the lines get the same
            known, lines = self._known
            if known != (version := self._storage.catalog.version()):
                lines = self._lines()
                self._known = (version, lines)
        if client not in lines.keys:
            return 0
        key, place = lines.keys[client], 1
        for (count, busy), keys in lines.alike.items():
            earlier = ahead - key[0] + busy  # how many jobs of each of these clients have an earlier turn
            if earlier >= 0:
                place += len(keys) * min(earlier, count)
                place += bisect_left(keys, key) if earlier < count else 0  # of whose next jobs the turn is the same
        return place

    def _lines(self) -> _Lines:
        keys, alike = dict[str, _Key](), defaultdict[tuple[int, int], list[_Key]](list)
        for client, count, running, turn, first in self._storage.rows(_LINES):
            keys[client] = (-running, turn, first)
            alike[count, -running].append(keys[client])
        return _Lines(keys, {group: sorted(of) for group, of in alike.items()})
