"""What came of each input of a batch, kept in its output folder so that the batch can go on where it was ended.

``augment-manifest.jsonl`` has a line for every input that is finished, written when it is; lines are only ever added,
and the last that tells of an input counts. A line that a crash cut off is ignored. Paths are as seen from the folder,
so that it can be moved.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable
from dataclasses import asdict
from functools import cached_property
from typing import Any

from augment import __version__
from augment.batch import job_tracks, locations
from augment.batch.convert import Settings
from augment.batch.inputs import Input
from augment.batch.journal import journal
from augment.batch.results import File, Result
from augment.tables import read_tables
from augment.writers.files import MANIFEST, is_manifest

_FORM = 2  #: of summaries and seams; what has another is done again
_ALWAYS = ("path", "size", "sha256")  #: what is told of every file


def digest_of(settings: Settings) -> str:
    """The same for settings of which the same outputs come."""
    asked = settings.request
    told = [
        _FORM, asked.formats, sorted(asked.only), sorted(asked.skip), asked.options, asked.steps,
        [stage.suffix for stage in settings.stages], *filter(None, [asked.evidence.paths, read_tables(asked.tables)]),
    ]  # fmt: skip
    return hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode()).hexdigest()[:16]


class Manifest:
    """The manifest of one folder, which only one process at a time writes to.

    Args:
        root: the folder, a path or a URL.
        settings: of this run.
        shard: distinguishes processes that share the folder; each has a file of its own, and reads all of them.

    Raises:
        OutputError: another process writes to it, or it cannot be written.
    """

    def __init__(self, root: str, settings: Settings, shard: str = "") -> None:
        self._root, self._digest = root, digest_of(settings)
        self._evidence = settings.request.evidence
        locations.expect_writable(root)
        self._journal = journal(locations.join(root, f"-{shard}".join(MANIFEST) if shard else "".join(MANIFEST)))

    def done(self, one: Input) -> Result | None:
        """What came of ``one`` before, if it need not be done again.

        That is so if neither the file nor what was recorded with it nor the settings nor this program changed, and
        what was made of it is still there.
        """
        told = self._known.get(one.key)
        if told is None or told["status"] != "augmented" or not one.modified:
            return None
        if (told["size"], told["modified"], told["options"], told["tool"]) != (
            one.size, one.modified, self._digest, __version__
        ):  # fmt: skip
            return None
        if told.get("beside", "") != self._evidence.state(told["rank"]):
            return None
        outputs, summaries = self._files(told["outputs"]), self._files(told["summaries"])
        changed = [file for file in (*outputs, *summaries) if self._size(file) != file.size]
        if not all(self._size(file) is not None and job_tracks.is_as_written(file) for file in changed):
            return None
        return Result(
            one.path, "done_before", outputs, sha256=told["sha256"], rank=told["rank"], world_size=told["world_size"],
            summaries=summaries, drawn=job_tracks.NOT_KNOWN if changed else told["drawn"],
            evidence_state=told.get("beside", ""), partial=told.get("partial", ""),
        )  # fmt: skip

    def record(self, one: Input, result: Result) -> None:
        """Tell what came of ``one``, if it is a trace."""
        if result.status == "passed_over":
            return
        told = {
            "input": one.key, "path": one.path, "size": one.size, "modified": one.modified, "sha256": result.sha256,
            "options": self._digest, "tool": __version__, "status": result.status, "message": result.message,
            "rank": result.rank, "world_size": result.world_size, "finished_ns": time.time_ns(),
            "outputs": self._relative(result.files), "summaries": self._relative(result.summaries),
            "drawn": result.drawn, "beside": result.evidence_state, "partial": result.partial,
        }  # fmt: skip
        self._journal.append(json.dumps(told).encode())

    def close(self) -> None:
        """Write what is left, and let others write."""
        self._journal.close()

    @cached_property
    def _remote_sizes(self) -> dict[str, int] | None:
        """The sizes of all files, when first asked for; None of a local folder."""
        return locations.sizes_below(self._root) if locations.protocol(self._root) else None

    @cached_property
    def _known(self) -> dict[str, dict[str, Any]]:
        """What is known of each input: what was told last."""
        known: dict[str, dict[str, Any]] = {}
        names = os.listdir(self._root) if self._remote_sizes is None else self._remote_sizes
        for name in sorted(name for name in names if "/" not in name and is_manifest(name)):
            for line in locations.read(locations.join(self._root, name)).splitlines():
                told = _decoded(line)
                if told and told["finished_ns"] >= known.get(told["input"], told)["finished_ns"]:
                    known[told["input"]] = told
        return known

    def _size(self, file: File) -> int | None:
        """The size that a file has now; None if it is not there."""
        if self._remote_sizes is not None:
            return self._remote_sizes.get(locations.below(file.path, self._root))
        return locations.size(file.path)

    def _files(self, told: list[dict[str, Any]]) -> tuple[File, ...]:
        return tuple(File(**{**one, "path": locations.join(self._root, one["path"])}) for one in told)

    def _relative(self, files: Iterable[File]) -> list[dict[str, Any]]:
        """The files as they are told of, without what they do not have."""
        told = [{**asdict(one), "path": locations.below(one.path, self._root)} for one in files]
        return [{name: value for name, value in one.items() if value or name in _ALWAYS} for one in told]


def _decoded(line: bytes) -> dict[str, Any] | None:
    try:
        told = json.loads(line)
    except ValueError:  # cut off
        return None
    return told if isinstance(told, dict) and "finished_ns" in told else None
