"""Certificates for a test, made by openssl."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, PEM."""

    cert: Path
    key: Path


class Authority:
    """Signs certificates."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        if not _version().startswith("OpenSSL 3"):
            pytest.skip("openssl 3 is not installed")
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self.pair = Pair(folder / f"{name}.pem", folder / f"{name}.key")
        self.cert = self.pair.cert
        _openssl(
            "req", "-x509", *_NEW_KEY, "-keyout", self.pair.key, "-out", self.cert, "-subj", f"/CN={name}",
            "-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign",
        )  # fmt: skip

    def sign(self, name: str, *, host: str = "DNS:localhost,IP:127.0.0.1") -> Pair:
        """A certificate for ``name``."""
        pair = Pair(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        _openssl(
            "req", "-x509", *_NEW_KEY, "-keyout", pair.key, "-out", pair.cert, "-subj", f"/CN={name}",
            "-CA", self.cert, "-CAkey", self.pair.key, "-addext", f"subjectAltName={host}",
            "-addext", "basicConstraints=critical,CA:FALSE",
        )  # fmt: skip
        return pair


_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")


def _version() -> str:
    if shutil.which("openssl") is None:
        return ""
    return subprocess.run(["openssl", "version"], check=True, capture_output=True, encoding="utf-8").stdout


def _openssl(*args: object) -> None:
    subprocess.run(["openssl", *map(str, args)], check=True, capture_output=True)
