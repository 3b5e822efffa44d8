"""What the code may grow to, and how far it may spread. A limit is raised only in a commit whose message says why."""

from __future__ import annotations

import ast
from collections import Counter
from functools import cache
from pathlib import Path

import click

from augment.cli.registry import COMMANDS, command_named

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "augment"

LINES = 84_992
FILES = 398
FILES_AT_THE_TOP = 5
#: imports of our own modules in a file: the median, and the 90th percentile
IMPORTS, MANY_IMPORTS = 3, 8
PRIVATE_FUNCTIONS = 0.30
FILE_NAMES_USED_TWICE = 3
CLASS_NAMES_USED_TWICE = 5
OPTIONS = 201
TEST_LINES = 67_231


@cache
def files() -> dict[Path, list[ast.AST]]:
    """The nodes of the files of the library, without generated code."""
    paths = sorted(path for path in PACKAGE.rglob("*.py") if PACKAGE / "v1" not in path.parents)
    return {path: list(ast.walk(ast.parse(path.read_text("utf-8")))) for path in paths}


def used_twice(names: list[str]) -> list[str]:
    return sorted(name for name, count in Counter(names).items() if count > 1)


def test_lines_and_files() -> None:
    assert sum(len(path.read_text("utf-8").splitlines()) for path in files()) <= LINES
    assert len(files()) <= FILES
    assert len([path for path in files() if path.parent == PACKAGE]) <= FILES_AT_THE_TOP
    assert sum(len(path.read_text("utf-8").splitlines()) for path in (ROOT / "tests").rglob("*.py")) <= TEST_LINES


def test_imports_of_our_own_modules() -> None:
    counts = sorted(
        len({node.module for node in nodes if isinstance(node, ast.ImportFrom) and own(node.module)})
        for nodes in files().values()
    )
    assert counts[len(counts) // 2] <= IMPORTS
    assert counts[len(counts) * 9 // 10] <= MANY_IMPORTS


def own(module: str | None) -> bool:
    return module is not None and module.split(".")[0] == "augment"


def test_private_functions() -> None:
    functions = [node.name for nodes in files().values() for node in nodes if isinstance(node, ast.FunctionDef)]
    private = [name for name in functions if name.startswith("_") and not name.startswith("__")]
    assert len(private) / len(functions) <= PRIVATE_FUNCTIONS


def test_names_mean_one_thing() -> None:
    names = used_twice([path.name for path in files() if path.name != "__init__.py"])
    assert len(names) <= FILE_NAMES_USED_TWICE, names
    classes = used_twice([node.name for nodes in files().values() for node in nodes if isinstance(node, ast.ClassDef)])
    assert len(classes) <= CLASS_NAMES_USED_TWICE, classes


def test_options_of_the_command_line() -> None:
    assert sum(map(options, (command_named(name) for name in COMMANDS))) <= OPTIONS


def options(command: click.Command) -> int:
    """The options of a command and of its subcommands."""
    inner = command.commands.values() if isinstance(command, click.Group) else ()
    return sum(isinstance(each, click.Option) for each in command.params) + sum(map(options, inner))
