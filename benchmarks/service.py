"""The service under load, on loopback, beside the command alone. For Linux: CPU is read from /proc.

    python benchmarks/service.py [--small 320] [--large 8] [--steady 500] [--size 200MB] [--json]

- CPU: what a trace costs through the service and by ``augment run``, for small traces (some 2 MB of text) sent by 32
  clients and for large ones sent by 4. *Server* is the server and its workers, *client* the senders. Beside it the
  command: once for each trace, as somebody would run it, and for the small ones also once for a folder of them all,
  where it starts only once, as workers do.
- Latency: GetJob, asked twenty times a second meanwhile.
- Memory: RSS of the server and of its workers while many small jobs pass, after each tenth of them.

CPU is user + system. The traces are simulated once and kept where ``bench.py`` keeps them; each is sent with bytes of
its own, so that no upload is already there.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / part) for part in ("", "server", "examples", "benchmarks")]

import grpc  # noqa: E402
from bench import augment_command, cache, measure, simulated, warm_up  # noqa: E402

from augment.client import Client  # noqa: E402
from augment.v1 import resources_pb2, service_pb2, service_pb2_grpc  # noqa: E402

CLIENTS, LARGE_CLIENTS = 32, 4
SMALL, FORM = "1MB", "perfetto"


@dataclass(frozen=True)
class Load:
    """Traces sent by several clients: seconds of CPU a trace, and how GetJob fared meanwhile."""

    what: str
    traces: int
    clients: int
    wall_s: float
    server_cpu_s: float
    client_cpu_s: float
    command_cpu_s: float
    folder_cpu_s: float | None
    getjob_count: int
    getjob_p50_ms: float
    getjob_p99_ms: float
    getjob_max_ms: float

    @property
    def ratio(self) -> float:
        """The server's CPU a trace beside the command's, where that starts as rarely as the workers do."""
        return self.server_cpu_s / (self.folder_cpu_s or self.command_cpu_s)


class Server:
    """A server in a process of its own; its workers are its children."""

    def __init__(self, state: Path, *flags: str) -> None:
        self.state, self._flags = state, flags
        self.address = "127.0.0.1:0"
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 # close() closes it
        self.start()

    def start(self) -> None:
        """Start it, from the second time on with the same address."""
        command = [sys.executable, "-m", "augment", "serve", "--listen", self.address, "--state-dir", str(self.state)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path[:4])}
        self._process = subprocess.Popen(
            [*command, *self._flags], stdout=subprocess.PIPE, stderr=self._log, encoding="utf-8", env=environment
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.startswith("listening on "):
            self._log.seek(0)
            raise SystemExit(f"the server did not start: {self._log.read().decode(errors='replace')}")
        self.address = line.removeprefix("listening on ").strip()
        self.http = self._process.stdout.readline().rpartition("//")[2].strip() if "--http" in self._flags else ""

    def cpu_s(self) -> float:
        """Of the server, its workers, and those that have ended."""
        return sum(sum(times_of(pid)) for pid in self._tree())

    def rss(self) -> tuple[int, int]:
        """Bytes: of the server, and of its workers together."""
        sizes = [_rss(pid) for pid in self._tree()]
        return sizes[0], sum(sizes[1:])

    def workers(self) -> list[int]:
        """The processes that do the work."""
        return self._tree()[1:]

    def stop(self) -> None:
        """End it."""
        self._process.send_signal(signal.SIGTERM)
        self._ended()

    def kill(self) -> None:
        """End it without a word."""
        self._process.kill()
        self._ended()

    def _ended(self) -> None:
        self._process.wait(60)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def close(self) -> None:
        """End it, and let go of what it said."""
        self.stop()
        self._log.close()

    def _tree(self) -> list[int]:
        pids = [self._process.pid]
        for pid in pids:  # grows on the way
            with contextlib.suppress(OSError):
                for task in Path(f"/proc/{pid}/task").iterdir():
                    pids += map(int, (task / "children").read_text().split())
        return pids


def times_of(pid: int) -> tuple[float, float]:
    """Seconds of a process, and of its children that have ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0, 0.0
    own_user, own_system, ended_user, ended_system = map(int, fields[11:15])
    tick = os.sysconf("SC_CLK_TCK")
    return (own_user + own_system) / tick, (ended_user + ended_system) / tick


def _rss(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Server]:
    """A server that is warm: its workers have started."""
    server = Server(folder / "state")
    try:
        trace = variant(simulated(SMALL), folder / "warm-up.json.gz", -1)
        with ThreadPoolExecutor(4) as pool:  # as many as may have workers of their own
            list(pool.map(lambda n: send(server.address, trace, folder / f"warm{n}"), range(4)))
        yield server
    finally:
        server.close()


def send(address: str, trace: Path, out: Path) -> None:
    """One trace there and back."""
    with Client(address) as client:
        client.augment(trace, out=out)


def variant(trace: Path, path: Path, number: int) -> Path:
    """The same trace in bytes of its own: a gzip member of blanks comes after it."""
    path.write_bytes(trace.read_bytes() + gzip.compress(b" " * (number + 2), mtime=0))
    return path


class Asking:
    """Asks GetJob twenty times a second, of a job of its own that is done."""

    def __init__(self, address: str, trace: Path) -> None:
        self.latencies_s: list[float] = []
        self._channel = grpc.insecure_channel(address)
        self._stub = service_pb2_grpc.AugmentServiceStub(self._channel)
        self._job = self._done_job(trace)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._ask)

    def __enter__(self) -> Asking:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        self._channel.close()

    def _done_job(self, trace: Path) -> str:
        start = service_pb2.StartUploadRequest(file_name=trace.name)
        parts = {"start": start}, {"chunk": trace.read_bytes(), "finish": True}
        upload = self._stub.UploadTrace(service_pb2.UploadTraceRequest(**part) for part in parts).upload.name
        spec = resources_pb2.AugmentSpec(input=resources_pb2.Input(upload=upload))
        request = service_pb2.CreateJobRequest(spec=resources_pb2.JobSpec(augment=spec))
        name: str = self._stub.CreateJob(request).job.name
        list(self._stub.WatchJob(service_pb2.WatchJobRequest(name=name)))
        return name

    def _ask(self) -> None:
        while not self._end.wait(0.05):
            began = time.perf_counter()
            self._stub.GetJob(service_pb2.GetJobRequest(name=self._job))
            self.latencies_s.append(time.perf_counter() - began)

    def at(self, share: float) -> float:
        """Milliseconds below which this share of the answers came."""
        ordered = sorted(self.latencies_s) or [float("nan")]
        return 1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def load(what: str, trace: Path, count: int, clients: int) -> Load:
    """Send ``count`` variants of ``trace``; then let the command do the same."""
    with tempfile.TemporaryDirectory(dir=cache()) as name:
        folder = Path(name)
        inputs = [variant(trace, folder / "in" / f"rank{n}.json.gz", n) for n in range(count) if _made(folder / "in")]
        folder_s = _folder_cpu_s(folder, what, count)  # before and after: what else runs on the machine slows all
        with running(folder) as server, Asking(server.address, simulated(SMALL)) as asking:
            server_s, client_s, began = server.cpu_s(), _own_cpu_s(), time.perf_counter()
            with ThreadPoolExecutor(clients) as pool:
                list(pool.map(lambda path: send(server.address, path, folder / "there"), inputs))
            wall_s = time.perf_counter() - began
            server_s, client_s = server.cpu_s() - server_s, _own_cpu_s() - client_s
        sample = inputs[:: max(1, count // 8)][:8]
        command_s = sum(measure(augment_command(path, folder / "here", FORM)).cpu_s for path in sample) / len(sample)
        if folder_s is not None:
            folder_s = (folder_s + (_folder_cpu_s(folder, what, count) or folder_s)) / 2
        expect_equal(folder / "there", folder / "here", sample)
    return Load(
        what, count, clients, wall_s, server_s / count, client_s / count, command_s, folder_s,
        len(asking.latencies_s), asking.at(0.5), asking.at(0.99), asking.at(1.0),
    )  # fmt: skip


def _folder_cpu_s(folder: Path, what: str, count: int) -> float | None:
    """Of the command, a trace, if it gets all of them at once; large ones it gets one by one."""
    if what != "small":
        return None
    return measure([*augment_command(folder / "in", folder / "job", FORM), "--force"]).cpu_s / count


def expect_equal(there: Path, here: Path, inputs: Sequence[Path]) -> None:
    """The service made what the command made."""
    for path in inputs:
        for suffix in (".augmented.pftrace", ".metrics.json"):
            name = path.name.removesuffix(".json.gz") + suffix
            if (there / name).read_bytes() != (here / name).read_bytes():
                raise SystemExit(f"{name}: the service made another file than the command")


def memory(count: int) -> list[tuple[int, int]]:
    """RSS of server and workers after each tenth of ``count`` small jobs, 8 at once."""
    trace = simulated(SMALL)
    with tempfile.TemporaryDirectory(dir=cache()) as name:
        folder = Path(name)
        _made(folder / "in")
        with running(folder) as server, ThreadPoolExecutor(8) as pool:
            sizes = []
            for tenth in range(10):
                numbers = range(tenth * count // 10, (tenth + 1) * count // 10)
                inputs = [variant(trace, folder / "in" / f"rank{n}.json.gz", n) for n in numbers]
                list(pool.map(lambda path: send(server.address, path, folder / "there"), inputs))
                sizes.append(server.rss())
            return sizes


def _made(folder: Path) -> bool:
    folder.mkdir(exist_ok=True)
    return True


def _own_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def tell(loads: Sequence[Load], rss: Sequence[tuple[int, int]]) -> None:
    """Print what was found."""
    print("CPU s a trace    server  client  command  command on a folder  server beside the command   traces/s")
    for load in loads:
        alone = f"{load.folder_cpu_s:19.3f}" if load.folder_cpu_s is not None else f"{'–':>19}"
        print(
            f"{load.traces:4} {load.what} by {load.clients:<2} {load.server_cpu_s:7.3f} {load.client_cpu_s:7.3f}"
            f" {load.command_cpu_s:8.3f}  {alone} {load.ratio:26.2f} {load.traces / load.wall_s:10.2f}"
        )
    for load in loads:
        figures = (
            f"p50 {load.getjob_p50_ms:.1f} ms, p99 {load.getjob_p99_ms:.1f} ms, longest {load.getjob_max_ms:.1f} ms"
        )
        print(f"GetJob meanwhile ({load.what}): {figures}, of {load.getjob_count}")
    if rss:
        print("RSS in MB after each tenth, server + workers:", ", ".join(f"{s >> 20}+{w >> 20}" for s, w in rss))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", type=int, default=320, help="small traces to send; 0: none")
    parser.add_argument("--large", type=int, default=8, help="large traces to send; 0: none")
    parser.add_argument("--steady", type=int, default=500, help="jobs during which memory is watched; 0: none")
    parser.add_argument("--size", default="200MB", help="text of a large trace")
    parser.add_argument("--json", action="store_true", help="print JSON")
    chosen = parser.parse_args(arguments)
    if not Path("/proc/self/stat").exists():
        raise SystemExit("this machine has no /proc to read CPU from")
    warm_up()
    loads = []
    if chosen.small:
        loads.append(load("small", simulated(SMALL), chosen.small, CLIENTS))
    if chosen.large:
        loads.append(load("large", simulated(chosen.size), chosen.large, LARGE_CLIENTS))
    rss = memory(chosen.steady) if chosen.steady else []
    if chosen.json:
        figures = [asdict(load) | {"ratio": load.ratio} for load in loads]
        print(json.dumps({"loads": figures, "rss_bytes": rss}, indent=1))
    else:
        tell(loads, rss)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
