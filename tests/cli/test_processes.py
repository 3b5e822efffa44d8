"""Several processes, and processes that end before their time."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from odd_work import dies_of_some
from running import Augment, contents, environment, start

from augment.batch.inputs import Input
from augment.batch.workers import Processes, work_through
from traces import kernel, launch, write_trace

pytestmark = pytest.mark.slow


def test_processes_change_nothing(tmp_path: Path, augment: Augment, augment_apart: Augment) -> None:
    for rank in range(4):
        write_trace(tmp_path / "in" / f"rank{rank}.json.gz", launch(), kernel(dur=10 + rank))
    (tmp_path / "in" / "rank4.json").write_bytes(b'{"a": nope}')
    ended = augment("run", tmp_path / "in", "-o", tmp_path / "out")
    by_one = contents(tmp_path / "out")
    for path in (tmp_path / "out").iterdir():
        path.unlink()
    two = augment_apart("run", tmp_path / "in", "-o", tmp_path / "out", "--jobs", 2)
    assert contents(tmp_path / "out") == by_one
    assert (two.code, two.out, two.err) == (ended.code, ended.out, ended.err)
    assert ended.code == 1


def test_a_process_that_dies_fails_its_own_input_alone(tmp_path: Path) -> None:
    names = ["a", "deadly1", "b", "c", "deadly2", "d"]
    inputs = [Input(name, str(tmp_path), named=True) for name in names]
    results = list(work_through(inputs, lambda item: partial(dies_of_some, item), Processes(2)))
    assert [(result.path, result.status) for result in results] == [
        (name, "failed" if name.startswith("deadly") else "augmented") for name in names
    ]
    assert results[1].message.startswith("deadly1: its worker process died")
    assert results[1].exit_code == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("jobs", "number", "code"), [(1, signal.SIGINT, 130), (2, signal.SIGINT, 130), (1, signal.SIGTERM, 143)]
)
def test_an_interrupt_ends_it_and_leaves_no_half(tmp_path: Path, jobs: int, number: signal.Signals, code: int) -> None:
    folder = tmp_path / "in"
    traces = [write_trace(folder / name) for name in ("a.json", "held.json")]
    script, held = Path(__file__).with_name("held_command.py"), tmp_path / "held"
    command = [sys.executable, script, held, "run", *traces, "--jobs", jobs]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        list(map(str, command)), stdout=pipe, stderr=pipe, encoding="utf-8", env=environment()
    ) as process:
        assert process.stdout
        assert process.stdout.readline().endswith("a.augmented.pftrace\n")
        assert process.stdout.readline().endswith("a.metrics.json\n")
        while not held.exists():
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(number)
        _, err = process.communicate()
    assert process.returncode == code
    assert "Traceback" not in err
    assert err.splitlines()[-1].startswith("augment: interrupted" if code == 130 else "augment: terminated")
    assert sorted(path.name for path in folder.iterdir()) == [
        "a.augmented.pftrace", "a.json", "a.metrics.json", "a.ranks.summary", "held.json"
    ]  # fmt: skip


def test_a_reader_that_left_is_no_error(tmp_path: Path) -> None:
    for rank in range(2):
        write_trace(tmp_path / f"rank{rank}.json")
    process = start("run", tmp_path, "--quiet")
    assert process.stdout
    process.stdout.close()
    assert process.stderr
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait() == 0
    assert len(list(tmp_path.glob("rank*.metrics.json"))) == 2
