"""``augment diff --server``: the same files, words and exit codes as without it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from serving_process import Server, serving

from augment import cli
from simulator import JobOptions, simulate

Ended = tuple[int, str, str, dict[str, bytes]]  #: exit code, stdout, stderr, the files written
Command = Callable[..., Ended]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("state")) as server:
        yield server


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Control and test."""
    folder = tmp_path_factory.mktemp("traces")
    ((control, _),) = simulate(JobOptions(ranks=1, steps=2, layers=1), folder / "control")
    ((test, _),) = simulate(JobOptions(ranks=1, steps=2, layers=1, slow_kernel="nvjet"), folder / "test")
    return control, test


@pytest.fixture
def both(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], server: Server, tmp_path: Path
) -> Command:
    """``augment diff ARGS…`` with a server; it must say, return and write what it does without one."""

    def run(*args: object) -> Ended:
        out = tmp_path / "out"
        monkeypatch.setattr(sys, "argv", ["augment", "diff", *map(str, args), "-o", str(out)])
        capsys.readouterr()
        ended = (cli.main(), *capsys.readouterr())
        written = {path.name: path.read_bytes() for path in out.iterdir()} if out.is_dir() else {}
        for name in written:
            (out / name).unlink()
        return (*ended, written)

    def command(*args: object) -> Ended:
        here = run(*args)
        assert run(*args, "--server", server.address) == here
        return here

    return command


def test_tables_and_files(both: Command, traces: tuple[Path, Path]) -> None:
    code, out, err, written = both(*traces)
    assert code == 0
    assert "Where the difference comes from" in out
    assert "written: " in err
    assert sorted(written) == ["rank0.diff.metrics.json", "rank0.diff.pftrace"]


def test_every_option_goes_there(both: Command, traces: tuple[Path, Path]) -> None:
    options = ("--to", "chrome,perfetto", "--overlay", "--label", "before", "--min-delta-us", 5, "--arrows", 3,
               "--step", "0:1", "--short-names", "--functions")  # fmt: skip
    code, out, _, written = both(*traces, *options, "--json")
    assert (code, len(written)) == (0, 4)
    assert out.encode().rstrip() == written["rank0.diff.metrics.json"].rstrip()
    assert both(*traces, "--region", "nothing", "--quiet")[0] == 2


@pytest.mark.parametrize("broken_side", [0, 1])
def test_bad_inputs(both: Command, traces: tuple[Path, Path], tmp_path: Path, broken_side: int) -> None:
    bad = tmp_path / "bad.json"
    for content in (None, "", "no trace", '{"traceEvents": [{"ph": "X", "ts": 1}, nonsense'):
        if content is not None:
            bad.write_text(content)
        sides = list(traces)
        sides[broken_side] = bad
        code, _, err, written = both(*sides)
        assert (code, written) == (3, {})
        assert str(bad) in err


@pytest.mark.parametrize("args", [["--step", "9"], ["--step", "x"], ["--to", "nothing"]])
def test_usage_errors(both: Command, traces: tuple[Path, Path], args: list[str]) -> None:
    assert both(*traces, *args)[0] == 2


def test_folders(both: Command, tmp_path: Path) -> None:
    """All ranks are compared, or one of each side; other files there are passed over."""
    simulate(JobOptions(ranks=2, steps=2, layers=1), tmp_path / "before")
    simulate(JobOptions(ranks=2, steps=2, layers=1, slow_kernel="nvjet"), tmp_path / "now")
    code, _, _, written = both(tmp_path / "before", tmp_path / "now")
    assert code == 0
    assert sorted(written) == ["now.diff.metrics.json", "rank0.diff.pftrace", "rank1.diff.pftrace"]
    _, _, _, written = both(tmp_path / "before", tmp_path / "now", "--control-rank", 1, "--test-rank", 0)
    assert sorted(written) == ["now.diff.metrics.json", "rank0.diff.pftrace"]
    rank = next((tmp_path / "now").glob("rank1*.gz"))
    assert both(tmp_path / "before", rank, "--control-rank", 1)[0] == 0


def test_what_a_server_does_not_take(
    server: Server, traces: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    args = [*map(str, traces), "--peak", "dense_bf16_tflops=1000"]
    monkeypatch.setattr(sys, "argv", ["augment", "diff", *args, "--server", server.address])
    assert cli.main() == 2
    assert "--peak: not supported with --server" in capsys.readouterr().err
