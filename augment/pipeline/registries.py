"""What the registries hold, as plain data: analyses, rules of the diagnosis, readers and writers."""

from __future__ import annotations

import inspect
import re
from typing import Any

from augment.analyses import ANALYSES, options_of
from augment.core.findings import columns_of
from augment.diagnosis.rules import RULES
from augment.readers import READERS
from augment.writers import WRITERS


def everything() -> dict[str, list[dict[str, Any]]]:
    """The registries as plain data."""
    return {
        "analyses": [
            {
                "name": analysis.NAME,
                "about": _sentence(analysis),
                "options": options_of(analysis),
                "columns": [{"name": c.name, "doc": c.doc, "unit": c.unit} for c in columns_of(analysis.Row)],
            }
            for analysis in ANALYSES
        ],
        "rules": [{"name": rule.NAME, "about": _sentence(rule)} for rule in RULES],
        "readers": [{"name": reader.NAME, "about": _sentence(reader)} for reader in READERS],
        "writers": [{"name": writer.NAME, "about": _sentence(writer), "suffix": writer.SUFFIX} for writer in WRITERS],
    }


def _sentence(module: object) -> str:
    """The first sentence of a module's docstring."""
    paragraph = " ".join((inspect.getdoc(module) or "").split("\n\n")[0].split())
    match = re.match(r".*?[.?!](?=\s|$)", paragraph)
    return match.group() if match else paragraph
