"""The real curl."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import dataclass
from typing import Any

import pytest
from serving_process import PATIENCE_S


@dataclass(frozen=True)
class Answered:
    """What curl got."""

    code: int  #: curl's own
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.body.splitlines()]

    @property
    def reason(self) -> str:
        (info,) = (detail for detail in self.json["details"] if detail["@type"].endswith("ErrorInfo"))
        return str(info["reason"])


def curl(url: str, *options: object, data: bytes | None = None) -> Answered:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    words = ["curl", "--silent", "--show-error", "--noproxy", "*", "--max-time", f"{PATIENCE_S:g}", "--include"]
    ended = subprocess.run([*words, *map(str, options), url], input=data, capture_output=True, timeout=PATIENCE_S)
    head, _, body = ended.stdout.partition(b"\r\n\r\n")
    while head.startswith(b"HTTP/1.1 100") or b" 200 Connection" in head:
        head, _, body = body.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    status = int(first.split()[1]) if first else 0
    return Answered(ended.returncode, status, {name.lower(): value for name, value in headers.items()}, body)
