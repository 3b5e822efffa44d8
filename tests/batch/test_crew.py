"""A large job's summaries are read in portions by several processes: the same bytes, whoever reads them, and dies."""

from __future__ import annotations

import gzip
import json
import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import pytest
import test_pool as pool
from odd_work import dies_of_some, fails, long_result
from running import contents
from test_job_tracks import FORMATS, batch, lines

from augment.batch import workers as batch_workers
from augment.batch.conversion import RunPlan
from augment.batch.execution import Run
from augment.batch.inputs import Input, choose_inputs
from augment.batch.workers import Processes, T, in_order, in_order_by_files
from augment.errors import InputError, OutputError
from augment.job import answer
from augment.pipeline.request import Request
from simulator import JobOptions, simulate

pytestmark = pytest.mark.slow


class Threads(pool.Threads):
    """Workers that are threads, and are lost at some tasks."""

    def __init__(self, lost_at: tuple[int, ...] = (), refuses: bool = False) -> None:
        super().__init__()
        self._lost_at, self._refuses, self._count = lost_at, refuses, 0

    def submit(self, task: Callable[[], T]) -> Future[T]:
        self._count += 1
        if self._count - 1 not in self._lost_at:
            return self._executor.submit(task)
        if self._refuses:
            raise self.lost
        lost: Future[T] = Future()
        lost.set_exception(self.lost())
        return lost


def square(number: int, here: int) -> tuple[int, bool]:
    return number**2, threading.get_ident() == here


@pytest.mark.parametrize("refuses", [False, True])
def test_what_a_dying_worker_leaves_is_done_here(refuses: bool) -> None:
    workers = Threads((2, 7), refuses)
    results = list(in_order([partial(square, number, threading.get_ident()) for number in range(9)], workers))
    assert results == [(number**2, number in (2, 7)) for number in range(9)]
    assert workers.stopped


def test_an_error_stops_the_workers() -> None:
    workers = Threads()
    with pytest.raises(InputError):
        list(in_order([partial(answer.portion, [b"no summary"], ["rank 0"], 0, 1)] * 5, workers))
    assert workers.stopped


def test_a_lost_connection_is_an_error_of_its_own() -> None:
    class Disconnected(Threads):
        def submit(self, task: Callable[[], T]) -> Future[T]:
            future: Future[T] = Future()
            future.cancel()
            return future

    workers = Disconnected()
    with pytest.raises(OutputError, match="connection was lost"):
        list(in_order([partial(square, 1, 0)], workers))
    assert workers.stopped


def test_long_results_need_not_be_sent() -> None:
    """A process that dies amid a long message would leave the rest of it to be waited for."""
    size, workers = 1 << 20, Processes(2)
    results = in_order_by_files([partial(long_result, size, os.getpid())] * 3, workers)
    assert list(results) == [(bytes(size), True)] * 3


def test_processes_end_quietly_after_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InputError):
        list(in_order_by_files([fails] * 3, Processes(2)))
    assert "Traceback" not in capfd.readouterr().err


def test_a_process_that_begins_as_another_dies_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An executor of both would not know it yet as it ends itself; who waits for it would wait for ever."""
    begun: list[SpawnProcess] = []
    start = SpawnProcess.start

    def late(self: SpawnProcess) -> None:
        begun.append(self)
        if len(begun) == 2:
            begun[0].join()
        start(self)

    monkeypatch.setattr(SpawnProcess, "start", late)
    workers = Processes(2)
    died, ended = (
        workers.submit(partial(dies_of_some, Input(name, str(tmp_path), named=True))) for name in ("deadly", "a")
    )
    assert isinstance(died.exception(), Processes.lost)
    assert ended.result().status == "augmented"
    workers.stop()
    assert [process.is_alive() for process in begun] == [False, False]


def test_no_more_processes_than_open_files_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_workers, "allow_files", lambda _wanted: 256)
    assert [Processes(count).capacity() for count in (8, 192)] == [8, 16]


def test_processes_of_others_go_on_after_an_error() -> None:
    """The calling process may have children of its own, such as a loader's."""
    spawn = multiprocessing.get_context("spawn")
    go = spawn.Event()
    other = spawn.Process(target=go.wait, daemon=True)
    other.start()
    with pytest.raises(InputError):
        list(in_order_by_files([fails] * 3, Processes(2)))
    assert other.is_alive()
    go.set()
    other.join()
    assert other.exitcode == 0


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Traces of five ranks, and their outputs below ``out``; not yet compared."""
    folder = tmp_path_factory.mktemp("crew")
    simulate(JobOptions(ranks=5, steps=3, layers=2, straggler=3), folder / "in")
    for path in (folder / "in").glob("*.truth.json"):
        path.unlink()
    return folder


def concluded(folder: Path, **how: Any) -> bytes:
    inputs = choose_inputs([str(folder / "in")], str(folder / "out")).inputs
    run = Run(inputs, RunPlan(Request(formats=("chrome",)), compares=True, **how))
    list(run.convert())
    (job,) = run.conclude()
    (path,) = job.written
    content = Path(path).read_bytes()
    Path(path).unlink()
    return content


def test_portions_and_processes_change_nothing(converted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = concluded(converted)
    monkeypatch.setattr(answer, "RANKS", 2)
    here = concluded(converted)
    assert concluded(converted, jobs=2) == here
    assert_equal_but_for_the_order_of_adding(here, whole)


def assert_equal_but_for_the_order_of_adding(*contents: bytes) -> None:
    """Means and deviations differ in their last digits."""
    documents, added = [json.loads(content) for content in contents], []
    for document in documents:
        rows = document["analyses"]["aggregates"]["rows"]
        added.append([row.pop(name) for row in rows for name in ("mean", "std")])
    assert documents[0] == documents[1]
    assert added[0] == pytest.approx(added[1], rel=1e-9, abs=1e-3)


def test_outputs_whose_tracks_stay_are_not_written_again(tmp_path: Path) -> None:
    simulate(JobOptions(ranks=3, steps=2, layers=1, straggler=1), tmp_path / "in")
    for path in (tmp_path / "in").glob("*.truth.json"):
        path.unlink()
    batch(tmp_path / "in", tmp_path / "out", formats=FORMATS)
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("*.augmented.*")}
    changed = tmp_path / "in" / "rank1.pt.trace.json.gz"
    document = json.loads(gzip.decompress(changed.read_bytes()))
    changed.write_bytes(gzip.compress(json.dumps({"note": "seen", **document}).encode()))
    results, drawn = batch(tmp_path / "in", tmp_path / "out", formats=FORMATS)
    assert [result.status for result in results] == ["done_before", "augmented", "done_before"]
    assert len(drawn) == 3
    after = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("*.augmented.*")}
    assert {name for name in before if before[name] != after[name]} == {
        f"rank1.augmented.{suffix}" for suffix in ("json.gz", "pftrace", "zip")
    }
    batch(tmp_path / "in", tmp_path / "at once", formats=FORMATS)
    assert contents(tmp_path / "out") == contents(tmp_path / "at once")
    assert batch(tmp_path / "in", tmp_path / "out", formats=FORMATS)[1] == []
    assert len({line["drawn"] for line in lines(tmp_path / "out")[-3:]}) == 1


@pytest.mark.skipif(sys.platform == "win32", reason="processes are ended otherwise there")
def test_a_worker_that_waits_ends_though_no_signal_interrupts_it() -> None:
    """As where the signal arrives after Python has looked for one, and before the system waits: blocked here."""
    waits = "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM]); print('waits', flush=True); os.read(0, 1)"
    begun = f"import os, signal; from augment.batch import workers; workers._begin(); {waits}"
    with subprocess.Popen([sys.executable, "-c", begun], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:
        try:
            assert next(iter(worker.stdout or [])) == b"waits\n"
            worker.terminate()
            assert worker.wait(60) == 143
        finally:
            worker.kill()
