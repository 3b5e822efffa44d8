"""Two servers with one catalog, each with its own mount of one network's file system: SeaweedFS, by FUSE."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from in_process import trace
from object_store import weed
from postgres_cluster import cluster
from serving_process import Server, augment, serving

from augment.client import Client
from augment.client.connection import Deadline
from augment.v1 import resources_pb2 as v1
from augment.v1 import service_pb2 as calls
from augment.v1.service_pb2_grpc import AugmentServiceStub

PATIENCE_S = 60.0


@contextlib.contextmanager
def mounted(folder: Path) -> Iterator[Path]:
    """The storage, mounted there. Skips the test where the system does not let us."""
    store = weed()
    if not os.path.exists("/dev/fuse") or os.geteuid() != 0:
        pytest.skip("this system has no FUSE, or does not let us use it")
    folder.mkdir()
    command = [store.program, "mount", f"-filer={store.filer}", f"-dir={folder}", "-filer.path=/shared"]
    command += ["-dirAutoCreate", f"-cacheDir={folder}.cache", "-volumeServerAccess=direct"]
    with open(f"{folder}.log", "wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        until = time.monotonic() + PATIENCE_S
        while not os.path.ismount(folder):
            if process.poll() is not None:
                pytest.skip(f"weed mount does not work here: {Path(f'{folder}.log').read_text()[-500:]}")
            assert time.monotonic() < until, Path(f"{folder}.log").read_text()
            time.sleep(0.1)
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False)
        process.kill()
        process.wait()


@pytest.mark.slow
def test_two_servers_on_mounts_of_their_own(tmp_path: Path) -> None:
    """What the one has accepted the other does and gives out, also after the first was killed at work."""
    if shutil.which("umount") is None:
        pytest.skip("umount is not installed")
    path = trace(tmp_path / "a.json", count=300)
    assert augment("run", path, "-o", tmp_path / "here", "--quiet").returncode == 0
    wanted = {file.name: file.read_bytes() for file in (tmp_path / "here").iterdir()}
    with cluster() as database, mounted(tmp_path / "one") as first, mounted(tmp_path / "two") as second:
        flags = ("--catalog", database.url("mounts"), "--max-running-jobs", 1)
        alpha = Server(first / "state", *flags)
        with serving(second / "state", *flags) as beta:

            def run(number: int) -> dict[str, bytes]:
                with Client((alpha, beta)[number % 2].address) as client:
                    made = client.augment(path, out=tmp_path / f"out{number}").files
                    return {file.name: file.read_bytes() for file in made}

            with ThreadPoolExecutor(4) as threads:
                assert all(made == wanted for made in threads.map(run, range(8)))
            with Client(alpha.address) as client, alpha.frozen():
                upload = client._upload(str(path), Deadline(None, ""), lambda *_: None)
                spec = v1.JobSpec(augment=v1.AugmentSpec(input=v1.Input(upload=upload)))
                request = calls.CreateJobRequest(spec=spec)
                jobs = [client._stub.CreateJob(request).job.name for _ in range(4)]
                alpha.process.kill()
                alpha.close()
            with grpc.insecure_channel(beta.address) as channel:
                stub = AugmentServiceStub(channel)
                for job in jobs:
                    *_, last = stub.WatchJob(calls.WatchJobRequest(name=job), timeout=PATIENCE_S)
                    made = {}
                    for artifact in last.job.artifacts:
                        read = stub.ReadArtifact(calls.ReadArtifactRequest(name=artifact.name))
                        made[artifact.file_name] = b"".join(each.chunk for each in read)
                    assert made == wanted
