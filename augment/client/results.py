"""What comes back from a server: of a trace, and of a whole job."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from augment.errors import AugmentError
from augment.records import dataclass


@dataclass(frozen=True)
class Augmented:
    """What came of a trace: the files written, the sidecar last; and summaries for the figures of its job, if asked.

    Then ``seams`` tells where the job's tracks can be added to the files (:mod:`augment.writers.seams`); empty, if the
    server is of a version that does not.
    """

    files: tuple[Path, ...]
    summaries: tuple[Path, ...] = ()
    seams: bytes = b""

    @property
    def metrics(self) -> dict[str, Any]:
        """The sidecar's content."""
        return _content(self.files[-1])


@dataclass(frozen=True)
class AugmentedJob:
    """What came of a whole job: of each trace, by its name in the job, what was made of it or why nothing could be.

    ``files`` are about the job: timelines and its metrics, these last; empty if there were not two traces to compare.
    ``notes`` are for people; each begins with a file's name.
    """

    traces: Mapping[str, Augmented | AugmentError]
    files: tuple[Path, ...]
    notes: tuple[str, ...] = ()

    @property
    def metrics(self) -> dict[str, Any]:
        """The content of ``job.metrics.json``."""
        return _content(self.files[-1])


@dataclass(frozen=True)
class Diagnosis:
    """What is wrong with traces: a report for their job, if they are ranks of one, and for each that could be read.

    ``reports`` have ``input``, which is the path of a trace, ``verdict`` and ``rows``. ``failed`` are the other traces.
    """

    reports: tuple[dict[str, Any], ...]
    failed: Mapping[str, AugmentError]

    @classmethod
    def of(cls, lines: bytes, paths: Mapping[str, str], failed: Mapping[str, AugmentError]) -> Diagnosis:
        """That in a file ``diagnosis.jsonl``, in which the traces of ``paths`` have these names."""
        import msgspec

        reports = [msgspec.json.decode(line) for line in lines.splitlines()]
        return cls(tuple({**row, "input": paths.get(row["input"], row["input"])} for row in reports), failed)


def _content(path: Path) -> dict[str, Any]:
    import msgspec

    decoded: dict[str, Any] = msgspec.json.decode(path.read_bytes())
    return decoded
