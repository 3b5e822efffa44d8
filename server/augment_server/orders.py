"""What workers are told: an order for each attempt at a job, as plain data."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from augment.messages import request_of
from augment.v1 import resources_pb2 as v1
from augment_server.jobs import Begun, Given
from augment_server.limits import Limits
from augment_server.roots import resolve
from augment_server.storage import Storage


class Orders:
    """Writes orders. Every method may be called from any thread, and may block."""

    def __init__(self, storage: Storage, limits: Limits, roots: Sequence[str]) -> None:
        self._storage, self._limits, self._roots = storage, limits, roots

    def order(self, begun: Begun, folder: Path) -> dict[str, Any]:
        """What the worker is told; its folder is made."""
        limits, kind = self._limits, begun.spec.WhichOneof("kind")
        order: dict[str, Any] = {
            "inputs": [self._place(given) for given in begun.inputs],
            "folder": str(folder),
            "kind": kind,
            **(_diff_order(begun.spec.diff) if kind == "diff" else _augment_order(begun.spec.augment)),
            "limits": {
                "text_bytes": limits.max_text_bytes,
                "text_ratio": limits.max_text_ratio,
                "events": limits.max_events,
                "name_bytes": limits.max_name_bytes,
                "nesting": limits.max_nesting,
            },
        }
        os.mkdir(folder, 0o700)
        return order

    def _place(self, given: Given) -> dict[str, Any]:
        """Where the worker finds an input."""
        if given.content:
            return {"file_name": given.file_name, "blob": str(self._storage.blob(given.content))}
        return {"file_name": given.file_name, "below": resolve(given.uri, self._roots)}


def _augment_order(spec: v1.AugmentSpec) -> dict[str, Any]:
    return {"request": msgspec.to_builtins(request_of(spec)), "summaries": spec.summaries}


def _diff_order(spec: v1.DiffSpec) -> dict[str, Any]:
    """What is not set is left out."""
    order: dict[str, Any] = {
        "compare": {"region": spec.region or None, "short_names": spec.short_names, "functions": spec.functions},
        "drawing": {"formats": list(spec.formats), "label": spec.label, "overlay": spec.overlay},
    }
    if spec.HasField("steps"):
        order["compare"]["step"] = [spec.steps.control, spec.steps.test]
    if spec.HasField("min_delta_us"):
        order["drawing"]["min_delta_ns"] = 1000 * spec.min_delta_us
    if spec.HasField("arrow_count"):
        order["drawing"]["arrow_count"] = spec.arrow_count
    return order
