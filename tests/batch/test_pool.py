"""Giving out work: any workers that speak concurrent.futures, within memory, results in order."""

from __future__ import annotations

import gzip
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from augment.batch import memory_limit
from augment.batch.conversion import Result
from augment.batch.inputs import Input, choose_inputs
from augment.batch.workers import Task, work_through

PATIENCE_S = 300.0


class Gone(Exception):
    pass


class Threads:
    """Workers that are threads; one input kills them all, as often as it is told to."""

    lost: type[Exception] = Gone

    def __init__(self, size: int = 3, deaths: int = 0) -> None:
        self._executor = ThreadPoolExecutor(size)
        self._size, self._deaths = size, deaths
        self._lock = threading.Lock()
        self.under_way: set[str] = set()
        self.together: list[set[str]] = []
        self.stopped = False
        self.go = threading.Event()  # what waits goes on when this is set
        self.pair = threading.Barrier(2)  # what is of a pair goes on when both are under way

    def capacity(self) -> int:
        return self._size

    def submit(self, task: Task) -> Future[Result]:
        return self._executor.submit(self._convert, task().path)

    def stop(self) -> None:
        self.stopped = True
        self._executor.shutdown()

    def _convert(self, path: str) -> Result:
        with self._lock:
            self.under_way.add(path)
            self.together.append(set(self.under_way))
        if path.startswith("waits"):
            self.go.wait(PATIENCE_S)
        elif path.startswith("pair"):
            self.pair.wait(PATIENCE_S)
        with self._lock:
            self.under_way.discard(path)
            if path.startswith("deadly") and self._deaths:
                self._deaths -= 1
                raise Gone
        return Result(path, "augmented")


def task_of(input: Input) -> Task:
    return lambda: Result(input.path, "augmented")


def inputs(*names: str, size: int = 0) -> list[Input]:
    return [Input(name, "out", named=True, size=size) for name in names]


def test_results_come_in_order_and_are_told_at_once() -> None:
    workers, output = Threads(), []
    names = ["waits", "a", "b", "d", "c"]

    def tell(input: Input, _result: Result) -> None:
        output.append(input.path)
        workers.go.set()

    assert [result.path for result in work_through(inputs(*names), task_of, workers, tell)] == names
    assert output[0] != "waits"
    assert sorted(output) == sorted(names)
    assert workers.stopped


@pytest.mark.parametrize(("deaths", "status"), [(1, "augmented"), (2, "failed")])
def test_what_died_is_tried_once_more_alone(deaths: int, status: str) -> None:
    workers = Threads(deaths=deaths)
    names = ["a", "deadly", "b", "c", "d"]
    results = list(work_through(inputs(*names), task_of, workers))
    assert [result.status for result in results] == ["augmented", status, *["augmented"] * 3]
    assert workers.together.count({"deadly"}) >= 1


def test_no_more_is_under_way_than_memory_allows() -> None:
    workers = Threads(size=4)
    sizes = {"pair1": 5, "pair2": 5, "other": 5, "largest": 90, "a": 1, "b": 1}
    many = inputs(*sizes)
    results = list(work_through(many, task_of, workers, needed=lambda item: sizes[item.path], budget=12))
    assert len(results) == len(many)
    assert {frozenset(some) for some in workers.together if "largest" in some} == {frozenset({"largest"})}
    assert max(sum(sizes[name] for name in some) for some in workers.together if "largest" not in some) == 10


def test_an_end_before_the_end_stops_the_workers() -> None:
    workers = Threads()
    results = work_through(inputs("a", "d", "b"), task_of, workers)
    assert next(results).path == "a"
    results.close()
    assert workers.stopped


def test_what_a_file_needs_is_told_by_what_it_holds(tmp_path: Path) -> None:
    text = b'{"traceEvents": [' + b" " * 3_000_000 + b"]}"
    zipped = gzip.compress(text)
    contents = {"a.json": text, "b.json.gz": zipped, "c.json.gz": zipped + gzip.compress(b" "), "d.json": b"{}"}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    plain, packed, members, tiny = (
        memory_limit.needed(each) - memory_limit.BASE for each in choose_inputs([str(tmp_path)], None).inputs
    )
    assert plain == packed == int(memory_limit.SHARE * len(text))
    assert 0 < members < plain
    assert tiny < 10
    far = Input("s3://bucket/a.json.gz", "out", named=True, size=10**6)
    assert memory_limit.needed(far) > memory_limit.BASE + 5 * far.size


@pytest.mark.parametrize("text", [10**6, 3 * 10**9, 5 * 10**9, 9 * 10**9, 30 * 10**9])
def test_a_length_modulo_4_gib_is_unwrapped(text: int) -> None:
    for ratio, off in ((9, 0.5), (12, 1e-9), (16, 0.5)):
        size = text // ratio
        assert abs(memory_limit._unwrapped(text % (1 << 32), size, 12 * size) - text) <= off * text


def test_memory_is_that_of_the_innermost_group(tmp_path: Path) -> None:
    folder = tmp_path / "group"
    folder.mkdir()
    output = {"memory.max": "1000", "memory.current": "900", "memory.stat": "anon 1\ninactive_file 300\n"}
    for name, text in output.items():
        (folder / name).write_text(text)
    assert memory_limit._left(folder, "memory.max", "memory.current") == [400]
    (folder / "memory.max").write_text("max\n")
    assert memory_limit._left(folder, "memory.max", "memory.current") == []
    assert 0 < memory_limit.available() < 1 << 50
