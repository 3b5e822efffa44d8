"""Packages of npm's in a folder of the user's cache, for tests that want Node; without a registry they are skipped."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from augment.errors import UsageError
from augment.viewer.engine import node

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kineto-augment-tests"


def installed(package_json: str) -> Path:
    """A folder with what ``package_json`` asks for in its ``node_modules``."""
    folder = CACHE / hashlib.sha256(package_json.encode()).hexdigest()[:16]
    stamp = folder / "installed"
    if not stamp.exists():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "package.json").write_text(package_json)
        quiet = ["--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error", "--fetch-retries=0"]
        try:
            ended = subprocess.run(
                [*npm(), "install", *quiet], cwd=folder, capture_output=True, encoding="utf-8", timeout=180
            )
        except subprocess.TimeoutExpired:
            pytest.skip("npm could not install within three minutes")
        if ended.returncode:
            pytest.skip(f"npm could not install: {' '.join(ended.stderr.split())[:200]}")
        stamp.touch()
    return folder


def node_binary() -> str:
    try:
        return node()
    except UsageError as error:
        pytest.skip(str(error))


def npm() -> list[str]:
    """npm, of the same package as Node, else the one on the PATH."""
    script = Path(node_binary()).parents[1] / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    if script.exists():
        return [node_binary(), str(script)]
    if result := shutil.which("npm"):
        return [result]
    pytest.skip("npm is not installed")
