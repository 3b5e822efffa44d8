"""Crowds, smaller than those of benchmarks/service_load.py."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
from in_process import PATIENCE_S, eventually, serving, trace
from serving_process import serving as serving_apart

from augment.client import Client
from augment.client.connection import Deadline
from augment.v1 import resources_pb2 as v1
from augment.v1 import service_pb2 as calls
from augment.v1.service_pb2_grpc import AugmentServiceStub

WAITING = (v1.Job.STATE_QUEUED, v1.Job.STATE_RUNNING)


def test_creates_that_are_cancelled_leave_nothing_behind(tmp_path: Path) -> None:
    with serving(tmp_path / "state", max_client_jobs=1000) as server:
        spec = v1.AugmentSpec(only=["temporal_breakdown"])
        spec.input.upload = server.upload(trace(tmp_path / "a.json"))
        for number in range(40):
            request = calls.CreateJobRequest(spec=v1.JobSpec(augment=spec), request_id=f"cancelled {number}")
            call = server.stub.CreateJob.future(request)
            time.sleep(0.0004 * (number % 10))
            call.cancel()
        server.core._scheduler._wake.clear()  # what nobody told is found out, too
        eventually(lambda: not server.stub.ListJobs(calls.ListJobsRequest(states=WAITING)).jobs)


def test_calls_in_a_burst_are_answered(tmp_path: Path) -> None:
    """None ends without a reason: with its own settings, gRPC drops some of more than a thousand."""
    with serving_apart(tmp_path / "state") as server, grpc.insecure_channel(server.address) as channel:
        stub = AugmentServiceStub(channel)
        burst = [stub.ListJobs.future(calls.ListJobsRequest(), timeout=PATIENCE_S) for _ in range(1500)]
        codes = {each.code() for each in burst}
    assert codes <= {grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED}
    assert grpc.StatusCode.OK in codes


def test_all_uploads_of_a_crowd_arrive(tmp_path: Path) -> None:
    """Those of one host, beyond the number that may be open at once, wait for each other."""
    clients, value = 10, 8
    with serving(tmp_path / "state", max_open_uploads=8) as server:
        files = [trace(tmp_path / f"rank{n}.json", count=20 + n) for n in range(clients * value)]
        together = threading.Barrier(clients * value)
        made = [Client(server.address) for _ in range(clients)]

        def send(number: int) -> str:
            together.wait()
            return made[number % clients]._upload(str(files[number]), Deadline(None, ""), lambda *_: None)

        with ThreadPoolExecutor(clients * value) as pool:
            names = list(pool.map(send, range(clients * value)))
        for entry in made:
            entry.close()
        assert len(set(names)) == clients * value
