"""Many named clients of two fronts on PostgreSQL, behind nginx: each has a connection, a watch and a GetJob a second.

    python benchmarks/service_clients.py [--clients 1000] [--seconds 30]

Their jobs wait, since no worker runs. Printed are GetJob's latency, as the clients see it, and of fronts, nginx,
PostgreSQL and clients the CPU a call; of the fronts also RSS. Exits 1 if a call failed or a watch ended. Needs nginx,
PostgreSQL, and Node for the clients: those of gRPC for Python take half of what a front does.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / part) for part in ("", "server", "tests/server", "tests/support", "benchmarks")]

import grpc  # noqa: E402
from bench import cache  # noqa: E402
from postgres_cluster import Cluster, cluster  # noqa: E402
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
CLIENTS = Path(__file__).with_suffix(".mjs")


def waiting_jobs(address: str, tokens: list[str]) -> list[tuple[str, str]]:
    """A job for each token."""

    def made(token: str) -> tuple[str, str]:
        of_client = {"metadata": (("authorization", f"Bearer {token}"),), "wait_for_ready": True}  # nginx may begin
        start = service_pb2.StartUploadRequest(file_name="a.json")
        parts = [{"start": start}, {"chunk": TRACE, "finish": True}]
        requests = (service_pb2.UploadTraceRequest(**part) for part in parts)
        upload = stub.UploadTrace(requests, **of_client).upload.name
        spec = resources_pb2.AugmentSpec(input=resources_pb2.Input(upload=upload))
        request = service_pb2.CreateJobRequest(spec=resources_pb2.JobSpec(augment=spec))
        return token, stub.CreateJob(request, **of_client).job.name

    with grpc.insecure_channel(address) as channel, ThreadPoolExecutor(8) as threads:
        stub: Any = service_pb2_grpc.AugmentServiceStub(channel)
        return [*threads.map(made, tokens)]


def measure(
    address: str, tokens: list[str], seconds: float, servers: list[Server], nginx: int, database: Cluster
) -> int:
    """Run the clients and print."""
    asked = {"address": address, "seconds": seconds, "jobs": waiting_jobs(address, tokens)}
    with subprocess.Popen(["node", CLIENTS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as clients:
        assert clients.stdin
        assert clients.stdout
        clients.stdin.write(json.dumps(asked))
        clients.stdin.close()
        if not clients.stdout.readline():
            return 1
        parts = {"nginx": [nginx], "PostgreSQL": database.pids()}
        load, before = os.getloadavg()[0], _spent(servers, parts)
        answered = json.loads(clients.stdout.readline())
        spent = {part: cpu_s - before[part] for part, cpu_s in _spent(servers, parts).items()}
    times = sorted(answered["latencies"])
    p50, p99 = (times[int(share * len(times))] for share in (0.5, 0.99))
    spent["clients"] = answered["cpu_ms"] / 1000
    each = ", ".join(f"{part} {1000 * cpu_s / len(times):.2f}" for part, cpu_s in spent.items())
    rss = ", ".join(f"{server.rss()[0] >> 20} MB" for server in servers)
    print(
        f"{len(tokens)} clients: {len(times) / seconds:.0f} calls of GetJob a second, p50 {p50:.1f} ms, p99 {p99:.1f}"
        f" ms, longest {times[-1]:.1f} ms; CPU ms a call: {each}; fronts {rss}; load before {load:.1f}"
    )
    for failure in sorted(set(answered["failures"])):
        print(f"FAIL: {answered['failures'].count(failure)} x {failure}")
    return int(bool(answered["failures"]))


def _spent(servers: list[Server], parts: dict[str, list[int]]) -> dict[str, float]:
    """CPU s so far."""
    of_others = {part: sum(sum(times_of(pid)) for pid in pids) for part, pids in parts.items()}
    return {"fronts": sum(map(Server.cpu_s, servers)), **of_others}


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
            return measure(f"127.0.0.1:{port}", list(tokens.values()), asked.seconds, servers, nginx.pid, catalog)
        finally:
            nginx.terminate()
            nginx.wait()
            for server in servers:
                server.close()


if __name__ == "__main__":
    sys.exit(main())
