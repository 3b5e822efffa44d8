"""Variables are named by what they hold."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("augment", "server", "tests", "examples", "benchmarks", "building", "docs", "proto")
#: words that say nothing of what a variable holds
NO_NAMES = {"one", "found", "own", "told", "mine"}
#: what follows a name where it is bound; sentences match, too, so that this only spares the parser most files
BOUND = re.compile(rf"\b(?:{'|'.join(NO_NAMES)})\s*(?:[=:,)\]]| in\b)|\bas (?:{'|'.join(NO_NAMES)})\b")


def bad_lines(tree: ast.Module) -> Iterator[int]:
    fields: set[ast.AST] = set()  # of records, whose names may be promised
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            fields |= {entry.target for entry in node.body if isinstance(entry, ast.AnnAssign)}
        name = node.arg if isinstance(node, ast.arg) else node.id if isinstance(node, ast.Name) else ""
        if name in NO_NAMES and node not in fields:
            yield node.lineno


def test_variables_are_nouns() -> None:
    bad = []
    for path in (path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))):
        text = path.read_text(encoding="utf-8")
        if path.parent.name != "v1" and BOUND.search(text):
            bad += [f"{path.relative_to(ROOT)}:{line}" for line in bad_lines(ast.parse(text))]
    assert not bad, f"{', '.join(sorted(NO_NAMES))} are no names of variables: {bad}"
