"""The service under crowds and kills, on loopback. For Linux. Exits 1 if something was lost.

    python benchmarks/service_load.py [--uploads 200x10] [--cancelled 10000] [--kept 100000] [--jobs 2000]
        [--half 2100] [--kills 20]

- uploads: that many clients send that many files each, all at once, as one host: how many arrive.
- cancelled: calls of CreateJob that are cancelled within milliseconds: how many jobs are left waiting.
- kept: GetJob while 8 clients upload, on a server that keeps so many jobs; its start; a history of the jobs of a label.
- jobs: so many small jobs by 8 clients, while 192 more connections watch: GetJob meanwhile, memory.
- half: so many bodies over HTTP that five clients begin and never send: whether another client's jobs are done
  meanwhile, and that the bodies are ended.
- kills: ``kill -9`` of the server, and a third as often of a worker, under 4 clients: what was lost.

0 leaves one out.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import random
import resource
import signal
import socket
import sqlite3
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / part) for part in ("", "server", "examples", "benchmarks")]

import grpc  # noqa: E402
from bench import cache, simulated  # noqa: E402
from service import Asking, Server  # noqa: E402

from augment.client import Client  # noqa: E402
from augment.client.connection import Deadline  # noqa: E402
from augment.errors import AugmentError  # noqa: E402
from augment.v1 import resources_pb2, service_pb2  # noqa: E402

QUICK = ["temporal_breakdown"]
CLIENTS, WATCHERS, KILLED_CLIENTS = 8, 192, 4
HALF_CLIENTS, HALF_S = 5, 20.0  #: who begin bodies, each fewer than --max-client-calls; how long they may take
WAITING = (resources_pb2.Job.STATE_QUEUED, resources_pb2.Job.STATE_RUNNING)
DRAIN_S, SENDING_S = 1200.0, 15.0
MANY = ("--max-client-jobs", "100000", "--max-queued-jobs", "100000")


def small_trace(path: Path, number: int, more_bytes: int = 0) -> Path:
    """A trace of twenty kernels, in bytes of its own."""
    kernels = [
        {"ph": "X", "cat": "kernel", "name": f"k{i}", "ts": i * 10, "dur": 5, "pid": 0, "tid": 7} for i in range(20)
    ]
    mark = {"ph": "i", "name": str(number), "ts": 1, "pid": 0, "tid": 7}
    path.write_text(json.dumps({"traceEvents": [*kernels, mark]}) + " " * more_bytes)
    return path


@contextlib.contextmanager
def serving(*flags: str, state: Path | None = None) -> Iterator[tuple[Server, Path]]:
    """A server, and a folder for inputs and outputs."""
    with tempfile.TemporaryDirectory(dir=cache()) as name:
        folder = Path(name)
        server = Server(state or folder / "state", *flags)
        try:
            yield server, folder
        finally:
            server.close()


def upload(client: Client, path: Path) -> str:
    """Send a file: the upload's name."""
    return client._upload(str(path), Deadline(None, str(path)), lambda *_: None)


def create(upload_name: str, request_id: str = "") -> service_pb2.CreateJobRequest:
    """A request of a quick job."""
    spec = resources_pb2.AugmentSpec(input=resources_pb2.Input(upload=upload_name), only=QUICK)
    return service_pb2.CreateJobRequest(spec=resources_pb2.JobSpec(augment=spec), request_id=request_id)


def waiting_jobs(stub: Any) -> int:
    """How many jobs wait or run, up to a page."""
    return len(stub.ListJobs(service_pb2.ListJobsRequest(states=WAITING, page_size=1000)).jobs)


def uploads(clients: int, each: int) -> list[str]:
    """All files of all clients at once."""
    counts: Counter[str] = Counter()
    with serving() as (server, folder), contextlib.ExitStack() as stack:
        made = [stack.enter_context(Client(server.address)) for _ in range(clients)]
        files = [small_trace(folder / f"rank{n}.json", n, 100_000) for n in range(clients * each)]

        def send(number: int) -> None:
            try:
                upload(made[number % clients], files[number])
                counts["done"] += 1
            except AugmentError as error:
                counts[str(error).rpartition(": ")[2]] += 1

        began = time.perf_counter()
        with ThreadPoolExecutor(clients * each) as pool:
            list(pool.map(send, range(clients * each)))
        seconds = time.perf_counter() - began
    print(
        f"uploads     {clients} clients x {each} at once: {counts['done']} of {clients * each} done in {seconds:.0f} s"
    )
    return [f"uploads: {count} failed: {what}" for what, count in counts.items() if what != "done"]


def cancelled(count: int) -> list[str]:
    """Calls that are cancelled about when the job is accepted."""
    pauses = random.Random(0)
    with serving(*MANY) as (server, folder), Client(server.address) as client:
        stub, name = client._stub, upload(client, small_trace(folder / "a.json", 0))
        for number in range(count):
            call = stub.CreateJob.future(create(name, f"cancelled {number}"))
            time.sleep(pauses.uniform(0, 0.004))
            call.cancel()
        accepted = sum(state_counts(server).values())
        left = drained(lambda: waiting_jobs(stub))
    print(f"cancelled   {count} calls of CreateJob: {accepted} jobs were accepted, {left} left behind")
    return [f"cancelled: {left} jobs are left behind"] if left else []


def state_counts(server: Server) -> dict[int, int]:
    """How many jobs the database has, by state."""
    with contextlib.closing(sqlite3.connect(server.state / "state.db")) as database:
        return dict(database.execute("SELECT state, COUNT(*) FROM jobs GROUP BY state"))


def drained(left: Callable[[], int]) -> int:
    """How many are left when no more end."""
    until = time.monotonic() + DRAIN_S
    while (now := left()) and time.monotonic() < until:
        time.sleep(1)
    return now


def kept(count: int) -> list[str]:
    """GetJob on a server that keeps many jobs and takes uploads, and on one that keeps none."""
    for number in (0, count):
        with serving() as (server, folder), Client(server.address) as client:
            request = create(upload(client, simulated("1MB")))
            del request.spec.augment.only[:]  # a history needs all figures
            request.labels["suite"] = "one"
            job = client._stub.CreateJob(request).job.name
            list(client._stub.WatchJob(service_pb2.WatchJobRequest(name=job)))
            server.stop()
            fill(server.state, number)
            began = time.perf_counter()
            server.start()
            start_s = time.perf_counter() - began
            time.sleep(3)
            began = time.perf_counter()
            client.history({"suite": "one"})
            history_s = time.perf_counter() - began
            context = multiprocessing.get_context("spawn")  # senders beside us would hold up whoever measures
            with (
                Asking(server.address, small_trace(folder / "a.json", 0)) as asking,
                ProcessPoolExecutor(1, context) as pool,
            ):
                sent = pool.submit(send_uploads, server.address, str(folder)).result()
        print(
            f"kept        {number} jobs kept, {CLIENTS} clients sent {sent} MB in {SENDING_S:.0f} s:"
            f" GetJob p50 {asking.at(0.5):.1f} ms, p99 {asking.at(0.99):.1f} ms, longest {asking.at(1.0):.1f} ms,"
            f" of {len(asking.latencies_s)}; start {start_s:.2f} s, history of a label {history_s:.2f} s"
        )
    return []


def send_uploads(address: str, folder: str) -> int:
    """Send files of 1 MB by several clients for a while; how many."""
    end, sent = time.monotonic() + SENDING_S, [0] * CLIENTS

    def send(number: int) -> None:
        with Client(address) as sender:
            while time.monotonic() < end:
                path = Path(folder) / f"sent{number}.json"
                upload(sender, small_trace(path, 1000 * number + sent[number], 1_000_000))
                sent[number] += 1

    with ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(send, range(CLIENTS)))
    return sum(sent)


def fill(state: Path, count: int) -> None:
    """Copies of the job and the upload that are there, as a busy month leaves them."""
    now = time.time_ns()
    with contextlib.closing(sqlite3.connect(state / "state.db")) as database, database:
        for table in ("jobs", "uploads"):
            columns = [row[1] for row in database.execute(f"PRAGMA table_info({table})")]
            row = dict(zip(columns, database.execute(f"SELECT * FROM {table} LIMIT 1").fetchone(), strict=True))
            fixed: dict[str, Any] = {**row, "request_id": "", "number": None}
            fixed |= {"labels": '{"suite":"many"}'} if "labels" in row else {}
            rows = (
                [
                    now - (n + 1) * 10**9
                    if column.endswith("_ns")
                    else f"{n:020x}"
                    if column == "id"
                    else fixed[column]
                    for column in columns
                ]
                for n in range(count)
            )
            marks = ", ".join("?" * len(columns))
            database.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)
        made = (
            (f"{n:020x}", position, name, 1000, "0" * 64)
            for n in range(count)
            for position, name in enumerate(("a.augmented.json", "a.metrics.json"))
        )
        database.executemany("INSERT INTO artifacts VALUES (?, ?, ?, ?, ?)", made)


def jobs(count: int) -> list[str]:
    """Small jobs of some clients, while many more watch."""
    with serving("--max-client-jobs", "1000") as (server, folder), contextlib.ExitStack() as stack:
        failed: Counter[str] = Counter()
        watchers = [watcher(stack, server.address) for _ in range(WATCHERS)]
        before = server.rss()[0]

        def send(number: int) -> None:
            with Client(server.address) as client:
                for at in range(number, count, CLIENTS):
                    path = small_trace(folder / f"rank{at}.json", at)
                    try:
                        client.augment(path, only=QUICK, out=folder / "out")
                    except AugmentError as error:
                        failed[str(error).rpartition(": ")[2]] += 1

        began = time.perf_counter()
        with Asking(server.address, small_trace(folder / "a.json", -1)) as asking, ThreadPoolExecutor(CLIENTS) as pool:
            list(pool.map(send, range(CLIENTS)))
        seconds = time.perf_counter() - began
        made = len(list((folder / "out").glob("*.metrics.json")))
        after = server.rss()[0]
        alive = sum(watcher.is_active() for watcher in watchers)
    print(
        f"jobs        {count} by {CLIENTS} clients, over {CLIENTS + WATCHERS} connections: {made} done,"
        f" {made / seconds:.1f}/s; GetJob p50 {asking.at(0.5):.1f} ms, p99 {asking.at(0.99):.1f} ms;"
        f" server {before >> 20} -> {after >> 20} MB"
    )
    if alive < WATCHERS:
        failed[f"{WATCHERS - alive} of those that watch were cut off"] += 1
    return [f"jobs: {times} failed: {what}" for what, times in failed.items()]


def watcher(stack: contextlib.ExitStack, address: str) -> Any:
    """A call, over a connection of its own, that stays: it watches the server's health."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    channel = stack.enter_context(grpc.insecure_channel(address, options))
    call = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"")
    next(call)
    return call


def half(count: int) -> list[str]:
    """Bodies that are begun and never sent, while another client works."""
    names = ["other", *(f"half{number}" for number in range(HALF_CLIENTS))]
    failed: Counter[str] = Counter()
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    with tempfile.TemporaryDirectory(dir=cache()) as home, contextlib.ExitStack() as stack:
        tokens = Path(home) / "tokens"
        tokens.write_text("".join(f"{name}:{name}-token\n" for name in names))
        flags = ("--http", "127.0.0.1:0", "--token-file", str(tokens), "--max-upload-idle", f"{HALF_S:g}s")
        server, folder = stack.enter_context(serving(*flags))
        host, _, port = server.http.rpartition(":")
        began, held = time.perf_counter(), []
        for number in range(count):
            connection = stack.enter_context(socket.create_connection((host, int(port))))
            head = f"Authorization: Bearer {names[1 + number % HALF_CLIENTS]}-token\r\nContent-Length: 1000\r\n"
            connection.sendall(f"POST /v1/jobs HTTP/1.1\r\nHost: {server.http}\r\n{head}\r\n{{".encode())
            held.append(connection)
        opened_s, done, latencies_s = time.perf_counter() - began, 0, []
        with Client(server.address, token="other-token", patience_s=0) as client:
            while time.perf_counter() - began < HALF_S:
                asked = time.perf_counter()
                try:
                    client.augment(small_trace(folder / f"rank{done}.json", done), only=QUICK, out=folder / "out")
                except AugmentError as error:
                    failed[str(error).rpartition(": ")[2]] += 1
                latencies_s.append(time.perf_counter() - asked)
                done += 1
        statuses: Counter[str] = Counter()
        for connection in held:
            connection.settimeout(DRAIN_S)
            statuses[connection.recv(64)[9:12].decode() or "cut off"] += 1
    print(
        f"half        {count} bodies of {HALF_CLIENTS} clients, begun in {opened_s:.1f} s and never sent: of another"
        f" client {done - failed.total()} of {done} jobs done meanwhile, longest {max(latencies_s):.2f} s;"
        f" the bodies: {', '.join(f'{number} x {status}' for status, number in statuses.items())}"
    )
    unended = count - statuses["504"]
    return [f"half: {times} failed: {what}" for what, times in failed.items()] + (
        [f"half: {unended} bodies were not ended by UPLOAD_IDLE"] if unended else []
    )


def kills(count: int) -> list[str]:
    """The server and its workers killed, again and again, under clients that go on."""
    chance, stopped = random.Random(0), threading.Event()
    counts: Counter[str] = Counter()
    starts_s: list[float] = []
    flags = ("--max-job-attempts", "1000", "--max-running-jobs", "2")
    with serving(*flags) as (server, folder):

        def use(number: int) -> None:
            with Client(server.address, patience_s=300) as client:
                while not stopped.is_set():
                    path = small_trace(folder / f"client{number}.json", counts["asked"], 200_000)
                    counts["asked"] += 1
                    try:
                        made = client.augment(path, out=folder / "out")
                        counts["done" if made.metrics["analyses"] else "empty"] += 1
                    except AugmentError as error:
                        if getattr(error, "reason", "") == "WORKER_DIED":  # as it must be, after two deaths of workers
                            counts["given up"] += 1
                            continue
                        counts[f"{type(error).__name__}: {str(error).rpartition(': ')[2]}"] += 1

        with ThreadPoolExecutor(KILLED_CLIENTS) as pool:
            running = [pool.submit(use, number) for number in range(KILLED_CLIENTS)]
            for number in range(count):
                time.sleep(chance.uniform(0.3, 1.5))
                if number % 3 == 0:
                    with contextlib.suppress(ProcessLookupError, IndexError):
                        os.kill(chance.choice(server.workers()), signal.SIGKILL)
                        counts["workers"] += 1
                time.sleep(chance.uniform(0.3, 1.5))
                server.kill()
                killed = time.perf_counter()
                server.start()
                starts_s.append(time.perf_counter() - killed)
            time.sleep(2)
            stopped.set()
            for client in running:
                client.result()
        left = sum(number for state, number in state_counts(server).items() if state in WAITING)
    lost = {what: times for what, times in counts.items() if what not in ("asked", "done", "given up", "workers")}
    print(
        f"kills       killed    times  up again after, s: median, longest\n"
        f"            server {count:8} {statistics.median(starts_s):27.1f} {max(starts_s):8.1f}\n"
        f"            worker {counts['workers']:8}\n"
        f"            {KILLED_CLIENTS} clients asked for {counts['asked']} jobs: {counts['done']} done,"
        f" {counts['given up']} given up after two deaths of workers, {left} left waiting, {sum(lost.values())} lost"
    )
    failures = [f"kills: {times} failed: {what}" for what, times in lost.items()]
    return failures + ([f"kills: {left} jobs are left waiting"] if left else [])


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--uploads", default="200x10", metavar="CLIENTSxEACH")
    for name, default in (("cancelled", 10_000), ("kept", 100_000), ("jobs", 2_000), ("half", 2_100), ("kills", 20)):
        parser.add_argument(f"--{name}", type=int, default=default)
    chosen = parser.parse_args(arguments)
    clients, _, each = chosen.uploads.partition("x")
    failures = uploads(int(clients), int(each)) if int(clients) else []
    for measure, count in (
        (cancelled, chosen.cancelled), (kept, chosen.kept), (jobs, chosen.jobs), (half, chosen.half),
        (kills, chosen.kills),
    ):  # fmt: skip
        failures += measure(count) if count else []
    for failure in failures:
        print(f"FAIL: {failure}")
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
