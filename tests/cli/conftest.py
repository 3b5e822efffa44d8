"""Fixtures that run the command."""

from __future__ import annotations

import sys

import pytest
from running import Augment, Ended, start

from augment import cli


@pytest.fixture
def augment(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Augment:
    """``augment ARGS…`` in this process."""

    def run(*args: object) -> Ended:
        monkeypatch.setattr(sys, "argv", ["augment", *map(str, args)])
        capsys.readouterr()
        return Ended(cli.main(), *capsys.readouterr())

    return run


@pytest.fixture
def augment_apart() -> Augment:
    """``augment ARGS…`` in a process of its own."""

    def run(*args: object) -> Ended:
        process = start(*args)
        out, err = process.communicate(timeout=600)
        return Ended(process.returncode, out, err)

    return run
