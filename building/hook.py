"""Hatchling's hook: the library of kernels and the script of charts go into the wheel, or for an editable install into
the checkout."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from augment.kernels.native import own_target
from building.build import build
from building.charts import build as build_charts
from building.targets import TARGETS, library_name


class KernelsHook(BuildHookInterface):  # type: ignore[misc]
    """Builds the kernels for ``KINETO_AUGMENT_TARGET``, by default for this machine."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """See hatchling."""
        target = os.environ.get("KINETO_AUGMENT_TARGET") or own_target()
        library, script = build(target), build_charts()
        build_data["tag"] = f"py3-none-{TARGETS[target].tag}"
        build_data["pure_python"] = False
        if version != "editable":
            build_data["force_include"][str(library)] = f"augment/kernels/{library_name(target)}"
            build_data["force_include"][str(script)] = "augment/results/report/vega.js"
