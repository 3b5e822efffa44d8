"""The worker process: runs jobs one after the other, writes below its own folder alone, and reads little else.

It exchanges lines of JSON with the server: orders on stdin; on stdout ``{"ready"}``, ``{"stage", "done", "of"}``, and
for each order either ``{"made": [[file name, SHA-256], …]}`` and ``{"failed": {reason, message, metadata}}``.
When stdin ends, the server has ended, and the worker exits.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import queue
import resource
import shutil
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from augment.batch import memory_limit, spilling
from augment.batch.conversion import Progress, Result, RunPlan, convert_or_raise
from augment.batch.inputs import Input, of_ranks
from augment.core.output_files import METRICS_SUFFIX
from augment.core.threads import keep_freed_memory
from augment.errors import AugmentError, InputError, UnknownFormat, UsageError
from augment.readers.limits import Limits
from augment.writers import seams
from augment_server.base.confinement import confine, renounce, seclude
from augment_server.storage.roots import folder_inside, open_below, open_inside, steps_of
from augment_server.workers.orders import folders_of, place_of, ranges_of, request_in, with_beside

if TYPE_CHECKING:
    from augment.core.trace import Trace

Say = Callable[..., None]
_SIDES = ("control", "test")  #: the sides of a comparison
_PIECE = 1 << 20
_MOST_TEXT, _MOST_NOTES = 4000, 100  #: characters of a message; remarks on the outputs
_MOST_TRACEBACK = 1 << 16  #: characters
SPILLED = 0.75  #: of the memory that a job may use: near it, arrays are moved to the disk


def main() -> None:
    """Execute orders until stdin ends."""
    say = _voice()
    import augment.pipeline
    import augment.readers
    import augment.writers  # noqa: F401 - what every job needs, loaded before the first one comes
    from augment.kernels.catalogue import KERNELS
    from augment.kernels.native import native

    native(next(iter(KERNELS)))  # in a checkout they may be built, which a confined process cannot
    keep_freed_memory()
    _limit_memory(int(sys.argv[1]))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a dump would have a client's trace, and lie anywhere
    renounce()  # all three before any other thread starts
    confine(Path(sys.argv[2]), json.loads(sys.argv[3]))
    seclude()
    orders = _orders()
    say(ready=True)
    for order in orders:
        say(**_outcome(order, say), peak_bytes=peak_bytes())


def _voice() -> Say:
    """A function that sends a line to the server. Output of libraries goes to stderr."""
    channel = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)

    def say(**what: Any) -> None:
        channel.write(json.dumps(what, ensure_ascii=False).encode(errors="replace") + b"\n")

    return say


def _orders() -> Iterator[dict[str, Any]]:
    """The orders. A thread reads them, so that the process notices the end of the server even during work."""
    waiting: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()

    def listen() -> None:
        for line in sys.stdin:
            waiting.put(json.loads(line))
        os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    return iter(waiting.get, None)


def _limit_memory(most: int) -> None:
    """Limit memory to twice the job's limit: the server watches memory in use, but too slowly for fast growth."""
    if most:
        resource.setrlimit(resource.RLIMIT_DATA, (2 * most, 2 * most))


def _outcome(order: dict[str, Any], say: Say) -> dict[str, Any]:
    from augment_server.base.errors import Refusal, refusal_of

    try:
        return _made(order, say)
    except Refusal as refusal:
        failure, why = refusal, ""
    except Exception as error:
        number = _blamed(error, order)
        failure = refusal_of(error, order["inputs"][number]["file_name"])
        if failure.metadata and order["kind"] == "diff":  # both sides may have the same file name
            failure.metadata = {**failure.metadata, "side": order["sides"][number]}
        why = traceback.format_exc() if failure.reason in ("INTERNAL", "OUTPUT_ERROR") else ""
    presentable = _presentable(failure.message, failure.metadata, order)
    return {"failed": [failure.reason, *presentable], "traceback": why[-_MOST_TRACEBACK:]}


def _presentable(message: str, metadata: Mapping[str, str], order: dict[str, Any]) -> tuple[str, dict[str, str]]:
    """The message for an error, as sent to the server, which takes no longer ones."""
    particulars = {name: _without_places(text, order)[:_MOST_TEXT] for name, text in metadata.items()}
    return _without_places(message, order)[:_MOST_TEXT], particulars


def _without_places(text: str, order: dict[str, Any]) -> str:
    """``text`` with the clients' file names in place of paths of this server."""
    for given in (*order["inputs"], *order["attached"]):
        text = text.replace(str(place_of(order, given)), given["file_name"])
        if "made_in" in given:
            text = text.replace(given["made_in"] + os.sep, "").replace(given["made_in"], given["file_name"])
    return text.replace(order["folder"] + os.sep, "").replace(order["folder"], "")


def _blamed(error: Exception, order: dict[str, Any]) -> int:
    """The number of the input that an error is about."""
    if isinstance(error, InputError):
        for number, given in enumerate(order["inputs"]):
            if error.path == str(place_of(order, given)):
                return number
    return 0


def _made(order: dict[str, Any], say: Say) -> dict[str, Any]:
    """Execute an order in its folder; returns the files written and further results."""
    folder = Path(order["folder"])
    with contextlib.ExitStack() as opened:
        sources = [_input(order, given, opened) for given in order["inputs"]]
        for given in order["attached"]:
            _input(order, given, opened)
        expect_room = opened.enter_context(memory_limit.bounded(_bound(order, sources), folder))

        def say_on(**what: Any) -> None:
            expect_room()
            say(**what)

        return _WORK[order["kind"]](order, sources, say_on)


def _bound(order: dict[str, Any], sources: Sequence[Path]) -> int | None:
    """The memory near which arrays of the work are moved to files in its folder, so that the server need not end it;
    None if it will not come near, or the disk may not have the room.
    """
    bound = int(SPILLED * order.get("memory", 0))
    items = [Input(str(path), "", named=True, size=path.stat().st_size) for path in sources if path.exists()]
    if memory_limit.bound_for(items, bound) is None:
        return None
    try:
        spilling.expect_possible(bound)
        spilling.expect_disk(Path(order["folder"]), 2 * memory_limit.needed_together(items))
    except AugmentError:
        return None
    return bound


def _told(order: dict[str, Any], paths: Sequence[Path], known: Callable[[Path], str] = lambda _: "") -> dict[str, Any]:
    """The message with the outputs, by paths below the folder. ``known`` gives digests that are known."""
    out = Path(order["folder"]) / "out"
    names = [path.relative_to(out).as_posix() for path in paths]
    return {"made": [(name, known(path) or _sha256(out, name)) for name, path in zip(names, paths, strict=True)]}


def _compared(order: dict[str, Any], sources: Sequence[Path], say: Say) -> dict[str, Any]:
    """Compare the traces of the control with those of the test, which come first."""
    from augment.compare import diff
    from augment.compare.outputs import Drawing, write_all
    from augment.core.output_files import stem

    sides = [[path for path, its in zip(sources, order["sides"], strict=True) if its == side] for side in _SIDES]
    limits, asked = Limits(**order["limits"]), order["compare"]
    if "step" in asked:
        asked["step"] = tuple(asked["step"])
    stages = ("reading the control", "reading the test", "comparing", "writing")

    def stage(name: str) -> None:
        say(stage=name, done=stages.index(name), of=len(stages))

    traces = []
    for name, paths in zip(stages[:2], sides, strict=True):
        stage(name)
        traces.append([with_beside(order, trace, limits) for trace in _read_all(paths, limits)])
    stage("comparing")
    result = diff(*traces, **asked)
    out = Path(order["folder"]) / "out"
    name = stem(sides[1][0].name) if len(sides[1]) == 1 else str(order["name"])
    return _told(order, write_all(result, out, name, Drawing(**order["drawing"]), stage))


def _read_all(paths: Sequence[Path], limits: Limits) -> Iterator[Trace]:
    """The traces of a side; files that are not traces are skipped.

    Raises:
        InputError: there is no trace.
    """
    from augment.readers import read

    count, last = 0, None
    for path in paths:
        try:
            yield read(str(path), limits=limits)
            count += 1
        except UnknownFormat as error:  # noqa: PERF203
            last = error
    if last and not count:
        raise last


def _reported(order: dict[str, Any], sources: Sequence[Path], say: Say) -> dict[str, Any]:
    """Write a page."""
    from augment_server.workers.reports import reported

    out = Path(order["folder"]) / "out"
    return _told(order, reported(order, sources, out, lambda name, done, of: say(stage=name, done=done, of=of)))


def _diagnosed(order: dict[str, Any], sources: Sequence[Path], say: Say) -> dict[str, Any]:
    """Write the diagnosis of each input."""
    from augment_server.base.errors import refusal_of
    from augment_server.workers.reports import diagnosed

    failures: list[list[Any]] = []

    def failed(number: int, error: InputError) -> None:
        refusal_ = refusal_of(error, order["inputs"][number]["file_name"])
        failures.append([number, refusal_.reason, *_presentable(refusal_.message, refusal_.metadata, order)])

    def stage(name: str, done: int, of: int) -> None:
        say(stage=name, done=done, of=of)

    paths = diagnosed(order, sources, Path(order["folder"]) / "out", stage, failed)
    return {**_told(order, paths), "failures": failures}


def _judged(order: dict[str, Any], sources: Sequence[Path], say: Say) -> dict[str, Any]:
    """Judge a run, or follow figures over many."""
    from augment_server.workers.runs import checked, followed

    work = checked if order["kind"] == "check" else followed
    out = Path(order["folder"]) / "out"
    return _told(order, work(order, sources, out, lambda name, done, of: say(stage=name, done=done, of=of)))


def _cut(order: dict[str, Any], sources: Sequence[Path], say: Say) -> dict[str, Any]:
    """Cut each trace of these ranks; a file with several ranks into one of each; or choose ranks of a timeline."""
    from augment.batch.cutting import CutChoice, cut_timeline, cut_trace, part
    from augment.core.output_files import stem
    from augment.readers import read
    from augment.writers.perfetto.several import is_of_several

    choice, limits, outs = msgspec.convert(order["choice"], CutChoice), Limits(**order["limits"]), []
    suffixes = {"chrome": ".json.gz", "perfetto": ".pftrace"}
    ranks, out = ranges_of(order["ranks"]), Path(order["folder"], "out")
    if order["part"]:
        if len(sources) > 1:
            raise UsageError(f"part: takes one file with several ranks; there are {len(sources)}")
        made = part(str(sources[0]), out, ranks, lambda _: say(stage="cutting", done=0, of=1), limits)
        return _told(order, [path.rename(path.with_name(path.name.replace(".", ".cut.", 1))) for path in made])
    if is_of_several(sources[0]):
        if choice or not ranks:
            raise UsageError(f"{sources[0]}: is the timeline of a job: only ranks of it can be chosen")
        outs.append(out / f"{stem(order['inputs'][0]['file_name'])}.cut{suffixes.get(order['format'], '.pftrace')}")
        cut_timeline(sources[0], outs[0], ranks)
        return _told(order, outs)
    if ranks and not order["of_job"]:
        raise UsageError(f"ranks: {sources[0]} is the trace of one process; name a job, or the timeline of one")
    inputs = [Input(str(source), "", named=True) for source in sources]
    chosen = {item.path for item in (of_ranks(inputs, ranks) if ranks else inputs)}
    for number, (given, source) in enumerate(zip(order["inputs"], sources, strict=True)):
        say(stage="cutting", done=number, of=len(sources))
        if str(source) not in chosen:
            continue
        trace = read(str(source), limits=limits)
        suffix = suffixes.get(order["format"]) or suffixes["perfetto" if trace.source.insert_at is None else "chrome"]
        if suffix == ".json.gz" and trace.source.insert_at is None:
            raise InputError(str(source), "is no Chrome JSON, so its part is none; ask for the format perfetto")
        folder = out / os.path.dirname(given["file_name"])
        folder.mkdir(parents=True, exist_ok=True)
        outs.append(folder / f"{stem(given['file_name'])}.cut{suffix}")
        cut_trace(trace, outs[-1], choice)
    return _told(order, outs)


def _gathered(order: dict[str, Any], sources: Sequence[Path], say: Say) -> dict[str, Any]:
    """Compare the ranks of a job."""
    from augment_server.workers.job_finalizer import Gathering, stages_of

    stages = stages_of(order)
    gathering = Gathering(order, sources, Path(order["folder"]) / "out")
    paths = gathering.all(lambda name: say(stage=name, done=stages.index(name), of=len(stages)))
    notes = [note[:_MOST_TEXT] for note in gathering.notes[:_MOST_NOTES]]
    return {**_told(order, paths, gathering.sha256_of), "notes": notes}


def _converted(order: dict[str, Any], sources: Sequence[Path], say: Say) -> dict[str, Any]:
    """Convert the trace."""
    request = request_in(order)
    plan = RunPlan(request, order["summaries"], order["metrics_only"], limits=Limits(**order["limits"]))
    count = len(request.analyses()) + 2
    done = iter(range(count))

    def stage(name: str) -> None:
        say(stage=name, done=next(done), of=count)

    source = Input(str(sources[0]), str(Path(order["folder"]) / "out"), named=True)
    result = convert_or_raise(source, plan, Progress(stage=stage))
    made = [Path(file.path) for file in (*result.summaries, *result.files)]
    outcome = _told(order, [_seams(result, made[-1]), *made] if plan.compares else made)
    return {**outcome, "rank": result.rank, "world_size": result.world_size}


def _seams(result: Result, sidecar: Path) -> Path:
    """A file with the seams of the outputs, beside the sidecar."""
    path = sidecar.with_name(sidecar.name.removesuffix(METRICS_SUFFIX) + seams.SUFFIX)
    path.write_text(json.dumps([file.seam for file in result.files if file.seam]))
    return path


def _input(order: dict[str, Any], given: dict[str, Any], opened: contextlib.ExitStack) -> Path:
    """Link or copy a file of the order to its path; files to close at the end are added to ``opened``."""
    source = place_of(order, given)
    top, at_path = folders_of(given)
    *folders, name = steps_of(at_path)
    with folder_inside(order["folder"], [top, *folders], make=True) as at:
        if "blob" in given:
            os.symlink(given["blob"], name, dir_fd=at)
        elif "below" in given:
            opened_fd = open_below(*given["below"])
            if os.path.isdir("/proc/self/fd"):  # the opened file itself, even if its path changes
                opened.callback(os.close, opened_fd)
                os.symlink(f"/proc/self/fd/{opened_fd}", name, dir_fd=at)
            else:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
                with os.fdopen(opened_fd, "rb") as file, os.fdopen(os.open(name, flags, dir_fd=at), "wb") as copy:
                    shutil.copyfileobj(file, copy, _PIECE)
    return source  # it need not exist where only earlier outputs are needed


def _sha256(out: Path, name: str) -> str:
    """The SHA-256 of an output, a regular file below ``out``."""
    digest = hashlib.sha256()
    with os.fdopen(open_inside(out, name), "rb") as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()


def peak_bytes() -> int:
    """The peak memory of this process, bytes; 0 while it is below that of the process which began this one, as Linux
    counts that until there is more."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return 0 if peak == _AT_BEGIN else peak if sys.platform == "darwin" else peak << 10


_AT_BEGIN = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


_WORK: dict[str, Callable[[dict[str, Any], Sequence[Path], Say], dict[str, Any]]] = {
    "augment": _converted,
    "diff": _compared,
    "job": _gathered,
    "report": _reported,
    "diagnose": _diagnosed,
    "check": _judged,
    "history": _judged,
    "cut": _cut,
}


if __name__ == "__main__":
    main()
