"""The link that opens a trace in the Perfetto UI with a useful first view."""

from __future__ import annotations

import json
import urllib.parse

from augment.viewer.view import View, exactly

_PIN = "dev.perfetto.PinTracksByRegex"
_EXPAND = "dev.perfetto.ExpandTracksByRegex"


def ui_link(ui: str, trace_url: str | None, view: View) -> str:
    """The link to the UI at ``ui`` with the trace: added tracks pinned, devices expanded, zoomed in.

    Without ``trace_url`` the UI waits for a trace from the window that opened it.
    """
    arguments = {} if trace_url is None else {"url": trace_url}
    arguments["startupCommands"] = json.dumps(commands(view), separators=(",", ":"))
    if view.window:
        arguments["visStart"], arguments["visEnd"] = map(str, view.window)
    return f"{ui}/#!/?{urllib.parse.urlencode(arguments, quote_via=urllib.parse.quote)}"


def commands(view: View) -> list[dict[str, object]]:
    """The commands that the UI runs once the trace is loaded; links may use all of them.

    Each command pins in the order of the tree, so each pin is a command.
    """
    made: list[dict[str, object]] = [{"id": _PIN, "args": [f"^({pattern})$"]} for pattern in view.pins]
    patterns = [exactly(view.groups), view.group_pattern]
    return made + [{"id": _EXPAND, "args": [f"^({pattern})$"]} for pattern in patterns if pattern]
