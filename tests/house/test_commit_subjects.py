"""The check of commit subjects: what is older than its base is left alone."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import commit_subjects
import pytest

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
LONG = "A subject that says so much of what was changed that no list of commits shows it whole"


def git(root: Path, *arguments: str) -> str:
    names = ["-c", "user.name=Nobody", "-c", "user.email=nobody@example.com", "-c", "commit.gpgsign=false"]
    command = ["git", "-C", str(root), *names, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def commit(root: Path, subject: str) -> str:
    git(root, "commit", "--allow-empty", "--quiet", "-m", subject)
    return git(root, "rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    git(tmp_path, "init", "--quiet")
    monkeypatch.setattr(commit_subjects, "ROOT", tmp_path)
    return tmp_path


def test_long_subjects_are_named(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = commit(repository, LONG)
    commit(repository, "x" * 72)
    assert commit_subjects.main([base]) == 0
    commit(repository, LONG + " again")
    commit(repository, "Short")
    assert commit_subjects.main([base]) == 1
    output = capsys.readouterr().out
    assert LONG + " again" in output
    assert len(output.splitlines()) == 1


def test_without_the_base_the_last_commit_alone_is_checked(repository: Path) -> None:
    commit(repository, LONG)
    commit(repository, "Short")
    assert commit_subjects.main([]) == 0
    commit(repository, LONG)
    assert commit_subjects.main([]) == 1


def test_without_a_history_there_is_nothing_to_check(tmp_path: Path) -> None:
    assert commit_subjects.subjects(tmp_path / "absent", "base") == []
