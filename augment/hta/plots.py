"""Plots, where plotly is installed: shown in a notebook, and never by opening a browser unasked."""

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
    """Whether plotly is there; if not, that is said once."""
    if importlib.util.find_spec("plotly") is not None:
        return True
    if not _TOLD:
        _TOLD.add("plotly")
        message = "nothing is drawn: plotly is not installed (pip install 'kineto-augment[plots]', or visualize=False)"
        warnings.warn(message, stacklevel=4)
    return False


def show(draw: Callable[[Any], Figure | Iterable[Figure]], renderer: str | None = None) -> None:
    """Show the figures that ``draw`` makes, given ``plotly.express``.

    plotly shows a figure in the notebook that it runs in, else in a browser that it opens. The latter only if the
    environment's ``PLOTLY_RENDERER`` or HTA's argument ``image_renderer`` asks for a renderer by name. A renderer that
    cannot draw costs the plots, with a warning, and never the figures that were asked for.
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
    except (ValueError, ImportError, RuntimeError) as error:  # it lacks nbformat, IPython, kaleido, or there is none
        warnings.warn(f"nothing is drawn: plotly's renderer {chosen}: {str(error).strip()}", stacklevel=4)


def _of_notebook() -> str | None:
    """plotly's choice, unless it is to open a browser."""
    chosen: str = importlib.import_module("plotly.io").renderers.default or ""
    return None if chosen in ("", "browser") else chosen
