"""The results of a server: for a trace, for a whole job, and of a diagnosis."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from augment.errors import AugmentError


class Augmented(Struct, frozen=True):
    """The result for a trace: the files written, the sidecar last, and, on request, the summaries for its job.

    With summaries, ``seams`` holds the seams of the files (:mod:`augment.writers.seams`); it is empty if the server's
    version does not send them.
    """

    files: tuple[Path, ...]
    summaries: tuple[Path, ...] = ()
    seams: bytes = b""

    @property
    def metrics(self) -> dict[str, Any]:
        """The sidecar's content."""
        return _content(self.files[-1])


class AugmentedJob(Struct, frozen=True):
    """The result for a whole job: for each trace, by its name in the job, its result or the error.

    ``files`` belong to the job: timelines, then the job's metrics; empty with fewer than two readable traces.
    ``notes`` are for people; each begins with a file's name.
    """

    traces: Mapping[str, Augmented | AugmentError]
    files: tuple[Path, ...]
    notes: tuple[str, ...] = ()

    @property
    def metrics(self) -> dict[str, Any]:
        """The content of ``job.metrics.json``."""
        return _content(self.files[-1])


class Diagnosis(Struct, frozen=True):
    """The diagnosis of traces: a report on their job, if they are its ranks, and on each readable trace.

    Each of ``reports`` has ``input`` (the path of a trace), ``verdict`` and ``rows``. ``failed`` are the other traces.
    """

    reports: tuple[dict[str, Any], ...]
    failed: Mapping[str, AugmentError]

    @classmethod
    def of(cls, lines: bytes, paths: Mapping[str, str], failed: Mapping[str, AugmentError]) -> Diagnosis:
        """The diagnosis in a file ``diagnosis.jsonl``; ``paths`` maps the names in it to local paths."""
        import msgspec

        reports = [msgspec.json.decode(line) for line in lines.splitlines()]
        return cls(tuple({**row, "input": paths.get(row["input"], row["input"])} for row in reports), failed)


def _content(path: Path) -> dict[str, Any]:
    import msgspec

    decoded: dict[str, Any] = msgspec.json.decode(path.read_bytes())
    return decoded
