"""The store: a folder, or a URL of one, with a small Parquet file for each run. Nothing else is kept, nothing runs.

A file has a row for each figure. Its name is a digest of the recordings and the labels: a run that is added again
replaces itself. Files are written and read whole, so any number of jobs can add runs at a time.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from augment.core.old_names import FIGURES as OLD
from augment.core.output_files import replacing
from augment.errors import InputError, OutputError, UsageError
from augment.writers.table_files import pyarrow

_SUFFIX = ".run.parquet"
_COLUMNS = ("run", "time_ns", "labels", "rank_count", "figure", "median", "mean", "std", "step_count")


class RunFigure(Struct, frozen=True):
    """A figure of a run: over its steps, each the mean over ranks and devices."""

    median: float
    mean: float
    std: float
    step_count: int

    @classmethod
    def of(cls, samples: npt.NDArray[np.float64]) -> RunFigure:
        """The figure of one value for each step."""
        return cls(float(np.median(samples)), float(samples.mean()), float(samples.std()), len(samples))


class Run(Struct, frozen=True):
    """A run, recorded at ``time_ns`` since 1970. ``digest`` is that of its recordings, ``-``, that of its labels."""

    name: str
    time_ns: int
    labels: Mapping[str, str]
    rank_count: int
    figures: Mapping[str, RunFigure]
    digest: str

    @property
    def recordings(self) -> str:
        """The digest of its recordings."""
        return self.digest.partition("-")[0]

    @property
    def recorded(self) -> str:
        """``2026-01-31 12:00``, UTC."""
        return datetime.fromtimestamp(self.time_ns / 1e9, timezone.utc).strftime("%Y-%m-%d %H:%M")

    def labels_text(self, without: str | None = None) -> str:
        """``branch=main, device=H100``, but for the label ``without``."""
        return ", ".join(f"{key}={value}" for key, value in sorted(self.labels.items()) if key != without)

    def is_like(self, run: Run) -> bool:
        """Whether this is another recording of as many ranks as ``run``, with its labels."""
        return self.has(run.labels) and self.recordings != run.recordings and self.rank_count == run.rank_count

    def has(self, labels: Mapping[str, str]) -> bool:
        """Whether the run has all of ``labels``."""
        return all(self.labels.get(key) == value for key, value in labels.items())


def digest_of(recordings: Sequence[str], labels: Mapping[str, str]) -> str:
    """The digest of a run from the digests of its recordings, and its labels."""
    texts = json.dumps(sorted(recordings)), json.dumps(sorted(labels.items()))
    return "-".join(hashlib.sha256(text.encode()).hexdigest()[:16] for text in texts)


def is_store(place: str) -> bool:
    """Whether ``place`` is a URL, or a folder with runs of a history."""
    return "://" in place or (os.path.isdir(place) and any(name.endswith(_SUFFIX) for name in os.listdir(place)))


class Store:
    """A folder of runs.

    Args:
        place: a folder, or a URL that fsspec knows, such as ``s3://bucket/runs``.
    """

    def __init__(self, place: str | os.PathLike[str]) -> None:
        self.place = os.fspath(place)
        self._folder: _Folder = _RemoteStore(self.place) if "://" in self.place else _LocalStore(Path(self.place))

    def add(self, run: Run) -> None:
        """Add a run, or replace it.

        Raises:
            UsageError: pyarrow or fsspec is not installed.
            OutputError: the store cannot be written.
        """
        arrow = pyarrow()
        key = (run.name, run.time_ns, json.dumps(dict(run.labels), sort_keys=True), run.rank_count)
        rows = [
            (*key, figure, series.median, series.mean, series.std, series.step_count)
            for figure, series in run.figures.items()
        ]
        columns = dict(zip(_COLUMNS, zip(*rows, strict=True), strict=True))
        file = io.BytesIO()
        arrow.parquet.write_table(arrow.table({name: list(values) for name, values in columns.items()}), file)
        self._folder.write(run.digest + _SUFFIX, file.getvalue())

    def runs(self, labels: Mapping[str, str] | None = None) -> list[Run]:
        """The runs that have all of ``labels``, the oldest first.

        Raises:
            UsageError: pyarrow or fsspec is not installed.
            InputError: there is no such folder, or a file in it is damaged.
        """
        names = [name for name in self._folder.names() if name.endswith(_SUFFIX)]
        runs = [self._read(name) for name in names]
        return sorted((run for run in runs if run.has(labels or {})), key=lambda run: (run.time_ns, run.digest))

    def _read(self, name: str) -> Run:
        arrow = pyarrow()
        try:
            columns = arrow.parquet.read_table(io.BytesIO(self._folder.read(name))).to_pydict()
            figures = zip(*(columns[column] for column in _COLUMNS[4:]), strict=True)
            run, time_ns, labels, rank_count = (columns[column][0] for column in _COLUMNS[:4])
            made = {OLD.get(figure, figure): RunFigure(*values) for figure, *values in figures}
            return Run(run, time_ns, json.loads(labels), rank_count, made, name.removesuffix(_SUFFIX))
        except (arrow.ArrowException, KeyError, IndexError, ValueError) as error:
            raise InputError(f"{self.place}/{name}", f"no run of augment history: {error}") from error


class _Folder(Protocol):
    def names(self) -> list[str]: ...

    def read(self, name: str) -> bytes: ...

    def write(self, name: str, content: bytes) -> None: ...


class _LocalStore(Struct, frozen=True):
    path: Path

    def names(self) -> list[str]:
        try:
            return sorted(os.listdir(self.path))
        except FileNotFoundError as error:
            raise InputError(
                str(self.path), "no such folder; augment history add makes it with the first run"
            ) from error
        except OSError as error:
            raise InputError.of(str(self.path), error) from error

    def read(self, name: str) -> bytes:
        return (self.path / name).read_bytes()

    def write(self, name: str, content: bytes) -> None:
        with replacing(self.path / name) as file:
            file.write(content)


class _RemoteStore:
    def __init__(self, url: str) -> None:
        try:
            import fsspec
        except ImportError as error:
            raise UsageError(f"{url}: needs fsspec: pip install 'kineto-augment[remote]'") from error
        try:
            self._files, self._path = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise UsageError(f"{url}: {error}") from error
        self._url = url

    def names(self) -> list[str]:
        """The names of the files; none of a folder that does not exist, which most stores cannot tell from an empty."""
        try:
            self._files.invalidate_cache()
            paths: list[Any] = self._files.ls(self._path, detail=False)
        except FileNotFoundError:
            return []
        except Exception as error:  # each store has its own
            raise InputError(self._url, str(error)) from error
        return sorted(name.rpartition("/")[2] for name in paths)

    def read(self, name: str) -> bytes:
        try:
            content: bytes = self._files.cat_file(f"{self._path.rstrip('/')}/{name}")
        except Exception as error:
            raise InputError(f"{self._url}/{name}", str(error)) from error
        return content

    def write(self, name: str, content: bytes) -> None:
        try:
            self._files.makedirs(self._path, exist_ok=True)
            self._files.pipe_file(f"{self._path.rstrip('/')}/{name}", content)
        except Exception as error:
            raise OutputError(f"{self._url}/{name}: cannot be written: {error}") from error
