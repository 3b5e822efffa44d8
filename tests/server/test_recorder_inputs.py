"""Tables of other recorders through the service: uploaded, and named in place; its limits hold."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from in_process import Server, serving

from augment.v1 import resources_pb2 as v1
from recorder_tables import Made, common, kineto, nsys_tables, write_sqlite

TRACE = Path(__file__).parents[2] / "examples" / "simulated" / "job" / "rank0.pt.trace.json.gz"


@pytest.fixture(scope="module")
def tables() -> Made:
    return nsys_tables(common(kineto(TRACE)))


@pytest.fixture(scope="module")
def inside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Path]]:
    root = tmp_path_factory.mktemp("traces")
    with serving(tmp_path_factory.mktemp("state"), roots=(root,), max_events=5_000) as running:
        yield running, root


def test_a_report_is_taken(inside: tuple[Server, Path], tmp_path: Path, tables: Made) -> None:
    server, root = inside
    uploaded = server.upload(write_sqlite(tables, tmp_path / "report.sqlite"))
    write_sqlite(tables, root / "report.sqlite")
    for job in (server.create(uploaded), server.create(uri=f"{root}/report.sqlite")):
        done = server.wait(job.name)
        assert done.state == v1.Job.STATE_SUCCEEDED, done.error
        sidecar = next(each for each in done.artifacts if each.name.endswith(".json"))
        figures = json.loads(server.read(sidecar.name))
        assert figures["source"]["format"] == "nsight_systems"
        assert figures["analyses"]["kernel_breakdown"]["rows"]


def test_limits_hold_for_reports(inside: tuple[Server, Path], tmp_path: Path, tables: Made) -> None:
    server, _ = inside
    columns, rows = tables["CUPTI_ACTIVITY_KIND_RUNTIME"]
    many = {**tables, "CUPTI_ACTIVITY_KIND_RUNTIME": (columns, rows * 50)}
    other: Made = {"users": ("id, password", [(1, "secret")])}
    for given, reason in ((many, "LIMIT_EXCEEDED"), (other, "UNKNOWN_FORMAT")):
        uploaded = server.upload(write_sqlite(given, tmp_path / "report.sqlite"))
        job = server.wait(server.create(uploaded).name)
        assert (job.state, job.error.reason) == (v1.Job.STATE_FAILED, reason), job.error
        assert job.attempt_count == 1
