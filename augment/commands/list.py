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
                "name": analysis.NAME,
                "about": _sentence(analysis),
                "options": options_of(analysis),
                "columns": [{"name": c.name, **c.metadata} for c in dataclasses.fields(analysis.ROW)],
            }
            for analysis in ANALYSES
        ],
        "rules": [{"name": rule.NAME, "about": _sentence(rule)} for rule in RULES],
        "readers": [{"name": reader.NAME, "about": _sentence(reader)} for reader in READERS],
        "writers": [{"name": writer.NAME, "about": _sentence(writer), "suffix": writer.SUFFIX} for writer in WRITERS],
    }


def _schema() -> dict[str, Any]:
    from augment.analyses import ANALYSES
    from augment.writers.metrics_schema import schema

    return schema({analysis.NAME: analysis.ROW for analysis in ANALYSES})


def _sentence(module: object) -> str:
    """The first sentence of a module's docstring."""
    paragraph = " ".join((inspect.getdoc(module) or "").split("\n\n")[0].split())
    match = re.match(r".*?[.?!](?=\s|$)", paragraph)
    return match.group() if match else paragraph


def _lines(contents: dict[str, list[dict[str, Any]]]) -> Iterator[str]:
    for kind, members in contents.items():
        yield f"{kind}:"
        for member in members:
            suffix = f" (STEM{member['suffix']})" if "suffix" in member else ""
            yield f"  {member['name']}{suffix}"
            yield f"      {member['about']}"
            for name, default in member.get("options", {}).items():
                yield f"      --option {member['name']}.{name}={default}"
