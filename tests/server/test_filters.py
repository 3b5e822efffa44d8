"""Filters and orders of lists, on a table, against what Python makes of the same entries."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import sqlite3
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from augment_server.base.errors import Refusal
from augment_server.jobs.jobs import FIELDS
from augment_server.storage.catalog import Database
from augment_server.storage.filters import condition_of, order_of

SECOND = 10**9
Job = dict[str, Any]


def entries() -> list[Job]:
    chance = random.Random(0)
    return [
        {
            "id": f"{number:04x}",
            "created_ns": (1_000_000 + chance.randrange(20)) * SECOND,
            "started_ns": chance.choice([None, (1_000_010 + chance.randrange(20)) * SECOND]),
            "ended_ns": None,
            "state": chance.randrange(1, 6),
            "display_name": chance.choice(["", "nightly", "nightly [2]", "Weekly?"]),
            "labels": json.dumps(chance.choice([{}, {"team": "infra"}, {"team": "ml", "run.id": "7"}])),
            "priority": chance.randrange(-3, 4),
        }
        for number in range(200)
    ]


ENTRIES = entries()


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def table(request: pytest.FixtureRequest) -> Iterator[Database]:
    columns = ", ".join(
        f"{name} {'TEXT' if isinstance(value, str) else 'INTEGER'}" for name, value in ENTRIES[0].items()
    )
    columns = columns.replace("ended_ns TEXT", "ended_ns INTEGER")
    with contextlib.ExitStack() as stack:
        database: Any = sqlite3.connect(":memory:")
        if request.param == "postgresql":
            url = request.getfixturevalue("postgres").url("filters")
            from augment_server.storage.postgres import opened

            database = stack.enter_context(stack.enter_context(contextlib.closing(opened(url))).reading())
        database.execute(f"CREATE TEMP TABLE jobs ({columns})")
        marks = ", ".join("?" * len(ENTRIES[0]))
        database.executemany(f"INSERT INTO jobs VALUES ({marks})", [tuple(entry.values()) for entry in ENTRIES])
        yield database


def ids_where(table: Database, text: str) -> set[str]:
    sql, values = condition_of(text, FIELDS)
    return {row[0] for row in table.execute(f"SELECT id FROM jobs WHERE {sql}", values)}


def label(key: str) -> Callable[[Job], str | None]:
    return lambda job: json.loads(job["labels"]).get(key)


def is_failed(job: Job) -> bool:
    return bool(job["state"] == 4)


def failed_of_0(job: Job) -> bool:
    return is_failed(job) and job["priority"] == 0


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", lambda job: True),
        ("  ", lambda job: True),
        ("state = SUCCEEDED", lambda job: job["state"] == 3),
        ('state="STATE_SUCCEEDED"', lambda job: job["state"] == 3),
        ("state != FAILED", lambda job: job["state"] != 4),
        ("NOT state = FAILED", lambda job: job["state"] != 4),
        ("-state = FAILED", lambda job: job["state"] != 4),
        ("state = QUEUED OR state = RUNNING", lambda job: job["state"] in (1, 2)),
        ('create_time >= "1970-01-12T13:46:45Z"', lambda job: job["created_ns"] >= 1_000_005 * SECOND),
        ('create_time > "9999-01-01T00:00:00Z"', lambda job: False),
        ('create_time > "0001-01-01T00:00:00Z"', lambda job: True),
        ("create_time<1970-01-12T14:46:45.5+01:00", lambda job: job["created_ns"] < 1_000_005.5 * SECOND),
        ("start_time < 2026-01-01T00:00:00Z", lambda job: job["started_ns"] is not None),
        ("NOT start_time < 2026-01-01T00:00:00Z", lambda job: job["started_ns"] is None),
        ("start_time != 1970-01-12T13:46:55Z", lambda job: job["started_ns"] != 1_000_015 * SECOND),
        ("display_name = nightly", lambda job: job["display_name"] == "nightly"),
        ("display_name = 'nightly*'", lambda job: job["display_name"].startswith("nightly")),
        ('display_name = "*[2]"', lambda job: job["display_name"].endswith("[2]")),
        ('display_name != "W*?"', lambda job: job["display_name"] != "Weekly?"),
        ('display_name : "[2"', lambda job: "[2" in job["display_name"]),
        ('display_name = ""', lambda job: job["display_name"] == ""),
        ('labels.team = "infra"', lambda job: label("team")(job) == "infra"),
        ("labels.team != infra", lambda job: label("team")(job) != "infra"),
        ("labels.team = *l", lambda job: label("team")(job) == "ml"),
        ("labels:team", lambda job: label("team")(job) is not None),
        ("labels.team:*", lambda job: label("team")(job) is not None),
        ("NOT labels:run.id", lambda job: label("run.id")(job) is None),
        ("labels.run.id = 7", lambda job: label("run.id")(job) == "7"),
        ("priority > -1 AND priority <= 2", lambda job: -1 < job["priority"] <= 2),
        # OR before AND, as AIP-160 has it
        ("state = FAILED AND priority = 0 OR priority = 1", lambda job: is_failed(job) and job["priority"] in (0, 1)),
        ("(state = FAILED AND priority=0) OR priority=1", lambda job: job["priority"] == 1 or failed_of_0(job)),
        ("NOT (state = FAILED OR priority < 0)", lambda job: job["state"] != 4 and job["priority"] >= 0),
    ],
)  # fmt: skip
def test_filters(table: Database, text: str, wanted: Callable[[Job], bool]) -> None:
    assert ids_where(table, text) == {job["id"] for job in ENTRIES if wanted(job)}


@pytest.mark.parametrize(
    "text",
    [
        "x = 1", "state", "state =", "= FAILED", "state = NOTHING", "state < FAILED", "state : FAILED",
        "(state = FAILED", "state = FAILED)", "state = FAILED AND", "state = FAILED state = FAILED",
        "create_time = yesterday",
        "create_time = 2026-13-01T00:00:00Z", "create_time = ٢٠٢٦-01-01T00:00:00Z",
        "create_time:*", "priority = x",
        "priority = 99999999999999999999", "labels = x", "labels.team < x", "labels.", "state.x = FAILED",
        'display_name = "x', "display_name = '****'", "a" * 1001, "(" * 9 + "state = FAILED" + ")" * 9,
        " AND ".join(["priority = 1"] * 21), "NOT NOT state = FAILED", "priority = 1; DROP TABLE jobs",
        "display_name = x' OR 1 = 1", "nightly", "all(state)", "\0", "- -state = FAILED",
    ],
)  # fmt: skip
def test_what_is_no_filter(text: str) -> None:
    with pytest.raises(Refusal, match=r"^filter: ") as refusal:
        condition_of(text, FIELDS)
    assert (refusal.value.reason, refusal.value.field_path) == ("INVALID_REQUEST", "filter")


def test_no_value_becomes_sql(table: Database) -> None:
    """Whatever characters a text has."""
    for text in ("'; DROP TABLE jobs; --", "?", "%", "\\", '"'):
        quoted = text.replace("\\", "\\\\").replace('"', '\\"')
        assert ids_where(table, f'display_name = "{quoted}"') == set()
        assert ids_where(table, f'display_name != "{quoted}"') == {job["id"] for job in ENTRIES}


@pytest.mark.parametrize(("text", "key"), [
    ("", lambda job: (-job["created_ns"],)),
    ("create_time", lambda job: (job["created_ns"],)),
    ("start_time desc", lambda job: (-(job["started_ns"] or 0), -job["created_ns"])),
    ("priority desc, start_time", lambda job: (-job["priority"], job["started_ns"] or 0, -job["created_ns"])),
    ("display_name asc,state desc", lambda job: (job["display_name"], -job["state"], -job["created_ns"])),
])  # fmt: skip
def test_orders(table: Database, text: str, key: Callable[[Job], Any]) -> None:
    """Page by page, each after the last entry of the one before."""
    order = order_of(text, FIELDS)
    wanted = sorted(sorted(ENTRIES, key=lambda job: job["id"], reverse=True), key=key)
    listed: list[str] = []
    after, values = "TRUE", list[Any]()
    for _ in itertools.count():
        query = f"SELECT id, {', '.join(order.columns)} FROM jobs WHERE {after} ORDER BY {order.sql} LIMIT 7"
        rows = table.execute(query, values).fetchall()
        if not rows:
            break
        listed += [row[0] for row in rows]
        after, values = order.after(rows[-1][1:])
    assert listed == [job["id"] for job in wanted]


@pytest.mark.parametrize("text", ["x", "labels", "state up", "state desc desc", ",", "state,", "a,b,c,d", "state; x"])
def test_what_is_no_order(text: str) -> None:
    with pytest.raises(Refusal, match=r"^order_by: "):
        order_of(text, FIELDS)
