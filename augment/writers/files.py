"""Where outputs go and how they get there: whole or not at all, and never over an input."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import BinaryIO

from augment.errors import OutputError

METRICS_SUFFIX = ".metrics.json"
SUMMARY_SUFFIX = ".summary"  #: of what a rank's conversion leaves for its job
MANIFEST = ("augment-manifest", ".jsonl")  #: how the name of a batch's manifest begins and ends

#: what is taken off an input's name to get its STEM, the longest that fits
_INPUT_SUFFIXES = (".trace", ".json", ".pftrace", ".perfetto-trace", ".pb", ".zip", ".tar", ".txt", ".raw")
_COMPRESSIONS = (".gz", ".zst", ".bz2", ".xz")

#: how the names end that ``augment`` writes
_OUTPUT_SUFFIXES = (
    ".augmented.json.gz",
    ".augmented.pftrace",
    ".augmented.zip",
    METRICS_SUFFIX,
    SUMMARY_SUFFIX,
    ".diff.json.gz",
    ".diff.pftrace",
    ".diff.zip",
    ".diff.overlay.pftrace",
)

_TEMPORARY = re.compile(r"\.(.+)\.[0-9a-f]{12}\.tmp")  #: what :func:`replacing` writes to
_DOT = re.compile(r"\.")


def stem(name: str) -> str:
    """``rank0`` of ``rank0.pt.trace.json.gz``: the name without what says its format."""
    base = os.path.basename(name)
    rest = _without(base, _COMPRESSIONS)
    rest = _without(rest, _INPUT_SUFFIXES)
    rest = _without(rest, (".trace",))
    rest = _without(rest, (".pt",))
    return rest or base


def output_path(source_name: str, folder: Path, suffix: str) -> Path:
    """``folder/STEM.suffix`` for the input called ``source_name``."""
    return folder / (stem(source_name) + suffix)


def is_output(name: str) -> bool:
    """Whether ``augment`` writes files of such a name; a folder's are then no inputs."""
    return os.path.basename(name).endswith(_OUTPUT_SUFFIXES) or is_manifest(name)


def is_manifest(name: str) -> bool:
    """Whether a batch's manifest is called so."""
    base = os.path.basename(name)
    return base.startswith(MANIFEST[0]) and base.endswith(MANIFEST[1])


@contextlib.contextmanager
def replacing(path: Path, source: str | None = None) -> Iterator[BinaryIO]:
    """A file to write that becomes ``path`` at the end, and vanishes on an error: readers never see a half.

    Args:
        path: the target; what is there already is replaced.
        source: the path of an input, which ``path`` must not be.

    Raises:
        OutputError: the target is the input, or the system refuses to write it.
    """
    if source is not None and _same_file(path, source):
        raise OutputError(f"{path}: is the input itself; choose another folder or name")
    temporary = path.with_name(f".{path.name}.{os.urandom(6).hex()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "xb") as file:
            yield file
        os.replace(temporary, path)
    except OSError as error:
        if error.filename is not None and str(error.filename) not in (str(path), str(temporary), str(path.parent)):
            raise  # of another file: the input's, say
        raise OutputError(f"{path}: cannot be written: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def remove_unfinished(folder: str, stems: Collection[str]) -> None:
    """Take away what a process that was killed had half written in ``folder`` for inputs of these STEMs."""
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            match = _TEMPORARY.fullmatch(name)
            if (
                match
                and is_output(match[1])
                and any(match[1][: dot.start()] in stems for dot in _DOT.finditer(match[1]))
            ):
                os.unlink(os.path.join(folder, name))


def _same_file(path: Path, source: str) -> bool:
    try:
        return os.path.samefile(path, source)
    except OSError:  # one of them is not there: a new target, or an input that is a URL
        return False


def _without(name: str, suffixes: tuple[str, ...]) -> str:
    """``name`` without the one of ``suffixes`` that it ends with, unless nothing would be left."""
    lower = name.lower()
    for suffix in suffixes:
        if lower.endswith(suffix) and len(name) > len(suffix):
            return name[: -len(suffix)]
    return name
