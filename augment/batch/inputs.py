"""Finds the inputs: files, folders, globs and URLs of the user become inputs, each with its output folder.

The rank that recorded a file is identified from its first bytes, without reading the events.
"""

from __future__ import annotations

import contextlib
import functools
import glob
import os
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from augment.batch import locations
from augment.core.output_files import fitting, is_output, remove_unfinished, stem
from augment.core.text import ranges_text
from augment.core.trace import distributed
from augment.errors import AugmentError, InputError, expect_regular
from augment.readers import stage_timeline
from augment.readers.attachments import Evidence, begins_as
from augment.readers.chrome import BYTE_ORDER_MARK
from augment.readers.containers import CHUNK, OpenText, open_text
from augment.readers.dialects import rank_in_path
from augment.readers.members import Ended, Members, TextWindow
from augment.readers.raw import Broken

_WEB_WILD = re.compile(r"\*")
_NO_EVIDENCE = Evidence()
OTHERS = 4096  #: files of a folder without traces that are looked into
AT_ONCE = 16  #: remote files inspected at once
Refused = list[tuple[str, AugmentError]]  #: paths with the reason
_OF_FOLDER = "StringIds.parquet"  #: stands for the folder that nsys export wrote, and has its name
_NO_EVENTS = "has no traceEvents, and a trace beside it has the same name"
ONLY_OUTPUTS = "there is no trace, but outputs of augment alone"
_WRITTEN_BY_AUGMENT = "was written by augment itself; name the trace that it was made from"


class Input(Struct, frozen=True):
    """A file to convert, and the ``folder`` of its outputs.

    ``named`` says that the user named this very file, so that it must be a trace; a file found in a folder may be
    anything. The manifest in ``root`` records the result; a file that the user named has no ``root``. ``size`` (bytes)
    and ``modified`` (a text that changes with the file) are as of the search; 0 and empty if unknown.
    """

    path: str
    folder: str
    named: bool
    root: str | None = None
    size: int = 0
    modified: str = ""
    alias: str = ""  #: names its outputs instead of its own name, which another input of the folder has, too

    @property
    def output_name(self) -> str:
        """The name of which its outputs have the STEM."""
        return self.alias or self.basename

    @property
    def basename(self) -> str:
        """The file's base name."""
        return locations.basename(self.path)

    @property
    def key(self) -> str:
        """Path relative to root, as if inputs and outputs shared one folder."""
        folder = locations.below(self.folder, self.root or self.folder)
        return self.basename if folder == "." else f"{folder}/{self.basename}"


class ChosenInputs(Struct):
    """The inputs in order, the refused inputs with the reason, and the files that are no traces."""

    inputs: list[Input] = field(default_factory=list)
    refused: Refused = field(default_factory=list)
    passed_over: list[tuple[str, str]] = field(default_factory=list)


def choose_inputs(
    names: Sequence[str], out: str | None, evidence: Evidence = _NO_EVIDENCE, also: Collection[str] = ()
) -> ChosenInputs:
    """Expand ``names`` and choose each input's output folder.

    Outputs of a file go into ``out``, by default next to the file. Subfolders of a folder, and of a glob from its first
    wildcard on, are kept below ``out``. A file named twice is converted once. Of two traces with the same STEM, the
    outputs of the second have its whole name. Files of ``evidence`` are no traces, unless the user named them.
    Of what can be judged alone, a folder with traces has the kinds ``also`` as inputs, one without traces all.
    """
    made = ChosenInputs()
    seen: set[str] = set()
    taken: dict[tuple[str, str], Input] = {}
    out = out and locations.settled(out)
    for name in map(locations.settled, names):
        try:
            inputs = list(_expand(name, out, made.refused, also))
        except AugmentError as error:
            made.refused.append((name, error))
            continue
        for item in inputs:
            real = locations.real(item.path)
            if real not in seen and (item.named or not evidence.is_one(item.path)):
                seen.add(real)
                _admit(made, item, taken)
    return made


def of_ranks(inputs: Sequence[Input], ranks: Sequence[range]) -> list[Input]:
    """The inputs whose rank is in any of ``ranks``, by their first bytes, else by their names.

    Raises:
        InputError: there are none.
    """

    paths = [item.path for item in inputs]
    if any(map(locations.protocol, paths)):
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(AT_ONCE) as threads:
            identities = list(threads.map(identify, paths))
    else:
        identities = list(map(identify, paths))
    kept = [
        item
        for item, identity in zip(inputs, identities, strict=True)
        if identity.rank is not None and any(identity.rank in some for some in ranks)
    ]
    if inputs and not kept:
        there = sorted({identity.rank for identity in identities if identity.rank is not None})
        where = f"of ranks {ranges_text(there)}" if there else "of unknown rank"
        raise InputError("--ranks", f"no trace of these ranks among {len(inputs)} files {where}")
    return kept


def share(inputs: Sequence[Input], number: int, of: int) -> list[Input]:
    """Every ``of``-th of ``inputs``, starting at ``number``: the share of one of ``of`` processes."""
    return list(inputs[number::of])


def sweep(inputs: Iterable[Input]) -> None:
    """Remove partial outputs of ``inputs`` that killed processes left."""
    stems: dict[str, set[str]] = {}
    for item in inputs:
        if not locations.protocol(item.folder):
            stems.setdefault(item.folder, set()).add(fitting(stem(item.output_name)))
    for folder, names in stems.items():
        remove_unfinished(folder, names)


def _admit(made: ChosenInputs, item: Input, taken: dict[tuple[str, str], Input]) -> None:
    try:
        expect_regular(item.path)
    except InputError as error:
        if item.named:
            made.refused.append((item.path, error))
        else:
            made.passed_over.append((item.path, error.because))
        return
    except OSError:  # a missing file or a URL: the reader reports it
        pass
    if is_output(item.basename) or _is_timeline(item.path):
        if item.named:
            made.passed_over.append((item.path, _WRITTEN_BY_AUGMENT))
        return
    target = locations.real(item.folder), stem(item.basename)
    other = taken.setdefault(target, item)
    if other is not item:  # of two files found in a folder, one may be no trace
        if not (item.named or has_events(item.path) or _alone(item.path)):
            made.passed_over.append((item.path, _NO_EVENTS))
            return
        if other.named or has_events(other.path) or _alone(other.path):
            # ``item``, whose outputs have its whole name as STEM, with a number where that is taken, too
            number, alias = 1, item.basename
            while taken.setdefault((locations.real(item.folder), stem(f"{alias}.json")), item) is not item:
                number += 1
                alias = f"{item.basename}-{number}"
            item = replace(item, alias=f"{alias}.json")
        else:
            made.passed_over.append((other.path, _NO_EVENTS))
            made.inputs.remove(other)
            taken[target] = item
    made.inputs.append(item)


def _is_timeline(path: str) -> bool:
    """Whether a local file is a timeline of ``augment run --merge``, which may have any name."""
    try:
        if not path.endswith(".pftrace"):
            return False
        from augment.writers.perfetto.several import is_of_several

        return is_of_several(Path(path))
    except OSError:  # a missing file or a URL: the reader reports it
        return False


def _expand(name: str, out: str | None, refused: Refused, also: Collection[str]) -> Iterator[Input]:
    if locations.protocol(name):
        yield from _remote(name, out)
    elif os.path.isdir(name):
        yield from _folder(name, out or name, out or name, refused, also)
    elif os.path.lexists(name):
        yield _local(name, out or locations.parent(name), named=True, root=None)
    elif glob.has_magic(name):
        # The matches of ``pattern`` as in a shell; matching folders are searched
        matches = sorted(glob.glob(name, recursive=True))
        if not matches:
            raise InputError(name, "matches no file")
        # The part of ``pattern`` before the first folder with a wildcard
        parts = Path(name).parts[:-1]
        wild = next((index for index, part in enumerate(parts) if glob.has_magic(part)), len(parts))
        fixed = os.path.join(*parts[:wild]) if wild else "."
        root = out or fixed
        inside = {match for match in matches if os.path.isdir(match)} if "**" in name else set()
        for match in matches:
            if match in inside:
                continue  # ** also matches the files in it
            below = locations.join(out, locations.below(locations.parent(match), fixed)) if out else None
            if os.path.isdir(match):
                target = locations.join(below, os.path.basename(match)) if below else match
                yield from _folder(match, target, root, refused, also)
            else:
                yield _local(match, below or locations.parent(match), named=True, root=root)
    else:
        raise InputError(name, "no such file or folder")


def _local(path: str, folder: str, *, named: bool, root: str | None) -> Input:
    try:
        status = os.stat(path)
    except OSError:  # the reader reports it
        return Input(path, folder, named, root)
    return Input(path, folder, named, root, status.st_size, str(status.st_mtime_ns))


def _folder(top: str, out: str, root: str, refused: Refused, also: Collection[str]) -> Iterator[Input]:
    """The likely traces below ``top``, sorted by name, without hidden files; then what can be judged alone of what is
    recorded beside traces, by its first bytes: if none of them is a trace, else of the kinds ``also``. Links to folders
    are followed, each folder is read once; folders that may not be read are added to ``refused``."""
    any_output, likely, others = False, list[Input](), list[tuple[str, str]]()
    known: set[tuple[int, int]] = set()

    def unreadable(error: OSError) -> None:
        why = f"this folder is not read: {(error.strerror or str(error)).lower()}"
        refused.append((error.filename, InputError(error.filename, why)))

    for folder, folders, files in os.walk(top, followlinks=True, onerror=unreadable):
        with contextlib.suppress(OSError):
            identity = os.stat(folder)
            if (identity.st_dev, identity.st_ino) in known:
                folders.clear()
                continue
            known.add((identity.st_dev, identity.st_ino))
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        target = locations.join(out, locations.below(folder, top))
        for file in sorted(files):
            if _likely(file):
                item = _local(os.path.join(folder, file), target, named=False, root=root)
                item = replace(item, alias=os.path.basename(folder)) if file == _OF_FOLDER else item
                any_output = any_output or is_output(file)
                if not is_output(file):
                    likely.append(item)
                yield item
            elif len(others) < OTHERS and not file.startswith("."):
                others.append((os.path.join(folder, file), target))
    has_traces = bool(others) and any(has_events(item.path) for item in likely)
    for path, target in () if has_traces and not also else others:
        if (kind := _alone(path)) and (kind in also or not has_traces):
            likely.append(_local(path, target, named=False, root=root))
            yield likely[-1]
    if not (likely or any_output or refused):
        raise no_trace(top)


@functools.cache
def _suffixes() -> tuple[str, ...]:
    """The suffixes of files in a folder that may be traces."""
    from augment.readers import suffixes

    return suffixes()


def _likely(file: str) -> bool:
    return not file.startswith(".") and file.lower().endswith(_suffixes())


def _alone(path: str) -> str:
    """The kind of a file that is judged alone; empty for any other."""
    with contextlib.suppress(AugmentError, OSError):
        if (kind := begins_as(path)) is not None and kind.alone:
            return kind.name
    return ""


def no_trace(top: str) -> InputError:
    """The error of a folder in which no file is a trace, the same for all commands."""
    return InputError(top, f"holds no trace in a file of the kinds {', '.join(_suffixes())}; name a file to see why")


def _remote(url: str, out: str | None) -> Iterator[Input]:
    """A remote file, folder or glob. In a web address ``?`` begins the query, and only ``*`` is a wildcard."""
    fs, path = locations.filesystem(url)
    web = locations.protocol(url) in locations.WEB
    wild = _WEB_WILD.search(url) if web else glob.magic_check.search(url)  # type: ignore[attr-defined]
    with locations.errors_as(lambda why: InputError(url, why)):
        if wild:
            fixed = url[: url.rindex("/", 0, wild.start())]
            files, named = fs.glob(path, detail=True), True
        elif (info := fs.info(path))["type"] == "directory" or url.endswith("/"):
            fixed, files, named = url.rstrip("/"), fs.find(path, detail=True), False
        else:
            folder = out or locations.parent(url)
            yield Input(url, folder, named=True, size=int(info.get("size") or 0), modified=locations.modified(info))
            return
    # the files of the listing, sorted by name, by the rules of _folder
    any_file, top, out = False, fs._strip_protocol(fixed), out or fixed
    for file, about in sorted(files.items()):
        below = file[len(top) :].strip("/").split("/")
        hidden = any(part.startswith(".") for part in below)
        if about.get("type") == "directory" or hidden or not (named or _likely(below[-1])):
            continue
        any_file = True
        folder, size = locations.join(out, *below[:-1]), int(about.get("size") or 0)
        yield Input(locations.join(fixed, *below), folder, named, out, size, locations.modified(about))
    if not any_file:
        raise InputError(url, "matches no file") if named else no_trace(url)


_TRACE_EVENTS = "traceEvents"


class FileIdentity(Struct, frozen=True):
    """The rank of the process that recorded a trace, and the number of ranks of its job; None where unknown."""

    rank: int | None = None
    world_size: int | None = None


def identify(path: str) -> FileIdentity:
    """The identity of the trace at ``path``, which may be a URL: from the members before the events, else its name.

    The rules are those of the readers. A rank after the events is not found; no known profiler writes it there. A file
    that cannot be read has no identity: its conversion reports the reason.
    """
    try:
        members = _members_before_events(path)
    except (AugmentError, Broken, Ended, OSError, ValueError):
        members = {}
    rank = distributed(members, "rank")
    return FileIdentity(rank_in_path(path)[0] if rank is None else rank, distributed(members, "world_size"))


def has_events(path: str) -> bool:
    """Whether a file may be a trace: JSON with ``traceEvents``, a list, or of a pipeline stage, or no JSON. True if it
    cannot be read: its conversion reports the reason."""
    try:
        return _TRACE_EVENTS in _members_before_events(path)
    except (AugmentError, Broken, Ended, OSError, ValueError):
        return True


def _members_before_events(path: str) -> dict[str, Any]:
    """The members before the events, and :data:`_TRACE_EVENTS` if there are events, or the text is no object, or the
    timeline of a pipeline stage."""
    members: dict[str, Any] = {}
    with _opened(path) as text:
        window = TextWindow(text, CHUNK)
        window.fill()
        if window.data[: len(BYTE_ORDER_MARK)].tobytes() == BYTE_ORDER_MARK:
            window.drop(len(BYTE_ORDER_MARK))
        reader = Members(window)
        if reader.blank() != ord("{") or stage_timeline.recognizes(window.data[:CHUNK].tobytes()):
            return {_TRACE_EVENTS: None}
        window.drop(1)
        with contextlib.suppress(Ended, Broken):  # keep the members before the damage
            while reader.blank() not in (-1, ord("}")):
                if (name := reader.key()) == _TRACE_EVENTS:
                    return {**members, _TRACE_EVENTS: None}
                members[name] = reader.value()
                if reader.blank() == ord(","):
                    window.drop(1)
    return members


def _opened(path: str) -> OpenText:
    """The text of the file; for a remote file, of its head."""
    import tempfile

    if not locations.protocol(path):
        return open_text(path)
    head = tempfile.TemporaryFile()  # noqa: SIM115 - OpenText closes it
    head.write(locations.head(path))
    head.seek(0)
    return OpenText(path, head)
