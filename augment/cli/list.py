"""``augment list``: lists analyses, rules of the diagnosis, readers and writers from the registries."""

from __future__ import annotations

import json

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
        for kind, members in everything().items():
            emit(f"{kind}:")
            for member in members:
                suffix = f" (STEM{member['suffix']})" if "suffix" in member else ""
                emit(f"  {member['name']}{suffix}")
                emit(f"      {member['about']}")
                for name, default in member.get("options", {}).items():
                    emit(f"      --option {member['name']}.{name}={default}")
