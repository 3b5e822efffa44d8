"""``augment diagnose`` and ``augment report`` with a server: the same words, files and exit codes as without it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from serving_process import Server, serving

from augment import cli
from simulator import JobOptions, simulate

Ended = tuple[int, str, str]  #: exit code, stdout, stderr
Command = Callable[..., Ended]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("state")) as running:
        yield running


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], server: Server) -> Command:
    """``augment diagnose ARGS…`` with a server; it must say and return what it does without one."""

    def run(*args: object) -> Ended:
        monkeypatch.setattr(sys, "argv", ["augment", "diagnose", *map(str, args)])
        capsys.readouterr()
        return (cli.main(), *capsys.readouterr())

    def command(*args: object) -> Ended:
        here = run(*args)
        assert run(*args, "--server", server.address) == here
        return here

    return command


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ranks, and files that are no traces."""
    folder = tmp_path_factory.mktemp("traces") / "training"
    simulate(JobOptions(ranks=2, steps=2, layers=1), folder)
    return folder


def test_a_folder(both: Command, folder: Path) -> None:
    code, out, _ = both(folder)
    assert code == 0
    assert out.startswith("job training, 2 traces:")
    assert both(folder, "--json")[1].count("\n") == 3
    assert both(folder, "--markdown", "--fail-on", "warning")[0] in (0, 1)


def test_files(both: Command, folder: Path, tmp_path: Path) -> None:
    trace = sorted(folder.glob("*.gz"))[0]
    (tmp_path / "bad.json").write_text("no trace")
    assert both(trace)[0] == 0
    assert both(tmp_path / "bad.json")[0] == 3
    code, out, err = both(trace, tmp_path / "bad.json", tmp_path / "missing.json")
    assert code == 1
    assert str(trace) in out
    assert str(tmp_path / "bad.json") in err


def test_reports(
    folder: Path, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a trace, a folder and a comparison: what they are made of comes from the server."""
    trace, other = sorted(folder.glob("*.gz"))
    monkeypatch.chdir(tmp_path)

    def run(*args: object) -> tuple[int, str, dict[str, bytes]]:
        monkeypatch.setattr(sys, "argv", ["augment", "report", *map(str, args)])
        capsys.readouterr()
        code = cli.main()
        written = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
        for name in written:
            (tmp_path / name).unlink()
        return code, capsys.readouterr().out, written

    for args in ((trace,), (folder,), ("--diff", trace, other), (folder, "--markdown")):
        here = run(*args)
        assert (here[0], len(here[2])) == (0, 0 if "--markdown" in args else 1)
        with monkeypatch.context() as patched:
            for name in ("augment.cli.show.analysed", "augment.cli.report._run"):
                patched.setattr(name, None)
            assert run(*args, "--server", server.address) == here
