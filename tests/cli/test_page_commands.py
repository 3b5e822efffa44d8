"""The commands of the README and the quickstart run, as they stand and in their order."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from running import Augment

ROOT = Path(__file__).resolve().parents[2]
from simulator import JobOptions, simulate  # noqa: E402

pytestmark = pytest.mark.slow

BLOCK = re.compile(r"^```sh\n(.*?)^```", re.DOTALL | re.MULTILINE)
ELSEWHERE = ("open", "serve")  #: they wait for a browser or a client: tests/cli/test_open.py, tests/server
CODES = {"check": {0, 1, 4}}  #: exit codes that are answers


def commands(page: str) -> Iterator[list[str]]:
    """The arguments of each call of augment, without what needs a server or a browser."""
    for block in BLOCK.findall((ROOT / page).read_text()):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words[:1] == ["augment"] and words[1] not in ELSEWHERE and "--server" not in words:
                yield words[1:]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the pages' commands are run."""
    (first, _), (second, _) = simulate(JobOptions(ranks=2, steps=3, layers=2), tmp_path / "traces")
    names = ("rank0.pt.trace.json.gz", "before.pt.trace.json.gz", "before.json.gz")
    for name in names:
        shutil.copy(first, tmp_path / name)
    for name in ("after.pt.trace.json.gz", "after.json.gz"):
        shutil.copy(first, tmp_path / name)
    assert second.exists()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("page", ["README.md", "docs/quickstart.md"])
def test_the_commands_of_a_page_run_in_order(page: str, folder: Path, augment: Augment) -> None:
    called = list(commands(page))
    assert len(called) > 5
    for words in called:
        ended = augment(*words)
        assert ended.code in CODES.get(words[0], {0}), (words, ended.err)
    assert list(folder.glob("**/*.metrics.json"))
