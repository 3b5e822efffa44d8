"""What a user requests of a conversion: one record for the command, batches, merging, the service and Python.

A new option of a run needs a field here and the place where a user sets it: an option of the command, a field of
``AugmentSpec``. An option of an analysis needs nothing here: ``options`` holds those of all analyses.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field
from msgspec.structs import replace

from augment.core import old_names
from augment.errors import UsageError, expect_known
from augment.readers.attachments import Evidence

if TYPE_CHECKING:
    from augment.analyses import Analysis
    from augment.v1 import resources_pb2


Options = Mapping[str, Mapping[str, Any]]  #: {analysis: {option: value}}

_SWITCHES = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


class Request(Struct, frozen=True):
    """How to convert a trace.

    Args:
        only: names of analyses; empty means all.
        skip: names of analyses to leave out.
        options: values of the analyses' options, as ``augment list`` shows them.
        steps: the numbers of the first and last step to analyse; None means all.
        formats: names of writers, as ``augment list`` shows them; empty means Perfetto's own.
        evidence: files recorded with the trace.
        tables: paths of the user's own tables, as :func:`augment.with_tables` takes them.
        peaks: single figures of devices, as :func:`augment.with_tables` takes them.
        region: the annotation whose occurrences are the steps, or a pattern with ``*`` and ``?``.
        parallelism: sizes of the job's parallel dimensions, such as ``{"tp": 4, "dp": 2}``; empty: they are recognised.
        trust_clocks: the clocks of a job's hosts are synchronised, so that ranks that no collective joins compare.
    """

    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    options: Options = field(default_factory=dict)
    steps: tuple[int, int] | None = None
    formats: tuple[str, ...] = ()
    evidence: Evidence = Evidence()
    tables: tuple[str, ...] = ()
    peaks: tuple[str, ...] = ()
    region: str = ""
    parallelism: Mapping[str, int] = field(default_factory=dict)
    trust_clocks: bool = False

    @classmethod
    def of(cls, request: Request | None, fields: Mapping[str, Any]) -> Request:
        """``request``, or the default request, with new values for ``fields``.

        Raises:
            TypeError: a field does not exist.
        """
        values = dict(fields)
        for name in _TUPLES & values.keys():
            values[name] = None if values[name] is None else tuple(values[name])
        if values.get("options", {}) is None:
            values["options"] = {}
        return replace(request or cls(), **values)

    def analyses(self) -> list[Analysis]:
        """The analyses to run, in their order.

        Raises:
            UsageError: an analysis or option does not exist, or a value differs in type from the option's default.
        """
        from augment.analyses import ANALYSES, options_of

        known = {analysis.NAME: analysis for analysis in ANALYSES}
        only, skip = ([old_names.TABLES.get(name, name) for name in names] for names in (self.only, self.skip))
        for name in (*only, *skip, *self.options):
            expect_known(name, known, "analysis")
        for name, values in self.options.items():
            options = options_of(known[name])
            for option, value in values.items():
                expect_known(option, options, f"option of {name}")
                if type(value) is not type(options[option]):
                    raise _wrong_type(name, option, options[option], value)
        return [each for each in ANALYSES if (not only or each.NAME in only) and each.NAME not in skip]

    def check(self) -> Request:
        """Refuse an invalid request before a large trace is read. Loads only the modules that the checks need.

        Raises:
            UsageError: as for :meth:`analyses`; or no analysis is left, a writer does not exist or is named twice, or
                a table or peak cannot be used.
        """
        if (self.only or self.skip or self.options) and not self.analyses():
            raise UsageError("no analysis is left to run: --skip names all of them")
        if self.formats:
            from augment import writers

            for name in self.formats:
                writers.writer_named(name)
        if self.tables or self.peaks:
            from augment.readers.attachments.tables import read_tables

            read_tables(self.tables, self.peaks)
        if len(set(self.formats)) != len(self.formats):
            raise UsageError("formats: a format is named twice")
        return self

    def option_texts(self) -> list[str]:
        """The options in the form that :func:`option_values` parses."""
        return [f"{name}.{option}={value}" for name, values in self.options.items() for option, value in values.items()]


_TUPLES = {"only", "skip", "steps", "formats", "tables", "peaks"}


def option_values(texts: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The values of ``ANALYSIS.NAME=VALUE`` texts, in the types of the options' defaults.

    Raises:
        UsageError: a text has another form, or a value another type.
    """
    values: dict[str, dict[str, Any]] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        analysis, dot, option = name.strip().partition(".")
        if not equals or not dot:
            example = "idle_time_breakdown.consecutive_kernel_delay_ns=30000"
            raise UsageError(f"--option {text}: must be ANALYSIS.NAME=VALUE, such as {example}")
        values.setdefault(analysis, {})[option.strip()] = _typed(analysis, option.strip(), value.strip())
    return values


def _typed(analysis: str, option: str, text: str) -> Any:
    """``text`` in the type of the option's default; unchanged for an unknown option, which the check refuses."""
    from augment.analyses import ANALYSES, options_of

    defaults = next((options_of(each) for each in ANALYSES if analysis == each.NAME), {})
    default = defaults.get(option)
    try:
        if isinstance(default, bool):
            return _SWITCHES[text.lower()]
        if isinstance(default, int):
            return _whole(text.replace("_", ""))
        if isinstance(default, float):
            return float(text)
    except (ValueError, KeyError) as error:
        raise _wrong_type(analysis, option, default, text) from error
    return text


def _whole(text: str) -> int:
    """The integer in ``text``, which may be written as ``7e9``."""
    try:
        return int(text)
    except ValueError:
        number = float(text)
        if not number.is_integer():
            raise
        return int(number)


def _wrong_type(analysis: str, option: str, default: Any, value: object) -> UsageError:
    wanted = type(default).__name__
    return UsageError(f"{analysis}: {option} must be of type {wanted} (such as {default!r}), not {value!r}")


def spec_of(request: Request, *, summaries: bool) -> resources_pb2.AugmentSpec:
    """The message for ``request``, without the input and the files beside it."""
    from augment.v1 import resources_pb2

    steps = request.steps
    return resources_pb2.AugmentSpec(
        formats=request.formats,
        only=request.only,
        skip=request.skip,
        options=request.option_texts(),
        steps=resources_pb2.StepRange(first=steps[0], last=steps[1]) if steps else None,
        summaries=summaries,
        peaks=request.peaks,
        region=request.region,
    )


def peaks_of(values: Mapping[str, float]) -> tuple[str, ...]:
    """Single figures of devices by ``[DEVICE:]NAME`` as texts, those of longer DEVICEs later: they count before."""
    names = sorted(values, key=lambda name: (len(name.rpartition(":")[0]), name))
    return tuple(f"{name}={values[name]!r}" for name in names)


def request_of(spec: resources_pb2.AugmentSpec) -> Request:
    """The request in a message.

    Raises:
        UsageError: an option has another form or type, or the steps are in the wrong order.
    """
    steps = spec.steps if spec.HasField("steps") else None
    if steps and not 0 <= steps.first <= steps.last:
        raise UsageError("steps: must be from 0 on, and the first not greater than the last")
    return Request(
        formats=tuple(spec.formats),
        only=tuple(spec.only),
        skip=tuple(spec.skip),
        options=option_values(spec.options),
        steps=(steps.first, steps.last) if steps else None,
        peaks=(*peaks_of(spec.peak_values), *spec.peaks),
        region=spec.region,
    )


def everything() -> dict[str, list[dict[str, Any]]]:
    """What can be requested, as plain data: the registries of analyses, rules of the diagnosis, readers and writers."""
    from augment import readers, writers
    from augment.analyses import ANALYSES, options_of
    from augment.core import findings
    from augment.diagnosis.rules import RULES

    return {
        "analyses": [
            {
                "name": analysis.NAME,
                "about": _sentence(analysis),
                "options": options_of(analysis),
                "columns": [{"name": c.name, "doc": c.doc, "unit": c.unit} for c in findings.columns_of(analysis.Row)],
            }
            for analysis in ANALYSES
        ],
        "rules": [{"name": rule.NAME, "about": _sentence(rule)} for rule in RULES],
        "readers": [{"name": reader.NAME, "about": _sentence(reader)} for reader in readers.READERS],
        "writers": [
            {"name": writer.NAME, "about": _sentence(writer), "suffix": writer.SUFFIX} for writer in writers.WRITERS
        ],
    }


def _sentence(member: object) -> str:
    """The first sentence of a docstring."""
    paragraph = " ".join((inspect.getdoc(member) or "").split("\n\n")[0].split())
    match = re.match(r".*?[.?!](?=\s|$)", paragraph)
    return match.group() if match else paragraph
