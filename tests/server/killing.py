"""Fronts, workers, PostgreSQL and the store are killed at random moments, while clients have jobs done."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

import grpc
import psycopg
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from in_process import trace
from object_store import new_store, weed
from postgres_cluster import Cluster
from serving_process import Ended, Server, Worker, augment

from augment.v1 import resources_pb2 as v1
from augment.v1 import service_pb2 as calls
from augment.v1.service_pb2_grpc import AugmentServiceStub
from machine import free_ports

T = TypeVar("T")
PATIENCE_S = 240.0
CLIENTS, WORKERS = 4, 3
FINAL = (v1.Job.STATE_SUCCEEDED, v1.Job.STATE_FAILED, v1.Job.STATE_CANCELLED)
_STALL_S = 9.0  # beyond the lease of a worker
_LATE = "this attempt no longer counts"
_AWAY = ("UNAVAILABLE", "DEADLINE_EXCEEDED", "ABORTED")


@dataclass
class Tally:
    """What has come of it."""

    jobs: int
    kills: Counter[str] = field(default_factory=Counter)
    again: int = 0  #: attempts beyond the first
    refused: Counter[str] = field(default_factory=Counter)  #: calls, by reason; they were repeated
    lost: int = 0  #: accepted jobs that are not there, or not done; but those whose workers were killed twice
    twice: int = 0  #: jobs or artifacts beyond those asked for
    wrong: int = 0  #: jobs of which an artifact differs from the command's
    late: int = 0  #: ends of attempts that were refused, since another attempt had the job
    errors: list[str] = field(default_factory=list)  #: what ended a client
    seconds: float = 0.0


class Storm:
    """Two servers, in one folder; or, with ``ranks``, two fronts and three workers, with a store.

    Args:
        folder: for traces and state.
        catalog: for all.
        ranks: of each second job of a client, which is a whole job; the others are of one trace.
        seed: of the moments.
    """

    def __init__(self, folder: Path, catalog: Cluster, ranks: int, seed: int) -> None:
        self._folder, self._catalog, self._ranks, self._chance = folder, catalog, ranks, random.Random(seed)
        self._url = catalog.url("storm")
        flags = ["--catalog", self._url, "--max-job-attempts", 10_000]
        self._flags = [*flags, "--store", new_store()] if ranks else [*flags, "--max-running-jobs", 1]
        self._ports = free_ports(2)
        self._traces, self._wanted = {}, {}  # of each client
        for number in range(CLIENTS):
            here = folder / f"client{number}"
            self._traces[number] = [
                trace(here / "job" / f"rank{at}.json", 100 + at, f"k{number}") for at in range(ranks or 1)
            ]
            self._wanted[number] = [_of_command(path, here / f"out{at}") for at, path in enumerate(self._inputs(here))]
        self._servers = [self._server(port) for port in self._ports]
        self._workers = [self._worker() for _ in range(WORKERS if ranks else 0)]
        self._channels = [grpc.insecure_channel(f"127.0.0.1:{port}") for port in self._ports]
        self._stubs = [AugmentServiceStub(channel) for channel in self._channels]
        self._names: list[str] = []
        self._gone: list[Server] = []  # what was killed
        self._stalls: list[threading.Timer] = []

    def _inputs(self, folder: Path) -> list[Path]:
        return [folder / "job" / "rank0.json", *([folder / "job"] if self._ranks else [])]

    def _started(self, start: Callable[[], Server]) -> Server:
        while True:
            with contextlib.suppress(Ended):  # what it needs was killed meanwhile, or the port is not free yet
                return start()
            time.sleep(0.2)

    def _server(self, port: int) -> Server:
        state = self._folder / (f"state{port}" if self._ranks else "state")
        flags = [*self._flags, "--max-client-jobs", 10_000, *(["--role", "front"] if self._ranks else [])]
        return self._started(lambda: Server(state, *flags, listen=f"127.0.0.1:{port}"))

    def _worker(self) -> Server:
        return self._started(lambda: Worker(*self._flags, "--max-running-jobs", 1))

    def run(self, kills: Sequence[str], jobs: int) -> Tally:
        """Kill these, one after the other, while ``jobs`` jobs are asked for; returns once all are done."""
        tally, began = Tally(jobs), time.monotonic()
        clients = [threading.Thread(target=self._client, args=(tally, at), daemon=True) for at in range(CLIENTS)]
        for client in clients:
            client.start()
        for what in kills:
            time.sleep(self._chance.uniform(0.3, 1.5))
            self._kill(what)
            tally.kills[what] += 1
        for client in clients:
            client.join(PATIENCE_S + began - time.monotonic() + 2 * len(kills) + jobs)
        tally.lost += sum(client.is_alive() for client in clients)
        for name in self._names:
            job = self._ask(tally, lambda stub, name=name: stub.GetJob(calls.GetJobRequest(name=name), timeout=20)).job  # type: ignore[misc]
            tally.again += job.attempt_count - 1
            tally.lost += job.state != v1.Job.STATE_SUCCEEDED and not self._may_fail(job)
        for stall in self._stalls:
            stall.join()
        for each in (*self._servers, *self._workers):
            each.terminate()
            each.close()
        tally.late = sum(each.errors.count(_LATE) for each in (*self._servers, *self._workers, *self._gone))
        for channel in self._channels:
            channel.close()
        with psycopg.connect(self._url) as connection:
            row = connection.execute("SELECT COUNT(*), COUNT(DISTINCT request_id) FROM jobs").fetchone()
            assert row
            tally.twice = row[0] - row[1] + len(self._names) - len(set(self._names))
            tally.lost += jobs - row[1]
            query = "SELECT COALESCE(SUM(attempts - 1), 0) FROM parts WHERE attempts > 0"
            (attempts,) = connection.execute(query).fetchone() or [0]
            tally.again += int(attempts)
        tally.seconds = time.monotonic() - began
        return tally

    def _may_fail(self, job: v1.Job) -> bool:
        """Whether the processes that did it were killed twice, of which a job ends."""
        return not self._ranks and job.error.reason == "WORKER_DIED"

    def _kill(self, what: str) -> None:
        at, servers = self._chance.randrange(2), self._servers
        if what == "postgres":
            self._catalog.kill()
            time.sleep(self._chance.uniform(0.0, 0.5))
            self._catalog.start()
        elif what == "store":
            weed().stop()
            time.sleep(self._chance.uniform(0.0, 3.0))
            weed().start()
        elif what == "process":
            with contextlib.suppress(ProcessLookupError, IndexError, FileNotFoundError):
                os.kill(self._chance.choice(servers[at].workers), signal.SIGKILL)
        elif what == "stall":
            stalled = self._workers[self._chance.randrange(WORKERS)].process
            stalled.send_signal(signal.SIGSTOP)
            self._stalls.append(threading.Timer(_STALL_S, stalled.send_signal, [signal.SIGCONT]))
            self._stalls[-1].start()
        elif what == "worker":
            at = self._chance.randrange(WORKERS)
            self._end(self._workers[at])
            self._workers[at] = self._worker()
        else:
            self._end(servers[at])
            servers[at] = self._server(self._ports[at])

    def _end(self, server: Server) -> None:
        server.process.kill()
        server.close()
        self._gone.append(server)

    def _ask(self, tally: Tally, call: Callable[[AugmentServiceStub], T]) -> T:
        """The answer of either server, which are asked in turn until one gives it."""
        until, at = time.monotonic() + PATIENCE_S, random.randrange(2)
        while True:
            at += 1
            try:
                return call(self._stubs[at % 2])
            except grpc.RpcError as error:
                tally.refused[_reason(error)] += 1
                if error.code().name not in _AWAY or time.monotonic() > until:  # type: ignore[attr-defined]
                    raise
                time.sleep(0.1)

    def _client(self, tally: Tally, number: int) -> None:
        try:
            for at in range(number, tally.jobs, CLIENTS):
                self._job(tally, number, at)
        except Exception as error:
            tally.errors.append(f"{error!r}"[:2000])

    def _job(self, tally: Tally, number: int, at: int) -> None:
        """Send, ask, watch, read and compare, as client ``number``."""
        ask, paths = partial(self._ask, tally), self._traces[number]
        whole = self._ranks > 0 and at // CLIENTS % 2 == 1
        sent = {path.name: ask(partial(_upload, path)) for path in (paths if whole else paths[:1])}
        inputs = [v1.Input(upload=name, file_name=file if whole else "") for file, name in sent.items()]
        spec = v1.JobSpec(augment=v1.AugmentSpec(input=inputs[0]))
        if whole:
            spec = v1.JobSpec(job=v1.WholeJobSpec(inputs=inputs, name="job"))
        request = calls.CreateJobRequest(spec=spec, request_id=f"job{at}")
        self._names.append(name := ask(lambda stub: stub.CreateJob(request, timeout=20)).job.name)

        def watched(stub: AugmentServiceStub) -> v1.Job:
            *_, last = stub.WatchJob(calls.WatchJobRequest(name=name), timeout=PATIENCE_S)
            return last.job

        job = ask(watched)
        assert job.state in FINAL
        if job.state == v1.Job.STATE_SUCCEEDED:
            made = {each.file_name: ask(partial(_read, each.name)) for each in job.artifacts}
            if odd := {file for file, _ in made.items() ^ self._wanted[number][whole].items()}:
                tally.wrong += 1
                tally.errors.append(f"{name}: {sorted(odd)} {job.failures}"[:2000])
        elif not self._may_fail(job):
            tally.errors.append(f"{job.error}")
        for upload in sent.values() if self._ranks else ():  # so that the next job sends it again
            ask(partial(_forget, upload))


def _forget(upload: str, stub: AugmentServiceStub) -> None:
    """Remove an upload, which a call whose answer was lost may have done."""
    try:
        stub.DeleteUpload(calls.DeleteUploadRequest(name=upload), timeout=20)
    except grpc.RpcError as error:
        if error.code().name != "NOT_FOUND":  # type: ignore[attr-defined]
            raise


def _reason(error: grpc.RpcError) -> str:
    """The reason of a refusal; that of a lost connection is its code."""
    info, status = error_details_pb2.ErrorInfo(), rpc_status.from_call(error)
    if any(detail.Unpack(info) for detail in (status.details if status else ())):
        return str(info.reason)
    return str(error.code().name)  # type: ignore[attr-defined]


def _upload(path: Path, stub: AugmentServiceStub) -> str:
    data = path.read_bytes()
    start = calls.StartUploadRequest(file_name=path.name, size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
    parts = [calls.UploadTraceRequest(start=start), calls.UploadTraceRequest(chunk=data, finish=True)]
    return str(stub.UploadTrace(iter(parts), timeout=20).upload.name)


def _read(name: str, stub: AugmentServiceStub) -> bytes:
    return b"".join(each.chunk for each in stub.ReadArtifact(calls.ReadArtifactRequest(name=name), timeout=60))


def _of_command(path: Path, out: Path) -> dict[str, bytes]:
    """The outputs of ``augment run``."""
    assert augment("run", path, "-o", out, "--quiet").returncode == 0
    return {each.name: each.read_bytes() for each in out.iterdir() if not each.name.endswith((".summary", ".jsonl"))}
