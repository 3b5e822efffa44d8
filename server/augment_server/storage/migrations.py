"""Columns and tables that later versions added to the state directory's database; earlier versions ignore them."""

from __future__ import annotations

import sqlite3

_ADDED = {
    "jobs": {
        "display_name": "TEXT NOT NULL DEFAULT ''",
        "labels": "TEXT NOT NULL DEFAULT '{}'",  # JSON
        "priority": "INTEGER NOT NULL DEFAULT 0",
        "deadline_ms": "INTEGER",
        "due_ns": "INTEGER NOT NULL DEFAULT 0",  # created_ns, earlier for each level of priority
    }
}
_TABLES = """
CREATE INDEX IF NOT EXISTS jobs_waiting ON jobs (client, due_ns, number) WHERE state = 1;  -- STATE_QUEUED
CREATE TABLE IF NOT EXISTS requests (  -- that have been answered
    realm TEXT NOT NULL,
    method TEXT NOT NULL,
    request_id TEXT NOT NULL,
    text BLOB NOT NULL,
    resource TEXT NOT NULL,
    at_ns INTEGER NOT NULL,
    PRIMARY KEY (realm, method, request_id)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS secrets (name TEXT PRIMARY KEY, value BLOB NOT NULL);
INSERT OR IGNORE INTO secrets VALUES ('pages', randomblob(32));
"""


def complete(database: sqlite3.Connection) -> None:
    """Add the missing columns and tables."""
    for table, columns in _ADDED.items():
        there = {row[1] for row in database.execute(f"PRAGMA table_info({table})")}
        for name, kind in columns.items():
            if name not in there:
                database.execute(f"ALTER TABLE {table} ADD COLUMN {name} {kind}")
    database.executescript(_TABLES)


def secret(database: sqlite3.Connection) -> bytes:
    """The key of this state directory's page tokens."""
    (value,) = database.execute("SELECT value FROM secrets WHERE name = 'pages'").fetchone()
    return bytes(value)
