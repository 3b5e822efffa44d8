"""Fixtures of the service's tests."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import in_process
import pytest
from object_store import new_store
from postgres_cluster import Cluster, cluster


@pytest.fixture(scope="session")
def postgres() -> Iterator[Cluster]:
    """A real PostgreSQL; one for the session."""
    with cluster() as made:
        yield made


def put_rows_in_postgresql(request: pytest.FixtureRequest, patch: pytest.MonkeyPatch) -> None:
    """Of the servers in this process, while ``patch`` holds."""
    patch.setattr(in_process, "catalog_of", request.getfixturevalue("postgres").url)
    patch.setattr("augment_server.storage.postgres._PLACES_S", 1e-6)


@pytest.fixture(scope="session", autouse=True)
def beyond(request: pytest.FixtureRequest) -> Iterator[None]:
    """With ``--beyond``, servers in this process have what fronts of many machines share."""
    with pytest.MonkeyPatch.context() as patch:
        if request.config.getoption("beyond"):
            put_rows_in_postgresql(request, patch)
            patch.setattr(in_process, "store_of", functools.cache(lambda state: new_store()))
        yield


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A server as the module makes them by ``serving``, with its flags and limits, for all its tests."""
    flags, limits = getattr(request.module, "SERVER_FLAGS", ()), getattr(request.module, "SERVER_LIMITS", {})
    with request.module.serving(tmp_path_factory.mktemp("state"), *flags, **limits) as running:
        yield running


@pytest.fixture(params=["sqlite", "postgresql"])
def both_catalogs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Servers in this process keep their rows in SQLite, and once more in PostgreSQL; which of them it is."""
    if request.param == "postgresql":
        put_rows_in_postgresql(request, monkeypatch)
    return str(request.param)
