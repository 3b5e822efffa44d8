"""Where outputs are written, and how: completely or not at all, and never over an input."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import BinaryIO

from augment.errors import OutputError

METRICS_SUFFIX = ".metrics.json"
DIFF_METRICS_SUFFIX = f".diff{METRICS_SUFFIX}"
TOLD = "told_by_job"  #: in a rank's metrics, what its job tells; also the category of the slice that says the same
OF_JOBS = ("roles.job.", "job.")  #: names of metrics of several traces begin so, see :func:`is_of_job`
JOB_METRICS = f"job{METRICS_SUFFIX}"  #: a name that may have an addition after ``job``
SUMMARY_SUFFIX = ".summary"  #: of the files that a rank's conversion leaves for its job
RANKS_SUFFIX = f".ranks{SUMMARY_SUFFIX}"  #: of that which it leaves for comparing ranks
MANIFEST = ("augment-manifest", ".jsonl")  #: the beginning and the end of the name of a batch's manifest

#: suffixes removed from an input's name to get its STEM; the longest match counts
_INPUT_SUFFIXES = (
    ".trace",
    ".json",
    ".pftrace",
    ".perfetto-trace",
    ".pb",
    ".zip",
    ".tar",
    ".txt",
    ".raw",
    ".pickle",
    ".pkl",
    ".sqlite",
    "stringids.parquet",
    "_results.db",
    "_kernel_trace.csv",
    ".db",
    ".csv",
    ".parquet",
)
_COMPRESSIONS = (".gz", ".zst", ".bz2", ".xz")

#: the endings, after a STEM, of what ``augment`` writes about a trace or a job, with what a conversion leaves for the
#: job, and about a comparison
OF_TRACE = (
    ".augmented.json.gz",
    ".augmented.pftrace",
    ".augmented.gpu.pftrace",
    ".augmented.flame.pftrace",
    ".augmented.zip",
    METRICS_SUFFIX,
    RANKS_SUFFIX,
    ".seams.summary",
)
OF_DIFF = (".diff.json.gz", ".diff.pftrace", ".diff.zip", ".diff.overlay.pftrace", DIFF_METRICS_SUFFIX)
_OUTPUT_SUFFIXES = (*OF_TRACE, *OF_DIFF, SUMMARY_SUFFIX)

#: what stands for a job of a server where a path may stand
SERVER_JOB = re.compile(r"(?:projects/[^/]+/)?jobs/[0-9a-z]{1,40}")

LONGEST_STEM = 200  #: bytes; names of 255 are possible, and the longest of outputs has 50 more while it is written
_TEMPORARY = re.compile(r"\.(.+)\.[0-9a-f]{12}\.tmp")  #: the temporary file that :func:`replacing` writes
_ONE_OF_JOBS = re.compile(rf".+\.job(?:-\d+)?{re.escape(METRICS_SUFFIX)}")
_STREAM = re.compile(r"/dev/std(?:out|err)|/(?:dev|proc/self)/fd/(\d+)")
_OF_NAME = {"/dev/stdout": 1, "/dev/stderr": 2}
_DOT = re.compile(r"\.")


def is_of_job(name: str) -> bool:
    """Whether metrics of this name are of several traces: ``job.metrics.json``; ``NAME.job.metrics.json`` where a
    folder has several jobs."""
    base = os.path.basename(name)
    return base.startswith(OF_JOBS) or _ONE_OF_JOBS.fullmatch(base) is not None


def stem(name: str) -> str:
    """``rank0`` of ``rank0.pt.trace.json.gz``: the name without the suffixes of its format."""
    base = os.path.basename(name)
    rest = _without(base, _COMPRESSIONS)
    rest = _without(rest, _INPUT_SUFFIXES)
    rest = _without(rest, (".trace",))
    rest = _without(rest, (".pt",))
    return rest or base


def output_path(source_name: str, folder: Path, suffix: str) -> Path:
    """``folder/STEM.suffix`` for the input called ``source_name``."""
    return folder / (fitting(stem(source_name)) + suffix)


def fitting(name: str) -> str:
    """``name``, or its begin and a hash of it where file systems take no names as long as those of its outputs."""
    encoded = os.fsencode(name)
    if len(encoded) <= LONGEST_STEM:
        return name
    digest = hashlib.sha256(encoded).hexdigest()[:12]
    return os.fsencode(name)[: LONGEST_STEM - 13].decode("utf-8", "ignore") + f"-{digest}"


def is_output(name: str) -> bool:
    """Whether ``augment`` writes files with such a name. Such files in a folder are not inputs."""
    return os.path.basename(name).endswith(_OUTPUT_SUFFIXES) or is_manifest(name)


def is_manifest(name: str) -> bool:
    """Whether this is the name of a batch's manifest."""
    base = os.path.basename(name)
    return base.startswith(MANIFEST[0]) and base.endswith(MANIFEST[1])


@contextlib.contextmanager
def replacing(path: Path, source: str | None = None) -> Iterator[BinaryIO]:
    """A temporary file that becomes ``path`` at the end and is removed on an error, so readers never see a partial
    file. What is no file, such as a pipe or ``/dev/stdout``, is written to.

    Args:
        path: the target; an existing file is replaced.
        source: the path of an input, which must differ from ``path``.

    Raises:
        OutputError: the target is the input, or the system refuses to write it.
    """
    with contextlib.suppress(OSError):  # one of the two does not exist: a new target, or an input that is a URL
        if source is not None and os.path.samefile(path, source):
            raise OutputError(f"{path}: is the input itself; choose another folder or name")
    temporary = path.with_name(f".{path.name}.{os.urandom(6).hex()}.tmp")
    try:
        stream = _STREAM.fullmatch(os.path.abspath(path))
        if stream or path.is_fifo() or path.is_char_device():
            # opened anew, a stream that is redirected to a file would be written from the file's beginning on
            with open(os.dup(int(stream[1] or _OF_NAME[stream[0]])) if stream else path, "wb") as file:
                yield file
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "xb") as file:
            yield file
        os.replace(temporary, path)
    except OSError as error:
        if error.filename is not None and str(error.filename) not in (str(path), str(temporary), str(path.parent)):
            raise  # errors of another file, such as the input
        raise OutputError(f"{path}: cannot be written: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def remove_unfinished(folder: str, stems: Collection[str]) -> None:
    """Remove the partial files that a killed process left in ``folder`` for inputs with these STEMs."""
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            match = _TEMPORARY.fullmatch(name)
            if (
                match
                and is_output(match[1])
                and any(match[1][: dot.start()] in stems for dot in _DOT.finditer(match[1]))
            ):
                os.unlink(os.path.join(folder, name))


def copy_bytes(source: BinaryIO, target: BinaryIO, count: int) -> None:
    """Copy the next ``count`` bytes.

    Raises:
        ValueError: the source has fewer bytes.
    """
    while count:
        data = source.read(min(count, 1 << 20))
        if not data:
            raise ValueError("is shorter than it was written")
        target.write(data)
        count -= len(data)


def _without(name: str, suffixes: tuple[str, ...]) -> str:
    """``name`` without the matching one of ``suffixes``, unless nothing would remain."""
    lower = name.lower()
    for suffix in suffixes:
        if lower.endswith(suffix) and len(name) > len(suffix):
            return name[: -len(suffix)]
    return name
