"""What is asked of a whole job: each conversion leaves a small summary of its rank, the answer is made of those, and
its tracks are drawn into the outputs of the ranks.

Traces are not read again. A summary lies next to the rank's other outputs and is listed in the manifest, so that a
resumed batch has the summaries of the ranks converted before. An output is copied with the job's tracks at its seam
(``augment/writers/seams.py``); they replace the tracks of an earlier result. The ``drawn`` of a rank's result
identifies the job results that its outputs show: if those are current, nothing is done.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from augment.batch import locations
from augment.batch.conversion import Executor, File, Outputs, Result, T, Tracks, result_of, sha256_of
from augment.batch.inputs import FileIdentity, Input
from augment.batch.jobs import Job, Member, group, pipelines
from augment.core.output_files import METRICS_SUFFIX, RANKS_SUFFIX
from augment.core.text import job_lines
from augment.errors import AugmentError

if TYPE_CHECKING:
    from augment.facts.names import Rules
    from augment.job.answer import Answer, Portion
    from augment.pipeline.request import Request
    from augment.writers.seams import Addable

NOT_KNOWN = "?"  #: ``drawn`` of outputs after a run was killed while drawing


def alone(tasks: Sequence[Callable[[], T]]) -> Generator[T, None, None]:
    """The executor that is this process."""
    return (task() for task in tasks)


class Redraw(Struct, frozen=True):
    """A rank whose outputs do not show its job yet: its result so far, the job's ``tracks``, and their ``drawn``."""

    input: Input
    before: Result
    tracks: Tracks
    drawn: str

    @property
    def size(self) -> int:
        """Bytes of outputs to copy; 0 if none has a seam."""
        return sum(file.size for file in self.before.files if file.seam)


class Concluded(Struct, frozen=True):
    """The outcome for a job: the files about it, and the tracks still to be drawn into its ranks' outputs.

    ``missing`` are the inputs whose traces are to be written before that. ``seamless`` counts the ranks whose outputs
    have no seam to draw at: an old server converted them. ``verdict``: sentences about the job, which is one if its
    traces are ``joined``. ``notes``: what the user stated, and the traces contradict.
    """

    job: Job
    written: Sequence[str]
    redraws: Sequence[Redraw]
    seamless: int
    verdict: Sequence[str] = ()
    joined: bool = True
    notes: Sequence[str] = ()
    answer: Answer | None = None  #: None if an earlier run concluded it
    digest: str = ""  #: of the conclusion
    telling: Sequence[int] = ()  #: the places of ranks whose timelines tell most
    missing: Sequence[Input] = ()


class Earlier(Struct, frozen=True):
    """The outcome for a job that an earlier run has recorded: the size of its file, how many of its ranks show it, and
    what was said."""

    digest: str
    size: int
    drawn_count: int
    verdict: Sequence[str] = ()
    joined: bool = True
    notes: Sequence[str] = ()
    telling: Sequence[int] = ()  #: the places of ranks whose timelines tell most


def jobs_of(inputs: Iterable[Input], results: Mapping[str, Result], tables: Sequence[str] = ()) -> list[Job]:
    """The jobs among ``inputs`` that were converted, now or before; ``results`` by path. ``tables`` are the user's own,
    which may tell roles. Beside ranks that left summaries, what left none is no rank: a log, or a dump."""
    done = [item for item in inputs if item.path in results and results[item.path].files]
    known = {item.path: FileIdentity(results[item.path].rank, results[item.path].world_size) for item in done}
    ranks, rules = [item for item in done if summary_of(results[item.path])] or done, rules_of(tables)
    paths = {item.path for item in ranks}
    alone = [job for item in done if item.path not in paths for job in group([item], known, rules)]
    return [*group(ranks, known, rules), *alone]


def rules_of(tables: Sequence[str]) -> Rules:
    """The user's own rules for roles, in the tables at these paths."""
    from augment.facts.names import ROLES_TABLE, role_rules

    if not tables:
        return ()
    from augment.readers.attachments.tables import read_tables

    return role_rules(read_tables(tables).get(ROLES_TABLE, ()))


def conclude(
    inputs: Sequence[Input],
    results: Mapping[str, Result],
    request: Request,
    executor: Executor = alone,
    earlier: Mapping[str, Earlier] = MappingProxyType({}),
    outputs: Outputs = "all",
) -> Iterator[Concluded]:
    """The answer for every job among ``inputs`` that has summaries of more than one rank.

    A job that an earlier run has concluded from the same summaries is not concluded again: none of its files is opened,
    unless traces are missing.

    Args:
        inputs: the traces.
        results: the results of the inputs by path; a failed input is missing from its job.
        request: what the user asks.
        executor: reads the summaries of large jobs.
        earlier: the outcomes that are known, by the path of the job's file.
        outputs: whose traces to write.

    Raises:
        InputError: a summary cannot be read.
        OutputError: a file cannot be written.
    """
    for job in jobs_of(inputs, results, request.tables):
        paths = ((member, summary_of(results[member.input.path])) for member in job.members)
        summaries = [(member, path) for member, path in paths if path]
        if len(summaries) < 2:
            if alone := [
                item.input for item in job.members if outputs == "auto" and not results[item.input.path].traces
            ]:
                yield Concluded(job, [], [], 0, missing=alone)
            continue
        path = locations.join(job.folder, job.stem + METRICS_SUFFIX)
        known = earlier.get(path)
        of_ranks = [results[member.input.path] for member, _ in summaries]

        def missing(telling: Sequence[int], of_ranks: Sequence[Result] = of_ranks) -> list[int]:
            return [place for place in telling if outputs == "auto" and not of_ranks[place].traces]

        if known and known == _still(known, path, of_ranks, request) and not missing(known.telling):
            said = known.verdict, known.joined, known.notes
            yield Concluded(job, [path], [], 0, *said, digest=known.digest, telling=known.telling)
            continue
        from augment.job import sidecar
        from augment.job.parallel import CONTRADICTED
        from augment.job.rank_answers import cures, drawn

        answer = compared(summaries, request, executor)
        _write(path, sidecar.content(answer, job.name, job.window, job.world_size))
        digest, telling, redraws = job_digest(answer.hashes, request), answer.telling(), []
        lacking = missing(telling)
        for place, before in enumerate(of_ranks):
            is_drawn = answer.is_drawn(place)
            if (before.drawn != digest or place in lacking) and (is_drawn or before.drawn):
                tracks = partial(drawn, answer, place) if is_drawn else partial(drawn_at_first, before.summaries)
                redraws.append(Redraw(summaries[place][0].input, before, tracks, digest))
        possible = [redraw for redraw in redraws if redraw.size]
        contradicted = (each for each in answer.dimensions.diagnostics if each.code == CONTRADICTED)
        yield Concluded(
            job,
            [path],
            possible,
            len(redraws) - len(possible),
            job_lines(answer.verdict.text, cures(answer)),
            answer.verdict.joined,
            [f"--parallelism: {each.message}" for each in contradicted],
            answer,
            digest,
            telling,
            [summaries[place][0].input for place in lacking],
        )


def conclude_roles(
    inputs: Sequence[Input], results: Mapping[str, Result], request: Request, known: Mapping[Job, Answer]
) -> Iterator[Concluded]:
    """What there is to say of roles that work together, of each folder of several roles. ``known`` are answers of jobs.

    Raises:
        InputError: a summary cannot be read.
        OutputError: a file cannot be written.
    """
    from augment.job import sidecar
    from augment.job.roles import together

    for job in pipelines(jobs_of(inputs, results, request.tables)):
        of_role: dict[str, list[Answer]] = {}
        for part in job.parts:
            if answered := known.get(part) or answer_of_run(part, results, request):
                of_role.setdefault(part.role, []).append(answered)
        if len(of_role) < 2:
            continue
        roles = together(of_role)
        path = locations.join(job.folder, job.stem + METRICS_SUFFIX)
        _write(path, sidecar.content(roles, job.name))
        yield Concluded(job, [path], [], 0, roles.verdict.text)


def answer_of_run(job: Job, results: Mapping[str, Result], request: Request) -> Answer | None:
    """The answer of a job from the summaries of its conversions; None if some left none."""
    from augment.job.answer import answer

    paths = [path for member in job.members if (path := summary_of(results[member.input.path]))]
    if len(paths) < len(job.members):
        return None
    contents = map(locations.read, paths)
    return answer(contents, paths, request.parallelism, trust_clocks=request.trust_clocks)


def _write(path: str, content: bytes) -> None:
    """Write a file, unless it is this already."""
    if locations.size(path) != len(content) or locations.read(path) != content:
        locations.write(path, content)


def _still(known: Earlier, path: str, results: Sequence[Result], request: Request) -> Earlier:
    """What ``known`` would be now."""
    files = [file for result in results for file in result.summaries if file.path.endswith(RANKS_SUFFIX)]
    digest = job_digest([bytes.fromhex(file.sha256) for file in files], request)
    drawn = sum(result.drawn == digest for result in results)
    return replace(known, digest=digest, size=locations.size(path) or 0, drawn_count=drawn)


def recordable(job: Concluded, results: Mapping[str, Result]) -> Earlier | None:
    """What is to be recorded of a job when its ranks show it; None if some do not."""
    of_ranks = [results[member.input.path] for member in job.job.members]
    if not job.digest or job.seamless or not job.written or any(result.status == "failed" for result in of_ranks):
        return None
    drawn = sum(result.drawn == job.digest for result in of_ranks)
    size = locations.size(job.written[0]) or 0
    return Earlier(job.digest, size, drawn, list(job.verdict), job.joined, list(job.notes), list(job.telling))


def summary_of(result: Result) -> str | None:
    """The path of a rank's summary; None if an older server converted the rank, which sends no summaries."""
    return next((file.path for file in result.summaries if file.path.endswith(RANKS_SUFFIX)), None)


def draw(item: Input, before: Result, tracks: Sequence[Addable], drawn: str) -> Result:
    """Draw into the outputs of ``item`` and return the result. An error is a result, too; only an interrupt raises.

    Outputs that already show these tracks, as where another rank of the job has changed, stay as they are.
    """

    def work() -> Result:
        files = tuple(_with_tracks(item, file, tracks, before.drawn) if file.seam else file for file in before.files)
        return replace(before, status="augmented", files=files, drawn=drawn)

    return result_of(item, work)


def _with_tracks(item: Input, file: File, tracks: Sequence[Addable], drawn: str) -> File:
    from augment.writers.seams import add_tracks, shows

    assert file.seam is not None
    folder = locations.parent(file.path)
    with locations.at_hand(file.path, folder, file.size) as (path, target):
        stays = bool(drawn) and shows(Path(path), file.seam, tracks)
        new = Path(path) if stays else target / locations.basename(file.path)
        if not stays:
            add_tracks(Path(path), new, file.seam, tracks)
        size, sha256 = new.stat().st_size, sha256_of(new) if item.root else ""
        if not stays:
            locations.deliver([new], folder)
    return replace(file, size=size, sha256=sha256)


def drawn_at_first(summaries: Iterable[File]) -> list[Addable]:
    """What the outputs of a rank with these summaries had at their seams before its job was known.

    Raises:
        InputError: the summary is damaged.
    """
    from augment.job.rank_answers import drawn_alone
    from augment.job.ranks import read_summary

    paths = [file.path for file in summaries if file.path.endswith(RANKS_SUFFIX)]
    return [*drawn_alone(read_summary(locations.read(paths[0]), paths[0]))] if paths else []


def is_as_written(file: File, summaries: Iterable[File]) -> bool:
    """Whether an output of a rank with these summaries still is as first written, apart from tracks drawn since."""
    from augment.writers.seams import is_as_written

    if file.seam is None:
        return False
    try:
        first = drawn_at_first(summaries)
        with locations.at_hand(file.path, locations.parent(file.path), file.size) as (path, _):
            return is_as_written(Path(path), file.seam, file.undrawn_sha256, first)
    except AugmentError:
        return False


def job_digest(hashes: Iterable[bytes], request: Request) -> str:
    """Identifies the results of a job: by the SHA-256 of each of its summaries, and what the user states of the job."""
    stated = repr((sorted(request.parallelism.items()), request.trust_clocks)).encode()
    return hashlib.sha256(b"".join(hashes) + stated).hexdigest()[:16]


def compared(summaries: Sequence[tuple[Member, str]], request: Request, executor: Executor) -> Answer:
    """The answer of a job, from the summaries of its members at these paths."""
    from augment.job.answer import answer_of, split

    ranks = [(path, member.input.path) for member, path in summaries]
    tasks = [partial(_portion, some, first, len(ranks)) for first, some in split(ranks)]
    with closing(executor(tasks)) as portions:
        return answer_of(portions, request.parallelism, trust_clocks=request.trust_clocks)


def _portion(ranks: Sequence[tuple[str, str]], first: int, count: int) -> Portion:
    """Some ranks of a job, reduced; of each the path of its summary, and of its trace."""
    from augment.job.answer import portion

    return portion((locations.read(path) for path, _ in ranks), [name for _, name in ranks], first, count)
