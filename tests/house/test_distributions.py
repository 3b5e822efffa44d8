"""The library and the service are two distributions of one version, which install each other."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from augment.version import __version__

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]


def settings(folder: str) -> dict[str, Any]:
    return tomllib.loads((ROOT / folder / "pyproject.toml").read_text())


def test_the_service_has_the_version_of_the_library_and_each_names_the_other_with_it() -> None:
    library, service = (settings(folder)["project"] for folder in (".", "server"))
    assert service["version"] == __version__
    assert f"kineto-augment[client]=={__version__}" in service["dependencies"]
    extras = library["optional-dependencies"]
    assert extras["service"] == [f"kineto-augment-server=={__version__}"]
    assert extras["otel"] == [f"kineto-augment-server[otel]=={__version__}"]
    assert extras["postgres"] == [f"kineto-augment-server[postgres]=={__version__}"]
    assert extras["store"] == [f"kineto-augment-server[store]=={__version__}"]
    assert extras["oidc"] == [f"kineto-augment-server[oidc]=={__version__}"]
    assert extras["http"] == [f"kineto-augment-server[http]=={__version__}"]
    assert library["requires-python"] == service["requires-python"]


@pytest.mark.parametrize(("folder", "package"), [(".", "augment"), ("server", "augment_server")])
def test_a_wheel_has_one_top_level_package(folder: str, package: str) -> None:
    assert settings(folder)["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] == [package]
    assert (ROOT / folder / package / "__init__.py").is_file()


def test_both_have_the_license() -> None:
    """A link would lead nowhere in the service's sdist."""
    copied = ROOT / "server" / "LICENSE"
    assert not copied.is_symlink()
    assert copied.read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_what_installs_from_a_checkout_names_both() -> None:
    for path in ("Makefile", ".github/workflows/ci.yml"):
        assert re.search(
            r"--editable '\.\[dev\]' --editable '\./server\[otel,http,postgres,store,oidc\]'", (ROOT / path).read_text()
        ), path
