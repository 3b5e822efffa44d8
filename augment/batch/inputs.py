"""What to convert: files, folders, globs and URLs, as they were named, become inputs, each with its output folder."""

from __future__ import annotations

import functools
import glob
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from augment.batch import locations
from augment.errors import AugmentError, InputError, OutputError, UsageError, expect_regular
from augment.evidence import Evidence
from augment.writers.files import is_output, remove_unfinished, stem
from augment.writers.perfetto.several import is_of_several

_WEB_WILD = re.compile(r"\*")
_NO_EVIDENCE = Evidence()
_OWN = "was written by augment itself; name the trace that it was made from"


@dataclass(frozen=True, slots=True)
class Input:
    """A file to convert, and the ``folder`` for what is made of it.

    ``named`` says that the user named this very file, so that it must be a trace; what a folder merely holds may be
    anything. ``root`` is the folder whose manifest tells what came of it; a file that was named itself has none.
    ``size`` in bytes and ``modified``, which changes when the file does, are as they were when it was found; 0 and
    empty if that is unknown.
    """

    path: str
    folder: str
    named: bool
    root: str | None = None
    size: int = 0
    modified: str = ""

    @property
    def basename(self) -> str:
        """The file's name."""
        return locations.basename(self.path)

    @property
    def key(self) -> str:
        """The name of the file as seen from ``root``, if it lay beside its outputs."""
        folder = locations.below(self.folder, self.root or self.folder)
        return self.basename if folder == "." else f"{folder}/{self.basename}"


@dataclass
class Plan:
    """The inputs in order, those that are refused with the reason, and files that are none."""

    inputs: list[Input] = field(default_factory=list)
    refused: list[tuple[str, AugmentError]] = field(default_factory=list)
    passed_over: list[tuple[str, str]] = field(default_factory=list)


def plan(names: Sequence[str], out: str | None, evidence: Evidence = _NO_EVIDENCE) -> Plan:
    """Expand ``names`` and settle where outputs go.

    A file's outputs go into ``out``, else beside the file. Of a folder, and of a glob from its first wildcard on, the
    folders below are kept below ``out``. A file that is named twice is converted once; of two files with the same
    outputs the second is refused. Files of ``evidence`` are no traces, unless they are named as such.
    """
    made = Plan()
    seen: set[str] = set()
    taken: dict[tuple[str, str], str] = {}
    out = out and locations.settled(out)
    for name in map(locations.settled, names):
        try:
            found = list(_expand(name, out))
        except AugmentError as error:
            made.refused.append((name, error))
            continue
        for one in found:
            real = locations.real(one.path)
            if real not in seen and (one.named or not evidence.is_one(one.path)):
                seen.add(real)
                _admit(made, one, taken)
    return made


def sweep(inputs: Iterable[Input]) -> None:
    """Take away what processes that were killed had half written for ``inputs``."""
    stems: dict[str, set[str]] = {}
    for one in inputs:
        if not locations.protocol(one.folder):
            stems.setdefault(one.folder, set()).add(stem(one.basename))
    for folder, names in stems.items():
        remove_unfinished(folder, names)


def _admit(made: Plan, one: Input, taken: dict[tuple[str, str], str]) -> None:
    try:
        expect_regular(one.path)
    except InputError as error:
        if one.named:
            made.refused.append((one.path, error))
        else:
            made.passed_over.append((one.path, error.because))
        return
    except OSError:  # not there, or a URL: whoever reads it says why
        pass
    if is_output(one.basename) or _is_timeline(one.path):
        if one.named:
            made.passed_over.append((one.path, _OWN))
        return
    target = locations.real(one.folder), stem(one.basename)
    other = taken.setdefault(target, one.path)
    if other != one.path:
        advice = "convert them apart, with another -o"
        made.refused.append((one.path, OutputError(f"{one.path}: would write the same outputs as {other}; {advice}")))
        return
    made.inputs.append(one)


def _is_timeline(path: str) -> bool:
    """Whether a local file holds the ranks of a job: ``augment merge`` writes it under any name."""
    try:
        return path.endswith(".pftrace") and is_of_several(Path(path))
    except OSError:  # not there, or a URL: whoever reads it says why
        return False


def _expand(name: str, out: str | None) -> Iterator[Input]:
    if locations.protocol(name):
        yield from _remote(name, out)
    elif os.path.isdir(name):
        yield from _folder(name, out or name, out or name)
    elif os.path.lexists(name):
        yield _local(name, out or locations.parent(name), named=True, root=None)
    elif glob.has_magic(name):
        yield from _glob(name, out)
    elif name == "-":
        raise UsageError("-: standard input cannot be read, for a trace is read twice; give a file")
    else:
        raise InputError(name, "no such file or folder")


def _local(path: str, folder: str, *, named: bool, root: str | None) -> Input:
    try:
        found = os.stat(path)
    except OSError:  # whoever reads it says why
        return Input(path, folder, named, root)
    return Input(path, folder, named, root, found.st_size, str(found.st_mtime_ns))


def _folder(top: str, out: str, root: str) -> Iterator[Input]:
    """The likely traces below ``top``, in the order of their names; nothing hidden, no link to a folder."""
    found = False
    for folder, folders, files in os.walk(top):
        folders[:] = sorted(one for one in folders if not one.startswith("."))
        target = locations.join(out, locations.below(folder, top))
        for file in sorted(files):
            if _likely(file):
                found = True
                yield _local(os.path.join(folder, file), target, named=False, root=root)
    if not found:
        raise _empty(top)


@functools.cache
def _suffixes() -> tuple[str, ...]:
    """How the names of files end that may be traces: of a folder only these are looked at."""
    from augment.readers import suffixes

    return suffixes()


def _likely(file: str) -> bool:
    return not file.startswith(".") and file.lower().endswith(_suffixes())


def _empty(top: str) -> InputError:
    return InputError(top, f"holds no file of the kinds {', '.join(_suffixes())}; name the trace itself")


def _glob(pattern: str, out: str | None) -> Iterator[Input]:
    """What ``pattern`` matches, as a shell would expand it; folders are searched, too."""
    matches = sorted(glob.glob(pattern, recursive=True))
    if not matches:
        raise InputError(pattern, "matches no file")
    fixed = _fixed_part(pattern)
    root = out or fixed
    inside = {match for match in matches if os.path.isdir(match)} if "**" in pattern else set()
    for match in matches:
        if match in inside:
            continue  # ** matches what is in it, too
        below = locations.join(out, locations.below(locations.parent(match), fixed)) if out else None
        if os.path.isdir(match):
            yield from _folder(match, locations.join(below, os.path.basename(match)) if below else match, root)
        else:
            yield _local(match, below or locations.parent(match), named=True, root=root)


def _fixed_part(pattern: str) -> str:
    """The folders of ``pattern`` before its first wildcard."""
    parts = Path(pattern).parts[:-1]
    wild = next((index for index, part in enumerate(parts) if glob.has_magic(part)), len(parts))
    return os.path.join(*parts[:wild]) if wild else "."


def _remote(url: str, out: str | None) -> Iterator[Input]:
    """A remote file, folder or glob; in a web address ``?`` begins the query, and only ``*`` is a wildcard."""
    fs, path = locations.filesystem(url)
    web = locations.protocol(url) in locations.WEB
    wild = _WEB_WILD.search(url) if web else glob.magic_check.search(url)  # type: ignore[attr-defined]
    with locations.told_as(lambda why: InputError(url, why)):
        if wild:
            fixed = url[: url.rindex("/", 0, wild.start())]
            found, named = fs.glob(path, detail=True), True
        elif (info := fs.info(path))["type"] == "directory" or url.endswith("/"):
            fixed, found, named = url.rstrip("/"), fs.find(path, detail=True), False
        else:
            folder = out or locations.parent(url)
            yield Input(url, folder, named=True, size=int(info.get("size") or 0), modified=locations.modified(info))
            return
    yield from _listed(url, fixed, out or fixed, found, fs._strip_protocol(fixed), named=named)


def _listed(url: str, fixed: str, out: str, found: dict[str, Any], top: str, *, named: bool) -> Iterator[Input]:
    """The files of a listing, in the order of their names, as :func:`_folder` would take them."""
    some = False
    for path, info in sorted(found.items()):
        below = path[len(top) :].strip("/").split("/")
        hidden = any(part.startswith(".") for part in below)
        if info.get("type") == "directory" or hidden or not (named or _likely(below[-1])):
            continue
        some = True
        folder = locations.join(out, *below[:-1])
        size = int(info.get("size") or 0)
        yield Input(locations.join(fixed, *below), folder, named, out, size, locations.modified(info))
    if not some:
        raise InputError(url, "matches no file") if named else _empty(url)
