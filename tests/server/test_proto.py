"""The API as buf judges it: its style, every comment, and nothing broken since it was released."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BESIDE = Path(sys.executable).parent / "buf"


@pytest.fixture(scope="module")
def buf() -> str:
    result = str(BESIDE) if BESIDE.exists() else shutil.which("buf")
    if result is None:
        pytest.skip("buf is not installed (package buf-bin)")
    return result


def run(*command: object, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(each) for each in command], cwd=cwd, capture_output=True, encoding="utf-8", timeout=600)


def test_as_make_check_judges(buf: str) -> None:
    ended = run(sys.executable, "proto/judge.py")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout in ("", "no branch main with an API to compare with\n")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "proto", tmp_path / "proto", ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    return tmp_path / "proto"


def change(proto: Path, name: str, *changes: tuple[str, str]) -> None:
    path = proto / "augment" / "v1" / name
    text = path.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)


def test_lint_finds_what_is_wrong(buf: str, copy: Path) -> None:
    change(copy, "service.proto", ('  // "jobs/ID".\n', ""), ("service AugmentService", "service Augment"))
    change(copy, "resources.proto", ("// The trace.\n", "\n"))
    ended = run(buf, "lint", copy)
    assert ended.returncode != 0
    assert 'should be suffixed with "Service"' in ended.stdout
    assert "should have a non-empty comment" in ended.stdout


def test_what_breaks_callers_is_found(buf: str, copy: Path) -> None:
    change(copy, "resources.proto", ("  int64 received_bytes = 4;", "  int64 received_bytes = 40;"))
    ended = run(buf, "breaking", copy, "--against", ROOT / "proto")
    assert ended.returncode != 0
    assert 'field "4" with name "received_bytes"' in ended.stdout
