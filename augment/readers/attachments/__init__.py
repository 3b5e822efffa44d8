"""Files that are recorded beside a trace: which file belongs to which trace, whether it changed, and how it is used.

::

    trace = augment.with_memory_snapshot(augment.read("rank0.json.gz"), "snapshot.pickle")
    augment.write(augment.augment(trace))
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING

from msgspec import Struct, field

from augment.core.attachment_kinds import KINDS, RANK, STEM, Kind, kind_named, kind_of
from augment.errors import UnknownFormat, UsageError

if TYPE_CHECKING:
    from augment.core import AugmentedTrace, Trace
    from augment.readers.limits import Limits

Path = str | os.PathLike[str]
_NO_LOG = re.compile(rb"\A\s*[{\[]|\ASQLite|[\x00-\x08\x0e-\x1a\x1c-\x1f]")  #: what a text for people has not


class Evidence(Struct, frozen=True):
    """Files recorded with traces: a path by kind; ``{rank}`` in a path stands for the trace's rank. An empty path says
    that there is none, even if one lies beside the trace. ``of_traces``: further paths of a trace, by its own path;
    beside such a trace no other files are looked for."""

    given: Mapping[str, str | None] = field(default_factory=dict)
    of_traces: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def paths(self) -> dict[str, str]:
        """The given paths by kind, in the registry's order."""
        return {kind.name: path for kind in KINDS if (path := self.given.get(kind.name))}

    def made_absolute(self) -> Evidence:
        """The same files with absolute paths."""
        return Evidence({**self.given, **{kind: os.path.abspath(path) for kind, path in self.paths.items()}})

    def check(self, trace_count: int, side: str = "") -> None:
        """Refuse files that cannot belong to ``trace_count`` traces. ``side`` begins the names of the options of one
        side of a comparison.

        Raises:
            UsageError: one file for several traces, or a file that does not exist.
        """
        for name, path in self.paths.items():
            kind = kind_named(name)
            option = f"--{side}{kind.option}"
            if RANK in path:
                continue
            if trace_count > 1 and not kind.several:
                raise UsageError(f"{option} {path}: there are several inputs; write {RANK} in place of the rank")
            if not files_at(path):
                raise UsageError(f"{option} {path}: no such file")

    def is_one(self, path: str) -> bool:
        """Whether ``path`` is one of these files."""
        known = (file for pattern in self.paths.values() for file in files_at(pattern) or [pattern])
        return any(os.path.realpath(path) == os.path.realpath(file) for file in known)

    def near(self, trace: str, rank: int | None, world_size: int | None) -> Evidence:
        """These files and, of kinds that none is given of, those that lie beside the file ``trace`` of this rank under
        a usual name and begin as such a file does. Names without a placeholder are for a job of one rank. What is such
        a file itself, and given as an input, has nothing beside it."""
        if trace in self.of_traces:
            return Evidence({**self.given, **self.of_traces[trace]})
        stem = os.path.basename(trace).split(".")[0]
        known = {}
        for kind in KINDS:
            if self.given.get(kind.name) is not None:
                continue
            for name in kind.usual:
                if (RANK in name and rank is None) or ((world_size or 1) > 1 and not (RANK in name or STEM in name)):
                    continue
                path = os.path.join(os.path.dirname(trace), path_of(name, rank).replace(STEM, stem))
                if os.path.isfile(path) and begins_as(path) == kind:
                    known[kind.name] = path
                    break
        if not known or kind_of(head := _head(trace)) or not _NO_LOG.search(head):
            return self
        return Evidence({**self.given, **known})

    def state(self, rank: int | None) -> str:
        """A text that changes when a file of ``rank`` changes; empty without files."""
        given = [self.given.get(kind.name) for kind in KINDS]
        return ";".join(_state(path_of(path, rank)) if path else "" for path in given).rstrip(";")

    def of(self, rank: int | None) -> dict[str, str]:
        """The files of ``rank`` by kind. A path with ``{rank}`` is left out where no file exists."""
        return {
            kind: path_of(path, rank)
            for kind, path in self.paths.items()
            if RANK not in path or files_at(path_of(path, rank))
        }

    def added_to(self, trace: Trace, limits: Limits | None = None) -> Trace:
        """``trace`` with the files of its rank attached; ``limits`` are those of its reader.

        Raises:
            AugmentError: a file cannot be used.
        """
        for kind, path in self.of(trace.rank).items():
            trace = attach(trace, kind_named(kind), path, limits)
        return trace

    def unused(self, augmented: AugmentedTrace) -> list[str]:
        """One sentence with the reason for each file that the results do not use."""
        from augment.core import Skipped

        outcomes = augmented.outcomes.items()
        reasons = {name: outcome.reason for name, outcome in outcomes if isinstance(outcome, Skipped)}
        return self.not_used(augmented.trace.source.name, augmented.trace.rank, reasons)

    def not_used(self, source: str, rank: int | None, reasons: Mapping[str, str]) -> list[str]:
        """The same for the trace of this name, by the ``reasons`` for which analyses were skipped."""
        sentences = []
        for kind, path in self.paths.items():
            what, users = kind.replace("_", " "), kind_named(kind).analyses or (kind,)
            if kind not in self.of(rank):
                sentences.append(f"{source}: no {what}: there is no file {path_of(path, rank)}")
            elif all(user in reasons for user in users):
                sentences.append(f"{source}: its {what} is not used: {reasons[users[0]]}")
        return sentences


def attach(trace: Trace, kind: Kind, path: Path, limits: Limits | None = None) -> Trace:
    """``trace`` with what was recorded in the file of this kind.

    Raises:
        InputError: the file cannot be read.
        UnknownFormat: it is of another kind, which the message names.
    """
    return trace.changed(read_alone(kind, path, limits))


def read_alone(kind: Kind, path: Path, limits: Limits | None = None) -> object:
    """What the file of this kind holds: the errors are those of :func:`attach`."""
    path = os.fspath(path)
    if kind.begins and not kind.several and (other := begins_as((files_at(path) or [path])[0])) not in (None, kind):
        assert other is not None
        raise UnknownFormat(path, f"{other.what}, not {kind.what}; name it with --{other.option}")
    from augment.core import records
    from augment.readers.limits import UNLIMITED

    module, _, function = kind.reads.partition(":")
    read, limits = getattr(import_module(f"{__name__}.{module}"), function), limits or UNLIMITED
    if kind.together:
        return getattr(records, kind.together)(tuple(read(each, limits) for each in files_at(path)))
    attached: object = read(path, limits)
    return attached


def begins_as(path: str) -> Kind | None:
    """The kind that the first bytes of the file tell; None if of none.

    Raises:
        InputError: the file cannot be read.
    """
    return kind_of(_head(path))


def _head(path: str) -> bytes:
    from augment.readers.containers import at_least, open_text

    with open_text(path) as text:
        return at_least(text, 4096)


def path_of(path: str, rank: int | None) -> str:
    """``path`` with the rank filled in."""
    return path.replace(RANK, str(rank))


def files_at(path: str) -> list[str]:
    """The file, the files that match a glob, or those of a kind in a folder at any depth, in order; what is given after
    the name of a file (``FILE@zone=Z``) is no part of it."""
    inside = [kind.inside for kind in KINDS if kind.inside] if os.path.isdir(path) else []
    known = sorted(file for each in inside for file in glob.glob(f"{glob.escape(path)}/**/{each}", recursive=True))
    known = known or ([path] if os.path.exists(path) else sorted(glob.glob(path)))
    return known if known or "@" not in path else files_at(path.rpartition("@")[0])


def _state(path: str) -> str:
    try:
        states = [os.stat(file) for file in files_at(path)]
    except OSError:  # the reader reports it
        return ""
    return ",".join(f"{status.st_size}:{status.st_mtime_ns}" for status in states)


def _attaching(name: str) -> Callable[[Trace, Path], Trace]:
    kind = kind_named(name)

    def with_(trace: Trace, path: Path) -> Trace:
        return attach(trace, kind, path)

    with_.__name__ = with_.__qualname__ = f"with_{name}"
    with_.__doc__ = f"""``trace`` with {kind.what} from the file at ``path``, plain or compressed.

    Raises:
        InputError: the file cannot be read.
        UnknownFormat: the file is not {kind.what}.
    """
    return with_


with_execution_trace = _attaching("execution_trace")
with_memory_timeline = _attaching("memory_timeline")
with_graph_capture = _attaching("graph_capture")
with_memory_snapshot = _attaching("memory_snapshot")
with_flight_recorder = _attaching("flight_recorder")
with_nccl_inspector = _attaching("nccl_inspector")
with_nccl_log = _attaching("nccl_log")
with_torch_trace = _attaching("torch_trace")
with_inductor_provenance = _attaching("inductor_provenance")
with_spans = _attaching("spans")
with_telemetry = _attaching("telemetry")
