"""A Dask or Ray cluster does what processes do."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from odd_work import only_the_deadly_fail
from running import Augment, contents, environment
from test_job_tracks import batch

from augment.batch import execution as running_batch
from augment.batch import workers as running_workers
from augment.batch.conversion import RunPlan
from augment.batch.workers import cluster
from augment.errors import OutputError, UsageError
from simulator import JobOptions, simulate
from traces import kernel, write_trace

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=["dask", "ray"])
def scheduler(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a cluster of two workers, which may die once of an input; connected to once, as that is slow."""
    pytest.importorskip("distributed" if request.param == "dask" else "ray")
    more = {"DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    command = [sys.executable, str(Path(__file__).with_name(f"{request.param}_cluster.py"))]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, **pipes, text=True, env=environment(**more)) as process:
        workers = cluster(address := process.stdout.readline().strip())
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(workers, "stop", lambda: None)
            patch.setattr(running_workers, "cluster", lambda _: workers)
            yield address
        workers.stop()
        process.stdin.close()


def test_equal_bytes_and_going_on(tmp_path: Path, scheduler: str, augment: Augment, augment_apart: Augment) -> None:
    for rank in range(6):
        write_trace(tmp_path / "in" / f"rank{rank}.json.gz", kernel(dur=10 + rank))
    (tmp_path / "in" / "rank6.json").write_bytes(b'{"a": nope}')
    on_cluster = "run", tmp_path / "in", "-o", tmp_path / "dask", "--scheduler", scheduler, "--quiet"
    by_dask = augment_apart(*on_cluster)
    here = augment("run", tmp_path / "in", "-o", tmp_path / "here", "--quiet")
    assert (by_dask.code, by_dask.err) == (here.code, here.err) == (1, here.err)
    assert contents(tmp_path / "dask") == contents(tmp_path / "here")
    assert len(contents(tmp_path / "dask")) == 19  # three of each, one of the job
    manifest = tmp_path / "dask" / "augment-manifest.jsonl"
    assert len(manifest.read_text().splitlines()) == 8  # and that of the job
    again = augment(*on_cluster)
    assert (again.code, again.err) == (here.code, here.err)
    assert len(manifest.read_text().splitlines()) == 9  # the failure is tried again


def test_a_job_is_drawn(tmp_path: Path, scheduler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running_batch, "WORKERS_FROM", 0)
    simulate(JobOptions(ranks=3, steps=1, layers=1), tmp_path / "in")
    _, drawn = batch(tmp_path / "in", tmp_path / "dask", scheduler=scheduler)
    assert [each.status for each in drawn] == ["augmented"] * 3
    batch(tmp_path / "in", tmp_path / "here")
    assert contents(tmp_path / "dask") == contents(tmp_path / "here")
    executor = running_batch.executor_of(RunPlan(scheduler=scheduler))
    assert list(executor([partial(pow, 2, number) for number in range(12)])) == [2**number for number in range(12)]


def test_a_worker_that_dies_fails_its_own_input_alone(tmp_path: Path, scheduler: str) -> None:
    only_the_deadly_fail(running_workers.cluster(scheduler), tmp_path)


@pytest.mark.parametrize(
    ("scheme", "kind"), [("tcp", "Dask scheduler"), ("dask", "Dask scheduler"), ("ray", "Ray cluster")]
)
def test_nobody_answers(monkeypatch: pytest.MonkeyPatch, scheme: str, kind: str) -> None:
    monkeypatch.setattr(running_workers, "PATIENCE_S", 0.2)
    with pytest.raises(OutputError, match=f"no {kind} answers"):
        cluster(f"{scheme}://127.0.0.1:1")


@pytest.mark.parametrize(("scheme", "package", "extra"), [("dask", "distributed", "dask"), ("ray", "ray", "ray")])
def test_a_package_that_lacks_is_named(monkeypatch: pytest.MonkeyPatch, scheme: str, package: str, extra: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UsageError, match=rf"pip install 'kineto-augment\[{extra}\]'"):
        cluster(f"{scheme}://127.0.0.1:1")
