"""A real PostgreSQL for tests: made by ``initdb`` in a folder, with a port of its own, as user postgres."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from machine import free_ports

PATIENCE_S = 300.0


def programs() -> str:
    """The folder of PostgreSQL's programs; skips the test without one."""
    there = [os.path.dirname(path) for path in glob.glob("/usr/lib/postgresql/*/bin/initdb")]
    there += [os.path.dirname(path) for path in [shutil.which("initdb")] if path]
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    if not there:
        pytest.skip("PostgreSQL is not installed")
    return max(there, key=lambda folder: [int(part) for part in folder.split("/") if part.isdigit()])


class Cluster:
    """A running PostgreSQL."""

    def __init__(self, folder: Path) -> None:
        self._programs, self._folder = programs(), folder
        (self.port,) = free_ports(1)
        self._user = None
        if os.geteuid() == 0:
            try:
                self._user = pwd.getpwnam("postgres")
            except KeyError:
                pytest.skip("PostgreSQL does not run as root, and there is no user postgres")
            os.chown(folder, self._user.pw_uid, self._user.pw_gid)
        options = ["-A", "trust", "-E", "UTF8", "--locale", "C", "--no-sync", "-U", "postgres"]
        self._run("initdb", "-D", str(folder / "data"), *options)
        self.start()

    def _run(self, program: str, *args: str) -> None:
        command = [os.path.join(self._programs, program), *args]
        if self._user:  # not by subprocess, which then forks: gRPC's threads do not survive that
            command = ["runuser", "-u", self._user.pw_name, "--", *command]
        subprocess.run(command, check=True, capture_output=True, cwd=self._folder, timeout=PATIENCE_S)

    def start(self) -> None:
        """Start it, on the same port."""
        options = f"-p {self.port} -k '' -c listen_addresses=127.0.0.1 -c max_connections=200"
        log = str(self._folder / "log")
        until = time.monotonic() + PATIENCE_S
        while True:
            try:
                self._run("pg_ctl", "-D", str(self._folder / "data"), "-o", options, "-l", log, "-w", "start")
                return
            except subprocess.CalledProcessError as error:  # what was killed has not quite ended
                said = error.stderr.decode() + (self._folder / "log").read_text()[-1000:]
                if time.monotonic() > until:
                    raise AssertionError(said) from error
            time.sleep(0.2)

    def pids(self) -> list[int]:
        """Its processes, the first one first."""
        pid = int((self._folder / "data" / "postmaster.pid").read_text().split()[0])
        return [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]

    def kill(self) -> None:
        """End it at once, without a word."""
        pids = self.pids()
        for each in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        for each in pids:
            while Path(f"/proc/{each}/stat").exists() and " Z " not in Path(f"/proc/{each}/stat").read_text():
                pass

    def back_up_and_restore(self) -> None:
        """Dump the database, make it anew, and restore it."""
        where, dump = ["-h", "127.0.0.1", "-p", str(self.port), "-U", "postgres"], str(self._folder / "dump")
        self._run("pg_dump", *where, "-f", dump, "postgres")
        self._run("dropdb", "--force", *where, "--maintenance-db", "template1", "postgres")
        self._run("createdb", *where, "--maintenance-db", "template1", "postgres")
        self._run("psql", *where, "-v", "ON_ERROR_STOP=1", "-q", "-f", dump, "postgres")

    def stop(self) -> None:
        """End it."""
        self._run("pg_ctl", "-D", str(self._folder / "data"), "-m", "immediate", "-w", "stop")

    def url(self, name: str | Path) -> str:
        """The URL of a catalog of this name: a schema of its own, made when it is first asked for."""
        import psycopg

        schema = "s" + hashlib.sha256(str(name).encode()).hexdigest()[:20]
        base = f"postgresql://postgres@127.0.0.1:{self.port}/postgres"
        with psycopg.connect(base, autocommit=True) as connection:
            connection.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}".encode())
        return f"{base}?options={quote(f'-csearch_path={schema}')}"


@contextlib.contextmanager
def cluster() -> Iterator[Cluster]:
    """A running PostgreSQL, removed at the end."""
    with tempfile.TemporaryDirectory(prefix="postgres") as folder:
        os.chmod(folder, 0o755)
        made = Cluster(Path(folder))
        try:
            yield made
        finally:
            with contextlib.suppress(subprocess.CalledProcessError):
                made.stop()
