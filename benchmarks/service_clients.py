"""Many named clients of two fronts on PostgreSQL, behind nginx: each has a connection, a watch and a GetJob a second.

    python benchmarks/service_clients.py [--clients 1000] [--seconds 30]

Their jobs wait, since no worker runs. Printed are GetJob's latency, as the clients see it, and of fronts, nginx and
clients the CPU a call; of the fronts also RSS. Exits 1 if a call failed or a watch ended. Needs nginx and PostgreSQL.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / part) for part in ("", "server", "tests/server", "tests/support", "benchmarks")]

import grpc  # noqa: E402
from bench import cache  # noqa: E402
from postgres_cluster import cluster  # noqa: E402
from service import Server, times_of  # noqa: E402

from augment.v1 import resources_pb2, service_pb2, service_pb2_grpc  # noqa: E402

TRACE = b'{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 5, "pid": 0, "tid": 7}]}'
NGINX = """daemon off; master_process off; pid {folder}/pid; error_log stderr crit;
events {{ worker_connections 16384; }}
http {{ access_log off; client_body_temp_path {folder}/body;
upstream fronts {{ {fronts} keepalive 64; }}
server {{ listen 127.0.0.1:{port} http2; client_max_body_size 0; grpc_read_timeout 1h;
          location / {{ grpc_pass grpc://fronts; }} }} }}
"""
AT_ONCE = 16  #: clients that begin


class Crowd:
    """The clients."""

    def __init__(self, address: str, tokens: dict[str, str]) -> None:
        self.latencies_s: list[float] = []
        self.failures: list[str] = []
        self.cpu_s = 0.0  #: of all calls of GetJob
        self._address, self._tokens = address, tokens
        self._turn = asyncio.Semaphore(AT_ONCE)
        self._began, self._may_ask = 0, asyncio.Event()

    async def run(self, seconds: float, servers: list[Server], pids: list[int]) -> dict[str, float]:
        """Let all begin, then ask for this long; returns the CPU that each part took meanwhile, s."""
        clients = [asyncio.ensure_future(self._client(token, seconds)) for token in self._tokens.values()]
        while self._began < len(clients):
            await asyncio.sleep(0.5)
        before = self._spent(servers, pids)
        self._may_ask.set()
        await asyncio.gather(*clients)
        return {part: spent - before[part] for part, spent in self._spent(servers, pids).items()}

    def _spent(self, servers: list[Server], pids: list[int]) -> dict[str, float]:
        of_nginx = sum(sum(times_of(pid)) for pid in pids)
        return {"fronts": sum(map(Server.cpu_s, servers)), "nginx": of_nginx, "clients": time.process_time()}

    async def _client(self, token: str, seconds: float) -> None:
        options = [("grpc.use_local_subchannel_pool", 1)]
        of_client = {"metadata": (("authorization", f"Bearer {token}"),)}
        async with grpc.aio.insecure_channel(self._address, options) as channel:
            stub: Any = service_pb2_grpc.AugmentServiceStub(channel)
            try:
                async with self._turn:
                    job = await self._job(stub, of_client)
                    watch = stub.WatchJob(service_pb2.WatchJobRequest(name=job), **of_client)
                    await watch.read()
                self._began += 1
                await self._may_ask.wait()

                await asyncio.sleep(hash(token) % 1000 / 1000)
                end = time.monotonic() + seconds
                while time.monotonic() < end:
                    began = time.perf_counter()
                    await stub.GetJob(service_pb2.GetJobRequest(name=job), **of_client)
                    self.latencies_s.append(time.perf_counter() - began)
                    await asyncio.sleep(max(0.0, 1 - (time.perf_counter() - began)))
                if watch.done():
                    self.failures.append("a watch ended")
                watch.cancel()
            except grpc.RpcError as error:
                self.failures.append(f"{error.code().name}: {error.details()}")
                self._began += 1

    async def _job(self, stub: Any, of_client: Any) -> str:
        start = service_pb2.StartUploadRequest(file_name="a.json")
        parts = [{"start": start}, {"chunk": TRACE, "finish": True}]
        requests = (service_pb2.UploadTraceRequest(**part) for part in parts)
        upload = (await stub.UploadTrace(requests, **of_client)).upload.name
        spec = resources_pb2.AugmentSpec(input=resources_pb2.Input(upload=upload))
        request = service_pb2.CreateJobRequest(spec=resources_pb2.JobSpec(augment=spec))
        return str((await stub.CreateJob(request, **of_client)).job.name)


async def measure(address: str, tokens: dict[str, str], seconds: float, servers: list[Server], pids: list[int]) -> int:
    """Run the clients and print."""
    crowd = Crowd(address, tokens)
    load = os.getloadavg()[0]
    spent = await crowd.run(seconds, servers, pids)
    times = sorted(crowd.latencies_s)
    p50, p99 = (1000 * times[int(share * len(times))] for share in (0.5, 0.99))
    each = ", ".join(f"{part} {1000 * cpu_s / len(times):.2f}" for part, cpu_s in spent.items())
    rss = ", ".join(f"{server.rss()[0] >> 20} MB" for server in servers)
    print(
        f"{len(tokens)} clients: {len(times) / seconds:.0f} calls of GetJob a second, p50 {p50:.1f} ms, p99 {p99:.1f}"
        f" ms, longest {1000 * times[-1]:.1f} ms; CPU ms a call: {each}; fronts {rss}; load before {load:.1f}"
    )
    for failure in sorted(set(crowd.failures)):
        print(f"FAIL: {crowd.failures.count(failure)} x {failure}")
    return int(bool(crowd.failures))


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> int:
    """Start all, measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=30)
    asked = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    tokens = {f"client{number}": os.urandom(16).hex() for number in range(asked.clients)}
    with tempfile.TemporaryDirectory(dir=cache()) as name, cluster() as catalog:
        folder, port = Path(name), free_port()
        (folder / "tokens").write_text("".join(f"{client}:{token}\n" for client, token in tokens.items()))
        flags = ["--catalog", catalog.url("clients"), "--role", "front", "--token-file", str(folder / "tokens")]
        servers = [Server(folder / "state", *flags, "--max-queued-jobs", "100000") for _ in range(2)]
        fronts = "".join(f"server {server.address}; " for server in servers)
        (folder / "nginx.conf").write_text(NGINX.format(folder=folder, fronts=fronts, port=port))
        nginx = subprocess.Popen(["nginx", "-p", name, "-e", "stderr", "-c", str(folder / "nginx.conf")])
        try:
            return asyncio.run(measure(f"127.0.0.1:{port}", tokens, asked.seconds, servers, [nginx.pid]))
        finally:
            nginx.terminate()
            nginx.wait()
            for server in servers:
                server.close()


if __name__ == "__main__":
    sys.exit(main())
