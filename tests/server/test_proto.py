"""The API as buf judges it: its style, every comment, and nothing broken since it was released."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from node_tools import installed

ROOT = Path(__file__).parents[2]
BUF = json.dumps({"private": True, "dependencies": {"@bufbuild/buf": "^1.47.0"}})


@pytest.fixture(scope="module")
def buf() -> str:
    return str(installed(BUF) / "node_modules" / ".bin" / "buf")


def run(buf: str, *args: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run([buf, *args], cwd=cwd, capture_output=True, encoding="utf-8", timeout=600)


def test_lint(buf: str) -> None:
    ended = run(buf, "lint", "proto")
    assert (ended.returncode, ended.stdout + ended.stderr) == (0, "")


def test_lint_finds_what_is_wrong(buf: str, tmp_path: Path) -> None:
    (tmp_path / "augment/v1").mkdir(parents=True)
    for path in ("buf.yaml", "augment/v1/resources.proto", "augment/v1/service.proto"):
        text = (ROOT / "proto" / path).read_text()
        (tmp_path / path).write_text(
            text.replace("  // Which job.\n", "").replace("service AugmentService", "service Augment")
        )
    (tmp_path / "augment/v1/resources.proto").write_text(
        (ROOT / "proto/augment/v1/resources.proto").read_text().replace("// The trace.\n", "\n")
    )
    ended = run(buf, "lint", ".", cwd=tmp_path)
    assert ended.returncode != 0
    assert 'should be suffixed with "Service"' in ended.stdout
    assert "should have a non-empty comment" in ended.stdout


def test_nothing_is_broken_since_main(buf: str) -> None:
    known = subprocess.run(
        ["git", "ls-tree", "-r", "--name-only", "main", "proto"], cwd=ROOT, capture_output=True, encoding="utf-8"
    )
    if "service.proto" not in known.stdout:
        pytest.skip("no branch main with an API to compare with")
    git = subprocess.run(
        ["git", "rev-parse", "--path-format=absolute", "--git-common-dir"],
        cwd=ROOT,
        capture_output=True,
        encoding="utf-8",
    )
    ended = run(buf, "breaking", "proto", "--against", f"{git.stdout.strip()}#branch=main,subdir=proto")
    assert (ended.returncode, ended.stdout + ended.stderr) == (0, "")
