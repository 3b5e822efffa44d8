"""What tests ask of the machine: ports that are free, and a browser."""

from __future__ import annotations

import os
import shutil
import socket
from contextlib import ExitStack
from typing import Any

import pytest


def free_ports(count: int) -> list[int]:
    """Ports of the loopback that nothing listens on."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]


def chromium() -> tuple[Any, str]:
    """Playwright, and where Chromium is; the test is skipped where one of them is missing."""
    playwright = pytest.importorskip("playwright.sync_api", reason="no playwright: pip install playwright")
    path = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if not path:
        pytest.skip("no Chromium: apt-get install chromium, or name one in $CHROMIUM")
    return playwright, path
