"""``augment serve`` in a process of its own, as operators start it."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from augment import cli

ROOT = Path(__file__).parents[2]
FOLDERS = (ROOT, ROOT / "server", ROOT / "tests" / "support")
PATIENCE_S = 300.0  #: with what must come: a machine may be busy with much else
AUGMENT = ("-m", "augment")


def environment(**more: str) -> dict[str, str]:
    """For a process that finds augment and the service."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, FOLDERS)), **more}


def augment(*args: object, **more: str) -> subprocess.CompletedProcess[str]:
    """``augment ARGS…``, to its end: in this process unless it serves, or in an environment of its own."""
    words = list(map(str, args))
    if words[0] in ("serve", "work") or more:
        command = [sys.executable, "-m", "augment", *words]
        env = environment(**more)
        return subprocess.run(command, capture_output=True, encoding="utf-8", env=env, timeout=PATIENCE_S)
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8") for _ in range(2))
    streams = contextlib.redirect_stdout(out), contextlib.redirect_stderr(err)
    with mock.patch.object(sys, "argv", ["augment", *words]), streams[0], streams[1]:
        code = cli.main()
    texts = [stream.detach().getvalue().decode() for stream in (out, err) if not stream.flush()]
    return subprocess.CompletedProcess(words, code, *texts)


class Ended(AssertionError):
    """A server has ended before it listened."""


class Server:
    """A server under way; ``address`` is where it listens, ``metrics`` its page of figures, ``http`` its other face."""

    def __init__(
        self, state: Path, *flags: object, listen: str = "127.0.0.1:0", program: Sequence[object] = AUGMENT
    ) -> None:
        self._begin(program, "serve", "--listen", listen, "--state-dir", state, "--max-running-jobs", 1, *flags)
        self.address = self._told("listening on ")
        self.metrics = self._told("metrics on ") if "--metrics-listen" in flags else ""
        self.http = self._told("http on ") if "--http" in flags else ""

    def _begin(self, program: Sequence[object], name: str, *args: object) -> None:
        command = [sys.executable, *map(str, (*program, name, "--log-format", "json", *args))]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdout=pipe, stderr=pipe, encoding="utf-8", env=environment())
        self._errors: list[str] = []
        self._reader = threading.Thread(target=self._read_errors, daemon=True)
        self._reader.start()

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    @property
    def log(self) -> list[dict[str, Any]]:
        """What it has logged."""
        return [json.loads(line) for line in self._errors if line.startswith("{")]

    @property
    def errors(self) -> str:
        """All of stderr."""
        return "".join(self._errors)

    @property
    def workers(self) -> list[int]:
        """Its child processes, which do the work. Skips the test where the system does not tell."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        if not children.exists():
            pytest.skip("this system does not tell of children")
        return [int(pid) for pid in children.read_text().split()]

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Within, the workers that are there do not go on: a job that one of them gets is not done."""
        pids = self.workers
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def logged(self, message: str, **fields: str) -> dict[str, Any]:
        """The line that says ``message`` with these fields, which is waited for."""
        wanted = {"message": message, **fields}
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            for line in self.log:
                if wanted.items() <= line.items():
                    return line
            time.sleep(0.02)
        raise AssertionError(f"never said {message!r}:\n{self.errors}")

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def wait(self, timeout_s: float = PATIENCE_S) -> int:
        """Its exit code."""
        code = self.process.wait(timeout_s)
        self._reader.join(PATIENCE_S)
        return code

    def close(self) -> None:
        """Wait for its end, and let go of what it said."""
        self.wait()
        for pipe in (self.process.stdout, self.process.stderr):
            pipe.close()

    def _told(self, what: str) -> str:
        line = self.process.stdout.readline()
        if not line.startswith(what):
            if line:
                self.process.kill()
            self.close()
            raise Ended(f"instead of {what!r} it said {line!r}:\n{self.errors}")
        return line.removeprefix(what).strip()

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._errors.append(line)


class Worker(Server):
    """``augment work`` under way."""

    def __init__(self, *flags: object, program: Sequence[object] = AUGMENT) -> None:
        self._begin(program, "work", *flags)
        self._told("working")


@contextlib.contextmanager
def serving(state: Path, *flags: object, listen: str = "127.0.0.1:0") -> Iterator[Server]:
    """A server, ended at the end."""
    server = Server(state, *flags, listen=listen)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.process.kill()
        server.close()
