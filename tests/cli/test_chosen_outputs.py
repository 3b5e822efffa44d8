"""``--outputs``: traces of the ranks that tell most, or of chosen ones; the same bytes as of all."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from running import Augment

from augment.cli.open import trace_of
from augment.errors import InputError
from simulator import JobOptions, simulate

pytestmark = pytest.mark.slow

LATE = 9


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ranks of two nodes, of which one is late."""
    folder = tmp_path_factory.mktemp("traces")
    simulate(JobOptions(ranks=10, steps=3, layers=1, straggler=LATE), folder)
    for path in folder.glob("*.truth.json"):
        path.unlink()
    return folder


@pytest.fixture
def run(augment: Augment) -> Augment:
    return lambda traces, out, outputs, *more: augment(
        "run", traces, "-o", out, "--only", "temporal_breakdown", "--outputs", outputs, *more
    )


def drawn(out: Path) -> list[int]:
    return sorted(int(path.name.split(".")[0].removeprefix("rank")) for path in out.glob("*.pftrace"))


def expect_equal(out: Path, whole: Path) -> None:
    for path in out.glob("*.metrics.json"):
        assert path.read_bytes() == (whole / path.name).read_bytes(), path.name
    for path in out.glob("*.pftrace"):
        assert path.read_bytes() == (whole / path.name).read_bytes(), path.name
    assert len(list(out.glob("*.metrics.json"))) == 11  # of all ranks, and of the job


def test_what_tells_most_then_what_is_asked_for_then_all(traces: Path, tmp_path: Path, run: Augment) -> None:
    whole, out = tmp_path / "whole", tmp_path / "out"
    run(traces, whole, "all")
    ended = run(traces, out, "none")
    assert (ended.code, drawn(out)) == (0, [])
    expect_equal(out, whole)

    ended = run(traces, out, "auto", "--jobs", 2)
    shown = drawn(out)
    assert ended.code == 0
    assert {0, 8, LATE} < set(shown)  # the first of each node, the late rank, and the one that waits longest for it
    assert len(shown) == 4
    printed = [Path(line).name for line in ended.out.splitlines() if line.endswith(".pftrace")]
    assert sorted(printed) == sorted(path.name for path in out.glob("*.pftrace"))
    expect_equal(out, whole)

    before = {path: path.stat().st_mtime_ns for path in out.iterdir()}
    assert run(traces, out, "auto").code == 0
    assert {path: path.stat().st_mtime_ns for path in out.iterdir()} == before  # nothing is done again

    assert run(traces, out, "3-4").code == 0
    assert drawn(out) == sorted({3, 4, *shown})
    assert run(traces, out, "none").code == 0
    assert drawn(out) == sorted({3, 4, *shown})  # what is there stays
    expect_equal(out, whole)

    assert run(traces, out, "all").code == 0
    assert drawn(out) == [*range(10)]
    expect_equal(out, whole)


def test_a_written_trace_follows_its_input(traces: Path, tmp_path: Path, run: Augment) -> None:
    source, out = tmp_path / "in", tmp_path / "out"
    shutil.copytree(traces, source)
    run(source, out, "3")
    before = (out / "rank3.augmented.pftrace").read_bytes()
    shutil.copy(source / "rank4.pt.trace.json.gz", source / "rank3.pt.trace.json.gz")
    run(source, out, "none")
    assert (out / "rank3.augmented.pftrace").read_bytes() != before


def test_traces_of_no_job_are_written(traces: Path, tmp_path: Path, run: Augment) -> None:
    shutil.copy(traces / "rank3.pt.trace.json.gz", tmp_path)
    ended = run(tmp_path, tmp_path / "out", "auto", "--json")
    assert drawn(tmp_path / "out") == [3]
    last = json.loads(ended.out.splitlines()[-1])
    assert [Path(path).name for path in last["outputs"]] == ["rank3.augmented.pftrace", "rank3.metrics.json"]
    assert run(traces / "rank3.pt.trace.json.gz", tmp_path / "single", "auto").code == 0
    assert drawn(tmp_path / "single") == [3]


def test_a_rank_on_demand(traces: Path, tmp_path: Path, augment: Augment) -> None:
    source, out, scratch = tmp_path / "in", tmp_path / "out", tmp_path / "scratch"
    source.mkdir()
    for rank in (0, 3, LATE):
        shutil.copy(traces / f"rank{rank}.pt.trace.json.gz", source)
    said: list[str] = []
    assert trace_of(str(source), 3, scratch, said.append, str) == str(source / "rank3.pt.trace.json.gz")
    assert said == [f"the verdict of its job: augment diagnose {source}"]
    augment("run", source, "-o", out, "--outputs", "none")
    made = Path(trace_of(str(out), LATE, scratch, str, str))
    assert (made.parent, drawn(out)) == (scratch, [])
    augment("run", source, "-o", out, "--outputs", LATE)
    there = trace_of(str(out), LATE, scratch, str, str)
    assert there == str(out / f"rank{LATE}.augmented.pftrace")
    assert made.read_bytes() == Path(there).read_bytes()
    with pytest.raises(InputError, match="holds 0 traces of rank 7"):
        trace_of(str(out), 7, scratch, str, str)
    ended = augment("open", made, "--rank", 3)
    assert (ended.code, "needs a folder" in ended.err) == (2, True)


@pytest.mark.parametrize("outputs", ["some", "3-", "5-3"])
def test_refused(traces: Path, tmp_path: Path, outputs: str, run: Augment) -> None:
    ended = run(traces, tmp_path, outputs)
    assert ended.code == 2
    assert "none of all, auto, none, and no ranks" in ended.err
