"""Files that are recorded beside a trace: which file belongs to which trace, and whether it changed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import asdict, astuple

from augment.errors import UsageError

if TYPE_CHECKING:
    from augment.core.findings import AugmentedTrace
    from augment.core.trace import Trace

RANK = "{rank}"  #: placeholder for the rank in a path


class Evidence(Struct, frozen=True):
    """Files recorded with traces: one path of each kind, or None; ``{rank}`` in a path stands for the trace's rank."""

    execution_trace: str | None = None
    memory_timeline: str | None = None
    graph_capture: str | None = None

    @property
    def paths(self) -> dict[str, str]:
        """The given paths by kind."""
        return {kind: path for kind, path in asdict(self).items() if path}

    def made_absolute(self) -> Evidence:
        """The same files with absolute paths."""
        return Evidence(**{kind: os.path.abspath(path) for kind, path in self.paths.items()})

    def check(self, trace_count: int, server: str | None = None, side: str = "") -> None:
        """Refuse files that cannot belong to ``trace_count`` traces. ``side`` begins the names of the options of one
        side of a comparison.

        Raises:
            UsageError: one file for several traces, a file that does not exist, or files for a server.
        """
        for kind, path in self.paths.items():
            option = f"--{side}{kind.replace('_', '-')}"
            if server:
                raise UsageError(f"{option}: not supported with a server; leave --server out")
            if RANK in path:
                continue
            if trace_count > 1:
                raise UsageError(f"{option} {path}: there are several inputs; write {RANK} in place of the rank")
            if not os.path.exists(path):
                raise UsageError(f"{option} {path}: no such file")

    def is_one(self, path: str) -> bool:
        """Whether ``path`` is one of these files."""
        return any(os.path.realpath(path) == os.path.realpath(known) for known in self.paths.values())

    def state(self, rank: int | None) -> str:
        """A text that changes when a file of ``rank`` changes; empty without files."""
        return ";".join(_state(path_of(path, rank)) if path else "" for path in astuple(self)).rstrip(";")

    def of(self, rank: int | None) -> dict[str, str]:
        """The files of ``rank`` by kind. A path with ``{rank}`` is left out where no file exists."""
        return {
            kind: path_of(path, rank)
            for kind, path in self.paths.items()
            if RANK not in path or os.path.exists(path_of(path, rank))
        }

    def added_to(self, trace: Trace) -> Trace:
        """``trace`` with the files of its rank attached.

        Raises:
            AugmentError: a file cannot be used.
        """
        from augment.readers.attachments import recorded_files

        for kind, path in self.of(trace.rank).items():
            trace = getattr(recorded_files, f"with_{kind}")(trace, path)
        return trace

    def unused(self, augmented: AugmentedTrace) -> Sequence[str]:
        """One sentence with the reason for each file that the results do not use."""
        from augment.core.findings import Skipped

        source, rank = augmented.trace.source.name, augmented.trace.rank
        sentences = []
        for kind, path in self.paths.items():
            what, outcome = kind.replace("_", " "), augmented.outcomes.get(kind)
            if kind not in self.of(rank):
                sentences.append(f"{source}: no {what}: there is no file {path_of(path, rank)}")
            elif isinstance(outcome, Skipped):
                sentences.append(f"{source}: its {what} is not used: {outcome.reason}")
        return sentences


def path_of(path: str, rank: int | None) -> str:
    """``path`` with the rank filled in."""
    return path.replace(RANK, str(rank))


def _state(path: str) -> str:
    try:
        status = os.stat(path)
    except OSError:  # the reader reports it
        return ""
    return f"{status.st_size}:{status.st_mtime_ns}"
