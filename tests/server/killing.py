"""Servers, their workers and PostgreSQL are killed at random moments, while clients have jobs done."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import grpc
import psycopg
from in_process import trace
from postgres_cluster import Cluster
from serving_process import Ended, Server, augment

from augment.v1 import resources_pb2 as v1
from augment.v1 import service_pb2 as calls
from augment.v1.service_pb2_grpc import AugmentServiceStub

T = TypeVar("T")
PATIENCE_S = 240.0
CLIENTS = 4
FINAL = (v1.Job.STATE_SUCCEEDED, v1.Job.STATE_FAILED, v1.Job.STATE_CANCELLED)


@dataclass
class Tally:
    """What has come of it."""

    jobs: int
    kills: Counter[str] = field(default_factory=Counter)
    again: int = 0  #: attempts beyond the first
    lost: int = 0  #: accepted jobs that are not there, or not done; but those whose workers were killed twice
    twice: int = 0  #: jobs or artifacts beyond those asked for
    wrong: int = 0  #: artifacts that differ from the command's
    seconds: float = 0.0


def storm(folder: Path, catalog: Cluster, *, kills: int, jobs: int, seed: int) -> Tally:
    """Kill ``kills`` times, while ``jobs`` jobs are asked for; returns once all are done.

    Each client sends its requests, with an id, to both servers in turn until it has an answer.
    """
    path, tally, chance, began = trace(folder / "a.json", 200), Tally(jobs), random.Random(seed), time.monotonic()
    out = folder / "out"
    assert augment("run", path, "-o", out, "--quiet").returncode == 0
    url, state = catalog.url("storm"), folder / "state"
    ports = [_free_port() for _ in range(2)]
    flags = ("--catalog", url, "--max-running-jobs", 1, "--max-client-jobs", jobs, "--max-job-attempts", 100 + kills)

    def start(port: int) -> Server:
        while True:
            with contextlib.suppress(Ended):  # PostgreSQL was killed meanwhile, or the port is not free yet
                return Server(state, *flags, listen=f"127.0.0.1:{port}")
            time.sleep(0.2)

    servers = [start(port) for port in ports]
    channels = [grpc.insecure_channel(f"127.0.0.1:{port}") for port in ports]
    stubs = [AugmentServiceStub(channel) for channel in channels]
    names: list[str] = []

    def ask(call: Callable[[AugmentServiceStub], T]) -> T:
        until, at = time.monotonic() + PATIENCE_S, random.randrange(2)
        while True:
            at += 1
            try:
                return call(stubs[at % 2])
            except grpc.RpcError as error:
                is_away = error.code().name in ("UNAVAILABLE", "DEADLINE_EXCEEDED", "ABORTED")  # type: ignore[attr-defined]
                if not is_away or time.monotonic() > until:
                    raise
                time.sleep(0.1)

    def upload(stub: AugmentServiceStub) -> str:
        start = calls.StartUploadRequest(
            file_name="a.json", size_bytes=path.stat().st_size, sha256=hashlib.sha256(path.read_bytes()).hexdigest()
        )
        parts = [calls.UploadTraceRequest(start=start), calls.UploadTraceRequest(chunk=path.read_bytes(), finish=True)]
        return str(stub.UploadTrace(iter(parts), timeout=20).upload.name)

    def client(number: int) -> None:
        for at in range(number, jobs, CLIENTS):
            spec = v1.JobSpec(augment=v1.AugmentSpec(input=v1.Input(upload=ask(upload))))
            request = calls.CreateJobRequest(spec=spec, request_id=f"job{at}")
            names.append(name := ask(lambda stub, request=request: stub.CreateJob(request, timeout=20)).job.name)  # type: ignore[misc]

            def watched(stub: AugmentServiceStub, name: str = name) -> v1.Job:
                *_, last = stub.WatchJob(calls.WatchJobRequest(name=name), timeout=PATIENCE_S)
                return last.job

            assert ask(watched).state in FINAL

    threads = [threading.Thread(target=client, args=(number,), daemon=True) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for number in range(kills):
        time.sleep(chance.uniform(0.3, 1.5))
        what = ("server", "worker", "server", "postgres")[number % 4]
        if what == "postgres":
            catalog.kill()
            time.sleep(chance.uniform(0.0, 0.5))
            catalog.start()
        elif what == "worker":
            with contextlib.suppress(ProcessLookupError, IndexError, FileNotFoundError):
                os.kill(chance.choice(chance.choice(servers).workers), signal.SIGKILL)
        else:
            at = chance.randrange(2)
            servers[at].process.kill()
            servers[at].close()
            servers[at] = start(ports[at])
        tally.kills[what] += 1
    for thread in threads:
        thread.join(PATIENCE_S)
    tally.lost = sum(thread.is_alive() for thread in threads)
    wanted = {each.name: each.read_bytes() for each in out.iterdir() if not each.name.endswith((".summary", ".jsonl"))}
    for name in names:
        job = ask(lambda stub, name=name: stub.GetJob(calls.GetJobRequest(name=name), timeout=20)).job  # type: ignore[misc]
        tally.again += job.attempt_count - 1
        if job.state != v1.Job.STATE_SUCCEEDED:
            tally.lost += job.error.reason != "WORKER_DIED"
            continue
        made = {}
        for artifact in job.artifacts:
            request = calls.ReadArtifactRequest(name=artifact.name)
            read = ask(lambda stub, request=request: list(stub.ReadArtifact(request, timeout=60)))  # type: ignore[misc]
            made[artifact.file_name] = b"".join(each.chunk for each in read)
        tally.wrong += made != wanted
    for server, channel in zip(servers, channels, strict=True):
        channel.close()
        server.terminate()
        server.close()
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT COUNT(*), COUNT(DISTINCT request_id) FROM jobs").fetchone()
        assert row
        tally.twice = row[0] - row[1] + len(names) - len(set(names))
        tally.lost += jobs - row[1]
    tally.seconds = time.monotonic() - began
    return tally


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
