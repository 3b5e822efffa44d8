"""What to convert: files, folders and globs, as they were named, become inputs, each with its output folder."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from augment.errors import AugmentError, InputError, OutputError, UsageError
from augment.writers.files import is_output, stem

#: how the names of files end that may be traces; of a folder only these are looked at
SUFFIXES = (".json", ".gz", ".zst", ".zip", ".pftrace")
_OWN = "was written by augment itself; name the trace that it was made from"


@dataclass(frozen=True, slots=True)
class Input:
    """A file to convert, and the ``folder`` for what is made of it.

    ``named`` says that the user named this very file, so that it must be a trace; what a folder merely holds may be
    anything.
    """

    path: str
    folder: str
    named: bool


@dataclass
class Plan:
    """The inputs in order, those that are refused with the reason, and files that are none."""

    inputs: list[Input] = field(default_factory=list)
    refused: list[tuple[str, AugmentError]] = field(default_factory=list)
    passed_over: list[tuple[str, str]] = field(default_factory=list)


def plan(names: Sequence[str], out: str | None) -> Plan:
    """Expand ``names`` and settle where outputs go.

    A file's outputs go into ``out``, else beside the file. Of a folder, and of a glob from its first wildcard on, the
    folders below are kept below ``out``. A file that is named twice is converted once; of two files with the same
    outputs the second is refused.
    """
    made = Plan()
    seen: set[str] = set()
    taken: dict[tuple[str, str], str] = {}
    for name in names:
        try:
            found = list(_expand(name, out))
        except AugmentError as error:
            made.refused.append((name, error))
            continue
        for one in found:
            real = os.path.realpath(one.path)
            if real not in seen:
                seen.add(real)
                _admit(made, one, taken)
    return made


def _admit(made: Plan, one: Input, taken: dict[tuple[str, str], str]) -> None:
    if is_output(one.path):
        if one.named:
            made.passed_over.append((one.path, _OWN))
        return
    target = os.path.realpath(one.folder), stem(one.path)
    other = taken.setdefault(target, one.path)
    if other != one.path:
        advice = "convert them apart, with another -o"
        made.refused.append((one.path, OutputError(f"{one.path}: would write the same outputs as {other}; {advice}")))
        return
    made.inputs.append(one)


def _expand(name: str, out: str | None) -> Iterator[Input]:
    if os.path.isdir(name):
        yield from _folder(name, out or name)
    elif os.path.lexists(name):
        yield Input(name, out or os.path.dirname(name) or ".", named=True)
    elif glob.has_magic(name):
        yield from _glob(name, out)
    elif name == "-":
        raise UsageError("-: standard input cannot be read, for a trace is read twice; give a file")
    else:
        raise InputError(name, "no such file or folder")


def _folder(top: str, out: str) -> Iterator[Input]:
    """The likely traces below ``top``, in the order of their names; nothing hidden, no link to a folder."""
    found = False
    for folder, folders, files in os.walk(top):
        folders[:] = sorted(one for one in folders if not one.startswith("."))
        target = os.path.normpath(os.path.join(out, os.path.relpath(folder, top)))
        for file in sorted(files):
            if not file.startswith(".") and file.lower().endswith(SUFFIXES):
                found = True
                yield Input(os.path.join(folder, file), target, named=False)
    if not found:
        raise InputError(top, f"holds no file of the kinds {', '.join(SUFFIXES)}; name the trace itself")


def _glob(pattern: str, out: str | None) -> Iterator[Input]:
    """What ``pattern`` matches, as a shell would expand it; folders are searched, too."""
    matches = sorted(glob.glob(pattern, recursive=True))
    if not matches:
        raise InputError(pattern, "matches no file")
    fixed = _fixed_part(pattern)
    inside = {match for match in matches if os.path.isdir(match)} if "**" in pattern else set()
    for match in matches:
        if match in inside:
            continue  # ** matches what is in it, too
        below = os.path.join(out, os.path.relpath(os.path.dirname(match) or ".", fixed)) if out else None
        if os.path.isdir(match):
            yield from _folder(match, os.path.join(below, os.path.basename(match)) if below else match)
        else:
            yield Input(match, os.path.normpath(below) if below else os.path.dirname(match) or ".", named=True)


def _fixed_part(pattern: str) -> str:
    """The folders of ``pattern`` before its first wildcard."""
    parts = Path(pattern).parts[:-1]
    wild = next((index for index, part in enumerate(parts) if glob.has_magic(part)), len(parts))
    return os.path.join(*parts[:wild]) if wild else "."
