"""The last step of a whole job, in a worker: compares the ranks, draws the job's tracks and writes the timeline.

Its inputs are the outputs of each trace; it does the same as ``augment run DIR`` after all conversions.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from augment.batch.conversion import BROWSER_TEXT_BYTES, File, Result, RunPlan
from augment.batch.inputs import Input, identify, of_ranks
from augment.batch.job_question import Redraw, conclude, draw
from augment.batch.merged_timeline import merge, merge_all, only_job
from augment.core.output_files import RANKS_SUFFIX, SUMMARY_SUFFIX
from augment.errors import AugmentError
from augment.job.ranks.summary import read_summary
from augment.writers import perfetto, seams
from augment_server.workers.orders import ranges_of, request_in

Order = dict[str, Any]
Stage = Callable[[str], None]
_STAGES = ("comparing", "drawing", "merging")


class Gathering:
    """Collects the outputs of a job's traces in one folder.

    Args:
        order: of the step.
        sources: the paths of the traces; they need to exist only for a merged timeline.
        out: the folder for the outputs, with those of each trace.
    """

    def __init__(self, order: Order, sources: Sequence[Path], out: Path) -> None:
        self._order, self._out = order, out
        self._request = request_in(order)
        self._known: dict[Path, tuple[Path, str]] = {}  # unchanged outputs: their original path and SHA-256
        self._results: dict[str, Result] = {}
        self._inputs: list[Input] = []
        self._ranks: list[Path] = []
        self.notes: list[str] = []  #: remarks on the outputs; each begins with a file name
        for given, source in zip(order["inputs"], sources, strict=True):
            if given["made"]:
                self._add(given, source)

    def _add(self, given: Order, source: Path) -> None:
        """Note the outputs of a trace, and link to them below ``out``, beside the trace's path.

        The server puts the files themselves in place of links that are left: this process cannot change them.
        """
        folder = self._out / os.path.dirname(given["file_name"])
        folder.mkdir(parents=True, exist_ok=True)
        item = Input(str(source), str(folder), named=True)
        files = [folder / os.path.basename(made["file_name"]) for made in given["made"]]
        for file, made in zip(files, given["made"], strict=True):
            origin = Path(given["made_in"], made["file_name"])
            file.symlink_to(origin)
            self._known[file] = (origin, made["sha256"])
        summaries = [file for file in files if file.name.endswith(SUMMARY_SUFFIX)]
        outputs = [file for file in files if file not in summaries]
        rank, world_size = _identity(given, source, summaries)
        seamed = zip(outputs, _seams(summaries, outputs), strict=True)
        self._results[item.path] = Result(
            item.path,
            "augmented",
            tuple(File(str(file), file.stat().st_size, seam=seam) for file, seam in seamed),
            rank=rank,
            world_size=world_size,
            summaries=tuple(File(str(file), file.stat().st_size) for file in summaries),
        )
        self._inputs.append(item)
        self._ranks += [*(summaries if self._order["summaries"] else ()), *outputs]

    def all(self, stage: Stage) -> list[Path]:
        """Run all stages; returns the files of the job, ``job.metrics.json`` last; or only the timeline."""
        if self._order["merge"] and self._order["merge"]["only"]:
            return [self._timeline(stage)]
        stage("comparing")
        files: list[str] = []
        redraws: list[Redraw] = []
        for concluded in conclude(self._inputs, self._results, self._request):
            files += concluded.written
            redraws += concluded.redraws
        stage("drawing")
        for redraw in redraws:
            result = draw(redraw.input, redraw.before, redraw.tracks(), redraw.drawn)
            if result.status == "failed":
                raise AugmentError(result.message)
        return [*self._ranks, *self._merged(stage), *map(Path, files)]

    def _timeline(self, stage: Stage) -> Path:
        """The timeline of all traces, with what the command says of it."""
        stage("merging")
        plan = self._plan(compares=False)
        path = self._out / f"job{perfetto.SUFFIX}"
        ranks = ranges_of(self._order["merge"]["ranks"])
        inputs = of_ranks(self._inputs, ranks) if ranks else self._inputs
        merged = merge(only_job(inputs, self._request.tables), str(path), plan)
        said = (merged.left_out, *merged.notes, *merged.verdict)
        self.notes += [f"{path.name}: {text}" for text in said if text]
        return path

    def _plan(self, *, compares: bool) -> RunPlan:
        wanted = self._order["merge"]
        limit = None if wanted["everything"] else BROWSER_TEXT_BYTES
        return RunPlan(
            self._request, compares, align=wanted["align"], fixed_ranks=bool(wanted["ranks"]), timeline_bytes=limit
        )

    def _merged(self, stage: Stage) -> list[Path]:
        if self._order["merge"] is None:
            return []
        stage("merging")
        paths = []
        for path, merged in merge_all(self._inputs, self._results, self._plan(compares=True), lambda _: None):
            paths.append(Path(path))
            if merged and merged.left_out:
                self.notes.append(f"{paths[-1].relative_to(self._out).as_posix()}: {merged.left_out}")
        return paths

    def sha256_of(self, path: Path) -> str:
        """The known digest of an unchanged output; empty if it must be computed."""
        origin, sha256 = self._known.get(path, (path, ""))
        return sha256 if sha256 and origin.exists() and path.samefile(origin) else ""


def stages_of(order: Order) -> tuple[str, ...]:
    """The stages of the step."""
    if order["merge"] is not None and order["merge"]["only"]:
        return _STAGES[-1:]
    return _STAGES if order["merge"] is not None else _STAGES[:-1]


def _identity(given: Order, source: Path, summaries: Sequence[Path]) -> tuple[int | None, int | None]:
    """Rank and number of ranks: from the conversion, or, for an artifact of an earlier job, from the trace."""
    if "rank" in given:
        return given["rank"], given["world_size"]
    if source.exists():
        identity = identify(str(source))
        return identity.rank, identity.world_size
    (path,) = [path for path in summaries if path.name.endswith(RANKS_SUFFIX)]
    summary = read_summary(path.read_bytes(), path.name)
    return summary.rank, summary.world if summary.world >= 0 else None


def _seams(summaries: Sequence[Path], outputs: Sequence[Path]) -> list[seams.Described | None]:
    content = next((path.read_bytes() for path in summaries if path.name.endswith(seams.SUFFIX)), b"[]")
    return seams.seams_of_files(content, outputs)
