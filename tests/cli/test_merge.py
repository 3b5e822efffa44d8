"""``augment run --merge``: beside each rank's outputs, or alone; ``augment merge``, its earlier name."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

import pytest
from running import Augment, unpacked

import layered_job
from perfetto_engine import PerfettoEngine
from traces import kernel, step, write_trace

pytestmark = pytest.mark.slow


@pytest.fixture
def job(tmp_path: Path) -> Path:
    for rank in range(3):
        write_trace(tmp_path / "job" / f"rank{rank}.json", step(0), kernel(f"k{rank}"), step(1, 100), kernel("b", 120))
    return tmp_path / "job"


def kernels(perfetto: PerfettoEngine, path: Path) -> list[object]:
    perfetto.load_clean(path)
    return [name for (name,) in perfetto.rows("select name from slice where category = 'kernel' order by name")]


def test_a_folder(job: Path, augment: Augment, perfetto: PerfettoEngine) -> None:
    ended = augment("merge", job)
    out = job / "job.augmented.pftrace"
    assert (ended.code, ended.lines) == (0, [str(out)])
    assert ended.err.splitlines()[0] == "3 ranks"
    assert ended.err.splitlines()[1].startswith("clocks: 0 corrected, ")
    assert ended.err.splitlines()[-2].startswith("These three traces share no collectives")
    assert ended.err.splitlines()[-1] == f"open it: augment open {out}"
    assert kernels(perfetto, out) == ["b", "b", "b", "k0", "k1", "k2"]
    before = out.read_bytes()
    assert augment("merge", job, "--quiet").err == ""  # what it wrote itself is no input
    assert out.read_bytes() == before


def test_ranks_steps_and_analyses(job: Path, tmp_path: Path, augment: Augment, perfetto: PerfettoEngine) -> None:
    out = tmp_path / "out" / "some.pftrace"
    options = ("--ranks", "0,2", "--steps", "0", "--only", "queue_length", "--no-align")
    ended = augment("run", "--merge", job, "-o", out, *options)
    assert (ended.code, ended.lines) == (0, [str(out)])
    assert [path.name for path in out.parent.iterdir()] == ["some.pftrace"]
    assert augment("merge", job, "-o", tmp_path / "as.pftrace", *options).err.replace("as.", "out/some.") == ended.err
    assert kernels(perfetto, out) == ["k0", "k2"]
    assert perfetto.rows("select count(*) from slice where category glob 'augment.idle*'") == [(0,)]
    assert "clocks: as recorded" in ended.err


def test_a_tar(job: Path, tmp_path: Path, augment: Augment) -> None:
    assert augment("run", job, "--merge", "-o", tmp_path / "job.tar", "--quiet").code == 0
    with tarfile.open(tmp_path / "job.tar") as tar:
        assert tar.getnames() == [f"{rank:04}-rank-{rank}.pftrace" for rank in range(3)] + ["perfetto_manifest.json"]


def test_what_goes_wrong(job: Path, tmp_path: Path, augment: Augment) -> None:
    ended = augment("merge", job, "--steps", "7")
    assert (ended.code, ended.err) == (2, "augment: --steps: no rank has step 7\n")
    assert augment("merge", tmp_path / "nothing").code == 3
    ended = augment("merge", job, "-o", tmp_path / "job.json.gz")
    expected = (2, f"augment: -o {tmp_path / 'job.json.gz'}: a timeline must end in .pftrace or .tar\n")
    assert (ended.code, ended.err) == expected
    for options, because in (
        (["--whole"], "--whole: needs --merge"),
        (["--merge", "-o", "a.pftrace", "--json"], "--json: not supported where -o names a timeline"),
    ):
        ended = augment("run", job, *options)
        assert (ended.code, because in ended.err) == (2, True)
    (job / "rank1.json").write_bytes(b'{"a": nope}')
    ended = augment("merge", job, "--quiet")
    assert ended.code == 1
    assert ended.err.startswith(f"augment: {job / 'rank1.json'}: ")


def test_a_timeline_is_no_input(job: Path, augment: Augment) -> None:
    out = job / "all.pftrace"
    assert augment("merge", job, "-o", out).code == 0
    before = out.read_bytes()
    assert augment("merge", job, "-o", out).code == 0
    assert out.read_bytes() == before
    ended = augment("merge", out)
    expected = (2, "augment: was written by augment itself; name the trace that it was made from\n")
    assert (ended.code, ended.err) == expected
    assert augment("run", job, "-o", job / "out").code == 0
    assert not (job / "all.augmented.json.gz").exists()
    assert augment("merge", job / "out").err == "augment: there is no trace, but outputs of augment alone\n"


def test_as_part_of_a_run(job: Path, tmp_path: Path, augment: Augment, perfetto: PerfettoEngine) -> None:
    out = tmp_path / "out"
    merged = out / "job.augmented.pftrace"
    first = augment("run", job, "-o", out, "--merge", "--steps", "0")
    assert first.code == 0
    assert first.lines[-1] == str(merged)
    assert f"open it: augment open {merged}\n" in first.err
    assert kernels(perfetto, merged) == ["k0", "k1", "k2"]
    written = merged.stat().st_mtime_ns
    assert augment("run", job, "-o", out, "--merge", "--steps", "0").lines == first.lines
    assert merged.stat().st_mtime_ns == written  # nothing had changed
    write_trace(job / "rank1.json", step(0), kernel("other"))
    assert augment("run", job, "-o", out, "--merge", "--steps", "0").code == 0
    assert kernels(perfetto, merged) == ["k0", "k2", "other"]


@pytest.mark.parametrize("formats", ["perfetto", "chrome"])
def test_no_rank_is_analysed_again(
    job: Path, tmp_path: Path, augment: Augment, monkeypatch: pytest.MonkeyPatch, formats: str
) -> None:
    """A run keeps the tracks of its ranks for the timeline; where it has none, as of those converted before, they are
    made again, to the same bytes; so they are by several processes."""
    from augment.pipeline import augment as analyse

    calls: list[object] = []

    def counted(*args: Any, **how: Any) -> Any:
        calls.append(args)
        return analyse(*args, **how)

    monkeypatch.setattr("augment.pipeline.augment", counted)
    assert augment("run", job, "-o", tmp_path / "o", "--to", formats, "--merge").code == 0
    timeline = tmp_path / "o" / "job.augmented.pftrace"
    first, ranks = timeline.read_bytes(), len(list((tmp_path / "o").glob("rank*.metrics.json")))
    assert len(calls) == ranks
    timeline.unlink()
    assert augment("run", job, "-o", tmp_path / "o", "--to", formats, "--merge").code == 0
    assert len(calls) == 2 * ranks
    assert timeline.read_bytes() == first
    timeline.unlink()
    assert augment("run", job, "-o", tmp_path / "o", "--to", formats, "--merge", "--jobs", "2", "--force").code == 0
    assert timeline.read_bytes() == first
    assert [path.name for path in (tmp_path / "o").iterdir() if path.is_dir()] == []


def test_trusted_clocks(tmp_path: Path, augment: Augment) -> None:
    layered_job.make(tmp_path / "job", "seq", 4, "gpu")
    for options, reason in ((["--trust-clocks"], "uncertain by 1.000 ms"), ([], "which nothing joins with")):
        assert augment("merge", tmp_path / "job", "-o", tmp_path / "job.pftrace", *options).code == 0
        assert reason.encode() in unpacked(tmp_path / "job.pftrace")
