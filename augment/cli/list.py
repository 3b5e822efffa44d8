"""``augment list``: lists analyses, rules of the diagnosis, readers and writers from the registries."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import click

from augment.cli.options import debug


@click.command("list", short_help="List analyses, rules, readers and writers.")
@click.option("--schema", is_flag=True, hidden=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@debug
def command(schema: bool, as_json: bool) -> None:
    """List analyses with their options, the rules of the diagnosis, readers and writers."""
    from augment.cli.terminal import emit
    from augment.pipeline.request import everything

    if schema:
        from augment.analyses import ANALYSES
        from augment.writers import metrics

        of_rows = metrics.schema({analysis.NAME: analysis.Row for analysis in ANALYSES})
        emit(json.dumps(of_rows, indent=2, ensure_ascii=False))
    elif as_json:
        emit(json.dumps(everything(), indent=2, ensure_ascii=False))
    else:
        for line in _lines(everything()):
            emit(line)


def _lines(contents: dict[str, list[dict[str, Any]]]) -> Iterator[str]:
    for kind, members in contents.items():
        yield f"{kind}:"
        for member in members:
            suffix = f" (STEM{member['suffix']})" if "suffix" in member else ""
            yield f"  {member['name']}{suffix}"
            yield f"      {member['about']}"
            for name, default in member.get("options", {}).items():
                yield f"      --option {member['name']}.{name}={default}"
