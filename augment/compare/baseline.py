"""The samples of a run from its sidecars, so that a baseline needs no traces."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from augment.analyses import steps
from augment.compare.totals import FIGURES, Floats, Samples, with_overlap
from augment.errors import UnknownFormat


def samples_of_sidecar(path: str, sidecar: Mapping[str, Any]) -> Samples:
    """The figures of each step in the sidecar read from ``path``, averaged over its devices.

    Raises:
        UnknownFormat: the sidecar has no figures of steps.
    """
    analysis = sidecar["analyses"].get(steps.NAME)
    if not analysis or not analysis["rows"]:
        why = analysis["reason"] if analysis else "it was written without that analysis"
        remedy = "" if analysis else "; make them with augment run without --only, or name the traces"
        raise UnknownFormat(path, f"these metrics have no {steps.NAME}: {why}{remedy}")
    devices: dict[Any, list[Mapping[str, Any]]] = {}
    for row in analysis["rows"]:
        devices.setdefault((row["rank"], row["device"]), []).append(row)
    samples: dict[str, Floats] = {}
    for figure in FIGURES:
        columns = [[row.get(figure.name) for row in rows] for rows in devices.values()]
        if all(value is not None for column in columns for value in column):
            samples[figure.name] = np.mean(np.array(columns, np.float64), axis=0)
    return with_overlap(samples)
