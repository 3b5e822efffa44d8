"""The command, in this process (cheap) or in one of its own (the real thing)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str
    written: dict[str, bytes] = field(default_factory=dict)  #: the files, where a test asks for them

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


Augment = Callable[..., Ended]


def environment(**more: str) -> dict[str, str]:
    """For a process that finds augment."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests" / "support"), str(ROOT / "tests" / "batch")]),
        **more,
    }


def contents(folder: Path) -> dict[str, bytes]:
    """The files of a folder by name, but for manifests."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix != ".jsonl"}


def metrics(path: Path) -> dict[str, Any]:
    """A sidecar."""
    sidecar: dict[str, Any] = json.loads(path.read_bytes())
    return sidecar


def unpacked(path: Path) -> bytes:
    """The content of an output, without its compression."""
    from augment.readers.containers import open_text

    with open_text(str(path)) as text:
        return b"".join(iter(lambda: text.read(1 << 20), b""))


def start(*args: object) -> subprocess.Popen[str]:
    """``augment ARGS…`` in a process of its own, under way."""
    command = [sys.executable, "-m", "augment", *map(str, args)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, **pipes, encoding="utf-8", errors="surrogateescape", env=environment())
