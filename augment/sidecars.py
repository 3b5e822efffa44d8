"""Reads sidecars: the files of metrics that ``augment`` wrote, of one run or many."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from augment.errors import InputError, UnknownFormat, expect_regular
from augment.records import dataclass
from augment.writers.files import DIFF_METRICS_SUFFIX, METRICS_SUFFIX

_OF_JOB = f"*job*{METRICS_SUFFIX}"
_PARENTS = 3  #: how many folders above a rank's folder its job's metrics may be
_SUFFIXES = (DIFF_METRICS_SUFFIX, METRICS_SUFFIX)


@dataclass(frozen=True, slots=True)
class Sidecar:
    """A sidecar. ``run`` is the name of the run that it belongs to; ``trace`` is the name of what it describes."""

    path: str
    run: str
    trace: str
    content: dict[str, Any]

    @classmethod
    def of(cls, path: str, content: dict[str, Any], run: str | None = None) -> Sidecar:
        """The metrics at ``path``, which are a run of their own unless ``run`` is given."""
        base = os.path.basename(path)
        suffix = next((suffix for suffix in _SUFFIXES if base.endswith(suffix)), None)
        trace = base.removesuffix(suffix) if suffix else base.partition(".")[0]
        return cls(path, trace if run is None else run, trace, content)

    @property
    def rank(self) -> int | None:
        """The rank, if the sidecar describes one."""
        ranks: list[int] = self.content["source"].get("ranks") or []
        return ranks[0] if len(ranks) == 1 else None


def sidecars_in(sources: Sequence[str | os.PathLike[str]]) -> Iterator[Sidecar]:
    """The sidecars named, and those below the folders named.

    A file is a run of its own. Of a folder, each folder that holds sidecars is a run; its name is its path below the
    folder named, or that folder's own name.

    Raises:
        InputError: a source does not exist, or a folder holds no sidecar.
        UnknownFormat: a file holds no metrics.
    """
    for named in sources:
        source = os.fspath(named)
        if not os.path.isdir(source):
            if not os.path.exists(source):
                raise InputError(source, "no such file or folder")
            yield Sidecar.of(source, read_sidecar(source))
            continue
        paths = [path for path in sorted(Path(source).rglob(f"*{METRICS_SUFFIX}")) if not path.name.startswith(".")]
        if not paths:
            raise InputError(source, "holds no metrics; augment run writes them")
        for path in paths:
            below = path.parent.relative_to(source).as_posix()
            run = os.path.basename(os.path.abspath(source)) if below == "." else below
            yield Sidecar.of(str(path), read_sidecar(str(path)), run)


def is_sidecar(path: str) -> bool:
    """Whether the file at ``path`` holds metrics, by its first bytes or else its name."""
    try:
        expect_regular(path)
        with open(path, "rb") as file:
            return b'"schema_version"' in file.read(64) or path.endswith(METRICS_SUFFIX)
    except OSError as error:
        raise InputError.of(path, error) from error


def read_sidecar(path: str) -> dict[str, Any]:
    """The metrics in ``path``.

    Raises:
        UnknownFormat: the file holds no metrics.
    """
    try:
        decoded = msgspec.json.decode(Path(path).read_bytes())
    except msgspec.DecodeError as error:
        raise UnknownFormat(path, f"not a metrics file of augment: {error}") from error
    if not isinstance(decoded, dict) or not {"source", "analyses", "diagnostics"} <= decoded.keys():
        raise UnknownFormat(path, "not a metrics file of augment; augment run writes them")
    return decoded


_SEES = "exposed_communication"  #: the finding of a rank that sees waits, but cannot tell them from transfers


def told_by_job(path: str, content: dict[str, Any]) -> list[str]:
    """Sentences about the rank from the metrics of its job; ``content`` at ``path`` are the metrics of the rank. The
    first sentence is the job's verdict. Empty if no job's metrics that include the trace lie beside it or above.
    """
    sha256 = content["source"].get("sha256")
    folder = Path(os.path.abspath(path)).parent
    places = [folder, *folder.parents[:_PARENTS]]
    for beside in (each for place in places for each in sorted(place.glob(_OF_JOB))):
        try:
            job = read_sidecar(str(beside))
        except (UnknownFormat, OSError):
            continue
        name = next((each["name"] for each in job["source"].get("traces", ()) if each["sha256"] == sha256), None)
        if sha256 and name is not None and job.get("verdict", {}).get("text"):
            sees = any(row.get("rule") == _SEES for row in content.get("verdict", {}).get("rows", ()))
            return [f"Its job ({beside.name}): {job['verdict']['text'][0]}", *_waiting(job, name, sees=sees)]
    return []


def _waiting(job: dict[str, Any], trace: str, *, sees: bool) -> Iterator[str]:
    """How long the rank of a trace waits for others, if that is at least a hundredth of its steps; ``sees``: a finding
    of its own is about that."""
    parts = [row for row in job["analyses"].get("job_step_efficiency", {}).get("rows", ()) if row["trace"] == trace]
    wall, wait = (sum(row[name] for row in parts) for name in ("wall_ns", "exposed_wait_ns"))
    if wall and wait >= wall / 100:
        share = f"This rank does nothing but wait for others for {100 * wait / wall:.0f} % of its steps"
        mostly = sees and wait >= sum(row["exposed_transfer_ns"] for row in parts)
        yield f"{share}: its finding `{_SEES}` is mostly that, so mend the late rank." if mostly else f"{share}."
