"""Files recorded with traces: which one belongs to which trace, and whether it changed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass
from typing import TYPE_CHECKING

from augment.errors import UsageError

if TYPE_CHECKING:
    from augment.findings import AugmentedTrace
    from augment.trace import Trace

RANK = "{rank}"  #: stands for the rank in the path of such a file


@dataclass(frozen=True, slots=True)
class Evidence:
    """The files recorded with traces: a path of each kind or None; ``{rank}`` in it stands for the trace's rank."""

    execution_trace: str | None = None
    memory_timeline: str | None = None

    @property
    def paths(self) -> dict[str, str]:
        """The paths that are given, by kind."""
        return {kind: path for kind, path in asdict(self).items() if path}

    def made_absolute(self) -> Evidence:
        """The same files, whatever the working directory of the reader."""
        return Evidence(**{kind: os.path.abspath(path) for kind, path in self.paths.items()})

    def check(self, trace_count: int, server: str | None = None) -> None:
        """Refuse files that cannot belong to so many traces.

        Raises:
            UsageError: one file for several traces; no such file; a server would have to read it.
        """
        for kind, path in self.paths.items():
            option = f"--{kind.replace('_', '-')}"
            if server:
                raise UsageError(f"{option}: a server takes none; leave --server out")
            if RANK in path:
                continue
            if trace_count > 1:
                raise UsageError(f"{option} {path}: there are several inputs; write {RANK} where names have the rank")
            if not os.path.exists(path):
                raise UsageError(f"{option} {path}: no such file")

    def is_one(self, path: str) -> bool:
        """Whether the file at ``path`` is one of these."""
        return any(os.path.realpath(path) == os.path.realpath(one) for one in self.paths.values())

    def state(self, rank: int | None) -> str:
        """A text that changes when a file of ``rank`` does; empty without files."""
        return ";".join(_state(path_of(path, rank)) if path else "" for path in astuple(self)).rstrip(";")

    def of(self, rank: int | None) -> dict[str, str]:
        """The files of ``rank``, by kind: those that exist, and those that must."""
        return {
            kind: path_of(path, rank)
            for kind, path in self.paths.items()
            if RANK not in path or os.path.exists(path_of(path, rank))
        }

    def added_to(self, trace: Trace) -> Trace:
        """``trace`` with the files of its rank.

        Raises:
            AugmentError: a file cannot be used.
        """
        from augment.execution_trace import with_execution_trace
        from augment.memory_timeline import with_memory_timeline

        adding = {"execution_trace": with_execution_trace, "memory_timeline": with_memory_timeline}
        for kind, path in self.of(trace.rank).items():
            trace = adding[kind](trace, path)
        return trace

    def unused(self, augmented: AugmentedTrace) -> Sequence[str]:
        """A sentence for each file that the trace goes without, with the reason; an analysis has each kind's name."""
        from augment.findings import Skipped

        source, rank = augmented.trace.source.name, augmented.trace.rank
        sentences = []
        for kind, path in self.paths.items():
            what, outcome = kind.replace("_", " "), augmented.outcomes.get(kind)
            if kind not in self.of(rank):
                sentences.append(f"{source}: goes without its {what}: there is no {path_of(path, rank)}")
            elif isinstance(outcome, Skipped):
                sentences.append(f"{source}: its {what} is not used: {outcome.reason}")
        return sentences


def path_of(path: str, rank: int | None) -> str:
    """The file of ``rank``."""
    return path.replace(RANK, str(rank))


def _state(path: str) -> str:
    try:
        status = os.stat(path)
    except OSError:  # whoever reads it says why
        return ""
    return f"{status.st_size}:{status.st_mtime_ns}"
