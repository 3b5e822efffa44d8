"""The commands of the pages run, as they stand and in their order."""

from __future__ import annotations

import re
import runpy
import shlex
import shutil
import sys
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

import click
import pytest
from running import Augment

from augment.cli.registry import group
from augment.cli.serve import Served

ROOT = Path(__file__).resolve().parents[2]
from simulator import JobOptions, simulate  # noqa: E402

pytestmark = pytest.mark.slow

FLAGS = re.DOTALL | re.MULTILINE
BLOCK = re.compile(r"^```sh\n(.*?)^```", FLAGS)
SHELL = re.compile(r"^```(?:sh|console)\n(.*?)^```", FLAGS)
#: they wait for a browser or a client: tests/cli/test_open.py, tests/server
ELSEWHERE = ("open", "serve", "work")
#: what a command needs that is not here: a cloud, a cluster, a scheduler, a server, or a job of so many ranks
NOT_HERE = (
    "s3://", "gs://", "https://", "--scheduler", "--shard", "--server", "--graph-capture", "DIR/", "0,8,16-23",
    "DECODE",
)  # fmt: skip
TOLD = [f"docs/why-slow{what}.md" for what in ("", "-job", "-server")]  #: what they print is compared
CODES = {"check": {0, 1, 4}, "diagnose": {0, 1}}  #: exit codes that are answers
OF_DOCS = "quickstart batch diagnosis diff history jobs open queries report tables telemetry"
PAGES = ["README.md", *(f"docs/{name}.md" for name in OF_DOCS.split())]


def commands(page: str) -> Iterator[list[str]]:
    """The arguments of each call of augment that can run here."""
    for block in BLOCK.findall((ROOT / page).read_text()):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line.partition(">")[0], comments=True) if line.startswith("augment ") else []
            if words[:1] == ["augment"] and words[1] not in ELSEWHERE and not any(each in line for each in NOT_HERE):
                yield words[1:]


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    simulate(JobOptions(ranks=4, steps=7, layers=1, stacks=True), folder)
    for truth in folder.glob("*.truth.json"):
        truth.unlink()
    return folder


@pytest.fixture
def folder(traces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the pages' commands are run."""
    job = sorted(shutil.copytree(traces, tmp_path / "traces").iterdir())
    for name in ("rank0", "before", "after", "control", "test"):
        for suffix in (".pt.trace.json.gz", ".json.gz"):
            shutil.copy(job[0], tmp_path / f"{name}{suffix}")
    for side in ("before", "after", "monday", "tuesday", "wednesday", "thursday"):
        shutil.copytree(tmp_path / "traces", tmp_path / "runs" / side)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, running_engine: None) -> None:
    """Without processes of its own, which change nothing: tests/cli/test_odd_inputs.py, tests/batch."""
    monkeypatch.setattr("augment.batch.execution._workers", lambda *_: None)


def script(path: str, *words: str) -> None:
    """``python PATH WORDS…``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [path, *words])
        assert not runpy.run_path(str(ROOT / path))["main"]()


def prepare(page: str, folder: Path, augment: Augment) -> None:
    """What a page takes for granted: its tables, a query, a store that is not there yet, a merged job, samples."""
    match page:
        case "docs/tables.md":
            written = re.findall(r"^```toml\n(.*?)^```", (ROOT / page).read_text(), FLAGS)
            (folder / "ours.toml").write_text(written[0])
        case "docs/telemetry.md":
            heading = "timestamp, index, power.draw.instant [W], clocks.current.sm [MHz]\n"
            samples = [f"2025/03/15 03:12:{s:02}.000, 0, {500 + s}.00 W, 1980 MHz\n" for s in range(60)]
            (folder / "smi.csv").write_text(heading + "".join(samples))
        case "docs/queries.md":
            (folder / "query.sql").write_text("select count(*) from slice")
            assert augment("run", "rank0.pt.trace.json.gz").code == 0
        case "docs/history.md":
            shutil.rmtree(folder / "runs")
        case "docs/report.md":
            shutil.rmtree(folder / "runs")
            for side in ("monday", "tuesday"):
                assert augment("run", "rank0.pt.trace.json.gz", "-o", f"runs/{side}").code == 0
        case "docs/diagnosis.md":
            shutil.rmtree(folder / "runs" / "after")
        case "docs/open.md":
            assert augment("run", "--merge", "traces", "-o", "job.augmented.pftrace").code == 0


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_run_in_order(page: str, folder: Path, augment: Augment) -> None:
    prepare(page, folder, augment)
    called = list(commands(page))
    assert called
    for words in called:
        ended = augment(*words)
        assert ended.code in CODES.get(words[0], {0}), (words, ended.err)


def test_every_page_with_commands_is_run_or_needs_what_is_not_here() -> None:
    pages = {f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")}
    assert {page for page in pages if any(commands(page))} <= {*PAGES, "docs/cli.md", *TOLD}


def test_every_command_of_every_page_is_one_that_augment_takes() -> None:
    """Also those that need what is not here: a cluster, a store, a server; their names and options are known."""
    pages = [path for name in ("docs", "examples", "deploy") for path in (ROOT / name).rglob("*.md")]
    commands_known = group()  # a command keeps its --help, whose names its context has
    context, seen = click.Context(commands_known, **commands_known.context_settings), 0
    for block in (block for page in [*ROOT.glob("*.md"), *pages] for block in SHELL.findall(page.read_text())):
        for line in re.findall(r"^[^#\n]*\baugment [a-z].*", block.replace("\\\n", " "), re.MULTILINE):
            words = shlex.split(line, comments=True)
            if "augment" not in words or words[0] in ("kubectl", "docker"):
                continue
            called = words[words.index("augment") + 1 :]
            called = list(takewhile(lambda word: not re.match(r"[|;&>]|2>", word), called))
            command = commands_known.get_command(context, called.pop(0))
            while isinstance(command, click.Group):
                command = command.get_command(context, called.pop(0))
            assert command is not None, line
            if isinstance(command, Served):
                command = getattr(pytest.importorskip("augment_server.ops.main"), str(command.name))
            command.make_parser(click.Context(command, parent=context)).parse_args(called)
            seen += 1
    assert seen > 100


def test_the_simulations_of_the_examples_run(tmp_path: Path) -> None:
    """As they stand, but for the folder and the size."""
    lines = [line for block in BLOCK.findall((ROOT / "examples/README.md").read_text()) for line in block.splitlines()]
    called = [shlex.split(line, comments=True) for line in lines if line.startswith("python examples/simulate.py")]
    assert len(called) > 5
    for words in called:
        if "--size" not in words and "8" not in words:
            words[3] = str(tmp_path / words[3].rpartition("/")[2])
            script(*words[1:])


@pytest.mark.parametrize("name", TOLD)
def test_the_pages_on_slow_runs_are_true(
    name: str, augment: Augment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their commands are run in their order, and each line that they show is printed by the one before."""
    page, printed = (ROOT / name).read_text(), ""
    monkeypatch.chdir(tmp_path)
    for kind, block in re.findall(r"^```(sh|text)\n(.*?)^```", page, FLAGS):
        for line in block.splitlines():
            words = shlex.split(line) if kind == "sh" else []
            if kind == "text":
                assert line in printed
            elif words[0] == "python":
                script(*words[1:])
            elif words[1] != "open":
                ended = augment(*words[1:])
                assert ended.code == 0, ended.err
                printed = ended.out
