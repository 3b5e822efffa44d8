"""Plots with plotly, if it is installed: shown in the notebook; a browser opens only on request."""

from __future__ import annotations

import importlib
import importlib.util
import os
import warnings
from collections.abc import Callable, Iterable
from typing import Any

Figure = Any
_TOLD: set[str] = set()


def installed() -> bool:
    """Whether plotly is installed; warns once if it is not."""
    if importlib.util.find_spec("plotly") is not None:
        return True
    if not _TOLD:
        _TOLD.add("plotly")
        message = "nothing is drawn: plotly is not installed (pip install 'kineto-augment[plots]', or visualize=False)"
        warnings.warn(message, stacklevel=4)
    return False


def show(draw: Callable[[Any], Figure | Iterable[Figure]], renderer: str | None = None) -> None:
    """Show the figures that ``draw`` makes, given ``plotly.express``.

    plotly shows a figure in the notebook in which it runs, else in a browser. The browser opens only if the environment
    variable ``PLOTLY_RENDERER`` or HTA's argument ``image_renderer`` names a renderer. If a renderer fails, a warning
    replaces the plots, and the computed figures are still returned.
    """
    if not installed():
        return
    chosen = renderer or os.environ.get("PLOTLY_RENDERER") or _of_notebook()
    if not chosen:
        return
    drawn = draw(importlib.import_module("plotly.express"))
    try:
        for figure in [drawn] if hasattr(drawn, "show") else drawn:
            figure.show(renderer=chosen)
    except (ValueError, ImportError, RuntimeError) as error:  # a package is missing, or the renderer is unknown
        warnings.warn(f"nothing is drawn: plotly's renderer {chosen}: {str(error).strip()}", stacklevel=4)


def _of_notebook() -> str | None:
    """The renderer that plotly chose; none if it would open a browser."""
    chosen: str = importlib.import_module("plotly.io").renderers.default or ""
    return None if chosen in ("", "browser") else chosen
