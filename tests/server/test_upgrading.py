"""A catalog of an earlier version: it is copied, then brought up to date as a whole, or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import in_process
import pytest
from in_process import serving, trace
from postgres_cluster import Cluster
from serving_process import environment

from augment.errors import AugmentError
from augment.v1 import resources_pb2 as v1
from augment.v1 import service_pb2 as calls
from augment_server.storage import catalog
from augment_server.storage.storage import Storage

KILLED = Path(__file__).with_name("killed_server.py")
pytestmark = pytest.mark.embedded
BACKUP, MODULE = "state.db.before-upgrade", "augment_server.storage.catalog"


def made(state: Path, path: Path) -> v1.Job:
    """A directory with a job that has succeeded."""
    with serving(state) as server:
        job = server.wait(server.create(server.upload(trace(path)), only=["kernel_type_breakdown"]).name)
        assert job.state == v1.Job.STATE_SUCCEEDED, job.error
        return server.stub.UpdateJob(calls.UpdateJobRequest(name=job.name, labels={"suite": "nightly"})).job


def earlier(state: Path) -> list[str]:
    """The database as a version before watches of lists left it; its content."""
    with contextlib.closing(sqlite3.connect(state / "state.db")) as database:
        for trigger in ("job_first", "job_next", "labels_more", "labels_other", "labels_less"):
            database.execute(f"DROP TRIGGER {trigger}")
        database.execute("DROP TABLE job_labels")
        database.execute("DROP INDEX jobs_by_version")
        database.execute("ALTER TABLE jobs DROP COLUMN version")
        database.execute("DROP TABLE versions")
        database.commit()
    return content(state / "state.db")


def content(path: Path) -> list[str]:
    """All statements that make a database, but the row of the server that uses it."""
    with contextlib.closing(sqlite3.connect(path)) as database:
        return [
            line for line in database.iterdump() if not line.startswith(('INSERT INTO "lease"', "INSERT INTO lease"))
        ]


def test_a_copy_is_left_beside_the_database(tmp_path: Path) -> None:
    state = tmp_path / "state"
    job = made(state, tmp_path / "a.json")
    assert not (state / BACKUP).exists()  # a new one needs none
    before = earlier(state)
    with serving(state) as server:
        assert server.get(job.name) == job
        (label,) = server.core._storage.rows("SELECT key, value FROM job_labels")
        assert tuple(label) == ("suite", "nightly")
        assert any(BACKUP in line for line in server.observer.logged)
    assert content(state / BACKUP) == before
    assert content(state / "state.db") != before
    (state / BACKUP).unlink()
    with serving(state):
        assert not (state / BACKUP).exists()  # it is up to date
    earlier(state)
    Storage(state).close()
    for name in ("state.db", "state.db-wal", "state.db-shm"):
        (state / name).unlink(missing_ok=True)
    os.rename(state / BACKUP, state / "state.db")  # as docs/deployment.md says
    with serving(state) as server:
        assert server.get(job.name) == job


def test_without_room_for_the_copy_nothing_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = tmp_path / "state"
    job = made(state, tmp_path / "a.json")
    before = earlier(state)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched, pytest.raises(AugmentError, match="No space left"):
        patched.setattr(catalog.os, "replace", full)
        Storage(state)
    assert content(state / "state.db") == before
    assert not list(state.glob(f"{BACKUP}*"))
    with serving(state) as server:
        assert server.get(job.name) == job


@pytest.mark.parametrize("place", ["back_up", "add_columns", "count_bytes"])
@pytest.mark.parametrize("moment", ["before", "after"])
def test_killed_at_any_moment(tmp_path: Path, place: str, moment: str) -> None:
    state = tmp_path / "state"
    job = made(state, tmp_path / "a.json")
    before = earlier(state)
    command = ["serve", "--state-dir", str(state), "--listen", "127.0.0.1:0"]
    args = [sys.executable, str(KILLED), f"{MODULE}:{place}", moment, "1", *command]
    assert subprocess.run(args, env=environment(), capture_output=True).returncode == -9
    assert content(state / "state.db") == before
    with serving(state) as server:
        assert server.get(job.name) == job
    assert content(state / BACKUP) == before


def test_postgresql_is_upgraded_in_one_transaction(
    tmp_path: Path, postgres: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy of it is for pg_dump, before."""
    psycopg = pytest.importorskip("psycopg")
    from augment_server.storage import postgres as module

    url = postgres.url
    monkeypatch.setattr(in_process, "catalog_of", url)
    job = made(tmp_path / "state", tmp_path / "a.json")
    with psycopg.connect(url(tmp_path / "state")) as database:
        database.execute("DROP TRIGGER job_first ON jobs")
        database.execute("ALTER TABLE jobs DROP COLUMN version")
        database.execute("DELETE FROM secrets WHERE name = 'tables'")

    def broken(_: object) -> None:
        raise AugmentError("it ends here")

    def has_column() -> bool:
        query = "SELECT 1 FROM pg_attribute WHERE attrelid = to_regclass('jobs') AND attname = 'version'"
        with psycopg.connect(url(tmp_path / "state")) as database:
            return database.execute(query).fetchone() is not None

    with monkeypatch.context() as patched, pytest.raises(AugmentError, match="it ends here"):
        patched.setattr(module, "count_bytes", broken)
        Storage(tmp_path / "state", catalog=url(tmp_path / "state"))
    assert not has_column()
    with serving(tmp_path / "state") as server:
        assert server.get(job.name) == job
    assert has_column()
