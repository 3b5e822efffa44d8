"""The files beside the traces of a batch, recorded with them: which is whose, and whether it is still the same."""

from __future__ import annotations

import os
from dataclasses import asdict, astuple, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from augment.findings import AugmentedTrace
    from augment.trace import Trace

RANK = "{rank}"  #: stands for the rank in the path of such a file


@dataclass(frozen=True, slots=True)
class Beside:
    """What is named beside traces, a path of each kind or None; in a path, ``{rank}`` stands for the trace's rank."""

    execution_trace: str | None = None
    memory_timeline: str | None = None

    @property
    def named(self) -> dict[str, str]:
        """The paths that are given, by their kinds."""
        return {kind: path for kind, path in asdict(self).items() if path}

    def made_absolute(self) -> Beside:
        """The same, wherever it is read."""
        return Beside(**{kind: os.path.abspath(path) for kind, path in self.named.items()})

    def state(self, rank: int | None) -> str:
        """Changes when a file of ``rank`` does; empty without any."""
        return ";".join(_state(path_of(path, rank)) if path else "" for path in astuple(self)).rstrip(";")

    def of(self, rank: int | None) -> dict[str, str]:
        """The files of ``rank``, by their kinds: those that are there, and those that must be."""
        return {
            kind: path_of(path, rank)
            for kind, path in self.named.items()
            if RANK not in path or os.path.exists(path_of(path, rank))
        }

    def added_to(self, trace: Trace) -> Trace:
        """``trace`` and what lies beside it for its rank.

        Raises:
            AugmentError: a file cannot be used.
        """
        from augment.execution_trace import with_execution_trace
        from augment.memory_timeline import with_memory_timeline

        adding = {"execution_trace": with_execution_trace, "memory_timeline": with_memory_timeline}
        for kind, path in self.of(trace.rank).items():
            trace = adding[kind](trace, path)
        return trace

    def unused(self, augmented: AugmentedTrace) -> list[str]:
        """In a sentence each, what of this the trace goes without, and why: the analysis of a kind has its name."""
        from augment.findings import Skipped

        source, rank, told = augmented.trace.source.name, augmented.trace.rank, []
        for kind, path in self.named.items():
            what, outcome = kind.replace("_", " "), augmented.outcomes.get(kind)
            if kind not in self.of(rank):
                told.append(f"{source}: goes without its {what}: there is no {path_of(path, rank)}")
            elif isinstance(outcome, Skipped):
                told.append(f"{source}: its {what} is not used: {outcome.reason}")
        return told


def path_of(path: str, rank: int | None) -> str:
    """The file of ``rank``."""
    return path.replace(RANK, str(rank))


def _state(path: str) -> str:
    try:
        found = os.stat(path)
    except OSError:  # whoever reads it says why
        return ""
    return f"{found.st_size}:{found.st_mtime_ns}"
