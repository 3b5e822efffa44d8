"""``augment list``: lists analyses, rules of the diagnosis, readers and writers from the registries."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
from collections.abc import Iterator
from typing import Any

import click

from augment.commands.options import debug


@click.command("list", short_help="List analyses, rules, readers and writers.")
@click.option("--schema", is_flag=True, help="Print the JSON Schema of the metrics instead.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@debug
def command(schema: bool, as_json: bool) -> None:
    """List analyses with their options, the rules of the diagnosis, readers and writers."""
    from augment.commands.terminal import emit

    if schema:
        emit(json.dumps(_schema(), indent=2, ensure_ascii=False))
    elif as_json:
        emit(json.dumps(everything(), indent=2, ensure_ascii=False))
    else:
        for line in _lines(everything()):
            emit(line)


def everything() -> dict[str, list[dict[str, Any]]]:
    """The registries as plain data."""
    from augment.analyses import ANALYSES, options_of
    from augment.diagnosis.rules import RULES
    from augment.readers import READERS
    from augment.writers import WRITERS

    return {
        "analyses": [
            {
                "name": one.NAME,
                "about": _sentence(one),
                "options": options_of(one),
                "columns": [{"name": c.name, **c.metadata} for c in dataclasses.fields(one.ROW)],
            }
            for one in ANALYSES
        ],
        "rules": [{"name": rule.NAME, "about": _sentence(rule)} for rule in RULES],
        "readers": [{"name": reader.NAME, "about": _sentence(reader)} for reader in READERS],
        "writers": [{"name": one.NAME, "about": _sentence(one), "suffix": one.SUFFIX} for one in WRITERS],
    }


def _schema() -> dict[str, Any]:
    from augment.analyses import ANALYSES
    from augment.writers.metrics_schema import schema

    return schema({one.NAME: one.ROW for one in ANALYSES})


def _sentence(module: object) -> str:
    """The first sentence of a module's docstring."""
    paragraph = " ".join((inspect.getdoc(module) or "").split("\n\n")[0].split())
    found = re.match(r".*?[.?!](?=\s|$)", paragraph)
    return found.group() if found else paragraph


def _lines(found: dict[str, list[dict[str, Any]]]) -> Iterator[str]:
    for kind, members in found.items():
        yield f"{kind}:"
        for one in members:
            suffix = f" (STEM{one['suffix']})" if "suffix" in one else ""
            yield f"  {one['name']}{suffix}"
            yield f"      {one['about']}"
            for name, default in one.get("options", {}).items():
                yield f"      --option {one['name']}.{name}={default}"
