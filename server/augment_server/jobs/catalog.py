"""The library's registries and sidecars as messages. Imports the library's modules only when they are needed."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

from augment import __version__
from augment.core.attachment_kinds import KINDS, TABLES
from augment.core.output_files import TOLD
from augment.errors import UsageError, expect_known
from augment.v1 import resources_pb2 as v1
from augment_server.base.errors import Refusal, invalid, within
from augment_server.base.limits import Limits
from augment_server.base.loading import load
from augment_server.base.names import safe_file_name, safe_path
from augment_server.jobs.job_metadata import MOST_LABELS, MOST_PRIORITY
from augment_server.storage.inputs import MOST_RUNS, WITH_ATTACHMENTS
from augment_server.storage.pages import MOST_PAGE
from augment_server.storage.places import Places

if TYPE_CHECKING:
    from augment.pipeline.request import Request

ROWS_BYTES = 1 << 20  #: approximate bytes of rows in one message
#: most bytes of a sidecar that is read, of a line in it, and of all in it but the rows
MOST_METRICS_BYTES, MOST_ROW_BYTES, MOST_HEAD_BYTES = 1 << 30, 4 << 20, 4 << 20
MOST_DECODED_BYTES = 1 << 20  #: of what is decoded as a whole: two bytes of it may take eighty of memory
_ROW = b" " * 6  #: before each row
MOST_LABEL, MOST_ARROWS, MOST_DELTA_US = 200, 100_000, 10**12
MOST_RANGES = 1024  #: of ranks
MOST_PERIOD_S = 10**6  #: of a trace, from its first event to the end of a cut


class _Metrics(msgspec.Struct):
    """An analysis in the sidecar. Its rows are not decoded, so that they stay exactly as they are."""

    status: str
    rows: msgspec.Raw
    reason: str = ""


class _Verdict(msgspec.Struct):
    text: list[str] = []


class _Told(msgspec.Struct):
    """What the job tells of a rank's verdict."""

    verdict: list[str] | None = None
    job: str | None = None


class _Sidecar(msgspec.Struct):
    analyses: dict[str, _Metrics]
    verdict: _Verdict = msgspec.field(default_factory=_Verdict)
    told_by_job: msgspec.Raw = msgspec.Raw(b"null")


class MetricsFile:
    """A sidecar, read line by line: it has a line for each row of an analysis, and is never in memory as a whole.

    It is read, not mapped: a worker that still had it open could end this process by truncating it. ``verdict`` is that
    of a rank with what its job tells. All methods block.

    Args:
        file: it, which is closed at the end.

    Raises:
        Refusal: it is damaged, or larger than what is read.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        try:
            self._begin()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _begin(self) -> None:
        if self._file.seek(0, os.SEEK_END) > MOST_METRICS_BYTES:
            raise _too_large()
        self._file.seek(0)
        head, places = bytearray(), list[tuple[int, int]]()  # all but the rows; where those of each analysis lie
        at, in_analyses = 0, False
        while line := self._line():
            at += len(line)
            if line.startswith(b'  "'):
                in_analyses = line.startswith(b'  "analyses"')
            if in_analyses and places and line.startswith(_ROW):
                places[-1] = (places[-1][0], at)
                continue
            head += line
            if len(head) > MOST_HEAD_BYTES:
                raise _too_large()
            if in_analyses and line.startswith(b'    "'):
                places.append((at, at))
        with damage_told():
            sidecar = msgspec.json.decode(bytes(head), type=_Sidecar)
        load()
        from augment.results.sidecars import verdict_in_job

        self._analyses, self._of_job = sidecar.analyses, bytes(sidecar.told_by_job)
        of_job = _decoded(self._of_job, _Told | None)
        self.verdict = verdict_in_job(of_job and msgspec.structs.asdict(of_job), sidecar.verdict.text)
        self._places = dict(zip(sidecar.analyses, places, strict=False))
        if places and len(places) != len(sidecar.analyses):
            raise _damaged()

    def _line(self) -> bytes:
        line = self._file.readline(MOST_ROW_BYTES)
        if len(line) == MOST_ROW_BYTES:
            raise _too_large()
        return line

    @property
    def names(self) -> Collection[str]:
        """The names of the analyses."""
        return self._analyses.keys()

    def messages(self, name: str) -> Iterator[v1.AnalysisMetrics]:
        """The messages for one analysis, at least one.

        Raises:
            Refusal: a row is damaged.
        """
        metrics = self._analyses[name]
        stated = "skipped" if metrics.status == "failed" else metrics.status  # its reason says which
        with damage_told():
            status = v1.AnalysisMetrics.Status.Value(f"STATUS_{stated.upper()}")
        rows = self._rows(name)
        while True:
            message, size = v1.AnalysisMetrics(analysis=name, status=status, reason=metrics.reason), 0
            for row in rows:
                with damage_told():
                    message.json_rows.append(row.decode())
                size += len(row)
                if size >= ROWS_BYTES:
                    break
            yield message
            following = next(rows, None)
            if following is None:
                return
            rows = itertools.chain((following,), rows)

    def _rows(self, name: str) -> Iterator[bytes]:
        load()
        from augment.results.sidecars import in_job

        of_job = _decoded(self._of_job, dict[str, Any] | None) if name == "diagnosis" else None
        if of_job:
            begin, end = self._places.get(name, (0, 0))
            if end - begin > MOST_DECODED_BYTES:
                raise _too_large()
            rows = [msgspec.json.decode(row) for row in self._rows_alone(name)]
            try:
                judged = in_job({TOLD: of_job, "analyses": {name: {"rows": rows}}})["analyses"][name]["rows"]
            except (AttributeError, KeyError, TypeError) as error:  # JSON, but no metrics
                raise _damaged() from error
            return map(msgspec.json.encode, judged)
        return self._rows_alone(name)

    def _rows_alone(self, name: str) -> Iterator[bytes]:
        """The rows as they were written."""
        yield from map(bytes, _decoded(bytes(self._analyses[name].rows), list[msgspec.Raw]))
        at, end = self._places.get(name, (0, 0))
        while at < end:
            self._file.seek(at)
            line = self._line()
            at += len(line)
            with damage_told():
                row = bytes(msgspec.json.decode(line.strip().removesuffix(b","), type=msgspec.Raw))
            yield row


def _decoded(text: bytes, kind: Any) -> Any:
    if len(text) > MOST_DECODED_BYTES:
        raise _too_large()
    with damage_told():
        return msgspec.json.decode(text, type=kind)


@contextlib.contextmanager
def damage_told() -> Iterator[None]:
    """Turn what is wrong with values of a sidecar, which a hostile trace may have made, into a refusal.

    Raises:
        Refusal: something was.
    """
    try:
        yield
    except (ValueError, RecursionError) as error:
        raise _damaged() from error


def _too_large() -> Refusal:
    what = f"the metrics have more than {MOST_METRICS_BYTES} bytes, or a row of {MOST_ROW_BYTES}; read the artifact"
    return Refusal("LIMIT_EXCEEDED", what)


def _damaged() -> Refusal:
    return Refusal("ARTIFACT_DAMAGED", "the metrics are damaged on the server's disk; run the job again")


def analyses() -> list[v1.Analysis]:
    """The analyses, in the order of the registry."""
    load()
    from augment.pipeline.request import everything

    return [
        v1.Analysis(
            name=analysis["name"],
            summary=analysis["about"],
            options=[
                v1.AnalysisOption(name=name, default_value=str(default), type=type(default).__name__)
                for name, default in analysis["options"].items()
            ],
        )
        for analysis in everything()["analyses"]
    ]


def server_info(limits: Limits, places: Places) -> v1.ServerInfo:
    """The version, formats, limits, retention and prefixes of this server."""
    load()
    from augment.pipeline.request import everything
    from augment.writers.metrics import SCHEMA_VERSION

    names = {kind: [entry["name"] for entry in of] for kind, of in everything().items()}
    info = v1.ServerInfo(
        version=__version__,
        input_formats=names["readers"],
        output_formats=names["writers"],
        analyses=names["analyses"],
        metrics_schema_version=SCHEMA_VERSION,
        limits=v1.ServerLimits(
            max_upload_bytes=min(limits.max_upload_bytes, limits.max_stored_bytes),
            max_text_bytes=limits.max_text_bytes,
            max_message_bytes=limits.max_message_bytes,
            max_open_uploads=limits.max_open_uploads,
            max_client_jobs=limits.max_client_jobs,
            max_client_calls=limits.max_client_calls,
            max_page_size=MOST_PAGE,
            max_labels=MOST_LABELS,
            max_priority=MOST_PRIORITY,
            max_job_inputs=limits.max_job_inputs,
        ),
        retention=v1.ServerRetention(max_kept=limits.max_kept, max_stored_bytes=limits.max_stored_bytes),
        input_prefixes=places.readable,
        output_prefixes=places.writable,
        attachment_kinds=[*(kind.name for kind in KINDS), TABLES],
        attachment_jobs=WITH_ATTACHMENTS,
        rank_jobs=("cut", "job"),
    )
    info.limits.job_deadline.FromMicroseconds(round(limits.job_deadline_s * 1e6))
    info.retention.upload_life.FromMicroseconds(round(limits.upload_life_s * 1e6))
    info.retention.artifact_life.FromMicroseconds(round(limits.artifact_life_s * 1e6))
    return info


def check_spec(spec: v1.JobSpec) -> None:
    """Refuse a job that would fail later.

    Raises:
        Refusal: see the functions below.
    """
    kind = spec.WhichOneof("kind")
    with within(f"spec.{kind}"):
        if kind == "augment":
            check(spec.augment)
        elif kind == "diff":
            check_diff(spec.diff)
        elif kind == "job":
            check_job(spec.job)
        elif kind == "diagnose":
            _check_name(spec.diagnose.name)
            _check_beside(spec.diagnose)
        elif kind == "check":
            check_gate(spec.check)
        elif kind == "history":
            _check_history(spec.history)
        elif kind == "cut":
            check_cut(spec.cut)


def check_job(spec: v1.WholeJobSpec) -> None:
    """Refuse a spec that would fail later.

    Raises:
        Refusal: as :func:`check`; or the name or the sizes of dimensions are invalid.
    """
    load()
    from augment.job.ranks.dimension_names import check_sizes

    with within("augment"):
        check(spec.augment)
    if spec.name:
        safe_path(spec.name, "name")
    if spec.augment.HasField("input"):
        raise invalid("augment.input", "leave it empty, and name the traces in inputs")
    with _usage("parallelism"):
        check_sizes(spec.parallelism, "parallelism")
    with within("merge"):
        if spec.merge.ranks and not spec.merge.only:
            raise invalid("ranks", "needs only; of other jobs name the traces of these ranks in inputs")
        _check_ranks(spec.merge.ranks)


def gate_of(spec: v1.CheckSpec) -> dict[str, Any]:
    """The limits of a check, as :func:`augment.compare.gate.limits_of` takes them."""
    figures = {name: {"off": False}.get(limit, limit) for name, limit in spec.metrics.items()}
    gate = {"max_regress": spec.max_regress or "5%", "parts": spec.parts, "metrics": figures}
    return gate | ({"alpha": spec.alpha} if spec.HasField("alpha") else {})


def check_gate(spec: v1.CheckSpec) -> None:
    """Refuse a check that would fail later.

    Raises:
        Refusal: a figure does not exist, a limit is invalid, or there is not one baseline.
    """
    load()
    from augment.compare.gate import limits_of

    if not spec.tests:
        raise invalid("tests", "has no trace")
    if bool(spec.baselines) == spec.HasField("history"):
        raise invalid("baselines", "set either baselines or history")
    if spec.HasField("history"):
        with within("history"):
            _check_history(spec.history)
    for name in ("max_regress", "alpha", "metrics"):  # which of them it is
        with _usage(name):
            given = gate_of(spec)
            limits_of({name: given[name]} if name in given else {})


def _check_history(spec: v1.HistorySpec) -> None:
    if not 0 < len(spec.labels) <= MOST_LABELS:
        raise invalid("labels", f"between 1 and {MOST_LABELS}")
    if not 0 <= spec.limit <= MOST_RUNS:
        raise invalid("limit", f"from 0 to {MOST_RUNS}")


def cut_of(spec: v1.CutSpec) -> dict[str, Any]:
    """What is kept of a trace, as :class:`augment.batch.cutting.CutChoice` has it."""
    ends = [moment.ToNanoseconds() / 1e6 for moment in (spec.period.start, spec.period.end)]
    return {
        "steps": [spec.steps.first, spec.steps.last] if spec.HasField("steps") else None,
        "period": ends if spec.HasField("period") else None,
        "dropped": list(spec.drop),
    }


def check_cut(spec: v1.CutSpec) -> None:
    """Refuse a cut that would fail later.

    Raises:
        Refusal: nothing is left out, a range is empty, or the format is none.
    """
    chosen = spec.HasField("steps") or spec.HasField("period") or bool(spec.drop)
    if not (chosen or spec.ranks or spec.part):
        raise invalid("steps", "set steps, period, drop, ranks or part")
    if spec.part and (chosen or spec.format):
        raise invalid("part", "takes only ranks; cut the parts in a second job")
    _check_ranks(spec.ranks)
    if not 0 <= spec.steps.first <= spec.steps.last:
        raise invalid("steps", "from the first step to a later one, or the same")
    if spec.HasField("period"):
        with _usage("period"):
            period = [(each.seconds, each.nanos) for each in (spec.period.start, spec.period.end)]
            if not (0, 0) <= period[0] < period[1] <= (MOST_PERIOD_S, 0):
                raise UsageError(f"period: its end must come after its start, and within {MOST_PERIOD_S} s")
    with _usage("format"):
        expect_known(spec.format or "chrome", ("chrome", "perfetto"), "format of a smaller trace")


def ranks_of(ranks: Iterable[v1.RankRange]) -> list[tuple[int, int]]:
    """The first and last of each range of ranks."""
    return [(each.first, each.last) for each in ranks]


def _check_ranks(ranks: Sequence[v1.RankRange]) -> None:
    if len(ranks) > MOST_RANGES or not all(0 <= first <= last for first, last in ranks_of(ranks)):
        raise invalid("ranks", f"at most {MOST_RANGES} ranges, each from a rank to a later one, or the same")


def request_of(spec: v1.AugmentSpec) -> Request:
    """The request in a message.

    Raises:
        UsageError: an option has another form or type, or the steps are in the wrong order.
    """
    load()
    from augment.pipeline import request

    return request.request_of(spec)


def _check_name(name: str) -> None:
    if name and safe_file_name(name, "name") != name:
        raise invalid("name", "must be the name of a folder, without a path")


@contextlib.contextmanager
def _usage(path: str) -> Iterator[None]:
    """Turn the library's refusals into those of the field at ``path``."""
    try:
        yield
    except UsageError as error:
        raise Refusal("USAGE", str(error), field_path=path) from error


def check(spec: v1.AugmentSpec) -> None:
    """Refuse a spec that would fail later.

    Raises:
        Refusal: an analysis, an option or a format that does not exist, steps in the wrong order, or no analysis is
            left; or attachments of unknown kinds, or of which a trace can have only one.
    """
    _check_attachments(spec.attachments)
    with contextlib.suppress(UsageError):
        request_of(spec).check()
        return
    for name in ("formats", "only", "skip", "options"):  # which of them it is
        values = getattr(spec, name)
        for at, value in enumerate(values):
            with _usage(f"{name}[{at}]"):
                request_of(v1.AugmentSpec(**{name: [value]})).check()  # type: ignore[arg-type]
        if name == "formats":
            with _usage(name):
                request_of(v1.AugmentSpec(formats=values)).check()
    _check_peaks(spec)
    with _usage("steps"):
        request_of(v1.AugmentSpec(steps=spec.steps))
    with _usage("skip"):  # each is right, but together they leave none
        request_of(spec).check()


def _check_peaks(spec: v1.AugmentSpec | v1.DiffSpec | v1.DiagnoseSpec) -> None:
    with _usage("peaks"):
        request_of(v1.AugmentSpec(peaks=spec.peaks)).check()
    with _usage("peak_values"):
        request_of(v1.AugmentSpec(peak_values=spec.peak_values)).check()


def _check_beside(spec: v1.DiffSpec | v1.DiagnoseSpec) -> None:
    """Refuse files beside traces, and peaks, that a job cannot use."""
    _check_attachments(spec.attachments)
    _check_peaks(spec)


def _check_attachments(attachments: Sequence[v1.Attachment]) -> None:
    several = {kind.name: kind.several for kind in KINDS} | {TABLES: True}
    seen = dict[str, set[int | None]]()
    for at, attachment in enumerate(attachments):
        with _usage(f"attachments[{at}].kind"):
            expect_known(attachment.kind, several, "kind of file")
        beside = attachment.trace_index if attachment.HasField("trace_index") else None
        if beside is not None and beside < 0:
            raise invalid(f"attachments[{at}].trace_index", "counts the traces from 0")
        if beside is not None and attachment.kind == TABLES:
            raise invalid(f"attachments[{at}].trace_index", "leave it out: all traces share the tables")
        others = seen.setdefault(attachment.kind, set())
        if beside in others and not several[attachment.kind]:
            raise invalid(f"attachments[{at}]", f"a trace has only one {attachment.kind}")
        if others and (beside is None) != (None in others):
            raise invalid(f"attachments[{at}]", f"traces either share each {attachment.kind}, or none")
        others.add(beside)


def check_diff(spec: v1.DiffSpec) -> None:
    """Refuse a comparison that would fail later.

    Raises:
        Refusal: a format that does not exist, or a number or text that is too large.
    """
    check(v1.AugmentSpec(formats=spec.formats))
    _check_beside(spec)
    for name, most in (("min_delta_us", MOST_DELTA_US), ("arrow_count", MOST_ARROWS)):
        if not 0 <= getattr(spec, name) <= most:
            raise Refusal("USAGE", f"{name}: from 0 to {most}", field_path=name)
    _check_name(spec.name)
    if len(spec.label) > MOST_LABEL or not (spec.label.isprintable() or not spec.label):
        raise Refusal("USAGE", f"label: at most {MOST_LABEL} printable characters", field_path="label")
