"""What is asked of a whole job: summaries are kept, and jobs concluded from them alone."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import counted_batch
import pytest
from counted_batch import COUNTED
from msgspec.structs import replace

from augment.batch.execution import Run
from augment.batch.inputs import Input, choose_inputs
from augment.batch.job_question import conclude
from augment.batch.run_plan import Result
from augment.pipeline.request import Request
from traces import kernel, write_trace


@pytest.fixture(autouse=True)
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(counted_batch.LOG, str(tmp_path / "log"))
    return tmp_path / "log"


def concluded(inputs: Sequence[Input], results: Mapping[str, Result]) -> list[str]:
    assert COUNTED.question is not None
    return [path for job in conclude(COUNTED.question, inputs, results, Request()) for path in job.written]


def batch(source: Path, out: Path) -> tuple[list[Result], list[str]]:
    inputs = choose_inputs([str(source)], str(out)).inputs
    run = Run(inputs, COUNTED)
    return list(run.convert()), [path for job in run.conclude() for path in job.written]


def test_jobs_are_concluded_from_what_was_done_before_too(tmp_path: Path, log: Path) -> None:
    for name in ("a_rank0.json", "a_rank1.json", "b_rank0.json", "b_rank1.json", "alone.json"):
        write_trace(tmp_path / "in" / name)
    (tmp_path / "in" / "b_rank1.json").write_bytes(b'{"a": nope}')
    out = tmp_path / "out"
    _, written = batch(tmp_path / "in", out)
    assert written == [str(out / "a.job.metrics.json")]  # b has one rank, and alone is alone
    write_trace(tmp_path / "in" / "b_rank1.json", kernel())
    results, written = batch(tmp_path / "in", out)
    assert [result.status for result in results].count("done_before") == 4
    assert written == [str(out / "a.job.metrics.json"), str(out / "b.job.metrics.json")]
    assert json.loads((out / "b.job.metrics.json").read_bytes()) == {"events": 7, "ranks": 2}
    assert len(log.read_text().splitlines()) == 5
    assert (out / "a_rank0.count.summary").read_bytes() == b"6"


def test_a_summary_that_is_gone_is_made_again(tmp_path: Path) -> None:
    write_trace(tmp_path / "in" / "rank0.json")
    batch(tmp_path / "in", tmp_path / "in")
    (tmp_path / "in" / "rank0.count.summary").unlink()
    (result,), _ = batch(tmp_path / "in", tmp_path / "in")
    assert result.status == "augmented"
    assert [Path(path).name for path in result.outputs] == ["rank0.augmented.pftrace", "rank0.metrics.json"]


def test_of_jobs_in_the_cloud(tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    for rank in range(2):
        write_trace(tmp_path / "in" / f"rank{rank}.json")
    inputs = choose_inputs([str(tmp_path / "in")], "memory://stages/out").inputs
    results = {each.path: each for each in Run(inputs, COUNTED).convert()}
    assert concluded(inputs, results) == ["memory://stages/out/job.metrics.json"]
    fs = fsspec.filesystem("memory")
    assert json.loads(fs.cat_file("/stages/out/job.metrics.json")) == {"events": 12, "ranks": 2}
    fs.rm("/stages", recursive=True)


def test_ranks_without_a_summary_are_left_out(tmp_path: Path) -> None:
    for rank in range(3):
        write_trace(tmp_path / "in" / f"rank{rank}.json")
    inputs = choose_inputs([str(tmp_path / "in")], str(tmp_path / "out")).inputs
    results = {each.path: each for each in Run(inputs, COUNTED).convert()}
    bare = {path: replace(each, summaries=()) for path, each in results.items()}
    assert concluded(inputs, bare) == []
    first = inputs[0].path
    assert concluded(inputs, {**bare, first: results[first]}) == []
