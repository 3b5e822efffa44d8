"""Write the generated parts of the pages beside this file, from the code that they describe.

    python docs/generate.py           write them anew
    python docs/generate.py --check   exit 1 and name the files that differ

A page holds ``<!-- generated NAME -->`` and ``<!-- end NAME -->``; what stands between is one of :data:`BLOCKS`.
``metrics.schema.json``, ``diff.schema.json`` and ``job.schema.json`` are generated as wholes.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import importlib
import inspect
import json
import re
import sys
import tempfile
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import NoneType
from typing import Any

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
sys.path[:0] = [str(ROOT), str(ROOT / "server"), str(ROOT / "examples")]

import click
import msgspec

from augment import (
    __version__,
    facts,
)
from augment.analyses import ANALYSES, Analysis, options_of
from augment.cli.registry import COMMANDS, command_named, group
from augment.compare.outputs import ROWS, diff_schema
from augment.core.attachment_kinds import KINDS
from augment.core.findings import columns_of
from augment.diagnosis.rules import RULES
from augment.facts.names import PATTERNS
from augment.job.answer import ROWS as JOB_ROWS
from augment.job.sidecar import job_schema
from augment.pipeline import augment
from augment.readers import READERS, read
from augment.readers.dialects import ASCEND_CALL, ASCEND_CALLS, ASCEND_DEVICE, CATEGORIES, UNCATEGORISED_NAMES
from augment.writers import WRITERS
from augment.writers.metrics import document, encode, schema
from augment_server.base.errors import REASONS
from augment_server.base.limits import Limits
from augment_server.ops.flags import flag_of, table_rows
from simulator import JobOptions, simulate

HELP_WIDTH = 100
API = ("augment", "augment.torch", "augment.history", "augment.client")  #: modules whose public names have a page
SCHEMA = "metrics.schema.json"
TRACKS = "pictures/tracks"
DIFF_SCHEMA = "diff.schema.json"
JOB_SCHEMA = "job.schema.json"
_BLOCK = re.compile(r"(<!-- generated (\w+) -->\n).*?(<!-- end \2 -->)", re.DOTALL)
_OPTIONS = re.compile(r"^Options:\n((?: +.*\n?)+)", re.MULTILINE)
_TYPES = {int: "integer", float: "number", str: "text", bool: "true or false", NoneType: "null"}


def analyses() -> str:
    """Every analysis: what it answers, its options, its columns."""
    contents = table(
        ("analysis", "question"), ((f"[`{each.NAME}`](#{each.NAME})", question(each)) for each in ANALYSES)
    )
    return "\n\n".join([contents, *map(analysis, ANALYSES)])


def analysis(analysis: Analysis) -> str:
    """The section of one analysis."""
    text = inspect.getdoc(analysis) or ""
    parts = [f"## {analysis.NAME}", markdown(_OPTIONS.sub("", text))]
    if (DOCS / TRACKS / f"{analysis.NAME}.png").exists():  # made by tests/viewer/test_browser.py
        parts += [f"![What {analysis.NAME} draws]({TRACKS}/{analysis.NAME}.png)"]
    parts += [needs(analysis)]
    if values := options_of(analysis):
        meant = _option_texts(text)
        rows = ((f"`{name}`", f"`{value!r}`", meant.get(name, "")) for name, value in values.items())
        parts += [table(("option", "default", "meaning"), rows)]
    return "\n\n".join([*parts, columns(analysis.Row)])


def question(described: object) -> str:
    """The first paragraph of a module's docstring, on one line."""
    return markdown(" ".join((inspect.getdoc(described) or "").split("\n\n")[0].split()))


def needs(analysis: Analysis) -> str:
    """What a trace must contain, in words."""
    groups = [" or ".join(f"`{category.name.lower()}`" for category in group) for group in analysis.NEEDS]
    wanted = "; and ".join(f"an event of category {group}" for group in groups)
    return f"Needs {wanted}; else it is skipped." if groups else "Needs no event of a certain category."


def columns(row: type[Any]) -> str:
    """The columns of a metric row."""
    each = inspect.getdoc(row) or ""
    rows = ((f"`{c.name}`", type_name(c.type), c.unit, c.doc) for c in columns_of(row))
    return f"A row: {each[:1].lower()}{each[1:]}\n\n" + table(("column", "type", "unit", "meaning"), rows)


def type_name(hint: Any) -> str:
    """A type as people say it: ``integer or null``."""
    if typing.get_origin(hint) in (list, tuple):
        return f"list of {type_name(typing.get_args(hint)[0])}"
    if typing.get_origin(hint) is dict:
        return "object"
    members = typing.get_args(hint) or (hint,)
    return " or ".join(_TYPES.get(member, getattr(member, "__name__", str(member))) for member in members)


def _option_texts(docstring: str) -> dict[str, str]:
    """What the section ``Options:`` of a docstring says of each option."""
    match = _OPTIONS.search(docstring)
    entries = re.findall(r"(\w+):\s+((?:.|\n)+?)(?=\n\s*\w+:\s|\Z)", match[1]) if match else []
    return {name: markdown(" ".join(text.split())) for name, text in entries}


def catalogue() -> str:
    """Every public fact: what it says, what it returns, and the columns of that; and the functions beside them."""
    parts = []
    for name in facts.__all__:
        namespace = getattr(facts, name)
        parts += [f"## {name}", question(namespace)]
        exported = {known: getattr(namespace, known) for known in namespace.__all__}
        members = {known: each for known, each in exported.items() if is_fact(each)}
        rows = (
            (f"`{name}.{known}`", question(each), f"`{each.__annotations__['return']}`".replace("|", r"\|"))
            for known, each in members.items()
        )
        parts += [table(("fact", "what", "gives"), rows)] if members else []
        beside = [
            (f"`{name}.{known}({', '.join(inspect.signature(each).parameters)})`", question(each))
            for known, each in exported.items()
            if inspect.isfunction(inspect.unwrap(each)) and known not in members
        ]
        parts += [table(("function", "what"), beside)] if beside else []
        for each in members.values():
            parts += [part for part in fact_columns(each) if part not in parts]
    return "\n\n".join(parts).replace("`arrays.", "`")  # as types are named where they are imported


def is_fact(function: Any) -> bool:
    """Whether ``@derived`` made it, so that it is computed once for a trace."""
    return inspect.unwrap(function) is not function and [*inspect.signature(function).parameters] == ["trace"]


def fact_columns(fact: Callable[..., Any]) -> Iterator[str]:
    """The record that a fact gives: its columns, with what its source says beside each."""
    compute: Any = inspect.unwrap(fact)
    kinds = [compute.__globals__.get(name) for name in re.findall(r"\w+", compute.__annotations__["return"])]
    for kind in kinds:
        if inspect.isclass(kind) and issubclass(kind, msgspec.Struct) and kind.__module__.startswith(facts.__name__):
            yield f"### {kind.__name__}"
            yield _documented(kind)
            text = inspect.getsource(kind).replace(kind.__doc__ or "", "")
            fields = re.findall(r"^    (\w+): ([^\n]*?)(?: = [^\n]*?)?(?:  #: ([^\n]*))?$", text, re.MULTILINE)
            rows = ((f"`{name}`", f"`{kind}`".replace("|", r"\|"), markdown(says)) for name, kind, says in fields)
            yield table(("column", "type", "what"), rows)


def rules() -> str:
    """Every rule of the diagnosis."""
    contents = table(("rule", "question"), ((f"[`{rule.NAME}`](#{rule.NAME})", question(rule)) for rule in RULES))
    return "\n\n".join([contents, *(f"## {rule.NAME}\n\n{markdown(inspect.getdoc(rule) or '')}" for rule in RULES)])


def cli() -> str:
    """The help of every command."""
    program = group()
    top = program.make_context(
        "augment", [], resilient_parsing=True, terminal_width=HELP_WIDTH, max_content_width=HELP_WIDTH
    )
    contexts = [top]
    for command in map(command_named, COMMANDS):
        contexts.append(click.Context(command, top, info_name=command.name))
        if isinstance(command, click.Group):
            contexts += [click.Context(each, contexts[-1], info_name=name) for name, each in command.commands.items()]
    return "\n\n".join(f"## {each.command_path}\n\n```text\n{each.get_help().rstrip()}\n```" for each in contexts)


def comparison() -> str:
    """The tables of a comparison."""
    return "\n\n".join(f"### {name}\n\n{columns(row)}" for name, row in ROWS.items())


def job() -> str:
    """The tables of a job's metrics."""
    return "\n\n".join(f"### {name}\n\n{columns(row)}" for name, row in JOB_ROWS.items())


def api() -> str:
    """The public names of the library."""
    return "\n\n".join(part for name in API for part in _module(importlib.import_module(name)))


def _module(module: Any) -> Iterator[str]:
    """A module's docstring, its functions and classes; errors are a table."""
    yield f"## {module.__name__}"
    yield markdown(re.sub("^::$", "Example::", inspect.getdoc(module) or "", flags=re.MULTILINE))
    errors = []
    for name in sorted(module.__all__, key=str.lower):
        member = getattr(module, name)
        if inspect.isclass(member) and issubclass(member, Exception):
            errors.append((f"`{name}`", question(member)))
        elif inspect.isclass(member):
            yield from _class(member)
        elif inspect.isfunction(member):
            yield from _function(member, f"{module.__name__}.{name}")
    if errors:
        yield table(("error", "when"), errors)


def _class(kind: type[Any]) -> Iterator[str]:
    """A class, and a row for each of its properties and methods."""
    yield f"### {kind.__name__}"
    yield _documented(kind)
    rows = []
    for name, member in vars(kind).items():
        if isinstance(member, (property, functools.cached_property)) and not name.startswith("_"):
            rows.append((f"`{name}`", question(member)))
        function = member.__func__ if isinstance(member, classmethod) else member
        if inspect.isfunction(function) and (not name.startswith("_") or name == "__getitem__") and function.__doc__:
            rows.append((f"`{_signature(function, name)}`", question(function)))
    if rows:
        yield table(("member", "what"), rows)


def _function(function: Callable[..., Any], name: str) -> Iterator[str]:
    yield f"### {name}"
    yield f"```text\n{_signature(function, name)}\n```"
    yield _documented(function)


def _signature(function: Callable[..., Any], name: str) -> str:
    """The call without types, which the text tells."""
    parts, stars = [], False
    for each in inspect.signature(function).parameters.values():
        if each.name in ("self", "cls"):
            continue
        if each.kind is each.KEYWORD_ONLY and not stars:
            parts.append("*")
        stars = stars or each.kind in (each.KEYWORD_ONLY, each.VAR_POSITIONAL)
        mark = {each.VAR_POSITIONAL: "*", each.VAR_KEYWORD: "**"}.get(each.kind, "")
        known = isinstance(each.default, (str, int, float, tuple, NoneType))
        default = "" if each.default is each.empty else f"={each.default!r}" if known else "=…"
        parts.append(mark + each.name + default)
    return f"{name}({', '.join(parts)})"


def _documented(described: object) -> str:
    """A docstring, its sections as lists."""
    text = re.sub(r":\w+:`~?(?:[\w.]+\.)?(\w+)`", r"`\1`", inspect.getdoc(described) or "")
    text, *sections = re.split(r"^(Args|Returns|Raises):\n", text, flags=re.MULTILINE)
    parts = [markdown(text)]
    for head, body in zip(sections[::2], sections[1::2], strict=True):
        entries = re.findall(r"^    (\S.*(?:\n        .*)*)", body, re.MULTILINE)
        texts = [" ".join(entry.split()) for entry in entries]
        if head == "Returns":
            parts.append(markdown(f"Returns: {' '.join(texts)}"))
        else:
            named = (re.sub(r"^(\w+): ", r"`\1`: ", entry) for entry in texts)
            title = "Arguments" if head == "Args" else head
            parts.append(markdown(f"{title}:\n\n" + "\n".join(f"- {entry}" for entry in named)))
    return "\n\n".join(parts)


def dialects() -> str:
    """What other years and vendors call the categories."""
    foreign = [(name, category.name.lower()) for name, category in CATEGORIES.items()]
    rows = [(f"`{name}`", f"`{name_here}`") for name, name_here in foreign if name != name_here]
    bare = [(f"none, name `{name}`", f"`{category.name.lower()}`") for name, category in UNCATEGORISED_NAMES.items()]
    bare += [
        (f"none, in a process called `{ASCEND_DEVICE}`", "`kernel`; tasks that wait or tell others: `cuda_sync`"),
        ("none, in the same file, whole collectives", f"`kernel`, of the device of `{ASCEND_DEVICE}`"),
        (
            f"none, in a process called `{ASCEND_CALLS}`, `{ASCEND_CALL}…`",
            "`cuda_runtime`, on the thread of this tid of the program",
        ),
    ]
    return table(("category in the file", "read as"), [*rows, *bare])


def kernel_types() -> str:
    """The table that decides a kernel's type."""
    rows = [(f"`{pattern.pattern}`".replace("|", r"\|"), kind.name) for kind, pattern in PATTERNS]
    return table(("found in the name", "type"), [*rows, ("anything else", "COMPUTATION")])


def readers() -> str:
    """The readers."""
    return table(("reader", "reads"), ((f"`{reader.NAME}`", question(reader)) for reader in READERS))


def attachments() -> str:
    """The kinds of files that are recorded beside a trace."""
    rows = (
        (
            f"`--{kind.option}`",
            kind.what,
            ", ".join(f"`{name}`" for name in kind.usual) or "none",
            "yes" if kind.alone else "no",
            f"`with_{kind.name}`",
        )
        for kind in KINDS
    )
    return table(("option", "file", "usual names", "alone", "in Python"), rows)


def writers() -> str:
    """The writers."""
    rows = ((f"`{writer.NAME}`", f"`STEM{writer.SUFFIX}`", question(writer)) for writer in WRITERS)
    return table(("`--to`", "file", "what"), rows)


def reasons() -> str:
    """Why the service says no; limits are told by their flags."""
    flags = {limit.name: f"`{flag_of(limit)}`" for limit in dataclasses.fields(Limits)}
    whens = {name: re.sub(r"\w+", lambda m: flags.get(m[0], m[0]), when) for name, (_, when) in REASONS.items()}
    rows = ((f"`{name}`", f"`{REASONS[name][0]}`", when) for name, when in whens.items())
    return table(("reason", "code", "when"), rows)


def limits() -> str:
    """What the service takes on."""
    return table(("flag", "default", "what"), table_rows())


def example() -> str:
    """The sidecar of a small simulated trace."""
    wanted = ("temporal_breakdown", "communication_computation_overlap", "kernel_type_breakdown")
    with tempfile.TemporaryDirectory() as folder:
        ((path, _),) = simulate(JobOptions(ranks=1, steps=1, layers=1, collectives="none", jitter=0.0), folder)
        sidecar = document(augment(read(str(path)), only=wanted))
    sidecar["tool"]["version"] = __version__
    sidecar["source"]["sha256"] = "0" * 64  # depends on who compressed it
    return f"```json\n{encode(sidecar).decode().rstrip()}\n```"


def schema_text() -> str:
    """The JSON Schema of the sidecar."""
    return as_text(schema({analysis.NAME: analysis.Row for analysis in ANALYSES}))


def as_text(value: dict[str, Any]) -> str:
    """A schema as a file."""
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


BLOCKS: dict[str, Callable[[], str]] = {
    block.__name__: block
    for block in (
        analyses,
        catalogue,
        rules,
        api,
        cli,
        comparison,
        job,
        dialects,
        kernel_types,
        readers,
        attachments,
        writers,
        reasons,
        limits,
        example,
    )
}


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def markdown(docstring: str) -> str:
    """A docstring as Markdown: its code, its blocks after ``::``, and what it refers to as code."""
    text = re.sub(r":(?:class|data|func|meth):`", "`", docstring.strip().replace("``", "`"))
    return "\n".join(_lines(text.splitlines()))


def _lines(lines: Sequence[str]) -> Iterator[str]:
    """The lines, with fences around each indented block that follows a line ending in ``::``."""
    announced = fenced = False
    for index, line in enumerate(lines):
        if fenced and line and not line.startswith("    "):
            fenced = False
        if announced and line.startswith("    "):
            announced, fenced = False, True
            yield "```text"
        yield line[4:] if fenced else re.sub("::$", ":", line)
        following = next((line for line in lines[index + 1 :] if line), "")
        if fenced and not following.startswith("    "):
            fenced = False
            yield "```"
        announced = announced or line.endswith("::")


def page(text: str) -> str:
    """A page with its generated blocks made anew."""
    return _BLOCK.sub(lambda match: f"{match[1]}\n{BLOCKS[match[2]]()}\n\n{match[3]}", text)


def generated() -> Iterator[tuple[Path, str]]:
    """Each file that is generated, or has generated blocks, and its text."""
    for path in sorted(DOCS.glob("*.md")):
        text = path.read_text(encoding="utf-8")
        if _BLOCK.search(text):
            yield path, page(text)
    yield DOCS / SCHEMA, schema_text()
    yield DOCS / DIFF_SCHEMA, as_text(diff_schema())
    yield DOCS / JOB_SCHEMA, as_text(job_schema())


def main(arguments: Sequence[str] | None = None) -> int:
    """Write, or check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a file is not up to date")
    check = parser.parse_args(arguments).check
    stale = [(p, text) for p, text in generated() if not p.exists() or p.read_text(encoding="utf-8") != text]
    for path, text in stale:
        print(f"{path.relative_to(ROOT)}: {'not up to date; run make docs' if check else 'written'}")  # noqa: T201
        if not check:
            path.write_text(text, encoding="utf-8")
    return 1 if check and stale else 0


if __name__ == "__main__":
    raise SystemExit(main())
